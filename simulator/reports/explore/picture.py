"""The page's two figures as numbers, which assets/figures.js draws: error against time, and where
the time goes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...results.figures import curves as plot
from ...results.figures import drawing
from ...results.figures.curves import LOSS_NAMES
from ...results.figures.style import COLOURS, PARTS, look, two_lines
from ...results.run import Run
from ...results.statistics import human, sampled, seconds_per_step, time_unit
from ..page.parts import literal
from ..page.series import apart, rounded
from .views import View
from .words import theorem

POINTS = 200  # of a curve
INNER = 360  # pixels of the first figure's axis, as in figures.js
SPENT = {part: PARTS[part][0] for part in ("compute", "wait", "communicate")}
REST = PARTS["lost"][0]  # of all other parts: lost and down

Curve = tuple[np.ndarray, np.ndarray]
"""Times (seconds), shape (points,), and values then."""
Json = dict[str, Any]


def _grid(runs: Sequence[Run], column: str) -> Curve:
    """Return times (s), shape (points,), and each seed's values then, shape (seeds, points)."""
    times = [np.array(run.curve["time"]) for run in runs]
    whole = len(times) == 1 and times[0].size <= POINTS
    grid = times[0] if whole else np.linspace(0.0, min(time[-1] for time in times), POINTS)
    return grid, sampled(runs, column, grid)


def error(view: View, start: View) -> Json:
    """Return error against time: a line and a band (smallest to largest seed) per algorithm.

    `before`: lines of `start`, the scenario as loaded; `bounds`: Theorem 2's.
    """
    curves = [run.curve["loss"] for part in view.parts for run in part.runs[:1]]
    column = "loss" if any(np.isfinite(each).any() for each in curves) else "step"
    now = {i: _grid(part.runs, column) for i, part in enumerate(view.parts) if part.runs}
    loaded = enumerate(start.parts if view.state else ())
    before = {i: _grid(part.runs, column) for i, part in loaded if part.runs}
    shown = [*now.values(), *before.values()]
    longest = view.scenario.run.duration or max([*(t[-1] for t, _ in shown), 0.0]) or 1.0
    size, unit = time_unit(longest)
    title = "local steps done"
    if column == "loss":
        title = LOSS_NAMES.get(view.scenario.objective.kind, "loss")
    names = apart(view.labels)
    low, high, log = _range(column, [values for _, values in shown], view)

    def lines(curves: dict[int, Curve]) -> list[Json]:
        return [_line(index, time / size, values) for index, (time, values) in curves.items()]

    return {
        "before": lines({i: (time, values.mean(axis=0)) for i, (time, values) in before.items()}),
        "lines": [
            line | {"name": literal(names[i]), "dash": look(i)[1], "symbol": look(i)[2]}
            for i, line in zip(now, lines(now), strict=True)
        ],
        "bounds": lines(_bounds(view, longest)),
        "names": _names(view, now, (low, high, log)),
        "x": {"unit": unit, "end": longest / size},
        "y": {"low": low, "high": high, "log": log, "title": title},
        "target": view.scenario.run.target_loss if column == "loss" else None,
    }


