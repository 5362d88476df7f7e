"""The figure of a sweep: time to the target, final loss or pace against the varied key."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...inputs.units import DIMENSIONS, to_si
from ...results.columns import estimate_of, ranked_by
from ...results.figures import curves
from ...results.figures.style import Axes, Figure, empty, line, look, style, titled
from ...results.statistics import time_unit
from ..display.display import text

Row = dict[str, Any]
SweepResult = Any  # it draws this: no import back
LINES = 21  # more are no figure that anyone can read
PANELS = 6
TICKS = 10  # values that an axis names one by one


def files(result: SweepResult) -> dict[str, bytes]:
    """Return the figure by file name; none where `draw` has none."""
    with style():
        return curves.files({"sweep": draw(result)})


def draw(result: SweepResult) -> Figure | None:
    """Draw a quantity against the first key that has numbers, where one or two keys were varied.

    A line for each algorithm; with a second key a panel for each, and a line for each value of it.
    None where more keys were varied, none has numbers, or there are too many lines to tell apart.
    """
    keys = _keys(result)
    labels = [*dict.fromkeys(row["label"] for row in result.rows)]
    if keys is None or (keys[1] and len(labels) > PANELS):
        return None
    key, second = keys
    panels: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in result.rows:
        panel, line = (row["label"], text(row[second])) if second else ("", row["label"])
        panels[panel][line].append(row)
    if max(map(len, panels.values())) > LINES:
        return None
    places, unit = numbers(result.vary[key]) or ([], "")
    at = dict(zip(map(text, result.vary[key]), places, strict=True))
    measure, name, size = _measure(result)
    figure = empty(max(4.0, 2.7 * len(panels)))
    column = figure.subplots(len(panels), squeeze=False, sharex=True, sharey=True)[:, 0]
    _horizontal(column[0], places)
    drawn = {
        panel: {line: _line(rows, at, key, measure, size) for line, rows in lines.items()}
        for panel, lines in panels.items()
    }
    _vertical(column[0], np.hstack([y for lines in drawn.values() for _, y in lines.values()]))
    for axes, (panel, lines) in zip(column, drawn.items(), strict=True):
        axes.set_ylabel(name)
        _panel(figure, axes, lines)
        if second:
            said = f"{panel}, by {second}"
            axes.annotate(said, (0, 1), (0, 6), "axes fraction", "offset points", weight="bold")
    column[-1].set_xlabel(f"{key} ({unit})" if unit else key)
    caption = _caption(result, measure)
    titled(column[0], result.scenario.title, caption, above=20 if second else 6)
    return figure


def _keys(result: SweepResult) -> tuple[str, str | None] | None:
    """Return the key of the horizontal axis, and the one, if any, whose values are the lines."""
    vary = {key: values for key, values in result.vary.items() if len(values) > 1}
    key = next((key for key, values in vary.items() if numbers(values)), None)
    if key is None:
        return None
    if len(vary[key]) == len(result.points):  # one key, or several hand in hand
        return key, None
    if len(vary) != 2:
        return None
    return key, next(each for each in vary if each != key)


def numbers(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Return values as numbers in the unit of the first; None where some are not numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(map(float, values)), ""
    for dimension in DIMENSIONS:
        try:
            si = [to_si(value, dimension) for value in values]
            unit = re.sub(r"^[-+.\d\s]+(e[-+]?\d+)?\s*", "", values[0])
            return [value / to_si(f"1 {unit}", dimension) for value in si], unit
        except ValueError:
            continue
    return None


def geometric(values: Sequence[float]) -> bool:
    """Whether positive values lie more evenly by their ratios than by their differences."""
    ordered = np.unique(values)
    if ordered[0] <= 0 or ordered.size < 3:
        return False
    gaps, ratios = np.diff(ordered), np.diff(np.log(ordered))
    return bool(np.std(ratios) / np.mean(ratios) < np.std(gaps) / np.mean(gaps) - 1e-9)


def _measure(result: SweepResult) -> tuple[str, str, float]:
    """Return the column to draw, the name of its axis, and the size of its unit."""
    column, target = ranked_by(result.rows), result.scenario.run.target_loss
    constant = target is not None and "run.target_loss" not in result.vary
    name = column.words.replace("to target", f"to loss {target:g}" if constant else "to the target")
    if column.unit != "s":
        return column.key, name, 1.0
    values = [row[column.key] for row in result.rows]
    size, unit = time_unit(max(value for value in values if value is not None))
    return column.key, f"{name} ({unit})", size


def _caption(result: SweepResult, measure: str) -> str:
    seeds = max(row["seeds"] for row in result.rows)
    said = " or ".join(sorted({estimate_of(row, measure).of for row in result.rows}))
    said = f"{said} of {seeds} seeds, band: its interval" if seeds > 1 else "one seed"
    missing = any(row[measure] is None for row in result.rows)
    return said + ("; gap: not reached with every seed" if missing else "")


def _line(
    rows: Sequence[Row], at: Mapping[str, float], key: str, measure: str, size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return places (points,), and there the estimate and its interval (3, points)."""
    places = np.array([at[text(row[key])] for row in rows])
    found = [estimate_of(row, measure) for row in rows]
    values = np.array([(each.value, *(each.interval or (np.nan, np.nan))) for each in found])
    order = np.argsort(places)
    return places[order], values[order].T / size


def _panel(figure: Figure, axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    ends = []
    for index, (label, (places, (mean, low, high))) in enumerate(lines.items()):
        colour, *_ = look(index)
        axes.plot(places, mean, label=label, zorder=3, **line(index, markevery=None))
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        ends.append((label, colour, places, mean))
    curves.label_ends(figure, axes, ends)


def _horizontal(axes: Axes, places: Sequence[float]) -> None:
    """Fit the x axis to the places: logarithmic if these are geometric."""
    from matplotlib.ticker import NullFormatter, NullLocator  # noqa: PLC0415

    if geometric(places):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter("{x:g}")
    if len(places) <= TICKS:
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())


def _vertical(axes: Axes, values: np.ndarray) -> None:
    """Fit the y axis to means and intervals (3, points); cut intervals far from all means."""
    mean = values[0][np.isfinite(values[0])]
    if not mean.size:
        return
    shown = values[np.isfinite(values)]
    low, high = mean.min(), mean.max()
    curves.vertical(axes, np.clip(shown, low / 2, 2 * high) if low > 0 else shown)
