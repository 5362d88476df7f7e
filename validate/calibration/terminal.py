"""Tables of a calibration, or of a probe, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results.intervals import TAILS

from .calibrate import CalibrationResult
from .profile import Profile

NOTHING = ("1e-05 to 1", "1e-05 to 1e-05")  # said of a power that is 0, or may be 1 as well


def calibration(result: CalibrationResult) -> list[Table]:
    """Tabulate the laws tried for compute times, best first, and what a real system adds."""
    laws = headed("compute times", "BIC", "KS", "p", "slowest\nof all")
    for row in result.laws.ranking:
        group = f"{row['group']}: " if row.get("group") else ""
        numbers = (row.get(key) for key in ("bic", "ks", "p"))
        slowest = row.get("slowest")
        laws.add_row(
            f"{group}{row['family']}",
            *("-" if number is None else _rounded(number, 3) for number in numbers),
            "-" if slowest is None else f"{100 * (slowest - 1):+z.1f} %",
            style="bold" if row["chosen"] else "",
        )
    tables = result.profile.tables
    draws = tables["calibration"].get("draws", {})
    costs, slower = overheads(tables["overhead"], draws), "cluster.beside_collectives"
    if slower in draws:
        costs.add_row(slower, _cost(tables["cluster"]["beside_collectives"], draws[slower]))
    tried = any(row.get("bic") is not None for row in result.laws.ranking)
    return [laws, costs] if tried else [costs]


def probe(profile: Profile) -> list[Table]:
    """Tabulate computing and collectives by number of workers, and what the framework adds."""
    found = profile.tables["probe"]
    teams = {each["workers"]: each for each in found["team"]}
    computing = headed(
        "workers", "one gradient\nmedian, p95", "mean\nalpha", "bandwidth", "shortest\nstep"
    )
    for each in found["compute"]:
        workers = each["workers"]
        means = (t for t in found["transfer"] if (t["kind"], t["workers"]) == ("mean", workers))
        mean: dict[str, Any] = next(means, {})
        computing.add_row(
            str(workers),
            f"{each['median']}, {each['p95']}",
            *(mean.get(key, "-") for key in ("alpha", "bandwidth")),
            teams.get(workers, {}).get("shortest_step", "-"),
        )
    return [computing, overheads(profile.tables["overhead"])]


def overheads(
    tables: Sequence[Mapping[str, Any]], draws: Mapping[str, Sequence[float]] | None = None
) -> Table:
    """Tabulate the [[overhead]] tables of a profile: a row for each cost, a column for each.

    Costs that have `draws`, by key, are printed as their 90 % interval.
    """
    heads = [each.get("algorithm") or f"{each.get('workers', 'any')} workers" for each in tables]
    table = headed("overhead", *heads)
    shown = (key for each in tables for key in each if key not in ("workers", "algorithm"))
    for name in dict.fromkeys(shown):
        cells = [
            _cost(each.get(name, "-"), (draws or {}).get(f"overhead.{n}.{name}"))
            for n, each in enumerate(tables)
        ]
        if not all(cell in NOTHING or cell == "-" for cell in cells):
            table.add_row(name, *cells)
    return table


def _cost(value: Any, factors: Sequence[float] | None) -> str:
    """Format a cost; a random one by its mean, one that is known by draws by their range."""
    if isinstance(value, dict):
        return str(value.get("mean", value.get("value")))
    if factors is None:
        return str(value)
    number, _, unit = str(value).partition(" ")
    low, high = sorted(float(number) * np.quantile(factors, TAILS))
    return f"{_rounded(low, 2)} to {_rounded(high, 2)} {unit}".rstrip()


def _rounded(value: float, digits: int) -> str:
    """Write a number to so many digits, without a power of ten below a million."""
    return f"{float(f'{value:.{digits}g}'):.6g}"
