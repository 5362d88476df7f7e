"""Tables of a calibration for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.validate.calibration.calibrate import CalibrationResult


def calibration(result: CalibrationResult) -> list[Table]:
    """Tabulate the laws tried for compute times, best first, and what a real system adds."""
    laws = headed("compute times", "BIC", "KS", "p", "slowest\nof all")
    for row in result.laws.ranking:
        group = f"{row['group']}: " if row.get("group") else ""
        numbers = (row.get(key) for key in ("bic", "ks", "p"))
        slowest = row.get("slowest")
        laws.add_row(
            f"{group}{row['family']}",
            *("-" if each is None else f"{each:.3g}" for each in numbers),
            "-" if slowest is None else f"{100 * (slowest - 1):+.1f} %",
            style="bold" if row["chosen"] else "",
        )
    return [laws, overheads(result.profile.tables["overhead"])]


def overheads(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate the [[overhead]] tables of a profile: a row for each cost, a column for each."""
    table = headed("overhead", *(f"{each.get('workers', 'any')} workers" for each in tables))
    for name in dict.fromkeys(key for each in tables for key in each if key != "workers"):
        table.add_row(name, *(_cost(each.get(name, "-")) for each in tables))
    return table


def _cost(value: Any) -> str:
    """Format a cost; a random one by its mean."""
    return str(value.get("mean", value.get("value"))) if isinstance(value, dict) else str(value)
