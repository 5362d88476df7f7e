"""The page's two figures as plotly's JSON: error against time, and where the time goes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.simulator.reports.explore.views import View
from paceline.simulator.reports.explore.words import theorem
from paceline.simulator.reports.page.parts import literal
from paceline.simulator.reports.page.series import rounded
from paceline.simulator.results.figures import curves as plot
from paceline.simulator.results.figures.bars import PARTS
from paceline.simulator.results.figures.curves import LOSS_NAMES
from paceline.simulator.results.figures.style import COLOURS, two_lines
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import human, sampled, seconds_per_step, time_unit

POINTS = 200  # of a curve
HEIGHT, LOW = 440, 330  # pixels; LOW on a phone
DASHES = ("solid", "dash", "dot")
SPENT = {part: PARTS[part][0] for part in ("compute", "wait", "communicate")}
REST = PARTS["lost"][0]  # of all other parts: lost and down
INK = {False: ("#1b1f24", "#59626b", "#e4e7ea"), True: ("#e8eaed", "#a3abb3", "#343a41")}
"""Colours of text, axes and grid lines: in light mode, and in dark mode (True)."""

Figure = dict[str, Any]


def colour(index: int, dark: bool) -> str:
    """Return an algorithm's colour; black is invisible in dark mode and becomes light grey."""
    found = COLOURS[index % len(COLOURS)]
    return "#e8eaed" if dark and found == "#000000" else found


def text_colour(index: int, dark: bool) -> str:
    """Return its colour for text, which needs more contrast: darker, or lighter in dark mode."""
    found = colour(index, dark).lstrip("#")
    parts = [int(found[at : at + 2], 16) for at in (0, 2, 4)]
    if dark:
        return f"rgb({','.join(str(round(255 - 0.62 * (255 - part))) for part in parts)})"
    return f"rgb({','.join(str(round(0.75 * part)) for part in parts)})"


