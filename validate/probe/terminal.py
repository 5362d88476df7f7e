"""Tables of a probe, and of the doctor, for the terminal."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from paceline.simulator.reports.terminal import STYLE, headed
from paceline.validate.calibration.profile import Profile
from paceline.validate.calibration.terminal import overheads
from paceline.validate.probe.doctor import Diagnosis


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


def diagnosis(found: Diagnosis) -> Iterator[Table]:
    """Tabulate what the doctor found; lines that need attention are marked and bold."""
    parts = {"this machine": found.machine, "validate": found.settings, "smoke test": found.smoke}
    for title, findings in parts.items():
        if findings:
            table = Table(title, "", "", **STYLE)
            for each in findings:
                style = None if each.good else "bold"
                table.add_row(each.what, "" if each.good else "!", each.found, style=style)
            yield table
