"""How far a prediction from a profile may be off: runs with numbers that may as well be true.

A replicate draws every measured number anew, within its standard error, and the pace of the whole
run within what equal runs differ by. The numbers are keyed by the replicate alone, so that all
algorithms meet the same ones, and comparisons between them stay paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf, isfinite, log, sqrt
from typing import Any

import numpy as np

from paceline.simulator.cluster import workers
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results import statistics
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.redraw import factor, redrawn
from paceline.simulator.scenario.scenario import Algorithm, Scenario

SHARE = 0.90  # of the values that an interval is to hold


def run_replicates(
    scenario: Scenario,
    algorithm: Algorithm,
    seeds: Sequence[int],
    replicates: Sequence[int],
    **options: Any,
) -> list[Run]:
    """Run one algorithm with each of `seeds` and the replicate of the same place.

    `options`: those of `dispatch.run_seeds`.
    """
    assert scenario.calibration is not None
    spread = scenario.calibration.run_to_run
    found = []
    for seed, number in zip(seeds, replicates, strict=True):
        (run,) = run_seeds(redrawn(scenario, number), algorithm, [seed], **options)
        found.append(_paced(run, factor(number, 0, spread)))
    return found


def _paced(run: Run, factor: float) -> Run:
    """The same run on a machine that is slower by a factor today."""
    times = [time * factor for time in run.curve["time"]]
    return replace(run, duration=run.duration * factor, curve=run.curve | {"time": times})


def intervals(
    runs: Sequence[Run], replicates: Sequence[Run], *, target: float | None, paired: bool
) -> dict[str, list[float] | None]:
    """Where a measured run may be expected, with a probability of `SHARE`, by quantity.

    `runs` have the numbers themselves, `replicates` others. `paired`: what is measured will meet
    the very delays of `runs`, seed by seed; else delays of its own.
    """
    quantities = {"seconds_per_step": statistics.seconds_per_step}
    if target is not None:
        quantities["time_to_target"] = lambda run: statistics.crossing(run, target)
    return {
        name: _interval(
            [of(run) for run in replicates],
            [of(run) for run in runs],
            [each.seed for each in replicates],
            [each.seed for each in runs],
            paired,
        )
        for name, of in quantities.items()
    }


def _interval(
    values: Sequence[float],
    own: Sequence[float],
    seeds: Sequence[int],
    own_seeds: Sequence[int],
    paired: bool,
) -> list[float] | None:
    """Of lognormal values: around the prediction, wider as few replicates tell its spread.

    None where it is not known; without an upper end where some replicate has no value.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s

    centre = sum(own) / len(own)
    of_seed = dict(zip(own_seeds, own, strict=True))
    bases = [of_seed[seed] if paired else centre for seed in seeds]
    logs = _logs(values, bases)
    if len(logs) < 2 or not isfinite(centre):
        return None
    variance = float(np.var(logs, ddof=1))
    if not paired:  # the centre is a mean over seeds, and itself not certain
        seeded = _logs(own, [centre] * len(own))
        several = len(seeded) > 1
        spread = float(np.var(seeded, ddof=1)) if several else variance
        variance += spread / len(seeded if several else logs)
    half = float(stdtrit(len(logs) - 1, (1 + SHARE) / 2) * sqrt(variance))
    high = centre * exp(half) if len(logs) == len(values) else inf
    return [centre * exp(-half), high]


def _logs(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Logarithms of ratios, where there are any."""
    pairs = zip(values, bases, strict=True)
    return [log(a / b) for a, b in pairs if 0 < a < inf and 0 < b < inf]


def notes(scenario: Scenario, groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """What of a prediction is beyond what its profile was measured on."""
    if scenario.calibration is None:
        return []
    measured, said = scenario.calibration.measured, []
    steps = workers.mean_compute(scenario)
    beyond = {
        "workers": (scenario.cluster.workers, measured.workers, "{:.0f} workers", 0.0),
        "step": (sum(steps) / len(steps), measured.step, "steps of {:.3g} s", 0.5),
        "bytes": (scenario.model.bytes, measured.bytes, "payloads of {:.3g} bytes", 0.5),
        "latency": (ClosedForm(scenario).hop, measured.latency, "latencies of {:.3g} s", 0.5),
    }
    for value, limits, text, slack in beyond.values():
        if limits and not (1 - slack) * min(limits) <= value <= (1 + slack) * max(limits):
            low, high = (text.format(each) for each in (min(limits), max(limits)))
            where = low if low == high else f"{low} to {high}"
            said.append(f"{text.format(value)}, measured at {where}")
    found = [f"out of the calibrated range: {'; '.join(said)}"] if said else []
    if measured.loss:
        found += _losses(scenario, groups, min(measured.loss))
    return found


def _losses(scenario: Scenario, groups: Mapping[str, Sequence[Run]], low: float) -> list[str]:
    target = scenario.run.target_loss
    if target is not None and target < low:
        return [
            f"out of the calibrated range: run.target_loss = {target:g}, where losses down to "
            f"{low:.3g} were measured"
        ]
    below = [label for label, runs in groups.items() if min(runs[0].curve["loss"]) < low]
    if not below:
        return []
    return [
        f"{', '.join(below)}: below a loss of {low:.3g} nothing was measured: out of range there"
    ]
