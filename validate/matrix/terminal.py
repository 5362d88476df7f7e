"""The aims of the validation matrix, for a terminal."""

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.validate.matrix import statistics
from paceline.validate.matrix.results import Matrix


def aims(found: Matrix) -> Table:
    """Tabulate the aims of the validation matrix and the values found; misses are bold."""
    table = headed("", "aim", "found", "of")
    for aim in statistics.aims(found.cells):
        table.add_row(
            aim.what, aim.limits, aim.shown, aim.of, style="bold" if aim.met is False else ""
        )
    return table
