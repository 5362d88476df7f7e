"""All figures of a result, and the curves among them: error, and tau, against wall-clock time."""

import io
from collections.abc import Mapping, Sequence

import numpy as np

from .. import divergence
from ..run import Run
from ..statistics import Groups, sampled, time_unit
from . import bars, style
from .style import Axes, Figure

LOSS_NAMES = {  # axis labels, by the kind of the objective
    "bound": "bound on the squared gradient norm",
    "softmax": "training loss",
    "torch": "training loss",
}
LOWEST = 0.02  # of a mean's points, which may lie below the axis of a loss
POINTS = 400  # more than a figure can show
SPAN = 25  # durations further apart than this need a logarithmic axis
LEADER = {"arrowstyle": "-", "linestyle": (0, (1, 2)), "linewidth": 0.7, "relpos": (0, 0.5)}


def figures(
    groups: Groups, *, title: str, target: float | None, loss: str = "loss"
) -> dict[str, bytes]:
    """Return all figures of the runs, by file name.

    `target`: the loss to reach; `loss`: what the axis calls it.
    """
    with style.style():
        drawn = {
            "figure": error(groups, title=title, target=target, loss=loss),
            "breakdown": bars.breakdown(groups, title=title),
            "tau": tau(groups, title=title),
            "staleness": bars.staleness(groups, title=title),
        }
        return files(drawn)


def files(drawn: Mapping[str, Figure | None]) -> dict[str, bytes]:
    """Return the figures that are not None, in every chosen format, by file name."""
    return {
        f"{name}.{kind}": encode(figure, kind)
        for name, figure in drawn.items()
        if figure
        for kind in style.chosen_formats()
    }


def encode(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file of one of `style.FORMATS`."""
    data = io.BytesIO()
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    metadata = dated.get(kind, {})  # undated, so that equal runs give equal bytes
    figure.savefig(data, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    return data.getvalue()


def error(groups: Groups, *, title: str, target: float | None, loss: str = "loss") -> Figure:
    """Draw the loss against wall-clock time; without a loss, the steps done."""
    if any(np.isfinite(run.curve["loss"]).any() for runs in groups.values() for run in runs):
        return _curves(groups, "loss", title=title, name=loss, target=target)
    return _curves(groups, "step", title=title, name="local steps done", target=None)


def tau(groups: Groups, *, title: str) -> Figure | None:
    """Draw the communication period over time, of algorithms that change it; None without any."""
    changing = {
        label: runs
        for label, runs in groups.items()
        if any(len(set(filter(np.isfinite, run.curve["tau"]))) > 1 for run in runs)
    }
    if not changing:
        return None
    return _curves(changing, "tau", title=title, name="tau (local steps per average)", target=None)


def _curves(groups: Groups, column: str, *, title: str, name: str, target: float | None) -> Figure:
    """Draw a line per algorithm: the mean over seeds, and a band from smallest to largest."""
    figure, axes = style.one_panel()
    lines = {label: on_a_grid(runs, column) for label, runs in groups.items()}
    durations = [time[-1] for time, _ in lines.values()]
    shortest, longest = min(durations), max(durations)
    size, unit = time_unit(longest)
    ends = []
    for index, (label, (time, values)) in enumerate(lines.items()):
        colour, middle = style.look(index)[0], values.mean(axis=0)
        how = style.line(index)
        axes.plot(time / size, middle, label=label, linewidth=1.5, zorder=3, **how)
        band(axes, time / size, values, colour)
        ends.append((label, colour, time / size, middle))
    axes.set_xlabel(f"wall-clock time ({unit})")
    axes.set_ylabel(name)
    if longest > SPAN * shortest > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(shortest / SPAN / size, longest / size)
    else:
        axes.set_xlim(0, longest / size or 1)
    shown = in_picture([values for _, values in lines.values()], column)
    vertical(axes, [*shown, *([] if target is None else [target])])
    if target is not None:
        axes.axhline(target, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        _label_target(figure, axes, target, [(time, values) for *_, time, values in ends])
    label_ends(figure, axes, ends)
    seeds = max(map(len, groups.values()))
    caption = f"mean of {seeds} seeds, band from smallest to largest" if seeds > 1 else "one seed"
    if column == "loss":
        # a mean that leaves the axes would not show which algorithms diverged
        lost = {label: divergence.summary(runs) for label, runs in groups.items()}
        said = [divergence.sentence(label, each) for label, each in lost.items() if each]
        caption = "; ".join([caption, *said])
    style.titled(axes, title, caption)
    return figure


def band(
    axes: Axes, times: np.ndarray, values: np.ndarray, colour: str, alpha: float = 0.18
) -> None:
    """Fill from the smallest to the largest of several seeds, (seeds, points)."""
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(times, low, high, color=colour, alpha=alpha, linewidth=0)


def in_picture(lines: Sequence[np.ndarray], column: str) -> np.ndarray:
    """Return the finite values of lines, each (seeds, points), that the axis must show.

    Of losses that is all but those that diverge from the first ones, and those of single seeds and
    moments far below what the means fall to: one such line would hide all others.
    """
    values: np.ndarray = np.concatenate([each.ravel() for each in lines])
    values = values[np.isfinite(values)]
    if column != "loss" or not values.size:
        return values
    first = [each[0, 0] for each in lines]
    known = [abs(each) for each in first if not np.isnan(each)]  # none of a bound
    most = divergence.BOUND * max(known, default=np.inf)
    usual = min(np.nanmax([*first, np.median(values)]), most)
    means = [mean[np.isfinite(mean)] for mean in (each.mean(axis=0) for each in lines)]
    least = min([np.quantile(mean, LOWEST) for mean in means if mean.size] + first)
    seen = (values <= usual + 2 * abs(usual)) & (values >= least - abs(least) / 2)
    return np.asarray(values[seen])


def on_a_grid(runs: Sequence[Run], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times (points,) that all seeds have, and each seed's values then (seeds, points)."""
    times = [run.curve["time"] for run in runs]
    grid = np.linspace(max(time[0] for time in times), min(time[-1] for time in times), POINTS)
    return grid, sampled(runs, column, grid)


def vertical(axes: Axes, shown: Sequence[float]) -> None:
    """Fit the y axis to what is shown: logarithmic if that spans a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    low, high = min(shown), max(shown)
    if low > 0 and high / low > 10:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
        few = high / low < 1000
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        margin = 0.05 * (high - low) or 1
        axes.set_ylim(low - margin, high + margin)
    axes.yaxis.set_major_formatter("{x:g}")


def _label_target(
    figure: Figure, axes: Axes, target: float, lines: Sequence[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Label the target above its line, where the fewest curves are in the way."""
    at = ("axes fraction", "data")
    text = axes.annotate(
        f"target {target:g}", (0, target), (4, 3), at, "offset points", color=style.GREY
    )
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
