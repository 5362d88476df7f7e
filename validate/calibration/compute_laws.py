"""Fit laws of compute times to measured steps: distributions, slow workers and periods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.simulator.distributions.distribution import Array, Distribution
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.errors import InputError

from . import distribution_fits, independence
from .independence import Series, logs

FEW = 20  # steps, below which families of distributions cannot be distinguished
SEED = 0
CLEAR = 0.77  # share of the variance that two speeds must explain; for an even drift it is 0.75
SLOWER = 1.15  # least factor of a slow period that can be distinguished from chance
PERIODS = 3  # least number of slow periods, to estimate their length
WINDOWS = 1, 3, 5, 9  # of moving averages, in steps
NO_PERIODS = (
    "slow steps follow slow steps more often than chance explains, but not in clear periods of one "
    "speed: perhaps a drift; treated as independent"
)


@dataclass(frozen=True)
class FittedLaws:
    """The tables of [cluster] that describe the measured steps.

    `compute`, `bursts` and `group` (without those of `compute`) are its tables; `samples`: by
    file name, the times (seconds) that an empirical law refers to; `members`: the measured ranks of
    each group; "" is all others. `ranking`: every family tried, best first, by group. `sd`:
    relative standard error of the mean step. `notes`: findings, in sentences.
    """

    compute: dict[str, Any]
    bursts: dict[str, Any] | None
    group: list[dict[str, Any]]
    samples: dict[str, Array]
    members: dict[str, list[int]]
    ranking: list[dict[str, Any]]
    sd: float
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables that are not empty."""
        tables = {"compute": self.compute, "bursts": self.bursts, "group": self.group}
        return {key: table for key, table in tables.items() if table}

    @property
    def files(self) -> dict[str, bytes]:
        """Return the contents of the files that an empirical law refers to, by name."""
        return {
            name: "\n".join(f"{time:.9g}" for time in times.tolist()).encode()
            for name, times in self.samples.items()
        }

    def scaled(self, factor: float) -> "FittedLaws":
        """Return the laws with all times multiplied."""
        tables = ("compute", "bursts", "group", "ranking")
        longer: dict[str, Any] = {name: _scaled(getattr(self, name), factor) for name in tables}
        samples = {name: times * factor for name, times in self.samples.items()}
        return replace(self, samples=samples, **longer)


def fit(
    times: Sequence[Array],
    *,
    starts: Sequence[Array] | None = None,
    numbers: Sequence[int] | None = None,
) -> FittedLaws:
    """Fit the laws of compute times to `times`: seconds of each worker's steps.

    `starts`: when each step began (seconds), to time slow periods; by default each began when the
    last one ended. `numbers`: the workers' ranks, by default in order from 0. Raises InputError
    for times that are negative or not finite, or if there are no steps.
    """
    series = _checked(times)
    notes: list[str] = []
    usual, bursts = series, None
    if independence.correlated(series):
        lasts = series  # seconds from the start of each step to that of the next
        if starts is not None:
            pairs = zip(starts, series, strict=True)
            lasts = [np.append(np.diff(begun), times[-1:]) for begun, times in pairs]
        bursts, fast, note = _slow_periods(series, lasts)
        notes.append(note)
        usual = [lasted[outside] for lasted, outside in zip(series, fast, strict=True)]
    ranks = range(len(series)) if numbers is None else numbers
    groups = _named(independence.alike(usual), usual)
    samples = {
        name: np.concatenate([usual[place] for place in places]) for name, places in groups.items()
    }
    laws: dict[str, dict[str, Any]] = {}
    empirical: dict[str, Array] = {}
    ranking: list[dict[str, Any]] = []
    for index, (name, sample) in enumerate(samples.items()):
        file = f"compute-{name}.csv" if name else "compute.csv"
        laws[name], rows, more = _law(sample, len(series), index, file)
        if laws[name]["dist"] == "empirical":
            empirical[file] = sample
        ranking += [{"group": name, **row} for row in rows]
        notes += [f"{name} workers: {note}" if name else note for note in more]
    members = {name: [ranks[place] for place in places] for name, places in groups.items()}
    grouped = []
    for name in filter(None, groups):
        grouped.append({"name": name, "workers": len(members[name]), "compute": laws[name]})
        verb = "workers {} take" if len(members[name]) > 1 else "worker {} takes"
        ratio = samples[name].mean() / samples[""].mean()
        notes.append(
            f"{verb.format(', '.join(map(str, members[name])))} {ratio:.4g} times as long as the "
            "others, throughout"
        )
    return FittedLaws(
        laws[""], bursts, grouped, empirical, members, ranking,
        _standard_error(series), notes,
    )  # fmt: skip


