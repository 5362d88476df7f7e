"""Schedules: functions of the local step (1, 2, ...). A plain number is a constant schedule."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from simulator.pieces.piece import Number, piece


@piece
class Constant:
    """The same value at every step."""

    value: Number
    schedule: Literal["constant"] = "constant"

    def __call__(self, step: int) -> float:
        """Value at `step`."""
        return self.value


@piece
class Steps:
    """Step decay: `start`, times `factor` after each of the steps `at`."""

    schedule: Literal["steps"]
    start: Annotated[Number, Field(description="value at first")]
    factor: Annotated[Number, Field(gt=0, description="what it is multiplied by, each time")]
    at: Annotated[
        tuple[Annotated[int, Field(ge=1, strict=True)], ...],
        Field(min_length=1, description="steps after which it is multiplied"),
    ]

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.at) != sorted(set(self.at)):
            raise ValueError("`at` is out of order; list steps in ascending order, each once")
        return self

    def __call__(self, step: int) -> float:
        """Value at `step`: the first decay acts on the step after `at[0]`."""
        return float(self.start * self.factor ** bisect_left(self.at, step))


Schedule = Callable[[int], float]
_WANTED = 'a number, or { schedule = "steps", start = 0.4, factor = 0.1, at = [80] }'
_tables: TypeAdapter[Constant | Steps] = TypeAdapter(
    Annotated[Constant | Steps, Field(discriminator="schedule")]
)


@piece
class FixedPeriod:
    """The same number of steps always."""

    value: int

    def __call__(self, step: int) -> int:
        """Period in steps at `step`."""
        return self.value


def _schedule(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"not a schedule; write {_WANTED}")
    if isinstance(value, int | float):
        return _tables.validate_python({"schedule": "constant", "value": value})
    return _tables.validate_python(value) if isinstance(value, dict) else value


def _rate(value: Any) -> Any:
    schedule = _schedule(value)
    first = schedule(1) if callable(schedule) else None
    if first is None:
        raise ValueError(f"not a learning rate; write {_WANTED}")
    if first <= 0:
        raise ValueError("not above zero; write a learning rate such as 0.1")
    return schedule


def _period(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("too small; write a communication period of 1 step or more")
        return FixedPeriod(value)
    if isinstance(value, dict):
        return Period(_schedule(value))
    if callable(value):
        return value
    raise ValueError("not a period; write a whole number of steps, 1 or more, or a schedule table")


@piece
class Period:
    """A schedule rounded up to whole steps, at least 1."""

    schedule: Constant | Steps

    def __call__(self, step: int) -> int:
        """Period in steps at `step`."""
        return max(1, -int(-self.schedule(step) // 1))


_NUMBER = {"type": "number", "exclusiveMinimum": 0}
_TABLE = {"anyOf": [TypeAdapter(kind).json_schema() for kind in (Constant, Steps)]}
Rate = Annotated[
    Schedule,
    BeforeValidator(_rate),
    WithJsonSchema({"anyOf": [_NUMBER, _TABLE], "description": "a learning rate, or its schedule"}),
]
PeriodOfSteps = Annotated[
    Callable[[int], int],
    BeforeValidator(_period),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _TABLE]}),
]
