"""Charts of a result: curves against wall-clock time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import intervals
from ..run import Run
from ..statistics import Groups, sampled, time_unit
from . import drawing
from .chart import DECADE, Axis, Chart, Ends, Line, Look, Panel, fitted, wide

LOSS_NAMES = {  # axis labels, by the kind of the objective
    "bound": "bound on the squared gradient norm",
    "softmax": "training loss",
    "torch": "training loss",
}
FARTHEST = 1e6  # times the first loss: higher losses are not shown
LOWEST = 0.02  # share of a mean's points that may lie below the axis of a loss
EARLY = 0.1  # share of a run whose high losses may lie above the axis
EVEN, GEOMETRIC = 240, 120  # points of a line: for a linear and for a logarithmic axis of time
MANY = 32  # lines of a figure; with more, each has fewer points, so that pages stay small
Grid = tuple[np.ndarray, np.ndarray]
"""Times (points,), and every seed's values at them (seeds, points)."""


class Curves(NamedTuple):
    """The runs of one algorithm, one per seed, drawn as one line.

    `apart`: the line stands beside a prediction, so its name is not repeated. `row`: the summary of
    the runs, from which tables and sentences take their intervals.
    """

    name: str
    runs: Sequence[Run]
    look: Look
    key: str = ""
    apart: bool = False
    row: Mapping[str, Any] = {}


def of_groups(groups: Groups, rows: Sequence[Mapping[str, Any]] = ()) -> list[Curves]:
    """Return the curves of runs by label, each with its look; `rows`: their summaries."""
    by_label = {row["label"]: row for row in rows}
    return [
        Curves(label, runs, Look.at(i), f"l{i}", row=by_label.get(label, {}))
        for i, (label, runs) in enumerate(groups.items())
    ]


def figures(lines: Sequence[Curves], *, title: str, **how: Any) -> dict[str, bytes]:
    """Return all figures of runs, by file name; see `error` for the arguments."""
    return drawing.files(
        {"figure": error(lines, title=title, **how), "tau": tau(lines, title=title)}
    )


def error(
    lines: Sequence[Curves], *, title: str, target: float | None, loss: str = "loss"
) -> Chart:
    """Chart the loss against wall-clock time; without a loss, the steps done.

    `lines`: the runs by algorithm, with their summaries; `target`: the loss to reach; `loss`: the
    name of the loss on the axis.
    """
    return Chart(title, bands(lines), [error_panel(lines, target, loss)])


def bands(lines: Sequence[Curves]) -> str:
    """Return the caption that explains lines and bands."""
    seeds = max(len(line.runs) for line in lines)
    what = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    with_band = seeds > 1 or any(_modelled(line) for line in lines)
    return f"{what}; band: {intervals.USUAL}" if with_band else what


def error_panel(lines: Sequence[Curves], target: float | None, loss: str) -> Panel:
    """Return a panel of the loss against time; without a loss, of the steps done."""
    if any(np.isfinite(run.curve["loss"]).any() for line in lines for run in line.runs):
        return over_time(lines, "loss", loss, target)
    return over_time(lines, "step", "local steps done")


def tau(lines: Sequence[Curves], *, title: str) -> Chart | None:
    """Chart the communication period of algorithms that change it; None without any."""
    lines = [
        line
        for line in lines
        if any(len(set(filter(np.isfinite, run.curve["tau"]))) > 1 for run in line.runs)
    ]
    if not lines:
        return None
    panel = over_time(lines, "tau", "tau (local steps per average)")
    return Chart(title, "local steps between averages, over time", [panel])


def over_time(
    lines: Sequence[Curves], column: str, title: str, target: float | None = None
) -> Panel:
    """Return each algorithm's mean over seeds as a line, with its interval as a band.

    With a `target`, marks show when the loss reaches it. The time axis becomes logarithmic if
    durations span a decade.
    """
    grids = [on_a_grid(line.runs, column, len(lines)) for line in lines]
    ends = [times[-1] for times, _ in grids]
    shortest, longest = min(ends), max(ends)
    size, unit = time_unit(longest)
    log = wide(shortest, longest)
    drawn = [_line(line, grid, column, size, log) for line, grid in zip(lines, grids, strict=True)]
    shown = in_picture(grids, column)
    if column == "loss":  # the intervals that tables state
        bounds = [end[-1] for line in drawn if line.band is not None for end in line.band]
        shown = np.append(shown, [end for end in bounds if end < DECADE * shown.max(initial=0.0)])
    begins = 0.0
    if log:
        first = min(times[times > 0][:1].min(initial=longest) for times, _ in grids)
        begins = max(float(first), shortest / (DECADE if column == "loss" else 100))
    marks = []
    if target is not None:
        shown = np.append(shown, target)
        marks = [mark for line in lines for mark in _reached(line, target, size)]
        begins = min([begins, *(mark.x[0] * size / 1.2 for mark in marks)])
    across = Axis(
        f"wall-clock time ({unit})", (begins / size, longest / size or 1.0), log and begins > 0
    )
    up = fitted(title, shown, column == "loss", zero=True)
    return Panel(across, up, [*drawn, *marks], level=target, over_time=True)


