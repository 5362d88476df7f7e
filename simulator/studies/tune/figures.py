"""Figures of a search: the value against each program's period, and the cost of wrong inputs."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...results.figures import curves, style
from ...results.figures.style import Axes, Figure
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
        drawn = {"tune": value(result)}
        if result.regret:
            drawn["tune-sensitivity"] = sensitivity(result)
        return curves.files({name: figure for name, figure in drawn.items() if figure})


def value(result: TuneResult) -> Figure | None:
    """Draw the best value at each period (or the like), a line per program; None without values.

    A program without such a parameter is a level line. An open triangle marks a period at which
    every configuration was given up, and is a lower bound; programs given up altogether are only
    named.
    """
    families: dict[str, list[Contender]] = {}
    for each in result.ranked:
        families.setdefault(each.candidate.name, []).append(each)
    out = [name for name, found in families.items() if not any(e.all_reached for e in found)]
    if len(out) < len(families):
        families = {name: found for name, found in families.items() if name not in out}
    size, unit = 1.0, result.objective.says
    if result.objective.unit == "s":
        size, name = time_unit(result.rows([result.best])[0]["at_least"])
        unit = f"{unit} ({name})"
    keys = {name: _key(found) for name, found in families.items()}
    lines = {name: _points(result, found, keys[name], size) for name, found in families.items()}
    out += [name for name, line in lines.items() if not line]
    lines = {name: line for name, line in lines.items() if line}
    if not lines:
        return None
    figure, axes = style.one_panel()
    periods = sorted({point.x for name, line in lines.items() if keys[name] for point in line})
    first, last = (periods[0], periods[-1]) if periods else (0.0, 1.0)
    ends = []
    for index, (name, line) in enumerate(lines.items()):
        colour, *_ = style.look(index)
        points = line if keys[name] else [line[0]._replace(x=x) for x in (first, last)]
        label = f"{name} ({keys[name]})" if keys[name] else name
        _draw(axes, points, style.line(index, markevery=None), label, markers=bool(keys[name]))
        seen = [point for point in points if point.sure] or points
        ends.append((label, colour, np.array([p.x for p in seen]), np.array([p.y for p in seen])))
    if periods:
        _halving(axes, periods)
    else:
        axes.set_xticks([])
    axes.set_xlabel("parameter in brackets" if periods else "")
    axes.set_ylabel(unit)
    curves.vertical(
        axes, [edge for line in lines.values() for p in line for edge in (p.low, p.high)]
    )
    curves.label_ends(figure, axes, ends)
    caption = "best of all other parameters; without interval: given up; triangle: above that"
    if out:
        caption += f"\nnothing near the best: {', '.join(out)}"
    style.titled(axes, result.space.scenario.title, caption)
    return figure


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


def _draw(
    axes: Axes, points: Sequence[PlottedPoint], look: dict[str, Any], label: str, *, markers: bool
) -> None:
    colour = look["color"]
    sure = [point for point in points if point.sure]
    for point in points:
        if not point.sure:
            axes.plot(point.x, point.y, "^", color=colour, markerfacecolor="none", markersize=5)
    if not sure:
        return
    x, y, low, high, _ = np.array(sure, dtype=float).T
    how = look if markers else look | {"marker": ""}
    axes.plot(x, y, label=label, lw=1.2, zorder=3, **how)
    if markers:
        spread = np.maximum(0, [y - low, high - y])
        axes.errorbar(x, y, spread, fmt="none", ecolor=colour, elinewidth=0.8, capsize=2)
    else:
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def _halving(axes: Axes, periods: Sequence[float]) -> None:
    """Scale the x axis by factors of two; zero is left of the smallest positive value."""
    positive = [period for period in periods if period > 0]
    if positive:
        scale = "log" if periods[0] > 0 else "symlog"
        axes.set_xscale(scale, base=2, **({} if scale == "log" else {"linthresh": positive[0]}))
    ticks = list(periods)
    close = any(high < 1.3 * low for low, high in pairwise(positive))
    if close or len(ticks) > TICKS:
        octaves = range(math.floor(math.log2(positive[0])), math.ceil(math.log2(periods[-1])) + 1)
        every = math.ceil(len(octaves) / TICKS)
        ticks = [0.0] * (periods[0] == 0) + [2.0**octave for octave in octaves[::every]]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


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
