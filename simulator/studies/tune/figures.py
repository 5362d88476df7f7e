"""Figures of a search: the value against each program's period, and the cost of wrong inputs."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...results.figures import drawing, style
from ...results.figures.chart import Axis, Chart, Line, Look, Panel, fitted
from ...results.statistics import time_unit
from .race import Contender

TuneResult = Any  # it draws this: no import back
PERIODS = ("tau", "tau0", "period", "delay", "k", "staleness", "step_size")
TICKS = 12  # at most
CHANGES = {  # colours of each changed input: 20 % less, 20 % more
    "latency": ("#56B4E9", "#0072B2"),
    "bandwidth": ("#E69F00", "#D55E00"),
    "straggling": ("#E3A6CB", "#AA3377"),
}


def figures(result: TuneResult) -> dict[str, bytes]:
    """Return every figure, by file name."""
    drawn = {"tune": value(result)}
    if result.regret:
        drawn["tune-sensitivity"] = sensitivity(result)
    with style.style():
        return drawing.files(drawn)


def value(result: TuneResult) -> Chart | None:
    """Chart the best value at each period (or the like), a line per program; None without values.

    A program without such a parameter is a level line. What was given up has no interval.
    """
    programs: dict[str, list[Contender]] = defaultdict(list)
    for contender in filter(lambda contender: contender.all_reached, result.ranked):
        programs[contender.candidate.name].append(contender)
    if not programs:
        return None
    size, unit = 1.0, result.objective.says
    if result.objective.unit == "s":
        size, name = time_unit(result.rows([result.best])[0]["at_least"])
        unit = f"{unit} ({name})"
    keys = {name: _key(contenders) for name, contenders in programs.items()}
    points = {name: _points(result, own, keys[name], size) for name, own in programs.items()}
    periods = sorted({x for name, own in points.items() if keys[name] for x in own}) or [1.0]
    least = min([x for x in periods if x > 0], default=1.0)
    place = {x: math.log2(x) if x > 0 else math.log2(least) - 1 for x in periods}
    lines = _lines(points, keys, place)
    shown = np.concatenate([np.ravel([*own.values()]) for own in points.values()])
    ticks = {place[x]: f"{x:g}" for x in periods[:: math.ceil(len(periods) / TICKS)]}
    across = Axis("parameter in brackets" if any(keys.values()) else "", ticks=ticks)
    panel = Panel(across, fitted(unit, shown[np.isfinite(shown)]), lines)
    return Chart(result.space.scenario.title, _caption(result, programs), [panel])


def _lines(
    points: Mapping[str, Mapping[float, list[float]]],
    keys: Mapping[str, str | None],
    place: Mapping[float, float],
) -> list[Line]:
    lines = []
    for index, (name, own) in enumerate(points.items()):
        tried, key = [place[x] for x in own] if keys[name] else [*place.values()], keys[name]
        mean, low, high = np.array([*own.values()] * (1 if key else len(tried))).T
        ends = np.minimum(low, mean), np.maximum(high, mean)
        label = f"{name} ({key})" if key else name
        lines.append(Line(label, tried, mean, Look.at(index), y_bars=ends, marks="all"))
    return lines


def _caption(result: TuneResult, programs: Mapping[str, Any]) -> str:
    out = sorted({contender.candidate.name for contender in result.ranked} - programs.keys())
    rest = f"\nnothing near the best: {', '.join(out)}" if out else ""
    return f"best of all other parameters; without interval: given up{rest}"


def _key(contenders: Sequence[Contender]) -> str | None:
    """Return the first of `PERIODS` that varies and is numeric; None if there is none."""
    for key in PERIODS:
        values = {str(contender.candidate.parameters.get(key)) for contender in contenders}
        if len(values) > 1 and all(text.replace(".", "").isdigit() for text in values):
            return key
    return None


def _points(
    result: TuneResult, contenders: Sequence[Contender], key: str | None, size: float
) -> dict[float, list[float]]:
    """Return the best value at each of `key`, in order, with the ends of its interval."""
    points: dict[float, list[float]] = {}
    for contender, row in zip(contenders, result.rows(contenders), strict=True):
        x = float(contender.candidate.parameters[key]) if key else 0.0
        ends = None if contender.stopped else row["interval"]  # of two seeds, it dwarfs all others
        found = [row["value"], *(ends or [row["value"]] * 2)]
        points.setdefault(x, [number / size for number in found])
    return dict(sorted(points.items()))


def sensitivity(result: TuneResult) -> Chart | None:
    """Chart by how much each candidate is worse than the best of them, if an input is 20 % off.

    A hollow mark is where runs were cut: the candidate is at least as much worse. None where no
    candidate reaches the target.
    """
    worlds = [row for row in result.regret if row["input"]]
    labels = list(result.regret[0]["values"])[::-1]

    def lines() -> Iterator[Line]:
        for index, world in enumerate(worlds):
            look = Look(CHANGES[world["input"]][world["change"] > 0])
            name = f"{world['input']} {100 * world['change']:+.0f} %"
            named = True
            for shares, hollow in ((world["regret"], False), (world["regret_at_least"], True)):
                own = [label for label, share in shares.items() if math.isfinite(share)]
                if own:
                    x = [100 * shares[label] for label in own]
                    y = [labels.index(label) + 0.1 * (index - 2.5) for label in own]
                    how = look._replace(hollow=hollow)
                    yield Line(name, x, y, how, joined=False, marks="all", named=named, key=name)
                    named = False

    drawn = [*lines()]
    if not drawn:
        return None
    shown = np.concatenate([np.asarray(line.x, dtype=float) for line in drawn])
    title = f"{result.objective.says}: % above the best of these, if an input is 20 % off"
    across = fitted(title, shown, log=False, zero=True)
    up = Axis(names=labels, limits=(-0.5, len(labels) - 0.5))
    caption = "hollow: at least so much, as runs were cut"
    return Chart(result.space.scenario.title, caption, [Panel(across, up, drawn)])
