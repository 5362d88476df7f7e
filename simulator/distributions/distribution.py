"""Define the interface of every distribution of a random time (seconds).

A distribution can be sampled, and has an expectation, variance, survival function, CDF and
quantiles. Times are never negative: a parameter that allows negative times is an error. Sampling in
blocks of any size gives the same numbers: `sample(rng, a)` and then `sample(rng, b)` return the
numbers of `sample(rng, a + b)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict

from ..inputs.units import is_time

Array = NDArray[np.float64]


def _require_dist(schema: dict[str, Any]) -> None:
    """Require the key `dist` in scenario files; Python users may omit it."""
    schema["required"] = ["dist", *schema.get("required", [])]


class Distribution(BaseModel, ABC):
    """A random time in seconds, never negative."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_require_dist)

    _bends: ClassVar[tuple[str, ...]] = ()  # parameters at which the CDF jumps or bends

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        return self.from_uniform(rng.random(n))

    @abstractmethod
    def _moments(self) -> tuple[float, float]:
        """Return expectation (s) and variance (s^2)."""

    @abstractmethod
    def _sf(self, t: Array) -> Array:
        """Return the survival function at t >= 0 (s)."""

    @abstractmethod
    def _quantile(self, q: Array) -> Array: ...

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Draw `n` times (seconds), shape (n,)."""
        return self._draw(rng, n)

    @property
    def expectation(self) -> float:
        """Mean (seconds); inf if it does not exist."""
        return self._moments()[0]

    @property
    def variance(self) -> float:
        """Variance (seconds squared); inf if it does not exist."""
        return self._moments()[1]

    @property
    def is_constant(self) -> bool:
        """Whether every draw is the same."""
        return self.variance == 0

    @property
    def knots(self) -> tuple[float, ...]:
        """Times (seconds), besides zero, at which the CDF jumps or bends."""
        return tuple(getattr(self, key) for key in self._bends)

    def sf(self, t: ArrayLike) -> Array:
        """Return P(more than `t` seconds), accurate far in the tail; same shape as `t`."""
        t = np.asarray(t, dtype=float)
        return np.where(t < 0, 1.0, self._sf(np.maximum(t, 0.0)))

    def cdf(self, t: ArrayLike) -> Array:
        """Return P(at most `t` seconds); same shape as `t`."""
        return 1.0 - self.sf(t)

    def quantile(self, q: ArrayLike) -> Array:
        """Return the smallest t (seconds) with cdf(t) >= q; same shape as `q`.

        Raises ValueError for a probability outside [0, 1].
        """
        q = np.asarray(q, dtype=float)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueError("a probability must be from 0 to 1")
        return self._quantile(q)

    def residual(self, u: ArrayLike) -> Array:
        """Return residual times (s) at a random moment, from `u` uniform on (0, 1).

        The density is sf(t) / expectation, the equilibrium law of renewal theory (Cox, *Renewal
        Theory*, 1962, section 5.3); the expectation must be finite and above 0.
        """
        times: Array = np.interp(np.asarray(u, dtype=float), *_equilibrium(self))
        return times

    def closed_sum(self, n: int) -> tuple[float, "Distribution | None"] | None:
        """Return the sum of `n` independent times as fixed seconds and a law, or None.

        The law is None if the sum is not random.
        """
        return None

    @classmethod
    def times(cls) -> tuple[str, ...]:
        """Return the names of the parameters that are times."""
        return tuple(key for key, field in cls.model_fields.items() if is_time(field))

    def scaled(self, by: float) -> Self:
        """Return the law of times that are `by` times as long."""
        return self.model_copy(update={key: by * getattr(self, key) for key in self.times()})

    def from_uniform(self, u: Array) -> Array:
        """Convert numbers uniform on (0, 1), shape (n,), to draws (seconds), shape (n,)."""
        return self._quantile(u)


@lru_cache(maxsize=64)
def _equilibrium(law: Distribution) -> tuple[Array, Array]:
    """Tabulate the CDF of a law's residual time, for interpolation: (CDF, seconds)."""
    mean = law.expectation
    rare = np.geomspace(1e-12, 1e12, 8192) * mean
    ends = np.unique([0.0, *law.knots, *law.quantile(np.arange(1, 4096) / 4096), *rare])
    nodes, weights = np.polynomial.legendre.leggauss(4)
    width = np.diff(ends)
    inside = ends[:-1, None] + width[:, None] * (nodes + 1) / 2
    result = np.concatenate([[0.0], np.cumsum(law.sf(inside) @ weights * width / 2)])
    return result / result[-1], ends


def invert(cdf: Callable[[Array], Array], q: Array, low: Array, high: Array) -> Array:
    """Find the smallest t in [low, high] with cdf(t) >= q, exact to a float."""
    result = cdf(low) >= q
    for _ in range(80):
        middle = 0.5 * (low + high)
        enough = cdf(middle) >= q
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(result, low, high)
