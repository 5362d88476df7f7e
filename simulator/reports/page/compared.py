"""Tables that compare algorithms, RUNs, or predictions and measurements."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...inputs.messages import quoted, toml
from ...results import consumption, wording
from ...results.columns import BY_KEY, PAGE, RESULT_COLUMNS
from ...results.intervals import MEDIAN, USUAL, stated
from ...results.statistics import human, number
from .. import terminal
from .parts import Cell, PageSection, PageTable, percent
from .reading import FoundRun
from .sentences import RunVerdict
from .series import Series, shared

PAIRS = {  # quantities of a comparison that are shown with both values
    "seconds_per_step": "time per step",
    "time_to_target": "time to target",
}
NOT_COUNTED = " (not counted)"
ERRORS = {  # quantities that are shown with their error only
    "loss_at_half": "loss half-way",
    "loss_at_end": "loss at the end",
    "bytes_per_step": "bytes per step",
}


def results(
    lines: Sequence[Series], target: float | None, picks: set[tuple[str, str]]
) -> PageTable:
    """Tabulate each algorithm's time to target with its interval, and its other columns."""
    several = target is not None
    special = ("time_to_target_s", "seconds_per_step")  # the first columns, and the one at the end
    shown = [
        column
        for column in RESULT_COLUMNS
        if PAGE in column.shown_in and column.key not in special
        if any(column.of_summary(line.row) is not None for line in lines)
    ]
    columns = ["algorithm"]
    if several:
        columns += [f"time to loss {target:g}", USUAL, "reached"]
    within = {line.name: (line.row.get("interval90") or {}).get("loss") for line in lines}
    words = {column.key: column.words for column in shown}
    words |= {"final_loss": f"final loss ({USUAL})"} if any(within.values()) else {}
    known = any((line.row.get("interval90") or {}).get("seconds_per_step") for line in lines)
    pace = BY_KEY["seconds_per_step"].words + f" ({USUAL})" * known
    columns += [*words.values(), pace, "steps"]
    rows = []
    for line in lines:
        row, seeds = line.row, len(line.runs)
        strong = (line.found.name, line.label) in picks
        name = f"{line.name} (a bound)" if row["bound"] else line.name
        cells: list[Cell | str] = [Cell(name, strong=strong)]
        if several:
            times = row["time_to_target"] or {}
            late = "not with every seed" if times.get("reached") else "not reached"
            got = wording.of_one(row, "time_to_target") if times.get("mean") is not None else None
            cells.append(late if got is None else human(got.value))
            cells.append("-" if got is None else wording.qualified(got, "s"))
            cells.append(f"{times.get('reached', 0)} of {seeds}")
        for column in shown:
            value = column.of_summary(row)
            share = column.key == "final_accuracy"
            ends = column.key == "final_loss" and within[line.name]
            said = f" ({number(ends[0])}–{number(ends[1])})" if ends else ""
            cells.append(percent(value, 1) if share else column.show(value) + said)
        pace, *ends = ["stands still"] if row["stall"] else terminal.paced(row).split("\n")
        pace += f" ({ends[0]})" if ends else ""
        rows.append([*cells, pace, f"{row['steps']:.0f}" if row["steps"] is not None else "-"])
    same = shared([*dict.fromkeys(line.label for line in lines)])
    medians = any(stated(line.row["seconds_per_step"]).of == MEDIAN for line in lines)
    said = "median" if medians else "mean"
    beside = f", all of them {same}" if same else ""
    return PageTable(f"Each algorithm{beside}, {said} over seeds; the pick is bold", columns, rows)


def in_units(
    rows: Sequence[tuple[str, Mapping[str, Any]]], caption: str, target: float | None = None
) -> list[PageTable]:
    """Tabulate named rows in units of the trade; no table where none is set."""
    what, cells = consumption.cells([row for _, row in rows], target)
    table = [(name, *(cell(row) for cell in cells.values())) for name, row in rows]
    return [PageTable(caption.format(what), ("algorithm", *cells), table)] if cells else []


