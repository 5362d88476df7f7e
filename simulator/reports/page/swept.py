"""The section of a sweep: which algorithm is first at which point."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from ...inputs.messages import toml
from ...results import wording
from ...results.columns import BY_KEY, estimate_of, ranked_by
from ...results.intervals import USUAL
from ...results.statistics import human
from ...studies.sweep import figure
from .parts import PageFigure, PageSection, PageTable
from .reading import FoundRun

ROWS, MOST = 60, 1000  # of the table: shown, and with those that are folded
BESIDE = (
    "reports_per_round", "clients_at_work", "gradients_per_hour", "goodput", "useful_share",
    "total_cost",
)  # fmt: skip
Row = Mapping[str, Any]


def picks(sweep: Row, names: Iterable[str]) -> dict[str, Row]:
    """Return the verdict at each point that has one."""
    pairs = zip(names, sweep["picks"], strict=False)
    return {name: pick for name, pick in pairs if pick["label"] is not None}


def points(sweep: Row) -> dict[str, list[Row]]:
    """Return rows by point, which is named by the keys that differ between points."""
    keys = [key for key, values in sweep["vary"].items() if len(values) > 1] or [*sweep["vary"]]
    short = {key: key.rpartition(".")[2] for key in keys}
    if len({*short.values()}) < len(keys):
        short = {key: key for key in keys}

    def name(row: Row) -> str:
        return ", ".join(f"{short[key]} = {_value(row[key])}" for key in keys)

    return {key: list(rows) for key, rows in groupby(sweep["rows"], name)}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else toml(value)


def section(found: FoundRun, place: int) -> PageSection:
    """Draw and tabulate the sweep."""
    sweep = found.sweep
    assert sweep is not None
    rows, every = sweep["rows"], points(sweep)
    column = ranked_by(rows)
    best = {name: pick["label"] for name, pick in picks(sweep, every).items()}
    beside = [BY_KEY[key] for key in BESIDE if any(row.get(key) is not None for row in rows)]
    names = [each.words for each in beside]
    columns = ("point", "algorithm", column.words, USUAL, "reached", "time per step", *names)
    cells = [
        (
            name,
            f"{row['label']} (a bound)" if row["label"] in sweep["bounds"] else row["label"],
            "-" if row.get(column.key) is None else column.show(row[column.key]),
            wording.qualified(estimate_of(row, column.key), column.unit),
            "-" if row.get("reached") is None else f"{row['reached']:.0f} of {row['seeds']:.0f}",
            human(estimate_of(row, "seconds_per_step").value),
            *(each.show(row.get(each.key)) for each in beside),
        )
        for name, own in every.items()
        for row in own
    ]
    heading = f"{len(every)} points of {', '.join(sweep['vary'])}"
    strong = [at for at, row in enumerate(cells) if best.get(row[0]) == row[1]]
    table = PageTable(
        "Each algorithm at each point; the first is bold", columns, cells, 2, strong=strong
    )
    chart = figure.chart(rows, _vary(sweep), found.target, "")
    label = f"{column.words} of each algorithm at each point of the sweep"
    drawn = PageFigure.all_of(f"sweep-{place}", label, chart)
    tables = table.folded_after(ROWS, MOST)
    lead = f"{chart.caption.capitalize()}." if chart else ""
    return PageSection(f"sweep-{place}", heading, lead, drawn, tables)


def _vary(sweep: Row) -> dict[str, list[Any]]:
    """Return what was varied with the values that rows have, as sweep.csv keeps them."""
    return {key: [*dict.fromkeys(row[key] for row in sweep["rows"])] for key in sweep["vary"]}
