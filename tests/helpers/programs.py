"""The shared table of programs: one row each, run by every engine."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Row(NamedTuple):
    """A program of the catalogue.

    `variants`: parameters to run it with, beside the scenario's learning rate. `timeless`:
    durations never change its parameters, as it reads no clock and never takes the message that
    arrives first. `batches`: its server updates with several gradients at once, so that an
    update need not come at a whole step.
    """

    name: str
    variants: tuple[dict[str, Any], ...] = ({},)
    timeless: bool = True
    batches: bool = False


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ROWS = tuple(Row(name, **row) for name, row in TABLE.items())
BATCHES = {row.name for row in ROWS if row.batches}
TOP_K = {"kind": "top-k", "ratio": 0.4}


def cases(rows: tuple[Row, ...] = ROWS) -> list[dict[str, Any]]:
    """Every variant of the rows as an [[algorithm]] table."""
    return [{"name": row.name, **variant} for row in rows for variant in row.variants]


def called(case: dict[str, Any]) -> str:
    """A short name for a test of one case."""
    return " ".join([case["name"], *(key for key in case if key != "name")])


def varied(tables: list[dict[str, Any]] | None = None) -> list[Any]:
    """Return cases as parameters of a test: variants but the last of a program run nightly."""
    early = [{"name": row.name, **variant} for row in ROWS for variant in row.variants[:-1]]
    return [
        pytest.param(case, id=called(case), marks=pytest.mark.nightly if case in early else ())
        for case in tables or cases()
    ]
