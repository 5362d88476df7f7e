"""Figures with a line for each algorithm: error, tau and bytes against time; staleness."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...results import wording
from ...results.figures.curves import in_picture
from ...results.run import STALENESS
from ...results.statistics import PREFIXES, number, time_unit, with_unit
from . import parts, series
from .series import Series

SPAN = 10  # where durations differ by more than this factor, the axis is logarithmic
DECADE = 10
DOTS = 9  # symbols on a line
SAMPLING = (
    f"Curves are drawn at {series.EVEN} even and {series.GEOMETRIC} geometric times (fewer where "
    f"there are more than {series.MANY} lines), linear between evaluations."
)


def over_time(  # noqa: PLR0913, PLR0917 - the parts of a figure
    identity: str, lines: Sequence[Series], column: str, axis: str, says: str, target: float | None
) -> parts.Figure:
    """Draw `column` of runs' curves: mean over seeds, and a band from smallest to largest."""
    curves = {line.key: series.sampled(line.runs, column, len(lines)) for line in lines}
    longest = max(time[-1] for time, _ in curves.values()) or 1.0  # where no step takes any time
    shortest = min(time[-1] for time, _ in curves.values())
    scale, unit = time_unit(longest)
    factor, axis = _factor(curves.values(), column, axis)
    data = []
    for line in lines:
        time, values = curves[line.key]
        data += _traces(line, time / scale, values / factor, column, unit)
        if target is not None:
            data += _reached(line, target, scale)
    slow = bool(longest > SPAN * shortest)
    # a logarithmic axis of time does not show the beginning, at 0
    shown = in_picture([each[:, int(slow) :] / factor for _, each in curves.values()], column)
    soon = min((each[each > 0][0] for each, _ in curves.values() if each[-1] > 0), default=longest)
    x, x_log = [0, longest / scale], np.log10([soon / scale, longest / scale]).tolist()
    vertical, y_log = _vertical(shown, target, column)
    shapes = [] if target is None else [_level(target)]
    layout: parts.Json = {
        "xaxis": {
            "title": {"text": f"wall-clock time ({unit})"},
            "type": "log" if slow else "linear",
            "unifiedhovertitle": {"text": f"after %{{x:.4~g}} {unit}"},
        },
        "yaxis": {"title": {"text": axis}, "type": "log" if y_log else "linear"},
        "hovermode": "x unified",
        "shapes": shapes,
        "annotations": [] if target is None else [_level_name(target)],
    }
    ranges = {"xaxis": {"linear": x, "log": x_log}, "yaxis": vertical}
    return parts.Figure(identity, says, data, layout, ranges, series.legend(lines))


