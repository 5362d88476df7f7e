"""Figures of a comparison: measured curves over predicted ones, and a scatter of both."""

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.simulator.results.figures import curves as plot
from paceline.simulator.results.figures import style
from paceline.simulator.results.figures.style import Axes, Figure
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import time_unit

from .quantities import PACE, TARGET, Row
from .statistics import ComparisonStatistics

DOTS = 15  # markers on a measured curve
NEAR = 0.1  # relative error of the scatter's band


def figures(result: ComparisonStatistics) -> dict[str, bytes]:
    """Return every figure by file name; the same numbers give the same bytes."""
    with style.style():
        drawn = {"comparison": curves(result), "scatter": scatter(result)}
        return plot.files(drawn)


def curves(result: ComparisonStatistics) -> Figure:
    """Draw the loss, or without one the steps, against wall-clock time.

    A line per prediction, dots of its colour for the runs that it is compared with; they are
    hollow if those runs are not evidence.
    """
    figure, axes = style.one_panel()
    sides = [(result.predicted.runs[label], result.measured.runs[label]) for label in result.labels]
    everything = [run for side in sides for runs in side for run in runs]
    column = "loss" if any(np.isfinite(run.curve["loss"]).any() for run in everything) else "step"
    longest = max(run.duration for run in everything)
    size, unit = time_unit(longest)
    ends, shown = [], []
    for index, (label, (predicted, measured)) in enumerate(zip(result.labels, sides, strict=True)):
        colour, _, symbol = style.look(index)
        times, values = plot.on_a_grid(predicted, column)
        look = style.line(index, marker="")
        axes.plot(times / size, values.mean(axis=0), label=label, lw=1.3, zorder=3, **look)
        plot.band(axes, times / size, values, colour, alpha=0.15)
        shown.append(values)
        times, values = plot.on_a_grid(measured, column)
        dots = np.linspace(0, plot.POINTS - 1, DOTS).astype(int).tolist()
        axes.plot(
            times / size,
            values.mean(axis=0),
            "-",
            marker=style.SYMBOLS[symbol],
            markevery=dots,
            label=f"{label}, {result.basis}",
            color=colour,
            mfc=_fill(result, label),
            linewidth=0.5,
            markersize=3.5,
            zorder=4,
        )
        ends.append((label, colour, times / size, values.mean(axis=0)))
        plot.band(axes, times / size, values, colour, alpha=0.3)
        shown.append(values)
    axes.set_xlim(0, longest / size or 1)
    axes.set_xlabel(f"wall-clock time ({unit})")
    axes.set_ylabel({"loss": "loss", "step": "local steps done"}[column])
    plot.vertical(axes, [*plot.in_picture(shown, column)])
    plot.label_ends(figure, axes, ends)
    several = any(len(runs) > 1 for side in sides for runs in side)
    bands = "; bands from smallest to largest seed" if several else "; one seed each"
    _caption(axes, f"lines: predicted, dots: {result.basis}{bands}", result)
    return figure


def scatter(result: ComparisonStatistics) -> Figure | None:
    """Draw predicted against measured: seconds per step and, where there are any, times to target.

    None if no algorithm has both, above zero.
    """
    panels: dict[str, Mapping[str, Row]] = {
        name: {
            k: row
            for k, row in result.of(key, counted=False).items()
            if row["predicted"] and row["measured"]
        }
        for name, key in (("seconds per step", PACE), (f"time to loss {result.target}", TARGET))
    }
    panels = {name: rows for name, rows in panels.items() if rows}
    if not panels:
        return None
    figure = style.empty(4.2 * len(panels))
    column = figure.subplots(len(panels), squeeze=False, gridspec_kw={"hspace": 0.3})[:, 0]
    for axes, (name, rows) in zip(column, panels.items(), strict=True):
        _panel(figure, axes, name, rows, result)
    said = f"on the diagonal: exact; band: within {100 * NEAR:.0f} %; bars: {USUAL} over seeds"
    _caption(column[0], said, result)
    return figure


def _panel(
    figure: Figure, axes: Axes, name: str, rows: Mapping[str, Row], result: ComparisonStatistics
) -> None:
    values = np.array([[row["measured"], row["predicted"]] for row in rows.values()])
    size, unit = time_unit(float(values.min()))
    if values.max() < 2:
        size, unit = 1e-3, "ms"
    low, high = values.min() / size / 1.25, values.max() / size * 1.25
    line = np.geomspace(low, high, 50)
    axes.plot(line, line, color=style.GREY, linewidth=0.8, zorder=1)
    near = (1 - NEAR) * line, (1 + NEAR) * line
    axes.fill_between(line, *near, color=style.GREY, alpha=0.12, linewidth=0, zorder=0)
    ends = []
    for label, row in rows.items():
        colour = style.COLOURS[result.labels.index(label) % len(style.COLOURS)]
        x, y = row["measured"] / size, row["predicted"] / size
        axes.errorbar(
            x,
            y,
            xerr=_bar(row["measured_interval"], x, size),
            yerr=_bar(row["predicted_interval"], y, size),
            fmt="o",
            color=colour,
            mfc=_fill(result, label),
            markersize=4.5,
            elinewidth=0.8,
            zorder=3,
        )
        ends.append((label, colour, np.array([x]), np.array([y])))
    plot.vertical(axes, [low, high])
    axes.set_xscale(axes.get_yscale())
    axes.set_xticks(axes.get_yticks())
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(f"{name}, {result.basis} ({unit})")
    axes.set_ylabel(f"{name}, predicted ({unit})")
    axes.xaxis.set_major_formatter("{x:g}")
    plot.label_ends(figure, axes, ends)


def _fill(result: ComparisonStatistics, label: str) -> str:
    """Return the fill of a dot: hollow if the measured runs are not evidence."""
    colour = style.COLOURS[result.labels.index(label) % len(style.COLOURS)]
    return "white" if label in result.not_counted else colour


def _bar(ends: Sequence[float] | None, middle: float, size: float) -> list[list[float]] | None:
    """Return how far an interval (in seconds) reaches below and above `middle` (in units)."""
    return None if ends is None else [[middle - ends[0] / size], [ends[1] / size - middle]]


def _caption(axes: Axes, said: str, result: ComparisonStatistics) -> None:
    hollow = "; hollow: not counted" if result.not_counted else ""
    style.titled(axes, result.marked(result.title), said + hollow)
