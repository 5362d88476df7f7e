"""Tables that compare algorithms, RUNs, or predictions and measurements."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...inputs.tables import differing
from ...results import consumption
from ...results.columns import BY_KEY, PAGE, RESULT_COLUMNS, STATED, ResultColumn
from ...results.intervals import MEDIAN, USUAL, stated
from ...results.statistics import format_loss, human, percent, with_unit
from .parts import PageSection, PageTable
from .reading import FoundRun
from .series import Series, shared

TIMES = ("seconds_per_step", "time_to_target")  # quantities of a comparison in seconds
QUANTITIES = {
    "seconds_per_step": "time per step",
    "time_to_target": "time to target",
    "loss_at_half": "loss half-way",
    "loss_at_end": "loss at the end",
    "bytes_per_step": "bytes per step",
}
SHOWN = 20  # rows of a comparison that are not folded
NOT_COUNTED = " (not counted)"


def results(
    lines: Sequence[Series], target: float | None, picks: set[tuple[str, str]]
) -> PageTable:
    """Tabulate each algorithm's time to target, its other columns, and what it uses."""
    columns: dict[str, Callable[[Series], str]] = {"algorithm": _named}
    if target is not None:
        columns[f"time to loss {target:g} ({USUAL})"] = partial(_value, BY_KEY["time_to_target_s"])
    columns |= _measures(lines)
    columns["steps"] = lambda line: "-" if line.row["steps"] is None else f"{line.row['steps']:.0f}"
    what, amounts = consumption.cells([line.row for line in lines], target)
    for heading, cell in amounts.items():
        columns[heading] = partial(_used, cell)
    rows = [[cell(line) for cell in columns.values()] for line in lines]
    same = shared([*dict.fromkeys(line.label for line in lines)])
    medians = any(stated(line.row["seconds_per_step"]).of == MEDIAN for line in lines)
    caption = f"Each algorithm{f', all of them {same}' if same else ''}, "
    caption += f"{'median' if medians else 'mean'} over seeds"
    caption += f"; amounts {what}" if amounts else ""
    strong = [at for at, line in enumerate(lines) if (line.found.name, line.label) in picks]
    return PageTable(f"{caption}; the pick is bold", [*columns], rows, strong=strong).unvaried()


def _measures(lines: Sequence[Series]) -> dict[str, Callable[[Series], str]]:
    """Return the result columns with a value, by heading; times per step come last."""
    stated_at_all = {key for line in lines for key, ends in _intervals(line).items() if ends}
    columns: dict[str, Callable[[Series], str]] = {}
    for column in sorted(RESULT_COLUMNS, key=lambda column: column.key == "seconds_per_step"):
        there = any(column.of_summary(line.row) is not None for line in lines)
        if PAGE in column.shown_in and column.key != "time_to_target_s" and there:
            level = f" ({USUAL})" * (STATED.get(column.key) in stated_at_all)
            columns[column.words + level] = partial(_value, column)
    return columns


def _intervals(line: Series) -> Mapping[str, Any]:
    return line.row.get("interval90") or {}


def _named(line: Series) -> str:
    return f"{line.name} (a bound)" if line.row["bound"] else line.name


def _used(cell: consumption.Cell, line: Series) -> str:
    return cell(line.row)


def _value(column: ResultColumn, line: Series) -> str:
    if column.key == "final_accuracy":
        return percent(column.of_summary(line.row), 1)
    return column.cell(line.row, len(line.runs))


def comparison(found: FoundRun, place: int) -> PageSection:
    """Tabulate predictions beside measurements, with their errors."""
    document = found.comparison
    assert document is not None
    basis, median = document["basis"], document.get("median_absolute_error")
    heading = "Predicted against measured" if basis == "measured" else "Two simulations"
    if median is not None:
        heading += f": times per step are off by {percent(median, 1)} (median)"
    rows = [
        (
            row["algorithm"] + NOT_COUNTED * (not row.get("counted", True)),
            QUANTITIES.get(row["quantity"], row["quantity"]),
            *(_amount(row["quantity"], row.get(side)) for side in ("predicted", "measured")),
            _error(row),
        )
        for row in document["rows"]
    ]
    caption = f"Errors in percent of the {basis} value; in brackets: within the spread of seeds"
    heads = ("algorithm", "quantity", "predicted", basis, "error")
    tables = PageTable(caption, heads, rows, 2).folded_after(SHOWN, len(rows))
    return PageSection(f"comparison-{place}", heading, document["sentence"], tables=tables)


def _amount(quantity: str, value: float | None) -> str:
    if value is None:
        return "-"
    if quantity in TIMES:
        return human(value)
    return with_unit(value, "B") if quantity == "bytes_per_step" else format_loss(value)


def _error(row: Mapping[str, Any]) -> str:
    if row.get("error") is None:
        return "-"
    error = f"{100 * row['error']:+z.1f} %"
    return f"({error})" if row.get("within_noise") else error


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
