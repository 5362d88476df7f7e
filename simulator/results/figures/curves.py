"""The charts of a result: curves against wall-clock time, staleness, and where the time goes."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from .. import divergence
from ..run import STALENESS, Run
from ..statistics import PREFIXES, Groups, human, sampled, staleness_counts, time_unit
from . import drawing, style
from .chart import Axis, Bars, Chart, Line, Look, Panel, fitted

LOSS_NAMES = {  # axis labels, by the kind of the objective
    "bound": "bound on the squared gradient norm",
    "softmax": "training loss",
    "torch": "training loss",
}
LOWEST = 0.02  # of a mean's points, which may lie below the axis of a loss
EVEN, GEOMETRIC = 240, 120  # points of a line: for a linear and for a logarithmic axis of time
MANY = 32  # lines of a figure; with more, each has fewer points, so that pages stay small
SPAN = 25  # ratio of durations above which the axis of time is logarithmic
SHORT = 0.15  # of the longest bar: shares of a shorter one are written after it


class Curves(NamedTuple):
    """The runs of one algorithm, one per seed, drawn as one line.

    `apart`: the line is beside a prediction, and its name is not written again.
    """

    name: str
    runs: Sequence[Run]
    look: Look
    key: str = ""
    apart: bool = False


def of_groups(groups: Groups) -> list[Curves]:
    """Return the curves of runs by label, each with a look of its own."""
    rows = enumerate(groups.items())
    return [Curves(label, runs, Look.at(i), f"l{i}") for i, (label, runs) in rows]


def figures(
    groups: Groups, *, title: str, target: float | None, loss: str = "loss"
) -> dict[str, bytes]:
    """Return all figures of the runs, by file name.

    `target`: the loss to reach; `loss`: what the axis calls it.
    """
    with style.style():
        charts = {
            "figure": error(groups, title=title, target=target, loss=loss),
            "breakdown": breakdown(groups, title=title),
            "tau": tau(groups, title=title),
            "staleness": staleness(groups, title=title),
        }
        return drawing.files(charts)


def error(groups: Groups, *, title: str, target: float | None, loss: str = "loss") -> Chart:
    """Chart the loss against wall-clock time; without a loss, the steps done."""
    lines = of_groups(groups)
    seeds = max(map(len, groups.values()))
    caption = f"mean of {seeds} seeds, band from smallest to largest" if seeds > 1 else "one seed"
    if has_loss(lines):
        # a mean that leaves the axes would not show which algorithms diverged
        lost = {label: divergence.summary(runs) for label, runs in groups.items()}
        caption = "; ".join(
            [caption, *(divergence.sentence(label, row) for label, row in lost.items() if row)]
        )
    return Chart(title, caption, [error_panel(lines, target, loss)])


def has_loss(lines: Sequence[Curves]) -> bool:
    """Whether some run has a loss."""
    return any(np.isfinite(run.curve["loss"]).any() for line in lines for run in line.runs)


def error_panel(lines: Sequence[Curves], target: float | None, loss: str) -> Panel:
    """Return the loss against time, or the steps where there is no loss."""
    if has_loss(lines):
        return over_time(lines, "loss", loss, target)
    return over_time(lines, "step", "local steps done")


def tau(groups: Groups, *, title: str) -> Chart | None:
    """Chart the communication period of algorithms that change it; None without any."""
    lines = changing(of_groups(groups))
    if not lines:
        return None
    panel = over_time(lines, "tau", "tau (local steps per average)")
    return Chart(title, "local steps between averages, over time", [panel])


def changing(lines: Sequence[Curves]) -> list[Curves]:
    """Return the curves of algorithms that change their communication period."""
    return [
        line
        for line in lines
        if any(len(set(filter(np.isfinite, run.curve["tau"]))) > 1 for run in line.runs)
    ]


def over_time(
    lines: Sequence[Curves], column: str, title: str, target: float | None = None
) -> Panel:
    """Return a line per algorithm: the mean over seeds, and a band from smallest to largest."""
    grids = [on_a_grid(line.runs, column, len(lines)) for line in lines]
    ends = [times[-1] for times, _ in grids]
    shortest, longest = min(ends), max(ends)
    size, unit = time_unit(longest)
    title, factor = _in_bytes(title, grids) if column == "bytes" else (title, 1.0)
    drawn = [
        Line(
            line.name,
            times / size,
            values.mean(axis=0) / factor,
            line.look,
            (values.min(axis=0) / factor, values.max(axis=0) / factor) if len(values) > 1 else None,
            steps=column == "tau",
            named=not line.apart,
            key=line.key,
        )
        for line, (times, values) in zip(lines, grids, strict=True)
    ]
    first = min((times[times > 0][0] for times, _ in grids if times[-1] > 0), default=longest)
    log = bool(longest > SPAN * shortest > 0)
    # a logarithmic axis of time does not show the beginning, at 0
    shown = in_picture([values[:, int(log) :] / factor for _, values in grids], column)
    shown = np.append(shown, [] if target is None else [target])
    ratio = max(first, shortest / SPAN) if log else first
    limits = (0.0, longest / size or 1.0)
    across = Axis(
        f"wall-clock time ({unit})", limits, log, (ratio / size, limits[1]) if longest else None
    )
    up = fitted(title, shown, column == "loss", zero=True)
    return Panel(across, up, drawn, level=target, over_time=True)


def _in_bytes(title: str, grids: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[str, float]:
    """Return a title with the unit that suits the largest number of bytes, and this unit."""
    most = max(float(np.nanmax(values)) for _, values in grids)
    power = min(max(int(math.log10(most) // 3), 0), len(PREFIXES) - 1) if most > 0 else 0
    return f"{title} ({PREFIXES[power]}B)", 1000.0**power


def in_picture(lines: Sequence[np.ndarray], column: str) -> np.ndarray:
    """Return the finite values of lines, each (seeds, points), that the axis must show.

    Of losses that is all but those that diverge from the first ones, and those of single seeds and
    moments far below what the means fall to: one such line would hide all others.
    """
    values: np.ndarray = np.concatenate([line.ravel() for line in lines])
    values = values[np.isfinite(values)]
    if column != "loss" or not values.size:
        return values
    starts = [line[0, 0] for line in lines]
    finite = [abs(start) for start in starts if not np.isnan(start)]  # none of a bound
    most = divergence.BOUND * max(finite, default=np.inf)
    usual = min(np.nanmax([*starts, np.median(values)]), most)
    means = [mean[np.isfinite(mean)] for mean in (line.mean(axis=0) for line in lines)]
    least = min([np.quantile(mean, LOWEST) for mean in means if mean.size] + starts)
    seen = (values <= usual + 2 * abs(usual)) & (values >= least - abs(least) / 2)
    return np.asarray(values[seen])


def on_a_grid(runs: Sequence[Run], column: str, lines: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return times (points,) that all seeds have, and each seed's values then (seeds, points).

    Values are linear between evaluations, except tau, which is constant. The times are `EVEN`
    evenly and `GEOMETRIC` geometrically spaced ones; fewer with more than `MANY` lines.
    """
    times = [np.array(run.curve["time"]) for run in runs]
    first, last = max(time[0] for time in times), min(time[-1] for time in times)
    soon = min((time[time > 0][:1].min(initial=last) for time in times), default=last)
    even, geometric = (max(16, points * MANY // max(lines, MANY)) for points in (EVEN, GEOMETRIC))
    grid = np.linspace(first, last, even)
    if 0 < soon < last:
        grid = np.union1d(grid, np.geomspace(max(soon, first), last, geometric))
    grid = grid[grid <= last]
    return grid, sampled(runs, column, grid)


def staleness(groups: Groups, *, title: str) -> Chart | None:
    """Chart how stale the contributions were; None where none was."""
    rows = []
    for line in of_groups(groups):
        if any(counts := staleness_counts(line.runs)):
            unit = next(run.staleness_unit for run in line.runs if run.staleness)
            rows.append((line, unit, counts))
    caption = "share of contributions that are at most so stale"
    return Chart(title, caption, staleness_panels(rows)) if rows else None


def staleness_panels(every: Sequence[tuple[Curves, str, Mapping[int, float]]]) -> list[Panel]:
    """Return the distribution functions of staleness, a panel for each of its units.

    `every`: curves, their unit, and how many contributions, or which share, were how stale.
    """
    units: dict[str, list[tuple[Curves, dict[int, float]]]] = {}
    for line, unit, counts in every:
        units.setdefault(unit, []).append((line, dict(sorted(counts.items()))))
    panels = []
    for unit, rows in units.items():
        most = 1.02 * max(max(counts) for _, counts in rows) + 0.5
        drawn = []
        for line, counts in rows:
            total, (least, *_) = sum(counts.values()), counts
            shares = [100 * share / total for share in accumulate(counts.values())]
            x, y = [0, *counts, most], [0 if least else shares[0], *shares, 100.0]
            drawn.append(Line(line.name, x, y, line.look, steps=True, key=line.key))
        across = Axis(f"staleness: {STALENESS.get(unit, unit)}", (0.0, most))
        panels.append(Panel(across, Axis("at most so stale (%)", (0.0, 103.0)), drawn, height=300))
    return panels


def breakdown(groups: Groups, *, title: str) -> Chart:
    """Chart the seconds per step of each algorithm, split into what they are spent on."""
    return Chart(title, "", [breakdown_panel({k: _per_step(v) for k, v in groups.items()})])


def breakdown_panel(parts: dict[str, dict[str, float]]) -> Panel:
    """Return stacked bars of seconds per step by algorithm and part."""
    totals = [sum(row.values()) for row in parts.values()]
    size, unit = time_unit(max(totals, default=1.0))
    rows = [*range(len(parts))]
    left, bars = np.zeros(len(rows)), []
    for part in style.PARTS:
        if any(row.get(part) for row in parts.values()) or part == "compute":
            seconds = np.array([row.get(part, 0.0) for row in parts.values()])
            labels = [
                f"{100 * part_seconds / total:.0f} %" if total else "0 %"
                for part_seconds, total in zip(seconds, totals, strict=True)
            ]
            bars.append(Bars(part, rows, seconds / size, left / size, labels, labels))
            left = left + seconds
    most = max(totals, default=0.0)
    after = [_total(row, SHORT * most) for row in parts.values()]
    across = Axis(f"time per local step ({unit})", (0.0, 1.15 * most / size or 1.0))
    up, height = Axis(names=[*parts]), 130 + 42 * len(rows)
    return Panel(across, up, bars=bars, totals=after, height=height)


def _total(row: dict[str, float], short: float) -> str:
    """Return the length of a bar and, where it is too short to hold them, its shares."""
    total = sum(row.values())
    shares = " / ".join(f"{100 * seconds / total:.0f}" for seconds in row.values()) if total else ""
    return f"{human(total)}: {shares} %" if 0 < total < short else human(total)


def _per_step(runs: Sequence[Run]) -> dict[str, float]:
    """Return the seconds per step (mean over seeds), in proportion to the workers' time by part."""
    scaled = [(run, sum(run.seconds.values()) * run.steps / (run.duration or 1)) for run in runs]
    return {
        part: float(np.mean([run.seconds[part] / scale if scale else 0 for run, scale in scaled]))
        for part in runs[0].seconds
    }