def _line(line: Curves, grid: Grid, column: str, size: float, log: bool) -> Line:
    """Return the mean over seeds with its band; a logarithmic axis omits the start."""
    times, values = grid
    there = times > 0 if log else times >= 0
    return Line(
        line.name,
        times[there] / size,
        values.mean(axis=0)[there],
        line.look,
        band(line, values[:, there], column),
        steps=column == "tau",
        named=not line.apart,
        key=line.key,
    )


def band(line: Curves, values: np.ndarray, column: str) -> Ends | None:
    """Return the ends of a band around a mean; at the last point they match the tables.

    The band is the interval of the mean over seeds (seeds, points). If a model adds its error to
    the last loss, the band widens in proportion to the loss. None for a single seed without a
    model.
    """
    if column == "loss" and (stated := _modelled(line)):
        last, mean = line.row["loss"]["last"], values.mean(axis=0)
        low, high = (math.inf if end is None else end for end in stated)
        return mean * (low / last), mean * (high / last)
    if len(values) < 2:
        return None
    of = intervals.estimate(values[:, -1]).of
    spans = [intervals.estimate(point, of=of).span for point in values.T]
    low, high = np.where(np.isfinite(spans), spans, np.nan).T
    return low, high


def _modelled(line: Curves) -> Sequence[float | None] | None:
    """Return the interval of the last loss if it contains a model's error."""
    ends: Sequence[float | None] | None = (line.row.get("interval90") or {}).get("loss")
    return ends if ends and line.row["loss"]["last"] else None


def _reached(line: Curves, target: float, size: float) -> list[Line]:
    """Return a mark at the estimated time to the target, with an interval."""
    if (line.row.get("time_to_target") or {}).get("mean") is None:
        return []
    time = intervals.stated(line.row["time_to_target"], one_run=True)
    (low, high), how = (end / size for end in time.span), {"joined": False, "named": False}
    x, ends = [time.value / size], ([low], [high])
    more: Any = how | {"marks": "all", "key": line.key, "x_bars": ends}
    return [Line(line.name, x, [target], line.look, **more)]


def in_picture(grids: Sequence[Grid], column: str) -> np.ndarray:
    """Return the finite values of lines that an axis must show.

    Of losses, it leaves out the first moments, means that diverge from them, and single moments far
    below all others, because each of these would hide the rest.
    """
    if column != "loss":
        values = np.concatenate([values.ravel() for _, values in grids])
        return np.asarray(values[np.isfinite(values)])
    starts = np.array([values[0, 0] for _, values in grids])
    late = [values.mean(axis=0)[times >= EARLY * times[-1]] for times, values in grids]
    late = [mean[np.isfinite(mean)] for mean in late]
    means = np.concatenate(late)
    finite = starts[np.isfinite(starts)]  # a bound has none
    if not means.size:
        return means
    usual = max([*finite, np.median(means)])
    usual = min(usual, FARTHEST * abs(finite).max() if finite.size else math.inf)
    least = min(np.quantile(mean, LOWEST) for mean in late if mean.size)
    shown = (means <= usual + 2 * abs(usual)) & (means >= least - abs(least) / 2)
    return np.asarray(means[shown])


def on_a_grid(runs: Sequence[Run], column: str, lines: int = 1) -> Grid:
    """Return common times (points,), and each seed's values at them (seeds, points).

    Values are linear between evaluations, except tau, which is constant. No time lies between the
    start and the first evaluation. `EVEN` times are spaced evenly, `GEOMETRIC` geometrically; there
    are fewer if there are more than `MANY` lines.
    """
    times = [np.array(run.curve["time"]) for run in runs]
    first, last = max(time[0] for time in times), min(time[-1] for time in times)
    soon = max(first, *(time[time > 0][:1].min(initial=last) for time in times))
    even, geometric = (max(16, points * MANY // max(lines, MANY)) for points in (EVEN, GEOMETRIC))
    grid = np.array([first])
    if soon < last:
        rest = np.linspace(soon, last, even), np.geomspace(soon or last / even, last, geometric)
        grid = np.union1d(grid, np.concatenate(rest))
    elif last > first:
        grid = np.array([first, last])
    grid = grid[grid <= last]
    return grid, sampled(runs, column, grid)
