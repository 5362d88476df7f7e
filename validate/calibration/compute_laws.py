"""Laws of compute times from measured steps: distributions, and slow workers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.simulator.distributions.distribution import Array, Distribution
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.errors import InputError

from . import distribution_fits, independence

FEW = 20  # fewest steps that distinguish families of distributions
SEED = 0


@dataclass(frozen=True)
class FittedLaws:
    """The tables of [cluster] that describe the measured steps.

    `compute` and `group` (without the keys of `compute`) are its tables; `samples`: times (seconds)
    of empirical laws, by file name. `ranking`: every family tried, best first, by group. `sd`:
    relative standard error of the mean step. `notes`: findings, in sentences.
    """

    compute: dict[str, Any]
    group: list[dict[str, Any]]
    samples: dict[str, Array]
    ranking: list[dict[str, Any]]
    sd: float
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> dict[str, Any]:
        """Return the tables that are not empty."""
        return {"compute": self.compute} | ({"group": self.group} if self.group else {})

    @property
    def files(self) -> dict[str, bytes]:
        """Return the contents of files to which an empirical law refers, by name."""
        return {
            name: "\n".join(f"{time:.9g}" for time in times.tolist()).encode()
            for name, times in self.samples.items()
        }

    def scaled(self, factor: float) -> "FittedLaws":
        """Return the laws with all times multiplied."""
        tables = ("compute", "group", "ranking")
        longer: dict[str, Any] = {name: _scaled(getattr(self, name), factor) for name in tables}
        samples = {name: times * factor for name, times in self.samples.items()}
        return replace(self, samples=samples, **longer)


def fit(times: Sequence[Array], *, numbers: Sequence[int] | None = None) -> FittedLaws:
    """Fit the laws of compute times to `times`: every worker's step times (seconds).

    `numbers`: the workers' ranks, by default in order from 0. Raises InputError for times that are
    negative or not finite, or if there are no steps.
    """
    series = _checked(times)
    ranks = range(len(series)) if numbers is None else numbers
    groups = _named(independence.alike(series), series)
    samples = {
        name: np.concatenate([series[place] for place in places]) for name, places in groups.items()
    }
    laws: dict[str, dict[str, Any]] = {}
    empirical: dict[str, Array] = {}
    ranking: list[dict[str, Any]] = []
    notes: list[str] = []
    for index, (name, sample) in enumerate(samples.items()):
        file = f"compute-{name}.csv" if name else "compute.csv"
        laws[name], rows, more = _law(sample, len(series), index, file)
        if laws[name]["dist"] == "empirical":
            empirical[file] = sample
        ranking += [{"group": name, **row} for row in rows]
        notes += [f"{name} workers: {note}" if name else note for note in more]
    grouped = []
    for name in filter(None, groups):
        grouped.append({"name": name, "workers": len(groups[name]), "compute": laws[name]})
        members = ", ".join(str(ranks[place]) for place in groups[name])
        verb = "workers {} take" if len(groups[name]) > 1 else "worker {} takes"
        ratio = samples[name].mean() / samples[""].mean()
        notes.append(f"{verb.format(members)} {ratio:.4g} times as long as the others, throughout")
    return FittedLaws(laws[""], grouped, empirical, ranking, _standard_error(series), notes)


def _checked(times: Sequence[Array]) -> list[Array]:
    series = [np.asarray(time, dtype=float) for time in times]
    for rank, lasted in enumerate(series):
        wrong = lasted[~(np.isfinite(lasted) & (lasted >= 0))]
        if len(wrong):
            raise InputError(f"worker {rank}: a step of {wrong[0]} s; times are finite, 0 or more")
    if not any(map(len, series)):
        raise InputError("no steps were measured; give a run that is longer than its warm-up")
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
    rows = []
    for fit in tried:
        numbers = {key: value for key, value in vars(fit).items() if key != "law"}
        table = _table(fit.law)
        rows.append({"family": table["dist"], "parameters": table, **numbers})
        rows[-1]["chosen"] = fit is chosen
    law = {"dist": "empirical", "file": file} if chosen is None else _table(chosen.law)
    return law, rows, notes


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
