"""Families of compute times by maximum likelihood, and how well each fits.

Chosen by the Bayesian information criterion (Schwarz 1978): if the true family is among them it
finds it as samples grow, where Akaike's keeps a spare parameter in one of six cases. An end point
is estimated with an error of order 1/n, not 1/sqrt(n), so that the approximation behind BIC charges
log n for it, twice as much as for an ordinary parameter.
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
SMALL = 0.075  # a KS distance that is accepted if also
NEAR = 0.03  # the expected slowest worker is within this relative error
WIDEST = 20.0  # sd of a logarithm; beyond about 26 a float has no room for the variance
FOLDED = 4.0  # sds between the mean of a normal law and zero, above which folding is negligible

Fit = tuple[Distribution, float]  # a law, and the log-likelihood of the times under it
Rng = np.random.Generator


def exponential(times: Array) -> Fit:
    """Fit the mean."""
    mean = float(times.mean())
    return laws.Exponential.model_construct(mean=mean), -len(times) * (math.log(mean) + 1)


def shifted_exponential(times: Array) -> Fit:
    """Fit the shift by the minimum, less its bias."""
    n, mean, low = len(times), float(times.mean()), float(times.min())
    shift = max(0.0, low - (mean - low) / (n - 1))
    law = laws.ShiftedExponential.model_construct(shift=shift, mean=mean)
    return law, -n * (math.log(mean - low) + 1)


def uniform(times: Array) -> Fit:
    """Fit both ends by the extremes, less their bias."""
    n, low, high = len(times), float(times.min()), float(times.max())
    beyond = (high - low) / (n - 1)
    law = laws.Uniform.model_construct(low=max(0.0, low - beyond), high=high + beyond)
    return law, -n * math.log(high - low)


def normal(times: Array) -> Fit:
    """Fit mean and sd; if folding at zero matters, by EM over the unknown signs."""
    n, mean, sd = len(times), float(times.mean()), float(times.std())
    if mean >= FOLDED * sd:
        return laws.Normal.model_construct(mean=mean, sd=sd), -n * (math.log(sd) + _HALF_LOG + 0.5)
    square = float(np.mean(times**2))
    for _ in range(100):
        mean = float(np.mean(times * np.tanh(mean * times / sd**2)))
        sd = math.sqrt(square - mean * mean)
    left, right = (-0.5 * ((times + sign * mean) / sd) ** 2 for sign in (1, -1))
    likely = float(np.logaddexp(left, right).sum()) - n * (math.log(sd) + _HALF_LOG)
    return laws.Normal.model_construct(mean=mean, sd=sd), likely


_HALF_LOG = 0.5 * math.log(2 * math.pi)


def lognormal(times: Array) -> Fit:
    """Fit mean and sd of the logarithm."""
    logs = np.log(times)
    center, spread = float(logs.mean()), min(float(logs.std()), WIDEST)
    mean = math.exp(center + 0.5 * spread**2)
    law = laws.LogNormal.model_construct(mean=mean, sd=mean * math.sqrt(math.expm1(spread**2)))
    return law, -len(times) * (center + math.log(spread) + _HALF_LOG + 0.5)


def _gamma_shape(gap: float) -> float:
    """Solve log k - digamma(k) = `gap` = log E[x] - E[log x] for the shape k (Minka 2002)."""
    from scipy.special import digamma, polygamma  # noqa: PLC0415

    gap = max(gap, 1e-12)
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(4):
        slope = 1 / shape - float(polygamma(1, shape))
        step = (math.log(shape) - float(digamma(shape)) - gap) / (shape * shape * slope)
        shape = 1 / (1 / shape + step)
    return shape


def gamma(times: Array) -> Fit:
    """Fit the mean, and the shape by Newton's method."""
    n, mean, log = len(times), float(times.mean()), float(np.log(times).mean())
    shape = _gamma_shape(math.log(mean) - log)
    each = shape * math.log(shape / mean) - math.lgamma(shape) + (shape - 1) * log - shape
    return laws.Gamma.model_construct(mean=mean, shape=shape), n * each


