"""Draw the figure of a sweep: a time or the final loss against the varied key."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...inputs.units import SI, to_si
from ...results.columns import estimate_of, ranked_by
from ...results.figures import drawing
from ...results.figures.chart import Axis, Chart, Line, Look, Panel, fitted
from ...results.statistics import time_unit
from .. import numbers as quantities
from ..display import text

Row = Mapping[str, Any]
Vary = Mapping[str, Sequence[Any]]
SweepResult = Any  # draws this result: no import back
LINES = 21  # more lines are unreadable
DECADE = 8  # ratio of values above which their axis is logarithmic
TICKS = 10  # most values that an axis names individually


def files(result: SweepResult) -> dict[str, bytes]:
    """Return the figure by file name; {} if `chart` returns None."""
    return drawing.files({"sweep": result._chart()})


def chart(rows: Sequence[Row], vary: Vary, target: float | None, title: str) -> Chart | None:
    """Chart a quantity against the first key that has numbers.

    There is one line per algorithm and value of a second key. Returns None without numbers, if more
    keys were varied, or if there are too many lines to tell apart.
    """
    varied = {key: values for key, values in vary.items() if len(values) > 1}
    key = next((key for key, values in varied.items() if numbers(values)), "")
    parsed = numbers(vary[key]) if key else None
    if parsed is None or len(varied) > 2:
        return None
    second = next((name for name in varied if name != key), None)
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[row["label"] + (f", {text(row[second])}" if second else "")].append(row)
    if len(lines) > LINES:
        return None
    measure, name, size = _measure(rows, vary, target)
    places, unit = parsed
    at = dict(zip(map(text, vary[key]), places, strict=True))
    drawn = list[Line]()
    for index, (label, shown) in enumerate(lines.items()):
        points = sorted((at[text(row[key])], *_ends(row, measure)) for row in shown)
        x, mean, low, high = np.array(points, dtype=float).T
        look, band = Look.at(index), (low / size, high / size)
        drawn.append(Line(label, x, mean / size, look, band, marks="all", key=f"l{index}"))
    means = np.concatenate([np.asarray(line.y) for line in drawn])
    across, up = _across(key, places, unit), fitted(name, means[np.isfinite(means)])
    heading = f"lines: by {second}" if second else ""
    return Chart(title, _caption(rows, measure), [Panel(across, up, drawn, heading=heading)])


def _across(key: str, places: Sequence[float], unit: str) -> Axis:
    """Return the axis of a key."""
    ticks = {place: f"{place:g}" for place in places} if len(places) <= TICKS else {}
    log = min(places) > 0 and max(places) >= DECADE * min(places)
    return Axis(f"{key} ({unit})" if unit else key, log=log, ticks=ticks)


def numbers(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Return values in the unit of the first; None if some are not numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(map(float, values)), ""
    shown = quantities.unit(text(values[0]))
    for dimension in SI:
        with suppress(ValueError, TypeError):
            return [to_si(x, dimension) / to_si(f"1 {shown}", dimension) for x in values], shown
    return None


def _measure(rows: Sequence[Row], vary: Vary, target: float | None) -> tuple[str, str, float]:
    """Return the column to draw, the name of its axis, and the size of its unit."""
    column = ranked_by(rows)
    constant = target is not None and "run.target_loss" not in vary
    name = column.words.replace("to target", f"to loss {target:g}" if constant else "to the target")
    if column.unit != "s":
        return column.key, name, 1.0
    values = [row[column.key] for row in rows]
    size, unit = time_unit(max((value for value in values if value is not None), default=1.0))
    return column.key, f"{name} ({unit})", size


def _caption(rows: Sequence[Row], measure: str) -> str:
    kind = " or ".join(sorted({estimate_of(row, measure).of for row in rows}))
    seeds = round(max(row["seeds"] for row in rows))
    caption = f"{kind} of {seeds} seeds, band: its interval" if seeds > 1 else "one seed"
    missing = any(row[measure] is None for row in rows)
    return caption + ("; gap: not reached with every seed" if missing else "")


def _ends(row: Row, measure: str) -> tuple[float, float, float]:
    """Return an estimate and the ends of its interval; nan if missing."""
    estimate = estimate_of(row, measure)
    return (estimate.value, *(estimate.interval or (np.nan, np.nan)))
