"""Fit laws of compute times to measured steps: distributions, and slow workers.

Families are fitted by maximum likelihood, and chosen by the Bayesian information criterion (Schwarz
1978). With enough samples it finds the true family, while Akaike's keeps a superfluous parameter in
one of six cases. An end point is estimated with an error of order 1/n, not 1/sqrt(n), so the
approximation behind BIC charges log n for it, twice as much as for an ordinary parameter.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from paceline.simulator.distributions import parametric as families
from paceline.simulator.distributions.distribution import Array, Distribution
from paceline.simulator.distributions.order_statistics import expected_max
from paceline.simulator.errors import InputError
from paceline.simulator.inputs import units

from . import independence

FEW = 20  # fewest steps that distinguish families of distributions
SEED = 0
BOOTSTRAP = 199
REJECTED = 1 / (1 + BOOTSTRAP)  # the smallest p-value that the bootstrap can give
HOPELESS = 2.0  # KS distance times sqrt(n) above which the p-value is the smallest
SMALL = 0.075  # largest KS distance accepted despite a rejection, if also ...
NEAR = 0.03  # ... the expected slowest worker is within this relative error
WIDEST = 20.0  # largest sd of a logarithm; beyond about 26 the variance overflows
FOLDED = 4.0  # distance of a normal mean from zero in sds, above which folding is negligible


@dataclass(frozen=True)
class FittedLaws:
    """The tables of [cluster] that describe the measured steps.

    `compute` and `group` (without the keys of `compute`) are its tables; `samples`: times (seconds)
    of empirical laws, by file name. `fits`: how well the law of each group fits. `sd`: relative
    standard error of the mean step. `notes`: findings, in sentences.
    """

    compute: dict[str, Any]
    group: list[dict[str, Any]]
    samples: dict[str, Array]
    fits: list[dict[str, Any]]
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
        compute, group = _scaled(self.compute, factor), _scaled(self.group, factor)
        samples = {name: times * factor for name, times in self.samples.items()}
        return replace(self, compute=compute, group=group, samples=samples)


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
    fits: list[dict[str, Any]] = []
    notes: list[str] = []
    for index, (name, sample) in enumerate(samples.items()):
        file = f"compute-{name}.csv" if name else "compute.csv"
        laws[name], fitness, more = _law(sample, len(series), index, file)
        if laws[name]["dist"] == "empirical":
            empirical[file] = sample
        fits.append({"group": name, "family": laws[name]["dist"], **fitness})
        notes += [f"{name} workers: {note}" if name else note for note in more]
    grouped = []
    for name in filter(None, groups):
        grouped.append({"name": name, "workers": len(groups[name]), "compute": laws[name]})
        members = ", ".join(str(ranks[place]) for place in groups[name])
        verb = "workers {} take" if len(groups[name]) > 1 else "worker {} takes"
        ratio = samples[name].mean() / samples[""].mean()
        notes.append(f"{verb.format(members)} {ratio:.4g} times as long as the others, throughout")
    return FittedLaws(laws[""], grouped, empirical, fits, _standard_error(series), notes)


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
) -> tuple[dict[str, Any], dict[str, float], list[str]]:
    """Fit independent times; return the law, how well it fits, and notes."""
    n, mean, sd = len(times), float(times.mean()), float(times.std())
    if n < 3 or sd <= independence.NEARLY * mean:
        few = [f"only {n} step{'s' * (n > 1)}: too few to fit more than their mean"] * (n < 3)
        return _table(families.Constant.model_construct(value=mean)), {}, few
    rng = np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=(index,)))
    tried = candidates(times, workers, rng, ended=n >= FEW)
    notes = []
    chosen = next((fit for fit in tried if fit.fits), None) if n >= FEW else tried[0]
    if n < FEW:
        notes.append(f"only {n} steps: too few to fit more than their mean and a rough spread")
    elif chosen is None:
        notes.append(f"no family fits {n} steps: the measured times are used (empirical)")
    elif chosen.p <= REJECTED:
        notes.append(
            f"{chosen.law.model_dump()['dist']} is not exactly the law (p = {chosen.p:.2g}), but "
            f"close enough: the slowest of {workers} is within {abs(chosen.slowest - 1):.1%}"
        )
    if chosen is None:
        return {"dist": "empirical", "file": file}, {}, notes
    fitness = {key: getattr(chosen, key) for key in ("ks", "p", "slowest")}
    return _table(chosen.law), fitness, notes


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


# Families of distributions

Fit = tuple[Distribution, str, tuple[float, ...]]
"""A law, and SciPy's distribution of the largest likelihood: its name, shapes, place and scale."""

Rng = np.random.Generator


def _exponential(times: Array) -> Fit:
    mean = float(times.mean())
    return families.Exponential.model_construct(mean=mean), "expon", (0.0, mean)


def _shifted_exponential(times: Array) -> Fit:
    """Fit the shift by the minimum, corrected for its bias."""
    mean, low = float(times.mean()), float(times.min())
    shift = max(0.0, low - (mean - low) / (len(times) - 1))
    law = families.ShiftedExponential.model_construct(shift=shift, mean=mean)
    return law, "expon", (low, mean - low)


def _uniform(times: Array) -> Fit:
    """Fit both ends by the extremes, corrected for their bias."""
    low, high = float(times.min()), float(times.max())
    beyond = (high - low) / (len(times) - 1)
    law = families.Uniform.model_construct(low=max(0.0, low - beyond), high=high + beyond)
    return law, "uniform", (low, high - low)


