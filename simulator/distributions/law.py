"""Define `Law`: the distribution of a random time (seconds) in a scenario file.

Laws are parametric families, the times in a file, and mixtures of both. To add a family, write its
class and add it to `FAMILIES`.
"""

import math
import operator
from collections.abc import Iterator
from functools import reduce
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ..errors import InputError
from ..inputs.units import EXAMPLES
from .distribution import Array, Distribution, invert
from .empirical import Empirical, ReplayedTimes
from .parametric import (
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


def _installed() -> Iterator[type[Distribution]]:
    """Yield the families of installed packages (`paceline.laws`). Raises InputError."""
    for entry in entry_points(group="paceline.laws"):
        family = entry.load()
        if not (isinstance(family, type) and issubclass(family, Distribution)):
            raise InputError(
                f"entry point {entry.name} of paceline.laws ({entry.value}): not a law; derive it "
                "from paceline.Distribution"
            )
        yield family


FAMILIES: tuple[type[Distribution], ...] = (
    Constant, Exponential, ShiftedExponential, Uniform, Normal, LogNormal, Gamma, Weibull, Pareto,
    Empirical, *_installed(),
)  # fmt: skip
"""All distributions that may stand alone or in a mixture."""
BY_NAME = {family.model_fields["dist"].default: family for family in FAMILIES}
if TYPE_CHECKING:
    Simple = Distribution
else:
    Simple = reduce(operator.or_, FAMILIES)


class Component(BaseModel):
    """One part of a mixture: a distribution's table with an additional key `weight`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Number = Field(description="how often, relative to the other components")
    law: Annotated[Simple, Field(discriminator="dist")] = Field(description="its times")

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
        """Describe the flat table that users write, not the pair stored in Python."""
        pair = handler.resolve_ref_schema(handler(schema))["properties"]
        laws = [dict(handler.resolve_ref_schema(law)) for law in pair["law"]["oneOf"]]
        for law in laws:
            law["properties"] = {"weight": pair["weight"]} | law["properties"]
            law["required"] = ["weight", *law["required"]]
        return {"oneOf": laws, "title": "Component", "description": cls.__doc__}


class Mixture(Distribution):
    """Each time comes from one of the components, chosen in proportion to the weights."""

    dist: Literal["mixture"] = "mixture"
    components: Annotated[tuple[Component, ...], Field(min_length=1)] = Field(
        description="laws with weights: every time comes from one law, drawn by weight"
    )

    @property
    def _weights(self) -> Array:
        weights = np.array([part.weight for part in self.components])
        shares: Array = weights / weights.sum()
        return shares

    def _draw(self, rng: np.random.Generator, n: int) -> Array:
        # two uniform numbers per draw, so that the block size changes nothing
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

    @property
    def knots(self) -> tuple[float, ...]:
        """Times (seconds), besides zero, at which the CDF jumps or bends."""
        return tuple(sorted({knot for part in self.components for knot in part.law.knots}))

    def scaled(self, by: float) -> Self:
        """Return the mixture of times that are `by` times as long."""
        parts = [part.model_copy(update={"law": part.law.scaled(by)}) for part in self.components]
        return self.model_copy(update={"components": tuple(parts)})


class _Shorthand:
    """Validator that reads a quantity ("300 ms") as a constant; a table names its law."""

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
            raise ValueError(
                'the table names no distribution; add one, such as dist = "exponential"'
            )
        return value


Law = Annotated[Simple | Mixture, Field(discriminator="dist"), _Shorthand()]
ComputeLaw = Annotated[Simple | Mixture | ReplayedTimes, Field(discriminator="dist"), _Shorthand()]
"""The time of one gradient: a law, or a trace (whose order matters)."""
