"""The aims of the validation matrix, for a terminal."""

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.validate.matrix import statistics
from paceline.validate.matrix.results import Matrix


def aims(found: Matrix) -> Table:
    """Tabulate what the validation matrix was to show, and what it showed; a miss is bold."""
    table = headed("", "aim", "found", "of")
    for aim in statistics.aims(found.cells):
        table.add_row(
            aim.what, aim.limits, aim.shown, aim.of, style="bold" if aim.met is False else ""
        )
    return table
