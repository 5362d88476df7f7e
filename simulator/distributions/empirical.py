"""Laws of the times in a file (seconds): drawn at random, or replayed in order."""

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from ..inputs import csv_files, units
from .distribution import Array, Distribution

# array has a type parameter from Python 3.12 on, and pydantic evaluates the annotation
if TYPE_CHECKING:
    Floats = array[float]
else:
    Floats = array


def _path(file: str, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", "."), file)


class Samples(Distribution):
    """Times from a file, all equally likely.

    `file` is relative to the scenario's folder (validation context "folder").
    """

    file: str = Field(description="CSV of times, relative to the scenario")
    # an array of the standard library, which pydantic can compare
    _samples: Floats = PrivateAttr(default_factory=lambda: array("d"))

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
        rank = np.ceil(q * n * (1 - 1e-12))  # k/n must give the k-th time despite rounding
        times: Array = self._times[np.maximum(rank.astype(int), 1) - 1]
        return times

    @property
    def knots(self) -> tuple[float, ...]:
        """Times (seconds), besides zero, at which the CDF jumps or bends."""
        return tuple(np.unique(self._times).tolist())


class Empirical(Samples):
    """Times from a file, all equally likely: one per line, in seconds or with units.

    `file` is relative to the scenario's folder (validation context "folder").
    """

    dist: Literal["empirical"] = "empirical"

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> Self:
        rows = csv_files.rows(_path(self.file, info), [units.seconds], "one time")
        self._samples = array("d", sorted(time for (time,) in rows))
        return self

    def scaled(self, by: float) -> Self:
        """Return the law of times that are `by` times as long."""
        law = self.model_copy()
        law._samples = array("d", (self._times * by).tobytes())
        return law


class ReplayedTimes(Samples):
    """Times from a file in order: step k takes the k-th time, and the file repeats.

    If it has several columns, worker r replays column r mod columns. Its moments and quantiles are
    those of a time picked at random. `file` is relative to the scenario's folder (validation
    context "folder").
    """

    dist: Literal["trace"] = "trace"
    offset: Literal["none", "random"] = Field(
        default="none", description="where workers begin: at the first time, or at a random one"
    )
    _columns: tuple[Floats, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> Self:
        rows = csv_files.rows(_path(self.file, info), units.seconds, "the times of one step")
        self._set([array("d", column) for column in zip(*rows, strict=True)])
        return self

    def _set(self, times: Sequence[Floats]) -> None:
        self._columns = tuple(times)
        self._samples = array("d", sorted(chain.from_iterable(times)))

    def _replaced(self, times: Sequence[Floats]) -> Self:
        law = self.model_copy()
        law._set(times)
        return law

    @property
    def by_column(self) -> tuple[Self, ...]:
        """Every column as a separate trace."""
        return tuple(self._replaced([column]) for column in self._columns)

    def scaled(self, by: float) -> Self:
        """Return the trace of times that are `by` times as long."""
        return self._replaced(
            [array("d", (np.frombuffer(column) * by).tobytes()) for column in self._columns]
        )

    def replay(self, rng: np.random.Generator) -> Callable[[int], Array]:
        """Return a function of n: the next n times (seconds) of the first column.

        `rng` draws the offset, if it is random.
        """
        times = np.frombuffer(self._columns[0])
        place = int(rng.integers(len(times))) if self.offset == "random" else 0

        def draw(n: int) -> Array:
            nonlocal place
            result: Array = times[np.arange(place, place + n) % len(times)]
            place = (place + n) % len(times)
            return result

        return draw
