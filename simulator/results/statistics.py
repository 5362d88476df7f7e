"""Summarise runs: estimates over seeds, with their intervals."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..inputs import csv_files
from . import intervals
from .intervals import Estimate
from .run import CAUSE, COLUMNS, Run, begins, diverged

Groups = Mapping[str, Sequence[Run]]
"""The runs of each algorithm by its label, in the order of their seeds."""

Unit = str | tuple[float, str]
PREFIXES, PREFIXED = ("", "k", "M", "G", "T", "P"), ("B", "B/s", "#")
LARGE = 99950  # an amount, such as of money, from which it is shown in thousands
TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by label, in the order given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which `seconds` has at least two, or else s or ms."""
    small = (1e-3, "ms") if 0 < seconds < 0.9995 else (1.0, "s")
    return next((unit for unit in TIME_UNITS if seconds >= 2 * unit[0]), small)


def common_unit(*seconds: float | None) -> tuple[float, str] | None:
    """Return the unit in which to show several durations: of the longest, if that suits all.

    Skips durations that are missing or infinite; None if no other is left.
    """
    finite = [value for value in seconds if value is not None and math.isfinite(value)]
    if not finite:
        return None
    size, name = time_unit(max(finite))
    return (size, name) if min(finite) >= size / 2 else time_unit(min(finite))


def human(seconds: float | None, unit: tuple[float, str] | None = None) -> str:
    """Format a duration: "12.3 min"; "-" for None. `unit`: its size and name, if given."""
    return with_unit(seconds, unit or "s")


def with_unit(value: float | None, unit: Unit) -> str:
    """Format a value for reading; "-" for None. See `scale`."""
    if value is None or not math.isfinite(value):
        return "-"
    size, name = scale(value, unit)
    whole = unit in PREFIXED and size == 1
    return (f"{value:.0f}" if whole else number(value / size)) + name


def scale(value: float, unit: Unit) -> tuple[float, str]:
    """Return in which unit to show a value: its size, and its name after a space.

    `unit`: "s", "%" for a share, one of `PREFIXED` (1.30 GB, 52.4 G), any other name, such as of
    money (156 k USD), or the size and the name that all cells of a column share.
    """
    if isinstance(unit, tuple):
        return unit[0], f" {unit[1]}"
    if unit == "s":
        size, name = time_unit(value)
    elif unit == "%":
        size, name = 0.01, unit
    elif unit in PREFIXED:
        powers = (power for power in range(len(PREFIXES)) if abs(value) < 999.5 * 1000**power)
        power = next(powers, len(PREFIXES) - 1)
        size, name = 1000.0**power, PREFIXES[power] + unit.strip("#")
    else:
        size, name = (1e3, f"k {unit}") if abs(value) >= LARGE else (1.0, unit)
    return size, f" {name}".rstrip()


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share: "64 %", "under 1 %" if it rounds to 0, or "-" for None."""
    if share is None:
        return "-"
    return "under 1 %" if 0 < share < 0.005 and not digits else f"{100 * share:z.{digits}f} %"


def number(value: float, digits: int = 3) -> str:
    """Format `value` with `digits` significant digits and, up to a million, no exponent."""
    if 999.5 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".removesuffix(".")


def format_loss(value: float | None, digits: int = 4) -> str:
    """Format a loss with at least four digits, because losses differ by under one per cent."""
    return "-" if value is None or not math.isfinite(value) else number(value, digits)


def loss_in_table(value: float | None, digits: int = 4) -> str:
    """Format a loss like `format_loss`, but with three digits below 1."""
    return format_loss(value, digits if value is not None and abs(value) >= 1 else 3)


def loss_digits(values: Iterable[float | None]) -> int:
    """Return the digits, four or five, that tell apart losses 0.01 % apart."""
    losses = {value for value in values if value is not None and math.isfinite(value)}
    few, more = (len({number(loss, digits) for loss in losses}) for digits in (4, 5))
    return 4 if few == more else 5


def seeds(numbers: Iterable[int]) -> str:
    """Return "seed 3" or "seeds 0 to 7"."""
    first, *others = sorted(numbers)
    return f"seeds {first} to {others[-1]}" if others else f"seed {first}"


def pace(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds and the steps of each evaluation interval of `run`.

    The last interval includes the time without progress at the end.
    """
    seconds, steps = np.diff(run.curve["time"]), np.diff(run.curve["step"])
    moved = np.flatnonzero(steps > 0)
    if moved.size:
        seconds[moved[-1]] += seconds[moved[-1] + 1 :].sum()
    return seconds[moved], steps[moved]


