"""Hybrid's figures, redrawn."""

import numpy as np

from ...results.figures import curves
from ...results.figures.chart import Chart
from ...results.figures.style import COLOURS, GREY, Axes, Figure, empty, ink
from .claim import mean
from .hybrid import TABLES, PaperTable, differences
from .lab import Lab

PAPER, OURS = GREY, COLOURS[0]


def tables(lab: Lab) -> Figure:
    """Draw the paper's five rows of numbers, and ours with their intervals."""
    figure = empty(5.4, 8)
    rows = figure.subplots(2, 3, sharey=True)
    for axes, table in zip(rows.flat, TABLES.values(), strict=False):
        _panel(axes, lab, table)
    for axes in rows[:, 0]:
        axes.set_ylabel("hybrid - async (points)")
    legend = rows[1, 2]
    legend.set_axis_off()
    for height, words, colour in (
        (0.62, "the paper", PAPER),
        (0.5, "ours, mean and 95 % interval", ink(OURS)),
    ):
        legend.text(0.02, height, words, color=colour, transform=legend.transAxes)
    figure.tight_layout()
    return figure


def _panel(axes: Axes, lab: Lab, table: PaperTable) -> None:
    """One table: its key along x, in equal steps."""
    places = np.arange(len(table.cells))
    found = [mean(differences(lab, where)) for where in table.cells]
    values = np.array([each.value for each in found])
    half = [each.ci95[1] - each.value if each.ci95 else 0.0 for each in found]
    images = "(" in table.key  # no line between settings that differ in two keys
    line = "none" if images else "-"
    papers = [where.paper for where in table.cells]
    axes.plot(places, papers, "s", linestyle=line, color=PAPER, markersize=4, linewidth=1)
    axes.errorbar(
        places, values, half, fmt="o", linestyle=line, color=OURS, markersize=4, capsize=3
    )
    axes.axhline(0, color=GREY, linewidth=0.6, zorder=0)
    axes.set_xticks(places, [_brief(where.name) for where in table.cells])
    axes.margins(x=0.12)
    axes.set_xlabel("sd of the delay (s)" if table.key == "sd" else table.key)
    axes.set_title(table.name if images else "random data", fontsize=9)


def _brief(name: str) -> str:
    """A cell's name without its unit, or in two lines."""
    return name.removesuffix(" s").strip("()").replace(", ", "\n")


def step_sizes(lab: Lab) -> Chart:
    """Draw the training loss over time, for each step size and for async."""
    groups = lab.runs(TABLES["step size"].cells[0].scenario).groups
    return curves.error(groups, title="Hybrid: step sizes", target=None, loss="training loss")
