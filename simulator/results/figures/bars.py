"""Figures of bars: where the time goes, and how stale contributions were."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..run import STALENESS, Run
from ..statistics import Groups, human, number, staleness_counts
from .style import (
    COLOURS,
    Axes,
    Figure,
    empty,
    ink,
    one_panel,
    titled,
    two_lines,
)

PARTS = {  # colour of a bar, and of the text on it
    "compute": ("#0072B2", "white"),
    "wait": ("#E69F00", "black"),
    "communicate": ("#CC79A7", "black"),
    "stalled": ("#882255", "white"),
    "lost": ("#D55E00", "white"),
    "down": ("#444444", "white"),
    "absent": ("#BBBBBB", "black"),
    "unselected": ("#E3E3E3", "black"),
}


def breakdown(groups: Groups, *, title: str) -> Figure:
    """Draw the seconds per step of each algorithm, split into what they are spent on."""
    figure, axes = one_panel(1.0 + 0.32 * len(groups))
    bars = [_per_step(runs) for runs in groups.values()]
    totals = [sum(bar.values()) for bar in bars]
    rows = range(len(bars))
    left = np.zeros(len(bars))
    parts = {part: look for part, look in PARTS.items() if any(part in bar for bar in bars)}
    for part, (colour, text) in parts.items():
        widths = np.array([bar.get(part, 0.0) for bar in bars])
        drawn = axes.barh(rows, widths, left=left, height=0.62, color=colour)
        shares = [
            f"{100 * width / total:.0f} %" if width > 0.07 * max(totals) else ""
            for width, total in zip(widths, totals, strict=True)
        ]
        axes.bar_label(drawn, shares, label_type="center", color=text, fontsize=8)
        left += widths
    axes.bar_label(drawn, [_total(bar, 0.15 * max(totals)) for bar in bars], padding=4)
    axes.set_yticks(rows, list(map(two_lines, groups)))
    axes.tick_params(axis="y", length=0, labelcolor="black")
    axes.invert_yaxis()
    axes.set_xlabel("seconds per local step, mean over workers and seeds")
    place = 0.0
    for part, (colour, _) in parts.items():
        words = axes.annotate(
            part, (0, 1), (place, 6), "axes fraction", "offset points", color=colour, weight="bold"
        )
        place += words.get_window_extent().width * 72 / figure.dpi + 10
    axes.set_title(title, pad=22)
    return figure


def _total(bar: dict[str, float], short: float) -> str:
    """Text after a bar: its length and, where it is too short to hold them, its shares."""
    total = sum(bar.values())
    shares = " / ".join(f"{100 * seconds / total:.0f}" for seconds in bar.values()) if total else ""
    return f"{human(total)}: {shares} %" if 0 < total < short else human(total)


def _per_step(runs: Sequence[Run]) -> dict[str, float]:
    """Return the seconds per step (mean over seeds), in proportion to the workers' time by part."""
    scaled = [(run, sum(run.seconds.values()) * run.steps / (run.duration or 1)) for run in runs]
    return {
        part: float(np.mean([run.seconds[part] / scale if scale else 0 for run, scale in scaled]))
        for part in runs[0].seconds
    }


def staleness(groups: Groups, *, title: str) -> Figure | None:
    """Draw how stale the contributions were, a row per algorithm that had any stale ones.

    Each row has its own scale: a constant delay is one bar of 100 %, a queue many small ones.
    Rows of the same unit are adjacent and share an axis.
    """
    units: dict[str, dict[str, dict[int, int]]] = {}
    for label, runs in groups.items():
        if any(counts := staleness_counts(runs)):
            unit = next(run.staleness_unit for run in runs if run.staleness)
            units.setdefault(unit, {})[label] = counts
    if not units:
        return None
    colours = {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(groups)}
    row, pitch, below = 0.55, 0.7, 0.4  # inches: bars, from row to row, ticks and their name
    height = top = sum(len(rows) * pitch + below for rows in units.values())
    figure = empty(height)
    for unit, rows in units.items():
        largest = max(map(max, rows.values()))
        for label, counts in rows.items():
            axes = figure.add_axes((0.125, (top - row) / height, 0.775, row / height))
            _integers(axes, largest)
            _bars(axes, counts, label, colours[label])
            top -= pitch
        axes.tick_params(labelbottom=True)
        axes.set_xlabel(f"staleness: {STALENESS.get(unit, unit)}")
        top -= below
    caption = "share of contributions, each row on its own scale; a dot marks the stalest"
    titled(figure.axes[0], title, caption)
    return figure


def _integers(axes: Axes, largest: int) -> None:
    """Give the x axis ticks at whole numbers up to `largest`, without labels."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    margin = max(0.6, 0.015 * largest)
    axes.set_xlim(-margin, largest + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))
    axes.tick_params(labelbottom=False)


def _bars(axes: Axes, counts: Mapping[int, int], label: str, colour: str) -> None:
    """Draw the share of each staleness, mark the largest, and name the algorithm on the right."""
    total, most = sum(counts.values()), max(counts)
    shares = {stale: count / total for stale, count in counts.items()}
    mean, peak = sum(stale * share for stale, share in shares.items()), max(shares.values())
    # the edges keep a bar visible where it is narrower than a pixel
    axes.bar(
        [*shares],
        [*shares.values()],
        width=0.8 if axes.get_xlim()[1] < 40 else 1,
        color=colour,
        edgecolor=colour,
        linewidth=0.8,
    )
    dark = ink(colour)
    axes.plot(most, shares[most], "o", color=dark, mec="white", mew=0.7, ms=5, clip_on=False)
    axes.set_ylim(0, 1.1 * peak)
    axes.set_yticks([peak], [f"{number(100 * peak)} %"])
    said = f"mean {number(mean)}, max {most}" if len(shares) > 1 else f"always {most}"
    text, units = f"{two_lines(label)}\n{said}", ("axes fraction", "offset points")
    axes.annotate(text, (1, 0.5), (14, 0), *units, color=dark, verticalalignment="center")
