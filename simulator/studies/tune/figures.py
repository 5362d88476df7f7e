"""Figures of a search: the value against each program's period, and the cost of wrong inputs."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...results.figures import drawing, style
from ...results.figures.chart import Axis, Chart, Line, Look, Panel, fitted
from ...results.figures.style import Figure
from ...results.statistics import time_unit
from .costs import cost
from .race import Contender

TuneResult = Any  # it draws this: no import back
PERIODS = ("tau", "tau0", "period", "delay", "k", "staleness", "step_size")
TICKS = 12  # at most; more values are a dense range
CHANGES = {  # colours of each changed input: 20 % less, 20 % more
    "latency": ("#56B4E9", "#0072B2"),
    "bandwidth": ("#E69F00", "#D55E00"),
    "straggling": ("#E3A6CB", "#AA3377"),
}


class PlottedPoint(NamedTuple):
    """A value with its interval; if not `sure`, it is only known to exceed `y`."""

    x: float
    y: float
    low: float
    high: float
    sure: bool


def figures(result: TuneResult) -> dict[str, bytes]:
    """Return every figure, by file name."""
    with style.style():
        drawn: dict[str, Chart | Figure | None] = {"tune": value(result)}
        if result.regret:
            drawn["tune-sensitivity"] = sensitivity(result)
        return drawing.files(drawn)


def value(result: TuneResult) -> Chart | None:
    """Chart the best value at each period (or the like), a line per program; None without values.

    A program without such a parameter is a level line. A hollow triangle marks a period at which
    every configuration was given up, and is a lower bound; programs given up altogether are only
    named.
    """
    families: dict[str, list[Contender]] = {}
    for contender in result.ranked:
        families.setdefault(contender.candidate.name, []).append(contender)
    out = [name for name, rows in families.items() if not any(row.all_reached for row in rows)]
    if len(out) < len(families):
        families = {name: rows for name, rows in families.items() if name not in out}
    size, unit = 1.0, result.objective.says
    if result.objective.unit == "s":
        size, name = time_unit(result.rows([result.best])[0]["at_least"])
        unit = f"{unit} ({name})"
    keys = {name: _key(rows) for name, rows in families.items()}
    plotted = {name: _points(result, rows, keys[name], size) for name, rows in families.items()}
    out += [name for name, points in plotted.items() if not points]
    plotted = {name: points for name, points in plotted.items() if points}
    if not plotted:
        return None
    periods = sorted({p.x for name, points in plotted.items() if keys[name] for p in points})
    place = _places(periods)
    first, last = (periods[0], periods[-1]) if periods else (0.0, 1.0)
    lines: list[Line] = []
    for index, (name, points) in enumerate(plotted.items()):
        key = keys[name]
        ends = points if key else [points[0]._replace(x=x) for x in (first, last)]
        ends = [point._replace(x=place(point.x)) for point in ends]
        lines += _lines(f"{name} ({key})" if key else name, ends, Look.at(index), bool(key))
    edges = [edge for points in plotted.values() for p in points for edge in (p.low, p.high)]
    across = Axis("parameter in brackets" if periods else "", ticks=_ticks(periods, place))
    caption = "best of all other parameters; without interval: given up; triangle: above that"
    if out:
        caption += f"\nnothing near the best: {', '.join(out)}"
    panel = Panel(across, fitted(unit, edges), lines)
    return Chart(result.space.scenario.title, caption, [panel])


def _key(contenders: Sequence[Contender]) -> str | None:
    """Return the first of `PERIODS` that varies and is numeric; None if there is none."""
    for key in PERIODS:
        values = {str(each.candidate.parameters.get(key)) for each in contenders}
        if len(values) > 1 and all(value.replace(".", "").isdigit() for value in values):
            return key
    return None


def _points(
    result: TuneResult, contenders: Sequence[Contender], key: str | None, size: float
) -> list[PlottedPoint]:
    """Return the best at each value of `key` (of a dense range: each half octave), or of all."""
    found: dict[float, PlottedPoint] = {}
    tried = {each.candidate.parameters[key] for each in contenders} if key else ()
    dense = len(tried) > TICKS
    for each, row in zip(contenders, result.rows(contenders), strict=True):
        x = float(each.candidate.parameters[key]) if key else 0.0
        y = (row["value"] if math.isfinite(row["value"]) else row["at_least"]) / size
        ends = None if each.stopped else row["interval"]  # of two seeds, it would dwarf all others
        low, high = [edge / size for edge in ends or ()] or (y, y)
        if math.isfinite(y):
            place = round(2 * math.log2(x)) if dense and x > 0 else x
            found.setdefault(place, PlottedPoint(x, y, low, high, each.all_reached))
    return sorted(found.values())


def _lines(label: str, points: Sequence[PlottedPoint], look: Look, varied: bool) -> Iterator[Line]:
    """Yield a line through what is known, and hollow triangles for lower bounds."""
    sure = np.array([point for point in points if point.sure], dtype=float).T
    if sure.size:
        x, y, low, high, _ = sure
        ends = np.minimum(low, y), np.maximum(high, y)
        if varied:
            yield Line(label, x, y, look, y_bars=ends, marks="all")
        else:
            yield Line(label, x, y, look, ends, marks="none")
    bounds = [point for point in points if not point.sure]
    if bounds:
        x, y = [point.x for point in bounds], [point.y for point in bounds]
        hollow = look._replace(symbol="triangle-up", hollow=True)
        yield Line(label, x, y, hollow, joined=False, marks="all", named=not sure.size)


def _places(periods: Sequence[float]) -> Callable[[float], float]:
    """Return where a period stands: by factors of two; zero is left of the smallest positive."""
    positive = [period for period in periods if period > 0]
    least = math.log2(positive[0]) - 1 if positive else 0.0
    return lambda period: math.log2(period) if period > 0 and positive else least


def _ticks(periods: Sequence[float], place: Callable[[float], float]) -> dict[float, str]:
    """Return a tick at each period, or at powers of two where these are many."""
    positive = [period for period in periods if period > 0]
    ticks = list(periods)
    close = any(high < 1.3 * low for low, high in pairwise(positive))
    if close or len(ticks) > TICKS:
        octaves = range(math.floor(math.log2(positive[0])), math.ceil(math.log2(periods[-1])) + 1)
        every = math.ceil(len(octaves) / TICKS)
        ticks = [0.0] * (periods[0] == 0) + [2.0**octave for octave in octaves[::every]]
    return {place(tick): f"{tick:g}" for tick in ticks}


def sensitivity(result: TuneResult) -> Figure:
    """Draw by how much each candidate is worse than the best of them, if an input is 20 % off.

    A hatched bar ends where runs were cut: the candidate is at least as much worse.
    """
    worlds = [row for row in result.regret if row["input"]]
    labels = list(worlds[0]["values"])
    figure, axes = style.one_panel(1.0 + 0.75 * len(labels))
    height = 0.8 / len(worlds)
    most = 0.0
    for index, world in enumerate(worlds):
        colour = CHANGES[world["input"]][world["change"] > 0]
        for place, label in enumerate(labels):
            y = place - 0.4 + (index + 0.5) * height
            bound = world["regret_at_least"].get(label)
            share = world["regret"][label] if bound is None else bound
            length = 100 * share if share >= 0 else 0.0
            most = max(most, length)
            face, hatch = (colour, "") if bound is None else ("none", "//////")
            axes.barh(
                y, length, height=height, facecolor=face, edgecolor=colour, hatch=hatch, linewidth=0
            )
            axes.annotate(
                cost(world, label, " %"), (length, y), (3, 0), textcoords="offset points",
                verticalalignment="center", fontsize=6, color=style.GREY,
            )  # fmt: skip
    axes.set_yticks(range(len(labels)), list(map(style.two_lines, labels)))
    axes.tick_params(axis="y", length=0, labelcolor="black")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * (most or 1.0))
    axes.set_xlabel(f"{result.objective.says}: % above the best of these, if an input is 20 % off")
    right = 0.0
    for what, colours in CHANGES.items():
        for words, colour in zip((f"{what} − 20 %", "+ 20 %"), colours, strict=True):
            text = axes.annotate(
                words, (0, 1), (right, 6), "axes fraction", "offset points", color=colour,
                weight="bold",
            )  # fmt: skip
            right += text.get_window_extent().width * 72 / figure.dpi + 6
        right += 6
    axes.set_title(result.space.scenario.title, pad=22)
    return figure
