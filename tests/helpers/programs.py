"""The shared table of programs, one row each, which every engine runs."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Row(NamedTuple):
    """A program of the catalogue.

    `variants`: parameter sets to run, beside the scenario's learning rate. `timeless`: whether
    durations never change its parameters, because it reads no clock and takes messages in a fixed
    order. `batches`: whether its server updates with several gradients at once, so that updates may
    come between whole steps.
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
    """Return every variant of the rows as an [[algorithm]] table."""
    return [{"name": row.name, **variant} for row in rows for variant in row.variants]


def called(case: dict[str, Any]) -> str:
    """Return a short name for a test of one case."""
    return " ".join([case["name"], *(key for key in case if key != "name")])


def varied(tables: list[dict[str, Any]] | None = None) -> list[Any]:
    """Return cases as parameters of a test; all variants but a program's last run nightly."""
    early = [{"name": row.name, **variant} for row in ROWS for variant in row.variants[:-1]]
    return [
        pytest.param(case, id=called(case), marks=pytest.mark.nightly if case in early else ())
        for case in tables or cases()
    ]
