"""Draw charts with matplotlib, for run directories and notebooks."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style
from .chart import Axis, Chart, Line, Panel

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 0.14  # distance between two marks of a line, as a share of the axes' diagonal
NARROW = 5.0  # inches of a figure, whose legend is below


def files(charts: Mapping[str, Chart | None]) -> dict[str, bytes]:
    """Return the charts that are not None as files in every chosen format, by name."""
    return {
        f"{name}.{kind}": encode(chart, kind)
        for name, chart in charts.items()
        if chart
        for kind in style.CHOSEN.get()
    }


@style.style()
def encode(chart: Chart, kind: str) -> bytes:
    """Return the chart as a file of one of `style.FORMATS`."""
    data = io.BytesIO()
    # undated, so that equal runs give equal bytes
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    draw(chart).savefig(data, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    return data.getvalue()


@style.style()
def draw(
    chart: Chart,
    size: tuple[float, float] | None = None,
    figure: "Figure | None" = None,
    *,
    band: bool = True,
) -> "Figure":
    """Draw a chart, in `size` inches, in an empty `figure` (default: a new one)."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [len(panel.y.names) for panel in chart.panels]
    heights = [1.0 + 0.32 * count if count else 2.7 for count in rows]
    alone = len(heights) == 1
    width, height = size or (6.5, 4.0 if alone and not rows[0] else sum(heights))
    figure = figure or Figure()
    figure.set_size_inches(width, height)
    column = figure.subplots(
        len(heights), squeeze=False, gridspec_kw={} if alone else {"hspace": 0.4}
    )[:, 0]
    for axes, panel in zip(column, chart.panels, strict=True):
        _panel(figure, axes, panel, band)
    where: Any = ("axes fraction", "offset points")
    column[0].set_title(chart.title, pad=22 + 12 * chart.caption.count("\n"))
    column[0].annotate(chart.caption, (0, 1), (0, 6), *where, color=style.GREY)
    return figure


def _panel(figure: "Figure", axes: "Axes", panel: Panel, band: bool) -> None:
    for place, line in enumerate(panel.lines):
        _line(axes, line, place, band)
    _axis(axes.xaxis, panel.x, axes.set_xscale, axes.set_xlim)
    _axis(axes.yaxis, panel.y, axes.set_yscale, axes.set_ylim)
    if panel.level is not None:
        level: Any = {"color": style.GREY, "linewidth": 0.8, "dashes": (4, 3), "zorder": 1}
        axes.axhline(panel.level, label=f"target {panel.level:g}", **level)
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(map(style.folded, labels), handles, strict=True))
    if entries:  # beside the axes, where no line crosses it
        where: Any = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
        if figure.get_figwidth() < NARROW:
            where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.25), "ncols": 2}
        axes.legend(entries.values(), entries.keys(), handlelength=3, frameon=False, **where)


def _line(axes: "Axes", line: Line, place: int, band: bool) -> None:
    look = line.look
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    every = (0.03 + 0.02 * (place % 6), FEW) if line.marks == "few" else None
    axes.plot(
        x,
        y,
        label=line.name if line.named else None,
        color=look.colour,
        linestyle=style.DASHES[look.dash] if line.joined else "none",
        drawstyle="steps-post" if line.steps else "default",
        linewidth=look.width,
        marker="" if line.marks == "none" else style.SYMBOLS[look.symbol],
        markersize=4,
        markerfacecolor="white" if look.hollow else look.colour,
        markevery=every,
        zorder=3,
    )
    how: Any = {"xytext": (5, 5), "textcoords": "offset points", "color": look.colour}
    for text, at in zip(line.labels, zip(x, y, strict=True), strict=False):
        axes.annotate(text, at, **how)
    if band and line.band is not None:
        axes.fill_between(x, *line.band, color=look.colour, alpha=0.18, linewidth=0)
    if line.x_bars is not None:
        how = {"fmt": "none", "ecolor": look.colour, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(x, y, xerr=np.abs(np.asarray(line.x_bars, dtype=float) - x), **how)


def _axis(axis: Any, spec: Axis, scale: Any, limits: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    axis.set_label_text(spec.title)
    ends = spec.limits
    if spec.log:
        scale("log", nonpositive="mask")
        few = ends is not None and ends[1] < 1000 * ends[0]
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axis.set_minor_formatter(NullFormatter())
    if ends is not None:
        limits(ends)
    if spec.names:
        axis.set_ticks(range(len(spec.names)), [*map(style.folded, spec.names)])
        return
    axis.set_major_formatter("{x:g}")
