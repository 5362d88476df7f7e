"""Distributions of random times (seconds): what scenario files name, simulations draw from and
theory integrates.

Every distribution can be sampled and knows its expectation, variance, survival function, CDF and
quantiles. Times are never negative: parameters that could make them so are refused. Sampling in
blocks of any size gives the same numbers: `sample(rng, a)` then `sample(rng, b)` are
`sample(rng, a + b)`.
"""

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from simulator.units import EXAMPLES, Seconds, to_si

# scipy.special takes 0.2 s to import: only the functions that need it load it.

Array = NDArray[np.float64]


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError('must be above zero; for a fixed time write dist = "constant"')
    return value


Duration = Annotated[Seconds, AfterValidator(_above_zero)]
Number = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
# Below 0.1 draws and moments of the power-like tails leave the range of a float.
TailIndex = Annotated[float, Field(ge=0.1, strict=True, allow_inf_nan=False)]


def _require_dist(schema: dict[str, Any]) -> None:
    """A default spares Python users the tag; a scenario file must still write it."""
    schema["required"] = ["dist", *schema.get("required", [])]


class Distribution(BaseModel, ABC):
    """A random time in seconds, never negative."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_require_dist)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self.from_uniform(rng.random(n))

    @abstractmethod
    def _moments(self) -> tuple[float, float]:
        """Expectation and variance."""

    @abstractmethod
    def _sf(self, t: Array) -> Array:
        """Survival function at t >= 0."""

    @abstractmethod
    def _quantile(self, q: Array) -> Array: ...

    def _knots(self) -> tuple[float, ...]:
        return ()

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw `n` times (seconds), shape (n,)."""
        return self._draw(rng, n)

    @property
    def expectation(self) -> float:
        """The mean (seconds); inf where it does not exist."""
        return self._moments()[0]

    @property
    def variance(self) -> float:
        """The variance (seconds squared); inf where it does not exist."""
        return self._moments()[1]

    @property
    def is_constant(self) -> bool:
        """Whether every draw is the same."""
        return self.variance == 0

    @property
    def knots(self) -> tuple[float, ...]:
        """Where (seconds), besides zero, the CDF jumps or bends: quadrature must stop there."""
        return self._knots()

    def sf(self, t: ArrayLike) -> Array:
        """Probability of more than `t` seconds, accurate far into the tail; same shape as `t`."""
        t = np.asarray(t, dtype=float)
        return np.where(t < 0, 1.0, self._sf(np.maximum(t, 0.0)))

    def cdf(self, t: ArrayLike) -> Array:
        """Probability of at most `t` seconds; same shape as `t`."""
        return 1.0 - self.sf(t)

    def quantile(self, q: ArrayLike) -> Array:
        """Smallest t (seconds) with cdf(t) >= q; same shape as `q`.

        Raises ValueError for a probability outside [0, 1].
        """
        q = np.asarray(q, dtype=float)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueError("a probability lies in [0, 1]")
        return self._quantile(q)

    def from_uniform(self, u: Array) -> Array:
        """Turn numbers uniform on (0, 1), shape (n,), into as many draws (seconds)."""
        return self._quantile(u)


def _invert(cdf: Callable[[Array], Array], q: Array, low: Array, high: Array) -> Array:
    """Smallest t in [low, high] with cdf(t) >= q, by bisection down to neighbouring floats."""
    found = cdf(low) >= q
    for _ in range(80):
        middle = 0.5 * (low + high)
        enough = cdf(middle) >= q
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(found, low, high)


class Constant(Distribution):
    """Always the same time."""

    dist: Literal["constant"] = "constant"
    value: Seconds

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return np.full(n, self.value)

    def _moments(self) -> tuple[float, float]:
        return self.value, 0.0

    def _sf(self, t: Array) -> Array:
        return np.where(t < self.value, 1.0, 0.0)

    def _quantile(self, q: Array) -> Array:
        return np.full(q.shape, self.value)

    def _knots(self) -> tuple[float, ...]:
        return (self.value,)


