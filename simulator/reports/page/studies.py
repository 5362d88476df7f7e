"""Make the sections of comparisons, searches and sweeps."""

from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import Any

from ...results import consumption
from ...results.columns import ranked_by
from ...results.statistics import format_loss, human, percent, with_unit
from ...studies.sweep import table as sweeps
from ...studies.tune import figures
from .. import tables
from .parts import PageFigure, PageSection, PageTable

QUANTITIES = {
    "seconds_per_step": ("time per step", human),
    "time_to_target": ("time to target", human),
    "loss_at_half": ("loss half-way", format_loss),
    "loss_at_end": ("loss at the end", format_loss),
    "bytes_per_step": ("bytes per step", partial(with_unit, unit="B")),
}
"""Words for the quantities of a comparison, and functions that format their values."""
SHOWN = 20  # rows of a comparison that are not folded
CONFIGURATIONS, FOLDED = 6, 300  # of a search: rows in the first table, and including folded ones
ROWS, MOST = 60, 1000  # of a sweep: rows shown, and including folded ones
USED = ("time", "nights", "rounds", "cost")  # amounts in the ranking of a search
Row = Mapping[str, Any]


def comparison(document: Row, place: int) -> PageSection:
    """Tabulate predictions beside measurements, with their errors."""
    basis, median = document["basis"], document.get("median_absolute_error")
    heading = "Predicted against measured" if basis == "measured" else "Two simulations"
    if median is not None:
        heading += f": times per step are off by {percent(median, 1)} (median)"
    rows = []
    for row in document["rows"]:
        words, show = QUANTITIES.get(row["quantity"], (row["quantity"], format_loss))
        name = row["algorithm"] + " (not counted)" * (not row.get("counted", True))
        values = [show(row.get(side)) for side in ("predicted", "measured")]
        error = "-" if row.get("error") is None else f"{100 * row['error']:+z.1f} %"
        noise = row.get("within_noise") and row.get("error") is not None
        rows.append((name, words, *values, f"({error})" if noise else error))
    caption = f"Errors in per cent of the {basis} value; in brackets: within the spread of seeds"
    heads = ("algorithm", "quantity", "predicted", basis, "error")
    tables = PageTable(caption, heads, rows, 2).folded_after(SHOWN, len(rows))
    return PageSection(f"comparison-{place}", heading, document["sentence"], tables=tables)


def search(tune: Row, place: int) -> list[PageSection | None]:
    """Return the sections of a search."""
    return [ranking(tune, place), tradeoffs(tune, place)]


def ranking(tune: Row, place: int) -> PageSection:
    """Draw and tabulate the ranking."""
    chart, count = figures.ranking(tune), len(tune["ranking"])
    label = f"{tune['measure']} of the best configurations with their intervals"
    drawn = PageFigure.all_of(f"ranking-{place}", label, chart)
    heading = f"{count} configuration{'s' * (count > 1)}"
    lead = f"{chart.caption.capitalize()}." if chart else ""
    return PageSection(f"tune-{place}", heading, lead, drawn, _configurations(tune))


def _configurations(tune: Row) -> list[PageTable]:
    """Return the ranking with the amounts of every configuration."""
    pick, ranked = tune["verdict"]["pick"], tune["ranking"]
    bases = {(row.get("to_reference") or {}).get("label") for row in ranked[:CONFIGURATIONS]}
    parts = {row["label"]: str(row.get("part")) for row in ranked}
    first = tables.leading(parts, CONFIGURATIONS, {pick, *bases})
    shown = [row for row in ranked if row["label"] in first]
    shown.sort(key=lambda row: row["label"] != pick)
    rest = [row for row in ranked if row["label"] not in first]
    used = consumption.cells(ranked)[1].items()
    columns = tables.of_search(ranked, tune)
    columns |= {head: cell for head, cell in used if head.partition(" ")[0] in USED}
    strong = [0] * bool(pick)
    table = PageTable.of("The pick, then the best first", columns, [*shown, *rest], strong=strong)
    return table.folded_after(len(shown), FOLDED)


def tradeoffs(tune: Row, place: int) -> PageSection | None:
    """Draw the configurations by time, money and loss."""
    chart = figures.tradeoffs(tune)
    if chart is None:
        return None
    axes = ", ".join(f"{panel.y.title} against {panel.x.title}" for panel in chart.panels)
    drawn = PageFigure.all_of(f"tradeoffs-{place}", axes, chart)
    lead = f"{chart.caption.capitalize()}."
    return PageSection(f"tradeoffs-{place}", "Trade-offs", lead, drawn, folded=True)


def sweep(document: Row, target: float | None, place: int) -> PageSection:
    """Draw and tabulate a sweep: which algorithm is best at which point."""
    rows, vary = document["rows"], document["vary"]
    points = [[*same] for _, same in groupby(rows, lambda row: [row[key] for key in vary])]
    pairs = zip(document["picks"], points, strict=False)
    picked = (row["label"] == pick["label"] for pick, same in pairs for row in same)
    strong = [at for at, best in enumerate(picked) if best]
    columns = tables.of_sweep(rows, vary, document["bounds"], target)
    caption, texts = "Each algorithm at each point; the best is bold", 1 + len(vary)
    table = PageTable.of(caption, columns, rows, texts=texts, strong=strong)
    values = {key: [*dict.fromkeys(row[key] for row in rows)] for key in vary}
    chart, column = sweeps.chart(rows, values, target, ""), ranked_by(rows)
    label = f"{column.words} of each algorithm at each point of the sweep"
    drawn = PageFigure.all_of(f"sweep-{place}", label, chart)
    lead = f"{chart.caption.capitalize()}." if chart else ""
    heading, parts = f"{len(points)} points of {', '.join(vary)}", table.folded_after(ROWS, MOST)
    return PageSection(f"sweep-{place}", heading, lead, drawn, parts)
