"""Fit families of compute times by maximum likelihood; measure how well each fits.

The family is chosen by the Bayesian information criterion (Schwarz 1978). With enough samples it
finds the true family, while Akaike's criterion keeps a superfluous parameter in one of six cases.
An end point is estimated with an error of order 1/n, not 1/sqrt(n), so the approximation behind
BIC charges log n for it, twice as much as for an ordinary parameter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.simulator.distributions import parametric as laws
from paceline.simulator.distributions.distribution import Array, Distribution
from paceline.simulator.distributions.order_statistics import expected_max
from paceline.simulator.inputs import units

BOOTSTRAP = 199
REJECTED = 1 / (1 + BOOTSTRAP)  # the smallest p-value that the bootstrap can give
HOPELESS = 2.0  # KS distance times sqrt(n) above which the p-value is the smallest
SMALL = 0.075  # largest KS distance accepted despite a rejection, if also ...
NEAR = 0.03  # ... the expected slowest worker is within this relative error
WIDEST = 20.0  # largest sd of a logarithm; beyond about 26 the variance overflows
FOLDED = 4.0  # distance of a normal mean from zero in sds, above which folding is negligible

Fit = tuple[Distribution, str, tuple[float, ...]]
"""A law, and SciPy's distribution of the largest likelihood: its name, shapes, place and scale."""

Rng = np.random.Generator


def _exponential(times: Array) -> Fit:
    mean = float(times.mean())
    return laws.Exponential.model_construct(mean=mean), "expon", (0.0, mean)


def _shifted_exponential(times: Array) -> Fit:
    """Fit the shift by the minimum, corrected for its bias."""
    mean, low = float(times.mean()), float(times.min())
    shift = max(0.0, low - (mean - low) / (len(times) - 1))
    law = laws.ShiftedExponential.model_construct(shift=shift, mean=mean)
    return law, "expon", (low, mean - low)


def _uniform(times: Array) -> Fit:
    """Fit both ends by the extremes, corrected for their bias."""
    low, high = float(times.min()), float(times.max())
    beyond = (high - low) / (len(times) - 1)
    law = laws.Uniform.model_construct(low=max(0.0, low - beyond), high=high + beyond)
    return law, "uniform", (low, high - low)


def _normal(times: Array) -> Fit:
    """Fit mean and sd; if folding at zero matters, by EM over the unknown signs."""
    mean, sd = float(times.mean()), float(times.std())
    if mean < FOLDED * sd:
        square = float(np.mean(times**2))
        for _ in range(100):
            mean = float(np.mean(times * np.tanh(mean * times / sd**2)))
            sd = math.sqrt(square - mean * mean)
    return laws.Normal.model_construct(mean=mean, sd=sd), "foldnorm", (mean / sd, 0.0, sd)


def _lognormal(times: Array) -> Fit:
    logs = np.log(times)
    center, spread = float(logs.mean()), min(float(logs.std()), WIDEST)
    mean = math.exp(center + 0.5 * spread**2)
    law = laws.LogNormal.model_construct(mean=mean, sd=mean * math.sqrt(math.expm1(spread**2)))
    return law, "lognorm", (spread, 0.0, math.exp(center))


def _gamma(times: Array) -> Fit:
    from scipy import stats  # noqa: PLC0415 - a third of a second

    shape, _, scale = map(float, stats.gamma.fit(times, floc=0))
    return laws.Gamma.model_construct(mean=shape * scale, shape=shape), "gamma", (shape, 0.0, scale)


def _weibull(times: Array) -> Fit:
    """Fit the logarithms, which have a Gumbel law."""
    from scipy import stats  # noqa: PLC0415

    center, spread = map(float, stats.gumbel_l.fit(np.log(times)))
    shape, scale = 1 / spread, math.exp(center)
    return (
        laws.Weibull.model_construct(scale=scale, shape=shape),
        "weibull_min",
        (shape, 0.0, scale),
    )


def _pareto(times: Array) -> Fit:
    """Fit the minimum and the mean logarithm above it, corrected for bias."""
    n, low = len(times), float(times.min())
    over = float(np.log(times / low).sum())
    alpha = (n - 2) / over
    law = laws.Pareto.model_construct(minimum=low * (1 - 1 / ((n - 1) * alpha)), alpha=alpha)
    return law, "pareto", (n / over, 0.0, low)


@dataclass(frozen=True)
class Family:
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
