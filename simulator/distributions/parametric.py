"""Define parametric families of random times (seconds) in closed form."""

import math
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field, model_validator

from ..inputs.units import Seconds
from .distribution import Array, Distribution, invert


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError('must be above zero; for a fixed time write dist = "constant"')
    return value


Duration = Annotated[Seconds, AfterValidator(_above_zero)]
Number = Annotated[float, Field(gt=0, le=1e30, strict=True, allow_inf_nan=False)]
# below 0.1, draws and moments of heavy tails overflow a float
TailIndex = Annotated[float, Field(ge=0.1, le=1e30, strict=True, allow_inf_nan=False)]
# below 0.01, nearly every draw is zero, and no run shows the mean
Stages = Annotated[float, Field(ge=0.01, le=1e30, strict=True, allow_inf_nan=False)]

WIDEST = 1000  # largest sd over mean: above it, nearly every lognormal draw is close to zero


def _special(function: str, *values: ArrayLike) -> Array:
    """Call a function of `scipy.special`, imported late because that takes 0.2 s."""
    from scipy import special  # noqa: PLC0415

    return np.asarray(getattr(special, function)(*values), dtype=float)


class Constant(Distribution):
    """A constant time."""

    _bends: ClassVar = ("value",)
    dist: Literal["constant"] = "constant"
    value: Seconds = Field(description="the time")

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return np.full(n, self.value)

    def _moments(self) -> tuple[float, float]:
        return self.value, 0.0

    def _sf(self, t: Array) -> Array:
        return np.where(t < self.value, 1.0, 0.0)

    def _quantile(self, q: Array) -> Array:
        return np.full(q.shape, self.value)

    def closed_sum(self, n: int) -> tuple[float, Distribution | None]:
        """Return the sum of `n` independent times."""
        return n * self.value, None


