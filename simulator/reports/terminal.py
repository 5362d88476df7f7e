"""Make the tables that commands print on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..inputs import untrusted
from ..results import consumption, wording
from ..results.columns import RESULT_COLUMNS, ResultColumn, in_question
from ..results.intervals import USUAL
from ..results.run import TIMES
from ..results.statistics import human, number
from . import tables
from .tables import Cell, Columns, Row, named, shares, times, toml

if TYPE_CHECKING:  # theory needs no simulator
    from ..studies.fit import FitResult
    from ..studies.result import Result
    from ..studies.sweep import SweepResult
    from ..studies.tune.result import TuneResult

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}
SWEEP_ROWS = 40  # most rows of a sweep on a terminal
TUNE_ROWS = 6  # most rows of a search
HEADING = 14  # characters of a line of a heading: the table has 80
HEADINGS = untrusted.packaged(__file__, "tables.toml")  # keys by command, table and heading
AWAY = ("absent", "unselected")
IDLE = 0.025  # share of the time: a table of smaller shares says nothing


def headed(first: str, *columns: str) -> Table:
    """Return an empty table: one column of names, and number columns for `columns`."""
    table = Table(first, **STYLE)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def results(result: "Result") -> tuple[list[Row], Columns]:
    """Return a row for each algorithm, and the columns of the table of results."""
    rows: list[Row] = [row | {"seeds": len(result.seeds)} for row in result.algorithms]
    left_out = tables.OF_CLIENTS if _sampled(rows) else ()
    question, target = in_question(result.verdict.json()), result.scenario.run.target_loss
    return rows, tables.of_runs(rows, target, question, left_out)


def summary(result: "Result") -> Table:
    """Tabulate a result, one line per algorithm; the pick is bold."""
    rows, columns = results(result)
    return _table(rows, _beneath(columns), strong=result.pick["label"])


def language(result: "Result") -> list[Table]:
    """Tabulate further measures of a language model's loss; [] for other objectives."""
    baseline = result.verdict.baseline
    rows = [{"label": row["label"], **result.language(row)} for row in result.algorithms]
    if not any("perplexity" in row for row in rows):
        return []
    columns: dict[str, Cell] = {"loss at the end": named}
    columns["perplexity"] = lambda row: number(row["perplexity"], 4) if "perplexity" in row else "-"
    if baseline and len(rows) > 1:
        against: Cell = partial(wording.above_reference, "above", "interval90")
        columns[f"loss against\n{baseline} ({USUAL})"] = partial(_stacked, against)
    return [_table(rows, columns)]


def spent(rows: Sequence[Row]) -> list[Table]:
    """Tabulate shares of time if there are many kinds; before, any rounds of clients."""

    def share(kind: str, row: Row) -> str:
        return shares([row["breakdown"].get(kind)])

    def mean(column: ResultColumn, row: Row) -> str:
        return column.show(column.of_summary(row))

    kinds = {kind.replace("communicate", "comm."): partial(share, kind) for kind in times(rows)}
    columns = (column for column in RESULT_COLUMNS if column.key in tables.OF_CLIENTS)
    there = (one for one in columns if any(one.of_summary(row) is not None for row in rows))
    shown = {column.heading: partial(mean, column) for column in there}
    clients = [_table(rows, {"clients": named, **shown})] if _sampled(rows) else []
    busy = max(row["breakdown"].get(k) or 0 for row in rows for k in TIMES if k not in AWAY)
    whole = "% of all clients' time" if clients else "% of the time"
    spent = [_table(rows, {whole: named, **kinds})] * (len(kinds) > tables.FEW and busy > IDLE)
    return [*clients, *spent]


def _sampled(rows: Sequence[Row]) -> bool:
    return any(row.get("gradients_per_hour") for row in rows)


def in_units(
    rows: Sequence[Row], target: float | None = None, first: str | None = None
) -> list[Table]:
    """Tabulate amounts such as tokens and cost; [] if none is set."""
    what, cells = consumption.cells(rows, target)
    broken = {
        heading.replace("-", "-\n").replace("/c", "/\nc"): cell
        for heading, cell in cells.items()
        if not (first and heading == "tokens" and len({*map(cell, rows)}) == 1)  # shown above
    }
    return [_table(rows, _beneath({first or what: named} | broken))] if cells else []


def _beneath(columns: Columns) -> Columns:
    """Put intervals beneath their values, and break headings, so that columns fit into 80."""
    (first, names), *others = columns.items()
    return {first: names} | {_broken(heading): partial(_stacked, cell) for heading, cell in others}


def _broken(heading: str) -> str:
    lines = heading.replace(" (", "\n(").split("\n")
    parts = ([line] if line.startswith("(") else wrap(line, HEADING) for line in lines)
    return "\n".join(part for line in parts for part in line)


def _stacked(cell: Cell, row: Row) -> str:
    value, _, interval = cell(row).partition(" (")
    return f"{value}\n{interval.removesuffix(')')}".strip().replace("%: ", "%:\n")


def sweep(result: "SweepResult") -> Table:
    """Tabulate the first `SWEEP_ROWS` of `distinct` rows: varied keys, and results."""
    rows, target = distinct(result)[:SWEEP_ROWS], result.scenario.run.target_loss
    pairs = {(row["label"], row["program"]) for row in result.rows}
    name = "program" if len({program for _, program in pairs}) == len(pairs) else "label"
    columns = tables.of_sweep(result.rows, result.vary, result.bounds, target, name)
    return _table(rows, _beneath(columns), 1 + [*columns].index("algorithm"))


