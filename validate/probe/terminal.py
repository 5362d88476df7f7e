"""Tables of a probe for the terminal."""

from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.validate.calibration.profile import Profile
from paceline.validate.calibration.terminal import overheads


def summary(profile: Profile) -> list[Table]:
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