class Exponential(Distribution):
    """A memoryless time: often far below the mean, sometimes a few times above it."""

    dist: Literal["exponential"] = "exponential"
    mean: Duration = Field(description="expected time")

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.exponential(self.mean, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.mean * self.mean

    def _sf(self, t: Array) -> Array:
        return np.exp(-t / self.mean)

    def _quantile(self, q: Array) -> Array:
        with np.errstate(divide="ignore"):
            return -self.mean * np.log1p(-q)

    def closed_sum(self, n: int) -> tuple[float, Distribution | None]:
        """Return the sum of `n` independent times."""
        return 0.0, Gamma.model_construct(mean=n * self.mean, shape=float(n))


class ShiftedExponential(Distribution):
    """A fixed time plus an exponential one; `mean` is the mean of their sum."""

    _bends: ClassVar = ("shift",)
    dist: Literal["shifted-exponential"] = "shifted-exponential"
    shift: Seconds = Field(description="least time")
    mean: Duration = Field(description="expected time, including the shift")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mean <= self.shift:
            raise ValueError(
                f"mean ({self.mean:g} s) must be above shift ({self.shift:g} s): it is the mean of "
                "the fixed and the random part together; raise mean or lower shift"
            )
        return self

    @property
    def _random_part(self) -> Exponential:
        return Exponential.model_construct(mean=self.mean - self.shift)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self.shift + rng.exponential(self.mean - self.shift, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self._random_part.variance

    def _sf(self, t: Array) -> Array:
        return self._random_part.sf(t - self.shift)

    def _quantile(self, q: Array) -> Array:
        return self.shift + self._random_part.quantile(q)

    def closed_sum(self, n: int) -> tuple[float, Distribution | None]:
        """Return the sum of `n` independent times."""
        return n * self.shift, self._random_part.closed_sum(n)[1]


class Uniform(Distribution):
    """A time between two bounds, all equally likely."""

    _bends: ClassVar = ("low", "high")
    dist: Literal["uniform"] = "uniform"
    low: Seconds = Field(description="least time")
    high: Duration = Field(description="longest time")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low ({self.low:g} s) must be below high ({self.high:g} s); swap them, or for a "
                'fixed time write dist = "constant"'
            )
        return self

    def _moments(self) -> tuple[float, float]:
        return 0.5 * (self.low + self.high), (self.high - self.low) ** 2 / 12

    def _sf(self, t: Array) -> Array:
        return np.clip((self.high - t) / (self.high - self.low), 0.0, 1.0)

    def _quantile(self, q: Array) -> Array:
        return self.low + (self.high - self.low) * q


class Normal(Distribution):
    """A normal variable made non-negative: its absolute value (fold), or clip at 0.

    `mean` and `sd` describe the normal variable before that.
    """

    dist: Literal["normal"] = "normal"
    mean: Seconds = Field(description="of the normal variable")
    sd: Duration = Field(description="its standard deviation")
    negative: Literal["fold", "clip"] = Field(
        default="fold", description="replace a draw below zero by its size, or by zero"
    )

    def _repair(self, x: Array) -> Array:
        return np.abs(x) if self.negative == "fold" else np.maximum(x, 0.0)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self._repair(rng.normal(self.mean, self.sd, n))

    def from_uniform(self, u: Array) -> Array:
        """Convert numbers uniform on (0, 1), shape (n,), to draws (seconds), shape (n,)."""
        return self._repair(self.mean + self.sd * _special("ndtri", u))

    def _moments(self) -> tuple[float, float]:
        z = self.mean / self.sd
        above = 0.5 * math.erfc(-z / math.sqrt(2))
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        first = self.mean * above + self.sd * density  # of the part above zero
        second = (self.mean**2 + self.sd**2) * above + self.mean * self.sd * density
        if self.negative == "fold":
            first, second = 2 * first - self.mean, self.mean**2 + self.sd**2
        return first, second - first**2

    def _sf(self, t: Array) -> Array:
        right = _special("ndtr", (self.mean - t) / self.sd)
        if self.negative == "clip":
            return right
        return right + _special("ndtr", (-self.mean - t) / self.sd)

    def _quantile(self, q: Array) -> Array:
        low = np.maximum(self.mean + self.sd * _special("ndtri", q), 0.0)
        if self.negative == "clip":
            return low
        return invert(self.cdf, q, low, self.mean + self.sd * _special("ndtri", 0.5 + 0.5 * q))


class LogNormal(Distribution):
    """A time with a normal logarithm; `mean` and `sd` describe the time itself."""

    dist: Literal["lognormal"] = "lognormal"
    mean: Duration = Field(description="expected time")
    sd: Duration = Field(description="standard deviation of the time itself")

    @model_validator(mode="after")
    def _mean_is_observable(self) -> Self:
        if self.sd > WIDEST * self.mean:
            raise ValueError(
                f"sd is above {WIDEST} times the mean, so no run would show that mean; "
                "write a smaller sd"
            )
        return self

    @property
    def _log(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of seconds."""
        ratio = self.sd / self.mean
        variance = math.log1p(ratio * ratio)
        return math.log(self.mean) - 0.5 * variance, math.sqrt(variance)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.lognormal(*self._log, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.sd * self.sd

    def _sf(self, t: Array) -> Array:
        mean, sd = self._log
        with np.errstate(divide="ignore"):
            return _special("ndtr", (mean - np.log(t)) / sd)

    def _quantile(self, q: Array) -> Array:
        mean, sd = self._log
        return np.exp(mean + sd * _special("ndtri", q))


class Gamma(Distribution):
    """The sum of `shape` exponential stages; `shape` may be any positive number."""

    dist: Literal["gamma"] = "gamma"
    mean: Duration = Field(description="expected time")
    shape: Stages = Field(
        description="number of exponential stages; 1 is exponential, more reduce the spread"
    )

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.gamma(self.shape, self.mean / self.shape, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.mean * self.mean / self.shape

    def _sf(self, t: Array) -> Array:
        return _special("gammaincc", self.shape, t * (self.shape / self.mean))

    def _quantile(self, q: Array) -> Array:
        return _special("gammaincinv", self.shape, q) * (self.mean / self.shape)

    def closed_sum(self, n: int) -> tuple[float, Distribution | None]:
        """Return the sum of `n` independent times."""
        return 0.0, Gamma.model_construct(mean=n * self.mean, shape=n * self.shape)


class Weibull(Distribution):
    """A power of an exponential time: heavy-tailed for a shape below one."""

    dist: Literal["weibull"] = "weibull"
    scale: Duration = Field(description="time that 63 % of the draws stay below")
    shape: TailIndex = Field(description="below 1: a heavy tail; 1: exponential")

    def _moments(self) -> tuple[float, float]:
        log_first = math.lgamma(1 + 1 / self.shape)
        mean = self.scale * math.exp(log_first)
        spread = math.expm1(math.lgamma(1 + 2 / self.shape) - 2 * log_first)
        return mean, mean * mean * spread

    def _sf(self, t: Array) -> Array:
        return np.exp(-((t / self.scale) ** self.shape))

    def _quantile(self, q: Array) -> Array:
        with np.errstate(divide="ignore"):
            return self.scale * (-np.log1p(-q)) ** (1 / self.shape)


class Pareto(Distribution):
    """A power-law tail, P(more than t) = (minimum/t)^alpha.

    It has no variance for alpha <= 2, and no expectation for alpha <= 1.
    """

    _bends: ClassVar = ("minimum",)
    dist: Literal["pareto"] = "pareto"
    minimum: Duration = Field(description="least time")
    alpha: TailIndex = Field(description="tail index; the smaller, the heavier")

    def _moments(self) -> tuple[float, float]:
        over = self.alpha - 1
        mean = self.minimum * self.alpha / over if over > 0 else math.inf
        if self.alpha <= 2:
            return mean, math.inf
        return mean, self.minimum**2 * self.alpha / (over * over * (self.alpha - 2))

    def _sf(self, t: Array) -> Array:
        return (self.minimum / np.maximum(t, self.minimum)) ** self.alpha

    def _quantile(self, q: Array) -> Array:
        with np.errstate(divide="ignore"):
            return self.minimum * (1.0 - q) ** (-1 / self.alpha)
