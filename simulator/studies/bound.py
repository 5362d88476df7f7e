"""Draw the figure of `paceline theory`: Theorem 2's bound by time."""

from pathlib import Path

import numpy as np

from .. import theory
from ..results import read, store
from ..results.figures import curves, drawing, style
from ..results.figures.chart import Axis, Chart, Line, Look, Panel, fitted
from ..results.statistics import Groups, time_unit
from ..scenario.scenario import Scenario

POINTS = 60  # points of a curve, about
BEGINS = 100  # curves against time begin at the last time divided by this
LINES = 4  # most periods drawn against time
STAR = Look(style.GREY, symbol="star")


def files(scenario: Scenario, folder: Path) -> dict[str, bytes]:
    """Return the figure by file name, with the runs of `folder`; {} without a bound."""
    there = (folder / store.WHOLE).is_file()
    runs = read.read(folder).runs if there else {}
    return drawing.files({"theory": chart(scenario, runs)})


def chart(scenario: Scenario, runs: Groups) -> Chart | None:
    """Chart the bound against time for several periods.

    Stars mark the best period at every one of `theory.durations`, else at the end of `[run]`.
    `runs`, by label, whose loss is the bound, are dotted.
    """
    bound, last = theory.bound_of(scenario), scenario.run.duration
    durations = sorted(scenario.theory.durations or ([last] if last else []))
    if bound is None or not bound.cap or not durations:
        return None
    step = theory.steps_of(scenario)

    def value(time: float, tau: int) -> float:
        return bound(time, step(tau), tau)

    best = {time: theory.tau_star_random(bound, step, time).valid or 1 for time in durations}
    periods = [tau for tau in sorted({*scenario.theory.periods}) if bound.valid(tau)] or [1]
    periods = periods[:: -(-len(periods) // LINES)]
    end = max([*best, *(run.duration for same in runs.values() for run in same)])
    size, unit = time_unit(end)
    times = np.geomspace(end / BEGINS, end, POINTS)
    lines = [
        Line(
            f"tau = {tau}", times / size, [value(x, tau) for x in times], Look.at(at), marks="none"
        )
        for at, tau in enumerate(periods)
    ]
    axis = fitted("bound", np.concatenate([line.y for line in lines]))
    for at, (label, same) in enumerate(runs.items()):
        points, values = curves.on_a_grid(same, "loss")
        look = Look.at(len(periods) + at)._replace(dash="dot")
        lines.append(Line(f"{label}, simulated", points / size, values.mean(axis=0), look))
    lowest = [value(time, tau) for time, tau in best.items()]
    labels = [f"tau* = {tau}" for tau in best.values()]
    there = np.array([*best]) / size
    lines.append(Line("best period", there, lowest, STAR, labels=labels, joined=False, marks="all"))
    across = Axis(f"wall-clock time ({unit})", (end / BEGINS / size, end / size), log=True)
    caption = "bound on the squared gradient norm (Theorem 2); stars: the best periods"
    return Chart(scenario.title, caption, [Panel(across, axis, lines)])
