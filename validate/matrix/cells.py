"""Cells of the validation matrix (an algorithm under a condition), and statistics.

They are read only from run directories, so that a report can be remade without measuring.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.programs import catalogue
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.scenario import Scenario

from ..comparison.compare import Comparison, compare
from ..comparison.quantities import PACE, TARGET

SIDES = ("paired", "independent")  # run directories of predictions
QUANTITIES = (PACE, TARGET)

Row = dict[str, Any]
Cell = Row
"""One program under one condition; see `cells`."""


def cells(name: str, scenario: Scenario, folder: Path, nominal: Mapping[str, float]) -> list[Cell]:
    """Return a cell for every algorithm of a condition.

    `folder` has the run directories "measured"; "paired", predicted with the same seeds and thus
    delays; and "independent", with other seeds. `nominal`: seconds per step without a profile, by
    label. Every cell has `counted` and `reasons`; errors are relative, times in seconds. It has
    `seconds_per_step` and `time_to_target` of the paired prediction, with `nominal` and the
    `explained` share of the excess over it. `independent` repeats both, with the stated interval
    and whether the measured value is `inside`.
    """
    paired, apart = (compare(folder / side, folder / "measured") for side in SIDES)
    rows, programs = [], catalogue()
    for label, pace in paired.of(PACE, counted=False).items():
        cell: Cell = {
            "condition": name,
            "workers": scenario.cluster.workers,
            "network": scenario.validation.network,
            "program": label,
            "asynchronous": programs[paired.measured.rows[label]["name"]].asynchronous,
            "counted": label in paired.counted and label not in paired.disturbed,
            "reasons": paired.not_counted.get(label, ["disturbed"] * (label in paired.disturbed)),
            PACE: _brief(pace) | {"nominal": nominal[label]},
            TARGET: _brief(paired.of(TARGET, counted=False).get(label)),
            "independent": {key: _interval(apart, label, key) for key in (PACE, TARGET)},
            "to_blame": paired.attribution[label]["to_blame"],
        }
        cell[PACE]["explained"] = explained([cell])
        rows.append(dict(jsonable(cell)))
    return rows


def explained(cells: Sequence[Cell]) -> float | None:
    """Return the share of the measured excess over nominal that is predicted.

    It is 1 - sum |measured - predicted| / sum |measured - nominal|, in seconds per step.
    """
    keys = "measured", "predicted", "nominal"
    values = [[cell[PACE][key] for key in keys] for cell in cells]
    whole = [row for row in values if None not in row]
    beyond = sum(abs(measured - nominal) for measured, _, nominal in whole)
    rest = sum(abs(measured - predicted) for measured, predicted, _ in whole)
    return 1 - rest / beyond if beyond else None


def _brief(row: Row | None) -> Row:
    return {key: row and row[key] for key in ("predicted", "measured", "error")}


def _interval(apart: Comparison, label: str, quantity: str) -> Row:
    """Return the independent prediction, and whether its interval holds."""
    row = apart.of(quantity, counted=False).get(label)
    return _brief(row) | {"interval90": row and row["interval90"], "inside": row and row["covered"]}


def summary(cells: Sequence[Cell]) -> list[Row]:
    """Return a row per kind of network, and of programs there, over the cells that count.

    Errors have the median and the 95th percentile of their sizes, with the same delays; `explained`
    is that of `explained`.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in (cell for cell in cells if cell["counted"]):
        kind = "asynchronous" if cell["asynchronous"] else "synchronous"
        groups.setdefault((cell["network"], kind), []).append(cell)
    rows = []
    for (network, kind), members in groups.items():
        row: Row = {"network": network, "programs": kind, "cells": len(members)}
        for quantity in QUANTITIES:
            errors = [cell[quantity]["error"] for cell in members]
            sizes = [abs(error) for error in errors if error is not None]
            row[quantity] = np.quantile(sizes, (0.5, 0.95)).tolist() if sizes else [None, None]
        rows.append(row | {"explained": explained(members)})
    return rows
