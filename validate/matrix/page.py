"""Write the validation matrix as a page, and all cells as JSON."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results import store

from ..calibration import profile
from . import cells, conditions
from .cells import Cell, Row


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
