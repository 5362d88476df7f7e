"""Figures of a comparison: measured curves over predicted ones, and a scatter of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from paceline.simulator.results.figures import curves as plot
from paceline.simulator.results.figures import drawing, style
from paceline.simulator.results.figures.chart import Chart, Line, Look, Panel, fitted
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import time_unit

from .quantities import PACE, TARGET, Row
from .statistics import ComparisonStatistics

NEAR = 0.1  # relative error of the scatter's band


def figures(result: ComparisonStatistics) -> dict[str, bytes]:
    """Return every figure by file name; the same numbers give the same bytes."""
    with style.style():
        return drawing.files({"comparison": curves(result), "scatter": scatter(result)})


def curves(result: ComparisonStatistics) -> Chart:
    """Chart the loss, or without one the steps, against wall-clock time.

    A line per prediction, marks of its colour for the runs that it is compared with; they are
    hollow if those runs are not evidence.
    """
    lines = []
    for index, label in enumerate(result.labels):
        predicted, measured = result.predicted.runs[label], result.measured.runs[label]
        look = Look.at(index)
        marked = look._replace(dash="solid", width=0.5, hollow=label in result.not_counted)
        lines += [
            plot.Curves(label, predicted, look),
            plot.Curves(f"{label}, {result.basis}", measured, marked, apart=True),
        ]
    panel = plot.error_panel(lines, None, "loss")
    plain = [replace(line, marks="none") if line.named else line for line in panel.lines]
    several = any(len(line.runs) > 1 for line in lines)
    bands = "; bands from smallest to largest seed" if several else "; one seed each"
    caption = f"lines: predicted, dots: {result.basis}{bands}"
    return _chart(caption, result, [replace(panel, lines=plain)])


def scatter(result: ComparisonStatistics) -> Chart | None:
    """Chart predicted against measured: seconds per step and, where there are any, times to target.

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
    drawn = [_panel(name, rows, result) for name, rows in panels.items() if rows]
    caption = f"on the diagonal: exact; band: within {100 * NEAR:.0f} %; bars: {USUAL} over seeds"
    return _chart(caption, result, drawn) if drawn else None


def _panel(name: str, rows: Mapping[str, Row], result: ComparisonStatistics) -> Panel:
    values = np.array([[row["measured"], row["predicted"]] for row in rows.values()])
    size, unit = time_unit(float(values.min()))
    if values.max() < 2:
        size, unit = 1e-3, "ms"
    ends = values.min() / size / 1.25, values.max() / size * 1.25
    diagonal = np.geomspace(*ends, 50)
    near = (1 - NEAR) * diagonal, (1 + NEAR) * diagonal
    grey = Look(style.GREY, width=0.8)
    lines = [Line("exact", diagonal, diagonal, grey, near, marks="none", named=False)]
    for label, row in rows.items():
        index = result.labels.index(label)
        look = Look.at(index)._replace(symbol="circle", hollow=label in result.not_counted)
        sides = (row["measured"] / size, row["predicted"] / size)
        bars = [_ends(row[f"{side}_interval"], size) for side in ("measured", "predicted")]
        x, y = ([side] for side in sides)
        lines.append(
            Line(label, x, y, look, x_bars=bars[0], y_bars=bars[1], joined=False, marks="all")
        )
    across = replace(fitted(f"{name}, {result.basis} ({unit})", ends), limits=ends, log_limits=ends)
    up = replace(across, title=f"{name}, predicted ({unit})")
    return Panel(across, up, lines)


def _ends(interval: Sequence[float] | None, size: float) -> tuple[list[float], list[float]] | None:
    """Return an interval in seconds as the ends of a bar in units of `size`."""
    return None if interval is None else ([interval[0] / size], [interval[1] / size])


def _chart(caption: str, result: ComparisonStatistics, panels: Sequence[Panel]) -> Chart:
    hollow = "; hollow: not counted" if result.not_counted else ""
    return Chart(result.marked(result.title), caption + hollow, panels)
