"""Define the base of a scenario's tables, and field types in SI units."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    Strict,
    ValidationInfo,
    WithJsonSchema,
)

from ..distributions.parametric import Constant
from ..inputs.units import BytesPerSecond, Seconds

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]  # a TOML array, frozen
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
LEAST, MOST = 1e-30, 1e30  # products and quotients of these numbers do not overflow a float


def _not_tiny(value: float) -> float:
    if 0 < abs(value) < LEAST:
        raise ValueError(f"too close to zero; write {LEAST:g} or more")
    return value


Positive = Annotated[float, Field(gt=0, le=MOST), AfterValidator(_not_tiny)]
NonNegative = Annotated[float, Field(ge=0, le=MOST), AfterValidator(_not_tiny)]
Share = Annotated[float, Field(gt=0, le=1)]
Duration = Annotated[Seconds, Field(gt=0)]
Bandwidth = Annotated[BytesPerSecond, Field(gt=0)]
NO_TIME = Constant.model_validate({"value": "0 s"})
ZERO: dict[str, JsonValue] = {"default": "0 s"}  # written form in a scenario
Delay = Annotated[Seconds, Field(json_schema_extra=ZERO)]  # zero time, the default


def optional(about: str, default: Any = None, **limits: Any) -> Any:
    """Describe an optional key: its meaning, default, and limits (`ge`, `lt`, ...)."""
    return Field(default=default, description=about, **limits)


def located(name: str, info: ValidationInfo) -> Path:
    """Resolve a file's path relative to the scenario's folder."""
    return Path((info.context or {}).get("folder", "."), name)


def from_file(read: Callable[[Path], Any], example: str) -> tuple[PlainValidator, WithJsonSchema]:
    """Return a validator that reads the file of a given name, and its JSON Schema."""

    def load(value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            raise ValueError(f'not the name of a file; write one such as "{example}"')
        return read(located(value, info))

    return PlainValidator(load), WithJsonSchema({"type": "string", "examples": [example]})


class Section(BaseModel):
    """A scenario's table, which refuses unknown keys, conversions, nan and inf."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
