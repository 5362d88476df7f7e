"""What a probe has found, for a terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from validate.profiles import Profile
from validate.tables import fill


def summary(profile: Profile) -> list[Table]:
    """By number of workers: computing and collectives; what the framework adds."""
    found = profile.tables["probe"]
    teams = {each["workers"]: each for each in found["team"]}
    computing = _table("one gradient\nmedian, p95", "mean\nalpha", "bandwidth", "shortest\nstep")
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
    costs = profile.tables["overhead"]
    added = _table(*(f"{each['workers']} workers" for each in costs), first="adds")
    fill(added, costs)
    return [computing, added]


def _table(*columns: str, first: str = "workers") -> Table:
    table = Table(first, box=SIMPLE_HEAD)
    for each in columns:
        table.add_column(each, justify="right")
    return table
