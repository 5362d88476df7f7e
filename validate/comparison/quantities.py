"""Quantities of an algorithm, predicted and measured, with errors and noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from paceline.simulator.results import intervals, statistics
from paceline.simulator.results.run import TIMES, Run

WARM_UP = 0.1  # share of a run's steps in which connections open and caches fill
RECENT = 0.2  # last share of a run's steps, from which fluctuations of the loss are estimated
LOSS_TIMES = {"quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "end": 1.0}
PACE, TARGET, EQUAL_STEPS = "seconds_per_step", "time_to_target", "loss_at_equal_steps"

Row = dict[str, Any]


def pace(run: Run) -> float:
    """Return the seconds per step after the first tenth of the steps.

    It counts from the first evaluation after that tenth, but at least over the last interval; nan
    with fewer than two evaluations.
    """
    time, step = np.asarray(run.curve["time"]), np.asarray(run.curve["step"])
    if step.size < 2:
        return math.nan
    first = min(int(np.searchsorted(step, WARM_UP * step[-1])), step.size - 2)
    return statistics.ratio(time[-1] - time[first], step[-1] - step[first])


def rows(label: str, pair: tuple[Row, Row], runs: tuple[Sequence[Run], Sequence[Run]],
         target: float | None, basis: str = "measured") -> list[Row]:  # fmt: skip
    """Return a row per quantity of an algorithm; `pair` has its summaries.

    Pairs are (predicted, measured). Quantities that neither side has are left out. `target`: the
    loss to reach; `basis`: the name of the second side.
    """
    seeds = [[run.seed for run in side] for side in runs]
    heavy = any(side["seconds_per_step"].get("estimate") == intervals.MEDIAN for side in pair)
    table = []
    for quantity, measure in _quantities([*runs[0], *runs[1]], target).items():
        values = tuple([measure(run) for run in side] for side in runs)
        timed = heavy and quantity in (PACE, TARGET)
        row = _row(label, quantity, values, paired=seeds[0] == seeds[1], heavy=timed)
        if quantity == TARGET:
            row["note"] = _reached(values, ("predicted", basis))
        if quantity == EQUAL_STEPS and len(runs[0]) == len(runs[1]) == 1:
            row["within_noise"] = _fluctuates(row, runs[0][0], runs[1][0])
        if quantity == TARGET or row["predicted"] is not None or row["measured"] is not None:
            table.append(row)
    one, other = (side["breakdown"] for side in pair)
    shares = [kind for kind in TIMES if kind in one or kind in other]
    return table + [
        _plain(label, f"{kind}_share", one.get(kind), other.get(kind)) for kind in shares
    ]


def _quantities(runs: Sequence[Run], target: float | None) -> dict[str, Callable[[Run], float]]:
    """Return the quantities as functions of a run, up to the end of the shortest run."""
    end, step = min(run.duration for run in runs), min(run.steps for run in runs)
    measures: dict[str, Callable[[Run], float]] = {PACE: pace}
    if target is not None:
        measures[TARGET] = partial(statistics.crossing, target=target)
    for name, share in LOSS_TIMES.items():
        measures[f"loss_at_{name}"] = partial(statistics.at, time=share * end)
    measures[EQUAL_STEPS] = lambda run: float(np.interp(step, run.curve["step"], run.curve["loss"]))
    measures["bytes_per_step"] = lambda run: statistics.ratio(run.curve["bytes"][-1], run.steps)
    return measures


def _row(
    label: str, quantity: str, values: Sequence[Sequence[float]], *, paired: bool, heavy: bool
) -> Row:
    """Return the row of a quantity; `heavy`: compare medians because of heavy tails."""
    predicted, measured = (_finite(float(np.mean(value))) for value in values)
    means = [intervals.estimate(value, heavy=heavy, of=intervals.MEAN) for value in values]
    ends = [mean.interval if mean.of == intervals.MEAN else None for mean in means]
    return _plain(label, quantity, predicted, measured) | {
        "error": relative(predicted, measured),
        "error_is": "relative",
        "predicted_interval": ends[0] and [*ends[0]],
        "measured_interval": ends[1] and [*ends[1]],
        "within_noise": within_noise(*values, paired=paired, heavy=heavy),
    }


def _plain(label: str, quantity: str, predicted: float | None, measured: float | None) -> Row:
    """Return the row of two numbers without noise, whose error is their difference."""
    return {
        "algorithm": label,
        "quantity": quantity,
        "predicted": predicted,
        "measured": measured,
        "error": None if predicted is None or measured is None else predicted - measured,
        "error_is": "difference",
        "predicted_interval": None,
        "measured_interval": None,
        "within_noise": None,
        "note": None,
    }


def relative(predicted: float | None, measured: float | None) -> float | None:
    """Return predicted / measured - 1; None if either is missing or measured is 0."""
    return None if predicted is None or not measured else predicted / measured - 1


def within_noise(
    predicted: Sequence[float], measured: Sequence[float], *, paired: bool, heavy: bool = False
) -> bool | None:
    """Return whether seeds alone explain the difference; None if unknown.

    `paired`: both have the same seeds, hence the same draws, so the test is whether the 90 %
    interval of the differences per seed contains zero. Otherwise the intervals of both means (of
    medians, if `heavy`) must overlap.
    """
    if not np.isfinite([*predicted, *measured]).all() or min(len(predicted), len(measured)) < 2:
        return None
    if paired:
        apart = intervals.difference(predicted, measured, heavy=heavy)
        return not (apart.above(0.0) or apart.below(0.0))
    pair = (predicted, measured)
    one, other = (intervals.estimate(side, heavy=heavy, of=intervals.MEAN) for side in pair)
    (low, high), (least, most) = one.span, other.span
    return low <= most and least <= high


def _fluctuates(row: Row, predicted: Run, measured: Run) -> bool | None:
    """Return whether twice the curves' fluctuations explain the difference."""
    if not complete(row):
        return None
    step = min(predicted.steps, measured.steps)
    wide = 2 * math.hypot(fluctuation(predicted, step), fluctuation(measured, step))
    return None if math.isnan(wide) else abs(row["predicted"] - row["measured"]) <= wide