def _checked(times: Sequence[Array]) -> list[Array]:
    series = [np.asarray(time, dtype=float) for time in times]
    for rank, lasted in enumerate(series):
        wrong = lasted[~(np.isfinite(lasted) & (lasted >= 0))]
        if len(wrong):
            raise InputError(f"worker {rank}: a step of {wrong[0]} s; times are finite, 0 or more")
    if not any(map(len, series)):
        raise InputError("no steps were measured; give a run that has some after its warm-up")
    return series


def _law(
    times: Array, workers: int, index: int, file: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Fit independent times; return the law, the families tried, and notes."""
    n, mean, sd = len(times), float(times.mean()), float(times.std())
    if n < 3 or sd <= independence.NEARLY * mean:
        few = [f"only {n} step{'s' * (n > 1)}: too few to fit more than their mean"] * (n < 3)
        law = _table(Constant.model_construct(value=mean))
        return law, [{"family": "constant", "parameters": law, "chosen": True}], few
    rng = np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=(index,)))
    tried = distribution_fits.candidates(times, workers, rng, ended=n >= FEW)
    notes = []
    chosen = next((fit for fit in tried if fit.fits), None) if n >= FEW else tried[0]
    if n < FEW:
        notes.append(f"only {n} steps: too few to fit more than their mean and a rough spread")
    elif chosen is None:
        notes.append(f"no family fits {n} steps: the measured times are used (empirical)")
    elif chosen.p <= distribution_fits.REJECTED:
        notes.append(
            f"{chosen.law.model_dump()['dist']} is not exactly the law (p = {chosen.p:.2g}), but "
            f"close enough: the slowest of {workers} is within {abs(chosen.slowest - 1):.1%}"
        )
    rows = [
        {"family": table["dist"], "parameters": table}
        | {key: value for key, value in vars(fit).items() if key != "law"}
        | {"chosen": fit is chosen}
        for fit, table in ((fit, _table(fit.law)) for fit in tried)
    ]
    law = {"dist": "empirical", "file": file} if chosen is None else _table(chosen.law)
    return law, rows, notes


def _slow_periods(
    series: Series, lasts: Series
) -> tuple[dict[str, Any] | None, list[np.ndarray], str]:
    """Find slow periods in correlated times.

    Moving averages of the logarithms of times, relative to each worker's median, are cut halfway
    between two means. `lasts`: seconds from the beginning of each step to that of the next.

    Returns:
        [cluster.bursts], None if two speeds do not clearly describe the times; by worker, a mask of
        the steps wholly outside of slow periods; a note.
    """
    levels = [times - np.median(times) for times in logs(series)]
    clear, slow = max((_split(levels, window) for window in WINDOWS), key=lambda pair: pair[0])
    begun = [int(np.sum(state[1:] & ~state[:-1])) for state in slow]
    # no period begins or ends in a step whose neighbours share its state
    inside, fast = ([_inner(state == kind) for state in slow] for kind in (True, False))
    pairs = [
        (times[usual].mean(), times[slower].mean(), slower.sum())
        for times, usual, slower in zip(series, fast, inside, strict=True)
        if usual.any() and slower.any()
    ]
    factor = 0.0
    if clear >= CLEAR and sum(begun) >= PERIODS and max(begun) >= 2 and pairs:
        usual, slower, weights = np.array(pairs).T
        factor = float(np.average(slower / usual, weights=weights))
    if factor < SLOWER:
        return None, [np.full(len(times), True) for times in series], NO_PERIODS
    count = sum(begun)
    on = sum(float(seconds[state].sum()) for seconds, state in zip(lasts, slow, strict=True))
    on, off = on / count, (float(np.concatenate(lasts).sum()) - on) / count
    table = {"factor": float(f"{factor:.4g}"), "on": quantity(on), "off": quantity(off)}
    note = (
        f"{count} slow periods: steps take {factor:.3g} times as long in them; {quantity(on)} "
        f"each, {quantity(off)} apart"
    )
    return table, fast, note


def _inner(state: np.ndarray) -> np.ndarray:
    """Return a mask of the steps in `state` between two others in it."""
    padded = np.pad(state, 1, constant_values=True)
    inner: np.ndarray = state & padded[:-2] & padded[2:]
    return inner


def _split(levels: Series, window: int) -> tuple[float, Sequence[np.ndarray]]:
    """Split moving averages at a level; return the variance explained, and masks."""
    smooth = [
        np.convolve(np.pad(level, window // 2, "edge"), np.full(window, 1 / window), "valid")
        for level in levels
    ]
    joined = np.concatenate(smooth)
    cut = 0.5 * float(joined.min() + joined.max())
    for _ in range(20):
        cut = 0.5 * float(joined[joined <= cut].mean() + joined[joined > cut].mean())
    slow = joined > cut
    between = slow.mean() * (1 - slow.mean()) * (joined[slow].mean() - joined[~slow].mean()) ** 2
    return float(between / joined.var()), [level > cut for level in smooth]


def quantity(seconds: float) -> str:
    """Return a time with its unit."""
    return f"{seconds * 1e3:.6g} ms"


def _table(law: Distribution) -> dict[str, str | float]:
    values = law.model_dump()
    table: dict[str, str | float] = {"dist": values.pop("dist")}
    for key, value in values.items():
        if key in law.times():
            table[key] = quantity(value)
        elif key != "negative":
            table[key] = float(f"{value:.6g}")
    return table


def _scaled(value: Any, factor: float) -> Any:
    """Return tables with all times multiplied."""
    if isinstance(value, dict):
        return {key: _scaled(item, factor) for key, item in value.items()}
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    if isinstance(value, str) and value.endswith(" ms"):
        return quantity(float(value.removesuffix(" ms")) * factor / 1e3)
    return value


def _named(clusters: Sequence[Sequence[int]], series: Sequence[Array]) -> dict[str, list[int]]:
    """Name the groups; the largest is "", which workers with too few steps join."""
    common = max(clusters, key=len)
    place = list(clusters).index(common)
    slow = {f"slow-{k + 1}": [*members] for k, members in enumerate(clusters[place + 1 :])}
    fast = {f"fast-{k + 1}": [*members] for k, members in enumerate(reversed(clusters[:place]))}
    named = fast | slow
    grouped = {rank for members in named.values() for rank in members}
    return {**named, "": [rank for rank in range(len(series)) if rank not in grouped]}


def _standard_error(series: Sequence[Array]) -> float:
    """Return the relative standard error of the mean step; inf if unknown."""
    n, mean = sum(map(len, series)), float(np.mean(np.concatenate(series)))
    deviations = [times - times.mean() for times in series if len(times) > 1]
    freedom = sum(len(deviation) - 1 for deviation in deviations)
    if not freedom or not mean:
        return 0.0 if not mean else math.inf
    variance = sum(float(deviation @ deviation) for deviation in deviations) / freedom
    return math.sqrt(variance * independence.inflation(deviations) / n) / mean
