"""Describe panels for Plotly, as JSON for a page's scripts.

Texts such as "--c0" or "--c0/0.15" (with an opacity) stand for colours of the page's style sheet,
so that a page can be light or dark.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import style
from .chart import Axis, Ends, Line, Panel, Values

Json = dict[str, Any]
FAR = 1e3  # times a value: where the bar of an interval is cut
DOTS = 9  # most symbols on a line
TOKENS = {colour: f"--c{index}" for index, colour in enumerate(style.COLOURS)}
TOKENS[style.GREY] = "--muted"
ESCAPES = (("&", "&#38;"), ("<", "&#60;"), (">", "&#62;"), ("%{", "%&#123;"))


def literal(text: str) -> str:
    """Escape `text` for Plotly, which reads <b>, &lt; and %{x} as markup."""
    for letter, code in ESCAPES:
        text = text.replace(letter, code)
    return text


def spec(panel: Panel) -> Json:
    """Return a panel as JSON: Plotly's traces and layout, and further data for figures.js.

    `lines`: name, colour, dash and symbol of each line that readers can hide, by key.
    """
    layout: Json = {"xaxis": _axis(panel.x), "yaxis": _axis(panel.y)}
    if panel.over_time:
        unit = panel.x.title.rpartition("(")[2].strip(")")
        layout["hovermode"] = "x unified"
        layout["xaxis"]["unifiedhovertitle"] = {"text": f"after %{{x:.4~g}} {unit}"}
    if panel.level is not None:
        line = {"color": "--muted", "width": 1.2, "dash": "4px,3px"}
        ends = {"x0": 0, "x1": 1, "y0": panel.level, "y1": panel.level}
        shape = {"type": "line", "xref": "paper", "yref": "y", "layer": "below", "line": line}
        layout["shapes"] = [shape | ends]
        place = {"xref": "paper", "x": 1, "xanchor": "right", "y": panel.level, "yanchor": "bottom"}
        label = {"name": "target", "text": f"target {panel.level:g}", "showarrow": False}
        layout["annotations"] = [label | place | {"font": {"color": "--muted"}}]
    lines: Json = {}
    for shown in panel.lines:
        if shown.key and shown.named:
            look = {"colour": _token(shown.look.colour), "dash": shown.look.dash}
            lines.setdefault(shown.key, {"name": shown.name, "symbol": shown.look.symbol} | look)
    return {"data": traces(panel), "layout": layout, "lines": lines, "height": panel.height}


def traces(panel: Panel) -> list[Json]:
    """Return Plotly's traces of a panel; lines in the legend have the `meta` "mean"."""
    names = [*map(literal, panel.y.names)]
    drawn = [trace for line in panel.lines for trace in _line(line)]
    for trace in drawn if names else ():
        trace["y"] = [names[round(place)] for place in trace["y"]]
    return drawn


def _line(line: Line) -> list[Json]:
    """Return a line's traces: any band first, then the mean with its marks."""
    look, name = line.look, literal(line.name)
    colour = _token(look.colour)
    x, y = rounded(line.x), rounded(line.y)
    shape = {"shape": "hv"} if line.steps else {}
    trace: Json = {"type": "scatter", "legendgroup": line.key}
    result: list[Json] = []
    between = ""
    if line.band is not None:
        low, high = map(rounded, line.band)
        around = {"x": x + x[::-1], "y": high + low[::-1], "mode": "lines", "fill": "toself"}
        faint = {"fillcolor": f"{colour}/0.15", "line": {"width": 0}, "hoverinfo": "skip"}
        result.append(trace | around | faint | {"name": ""})
        between = " (%{customdata[0]:.3~g} to %{customdata[1]:.3~g})"
        trace["customdata"] = [*map(list, zip(low, high, strict=True))]
    if line.texts:
        trace["customdata"] = [*map(literal, line.texts)]
    hover = "%{customdata}" if line.texts else f"{name}: %{{y:.4~g}}{between}"
    symbol = f"{look.symbol}-open" if look.hollow else look.symbol
    many = {"maxdisplayed": DOTS} if line.marks == "few" else {}
    kinds = ["lines"] * line.joined + ["markers"] * (line.marks != "none")
    kinds += ["text"] * bool(line.labels)
    how: Json = {"text": [*line.labels], "textposition": "top center"} if line.labels else {}
    silent = not (line.texts or line.named or look.hollow)
    bars = {"error_x": _error_bars(line.x, line.x_bars, colour)} if line.x_bars else {}
    main = {
        "x": x,
        "y": y,
        "mode": "+".join(kinds),
        "name": "" if silent else name,
        "meta": "mean" if line.named else "",
        "line": {"color": colour, "width": look.width, "dash": look.dash, **shape},
        "marker": {"symbol": symbol, "color": colour, "size": 7, **many},
        **({"hoverinfo": "skip"} if silent else {"hovertemplate": f"{hover}<extra></extra>"}),
    }
    return [*result, trace | how | main | bars]


def _error_bars(middle: Values, ends: Ends, colour: str) -> Json:
    """Return intervals as error bars; infinite ends become large numbers, for JSON."""
    lows, highs = (np.asarray(end, dtype=float) for end in ends)
    values = np.asarray(middle, dtype=float)
    above = np.minimum(highs - values, FAR * (np.abs(values) + 1))
    arrays = {"array": rounded(above), "arrayminus": rounded(values - lows)}
    return {"type": "data", "symmetric": False, **arrays, "color": colour, "thickness": 1.2}


def _axis(axis: Axis) -> Json:
    result: Json = {"title": {"text": literal(axis.title)}}
    if axis.names:
        names = [*map(literal, axis.names)]
        order = {"categoryorder": "array", "categoryarray": names, "automargin": True}
        return result | {"type": "category", **order}
    if axis.log:
        result["type"] = "log"
    if axis.limits:
        ends = np.asarray(axis.limits, dtype=float)
        result["range"] = (np.log10(ends) if axis.log else ends).tolist()
    return result


def _token(colour: str) -> str:
    return TOKENS.get(colour, colour)


def rounded(values: Iterable[Any], digits: int = 5) -> list[float | None]:
    """Round numbers for JSON, which halves its size without visible change; None for nan."""
    numbers = np.asarray(values, dtype=float).tolist()
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in numbers]
