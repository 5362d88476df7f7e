"""Tables of a calibration, or of a probe, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.validate.calibration.calibrate import CalibrationResult
from paceline.validate.calibration.profile import Profile


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


def overheads(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate the [[overhead]] tables of a profile: a row for each cost, a column for each."""
    table = headed("overhead", *(f"{each.get('workers', 'any')} workers" for each in tables))
    for name in dict.fromkeys(key for each in tables for key in each if key != "workers"):
        table.add_row(name, *(_cost(each.get(name, "-")) for each in tables))
    return table


def _cost(value: Any) -> str:
    """Format a cost; a random one by its mean."""
    return str(value.get("mean", value.get("value"))) if isinstance(value, dict) else str(value)
