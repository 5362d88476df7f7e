"""Make the sections of comparisons, searches and sweeps."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from ...inputs.messages import toml
from ...results import consumption, wording
from ...results.columns import BY_KEY, estimate_of, ranked_by
from ...results.intervals import USUAL, stated
from ...results.statistics import format_loss, human, percent, with_unit
from ...results.verdict import ALONE, mark
from ...studies.sweep import figure
from ...studies.tune import figures
from ...studies.tune.objective import PACES
from ...studies.tune.regret import cost, notes
from .parts import CHANGES, PageFigure, PageSection, PageTable

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
BESIDE = (
    "reports_per_round", "clients_at_work", "gradients_per_hour", "goodput", "useful_share",
    "total_cost",
)  # fmt: skip
"""Columns of a sweep beside the ranking column."""
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
    return [ranking(tune, place), sensitivity(tune, place), tradeoffs(tune, place)]


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
    verdict, ranked = tune["verdict"], tune["ranking"]
    pick, best = verdict["pick"], ranked[:CONFIGURATIONS]

    def named(row: Row) -> str:
        word = mark(pick, verdict["candidates"], row)
        return f"{row['label']} ({word})" if word else str(row["label"])

    columns = _columns(tune, best)
    also = {pick, ALONE, *((row.get("to_reference") or {}).get("label") for row in best)}
    rest = [row for row in ranked[CONFIGURATIONS:] if row["label"] not in also]
    shown = [row for row in ranked if row not in rest]
    shown.sort(key=lambda row: row["label"] != pick)
    rows = [(named(row), *(cell(row) for cell in columns.values())) for row in [*shown, *rest]]
    caption, heads = "The pick, then the best first", ("configuration", *columns)
    table = PageTable(caption, heads, rows, 1 + ("basis" in columns), strong=[0] * bool(pick))
    return table.unvaried().folded_after(len(shown), FOLDED)


def _columns(tune: Row, best: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """Return what each column of the ranking shows of a row, by its heading."""
    unit, ranked, columns = tune["unit"], tune["ranking"], dict[str, Callable[[Row], str]]()
    missed = "beyond the cap" if tune["objective"] in PACES else "not reached"

    def value(row: Row) -> str:
        if row["value"] is not None:
            return wording.cell(stated(row, "value"), unit)
        return f"above {with_unit(row['at_least'], unit)}" if row["at_least"] else missed

    if len({row.get("basis") for row in best}) > 1:
        columns["basis"] = lambda row: row["basis"] or ""
    columns[f"{tune['measure']} ({USUAL})"] = value
    if any(row.get("to_reference") for row in ranked):
        columns["loss above data-parallel"] = wording.above_reference
    if judged := wording.judged(ranked):
        words, of, estimate = judged
        columns[words] = lambda row: wording.cell(estimate(row), of)
    if any(row["reached"] < row["seeds"] for row in best):
        columns["reached"] = lambda row: f"{row['reached']} of {row['seeds']}"
    used = consumption.cells(ranked)[1].items()
    return columns | {head: cell for head, cell in used if head.partition(" ")[0] in USED}


def tradeoffs(tune: Row, place: int) -> PageSection | None:
    """Draw the configurations by time, money and loss."""
    chart = figures.tradeoffs(tune)
    if chart is None:
        return None
    axes = ", ".join(f"{panel.y.title} against {panel.x.title}" for panel in chart.panels)
    drawn = PageFigure.all_of(f"tradeoffs-{place}", axes, chart)
    lead = f"{chart.caption.capitalize()}."
    return PageSection(f"tradeoffs-{place}", "Trade-offs", lead, drawn, folded=True)


def sensitivity(tune: Row, place: int) -> PageSection | None:
    """Tabulate the cost of a wrong input for every candidate."""
    worlds, pick = tune["regret"], tune["pick"]["label"]
    if not worlds:
        return None
    heads = [
        f"{world['input']} {100 * world['change']:+.0f}\N{NO-BREAK SPACE}%".replace("-", "−")
        if world["input"]
        else "as written"
        for world in worlds
    ]
    rows = [
        [label, *(cost(world, label, " %") for world in worlds)] for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and world["regret"].get(pick) != 0 and pick not in world["not_worse"]
    ]
    lead = "No other is surely better if latency, bandwidth or straggling is 20 % off."
    if flipped:
        lead = f"Another configuration is better with {', '.join(flipped)}."
    table = PageTable("How much worse than the best of these", ("configuration", *heads), rows)
    text = " ".join([lead, *notes(worlds)])
    return PageSection(f"sensitivity-{place}", CHANGES, text, tables=[table])


def sweep(document: Row, target: float | None, place: int) -> PageSection:
    """Draw and tabulate a sweep: which algorithm is best at which point."""
    rows, vary, points = document["rows"], document["vary"], _points(document)
    best = {(name, pick["label"]) for name, pick in zip(points, document["picks"], strict=False)}
    column = ranked_by(rows)
    beside = [BY_KEY[key] for key in BESIDE if any(row.get(key) is not None for row in rows)]
    names = [one.words for one in beside]
    columns = ("point", "algorithm", column.words, USUAL, "reached", "time per step", *names)
    cells = [
        (
            name,
            f"{row['label']} (a bound)" if row["label"] in document["bounds"] else row["label"],
            "-" if row.get(column.key) is None else column.show(row[column.key]),
            wording.qualified(estimate_of(row, column.key), column.unit),
            "-" if row.get("reached") is None else f"{row['reached']:.0f} of {row['seeds']:.0f}",
            human(estimate_of(row, "seconds_per_step").value),
            *(one.show(row.get(one.key)) for one in beside),
        )
        for name, same in points.items()
        for row in same
    ]
    strong = [at for at, row in enumerate(cells) if row[:2] in best]
    table = PageTable(
        "Each algorithm at each point; the first is bold", columns, cells, 2, strong=strong
    )
    values = {key: [*dict.fromkeys(row[key] for row in rows)] for key in vary}
    chart = figure.chart(rows, values, target, "")
    label = f"{column.words} of each algorithm at each point of the sweep"
    drawn = PageFigure.all_of(f"sweep-{place}", label, chart)
    lead = f"{chart.caption.capitalize()}." if chart else ""
    heading, tables = f"{len(points)} points of {', '.join(vary)}", table.folded_after(ROWS, MOST)
    return PageSection(f"sweep-{place}", heading, lead, drawn, tables)


def _points(document: Row) -> dict[str, list[Row]]:
    """Return rows of a sweep by point; points are named by the keys that differ."""
    vary = document["vary"]
    keys = [key for key, values in vary.items() if len(values) > 1] or [*vary]
    short = {key: key.rpartition(".")[2] for key in keys}
    short = short if len({*short.values()}) == len(keys) else {key: key for key in keys}

    def name(row: Row) -> str:
        return ", ".join(f"{short[key]} = {_value(row[key])}" for key in keys)

    return {point: list(same) for point, same in groupby(document["rows"], name)}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else toml(value)