def _factor(curves: object, column: str, axis: str) -> tuple[float, str]:
    """Return a divisor and the axis title: bytes are drawn in the unit that suits the largest."""
    if column != "bytes":
        return 1.0, axis
    most = max(float(np.nanmax(values)) for _, values in curves)  # type: ignore[attr-defined]
    power = min(max(int(math.log10(most) // 3), 0), len(PREFIXES) - 1) if most > 0 else 0
    return 1000.0**power, f"{axis} ({PREFIXES[power]}B)"


def _traces(
    line: Series, time: np.ndarray, values: np.ndarray, column: str, unit: str
) -> list[parts.Json]:
    """Draw the mean with symbols, open if it is measured, and a band if there are several seeds."""
    middle, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    shape = {"shape": "hv"} if column == "tau" else {}
    traces: list[parts.Json] = []
    x = series.rounded(time)
    if len(values) > 1:
        band = series.rounded(high) + series.rounded(low)[::-1]
        look = {"fill": "toself", "fillcolor": f"{line.colour}/0.15", "line": {"width": 0}}
        traces.append(_trace(line, "lines", x + x[::-1], band, **look))
    seeds = " (%{customdata[0]:.3~g} to %{customdata[1]:.3~g})" if len(values) > 1 else ""
    ends = zip(series.rounded(low, 3), series.rounded(high, 3), strict=True)
    width, dash = (1.4, "dot") if line.measured else (2, line.dash)
    said: dict[str, Any] = {
        "customdata": list(ends),
        "line": {"color": line.colour, "width": width, "dash": dash, **shape},
        "name": parts.literal(line.name),
        "hovertemplate": f"{parts.literal(line.name)}: %{{y:.3~g}}{seeds}<extra></extra>",
        "meta": "" if line.measured else "mean",
        "marker": _symbols(line),
    }
    return [*traces, _trace(line, "lines+markers", x, series.rounded(middle), **said)]


def _symbols(line: Series) -> parts.Json:
    symbol = f"{line.symbol}-open" if line.measured else line.symbol
    return {"symbol": symbol, "color": line.colour, "size": 7, "maxdisplayed": DOTS}


def _trace(line: Series, mode: str, x: list[Any], y: list[Any], /, **look: Any) -> parts.Json:
    """Return a trace of a line, which says nothing unless `look` names it."""
    silent = {} if "name" in look else {"hoverinfo": "skip", "name": ""}
    own = {"type": "scatter", "mode": mode, "x": x, "y": y, "legendgroup": line.key}
    return own | silent | look


def _reached(line: Series, target: float, scale: float) -> list[parts.Json]:
    """Draw a dot at the estimated time to target, with its interval."""
    times = line.row["time_to_target"] or {}
    if times.get("mean") is None or line.found.target != target:
        return []
    found = wording.of_one(line.row, "time_to_target")
    look = {
        "error_x": parts.error_bars([found], scale, color=line.colour, thickness=2, width=5),
        "marker": {"symbol": line.symbol, "color": line.colour, "size": 8},
    }
    return [_trace(line, "markers", [found.value / scale], [target], **look)]


def _vertical(shown: np.ndarray, target: float | None, column: str) -> tuple[parts.Json, bool]:
    """Return ranges of the y axis on both scales, and whether to begin with the logarithmic."""
    shown = np.append(shown, [] if target is None else [target])
    low = float(shown.min(initial=0 if not shown.size else np.inf))
    high = float(shown.max(initial=0))
    margin = 0.05 * (high - low) or 1.0
    floor = 0.0 if 0 <= low < high / 3 else low - margin
    ranges: parts.Json = {"linear": [floor, high + margin]}
    positive = shown[shown > 0]
    if positive.size:
        least = float(positive.min())
        ranges["log"] = np.log10([least / 1.25, high * 1.25]).tolist()
    return ranges, column == "loss" and low > 0 and high > DECADE * low


def _level(target: float) -> parts.Json:
    line = {"color": "--muted", "width": 1.2, "dash": "4px,3px"}
    ends = {"x0": 0, "x1": 1, "y0": target, "y1": target}
    return {"type": "line", "xref": "paper", "yref": "y", **ends, "line": line, "layer": "below"}


def _level_name(target: float) -> parts.Json:
    place = {"xref": "paper", "x": 1, "xanchor": "right", "y": target, "yanchor": "bottom"}
    look = {"showarrow": False, "font": {"color": "--muted"}}
    return {"name": "target", "text": f"target {target:g}", **place, **look}


def error(lines: Sequence[Series], target: float | None, name: str, heading: str) -> parts.Figure:
    """Draw error against time, or steps against time where there is no loss."""
    if any(np.isfinite(run.curve["loss"]).any() for line in lines for run in line.runs):
        says = f"{name} against wall-clock time, a line for each algorithm: {heading}"
        return over_time("error", lines, "loss", name, says, target)
    says = "local steps done against wall-clock time, a line for each algorithm"
    return over_time("error", lines, "step", "local steps done", says, None)


def tau(lines: Sequence[Series]) -> parts.PageSection | None:
    """Draw the communication period against time, of algorithms that change it."""
    changing = [
        line
        for line in lines
        if any(len(set(filter(math.isfinite, run.curve["tau"]))) > 1 for run in line.runs)
    ]
    if not changing:
        return None
    ends = []
    for line in changing:
        known = [t for t in line.runs[0].curve["tau"] if math.isfinite(t)]
        ends.append(f"{line.name} goes from tau = {known[0]:g} to {known[-1]:g}")
    heading = "; ".join(ends[:2])
    says = "the communication period tau against wall-clock time"
    figure = over_time("tau", changing, "tau", "tau (local steps per average)", says, None)
    return parts.PageSection("tau", heading, "Local steps between averages, over time.", [figure])


def sent(lines: Sequence[Series]) -> parts.PageSection | None:
    """Draw bytes sent against time."""
    sending = [line for line in lines if any(run.curve["bytes"][-1] > 0 for run in line.runs)]
    if not sending:
        return None
    rates = {
        line.name: float(
            np.mean([r.curve["bytes"][-1] / (r.duration or math.inf) for r in line.runs])
        )
        for line in sending
    }
    most, least = max(rates, key=lambda k: rates[k]), min(rates, key=lambda k: rates[k])
    heading = f"{most} sends {with_unit(rates[most], 'B/s')}"
    if least != most:
        heading = f"{least} sends the least, {with_unit(rates[least], 'B/s')}; {heading}"
    says = f"bytes sent by all nodes against wall-clock time: {heading}"
    figure = over_time("bytes", sending, "bytes", "sent by all nodes", says, None)
    return parts.PageSection("bytes", heading, "Total of all nodes, over time.", [figure])


def staleness(lines: Sequence[Series]) -> parts.PageSection | None:
    """Draw the distribution functions of staleness, a figure for each of its units."""
    delayed = [
        line for line in lines if (line.row.get("staleness") or {"max": 0})["max"] and line.runs
    ]
    if not delayed:
        return None
    units: dict[str, list[Series]] = {}
    for line in delayed:
        units.setdefault(line.row["staleness"]["unit"], []).append(line)
    figures = [_at_most(index, own, unit) for index, (unit, own) in enumerate(units.items())]
    worst = max(delayed, key=lambda line: line.row["staleness"]["mean"])
    counted = worst.row["staleness"]
    heading = (
        f"{worst.name} is the stalest: {number(counted['mean'])} {counted['unit']} on average, "
        f"at most {counted['max']}"
    )
    lead = "How old contributions are when the server or a worker uses them."
    return parts.PageSection("staleness", heading, lead, figures)


def _at_most(index: int, lines: Sequence[Series], unit: str) -> parts.Figure:
    data = []
    for line in lines:
        shares = {int(k): v for k, v in line.row["staleness"]["distribution"].items()}
        ages = sorted(shares)
        up_to = [*accumulate(100 * shares[age] for age in ages)]
        y = [0 if ages[0] else up_to[0], *series.rounded(np.array(up_to), 4), 100]
        name = parts.literal(line.name)
        look = {
            "line": {"shape": "hv", "color": line.colour, "dash": line.dash, "width": 2},
            "name": name,
            "hovertemplate": f"{name}: %{{y:.3~g}} at most %{{x}}<extra></extra>",
            "meta": "" if line.measured else "mean",
            "marker": _symbols(line),
        }
        data.append(_trace(line, "lines+markers", [0, *ages, ages[-1] * 1.02 + 0.5], y, **look))
    most = max(int(k) for line in lines for k in line.row["staleness"]["distribution"])
    across = {"title": {"text": f"staleness: {STALENESS.get(unit, unit)}"}}
    up = {"title": {"text": "contributions at most this stale"}, "ticksuffix": " %"}
    layout = {
        "xaxis": across | {"range": [0, most * 1.02 + 0.5]},
        "yaxis": up | {"range": [0, 103]},
    }
    says = f"share of contributions up to each staleness, in {unit}"
    legend = series.legend(lines)
    return parts.Figure(f"staleness-{index}", says, data, layout, {}, legend, height=300)
