"""Parametric bootstrap: runs with calibrated numbers redrawn within their standard errors.

A replicate redraws every measured number within its standard error, and the pace of the whole run
within the spread of equal runs. The draws are keyed by the replicate alone, so that all algorithms
meet the same ones, and comparisons between them stay paired.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.simulator.engines.dispatch import run_seeds, taken
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.redraw import factor, redrawn
from paceline.simulator.scenario.scenario import Algorithm, Scenario


def run_replicates(
    scenario: Scenario,
    algorithm: Algorithm,
    seeds: Sequence[int],
    replicates: Sequence[int],
    **options: Any,
) -> list[Run]:
    """Run one algorithm with each of `seeds`, and with the replicate of the same index.

    `options`: those of `dispatch.run_seeds`.
    """
    assert scenario.calibration is not None
    spread = scenario.calibration.run_to_run
    found = []
    scenario, algorithm = taken(scenario, algorithm, options.get("programs"))  # as written
    for seed, number in zip(seeds, replicates, strict=True):
        (run,) = run_seeds(redrawn(scenario, number), algorithm, [seed], **options)
        found.append(_slowed(run, factor(number, 0, spread)))
    return found


def _slowed(run: Run, factor: float) -> Run:
    """Return the same run with all times of its curve multiplied by `factor`."""
    times = [time * factor for time in run.curve["time"]]
    return replace(run, duration=run.duration * factor, curve=run.curve | {"time": times})