def _normal(times: Array) -> Fit:
    """Fit mean and sd; if folding at zero matters, by EM over the unknown signs."""
    mean, sd = float(times.mean()), float(times.std())
    if mean < FOLDED * sd:
        square = float(np.mean(times**2))
        for _ in range(100):
            mean = float(np.mean(times * np.tanh(mean * times / sd**2)))
            sd = math.sqrt(square - mean * mean)
    return families.Normal.model_construct(mean=mean, sd=sd), "foldnorm", (mean / sd, 0.0, sd)


def _lognormal(times: Array) -> Fit:
    logs = np.log(times)
    center, spread = float(logs.mean()), min(float(logs.std()), WIDEST)
    mean = math.exp(center + 0.5 * spread**2)
    law = families.LogNormal.model_construct(mean=mean, sd=mean * math.sqrt(math.expm1(spread**2)))
    return law, "lognorm", (spread, 0.0, math.exp(center))


def _gamma(times: Array) -> Fit:
    from scipy import stats  # noqa: PLC0415 - a third of a second

    shape, _, scale = map(float, stats.gamma.fit(times, floc=0))
    law = families.Gamma.model_construct(mean=shape * scale, shape=shape)
    return law, "gamma", (shape, 0.0, scale)


def _weibull(times: Array) -> Fit:
    """Fit the logarithms, which have a Gumbel law."""
    from scipy import stats  # noqa: PLC0415

    center, spread = map(float, stats.gumbel_l.fit(np.log(times)))
    shape, scale = 1 / spread, math.exp(center)
    law = families.Weibull.model_construct(scale=scale, shape=shape)
    return law, "weibull_min", (shape, 0.0, scale)


def _pareto(times: Array) -> Fit:
    """Fit the minimum and the mean logarithm above it, corrected for bias."""
    n, low = len(times), float(times.min())
    over = float(np.log(times / low).sum())
    alpha = (n - 2) / over
    law = families.Pareto.model_construct(minimum=low * (1 - 1 / ((n - 1) * alpha)), alpha=alpha)
    return law, "pareto", (n / over, 0.0, low)


class Family(NamedTuple):
    """A family of distributions.

    `fit`: maximum likelihood; `charge`: parameters for BIC, two for an end point. `positive`: zero
    is impossible; `ended`: the support has an estimated end point.
    """

    fit: Callable[[Array], Fit]
    charge: int
    positive: bool = True
    ended: bool = False


FAMILIES = (
    Family(_exponential, 1, positive=False),
    Family(_shifted_exponential, 3, positive=False, ended=True),
    Family(_uniform, 4, positive=False, ended=True),
    Family(_normal, 2, positive=False),
    Family(_lognormal, 2),
    Family(_gamma, 2),
    Family(_weibull, 2),
    Family(_pareto, 3, ended=True),
)


@dataclass(frozen=True)
class FittedLaw:
    """A fitted law with its BIC and Kolmogorov-Smirnov distance `ks`.

    `p`: share of parametric bootstrap samples that are at least as far from the law fitted to them
    (at least `REJECTED`; Stute et al. 1993). `slowest`: the expected slowest worker's time under
    the law, relative to the measured one.
    """

    law: Distribution
    bic: float
    ks: float
    p: float
    slowest: float

    @property
    def fits(self) -> bool:
        """Return whether the law fits: it is not rejected, or close enough."""
        return self.p > REJECTED or (self.ks <= SMALL and abs(self.slowest - 1) <= NEAR)


def candidates(times: Array, workers: int, rng: Rng, *, ended: bool = True) -> list[FittedLaw]:
    """Fit all families that can produce `times` (seconds), the best BIC first.

    `ended`: include families with end points, which few samples determine badly.
    """
    from scipy import stats  # noqa: PLC0415

    fits, n = [], len(times)
    for family in FAMILIES:
        if (family.positive and times.min() <= 0) or (family.ended and not ended):
            continue
        law, name, parameters = family.fit(times)
        if not _allowed(law):
            continue
        log_likelihood = float(getattr(stats, name).logpdf(times, *parameters).sum())
        bic = family.charge * math.log(n) - 2 * log_likelihood
        ks, p = distance(law, times), REJECTED
        if ks * math.sqrt(n) <= HOPELESS:
            samples = law.sample(rng, BOOTSTRAP * n).reshape(BOOTSTRAP, n)
            further = sum(distance(family.fit(sample)[0], sample) >= ks for sample in samples)
            p = (1 + further) / (1 + BOOTSTRAP)
        with np.errstate(over="ignore"):
            slowest = expected_max([(law,)] * workers) / slowest_of(times, workers)
        fits.append(FittedLaw(law, bic, ks, p, slowest))
    return sorted(fits, key=lambda fit: fit.bic)


def _allowed(law: Distribution) -> bool:
    """Return whether a scenario accepts the law's shape and numbers."""
    values = law.model_dump()
    shape = min(values.get("shape", 1.0), values.get("alpha", 1.0))
    numbers = [law.expectation, *(item for item in values.values() if isinstance(item, float))]
    bounded = (
        number == 0 or units.LEAST <= abs(number) <= units.MOST["time"] for number in numbers
    )
    return shape >= 0.1 and all(bounded)


def distance(law: Distribution, times: Array) -> float:
    """Return the Kolmogorov-Smirnov distance between a law and times."""
    with np.errstate(over="ignore"):
        below = law.cdf(np.sort(times))
    steps = np.arange(len(times) + 1) / len(times)
    return float(max(np.max(steps[1:] - below), np.max(below - steps[:-1])))


def slowest_of(times: Array, workers: int) -> float:
    """Return the expected largest of `workers` draws from `times` (seconds)."""
    below = (np.arange(len(times) + 1) / len(times)) ** workers
    return float(np.sort(times) @ np.diff(below))