def _grid(runs: Sequence[Run], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times (s), shape (points,), and each seed's values then, shape (seeds, points)."""
    times = [np.array(run.curve["time"]) for run in runs]
    whole = len(times) == 1 and times[0].size <= POINTS
    grid = times[0] if whole else np.linspace(0.0, min(time[-1] for time in times), POINTS)
    return grid, sampled(runs, column, grid)


def error(view: View, start: View, *, dark: bool, narrow: bool) -> Figure:
    """Draw error against time: a line and a band (smallest to largest seed) per algorithm.

    Thin lines are those of `start`, the scenario as loaded; dotted ones are Theorem 2's bound.
    """
    column = "loss" if _has_loss(view) else "step"
    now = [(i, _grid(part.runs, column)) for i, part in enumerate(view.parts) if part.runs]
    before = [
        (i, _grid(part.runs, column))
        for i, part in enumerate(start.parts)
        if part.runs and view.state
    ]
    longest = max([*(time[-1] for _, (time, _) in now + before), 0.0]) or 1.0
    full = view.scenario.run.duration
    longest = full or longest
    size, unit = time_unit(longest)
    data: list[dict[str, Any]] = []
    for index, (time, values) in before:
        data.append(_line(time / size, values.mean(axis=0), colour(index, dark), width=1.2)
                    | {"opacity": 0.45, "hoverinfo": "skip"})  # fmt: skip
    for index, (time, values) in now:
        if len(values) > 1:
            data += _band(time / size, values, colour(index, dark))
    for index, (time, values) in now:
        shade = colour(index, dark)
        line = _line(time / size, values.mean(axis=0), shade, width=2.4)
        label = view.labels[index]
        data.append(line | {
            "name": literal(label), "showlegend": narrow, "line": line["line"]
            | {"dash": DASHES[index // len(COLOURS) % len(DASHES)]},
            "hovertemplate": f"{literal(label)}<br>%{{x:.4g}} {unit}: %{{y:.4g}}<extra></extra>",
        })  # fmt: skip
    ends = {index: (time, values.mean(axis=0)) for index, (time, values) in now}
    for index, _ in now:
        if index in view.reference:
            more = _continued(view.parts[index].runs, view.reference[index], column)
            inside = more[0] <= longest
            ends[index] = more[0][inside], more[1][inside]
            data.append(
                _line(more[0][inside] / size, more[1][inside], colour(index, dark), width=1.6)
                | {"hoverinfo": "skip"}
            )
            data[-1]["line"] |= {"dash": "dash"}
    for index, (time, bound) in _bounds(view, longest):
        data.append(_line(time / size, bound, colour(index, dark), width=1.4) | {
            "line": {"color": text_colour(index, dark), "width": 1.4, "dash": "dot"},
            "hoverinfo": "skip",
        })  # fmt: skip
    low, high, log = _range(column, [v for _, (_, v) in now + before], view)
    layout = _layout(dark, LOW if narrow else HEIGHT)
    target = view.scenario.run.target_loss if column == "loss" else None
    layout |= {
        "xaxis": layout["xaxis"] | {"title": {"text": f"wall-clock time ({unit})"},
                                    "range": [0, longest / size * 1.005]},
        "yaxis": layout["yaxis"] | {"type": "log" if log else "linear", "range": [low, high],
                                    **(_ticks(low, high) if log else {}),
                                    "minor": {"showgrid": False}},
        "annotations": [] if narrow else _names(view, ends, (low, high, log), dark),
        "margin": {"l": 58, "r": 14 if narrow else 170, "t": 34, "b": 46},
        "legend": {"orientation": "h", "y": -0.3, "yanchor": "top", "x": 0, "font": {"size": 11}},
        "showlegend": narrow,
        "shapes": [],
    }  # fmt: skip
    layout["annotations"].append(_title(_of_axis(view, column), dark))
    if target is not None:
        ink = INK[dark][1]
        layout["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": target,
                "y1": target,
                "line": {"color": ink, "width": 1, "dash": "4px,4px"},
            }
        ]
        layout["annotations"].append({
            "text": f"target {target:g}", "xref": "paper", "x": 0.004, "xanchor": "left",
            "y": math.log10(target) if log else target, "yanchor": "bottom", "showarrow": False,
            "font": {"color": ink, "size": 12},
        })  # fmt: skip
    return {"data": data, "layout": layout}


def spent(view: View, start: View, *, dark: bool, narrow: bool) -> Figure:
    """Draw seconds per step by part, with a mark where the scenario as loaded ends."""
    drawn = [(i, part.runs) for i, part in enumerate(view.parts) if part.runs]
    names = [literal(two_lines(view.labels[i])).replace("\n", "<br>") for i, _ in drawn]
    totals = [float(np.mean([seconds_per_step(run) for run in runs])) for _, runs in drawn]
    before = [
        float(np.mean([seconds_per_step(run) for run in start.parts[i].runs]))
        if start.parts[i].runs and view.state
        else None
        for i, _ in drawn
    ]
    largest = max([*(t for t in totals if math.isfinite(t)), *(b for b in before if b), 0.0]) or 1.0
    size, unit = (1e-3, "ms") if largest < 1 else (1.0, "s")
    kinds = dict.fromkeys(kind for _, runs in drawn for run in runs for kind in run.seconds)
    data: list[dict[str, Any]] = []
    for kind in kinds:
        shares = [_share(runs, kind) for _, runs in drawn]
        if not any(shares):
            continue
        data.append({
            "type": "bar", "orientation": "h", "y": names, "name": kind,
            "x": [share * total / size for share, total in zip(shares, totals, strict=True)],
            "marker": {"color": SPENT.get(kind, REST)}, "customdata": [100 * s for s in shares],
            "hovertemplate": f"{kind}: %{{x:.3g}} {unit}, %{{customdata:.0f}} %<extra></extra>",
        })  # fmt: skip
    if any(before):
        data.append({
            "type": "scatter", "mode": "markers", "y": names, "name": "as loaded",
            "x": [None if value is None else value / size for value in before],
            "marker": {"symbol": "line-ns", "size": 20,
                       "line": {"width": 2, "color": INK[dark][0]}},
            "hovertemplate": f"as loaded: %{{x:.3g}} {unit}<extra></extra>",
        })  # fmt: skip
    layout = _layout(dark, rows(len(view.parts)))
    layout |= {
        "barmode": "stack", "bargap": 0.35, "showlegend": True,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0,
                   "traceorder": "normal", "font": {"size": 12}},
        "margin": {"l": 140 if narrow else 210, "r": 64, "t": 56, "b": 44},
        "annotations": [
            {"x": max(total, old or 0.0) / size, "y": name,
             "text": human(total) + ("" if view.parts[i].share == 1 else " so far"),
             "xanchor": "left", "showarrow": False, "font": {"size": 12, "color": INK[dark][0]},
             "xshift": 4}
            for (i, _), name, total, old in zip(drawn, names, totals, before, strict=True)
        ] + [_title("time per step, and where it goes", dark) | {"yshift": 26}],
        "xaxis": layout["xaxis"] | {"title": {"text": f"{unit} per step"},
                                    "range": [0, 1.02 * largest / size]},
        "yaxis": layout["yaxis"] | {"autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def rows(algorithms: int) -> int:
    """Return the height of the bars' figure, in pixels."""
    return 112 + 34 * max(algorithms, 1)


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 of each decade; of many decades only at 1."""
    bases = (1, 2, 5) if high - low < 2.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [float(f"{base}e{decade}") for decade in decades for base in bases]
    shown = [value for value in values if low <= math.log10(value) <= high]
    return {"tickmode": "array", "tickvals": shown, "ticktext": [f"{value:g}" for value in shown]}


def _share(runs: Sequence[Run], kind: str) -> float:
    total = sum(sum(run.seconds.values()) for run in runs)
    return sum(run.seconds.get(kind, 0.0) for run in runs) / total if total else 0.0


def _line(x: np.ndarray, y: np.ndarray, shade: str, *, width: float) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "x": rounded(x), "y": rounded(y),
        "line": {"color": shade, "width": width}, "showlegend": False,
    }  # fmt: skip


def _band(x: np.ndarray, values: np.ndarray, shade: str) -> list[dict[str, Any]]:
    none = {"width": 0, "color": shade}
    ends = [
        _line(x, edge, shade, width=0) | {"line": none, "hoverinfo": "skip"}
        for edge in (values.min(axis=0), values.max(axis=0))
    ]
    red, green, blue = (int(shade[at : at + 2], 16) for at in (1, 3, 5))
    ends[1] |= {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}
    return ends


def _continued(
    short: Sequence[Run], whole: Sequence[Run], column: str
) -> tuple[np.ndarray, np.ndarray]:
    """Continue a cut-short curve as earlier whole runs went on, at the pace seen so far."""
    time, values = _grid(short, column)
    step = float(np.mean([run.steps for run in short]))
    before, after = _grid(whole, column)
    steps = _grid(whole, "step")[1].mean(axis=0)
    then = float(np.interp(step, steps, before))
    rest = steps > step
    stretch = time[-1] / then if then > 0 else 1.0
    times = time[-1] + stretch * (before[rest] - then)
    return np.append(time[-1:], times), np.append(
        values.mean(axis=0)[-1:], after.mean(axis=0)[rest]
    )


def _has_loss(view: View) -> bool:
    return any(np.isfinite(run.curve["loss"]).any() for p in view.parts for run in p.runs[:1])


def _of_axis(view: View, column: str) -> str:
    if column == "step":
        return "local steps done"
    return LOSS_NAMES.get(view.scenario.objective.kind, "loss")


def _range(column: str, shown: Sequence[np.ndarray], view: View) -> tuple[float, float, bool]:
    """Return low, high and whether the y axis is logarithmic; diverging lines leave the range."""
    values = np.concatenate([each.ravel() for each in shown]) if shown else np.array([0.0, 1.0])
    values = values[np.isfinite(values)]
    target = view.scenario.run.target_loss
    if column == "loss":
        first = max((float(each[0, 0]) for each in shown if np.isfinite(each[0, 0])), default=1.0)
        values = values[values <= 3 * max(first, 1e-300)]
        values = np.append(values, [] if target is None else [target])
    if not values.size:
        return 0.0, 1.0, False
    low, high = float(values.min()), float(values.max())
    if column == "loss" and low > 0 and high / low > 10:
        return math.log10(low / 1.25), math.log10(high * 1.25), True
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin, False


def _names(
    view: View,
    lines: dict[int, tuple[np.ndarray, np.ndarray]],
    axis: tuple[float, float, bool],
    dark: bool,
) -> list[dict[str, Any]]:
    """Write each name beside the end of its line, moved apart where names would overlap."""
    low, high, log = axis
    ends = []
    for index, (_, middle) in lines.items():
        seen = np.flatnonzero(np.isfinite(middle) & (middle > 0 if log else True))
        y = float(middle[seen[-1]]) if seen.size else math.inf
        height = math.log10(y) if log else y
        ends.append((index, min(max(height, low), high)))
    inner = HEIGHT - 80
    names = [two_lines(view.labels[index]) for index, _ in ends]
    rows = [15.0 * (1 + name.count("\n")) + 3 for name in names]
    wanted = [(height - low) / (high - low) * inner for _, height in ends]
    placed = plot.spread(wanted, rows, 0.0, float(inner))
    return [
        {
            "text": literal(name).replace("\n", "<br>"), "xref": "paper", "x": 1, "xshift": 8,
            "xanchor": "left", "align": "left", "yref": "paper", "y": at / inner,
            "yanchor": "middle", "showarrow": False,
            "font": {"color": text_colour(index, dark), "size": 13},
        }
        for (index, _), name, at in zip(ends, names, placed, strict=True)
    ]  # fmt: skip


def _bounds(view: View, longest: float) -> list[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """Theorem 2's bound with expected times, of the algorithms that it covers."""
    found = []
    for index, bound, seconds, tau in theorem(view.scenario):
        time = np.linspace(longest / POINTS, longest, POINTS)
        found.append((index, (time, np.array([bound(t, seconds, tau) for t in time]))))
    return found


def _title(text: str, dark: bool) -> dict[str, Any]:
    return {
        "text": text, "xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left",
        "yanchor": "bottom", "yshift": 8, "showarrow": False,
        "font": {"color": INK[dark][1], "size": 13},
    }  # fmt: skip


def _layout(dark: bool, height: int) -> dict[str, Any]:
    text, axis, grid = INK[dark]
    line = {
        "showline": True, "linecolor": axis, "gridcolor": grid, "zeroline": False,
        "ticks": "outside", "tickcolor": axis, "tickfont": {"color": axis, "size": 12},
        "title": {"font": {"color": axis, "size": 13}}, "automargin": False,
    }  # fmt: skip
    return {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "height": height,
        "font": {"family": "system-ui, sans-serif", "color": text, "size": 13},
        "xaxis": {**line, "showgrid": False}, "yaxis": dict(line),
        "hovermode": "closest", "uirevision": "same", "dragmode": False,
        "transition": {"duration": 0},
    }  # fmt: skip
