"""Tables of the doctor for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from paceline.simulator.reports.terminal import STYLE

from .doctor import Diagnosis


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
