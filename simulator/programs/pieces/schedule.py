"""Define schedules: functions of a step (1, 2, ...), or of a count (0, 1, ...).

A plain number is a constant schedule.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from math import inf, pi, sin
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from ...inputs.units import Seconds
from ..effects import Node
from .piece import Kinds, Number, TomlSchema, piece

ROUNDED = 1e-9  # relative rounding error of sums of times


def _ascending(at: tuple[int, ...]) -> tuple[int, ...]:
    if list(at) != sorted(set(at)):
        raise ValueError("`at` is out of order; list every step once, in ascending order")
    return at


Level = Annotated[Number, Field(ge=0)]
StepCount = Annotated[int, Field(ge=1, le=10**9, strict=True)]  # largest number of steps of a run
Changes = Annotated[
    tuple[Annotated[int, Field(ge=1, strict=True)], ...],
    Field(min_length=1, description="steps after which the value changes"),
    AfterValidator(_ascending),
]


class TableSchedule:
    """A schedule: a number or a table in a scenario; every kind is a subclass."""

    __slots__ = ()

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        raise NotImplementedError


@piece
class ConstantSchedule(TableSchedule):
    """The same value at every step."""

    value: Number
    schedule: Literal["constant"] = "constant"

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        return self.value


@piece
class Steps(TableSchedule):
    """Step decay: `start`, multiplied by `factor` after each of the steps `at`."""

    schedule: Literal["steps"]
    start: Annotated[Number, Field(description="initial value")]
    factor: Annotated[Number, Field(gt=0, description="factor of the value at each change")]
    at: Changes

    def __call__(self, step: int) -> float:
        """Return the value at `step`; the first decay acts after step `at[0]`."""
        return float(self.start * self.factor ** bisect_left(self.at, step))


@piece
class Piecewise(TableSchedule):
    """A list of values: `values[i + 1]` follows `values[i]` after step `at[i]`.

    Raises ValueError unless there is one more value than there are changes.
    """

    schedule: Literal["piecewise"]
    values: Annotated[
        tuple[Level, ...], Field(min_length=2, description="one value more than in `at`")
    ]
    at: Changes

    @model_validator(mode="after")
    def _require_count(self) -> Self:
        if len(self.values) != len(self.at) + 1:
            raise ValueError("`values` needs one entry more than `at`; add or remove entries")
        return self

    def __call__(self, step: int) -> float:
        """Return the value at `step`; `values[1]` acts after step `at[0]`."""
        return self.values[bisect_left(self.at, step)]


@piece
class Linear(TableSchedule):
    """A straight line from `start` at step 0 to `end` at step `steps`, then constant."""

    schedule: Literal["linear"]
    start: Annotated[Level, Field(description="value at step 0, before the first step")]
    end: Annotated[Level, Field(description="value from step `steps` on")]
    steps: Annotated[StepCount, Field(description="step at which the value reaches `end`")]

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        if step >= self.steps:
            return self.end
        # product first, so that whole numbers on the line are exact
        return self.start + (self.end - self.start) * step / self.steps


@piece
class WarmupCosine(TableSchedule):
    """Linear warm-up, then half a cosine down.

    Goyal et al., arXiv 1706.02677, section 2.2; Loshchilov & Hutter, arXiv 1608.03983, eq. 5.
    With W = `warmup` and N = `steps`, the value at step k is
    start + (peak - start) k / W for k <= W,
    end + (peak - end) (1 + cos(pi (k - W) / (N - W))) / 2 for W < k < N, and `end` for k >= N.
    Raises ValueError unless W < N and neither `start` nor `end` is above `peak`.
    """

    schedule: Literal["warmup-cosine"]
    peak: Annotated[Number, Field(gt=0, description="value at the end of the warm-up")]
    steps: Annotated[StepCount, Field(description="step at which the value reaches `end`")]
    warmup: Annotated[int, Field(ge=0, strict=True, description="steps of the warm-up")] = 0
    start: Annotated[Level, Field(description="value at step 0, before the warm-up")] = 0.0
    end: Annotated[Level, Field(description="value from step `steps` on")] = 0.0

    @model_validator(mode="after")
    def _up_then_down(self) -> Self:
        if self.warmup >= self.steps:
            raise ValueError("`warmup` is not below `steps`, where the decay ends; lower it")
        if max(self.start, self.end) > self.peak:
            raise ValueError("`start` or `end` is above `peak`; write neither above it")
        return self

    def __call__(self, step: int) -> float:
        """Return the value at `step`."""
        if step >= self.steps:
            return self.end
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        angle = pi / 2 * (step - self.warmup) / (self.steps - self.warmup)
        # 1 - sin^2(a) = (1 + cos(2a)) / 2; this form gives the exact peak
        return self.peak - (self.peak - self.end) * sin(angle) ** 2


Schedule = Callable[[int], float]
SCHEDULES = Kinds(ConstantSchedule, Steps, Piecewise, Linear, WarmupCosine, tag="schedule")


@piece
class FixedPeriod:
    """A constant period in steps."""

    value: int

    def __call__(self, step: int) -> int:
        """Return the value at `step`."""
        return self.value


@piece
class Period:
    """A schedule in whole steps: rounded up, at least 1."""

    schedule: InstanceOf[TableSchedule]

    def __call__(self, step: int) -> int:
        """Return the period in steps at `step`."""
        return max(1, -int(-self.schedule(step) // 1))


class OwnPeriod:
    """A period that differs between workers; `phase` returns it for one local phase.

    Workers then take different numbers of steps between averages.
    """

    __slots__ = ()

    def __call__(self, step: int) -> int:
        """Refuse: the period is undefined before the phase begins."""
        raise NotImplementedError

    def phase(self, me: Node) -> Callable[[int], float]:
        """Return the period of a phase that begins now, as a function of the step."""
        raise NotImplementedError


@piece
class EveryTime(OwnPeriod):
    """A period in time: a phase ends with the first step after `every` seconds."""

    every: Annotated[Seconds, Field(gt=0, description="time from the start of a phase to its end")]

    def phase(self, me: Node) -> Callable[[int], float]:
        """Return a period that ends by the worker's clock, read after every step."""
        end = me.clock() + self.every * (1 - ROUNDED)
        return lambda step: 0 if me.clock() >= end else inf


