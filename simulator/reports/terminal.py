"""Make the tables that commands print on a terminal."""

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..inputs import messages, untrusted
from ..results import consumption, wording
from ..results.columns import (
    RESULT_COLUMNS,
    SIMULATE,
    STATED,
    SWEEP,
    ResultColumn,
    estimate_of,
    in_question,
    ranked_by,
)
from ..results.intervals import USUAL, stated
from ..results.run import TIMES
from ..results.statistics import human, loss_digits, loss_in_table, number
from ..results.verdict import ALONE, mark
from ..studies.tune import regret

if TYPE_CHECKING:  # theory needs no simulator
    from ..studies.fit.fit import FitResult
    from ..studies.result import Result
    from ..studies.sweep.table import SweepResult
    from ..studies.tune.result import TuneResult

TABLES = Path(__file__).with_name("tables.toml")
Row = Mapping[str, Any]
Cell = Callable[[Row], str]

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}
SWEEP_ROWS = 40  # most rows of a sweep on a terminal
TUNE_ROWS = 6  # most rows of a search
HEADING = 14  # characters of a line of a heading: the table has 80
OF_CLIENTS = (
    "rounds", "seconds_per_round", "rounds_per_night", "reports_per_round", "clients_at_work",
    "gradients_per_hour", "useful_share",
)  # fmt: skip
FEW = 3  # most kinds of time that fit one column
AWAY = ("absent", "unselected")
IDLE = 0.025  # share of the time: a table of smaller shares says nothing


def headed(first: str, *columns: str) -> Table:
    """Return an empty table: one column of names, and number columns for `columns`."""
    table = Table(first, **STYLE)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def summary(result: "Result") -> Table:
    """Tabulate a result, one line per algorithm; the pick is bold."""
    target, rows, seeds = result.scenario.run.target_loss, result.algorithms, len(result.seeds)
    usual = wording.usual(stated(row["time_to_target"]) for row in rows if target is not None)
    digits = loss_digits(row["loss"]["last"] for row in rows)
    question = in_question(result.verdict.json())
    columns: dict[str, Cell] = {"algorithm": _named}
    always = _always(rows, target)
    left_out = {*OF_CLIENTS} if _sampled(rows) else set()
    left_out |= {"seconds_per_gradient"} - {question[0]}
    for column in RESULT_COLUMNS:
        there = column.key in always or any(column.of_summary(row) is not None for row in rows)
        if not there or SIMULATE not in column.shown_in or column.key in left_out:
            continue
        heading = _heading(column, target and f"loss {target:g}", usual)
        modelled = STATED.get(column.key) in rows[0].get("interval90", {})
        cell = partial(column.cell, seeds=seeds, usual=usual, digits=digits)
        if modelled:
            columns[heading.partition("\n")[0] + f"\n({USUAL})"] = partial(_stacked, cell)
        elif column.key == question[0]:
            columns |= _compared(heading, cell, question)
        else:
            columns[heading] = partial(_beneath, cell)
    if any(row["staleness"] and row["staleness"]["max"] for row in rows):
        columns["stale\nmean/max"] = lambda row: _staleness(row["staleness"])
    kinds = _kinds(rows)
    if len(kinds) <= FEW:
        columns[_spent(kinds)] = lambda row: _shares(row["breakdown"].get(kind) for kind in kinds)
    return _table(rows, columns, strong=result.pick["label"])


def _always(rows: Sequence[Row], target: float | None) -> set[str]:
    """Return the keys of columns that are shown even without a value."""
    lost = any(row.get("diverged") for row in rows)
    shown = {"seconds_per_step": True, "time_to_target_s": target, "final_loss": lost}
    return {key for key, there in shown.items() if there}


def _compared(heading: str, cell: Cell, question: tuple[str, str, Row]) -> dict[str, Cell]:
    """Return the column of what the verdict compares; where that is nothing, it says why."""
    _, what, texts = question
    heading = what.replace(" at ", " at\n") or heading
    heading += f"\n({USUAL})" * any("(" in text for text in texts.values())
    return {heading: partial(_beneath, lambda row: texts.get(row["label"]) or cell(row))}


