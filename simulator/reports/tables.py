"""The columns of result tables, the same on the terminal and on the report page.

A column is a heading, which may have line breaks, and a function that formats the cell of a row. A
cell's interval follows its value in brackets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ..inputs import messages
from ..results import wording
from ..results.columns import (
    RESULT_COLUMNS,
    SIMULATE,
    STATED,
    SWEEP,
    ResultColumn,
    estimate_of,
    ranked_by,
)
from ..results.intervals import USUAL, stated
from ..results.run import TIMES
from ..results.statistics import format_loss, loss_digits, loss_in_table, number, with_unit
from ..results.verdict import mark
from ..studies.tune.objective import PACES

Row = Mapping[str, Any]
Cell = Callable[[Row], str]
Columns = dict[str, Cell]

OF_CLIENTS = (
    "rounds", "seconds_per_round", "reports_per_round", "clients_at_work",
    "gradients_per_hour", "useful_share",
)  # fmt: skip
TO_TARGET = {"rounds_to_target", "client_bytes_to_target"}
FEW = 3  # most kinds of time that fit one column


def leading(parts: dict[str, Any], most: int, also: Iterable[str | None]) -> set[str]:
    """Return the labels to show of a ranking: its first `most`, every part's first, and `also`.

    `parts`: the part of the cluster by label, the best first.
    """
    firsts = {part: label for label, part in reversed(parts.items())}
    return parts.keys() & {*islice(parts, most), *firsts.values(), *also}


def of_runs(
    rows: Sequence[Row],
    target: float | None,
    question: tuple[str, str, Mapping[str, str]],
    left_out: Collection[str] = (),
) -> Columns:
    """Return the columns of algorithms, with time, loss, age and use of time.

    `rows`: summaries with `seeds`, their number; `question`: see `columns.in_question`; `left_out`:
    keys of columns that are shown elsewhere.
    """
    usual = wording.usual(stated(row["time_to_target"]) for row in rows if row["time_to_target"])
    digits = loss_digits(row["loss"]["last"] for row in rows)
    compared, what, texts = question
    columns: Columns = {"algorithm": named}
    for column in _with_values(rows, target, {*left_out, "seconds_per_gradient"} - {compared}):
        quantity = STATED.get(column.key)
        heading = column.heading.format(target=target and f"loss {target:g}")
        of_one_run = any((row.get("interval90") or {}).get(quantity) for row in rows)
        kind = usual if column.key == "time_to_target_s" and not of_one_run else USUAL
        cell: Cell = partial(column.cell, usual=kind, digits=digits)
        if column.key == compared and not of_one_run:
            heading = what.replace(" at ", " at\n") or heading
            cell = partial(_compared, texts, cell)
        columns[_with_kind(heading, cell, rows, kind)] = cell
    if any((row.get("staleness") or {}).get("max") for row in rows):
        columns["stale\nmean/max"] = _staleness
    kinds = times(rows)
    if len(kinds) <= FEW:
        columns[_spent(kinds)] = lambda row: shares(map(row["breakdown"].get, kinds))
    return columns


def _with_values(
    rows: Sequence[Row], target: float | None, left_out: Collection[str]
) -> Iterator[ResultColumn]:
    """Yield the columns with a value in some row, or with a reason why it is missing."""
    lost = any(row.get("diverged") for row in rows)
    always = {"seconds_per_step": True, "time_to_target_s": target, "final_loss": lost}
    for column in RESULT_COLUMNS:
        there = always.get(column.key) or any(column.of_summary(row) is not None for row in rows)
        if there and column.key not in left_out and SIMULATE in column.shown_in:
            yield column


def named(row: Row) -> str:
    """Return the name of a row: `shown` if it has this key, else its label."""
    name = row.get("shown") or row["label"]
    return f"{name} (a bound)" if row.get("bound") else str(name)


def _with_kind(heading: str, cell: Cell, rows: Sequence[Row], kind: str) -> str:
    """Return a column's heading, with the kind of its intervals if some cell has one."""
    return heading + f"\n({kind})" * any("(" in cell(row) for row in rows)