class Exponential(Distribution):
    """Memoryless: often far below the mean, sometimes a few times above."""

    dist: Literal["exponential"] = "exponential"
    mean: Duration

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.exponential(self.mean, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.mean * self.mean

    def _sf(self, t: Array) -> Array:
        return np.exp(-t / self.mean)

    def _quantile(self, q: Array) -> Array:
        with np.errstate(divide="ignore"):
            return -self.mean * np.log1p(-q)


class ShiftedExponential(Distribution):
    """A fixed time plus an exponential one; `mean` is the mean of their sum."""

    dist: Literal["shifted-exponential"] = "shifted-exponential"
    shift: Seconds
    mean: Duration

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mean <= self.shift:
            raise ValueError(
                f"mean ({self.mean:g} s) must be above shift ({self.shift:g} s): it is the mean of "
                "the fixed and the random part together; raise mean or lower shift"
            )
        return self

    @property
    def random_part(self) -> Exponential:
        """What is added to the shift."""
        return Exponential.model_construct(mean=self.mean - self.shift)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self.shift + self.random_part.sample(rng, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.random_part.variance

    def _sf(self, t: Array) -> Array:
        return self.random_part.sf(t - self.shift)

    def _quantile(self, q: Array) -> Array:
        return self.shift + self.random_part.quantile(q)

    def _knots(self) -> tuple[float, ...]:
        return (self.shift,)


class Uniform(Distribution):
    """Any time between two bounds, all equally likely."""

    dist: Literal["uniform"] = "uniform"
    low: Seconds
    high: Duration

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

    def _knots(self) -> tuple[float, ...]:
        return (self.low, self.high)


class Normal(Distribution):
    """A normal variable made non-negative: its absolute value (fold) or no less than 0 (clip).

    `mean` and `sd` are those of the underlying normal variable.
    """

    dist: Literal["normal"] = "normal"
    mean: Seconds
    sd: Duration
    negative: Literal["fold", "clip"] = "fold"

    def _repair(self, x: Array) -> Array:
        return np.abs(x) if self.negative == "fold" else np.maximum(x, 0.0)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self._repair(rng.normal(self.mean, self.sd, n))

    def from_uniform(self, u: Array) -> Array:
        """Turn numbers uniform on (0, 1), shape (n,), into as many draws (seconds)."""
        from scipy.special import ndtri  # noqa: PLC0415

        return self._repair(self.mean + self.sd * ndtri(u))

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
        from scipy.special import ndtr  # noqa: PLC0415

        right: Array = ndtr((self.mean - t) / self.sd)
        if self.negative == "clip":
            return right
        return right + ndtr((-self.mean - t) / self.sd)

    def _quantile(self, q: Array) -> Array:
        from scipy.special import ndtri  # noqa: PLC0415

        low = np.maximum(self.mean + self.sd * ndtri(q), 0.0)
        if self.negative == "clip":
            return low
        return _invert(self.cdf, q, low, self.mean + self.sd * ndtri(0.5 + 0.5 * q))


class LogNormal(Distribution):
    """A time whose logarithm is normal: a heavy tail. `mean` and `sd` are of the time itself."""

    dist: Literal["lognormal"] = "lognormal"
    mean: Duration
    sd: Duration

    @property
    def _log(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm."""
        ratio = self.sd / self.mean
        variance = math.log1p(ratio * ratio)
        return math.log(self.mean) - 0.5 * variance, math.sqrt(variance)

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.lognormal(*self._log, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.sd * self.sd

    def _sf(self, t: Array) -> Array:
        from scipy.special import ndtr  # noqa: PLC0415

        mean, sd = self._log
        with np.errstate(divide="ignore"):
            survival: Array = ndtr((mean - np.log(t)) / sd)
        return survival

    def _quantile(self, q: Array) -> Array:
        from scipy.special import ndtri  # noqa: PLC0415

        mean, sd = self._log
        return np.exp(mean + sd * ndtri(q))


class Gamma(Distribution):
    """The sum of `shape` exponential stages (any positive number of them)."""

    dist: Literal["gamma"] = "gamma"
    mean: Duration
    shape: Number

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return rng.gamma(self.shape, self.mean / self.shape, n)

    def _moments(self) -> tuple[float, float]:
        return self.mean, self.mean * self.mean / self.shape

    def _sf(self, t: Array) -> Array:
        from scipy.special import gammaincc  # noqa: PLC0415

        return np.asarray(gammaincc(self.shape, t * (self.shape / self.mean)), dtype=float)

    def _quantile(self, q: Array) -> Array:
        from scipy.special import gammaincinv  # noqa: PLC0415

        return np.asarray(gammaincinv(self.shape, q) * (self.mean / self.shape), dtype=float)


class Weibull(Distribution):
    """A power of an exponential time: heavy-tailed for a shape below one."""

    dist: Literal["weibull"] = "weibull"
    scale: Duration
    shape: TailIndex

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
    """A power-law tail, P(more than t) = (minimum/t)^alpha: no variance for alpha <= 2, no
    expectation for alpha <= 1.
    """

    dist: Literal["pareto"] = "pareto"
    minimum: Duration
    alpha: TailIndex

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

    def _knots(self) -> tuple[float, ...]:
        return (self.minimum,)


def _read_samples(path: Path) -> "array[float]":
    """Times in seconds, one per line, sorted: numbers of seconds, or quantities ("300 ms").

    A first line that is a plain word (a column's name), blank lines and # comments are skipped.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; write one time per line") from None
    samples = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text or (number == 1 and text.isidentifier()):
            continue
        try:
            samples.append(_sample(text))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {text!r} is {error}") from None
    if not samples:
        raise ValueError(f"{path} holds no samples; write one time per line")
    return array("d", sorted(samples))


def _sample(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return to_si(text, "time")
    if not 0 <= seconds < math.inf:
        raise ValueError("not a time; write a finite number of seconds, 0 or more")
    return seconds


class Empirical(Distribution):
    """One of the times in a file, all equally likely: one per line, in seconds or with units.

    `file` is relative to the scenario's folder (validation context "folder").
    """

    dist: Literal["empirical"] = "empirical"
    file: str
    # An array of the standard library, as pydantic must be able to compare it.
    _samples: "array[float]" = PrivateAttr(default_factory=lambda: array("d"))

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> Self:
        self._samples = _read_samples(Path((info.context or {}).get("folder", "."), self.file))
        return self

    @property
    def _times(self) -> Array:
        return np.frombuffer(self._samples, dtype=np.float64)

    def _moments(self) -> tuple[float, float]:
        if self._samples[0] == self._samples[-1]:
            return self._samples[0], 0.0
        return float(self._times.mean()), float(self._times.var())

    def _sf(self, t: Array) -> Array:
        return 1.0 - np.searchsorted(self._times, t, side="right") / len(self._samples)

    def _quantile(self, q: Array) -> Array:
        n = len(self._samples)
        rank = np.ceil(q * n * (1 - 1e-12))  # k/n must give the k-th, whatever its rounding
        times: Array = self._times[np.maximum(rank.astype(int), 1) - 1]
        return times

    def _knots(self) -> tuple[float, ...]:
        return tuple(np.unique(self._times).tolist())


Simple = (
    Constant
    | Exponential
    | ShiftedExponential
    | Uniform
    | Normal
    | LogNormal
    | Gamma
    | Weibull
    | Pareto
    | Empirical
)


class Component(BaseModel):
    """One part of a mixture: a distribution's table with a `weight` beside its own keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Number
    law: Annotated[Simple, Field(discriminator="dist")]

    @model_validator(mode="before")
    @classmethod
    def _split(cls, table: Any) -> Any:
        if not isinstance(table, dict) or "law" in table:
            return table
        weight = {"weight": table["weight"]} if "weight" in table else {}
        return weight | {"law": {key: table[key] for key in table if key != "weight"}}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The flat table that users write, not the pair that Python holds."""
        pair = handler.resolve_ref_schema(handler(schema))["properties"]
        laws = [dict(handler.resolve_ref_schema(law)) for law in pair["law"]["oneOf"]]
        for law in laws:
            law["properties"] = {"weight": pair["weight"]} | law["properties"]
            law["required"] = ["weight", *law["required"]]
        return {"oneOf": laws, "title": "Component", "description": cls.__doc__}


class Mixture(Distribution):
    """Each time comes from one of the components, chosen in proportion to the weights."""

    dist: Literal["mixture"] = "mixture"
    components: Annotated[tuple[Component, ...], Field(min_length=1)]

    @property
    def _weights(self) -> Array:
        weights = np.array([part.weight for part in self.components])
        shares: Array = weights / weights.sum()
        return shares

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        # Two uniform numbers a draw, whatever the component, keep blocks of any size alike.
        choice, rest = rng.random((n, 2)).T
        rest = rest + 2.0**-55  # inside (0, 1)
        chosen = np.searchsorted(np.cumsum(self._weights)[:-1], choice, side="right")
        times = np.empty(n)
        for i, part in enumerate(self.components):
            times[chosen == i] = part.law.from_uniform(rest[chosen == i])
        return times

    def _moments(self) -> tuple[float, float]:
        means, variances = np.array([part.law._moments() for part in self.components]).T
        mean = float(self._weights @ means)
        if self.is_constant:
            return mean, 0.0
        if not math.isfinite(mean):
            return math.inf, math.inf
        return mean, float(self._weights @ (variances + (means - mean) ** 2))

    @property
    def is_constant(self) -> bool:
        """Whether every draw is the same."""
        laws = [part.law for part in self.components]
        return all(law.is_constant for law in laws) and len({law.expectation for law in laws}) == 1

    def _sf(self, t: Array) -> Array:
        parts = zip(self._weights, self.components, strict=True)
        return sum((weight * part.law.sf(t) for weight, part in parts), np.zeros(t.shape))

    def _quantile(self, q: Array) -> Array:
        parts = [part.law.quantile(q) for part in self.components]
        return _invert(self.cdf, q, np.minimum.reduce(parts), np.maximum.reduce(parts))

    def _knots(self) -> tuple[float, ...]:
        return tuple(sorted({knot for part in self.components for knot in part.law.knots}))


class _Shorthand:
    """A bare quantity, "300 ms", is a constant; a table must name its distribution."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        quantity = {"type": "string", "description": "a fixed time", "examples": EXAMPLES["time"]}
        example = {"dist": "shifted-exponential", "shift": "250 ms", "mean": "300 ms"}
        return {"anyOf": [quantity, handler(schema)], "examples": ["300 ms", example]}

    @staticmethod
    def _expand(value: Any) -> Any:
        if isinstance(value, str | int | float):
            return {"dist": "constant", "value": value}
        if isinstance(value, dict) and "dist" not in value:
            raise ValueError('the table names no distribution; add dist = "exponential", say')
        return value


Law = Annotated[Simple | Mixture, Field(discriminator="dist"), _Shorthand()]
