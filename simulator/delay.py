"""`Law`: any distribution of a random time (seconds) that a scenario file may name.

These are the parametric ones, the times in a file, and mixtures of both.
"""

import math
from array import array
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
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

from simulator.distribution import Array, Distribution, invert
from simulator.parametric import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    Normal,
    Number,
    Pareto,
    ShiftedExponential,
    Uniform,
    Weibull,
)
from simulator.units import EXAMPLES, to_si


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
        return invert(self.cdf, q, np.minimum.reduce(parts), np.maximum.reduce(parts))

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
