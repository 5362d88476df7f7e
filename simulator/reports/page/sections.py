"""Make the sections of a page: loss curves and tables of RUNs, comparisons, searches and sweeps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from ...inputs import untrusted
from ...results import consumption
from ...results.columns import in_question, ranked_by
from ...results.documents import SWEEP
from ...results.figures import curves
from ...results.figures.chart import Look, apart
from ...results.figures.style import DASHES
from ...results.intervals import MEDIAN, stated
from ...results.statistics import format_loss, human, percent, with_unit
from ...studies import sweep as sweeps
from ...studies.tune import figures
from .. import tables
from . import changes, reading
from .parts import PageFigure, PageSection, PageTable
from .reading import FoundRun

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


class Series(NamedTuple):
    """The predicted or measured runs of one algorithm in one RUN, drawn as the line `curves`.

    `name`: its label, with the RUN and the side if there are several.
    """

    label: str
    name: str
    found: FoundRun
    curves: curves.Curves


def sections(every: Sequence[FoundRun], lines: Sequence[Series]) -> list[PageSection]:
    """Return all sections of a page, in order."""
    result: list[PageSection | None] = []
    drawn = [line for line in lines if line.curves.runs]
    if drawn:
        result.append(loss_curves(every, lines, drawn))
    for place, run in enumerate(every):
        parts = [comparison(run.comparison, place) if run.comparison else None]
        parts += [ranking(run.tune, place), tradeoffs(run.tune, place)] if run.tune else []
        if run.sweep:
            with untrusted.refused(run.path / SWEEP, *reading.SWEPT):
                parts.append(sweep(run.sweep, run.target, place))
        parts.append(changes.section(run, place))
        if len(every) > 1:
            parts = [one and replace(one, heading=f"{run.name}: {one.heading}") for one in parts]
        result += parts
    shown = [section for section in result if section is not None]
    if len(every) > 1:  # two screens hold the answers and one section
        shown[1:] = (replace(section, folded=True) for section in shown[1:])
    return shown


def series(every: Sequence[FoundRun]) -> list[Series]:
    """Return the series of every algorithm in every RUN, predicted and measured.

    An algorithm has one colour and one symbol on the whole page. Dashes distinguish the algorithms
    of a single RUN, or several RUNs. Measured lines are dotted, with open symbols, and hidden with
    the predicted ones. Lines leave out words that all labels share.
    """
    labels = [*dict.fromkeys(k for f in every for run in f.sides.values() for k in run.rows)]
    brief = dict(zip(labels, apart(labels), strict=True))
    lines: list[Series] = []
    for number, one in enumerate(every):
        before = f"{one.name}: " * (len(every) > 1)
        for side, run in one.sides.items():
            after = f", {side}" * (len(one.sides) > 1)
            measured = bool(after) and side == "measured"
            for label, row in run.rows.items():
                place, title = labels.index(label), f"{before}{brief[label]}"
                look = Look.at(place)._replace(width=2.0)
                if before:
                    look = look._replace(dash=[*DASHES][number % len(DASHES)])
                    title = title if len(labels) > 1 else one.name
                if measured:
                    look, title = look._replace(dash="dot", width=1.4, hollow=True), title + after
                same, key = run.runs.get(label, ()), f"l{number}-{place}"
                line = curves.Curves(title, same, look, key, measured, row)
                lines.append(Series(label, f"{before}{label}{after}", one, line))
    return lines


def loss_curves(
    every: Sequence[FoundRun], lines: Sequence[Series], drawn: Sequence[Series]
) -> PageSection:
    """Draw the curves of the loss against time, and tabulate the results."""
    targets = {run.target for run in every if run.main}
    target = targets.pop() if len(targets) == 1 else None
    picked = {(run.name, run.verdict["pick"]) for run in every}
    kinds = {str((f.scenario.get("table") or {}).get("objective", {}).get("kind")) for f in every}
    name = curves.LOSS_NAMES.get(kinds.pop(), "loss") if len(kinds) == 1 else "loss"
    lost = all(line.curves.row["loss"]["last"] is None for line in drawn)
    heading = "Local steps against time" if lost else "Error against time"
    shown = [line.curves for line in drawn]
    panel = curves.error_panel(shown, target, name)
    lead = f"{curves.bands(shown).capitalize()}."
    if len({line.curves.apart for line in drawn}) > 1:
        lead += " Dotted lines with open symbols: measured in real training."
    if target is not None:
        lead += " Marks on the target line: when the target is reached, with intervals."
    label = f"{panel.y.title} against wall-clock time, one line per algorithm: {heading}"
    figures = [PageFigure("error", label, panel)]
    return PageSection("error", heading, lead, figures, [results(lines, target, picked)])


def results(
    lines: Sequence[Series], target: float | None, picks: set[tuple[str, str]]
) -> PageTable:
    """Tabulate every algorithm's time to target, other columns, and amounts."""
    several = len({line.found.name for line in lines}) > 1
    question = ("", "", {}) if several else in_question(lines[0].found.verdict)
    rows = [
        {**line.curves.row, "label": line.name if line.curves.apart else line.label}
        | {"shown": line.name, "seeds": len(line.curves.runs)}
        for line in lines  # what the verdict compares is not about measured lines
    ]
    columns = tables.of_runs(rows, target, question)
    what, amounts = consumption.cells(rows, target)
    medians = any(stated(row["seconds_per_step"]).of == MEDIAN for row in rows)
    caption = f"Each algorithm, {'median' if medians else 'mean'} over seeds"
    caption += f"; amounts {what}" if amounts else ""
    strong = [at for at, line in enumerate(lines) if (line.found.name, line.label) in picks]
    caption += "; the pick is bold"
    return PageTable.of(caption, columns | amounts, rows, strong=strong)


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
    chart, column = sweeps.chart(rows, vary, target, ""), ranked_by(rows)
    label = f"{column.words} of each algorithm at each point of the sweep"
    drawn = PageFigure.all_of(f"sweep-{place}", label, chart)
    lead = f"{chart.caption.capitalize()}." if chart else ""
    heading, parts = f"{len(points)} points of {', '.join(vary)}", table.folded_after(ROWS, MOST)
    return PageSection(f"sweep-{place}", heading, lead, drawn, parts)
