"""Prediction intervals: where a measured run may be expected, judged by bootstrap replicates."""

from collections.abc import Sequence
from math import exp, inf, isfinite, log, sqrt

import numpy as np

from paceline.simulator.results import statistics
from paceline.simulator.results.run import Run

SHARE = 0.90  # probability that an interval holds the measured value


def intervals(
    runs: Sequence[Run], replicates: Sequence[Run], *, target: float | None, paired: bool
) -> dict[str, list[float] | None]:
    """Return, by quantity, an interval that holds a measured run's value with probability `SHARE`.

    `runs` use the calibrated numbers as they are, `replicates` redrawn ones. `paired`: the measured
    run will meet the very delays of `runs`, seed by seed; otherwise delays of its own.
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
    """Return Student's interval of lognormal values around the prediction, the mean of `own`.

    None where the spread is unknown; an infinite upper end where some replicate has no value.
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
    """Return the logarithms of the ratios that are positive and finite."""
    pairs = zip(values, bases, strict=True)
    return [log(a / b) for a, b in pairs if 0 < a < inf and 0 < b < inf]
