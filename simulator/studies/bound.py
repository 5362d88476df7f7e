"""The figure of `paceline theory`: Theorem 2's bound by time and by period, and runs over it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import theory
from ..results import read, store
from ..results.figures import curves, drawing, style
from ..results.figures.chart import Axis, Chart, Line, Look, Panel, Values, fitted
from ..results.run import Run
from ..results.statistics import human, time_unit
from ..scenario.scenario import Scenario

POINTS = 60  # of a curve, about
BEGINS = 100  # curves against time begin at the last time over this
LINES = 4  # periods drawn against time, at most
BEST = Look(style.GREY, symbol="star")
MARKS: Mapping[str, Any] = {"joined": False, "marks": "all"}


def files(scenario: Scenario, folder: Path) -> dict[str, bytes]:
    """Return the figure by file name, with the runs of `folder`; none unless there is a bound."""
    there = (folder / store.WHOLE).is_file()
    runs = read.read(folder).runs if there else {}
    with style.style():
        return drawing.files({"theory": chart(scenario, runs)})


def chart(scenario: Scenario, runs: Mapping[str, Sequence[Run]]) -> Chart | None:
    """Chart the bound against time for several periods, and against the period.

    Stars mark the best period at each of `theory.durations`, else at the end of `[run]`. `runs` by
    label, which have the bound as their loss, are dotted.
    """
    bound, last = theory.bound_of(scenario), scenario.run.duration
    durations = sorted(scenario.theory.durations or ([last] if last else []))
    if bound is None or not bound.cap or not durations:
        return None
    step = theory.steps_of(scenario)
    best = [theory.tau_star_random(bound, step, time).valid or 1 for time in durations]
    lowest = [bound(time, step(tau), tau) for time, tau in zip(durations, best, strict=True)]
    stars = [f"tau* = {tau}" for tau in best]

    # against time
    end = max([*durations, *(run.duration for same in runs.values() for run in same)])
    size, unit = time_unit(end)
    times = np.geomspace(end / BEGINS, end, POINTS)
    periods = sorted({tau for tau in scenario.theory.periods if bound.valid(tau)} or {1})
    few = periods[:: -(-len(periods) // LINES)]
    lines = [
        _plain(f"tau = {tau}", times / size, [bound(t, step(tau), tau) for t in times], at)
        for at, tau in enumerate(few)
    ]
    axis = fitted("bound", np.concatenate([line.y for line in lines]))
    for at, (label, same) in enumerate(runs.items()):
        seen, values = curves.on_a_grid(same, "loss")
        look = Look.at(len(few) + at)._replace(dash="dot")
        lines.append(Line(f"{label}, simulated", seen / size, values.mean(axis=0), look))
    lines.append(Line("best period", np.array(durations) / size, lowest, BEST, **MARKS))
    across = Axis(f"wall-clock time ({unit})", (end / BEGINS / size, end / size), log=True)
    by_time = Panel(across, axis, lines)

    # against the period
    most = min(bound.cap, 4 * max([*periods, *best]))
    taus = sorted({round(tau) for tau in np.geomspace(1, most, POINTS)})
    lines = [
        _plain(f"after {human(time)}", taus, [bound(time, step(tau), tau) for tau in taus], at)
        for at, time in enumerate(durations[-LINES:])
    ]
    axis = fitted("bound", np.concatenate([line.y for line in lines]))
    lines.append(Line("best period", best, lowest, BEST, labels=stars, **MARKS))
    across = fitted("period tau (local steps between averages)", [1, 1.6 * most])
    by_period = Panel(across, axis, lines)
    caption = "bound on the squared gradient norm (Theorem 2); stars: the best periods"
    return Chart(scenario.title, caption, [by_time, by_period])


def _plain(name: str, x: Values, y: Values, place: int) -> Line:
    return Line(name, x, y, Look.at(place), marks="none")
