"""Make the terminal's tables of a calibration or a probe."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results.intervals import TAILS

from .calibrate import CalibrationResult
from .profile import Profile

NOTHING = ("-", "1e-05 to 1", "1e-05 to 1e-05")  # none, or a power that is 0 or undetermined


def calibration(result: CalibrationResult) -> list[Table]:
    """Tabulate the laws of compute times, and the overheads."""
    laws = headed("compute times", "KS", "p", "slowest\nof all")
    for row in result.laws.fits:
        numbers = [_rounded(row[key], 3) if key in row else "-" for key in ("ks", "p")]
        slowest = f"{100 * (row['slowest'] - 1):+z.1f} %" if "slowest" in row else "-"
        name = ": ".join(filter(None, (row.get("group"), row["family"])))
        laws.add_row(name, *numbers, slowest)
    tables = result.profile.tables
    draws = tables["calibration"].get("draws", {})
    if "overhead" not in tables:  # of a single file
        return [laws] * bool(result.laws.fits)
    costs, slower = overheads(tables["overhead"], draws), "cluster.beside_collectives"
    if slower in draws:
        costs.add_row(slower, _cost(tables["cluster"]["beside_collectives"], draws[slower]))
    tried = any("ks" in row for row in result.laws.fits)
    return [laws, costs] if tried else [costs]


def probe(profile: Profile) -> list[Table]:
    """Tabulate computing and overheads by number of workers."""
    computing = headed("workers", "one gradient\nmedian, p95")
    for row in profile.tables["probe"]["compute"]:
        computing.add_row(str(row["workers"]), f"{row['median']}, {row['p95']}")
    return [computing, overheads(profile.tables["overhead"], {})]


def overheads(tables: Sequence[Mapping[str, Any]], draws: Mapping[str, Sequence[float]]) -> Table:
    """Tabulate [[overhead]]: one row per cost, one column per table.

    Costs with `draws`, by key, are printed as their 90 % interval.
    """
    heads = [row.get("algorithm") or f"{row.get('workers', 'any')} workers" for row in tables]
    table = headed("overhead", *heads)
    names = dict.fromkeys(key for row in tables for key in row)
    for name in (name for name in names if name not in ("workers", "algorithm")):
        cells = [
            _cost(row.get(name, "-"), draws.get(f"overhead.{n}.{name}"))
            for n, row in enumerate(tables)
        ]
        if any(cell not in NOTHING for cell in cells):
            table.add_row(name, *cells)
    return table


def _cost(value: Any, factors: Sequence[float] | None) -> str:
    """Format a cost by its mean or, with draws, by its range."""
    if isinstance(value, dict):
        return str(value.get("mean", value.get("value")))
    if factors is None:
        return str(value)
    number, _, unit = str(value).partition(" ")
    low, high = sorted(float(number) * np.quantile(factors, TAILS))
    return f"{_rounded(low, 2)} to {_rounded(high, 2)} {unit}".rstrip()


def _rounded(value: float, digits: int) -> str:
    """Format a number with `digits` digits, without a power of ten below a million."""
    return f"{float(f'{value:.{digits}g}'):.6g}"