def comparison(found: FoundRun, place: int) -> PageSection:
    """Tabulate predictions beside measurements, with their errors."""
    document = found.comparison
    assert document is not None
    median = document.get("median_absolute_error")
    heading, basis = against(document), document["basis"]
    if median is not None:
        heading = (
            f"Predicted times per step are off by {percent(median, 1)} (median)"
            if basis == "measured"
            else f"{heading}: times per step differ by {percent(median, 1)} (median)"
        )
    known: dict[str, dict[str, Any]] = {}
    for row in document["rows"]:
        known.setdefault(row["algorithm"], {})[row["quantity"]] = row
    there = {row["quantity"] for row in document["rows"]}
    pairs = {key: name for key, name in PAIRS.items() if key in there}
    errors = {key: name for key, name in ERRORS.items() if key in there}
    columns = ["algorithm"]
    for name in pairs.values():
        columns += [f"{name}, predicted", basis, "error"]
    columns += [f"{name}, error" for name in errors.values()]
    rows = []
    for label, quantities in known.items():
        out = "" if all(row.get("counted", True) for row in quantities.values()) else NOT_COUNTED
        cells = [label + out]
        for key in pairs:
            row = quantities.get(key) or {}
            cells += [human(row.get("predicted")), human(row.get("measured")), _error(row)]
        rows.append([*cells, *(_error(quantities.get(key) or {}) for key in errors)])
    caption = f"Errors in percent of the {basis} value; in brackets: within the spread of seeds"
    table = PageTable(caption, columns, rows)
    return PageSection(f"comparison-{place}", heading, document["sentence"], tables=[table])


def against(document: Mapping[str, Any]) -> str:
    """Say what a comparison compares."""
    sides = (
        ("Predicted", "measured")
        if document["basis"] == "measured"
        else ("Simulation", "simulation")
    )
    return " against ".join(sides)


def _error(row: Mapping[str, Any]) -> str:
    if row.get("error") is None:
        return "-"
    said = f"{100 * row['error']:+z.1f} %"
    return f"({said})" if row.get("within_noise") else said


def picks(verdicts: Sequence[RunVerdict]) -> PageSection:
    """Tabulate the pick of each RUN."""
    picked = [_picked(each) for each in verdicts]
    names = dict.fromkeys(picked)
    asked = {each.asked for each in verdicts if each.pick}
    heading = "The picks differ: " + ", ".join(names)
    if len(names) == 1:
        heading = f"Every run picks {next(iter(names))}"
    elif len(asked) > 1:
        heading = "Each run answers its own question"
    rows = [
        (each.run, Cell(name, strong=True), each.asked or "-", each.value, each.within)
        for each, name in zip(verdicts, picked, strict=True)
    ]
    columns = ("run", "pick", "by", "value", USUAL)
    return PageSection(
        "picks", heading, tables=[PageTable("The pick of each run", columns, rows, 2)]
    )


def _picked(each: RunVerdict) -> str:
    if each.pick is None:
        return "none"
    return each.pick if each.decided else f"{each.pick} (undecided)"


def differences(every: Sequence[FoundRun]) -> PageTable:
    """Tabulate the keys whose values differ between the scenarios."""
    rows = differing([found.scenario.get("table") or {} for found in every])
    rows += [
        (name, *values)
        for name, values in (
            ("seeds", [str(len(found.document.get("seeds") or ()) or "-") for found in every]),
            ("engine", [str(found.document.get("engine") or "-") for found in every]),
        )
        if len(set(values)) > 1
    ]
    heads = ("key", *(found.name for found in every))
    return PageTable("What differs between the scenarios", heads, rows, texts=len(heads))


def differing(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return each key whose values differ between scenarios' tables, and these values."""
    every = [by_dotted_key(table) for table in tables]
    keys = dict.fromkeys(key for table in every for key in table if not key.startswith("title"))
    rows = [(key, *(toml(each[key]) if key in each else "-" for each in every)) for key in keys]
    return [row for row in rows if len({*row[1:]}) > 1]


def by_dotted_key(table: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Return a scenario's values by dotted keys; a table in a list by label, name or index."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "dist" not in value:
            found |= by_dotted_key(value, f"{head}{key}.")
        elif _tables(value):
            names = [each.get("label") or each.get("name") for each in value]
            for number_, (each, name) in enumerate(zip(value, names, strict=True)):
                where = name if name and names.count(name) == 1 else number_
                found |= by_dotted_key(each, f"{head}{key}.{where}.")
        else:
            found[f"{head}{key}"] = value
    return found


def _tables(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(v, Mapping) for v in value)


def document(table: Mapping[str, Any]) -> str:
    """Write a scenario as TOML."""
    return "\n".join(_toml(table, "")).strip() + "\n"


def _toml(table: Mapping[str, Any], head: str) -> list[str]:
    lines, inner = [], []
    for key, value in table.items():
        if _tables(value):
            for each in value:
                inner += ["", f"[[{head}{key}]]", *_assignments(each)]
        elif isinstance(value, Mapping) and not head and key != "tune":
            inner += ["", f"[{key}]", *_toml(value, f"{key}.")]
        elif isinstance(value, Mapping) and not head:
            inner += ["", f"[{key}]", *_assignments(value)]
        else:
            lines.append(f"{quoted(key)} = {toml(value)}")
    return lines + inner


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{quoted(key)} = {toml(value)}" for key, value in table.items()]
