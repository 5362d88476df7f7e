"""Measures of AdaComm's claims about learning: times to a loss, and the last losses."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from paceline.simulator.cluster.workers import mean_compute
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.results.intervals import signed
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import at, crossing, human, number
from paceline.simulator.studies.papers.claim import Finding, mean
from paceline.simulator.studies.papers.lab import Lab

FIGURE1 = "adacomm/figure1"
FREE = 'network.duration = "1 ms"'  # averages are almost free: periods differ by drift alone
EARLY = 0.5  # a loss in the first descent; at 0.3 spikes decide the order
END = 0.2  # of a run's duration, over which a floor is averaged
SAMPLES = 50


class Curves(NamedTuple):
    """Runs of tau = 1, of the largest fixed tau, of all fixed ones, and of AdaComm."""

    one: Sequence[Run]
    large: Sequence[Run]
    fixed: Sequence[Sequence[Run]]
    adaptive: Sequence[Run]


def curves(lab: Lab, name: str, *sets: str) -> Curves:
    """Runs of a scenario that lists tau = 1 first, the largest tau and AdaComm last."""
    *fixed, adaptive = lab.runs(name, *sets).groups.values()
    return Curves(fixed[0], fixed[-1], fixed, adaptive)


def _times(runs: Sequence[Run], target: float | None) -> np.ndarray:
    """Seconds to the target; the run's duration where the target is not reached."""
    assert target is not None
    return np.array([min(crossing(run, target), run.duration) for run in runs])


def _never(runs: Sequence[Run], target: float | None) -> int:
    assert target is not None
    return sum(crossing(run, target) > run.duration for run in runs)


def _ends(runs: Sequence[Run]) -> np.ndarray:
    """Mean loss over the last part of each run."""
    return np.array(
        [
            np.mean([at(run, each * run.duration) for each in np.linspace(1 - END, 1, SAMPLES)])
            for run in runs
        ]
    )


def _plus_minus(values: np.ndarray, unit: float = 1.0) -> str:
    low, high = signed(values / unit).interval or (values.min() / unit, values.max() / unit)
    return f"{number(low)} to {number(high)}"


def ratio(lab: Lab, name: str) -> float:
    """Seconds of an average over those of a gradient."""
    scenario = lab.scenario(name)
    cost = mean_cost(scenario)
    return (cost.transmission + cost.latency) / mean_compute(scenario)[0]


def speedup(name: str) -> Callable[[Lab], Finding]:
    """Time of tau = 1 to the target over AdaComm's."""

    def measure(lab: Lab) -> Finding:
        runs, target = curves(lab, name), lab.scenario(name).run.target_loss
        one, adaptive = _times(runs.one, target), _times(runs.adaptive, target)
        note = (
            f"Loss {target:g}: {human(one.mean())} to {human(adaptive.mean())}; an average takes "
            f"{ratio(lab, name):.3g} of a gradient's time."
        )
        if never := _never(runs.one, target):
            note += (
                f" In {never} of {len(one)} runs tau = 1 does not get there before the end, so the "
                "ratio is a lower bound."
            )
        if never := _never(runs.adaptive, target):
            note += f" In {never} of {len(one)} runs AdaComm does not get there before the end."
        return mean(one / adaptive, note)

    return measure


def _of_fixed(runs: Curves, target: float | None) -> tuple[dict[str, np.ndarray], str]:
    """Seconds to the target of each fixed period, by label; and which of them is the best."""
    times = {fixed[0].label: _times(fixed, target) for fixed in runs.fixed}
    return times, min(times, key=lambda label: float(times[label].mean()))


def first(name: str) -> Callable[[Lab], Finding]:
    """Time of the best fixed period to the target over AdaComm's."""

    def measure(lab: Lab) -> Finding:
        runs, target = curves(lab, name), lab.scenario(name).run.target_loss
        times, best = _of_fixed(runs, target)
        note = f"The best fixed period is that of {best}."
        return mean(times[best] / _times(runs.adaptive, target), note)

    return measure


def floor(name: str) -> Callable[[Lab], Finding]:
    """Final loss of the largest period over AdaComm's."""

    def measure(lab: Lab) -> Finding:
        runs = curves(lab, name)
        one, large, adaptive = map(_ends, (runs.one, runs.large, runs.adaptive))
        note = (
            f"Mean loss over the last fifth: tau = 1 {_plus_minus(one)}, {runs.large[0].label} "
            f"{_plus_minus(large)}, AdaComm {_plus_minus(adaptive)}."
        )
        return mean(large / adaptive, note)

    return measure


def start(lab: Lab) -> Finding:
    """Time of tau = 1 to an early loss over that of the large period."""
    runs = curves(lab, FIGURE1)
    one, large = _times(runs.one, EARLY), _times(runs.large, EARLY)
    note = f"Loss {EARLY}: {human(one.mean())} against {human(large.mean())}."
    return mean(one / large, note)


def free_floor(lab: Lab) -> Finding:
    """Final loss of the large period over that of tau = 1, after as many steps."""
    runs = curves(lab, FIGURE1, FREE)
    one, large = _ends(runs.one), _ends(runs.large)
    steps = np.mean([run.steps for run in runs.one])
    note = (
        f"With averages that take almost no time, so that both do about {steps:.0f} steps: "
        f"{_plus_minus(large)} against {_plus_minus(one)}."
    )
    return mean(large / one, note)


def best_of_both(lab: Lab) -> Finding:
    """Smallest of the ratios of tau = 1's times and the large tau's final loss to AdaComm's."""
    runs, target = curves(lab, FIGURE1), lab.scenario(FIGURE1).run.target_loss
    start = _times(runs.one, EARLY) / _times(runs.adaptive, EARLY)
    sooner = _times(runs.one, target) / _times(runs.adaptive, target)
    lower = _ends(runs.large) / _ends(runs.adaptive)
    note = (
        f"Relative to AdaComm: tau = 1's time to loss {EARLY} {_plus_minus(start)}, to {target:g} "
        f"{_plus_minus(sooner)}; the large period's final loss {_plus_minus(lower)}."
    )
    return mean(np.minimum(np.minimum(start, sooner), lower), note)


def tau_one(lab: Lab) -> Finding:
    """Time of tau = 1 to the target over that of the best fixed period."""
    name = "adacomm/resnet50-fixed"
    target = lab.scenario(name).run.target_loss
    times, best = _of_fixed(curves(lab, name), target)
    said = ", ".join(f"{label} {human(each.mean())}" for label, each in times.items())
    one, *_ = times.values()
    return mean(one / times[best], f"To loss {target:g}: {said}.")