def weibull(times: Array) -> Fit:
    """Fit the shape by Newton's method, then the scale."""
    n, logs = len(times), np.log(times / times.max())
    center = float(logs.mean())
    shape = math.pi / math.sqrt(6) / float(logs.std())  # by moments of the logarithm
    for _ in range(20):
        power = np.exp(shape * logs)
        first = float(power @ logs / power.sum())
        second = float(power @ logs**2 / power.sum())
        miss = first - 1 / shape - center
        shape = max(shape - miss / (second - first**2 + 1 / shape**2), 0.5 * shape)
        if abs(miss) < 1e-9 / shape:
            break
    scale = float(np.mean(np.exp(shape * logs))) ** (1 / shape)
    each = math.log(shape) - shape * math.log(scale) + (shape - 1) * center - 1
    law = laws.Weibull.model_construct(scale=scale * float(times.max()), shape=shape)
    return law, n * (each - math.log(float(times.max())))


def pareto(times: Array) -> Fit:
    """Fit the minimum and the mean logarithm above it, less their bias."""
    n, low = len(times), float(times.min())
    over = float(np.log(times / low).sum())
    alpha = (n - 2) / over
    law = laws.Pareto.model_construct(minimum=low * (1 - 1 / ((n - 1) * alpha)), alpha=alpha)
    return law, n * math.log(n / over) - n * math.log(low) - over - n


@dataclass(frozen=True)
class Family:
    """A family of distributions. `fit`: maximum likelihood; `charge`: parameters for BIC.

    An end point counts as two parameters. `positive`: zero is impossible; `ended`: the support has
    an estimated end point.
    """

    fit: Callable[[Array], Fit]
    charge: int
    positive: bool = True
    ended: bool = False


FAMILIES = (
    Family(exponential, 1, positive=False),
    Family(shifted_exponential, 3, positive=False, ended=True),
    Family(uniform, 4, positive=False, ended=True),
    Family(normal, 2, positive=False),
    Family(lognormal, 2),
    Family(gamma, 2),
    Family(weibull, 2),
    Family(pareto, 3, ended=True),
)


@dataclass(frozen=True)
class FittedLaw:
    """A fitted law with its log-likelihood, BIC and Kolmogorov-Smirnov distance `ks`.

    `p`: share of parametric bootstrap samples that, fitted anew, are as far from their law (at
    least `REJECTED`). `slowest`: expected slowest worker under the law, over that of the times.
    """

    law: Distribution
    log_likelihood: float
    bic: float
    ks: float
    p: float
    slowest: float

    @property
    def fits(self) -> bool:
        """Whether the law is not rejected, or close enough anyway."""
        return self.p > REJECTED or (self.ks <= SMALL and abs(self.slowest - 1) <= NEAR)


def candidates(times: Array, workers: int, rng: Rng, *, ended: bool = True) -> list[FittedLaw]:
    """Fit all families that `times` (seconds, not all equal) can come from, the best BIC first.

    `ended`: include families with end points, which few samples determine badly.
    """
    found = []
    for family in FAMILIES:
        if (family.positive and times.min() <= 0) or (family.ended and not ended):
            continue
        law, likely = family.fit(times)
        if not _allowed(law):
            continue
        bic = family.charge * math.log(len(times)) - 2 * likely
        ks = distance(law, times)
        p = _chance(family, law, len(times), ks, rng)
        with np.errstate(over="ignore"):
            slowest = expected_max([(law,)] * workers) / slowest_of(times, workers)
        found.append(FittedLaw(law, likely, bic, ks, p, slowest))
    return sorted(found, key=lambda each: each.bic)


def _allowed(law: Distribution) -> bool:
    """Whether a scenario accepts the law: its shape, and its numbers; its expectation, too."""
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


def _chance(family: Family, law: Distribution, n: int, ks: float, rng: Rng) -> float:
    """Return the p-value of a distance to a law with estimated parameters (Stute et al. 1993)."""
    if ks * math.sqrt(n) > HOPELESS:
        return REJECTED
    samples = law.sample(rng, BOOTSTRAP * n).reshape(BOOTSTRAP, n)
    further = sum(distance(family.fit(sample)[0], sample) >= ks for sample in samples)
    return (1 + further) / (1 + BOOTSTRAP)


def slowest_of(times: Array, workers: int) -> float:
    """Return the expected largest of `workers` draws from `times` (seconds)."""
    below = (np.arange(len(times) + 1) / len(times)) ** workers
    return float(np.sort(times) @ np.diff(below))
