"""The verdict at each point of a sweep: which algorithm is first, and whether that is decided."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.simulator.results.columns import RANKING
from paceline.simulator.results.determinism import deterministic
from paceline.simulator.results.order import order
from paceline.simulator.results.pick import verdict
from paceline.simulator.scenario.scenario import Scenario

Runs = Sequence[Mapping[str, Any]]


def picked(scenario: Scenario, runs: Mapping[str, Runs], stalled: Sequence[str]) -> dict[str, Any]:
    """Return the verdict on a point: the keys of `pick.verdict`, and `measure`, a column.

    `runs`: numbers of the single runs, by label and in the order of the scenario's algorithms. The
    measure is the first of `columns.RANKING` that some algorithm has with every seed, or with most.
    Bounds and what stands still are left out; `label` is None where nothing is left.
    """
    bounds = {name for name, each in zip(runs, scenario.algorithm, strict=True) if each.bound}
    left = {label: own for label, own in runs.items() if label not in {*bounds, *stalled}}
    for measure in RANKING:
        scores = {
            label: [math.inf if run[measure] is None else run[measure] for run in own]
            for label, own in left.items()
        }
        if any(math.isfinite(value) for own in scores.values() for value in own):
            break
    else:
        return {"label": None, "decided": False, "alternatives": [], "ties": [], "measure": None}
    if measure == "time_to_target_s":
        at_least = {
            label: [math.inf if run["final_loss"] is None else run["duration_s"] for run in own]
            for label, own in left.items()
        }
    else:
        at_least = scores
    heavy = scenario.heavy_tailed and measure != "final_loss"
    found = order(scores, at_least, heavy=heavy, exact=deterministic(scenario))
    return verdict(found) | {"measure": measure}