def distinct(result: "SweepResult") -> list[Row]:
    """Return one row per algorithm and its varied values."""
    columns = tables.varied(result.rows, result.vary).values()
    rows = dict[tuple[str, ...], Row]()
    for row in result.rows:
        rows.setdefault((row["label"], *(cell(row) for cell in columns)), row)
    return [*rows.values()]


def tune(result: "TuneResult") -> list[Table | str]:
    """Tabulate the leading configurations of a search."""
    verdict, ranked = result.verdict, result.ranked
    parts = {one.label: one.candidate.part and one.candidate.part.name for one in ranked}
    also = [*verdict.candidates[:TUNE_ROWS], verdict.pick, result.reference]
    shown = tables.leading(parts, TUNE_ROWS, also)
    rows = result.rows([one for one in ranked if one.label in shown])
    rows.sort(key=lambda row: row["label"] != verdict.pick)
    aim = result.objective
    about = {"objective": aim.name, "measure": aim.says, "unit": aim.unit}
    columns = tables.of_search(rows, about | {"verdict": verdict.json()})
    ranking = _table(rows, _beneath(columns), strong=verdict.pick)
    return [ranking, *in_units(rows, first="configuration")]


def fit(result: "FitResult") -> list[Table]:
    """Tabulate the fitted keys, the targets used, and the targets predicted."""
    rows = {"keys": result.keys, "fitted": result.fitted, "held_out": result.held_out}
    return _tabulated(rows, "fit", texts=6)


def theory(document: Row) -> list[Table | str]:
    """Tabulate the document of `paceline theory`, without its notes."""
    return [_hide(document["hide"]), *_tabulated(document, "theory")]


def _tabulated(document: Row, command: str, texts: int = 1) -> list[Table]:
    """Return the tables of a document, without columns that have no value."""
    return [
        _table(
            rows,
            {
                heading: _value(key)
                for heading, key in columns.items()
                if any(row[key] is not None for row in rows)
            },
            texts,
        )
        for name, columns in HEADINGS[command].items()
        if (rows := document[name])
    ]


def _hide(hide: Row | None) -> str:
    """Return a sentence on the delay after which an average costs no time."""
    if hide is None:
        return "No delay hides an average: computing takes no time."
    if not hide:
        return "No delay is advised: a round of sampled clients ends with reports, not a mean."
    if hide["delay"] is not None:
        return f"A delay of {_steps(hide['delay'])} hides an average at every step."
    period, delay = _steps(hide["smallest_period"]), _steps(hide["delay_at_smallest_period"])
    often = "No delay hides an average at every step, because it takes longer than a step"
    return f"{often}: average every {period}, with a delay of {delay}."


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def listing(rows: Sequence[Row]) -> Table:
    """Tabulate the rows of `paceline list`: name, summary, and any parameters and source."""
    columns: dict[str, Cell] = {"name": lambda row: row["name"], "": lambda row: row["summary"]}
    if any(row["parameters"] for row in rows):
        columns["parameters"] = lambda row: "\n".join(map(_parameter, row["parameters"].items()))
        if any(row["source"] for row in rows):
            columns["source"] = lambda row: row["source"]
    table = _table(rows, columns, len(columns))
    table.columns[0].no_wrap = True
    table.show_lines = "parameters" in columns
    return table


def _parameter(item: tuple[str, Row]) -> str:
    """Format a parameter with default and unit: "tau: required (steps)", "alpha = 0.6"."""
    key, about = item
    default, unit = toml(about["default"]), about["unit"]
    text = f"{key}: required" if default == "required" else f"{key} = {default}"
    return f"{text} ({unit})" if unit and not default.endswith(unit) else text


def claims(rows: Sequence[Row]) -> Table | str:
    """Tabulate the claims of `paceline reproduce`: the paper's number, ours, and the verdict."""
    if not rows:
        return "No claim of these papers is only about time."
    return _tabulated({"claims": rows}, "reproduce", texts=6)[0]


def verdicts(summary: Mapping[str, Mapping[str, int]]) -> str:
    """Tabulate how many claims of every kind have which verdict; printed claims first."""
    lines = []
    for kind, counted in summary.items():
        counts = ", ".join(f"{count} {verdict}" for verdict, count in counted.items() if count)
        lines += [f"{kind}: {counts}"] if counts else []
    return "\n".join(lines)


def _table(
    rows: Iterable[Row], columns: Mapping[str, Cell], texts: int = 1, strong: str | None = None
) -> Table:
    """Return a table, whose first `texts` columns may wrap; the rows labelled `strong` are bold."""
    table = Table(*columns, **STYLE)
    for row in rows:
        style = "bold" if strong and row["label"] == strong else None
        table.add_row(*(cell(row) for cell in columns.values()), style=style)
    for place, column in enumerate(table.columns):
        column.no_wrap = place >= texts
    return table


def _value(key: str) -> Cell:
    formats: dict[str, Any] = dict.fromkeys(("seconds_per_step", "duration", "switch"), human)
    formats |= {"time": _moment, "residual": "{:+z.2f}".format}
    return lambda row: str(formats.get(key, _plain)(row[key]))


def _moment(seconds: float) -> str:
    """Format a time in a readable unit and in seconds: "19.2 min (1149 s)"."""
    exact = f"{seconds:.0f} s" if seconds >= 1000 else f"{seconds:#.4g} s"
    return exact if seconds < 120 else f"{human(seconds)} ({exact})"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " to ".join(map(_plain, value))
    return "-" if value is None else number(value) if isinstance(value, float) else str(value)