def fluctuation(run: Run, until: float) -> float:
    """Return the loss's standard deviation about a line before a step.

    It covers the last fifth of the steps up to `until`; nan with fewer than five evaluations.
    """
    step, loss = np.asarray(run.curve["step"]), np.asarray(run.curve["loss"])
    recent = (step >= (1 - RECENT) * until) & (step <= until) & np.isfinite(loss)
    if np.count_nonzero(recent) < 5:
        return math.nan
    x, y = step[recent] / until, loss[recent]
    return float(np.std(y - np.polyval(np.polyfit(x, y, 1), x), ddof=2))


def _reached(values: Sequence[Sequence[float]], names: tuple[str, str]) -> str | None:
    """Return which side reached the target, in words, unless both did with every seed."""
    reached = [statistics.reached(value) for value in values]
    if reached == [len(value) for value in values]:
        return None
    if not any(reached):
        return "not reached, as predicted"
    parts = [
        f"{name}: reached by {count} of {len(value)} seeds" if count else f"{name}: not reached"
        for name, count, value in zip(names, reached, values, strict=True)
    ]
    return "; ".join(parts)


def expected(row: Row, intervals: Row | None) -> Row:
    """Return the predicted 90 % interval, and whether it covers the measured value.

    `intervals`: `interval90` of the predicted summary, None without a profile. The interval of the
    step time covers the whole run, and is scaled to the time without warm-up.
    """
    interval = (intervals or {}).get(row["quantity"])
    if interval is None or interval[0] is None:
        return {"interval90": None, "covered": None}
    low, high = interval[0], math.inf if interval[1] is None else interval[1]
    if row["quantity"] == PACE and row["predicted"] is not None:
        scale = row["predicted"] / math.sqrt(low * high)  # the interval is lognormal
        low, high = low * scale, high * scale
    measured = row["measured"]
    return {
        "interval90": [low, high],
        "covered": None if measured is None else low <= measured <= high,
    }


def ranks(rows: Mapping[str, Row]) -> float | None:
    """Return Kendall's tau-b (Kendall, 1938) of predicted and measured.

    None if fewer than two algorithms have both values, or all values of one side are tied.
    """
    from scipy.stats import kendalltau  # noqa: PLC0415 - half a second

    pairs = [(row["predicted"], row["measured"]) for row in rows.values() if complete(row)]
    if len(pairs) < 2:
        return None
    return _finite(float(kendalltau(*zip(*pairs, strict=True)).statistic))


def regret(rows: Mapping[str, Row]) -> Row | None:
    """Return the cost of trusting the prediction.

    `value`: the measured value of `picked`, the predicted best, relative to the measured value of
    `best`, minus 1; None if `picked` never reached the target. The result is None if one side has
    no values.
    """
    predicted = {k: row["predicted"] for k, row in rows.items() if row["predicted"] is not None}
    measured = {k: row["measured"] for k, row in rows.items() if row["measured"] is not None}
    if not predicted or not measured:
        return None
    picked = min(predicted, key=predicted.__getitem__)
    best = min(measured, key=measured.__getitem__)
    value = relative(measured.get(picked), measured[best])
    return {"picked": picked, "best": best, "value": value}


def complete(row: Row) -> bool:
    """Return whether a row has both values."""
    return row["predicted"] is not None and row["measured"] is not None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
