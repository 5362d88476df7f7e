"""Write the validation matrix as a page, and all cells as JSON.

A cell is an algorithm under a condition. Cells are read only from run directories, so that a report
can be remade without measuring.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from paceline.simulator.programs import catalogue
from paceline.simulator.reports.terminal import headed
from paceline.simulator.results import store
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.scenario import Scenario

from ..calibration import profile
from ..comparison.compare import Comparison, compare
from ..comparison.quantities import PACE, TARGET
from . import conditions

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


@dataclass
class Matrix:
    """The results so far; `failed`: reasons, by condition without results."""

    machine: dict[str, Any]
    versions: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    date: str = field(default_factory=profile.today)

    def json(self) -> Row:
        """Return the document `<machine>.json`."""
        commands = {condition.name: condition.command() for condition in conditions.CONDITIONS}
        return {
            "commands": commands,
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "summary": summary(self.cells),
            "failed": self.failed,
            "cells": self.cells,
        }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def _errors(ends: Sequence[float | None]) -> str:
    """Format the median and the 95th percentile of errors."""
    return ", ".join(map(_percent, ends))


def table(matrix: Matrix) -> Table:
    """Tabulate the matrix's errors by kind of network and of programs."""
    rows = headed("network", "programs", "cells", "per step", "to target", "explained")
    for row in summary(matrix.cells):
        errors = (_errors(row[quantity]) for quantity in QUANTITIES)
        explained = _percent(row["explained"])
        rows.add_row(row["network"], row["programs"], str(row["cells"]), *errors, explained)
    return rows


def file_stem(machine: dict[str, Any]) -> str:
    """Return the name of a machine's files, without suffix."""
    words = f"{machine.get('gpu') or machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def write(matrix: Matrix, folder: Path) -> Path:
    """Write the page and its JSON document; return the page's path. Raises InputError."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    name = file_stem(matrix.machine)
    document = matrix.json()
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "errors": _errors}
    versions = [f"{key} {v}" for key, v in matrix.versions.items() if v != "not installed"]
    template = Path(__file__).with_name("page.md.j2").read_text("utf-8")
    page = environment.from_string(template).render(
        document, versions=", ".join(versions), name=name
    )
    files = {f"{name}.json": store.dump(document), f"{name}.md": f"{page.rstrip()}\n".encode()}
    store.publish(folder, files)
    return folder / f"{name}.md"
