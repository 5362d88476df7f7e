"""Draw charts with matplotlib: files of a run directory, and figures of notebooks."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import style
from .chart import Axis, Bars, Chart, Line, Panel
from .style import Axes, Figure

LEADER = {"arrowstyle": "-", "linestyle": (0, (1, 2)), "linewidth": 0.7, "relpos": (0, 0.5)}
FEW = 0.14  # of a line: between its marks
ROOM = 0.07  # of the longest bar: a shorter part has no room for its label


def files(drawn: Mapping[str, Chart | Figure | None]) -> dict[str, bytes]:
    """Return the figures that are not None, in every chosen format, by file name."""
    return {
        f"{name}.{kind}": encode(figure, kind)
        for name, figure in drawn.items()
        if figure
        for kind in style.chosen_formats()
    }


def encode(figure: Chart | Figure, kind: str) -> bytes:
    """Return the figure as a file of one of `style.FORMATS`."""
    data = io.BytesIO()
    # undated, so that equal runs give equal bytes
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    drawn = draw(figure) if isinstance(figure, Chart) else figure
    drawn.savefig(data, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    return data.getvalue()


def draw(chart: Chart) -> Figure:
    """Draw a chart; call it within `style.style()`."""
    heights = [1.0 + 0.32 * len(p.y.names) if p.bars else 2.7 for p in chart.panels]
    alone = len(heights) == 1
    figure = style.empty(4.0 if alone and not chart.panels[0].bars else sum(heights))
    column = figure.subplots(
        len(heights), squeeze=False, gridspec_kw={} if alone else {"hspace": 0.4}
    )[:, 0]
    for axes, panel in zip(column, chart.panels, strict=True):
        _panel(figure, axes, panel)
    above = 6 if not chart.panels[0].heading else 20
    if chart.panels[0].bars:
        column[0].set_title(chart.title, pad=22)
    else:
        style.titled(column[0], chart.title, chart.caption, above=above)
    return figure


def _panel(figure: Figure, axes: Axes, panel: Panel) -> None:
    for place, line in enumerate(panel.lines):
        _line(axes, line, place)
    if panel.bars:
        _bars(figure, axes, panel)
    _axis(axes.xaxis, panel.x, axes.set_xscale, axes.set_xlim)
    _axis(axes.yaxis, panel.y, axes.set_yscale, axes.set_ylim)
    if panel.bars:
        axes.tick_params(axis="y", length=0, labelcolor="black")
        axes.invert_yaxis()
    ends = {line.name: line for line in panel.lines if line.named}
    curves = [(name, each.look.colour, *_points(each)) for name, each in ends.items()]
    if panel.level is not None:
        axes.axhline(panel.level, color=style.GREY, linewidth=0.8, dashes=(4, 3), zorder=1)
        _label_level(figure, axes, panel.level, [(x, y) for *_, x, y in curves])
    label_ends(figure, axes, curves)
    if panel.heading:
        where: Any = ("axes fraction", "offset points")
        axes.annotate(panel.heading, (0, 1), (0, 6), *where, weight="bold")


def _points(line: Line) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)


def _line(axes: Axes, line: Line, place: int) -> None:
    look, (x, y) = line.look, _points(line)
    every = (0.03 + 0.02 * (place % 6), FEW) if line.marks == "few" else None
    axes.plot(
        x,
        y,
        label=line.name if line.named else None,
        color=look.colour,
        linestyle=style.DASHES[look.dash] if line.joined else "none",
        drawstyle="steps-post" if line.steps else "default",
        linewidth=look.width,
        alpha=look.opacity,
        marker="" if line.marks == "none" else style.SYMBOLS[look.symbol],
        markersize=4,
        markerfacecolor="white" if look.hollow else look.colour,
        markevery=every,
        zorder=3,
    )
    if line.band is not None:
        axes.fill_between(x, *line.band, color=look.colour, alpha=0.18, linewidth=0)
    bars = [
        None if ends is None else np.abs(np.asarray(ends, dtype=float) - middle)
        for ends, middle in ((line.x_bars, x), (line.y_bars, y))
    ]
    if any(each is not None for each in bars):
        how: Any = {"fmt": "none", "ecolor": look.colour, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(x, y, xerr=bars[0], yerr=bars[1], **how)


def _axis(axis: Any, spec: Axis, scale: Any, limits: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator  # noqa: PLC0415

    axis.set_label_text(spec.title)
    ends = spec.shown
    if spec.log:
        scale("log")
        few = ends is not None and ends[1] < 1000 * ends[0]
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axis.set_minor_formatter(NullFormatter())
    if ends is not None:
        limits(ends)
    if spec.names:
        axis.set_ticks(range(len(spec.names)), [*map(style.two_lines, spec.names)])
        return
    axis.set_major_formatter("{x:g}")
    if spec.ticks:
        axis.set_ticks([*spec.ticks], [*spec.ticks.values()])
        axis.set_minor_locator(NullLocator())


def _bars(figure: Figure, axes: Axes, panel: Panel) -> None:
    """Draw stacked bars with their labels, and the names of the parts above."""
    ends = [np.add(each.starts, each.widths) for each in panel.bars]
    longest = max((float(each.max()) for each in ends if each.size), default=0.0)
    right = 0.0
    for bars in panel.bars:
        colour, ink = style.PARTS[bars.name]
        drawn = axes.barh(bars.rows, bars.widths, left=bars.starts, height=0.62, color=colour)
        labels = [
            label if width > ROOM * longest else ""
            for label, width in zip(bars.labels, bars.widths, strict=True)
        ]
        axes.bar_label(drawn, labels, label_type="center", color=ink, fontsize=8)
        where: Any = ("axes fraction", "offset points")
        name = axes.annotate(bars.name, (0, 1), (right, 6), *where, color=colour, weight="bold")
        right += name.get_window_extent().width * 72 / figure.dpi + 10
    for row, text in enumerate(panel.totals):
        end = _end(panel.bars, row)
        axes.annotate(text, (end, row), (4, 0), textcoords="offset points", va="center")


def _end(every: Sequence[Bars], row: int) -> float:
    """Return where the last bar of a row ends."""
    return max(
        float(start + width)
        for bars in every
        for place, start, width in zip(bars.rows, bars.starts, bars.widths, strict=True)
        if place == row
    )


def _label_level(
    figure: Figure, axes: Axes, level: float, lines: Sequence[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Label the target above its line, where the fewest curves are in the way."""
    where: Any = (("axes fraction", "data"), "offset points")
    text = axes.annotate(f"target {level:g}", (0, level), (4, 3), *where, color=style.GREY)
    figure.draw_without_rendering()
    box, room = text.get_window_extent(), axes.bbox
    curves = np.concatenate([axes.transData.transform(np.column_stack(line)) for line in lines])
    x = curves[(curves[:, 1] > box.y0) & (curves[:, 1] < box.y1), 0]
    starts = np.linspace(room.x0 + 4, max(room.x0 + 4, room.x1 - box.width), 20)
    crowds = [np.count_nonzero((x > start) & (x < start + box.width)) for start in starts]
    text.set_x((starts[np.argmin(crowds)] - room.x0) * 72 / figure.dpi)


