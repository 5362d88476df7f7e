"""Results of the validation matrix: its cells and noise runs, and the document of them all."""

from dataclasses import dataclass, field
from typing import Any

from paceline.validate.matrix import statistics
from paceline.validate.matrix.cells import Cell


@dataclass
class Matrix:
    """The results so far. `failed`: why a condition has none, by its name.

    `equal` and `apart`: values of equal runs, and of runs that differ in their seed alone.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    equal: list[dict[str, Any]] = field(default_factory=list)
    apart: list[dict[str, Any]] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return the document `<machine>.json`."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "aims": [aim.json() for aim in statistics.aims(self.cells)],
            "conditions": statistics.conditions(self.cells),
            "failed": self.failed,
            "noise": statistics.noise(self.equal, self.apart),
            "terms": statistics.by_term(self.cells),
            "cells": self.cells,
        }