def language(result: "Result") -> list[Table]:
    """Tabulate further measures of a language model's loss; [] for other objectives."""
    baseline = result.verdict.baseline
    rows = [{"label": row["label"], **result.language(row)} for row in result.algorithms]
    if not any("perplexity" in row for row in rows):
        return []

    def against(row: Row) -> str:
        above = row.get("above")
        return wording.above(above["value"], above["interval90"]) if above else "-"

    columns: dict[str, Cell] = {"loss at the end": _named}
    columns["perplexity"] = lambda row: number(row["perplexity"], 4) if "perplexity" in row else "-"
    if baseline and len(rows) > 1:
        columns[f"loss against\n{baseline} ({USUAL})"] = partial(_beneath, against)
    return [_table(rows, columns)]


def spent(rows: Sequence[Row]) -> list[Table]:
    """Tabulate shares of time if there are many kinds; before, any rounds of clients."""

    def share(kind: str, row: Row) -> str:
        return _shares([row["breakdown"].get(kind)])

    def mean(column: ResultColumn, row: Row) -> str:
        return column.show(column.of_summary(row))

    kinds = {kind.replace("communicate", "comm."): partial(share, kind) for kind in _kinds(rows)}
    shown = {
        column.heading: partial(mean, column)
        for column in RESULT_COLUMNS
        if column.key in OF_CLIENTS and any(column.of_summary(row) is not None for row in rows)
    }
    clients = [_table(rows, {"clients": _named, **shown})] if _sampled(rows) else []
    busy = max(row["breakdown"].get(k) or 0 for row in rows for k in TIMES if k not in AWAY)
    whole = "% of all clients' time" if clients else "% of the time"
    times = [_table(rows, {whole: _named, **kinds})] * (len(kinds) > FEW and busy > IDLE)
    return [*clients, *times, *_by_group(rows)]


def _by_group(rows: Sequence[Row]) -> list[Table]:
    """Tabulate contributions and transfers of every group of sampled clients."""
    groups = [
        {"label": "" if place else row["label"], **group}
        for row in rows
        for place, group in enumerate(row.get("clients") or ())
    ]
    if not any(group["group"] for group in groups):
        return []
    clients = sum(group["clients"] for group in groups) / sum(bool(g["label"]) for g in groups)
    cells: dict[str, Cell] = {
        "by group": _named,
        "group": lambda group: group["group"] or "others",
        "% of\nclients": lambda group: _shares([group["clients"] / clients]),
        "% of\ngradients": lambda group: _shares([group["gradients"]]),
    }
    return [_table(groups, cells)]


def _sampled(rows: Sequence[Row]) -> bool:
    return any(row.get("gradients_per_hour") for row in rows)


def _kinds(rows: Sequence[Row]) -> list[str]:
    return [kind for kind in TIMES if any(kind in row["breakdown"] for row in rows)]


def in_units(
    rows: Sequence[Row], target: float | None = None, first: str | None = None
) -> list[Table]:
    """Tabulate amounts such as tokens and cost; [] if none is set."""
    what, cells = consumption.cells(rows, target)
    broken = {
        heading.replace(" (", "\n(").replace("-", "-\n").replace("/c", "/\nc"): partial(
            _stacked, cell
        )
        for heading, cell in cells.items()
        if not (first and heading == "tokens" and len({*map(cell, rows)}) == 1)  # shown above
    }
    return [_table(rows, {first or what: _named, **broken})] if cells else []


def _stacked(cell: Cell, row: Row) -> str:
    """Put an interval and its level beneath the value, so that columns fit into 80."""
    return cell(row).replace(" (", "\n").replace("%: ", "%:\n").removesuffix(")")


def _beneath(cell: Cell, row: Row) -> str:
    """Put an interval beneath its value, because labels need the room."""
    return cell(row).replace(" (", "\n(").replace(" %: ", " %:\n")


def _heading(column: ResultColumn, target: object, usual: str) -> str:
    """Return a column's heading, without the line on intervals if it has none."""
    return column.heading.format(target=target, kind=usual).removesuffix("\n()")


