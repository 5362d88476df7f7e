"""The verdict at each point of a sweep: which algorithm is first, and whether that is decided."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...results.columns import RANKING
from ...results.determinism import deterministic
from ...results.order import MARGIN, order
from ...results.pick import verdict
from ...scenario.scenario import Scenario


def picked(scenario: Scenario, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the verdict on a point: that on those of its algorithms that are no bounds.

    `records`: as of `table.measured`, by label and in the order of the scenario's algorithms.
    """
    each = zip(records.items(), scenario.algorithm, strict=True)
    return judged(scenario, {label: known for (label, known), own in each if not own.bound})


def judged(scenario: Scenario, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the verdict on records, by label: the keys of `pick.verdict`, and `measure`, a column.

    The measure is the first of `columns.RANKING` that some record has with every seed, or with
    most. What stands still is left out; `label` is None where nothing is left.
    """
    left = {k: record["runs"] for k, record in records.items() if not record.get("stalled")}
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
    factors = {
        label: np.array([math.inf if each is None else each for each in drawn])
        for label in left
        if (drawn := records[label].get("errors", {}).get(measure))
    }
    worth = [records[label].get("margin", MARGIN) for label in left]
    margin = min(worth) if measure == "final_loss" else MARGIN
    found = order(
        scores, at_least, heavy=heavy, exact=deterministic(scenario), factors=factors, margin=margin
    )
    found = found.stating(found.best, records[found.best].get("stated", {}).get(measure))
    return verdict(found) | {"measure": measure}
