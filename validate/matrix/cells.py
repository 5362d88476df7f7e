"""Cells of the validation matrix, one algorithm under one condition, and statistics of them.

They are read from run directories alone, so that a report can be remade without measuring.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.load.load import available_programs
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.scenario import Scenario

from ..comparison import quantities
from ..comparison.compare import Comparison, compare
from ..comparison.quantities import PACE, TARGET, median
from . import left_out
from .conditions import DESIGN

REGRET = 0.05  # of a good pick, at most
SIDES = ("paired", "independent")  # run directories of predictions

Row = dict[str, Any]
Cell = Row
"""One program under one condition; see `cells`."""


def cells(name: str, scenario: Scenario, folder: Path, nominal: Mapping[str, float]) -> list[Cell]:
    """Return a cell for every algorithm of a condition.

    `folder` has the run directories "measured"; "paired", predicted with its seeds and so the same
    delays; and "independent", with other seeds. `nominal`: seconds per step without a profile, by
    label. Each cell has `counted` and `reasons`; errors are relative, times in seconds;
    `seconds_per_step` and `time_to_target` of the paired prediction, with `nominal` and the share
    of the excess over it that is `explained`; both again under `independent`, with the stated
    interval and whether the measured value is `inside`.
    """
    paired, apart = (compare(folder / side, folder / "measured") for side in SIDES)
    rows, programs = [], available_programs(None)
    for label, pace in paired.of(PACE, counted=False).items():
        cell = {
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

    1 - sum |measured - predicted| / sum |measured - nominal|, of seconds per step.
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
    """Return what independent seeds predict, and whether that is inside."""
    row = apart.of(quantity, counted=False).get(label)
    measured = (apart.measured.rows[label].get(quantity) or {}).get("mean")
    stated = (apart.predicted.rows[label].get("interval90") or {}).get(quantity)
    inside = None if stated is None or measured is None else left_out.holds(stated, measured)
    return _brief(row) | {"interval90": stated, "inside": inside}


def at(row: Row, path: str) -> Any:
    """Return the part of a row at a dotted path."""
    return reduce(getitem, path.split("."), row)


def regret(cells: Sequence[Cell]) -> Row | None:
    """Return the cost of trusting the prediction of independent seeds, as `quantities.regret`.

    None if there is nothing to pick from.
    """
    goal = {cell["program"]: cell["independent"][TARGET] for cell in cells if cell["counted"]}
    several = sum(row["predicted"] is not None for row in goal.values()) > 1
    return quantities.regret(goal) if several else None


def conditions(cells: Sequence[Cell]) -> list[Row]:
    """Return a row per condition: rank correlations, and regret of the pick.

    `kendall`: of times to target by the paired prediction, and by the independent one.
    """
    paths = {"paired": TARGET, "independent": f"independent.{TARGET}"}
    rows = []
    for name in dict.fromkeys(cell["condition"] for cell in cells):
        members = [cell for cell in cells if cell["condition"] == name]
        counted = [cell for cell in members if cell["counted"]]
        kendall = {
            key: quantities.ranks({cell["program"]: at(cell, path) for cell in counted})
            for key, path in paths.items()
        }
        cost, low = regret(members), [None, REGRET]
        good = cost and cost["value"] is not None and left_out.holds(low, cost["value"])
        row = {"condition": name, "counted": len(counted), "of": len(members)}
        rows.append(row | {"kendall": kendall, "regret": cost, "good": good})
    return rows


def aims(cells: Sequence[Cell]) -> list[Row]:
    """Return the value, limits and outcome of every aim of `design.toml`."""
    counted, rows = [cell for cell in cells if cell["counted"]], conditions(cells)
    results = []
    for aim in DESIGN["aims"]:
        if aim["take"] == "coverage":
            for what, (held, of) in _covered(counted):
                named = aim | {"what": f"{aim['what']} {what}"}
                results.append(_aim(named, held / of if of else None, f"{of} values"))
        elif aim["take"] in ("kendall", "regret"):
            values = [at(row, aim["of"]) for row in rows if at(row, aim["of"]) is not None]
            value = float(np.mean(values)) if values else None
            value = value if aim["take"] == "regret" else median(values)
            results.append(_aim(aim, value, f"{len(values)} conditions"))
        else:
            results.append(_error_aim(aim, counted))
    return results


def _error_aim(aim: Row, cells: Sequence[Cell]) -> Row:
    """Return an aim of the errors of some cells."""
    network, kind = aim.get("network"), aim.get("asynchronous")
    chosen = [
        cell
        for cell in cells
        if network in (None, "kernel" if cell["network"] == "kernel" else "near")
        and kind in (None, cell["asynchronous"])
    ]
    if aim["take"] == "explained":
        return _aim(aim, explained(chosen), f"{len(chosen)} cells")
    errors = [at(cell, aim["of"])["error"] for cell in chosen]
    sizes = [abs(error) for error in errors if error is not None]
    tail = float(np.quantile(sizes, 0.95)) if sizes else None
    value = median(sizes) if aim["take"] == "median" else tail
    return _aim(aim, value, f"{len(sizes)} cells")


def _aim(aim: Row, value: float | None, of: str) -> Row:
    limits = [aim.get("least"), aim.get("most")]
    return {"what": aim["what"], "value": value, "of": of, "limits": limits,
            "met": None if value is None else left_out.holds(limits, value)}  # fmt: skip


def _covered(cells: Sequence[Cell]) -> list[tuple[str, list[int]]]:
    """Return counts (held, of) of 90 % intervals of programs that were left out."""
    rows = left_out.coverage(cells)
    counts = [(key.replace("_", " "), rows[0][key]) for key in (PACE, TARGET)]
    kinds = [row for row in rows if row["what"] in ("network", "family")]
    return counts + [(f"both, {row['what']} {row['which']}", row["both"]) for row in kinds]
