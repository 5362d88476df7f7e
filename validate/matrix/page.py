"""Write the validation matrix as a page, and all cells as JSON.

    python -m paceline.validate.matrix.page docs/evidence/validation/MACHINE.json

remakes all results of a matrix's measurements without measuring again: the page beside the
document, and the table of the model's error that `calibrate` puts into profiles.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results import prediction_interval, store

from ..calibration import profile
from ..calibration.profile import Profile
from . import cells, conditions
from .cells import Cell, Row

HEAD = (
    "Errors of predictions for programs without fitted runs, by kind of network: relative",
    "standard deviations, by family. Made by `python -m paceline.validate.matrix.page` from",
)


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
            "summary": cells.summary(self.cells),
            "failed": self.failed,
            "cells": self.cells,
        }


def read(path: Path) -> Matrix:
    """Read the document of a matrix."""
    document = json.loads(path.read_text("utf-8"))
    return Matrix(**{key: document[key] for key in Matrix.__dataclass_fields__})


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def _errors(ends: Sequence[float | None]) -> str:
    """Format the median and the 95th percentile of errors."""
    return ", ".join(map(_percent, ends))


def table(matrix: Matrix) -> Table:
    """Tabulate the matrix's errors by kind of network and of programs."""
    rows = headed("network", "programs", "cells", "per step", "to target", "explained")
    for row in cells.summary(matrix.cells):
        errors = (_errors(row[quantity]) for quantity in cells.QUANTITIES)
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


def model_error(matrix: Matrix, source: str) -> Profile:
    """Return the shipped table of the model's error, by kind of network."""
    by_kind: dict[str, list[Cell]] = {}
    for cell in matrix.cells:
        by_kind.setdefault(profile.network_kind(cell["network"]), []).append(cell)
    learnt = {kind: cells.learn(by_kind[kind], source) for kind in sorted(by_kind)}
    tables = {kind: error.model_dump() for kind, error in learnt.items() if error}
    return Profile(tables, head=(*HEAD, f"{source}."))


def main() -> None:
    """Remake the page of a document, and the shipped table."""
    path = Path(sys.argv[1])
    matrix = read(path)
    write(matrix, path.parent)
    table = model_error(matrix, path.as_posix()).text()
    store.write(prediction_interval.MODEL_ERROR, table.encode())


if __name__ == "__main__":
    main()
