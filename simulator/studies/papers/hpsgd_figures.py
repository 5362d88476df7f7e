"""HPSGD's figures, redrawn."""

from dataclasses import replace

import numpy as np

from ...results.figures import curves, drawing
from ...results.figures.chart import Chart
from ...results.figures.style import COLOURS, GREY, PARTS, Figure, one_panel, titled
from ...results.statistics import at
from . import hpsgd
from .lab import Lab


def scale(lab: Lab) -> Figure:
    """Scale efficiency, psgd's time over each algorithm's, by number of workers."""
    figure, axes = one_panel()
    took = [hpsgd.paces(lab, count) for count in hpsgd.COUNTS]
    counts, ends = np.array(hpsgd.COUNTS), []
    for colour, name in zip(COLOURS, took[0], strict=False):
        each = np.array([paced["psgd"].mean() / paced[name].mean() for paced in took])
        axes.plot(counts, each, "o-", color=colour, linewidth=1.5)
        ends.append((name, colour, counts, each))
    axes.set(xticks=counts, xlabel="workers", ylabel="scale efficiency", ylim=(0, 1.05))
    drawing.label_ends(figure, axes, ends)
    caption = "a gradient's time over an iteration's; nothing is random"
    titled(axes, "HPSGD: scale efficiency", caption)
    return figure


def epoch(lab: Lab) -> Chart:
    """Seconds per iteration, split, with the fewest and the most workers."""
    groups = {}
    for workers in (hpsgd.COUNTS[0], hpsgd.COUNTS[-1]):
        for name, runs in hpsgd.timing(lab, workers).items():
            split = hpsgd.shares(lab, workers, name)
            groups[f"{workers} workers: {name}"] = [
                replace(run, seconds=dict(zip(PARTS, run.duration * own, strict=False)))
                for run, own in zip(runs, split, strict=True)
            ]
    return curves.breakdown(groups, title="HPSGD: where an iteration's time goes")


def accuracy(lab: Lab) -> Figure:
    """Test accuracy of the stand-in against time, while it rises."""
    figure, axes = one_panel()
    found, ends = lab.runs(hpsgd.ACCURACY).groups, []
    time = np.linspace(0, min(run.duration for run in found["hpsgd"]) / 2, 200)  # seconds
    for colour, (name, runs) in zip(COLOURS, found.items(), strict=False):
        each = 100 * np.array([[at(run, t, "accuracy") for t in time] for run in runs])
        middle = each.mean(axis=0)
        axes.plot(time, middle, color=colour, linewidth=1.5)
        low, high = each.min(axis=0), each.max(axis=0)
        axes.fill_between(time, low, high, color=colour, alpha=0.18, linewidth=0)
        ends.append((name, colour, time, middle))
    for target in hpsgd.TARGETS:
        axes.axhline(100 * target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.set(xlim=(0, time[-1]), ylim=(0, 100))
    axes.set(xlabel="wall-clock time (s)", ylabel="test accuracy (%)")
    drawing.label_ends(figure, axes, ends)
    seeds = len(found["hpsgd"])
    caption = (
        f"mean of {seeds} seeds, band from smallest to largest; dashed: the paper's 40 %, 80 %"
    )
    titled(axes, "HPSGD: accuracy of a stand-in, 4 workers", caption)
    return figure
