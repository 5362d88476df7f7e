"""Tables that compare algorithms, RUNs, or predictions and measurements."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...inputs.tables import differing
from ...results import consumption, wording
from ...results.columns import PAGE, RESULT_COLUMNS, ResultColumn
from ...results.intervals import MEDIAN, USUAL, stated
from ...results.statistics import human, number
from .. import terminal
from .parts import Cell, PageSection, PageTable, percent
from .reading import FoundRun
from .series import Series, shared

PAIRS = {  # quantities of a comparison that are shown with both values
    "seconds_per_step": "time per step",
    "time_to_target": "time to target",
}
KEYS = {"final_loss": "loss"}  # of intervals, where they are not those of columns
NOT_COUNTED = " (not counted)"
ERRORS = {  # quantities that are shown with their error only
    "loss_at_half": "loss half-way",
    "loss_at_end": "loss at the end",
    "bytes_per_step": "bytes per step",
}


def results(
    lines: Sequence[Series], target: float | None, picks: set[tuple[str, str]]
) -> PageTable:
    """Tabulate each algorithm's time to target, its other columns, and what it uses."""
    columns: dict[str, Callable[[Series], Cell | str]] = {"algorithm": partial(_named, picks)}
    if target is not None:
        columns[f"time to loss {target:g} ({USUAL})"] = _time_to_target
    stating = [line.row.get("interval90") or {} for line in lines]
    for column in sorted(RESULT_COLUMNS, key=lambda column: column.key == "seconds_per_step"):
        key = KEYS.get(column.key, column.key)
        there = any(column.of_summary(line.row) is not None for line in lines)
        if PAGE in column.shown_in and column.key != "time_to_target_s" and there:
            level = f" ({USUAL})" * any(known.get(key) for known in stating)
            columns[column.words + level] = partial(_value, column)
    columns["steps"] = lambda line: "-" if line.row["steps"] is None else f"{line.row['steps']:.0f}"
    what, amounts = consumption.cells([line.row for line in lines], target)
    for heading, cell in amounts.items():
        columns[heading] = partial(_amount, cell)
    rows = [[cell(line) for cell in columns.values()] for line in lines]
    same = shared([*dict.fromkeys(line.label for line in lines)])
    medians = any(stated(line.row["seconds_per_step"]).of == MEDIAN for line in lines)
    caption = f"Each algorithm{f', all of them {same}' if same else ''}, "
    caption += f"{'median' if medians else 'mean'} over seeds"
    caption += f"; amounts {what}" if amounts else ""
    return PageTable(f"{caption}; the pick is bold", [*columns], rows).unvaried()


def _named(picks: set[tuple[str, str]], line: Series) -> Cell:
    name = f"{line.name} (a bound)" if line.row["bound"] else line.name
    return Cell(name, strong=(line.found.name, line.label) in picks)


def _amount(cell: consumption.Cell, line: Series) -> str:
    return cell(line.row)


def _time_to_target(line: Series) -> str:
    """Return the time to the target with its interval, and how many seeds reached it if not all."""
    times = line.row["time_to_target"] or {}
    reached = times.get("reached", 0)
    if times.get("mean") is None:
        return f"{reached} of {len(line.runs)} seeds" if reached else "not reached"
    return wording.cell(wording.of_one(line.row, "time_to_target"), "s")


def _value(column: ResultColumn, line: Series) -> str:
    value = column.of_summary(line.row)
    if column.key == "seconds_per_step":
        time, *ends = terminal.step_time(line.row).split("\n")
        return f"{time} ({ends[0]})" if ends else time
    known = column.key == "final_loss" and (line.row.get("interval90") or {}).get("loss")
    beside = f" ({number(known[0])}–{number(known[1])})" if known else ""
    return percent(value, 1) if column.key == "final_accuracy" else column.show(value) + beside


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