def step_time(runs: Sequence[Run], *, heavy: bool = False) -> Estimate:
    """Estimate the mean seconds per step over seeds, or over batches of a single run's steps."""
    if len(runs) == 1 and not heavy:
        return intervals.batch_means(*pace(runs[0]), seconds_per_step(runs[0]))
    return intervals.positive([*map(seconds_per_step, runs)], heavy=heavy)


def held_up(run: Run) -> float:
    """Return the share of its time that crashes cost the least affected worker."""
    kinds = [run.workers[key] for key in ("stalled", "lost", "down") if "down" in run.workers]
    return min(map(sum, zip(*kinds, strict=True)), default=0.0) / (run.duration or math.inf)


def crossing(run: Run, target: float) -> float:
    """Return when (s) the loss first reaches `target`; infinite if never.

    The time is interpolated between the last evaluation above `target` and the next.
    """
    time, loss = np.asarray(run.curve["time"]), np.asarray(run.curve["loss"])
    reached = np.flatnonzero(loss <= target)
    if not reached.size:
        return math.inf
    i = int(reached[0])
    if i == 0 or not math.isfinite(loss[i - 1]):
        return float(time[i])
    share = (loss[i - 1] - target) / (loss[i - 1] - loss[i])
    return float(time[i - 1] + share * (time[i] - time[i - 1]))


def at(run: Run, time: float, column: str = "loss") -> float:
    """Return a curve's value at `time` (seconds), linear between evaluations."""
    return float(np.interp(time, run.curve["time"], run.curve[column]))


def sampled(runs: Sequence[Run], column: str, times: np.ndarray) -> np.ndarray:
    """Return a column of each run at `times` (seconds), shape (runs, times).

    Values are linear between evaluations, except tau, which keeps its last value (at first its
    first).
    """
    result = []
    for run in runs:
        time, values = np.array(run.curve["time"]), np.array(run.curve[column])
        if column == "tau":
            finite = np.isfinite(values)
            values = np.where(finite, values, values[finite][0] if finite.any() else np.nan)
            result.append(values[np.searchsorted(time, times, side="right") - 1])
        else:
            result.append(np.interp(times, time, values))
    return np.array(result)


def loss_at(run: Run, time: float) -> float:
    """Return the loss at `time` (seconds); nan where the run diverged, even later."""
    return math.nan if diverged(run) else at(run, time)


def reached(times: Sequence[float]) -> int:
    """Count the times that are finite."""
    return sum(map(math.isfinite, times))


def seconds_per_step(run: Run) -> float:
    """Return the mean seconds per step over the whole run; nan without a step."""
    return ratio(run.duration, run.steps)


def seconds_per_gradient(run: Run) -> float:
    """Return the working seconds per gradient that reaches the model."""
    return math.inf if not run.gradients else _working(run) / run.gradients


def _working(run: Run) -> float:
    return run.duration if run.working_seconds is None else run.working_seconds


def useful_share(run: Run) -> float:
    """Return the share of clients' computing that was used."""
    spent = _spent(run)
    return ratio(spent["compute"], spent["compute"] + spent["lost"])


def _spent(run: Run) -> Mapping[str, float]:
    """Return the seconds of all workers by kind; 0 for other kinds."""
    return defaultdict(float, {kind: float(sum(times)) for kind, times in run.workers.items()})


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def ratio(over: float, under: float) -> float:
    """Return the quotient of two numbers; nan if undefined."""
    return float(over / under) if under else math.nan


def estimated(values: Sequence[float], estimate: Estimate | None = None) -> dict[str, Any]:
    """Return mean, median and estimate of `values`, by default from `positive`."""
    estimate = estimate or intervals.positive(values)
    median = float(np.median(values)) if len(values) else math.nan
    return {"mean": _mean(values), "median": median} | estimate.beside_mean()


def _ends(runs: Sequence[Run], column: str) -> dict[str, Any]:
    """Return a column's means over seeds; one that diverged has neither a last loss nor a mean."""
    runs = [run for run in runs if run.curve[column]]
    lost = [math.nan if column == "loss" and diverged(run) else 0.0 for run in runs]
    last = [run.curve[column][-1] + nan for run, nan in zip(runs, lost, strict=True)]
    means = [over_time(run, column) + nan for run, nan in zip(runs, lost, strict=True)]
    estimate = intervals.share if column == "accuracy" else intervals.estimate
    ends = estimated(last, estimate(last))
    first = _mean([run.curve[column][0] for run in runs])
    return {"first": first, "last": ends.pop("mean"), "over_time": _mean(means)} | ends


