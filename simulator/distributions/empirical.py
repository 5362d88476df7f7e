"""Define the law of the times in a file (seconds), drawn at random."""

from array import array
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


class Empirical(Distribution):
    """Times from a file, all equally likely: one per line, in seconds or with units.

    `file` is relative to the scenario's folder (validation context "folder").
    """

    dist: Literal["empirical"] = "empirical"
    file: str = Field(description="CSV of times, relative to the scenario")
    # an array of the standard library, which pydantic can compare
    _samples: Floats = PrivateAttr(default_factory=lambda: array("d"))

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> Self:
        path = Path((info.context or {}).get("folder", "."), self.file)
        rows = csv_files.rows(path, [units.seconds], "one time")
        self._samples = array("d", sorted(time for (time,) in rows))
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
        rank = np.ceil(q * n * (1 - 1e-12))  # k/n must give the k-th time despite rounding
        times: Array = self._times[np.maximum(rank.astype(int), 1) - 1]
        return times

    @property
    def knots(self) -> tuple[float, ...]:
        """Times (seconds), besides zero, at which the CDF jumps or bends."""
        return tuple(np.unique(self._times).tolist())

    def scaled(self, by: float) -> Self:
        """Return the law of times that are `by` times as long."""
        law = self.model_copy()
        law._samples = array("d", (self._times * by).tobytes())
        return law