def _named(row: Row) -> str:
    return f"{row['label']} (a bound)" if row.get("bound") else str(row["label"])


def sweep(result: "SweepResult") -> Table:
    """Tabulate the first `SWEEP_ROWS` of `distinct` rows: varied keys, and results."""
    rows, columns = distinct(result)
    rows, ranked = rows[:SWEEP_ROWS], ranked_by(result.rows)
    columns["algorithm"] = _algorithm(result)
    texts = len(columns)
    keys = _sweep_keys(result.rows)
    for column in RESULT_COLUMNS:
        if SWEEP not in column.shown_in or column.key not in keys:
            continue
        heading, cell = column.heading, partial(_value_of, column)
        if column.key == "time_to_target_s":
            target = result.scenario.run.target_loss
            constant = target is not None and "run.target_loss" not in result.vary
            times = (row for row in rows if row[column.key] is not None)
            usual = wording.usual(estimate_of(row, column.key) for row in times)
            heading = _heading(column, f"loss {target:g}" if constant else "target", usual)
            cell = partial(_beneath, partial(_to_target, usual))
        elif column.key == "final_loss":
            cell = partial(_final_of_sweep, loss_digits(row[column.key] for row in rows))
        if column is ranked and any(_ends_of(row, column.key) for row in rows):
            cell, heading = partial(_with_ends, cell, column.key), f"{heading}\n({USUAL})"
        columns[heading] = cell
    shares = [f"{kind}_share" for kind in TIMES if f"{kind}_share" in result.rows[0]]
    if "gradients_per_hour" not in keys:
        heading = _spent([share.removesuffix("_share") for share in shares])
        columns[heading] = lambda row: _shares(row[share] for share in shares)
    return _table(rows, columns, texts)


def _sweep_keys(rows: Sequence[Row]) -> set[str]:
    """Return the keys of a sweep's columns, as many as there is room for."""
    stated_keys = {key for row in rows for key, value in row.items() if value is not None}
    keys = {"seconds_per_step", *stated_keys}
    keys |= {"time_to_target_s"} if "reached" in stated_keys else set()
    keys |= {"final_loss"} if any(row["diverged"] for row in rows) else set()
    return keys - ({"seconds_per_step", "rounds"} if "gradients_per_hour" in stated_keys else set())


def _algorithm(result: "SweepResult") -> Cell:
    """Return the name of a row's algorithm: its program, if all programs differ."""
    pairs = {(row["label"], row["program"]) for row in result.rows}
    key = "program" if len({program for _, program in pairs}) == len(pairs) else "label"
    return lambda row: _named({"label": row[key], "bound": row["label"] in result.bounds})


def distinct(result: "SweepResult") -> tuple[list[Row], dict[str, Cell]]:
    """Return one row per algorithm and its varied values, and the varied columns."""
    varied = [key for key, values in result.vary.items() if len(values) > 1] or [*result.vary]
    programs = {row["program"] for row in result.rows}
    columns = {_short(key, varied): _varied(key, programs) for key in varied}
    rows = dict[tuple[str, ...], Row]()
    for row in result.rows:
        rows.setdefault((row["label"], *(cell(row) for cell in columns.values())), row)
    return [*rows.values()], columns


def _value_of(column: ResultColumn, row: Row) -> str:
    return column.show(None if row[column.key] is None else estimate_of(row, column.key).value)


def _with_ends(cell: Cell, key: str, row: Row) -> str:
    return "\n".join(filter(None, [cell(row), _ends_of(row, key)]))


def _ends_of(row: Row, key: str) -> str:
    """Return the interval of a loss or a step time if it is wide enough to show."""
    untold = row[key] is None or key == "time_to_target_s"  # its cell shows it
    if untold or (estimate := estimate_of(row, key)).narrow:
        return ""
    low, high = estimate.span
    if key == "final_loss":
        return f"{loss_in_table(low)}–{loss_in_table(high)}"
    return wording.within(estimate.value, [low, high])


def _spent(kinds: Sequence[str]) -> str:
    """Return the heading of shares of time, with two kinds per line."""
    pairs = ("/".join(kinds[place : place + 2]) for place in range(0, len(kinds), 2))
    return "/\n".join(pairs) + " %"