def label_ends(
    figure: Figure, axes: Axes, ends: Sequence[tuple[str, str, np.ndarray, np.ndarray]]
) -> None:
    """Write each name at the end of its line, right of the axes, moved apart where they meet."""
    figure.draw_without_rendering()
    to_pixels, to_axes = axes.transData.transform, axes.transAxes.inverted().transform
    bottom, top = axes.get_ylim()
    places = {}
    for label, colour, times, values in ends:
        seen = np.flatnonzero((values >= bottom) & (values <= top))
        if seen.size:
            x, y = times[seen[-1]], values[seen[-1]]
            axes.plot(x, y, "o", color=colour, markersize=3, clip_on=False)
            places[label] = to_pixels((x, y)), colour
    right, line = axes.bbox.x1, figure.dpi / 72 * 11
    names = list(map(style.two_lines, places))
    room = [line * (1 + name.count("\n")) for name in names]
    heights = spread([y for (_, y), _ in places.values()], room, axes.bbox.y0, axes.bbox.y1)
    for name, (end, colour), moved in zip(names, places.values(), heights, strict=True):
        axes.annotate(
            name,
            tuple(to_axes(end)),
            tuple(to_axes((right + 14, moved))),
            "axes fraction",
            "axes fraction",
            color=style.ink(colour),
            verticalalignment="center",
            annotation_clip=False,
            arrowprops=LEADER | {"color": colour},
        )


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Return positions in [low, high] near `wanted`, in the same order, for labels of `heights`.

    The nearest positions in least squares without overlap: an isotonic regression.
    """
    n = len(wanted)
    order = np.argsort(wanted, kind="stable")
    each = np.asarray(heights)[order]
    stacked = np.cumsum(each) - (each + each[:1]) / 2  # the middles, from the first one on
    free = np.asarray(wanted)[order] - stacked
    level = [
        max(min(free[j : k + 1].mean() for k in range(i, n)) for j in range(i + 1))
        for i in range(n)
    ]
    fitted = np.clip(level, low, max(low, high - stacked.max(initial=0))) + stacked
    result = np.empty(n)
    result[order] = fitted
    return result.tolist()