def _compared(texts: Mapping[str, str], cell: Cell, row: Row) -> str:
    """Return the value that the verdict compares; without one, why it is missing."""
    return texts.get(row["label"]) or cell(row)


def _staleness(row: Row) -> str:
    counted = row.get("staleness")
    if not counted or not counted["max"]:
        return "0" if counted else "-"
    return f"{number(counted['mean'])}/{counted['max']:g}"


def times(rows: Sequence[Row]) -> list[str]:
    """Return the kinds of time that workers spend."""
    return [kind for kind in TIMES if any(kind in row["breakdown"] for row in rows)]


def _spent(kinds: Sequence[str]) -> str:
    """Return the heading of shares of time, which names two kinds per line."""
    pairs = ("/".join(kinds[place : place + 2]) for place in range(0, len(kinds), 2))
    return "/\n".join(pairs) + " %"


def shares(parts: Iterable[float | None]) -> str:
    """Format shares in per cent: "64/-/36"."""
    return "/".join("-" if part is None else f"{100 * part:z.0f}" for part in parts)


def of_search(rows: Sequence[Row], tune: Row) -> Columns:
    """Return the columns of a search's configurations.

    `tune`: the keys objective, measure, unit and verdict of its document.
    """
    usual = wording.usual(stated(row, "value") for row in rows)
    digits = loss_digits(row["value"] for row in rows)
    name, says, unit, verdict = (tune[key] for key in ("objective", "measure", "unit", "verdict"))

    def show(value: float | None) -> str:
        of_loss = name.startswith("loss-")
        return format_loss(value, digits) if of_loss else with_unit(value, unit)

    def value(row: Row) -> str:
        if row["reached"] == row["seeds"]:
            _, bracket, ends = wording.cell(stated(row, "value"), unit, usual).partition(" (")
            return show(row["value"]) + bracket + ends
        if row["diverged"]:
            return f"{row['diverged']} of {row['seeds']} seeds diverged"
        if row["stopped"] == "cut" or not row["reached"]:
            missed = "beyond the cap" if name in PACES else "not reached"
            return f"above {show(row['at_least'])}" if row["at_least"] else missed
        return f"{row['reached']} of {row['seeds']} seeds reached it"

    def configuration(row: Row) -> str:
        word = mark(verdict["pick"], verdict["candidates"], row)
        return f"{row['label']} ({word})" if word else str(row["label"])

    columns: Columns = {"configuration": configuration}
    columns[f"{says}\n({usual})" if usual else says] = value
    if base := next((row["to_reference"] for row in rows if row["to_reference"]), None):
        columns[f"loss above {base['label']}\n({USUAL})"] = partial(
            wording.above_reference, "to_reference", "interval"
        )
    if judged := wording.judged(rows):
        words, of, estimate = judged
        columns[f"{words}\n({USUAL})"] = lambda row: wording.cell(estimate(row), of)
    if any(row.get("basis") for row in rows):  # too few columns are left for both
        columns["basis"] = lambda row: row.get("basis") or "-"
    else:
        columns["seeds"] = lambda row: f"{row['seeds']:g}"
    return columns


