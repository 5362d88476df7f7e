"""Results of the validation matrix: its cells and noise runs, and the document of them all."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed

from . import left_out, statistics
from .cells import Cell


@dataclass
class Matrix:
    """The results so far. `failed`: why a condition has none, by its name.

    `noise`: rows of `statistics.noise`; `date`: of the measurements.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    noise: list[dict[str, Any]] = field(default_factory=list)
    date: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")

    def json(self) -> dict[str, Any]:
        """Return the document `<machine>.json`."""
        return {
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "aims": [aim.json() for aim in statistics.aims(self.cells)],
            "conditions": statistics.conditions(self.cells),
            "failed": self.failed,
            "noise": self.noise,
            "coverage": left_out.coverage(self.cells),
            "terms": statistics.by_term(self.cells),
            "cells": self.cells,
        }


def table(found: Matrix) -> Table:
    """Tabulate the aims of the validation matrix and the values found; misses are bold."""
    rows = headed("", "aim", "found", "of")
    for aim in statistics.aims(found.cells):
        style = "bold" if aim.met is False else ""
        rows.add_row(aim.what, aim.limits, aim.shown, aim.of, style=style)
    return rows