def over_time(run: Run, column: str) -> float:
    """Return a column's mean over the time of a run, linear between evaluations."""
    time, values = np.asarray(run.curve["time"], float), np.asarray(run.curve[column], float)
    finite = np.isfinite(values) if values.size else np.zeros(0, bool)
    time, values = time[finite], values[finite]
    area = (values[1:] + values[:-1]) @ np.diff(time) / 2
    return ratio(float(area), float(np.ptp(time))) if time.size else math.nan


def breakdown(runs: Sequence[Run]) -> dict[str, float]:
    """Return the shares of the workers' time by use."""
    spent = {kind: sum(run.seconds[kind] for run in runs) for kind in runs[0].seconds}
    total = sum(spent.values())
    return {kind: ratio(seconds, total) for kind, seconds in spent.items()}


def divergence(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return how many seeds diverged, the earliest step and the cause."""
    lost = [(run, first) for run in runs if (first := begins(run.curve["loss"])) is not None]
    if not lost:
        return None
    return {
        "seeds": len(lost),
        "of": len(runs),
        "step": min(run.curve["step"][first] for run, first in lost),
        "cause": CAUSE,
    }


def staleness_counts(runs: Sequence[Run]) -> dict[int, int]:
    """Return the number of contributions of all seeds by staleness, ascending."""
    counts = sum((Counter(run.staleness) for run in runs), Counter())
    return dict(sorted(counts.items()))


def _staleness(runs: Sequence[Run]) -> dict[str, Any] | None:
    counts = staleness_counts(runs)
    if not counts:
        return None
    total = sum(counts.values())
    by_seed = [staleness_counts([run]) for run in runs if any(run.staleness.values())]
    means = [float(np.average([*seed], weights=[*seed.values()])) for seed in by_seed]
    below = zip(counts, accumulate(counts.values()), strict=True)
    return {
        "unit": next(run.staleness_unit for run in runs if run.staleness),
        **estimated(means),
        "p95": next(stale for stale, at_most in below if 20 * at_most >= 19 * total),
        "max": max(counts),
        "distribution": {stale: count / total for stale, count in counts.items()},
    }


def aligned(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Return `run.COLUMNS`, shape (seeds, points), at the steps that all seeds share.

    They include the end if all seeds stood still there.
    """
    common = sorted(set.intersection(*(set(run.curve["step"]) for run in runs)))
    stood = all(run.curve["step"][-2:-1] == run.curve["step"][-1:] for run in runs)
    ends = [-1] if stood else []
    rows = [[*np.searchsorted(run.curve["step"], common), *ends] for run in runs]
    return {
        column: np.array(
            [np.array(run.curve[column])[i] for run, i in zip(runs, rows, strict=True)]
        )
        for column in COLUMNS
    }


def summarise(
    runs: Sequence[Run],
    *,
    target: float | None,
    workers: int,
    ideal_rate: float,
    heavy: bool = False,
) -> dict[str, Any]:
    """Return the summary of one algorithm's runs, one per seed (the contract's names).

    `workers`: the number whose gradients a step uses. `ideal_rate`: gradients per second if all
    only computed. `heavy`: some random time has no finite variance, so medians are estimated for
    dependent values. Missing values are nan or infinite here; `jsonable` makes them null.
    """
    curve, links = aligned(runs), dict.fromkeys(link for run in runs for link in run.links)
    rate = [ratio(workers * run.steps, run.duration) for run in runs]
    useful, lossless = [*map(goodput, runs)], runs[0].failures is None
    used = None if lossless else estimated(useful, intervals.share(useful))
    return {
        "engine": runs[0].engine,
        "handed_over": runs[0].handed_over or None,
        **_times(runs, target, heavy),
        "steps": _mean([run.steps for run in runs]),
        "updates": _mean([run.updates for run in runs]),
        **_reported(runs),
        "duration": _mean([run.duration for run in runs]),
        "loss": _ends(runs, "loss"),
        "diverged": divergence(runs),
        "accuracy": _ends(runs, "accuracy"),
        "scalability": ratio(_mean(rate), ideal_rate),
        "bytes_per_step": _mean([ratio(run.curve["bytes"][-1], run.steps) for run in runs]),
        "breakdown": breakdown(runs),
        "goodput": used,
        "staleness": _staleness(runs),
        "links": {link: _mean([run.links.get(link, 0.0) for run in runs]) for link in links},
        "curve": {key: curve[key].mean(axis=0).tolist() for key in ("time", "loss", "step")},
        "stall": next(filter(None, (run.stall for run in runs)), None),
    }


def _times(runs: Sequence[Run], target: float | None, heavy: bool) -> dict[str, Any]:
    """Return estimates of the time of a step, an update and a round, and to the target."""

    def over_seeds(times: Sequence[float]) -> dict[str, Any]:
        return estimated(times, intervals.positive(times, heavy=heavy))

    pooled = np.concatenate([seconds / steps for seconds, steps in map(pace, runs)])
    rounds = _mean([run.rounds for run in runs]) or None
    per_round = [run.round_seconds or math.nan for run in runs]
    # "Never" is later than any time; a mean over the seeds that arrived would mislead.
    until = [] if target is None else [crossing(run, target) for run in runs]
    return {
        "seconds_per_step": {
            **estimated([*map(seconds_per_step, runs)], step_time(runs, heavy=heavy)),
            "p95": float(np.quantile(pooled, 0.95)) if pooled.size else math.nan,
        },
        "seconds_per_update": over_seeds([ratio(run.duration, run.updates) for run in runs]),
        "rounds": rounds,
        "seconds_per_round": rounds and over_seeds(per_round),
        "time_to_target": over_seeds(until) | {"reached": reached(until)} if until else None,
    }


def _reported(runs: Sequence[Run]) -> dict[str, Any]:
    """Return means of clients' reports; empty without sampled clients."""
    if any(run.gradients is None for run in runs):
        return {}
    reports = [ratio(run.reports, run.rounds) for run in runs]
    rates, shares = ([3600 / seconds_per_gradient(run) for run in runs], [*map(useful_share, runs)])
    busy = [run.at_work for run in runs]
    return {
        "reports_per_round": _mean(reports) if any(run.reports for run in runs) else None,
        "clients_at_work": estimated(busy, intervals.estimate(busy)),
        "gradients": [run.gradients for run in runs],
        "working_seconds": [*map(_working, runs)],
        "gradients_per_hour": estimated(rates),
        "useful_share": estimated(shares, intervals.share(shares)),
    }


def goodput(run: Run) -> float:
    """Return the share of all workers' time spent on results that were used."""
    spent, saved = _spent(run), (run.failures or {}).get("checkpoint_seconds", 0.0)
    uses = [spent["compute"], spent["wait"] + spent["stalled"], spent["communicate"], spent["lost"]]
    uses += [saved, spent["down"] - saved, spent["absent"], spent["unselected"]]
    return ratio(spent["compute"], sum(uses))


def notes(groups: Groups) -> list[str]:
    """Return the notes of all runs without repeats, with the labels of their algorithms."""
    about: dict[str, list[str]] = {}
    for label, runs in groups.items():
        of_label = dict.fromkeys(note for run in runs for note in run.notes)
        if lost := sum(map(diverged, runs)):
            of_label[f"diverged with {lost} of {len(runs)} seeds; try a smaller lr"] = None
        for note in of_label:
            about.setdefault(note, []).append(label)
    everyone = max(len(groups), 2)
    return [
        f"{'every algorithm' if len(labels) == everyone else ', '.join(labels)}: {note}"
        for note, labels in about.items()
    ]


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one flat dict per evaluation: label, seed and all of `run.COLUMNS`."""
    return [
        {"label": run.label, "seed": run.seed} | dict(zip(COLUMNS, row, strict=True))
        for run in runs
        for row in zip(*(run.curve[column] for column in COLUMNS), strict=True)
    ]


def csv_table(runs: Sequence[Run]) -> bytes:
    """Return `records` as CSV: the shortest digits that read back exactly, empty for nan."""
    rows = ([*row.values()] for row in records(runs))
    cells = ((label, seed, *map(csv_files.digits, row)) for label, seed, *row in rows)
    return csv_files.table(("label", "seed", *COLUMNS), cells)


def jsonable(value: Any) -> Any:
    """Return `value` with plain Python numbers, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