def of_sweep(
    rows: Sequence[Row],
    vary: Mapping[str, Sequence[Any]],
    bounds: Sequence[str],
    target: object,
    name: str = "label",
) -> Columns:
    """Return the columns of a sweep: varied keys first, then results.

    `vary`: the values of each key; `bounds`: algorithms that are never picked; `name`: the key that
    names algorithms.
    """
    columns, ranked, keys = varied(rows, vary), ranked_by(rows), _sweep_keys(rows)
    columns["algorithm"] = lambda row: named({"label": row[name], "bound": row["label"] in bounds})
    digits = loss_digits(row["final_loss"] for row in rows)
    for column in RESULT_COLUMNS:
        if SWEEP not in column.shown_in or column.key not in keys:
            continue
        heading, kind = column.heading, USUAL
        if column.key == "time_to_target_s":
            constant = target is not None and "run.target_loss" not in vary
            reached = (row for row in rows if row[column.key] is not None)
            kind = wording.usual(estimate_of(row, column.key) for row in reached)
            heading = heading.format(target=f"loss {target:g}" if constant else "target")
        wide = TO_TARGET | {"final_accuracy"} if "reports_per_round" in keys else set[str]()
        cell = partial(_of_point, column, kind, digits, column.key in {*wide, ranked.key})
        columns[_with_kind(heading, cell, rows, kind)] = cell
    kinds = [kind for kind in TIMES if f"{kind}_share" in rows[0]]
    if "reports_per_round" not in keys:
        columns[_spent(kinds)] = lambda row: shares(row[f"{kind}_share"] for kind in kinds)
    return columns


def varied(rows: Sequence[Row], vary: Mapping[str, Sequence[Any]]) -> Columns:
    """Return the columns of varied keys; a parameter belongs to its program alone."""
    keys = [key for key, values in vary.items() if len(values) > 1] or [*vary]
    programs = {row["program"] for row in rows}
    return {_short(key, keys): _varied(key, programs) for key in keys}


def _short(key: str, keys: Iterable[str]) -> str:
    """Return the last part of a key that no other key ends with."""
    parts = key.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
    return next((end for end in ends if sum(f".{k}".endswith(f".{end}") for k in keys) == 1), key)


def _varied(key: str, programs: Collection[str]) -> Cell:
    """Return the cells of a varied key; "-" for programs without the key."""
    table, name, *_ = [*key.split("."), ""]
    of_one = table == "algorithm" and name in programs

    def cell(row: Row) -> str:
        value = row[key]
        if of_one and row["program"] != name:
            return "-"
        return toml(value)

    return cell


def toml(value: Any) -> str:
    """Format a value like a scenario; texts become bare words."""
    if isinstance(value, Mapping):
        return messages.toml({**value})
    if value is None or isinstance(value, str):
        return value or "none"
    return messages.toml([*value] if isinstance(value, tuple) else value)


def _sweep_keys(rows: Sequence[Row]) -> set[str]:
    """Return the keys of a sweep's columns, as many as there is room for."""
    keys = {key for row in rows for key, value in row.items() if value is not None}
    keys |= {"seconds_per_step"}
    keys |= {"time_to_target_s"} if "reached" in keys else set()
    keys |= {"final_loss"} if any(row["diverged"] for row in rows) else set()
    keys -= {"seconds_per_step", "rounds"} if "gradients_per_hour" in keys else set()
    return keys - {*OF_CLIENTS[4:]} if keys & TO_TARGET else keys


def _of_point(column: ResultColumn, usual: str, digits: int, ends: bool, row: Row) -> str:
    """Return a cell of a sweep, with its interval if wide (`ends`), or why it has no value."""
    key, seeds, lost, reached = column.key, row["seeds"], row["diverged"], row.get("reached")
    if key == "final_loss" and lost:
        return "diverged" if lost == seeds else f"{lost:g} of {seeds:g} diverged"
    if key == "time_to_target_s" and reached is not None and reached < seeds:
        return f"{reached:g} of {seeds:g} seeds" if reached else "not reached"
    if row.get(key) is None:
        return "-"
    estimate = estimate_of(row, key)
    if key == "time_to_target_s":
        return wording.cell(estimate, "s", usual)
    shown = loss_in_table(row[key], digits) if key == "final_loss" else column.show(estimate.value)
    if not ends or estimate.narrow:
        return shown
    return shown + "".join(wording.cell(estimate, column.unit).partition(" (")[1:])