@piece
class OfSlowest(OwnPeriod):
    """A period of equal time: `slowest` steps of the slowest, and as many as fit.

    Steps count with their expected time, so others still wait for a worker with slow draws.
    """

    slowest: Annotated[StepCount, Field(description="steps that the slowest worker takes")]

    def phase(self, me: Node) -> Callable[[int], float]:
        """Return the number of whole steps that fit into the phase."""
        return FixedPeriod(int(self.slowest * me.pace * (1 + ROUNDED)))


OWN_PERIODS = {"every": EveryTime, "slowest": OfSlowest}


def paced(parameters: Mapping[str, Any]) -> bool:
    """Return whether workers with these parameters have different periods."""
    return any(isinstance(parameter, OwnPeriod) for parameter in parameters.values())


def _period(value: Any) -> Any:
    """Read a period that differs between workers; return other values unchanged."""
    kinds = [kind for key, kind in OWN_PERIODS.items() if isinstance(value, dict) and key in value]
    return TypeAdapter(kinds[0]).validate_python(value) if kinds else value


def _schedule(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ConstantSchedule(value)
    return SCHEDULES.read(value) if isinstance(value, dict) else value


def _rate(value: Any) -> Any:
    schedule = _schedule(value)
    if not callable(schedule):
        example = '{ schedule = "steps", start = 0.4, factor = 0.1, at = [80] }'
        raise ValueError(
            f"not a learning rate; write a number, or {example}; schedules: {SCHEDULES}"
        )
    if schedule(1) <= 0:
        raise ValueError("not above zero at the first step; write a learning rate such as 0.1")
    return schedule


def _whole(value: Any) -> Any:
    """Read a period: a whole number of steps, or a schedule that is rounded up."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("too small; write a communication period of 1 step or more")
        return FixedPeriod(value)
    if isinstance(value, dict | TableSchedule):
        return Period(_schedule(value))
    if callable(value):
        return value
    example = '{ schedule = "piecewise", values = [1, 8], at = [100] }'
    raise ValueError(
        f"not a communication period; write a whole number of steps, 1 or more, or {example}; "
        f"schedules: {SCHEDULES}"
    )


_NUMBER = {"type": "number", "exclusiveMinimum": 0}
_TABLE = {"anyOf": SCHEDULES.schemas}
Rate = Annotated[
    Schedule,
    BeforeValidator(_rate),
    WithJsonSchema({"anyOf": [_NUMBER, _TABLE], "description": "a learning rate, or its schedule"}),
]
_OWN = [TypeAdapter(kind).json_schema(schema_generator=TomlSchema) for kind in OWN_PERIODS.values()]
PeriodOfSteps = Annotated[
    Callable[[int], int],
    BeforeValidator(_whole),
    BeforeValidator(_period),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, *SCHEDULES.schemas, *_OWN]}),
]