def _short(key: str, keys: Iterable[str]) -> str:
    """Return the last part of a key that no other key ends with."""
    parts = key.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
    return next((end for end in ends if sum(f".{k}".endswith(f".{end}") for k in keys) == 1), key)


def _final_of_sweep(digits: int, row: Row) -> str:
    """Return a final loss, or how many seeds diverged."""
    if lost := row["diverged"]:
        return "diverged" if lost == row["seeds"] else f"{lost} of {row['seeds']} diverged"
    return loss_in_table(row["final_loss"], digits)


def _varied(key: str, programs: Collection[str]) -> Cell:
    """Return the value of a varied key; "-" for programs without the key."""
    table, name, *_ = [*key.split("."), ""]
    of_one = table == "algorithm" and name in programs
    return lambda row: toml(row[key]) if not of_one or row["program"] == name else "-"


def _text(key: str) -> Cell:
    return lambda row: toml(row[key])


def _to_target(usual: str, row: Row) -> str:
    if row["reached"] is None:
        return "-"
    if row["reached"] < row["seeds"]:
        return f"{row['reached']} of {row['seeds']} seeds" if row["reached"] else "not reached"
    return wording.cell(estimate_of(row, "time_to_target_s"), "s", usual)


def tune(result: "TuneResult") -> list[Table | str]:
    """Tabulate the leading configurations of a search, and the cost of wrong inputs."""
    verdict, ranked = result.verdict, result.ranked
    also = [*verdict.candidates[:TUNE_ROWS], verdict.pick, result.reference, ALONE]
    shown = ranked[:TUNE_ROWS]
    shown += [one for one in ranked if one not in shown and one.candidate.label in also]
    rows = result.rows(shown)
    rows.sort(key=lambda row: row["label"] != verdict.pick)
    tables = [_ranking(result, rows), *in_units(rows, first="configuration")]
    if result.regret:
        tables.append(_regrets(result.regret))
    return [*tables, *regret.notes(result.regret)]


def _ranking(result: "TuneResult", rows: Sequence[Row]) -> Table:
    """Return the table of configurations; the pick is bold."""
    aim, verdict = result.objective, result.verdict
    usual = wording.usual(stated(row, "value") for row in rows)
    digits = loss_digits(row["value"] for row in rows)

    def value(row: Row) -> str:
        within = wording.qualified(stated(row, "value"), aim.unit, usual)
        return _reached_value(aim, row, digits) + (f"\n{within}" if within != "-" else "")

    def named(row: Row) -> str:
        word = mark(verdict.pick, verdict.candidates, row)
        return f"{row['label']} ({word})" if word else str(row["label"])

    columns: dict[str, Cell] = {"configuration": named}
    heading = "\n".join(wrap(aim.says, HEADING))
    columns[f"{heading}\n({usual})" if usual else heading] = value
    if any(row["to_reference"] for row in rows):
        above = "\n".join([*wrap(f"loss above {result.reference}", HEADING), f"({USUAL})"])
        columns[above] = partial(_beneath, wording.above_reference)
    if judged := wording.judged(rows):
        words, unit, estimate = judged
        lines = [*wrap(words, 11), f"({USUAL})"]
        columns["\n".join(lines)] = partial(_beneath, lambda row: wording.cell(estimate(row), unit))
    columns["seeds"] = _text("seeds")
    if any(row["basis"] for row in rows):  # too few columns are left for both
        del columns["seeds"]
        columns["basis"] = lambda row: row["basis"] or "-"
    return _table(rows, columns, strong=verdict.pick)


def _reached_value(objective: Any, row: Row, digits: int) -> str:
    """Return a configuration's value, or the reason why it has none."""
    if row["reached"] == row["seeds"]:
        return str(objective.show(row["value"], digits))
    if row["diverged"]:
        return f"{row['diverged']} of {row['seeds']} seeds diverged"
    if row["stopped"] == "cut":
        bound = objective.show(row["at_least"] or None)
        missed = "beyond the cap" if objective.cap else "not reached"
        return missed if bound == "-" else f"above {bound}"
    return f"{row['reached']} of {row['seeds']} seeds reached it"