def _line(index: int, time: np.ndarray, values: np.ndarray) -> Json:
    """Return a line, and the ends of its band if there are several seeds."""
    every = np.atleast_2d(values)
    line: Json = {"colour": _colour(index), "x": rounded(time), "y": rounded(every.mean(axis=0))}
    if len(every) > 1:
        line["band"] = [rounded(every.min(axis=0)), rounded(every.max(axis=0))]
    return line


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def spent(view: View, start: View) -> Json:
    """Return seconds per step by part, and where the scenario as loaded ends."""
    drawn = [(i, part.runs) for i, part in enumerate(view.parts) if part.runs]
    names = apart(view.labels)
    totals = [_pace(runs) for _, runs in drawn]
    loaded = [start.parts[i].runs if view.state else () for i, _ in drawn]
    before = [_pace(runs) if runs else None for runs in loaded]
    largest = max([*(t for t in totals if math.isfinite(t)), *(b for b in before if b), 0.0]) or 1.0
    size, unit = (1e-3, "ms") if largest < 1 else (1.0, "s")
    kinds = dict.fromkeys(kind for _, runs in drawn for run in runs for kind in run.seconds)
    parts = []
    for kind in kinds:
        shares = [_share(runs, kind) for _, runs in drawn]
        lengths = [share * total / size for share, total in zip(shares, totals, strict=True)]
        if any(shares):
            colour, percent = SPENT.get(kind, REST), [100 * share for share in shares]
            parts.append({"name": kind, "colour": colour, "x": lengths, "percent": percent})
    return {
        "rows": [literal(two_lines(names[i])).replace("\n", "<br>") for i, _ in drawn],
        "parts": parts,
        "before": [each and each / size for each in before] if any(before) else None,
        "totals": [
            {
                "x": max(total, old or 0.0) / size,
                "text": human(total) + ("" if view.parts[i].share == 1 else " so far"),
            }
            for (i, _), total, old in zip(drawn, totals, before, strict=True)
        ],
        "x": {"unit": unit, "end": 1.02 * largest / size},
        "height": rows(len(view.parts)),
    }


def _pace(runs: Sequence[Run]) -> float:
    return float(np.mean([seconds_per_step(run) for run in runs]))


def rows(algorithms: int) -> int:
    """Return the height of the bars' figure, in pixels."""
    return 112 + 34 * max(algorithms, 1)


def _share(runs: Sequence[Run], kind: str) -> float:
    total = sum(sum(run.seconds.values()) for run in runs)
    return sum(run.seconds.get(kind, 0.0) for run in runs) / total if total else 0.0


def _range(column: str, shown: Sequence[np.ndarray], view: View) -> tuple[float, float, bool]:
    """Return low, high and whether the y axis is logarithmic; diverging lines leave the range."""
    values = plot.in_picture(shown, column) if shown else np.empty(0)
    if column == "loss" and view.scenario.run.target_loss is not None:
        values = np.append(values, view.scenario.run.target_loss)
    if not values.size:
        return 0.0, 1.0, False
    low, high = float(values.min()), float(values.max())
    if column == "loss" and low > 0 and high / low > 10:
        return math.log10(low / 1.25), math.log10(high * 1.25), True
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin, False


def _names(view: View, lines: dict[int, Curve], axis: tuple[float, float, bool]) -> list[Json]:
    """Return each name and its height beside the end of its line, moved apart if it must be."""
    low, high, log = axis
    ends = []
    for index, (_, values) in lines.items():
        middle = values.mean(axis=0)
        seen = np.flatnonzero(np.isfinite(middle) & (middle > 0 if log else True))
        y = float(middle[seen[-1]]) if seen.size else math.inf
        height = math.log10(y) if log else y
        ends.append((index, min(max(height, low), high)))
    labels = apart(view.labels)
    names = [two_lines(labels[index]) for index, _ in ends]
    heights = [15.0 * (1 + name.count("\n")) + 3 for name in names]
    wanted = [(height - low) / (high - low) * INNER for _, height in ends]
    placed = drawing.spread(wanted, heights, 0.0, float(INNER))
    return [
        {"text": literal(name).replace("\n", "<br>"), "y": at / INNER, "colour": _colour(index)}
        for (index, _), name, at in zip(ends, names, placed, strict=True)
    ]


def _bounds(view: View, longest: float) -> dict[int, Curve]:
    """Return Theorem 2's bound with expected times, of the algorithms that it covers."""
    time = np.linspace(longest / POINTS, longest, POINTS)
    return {
        index: (time, np.array([bound(t, seconds, tau) for t in time]))
        for index, bound, seconds, tau in theorem(view.scenario)
    }
