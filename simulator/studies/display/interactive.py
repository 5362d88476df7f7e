"""A figure of matplotlib as one of plotly: the same lines, bands and axes, to hover and to zoom."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from plotly.subplots import make_subplots

SYMBOLS = {"o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down",
           "x": "x", "+": "cross", "P": "cross", "*": "star"}  # fmt: skip


def figure(drawn: Figure) -> go.Figure:
    """Return the figure, its panels beneath each other; lines are named as in matplotlib."""
    found = make_subplots(rows=len(drawn.axes), cols=1, vertical_spacing=0.12)
    named = set[str]()
    for row, axes in enumerate(drawn.axes, 1):
        for artist in axes.collections:
            for trace in _area(artist):
                found.add_trace(trace, row=row, col=1)
        for line in axes.lines:
            name = str(line.get_label())
            found.add_trace(_line(line, axes, new=name not in named), row=row, col=1)
            named.add(name)
        found.update_xaxes(row=row, col=1, **_axis(axes.get_xscale(), axes.get_xlim()))
        found.update_yaxes(row=row, col=1, **_axis(axes.get_yscale(), axes.get_ylim()))
        found.update_xaxes(title_text=axes.get_xlabel(), row=row, col=1)
        found.update_yaxes(title_text=axes.get_ylabel(), row=row, col=1)
    title = drawn.axes[0].get_title(loc="left")
    legend = {"orientation": "h", "y": -0.2, "yanchor": "top"}
    found.update_layout(title_text=title, template="plotly_white", legend=legend)
    return found


def _line(line: Line2D, axes: Axes, *, new: bool) -> go.Scatter:
    colour: Any = line.get_color()
    inside: Any = line.get_markerfacecolor()
    name, marker = str(line.get_label()), SYMBOLS.get(str(line.get_marker()))
    x, y = (np.asarray(each, dtype=float) for each in line.get_data())
    if line.get_transform() == axes.get_yaxis_transform():  # a level line, across the axes
        x = np.asarray(axes.get_xlim())
    lined = line.get_linestyle() not in ("None", "none", "", " ")
    shown = not name.startswith("_")
    colour, inside = to_hex(colour), to_hex(inside)
    return go.Scatter(
        x=x,
        y=y,
        name=name if shown else "",
        legendgroup=name,
        showlegend=shown and new,
        hoverinfo=None if shown else "skip",
        mode="+".join(["lines"] * lined + ["markers"] * bool(marker)) or "lines",
        line={"color": colour, "dash": "dash" if line.is_dashed() else "solid"},
        marker={"symbol": marker, "color": inside, "line": {"color": colour, "width": 1}},
    )


def _area(artist: Any) -> list[go.Scatter]:
    """Return bands as filled areas, and the bars of errors as lines."""
    how: dict[str, Any] = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    if isinstance(artist, LineCollection):
        colour = to_hex(np.asarray(artist.get_color())[0])
        ends = [np.vstack([each, [[np.nan, np.nan]]]) for each in artist.get_segments()]
        x, y = np.vstack(ends).T
        return [go.Scatter(x=x, y=y, line={"color": colour, "width": 1}, **how)]
    if not isinstance(artist, PolyCollection):
        return []
    red, green, blue, alpha = to_rgba(np.asarray(artist.get_facecolor())[0])
    fill = f"rgba({255 * red:.0f},{255 * green:.0f},{255 * blue:.0f},{alpha:.2f})"
    corners = [np.asarray(path.vertices).T for path in artist.get_paths() if len(path)]
    return [
        go.Scatter(x=x, y=y, fill="toself", fillcolor=fill, line={"width": 0}, **how)
        for x, y in corners
    ]


def _axis(scale: str, limits: tuple[float, float]) -> dict[str, Any]:
    if scale == "log":
        return {"type": "log", "range": np.log10(limits).tolist()}
    return {"range": [*map(float, limits)]}