def _regrets(rows: Sequence[Row]) -> Table:
    """Tabulate the cost of every candidate if an input is wrong."""
    columns: dict[str, Cell] = {"% above the best\nof these, with": _named}
    for what in dict.fromkeys(world["input"] for world in rows):
        worlds = [world for world in rows if world["input"] == what]
        changes = ", ".join(f"{100 * world['change']:+z.0f} %" for world in worlds)
        columns[f"{what}\n{changes}" if what else "as\nwritten"] = partial(_regret, worlds)
    return _table([{"label": label} for label in rows[0]["values"]], columns)


def _regret(worlds: Sequence[Row], row: Row) -> str:
    return ", ".join(regret.cost(world, row["label"]) for world in worlds)


def fit(result: "FitResult") -> list[Table]:
    """Tabulate the fitted keys, the targets used, and the targets predicted."""

    def ends(row: Row, key: str) -> str:
        return "not determined" if row[key] is None else " to ".join(map(number, row[key]))

    keys: dict[str, Cell] = {
        "key": _text("key"),
        "value": lambda row: f"{row['value']:.5g} {row['unit']}",
        f"{USUAL} interval": lambda row: ends(row, "interval"),
        "range": lambda row: f"{ends(row, 'range')} {row['unit']}",
    }
    cells: dict[str, Cell] = {
        "target": _text("target"),
        "wanted": lambda row: f"{number(row['value'])} ± {number(row['tolerance'])}",
        "found": lambda row: number(row["found"]),
        "off by\n(tolerances)": lambda row: f"{row['residual']:+z.2f}",
        "": _text("verdict"),
    }
    held = {"held out": cells["target"], **cells, "predicted": lambda row: ends(row, "interval")}
    del held["target"], held["found"]
    pairs = ((result.keys, keys), (result.fitted, cells), (result.held_out, held))
    return [_table(rows, columns, len(columns)) for rows, columns in pairs if rows]


def theory(document: Row) -> list[Table | str]:
    """Tabulate the document of `paceline theory`, without its notes."""
    keys = _headings()
    del keys["claims"]
    tables = [
        _table(rows, {heading: _value(key) for heading, key in columns.items() if key in there})
        for name, columns in keys.items()
        if (rows := document[name])
        for there in [{key for row in rows for key, value in row.items() if value is not None}]
    ]
    return [_hide(document["hide"]), *tables]


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


def toml(value: Any) -> str:
    """Format a default like a scenario; texts become bare words."""
    if isinstance(value, Mapping):
        return messages.toml({**value})
    if value is None or isinstance(value, str):
        return value or "none"
    return messages.toml([*value] if isinstance(value, tuple) else value)


def claims(rows: Sequence[Row]) -> Table | str:
    """Tabulate the claims of `paceline reproduce`: the paper's number, ours, and the verdict."""
    if not rows:
        return "No claim of these papers is only about time."
    columns = {heading: _value(key) for heading, key in _headings()["claims"].items()}
    return _table(rows, columns, len(columns))


def _headings() -> dict[str, dict[str, str]]:
    """Return keys of documents by column heading, for every table of tables.toml."""
    return tomllib.loads(untrusted.text(TABLES))


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
    say = {"seconds_per_step": human, "duration": human, "time": _moment, "switch": human}.get(
        key, _plain
    )
    return lambda row: say(row[key])


def _moment(seconds: float) -> str:
    """Format a time in a readable unit and in seconds: "19.2 min (1149 s)"."""
    exact = f"{seconds:.0f} s" if seconds >= 1000 else f"{seconds:#.4g} s"
    return exact if seconds < 120 else f"{human(seconds)} ({exact})"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else number(value) if isinstance(value, float) else str(value)


def _shares(parts: Iterable[float | None]) -> str:
    return "/".join("-" if part is None else f"{100 * part:z.0f}" for part in parts)


def _staleness(counted: Row | None) -> str:
    if counted is None or not counted["max"]:
        return "-" if counted is None else "0"
    return f"{number(counted['mean'])}/{counted['max']}"
