"""Define time profiles: the factor of a link's capacity or a worker's speed.

A profile is piecewise constant, so the durations of transfers and steps are exact.
"""

from abc import ABC
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    Strict,
    ValidationInfo,
    model_validator,
)

from ..inputs import csv_files, units
from ..inputs.units import Seconds

Duration = Annotated[Seconds, Field(gt=0)]
Factor = Annotated[float, Field(ge=0, le=1e30)]
Segment = tuple[float, float]
"""Start (seconds), and the factor from then on."""


class TimeProfile(BaseModel, ABC):
    """A factor, 0 or more, that is piecewise constant in time.

    `period`: seconds after which it repeats; None if its last value holds for ever.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    period: Duration | None = Field(
        default=None, description="time after which it repeats; left out: the last value stays"
    )
    _starts: tuple[float, ...] = PrivateAttr(default=())
    _factors: tuple[float, ...] = PrivateAttr(default=())

    def _set(self, starts: Sequence[float], factors: Sequence[float], source: str) -> None:
        if len(starts) != len(factors):
            raise ValueError(
                f"{len(starts)} times and {len(factors)} factors; write one factor per time"
            )
        if not starts or starts[0] != 0:
            raise ValueError(f'{source} does not begin at "0 s"; add a factor for the start')
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"{source} is out of order; list every time once, in ascending order")
        if self.period is not None and starts[-1] >= self.period:
            raise ValueError(
                f"period ({self.period:g} s) must be above the last time ({starts[-1]:g} s); "
                "raise it, or drop the times beyond it"
            )
        self._starts, self._factors = tuple(starts), tuple(factors)
        if self.mean == 0:
            raise ValueError(
                "the factor stays zero, so work never ends; write a last factor above 0, "
                "or add a period"
            )

    def segments(self) -> Iterator[Segment]:
        """Yield the segments in order of time, endlessly if the profile is periodic."""
        for turn in count() if self.period else (0,):
            for start, factor in zip(self._starts, self._factors, strict=True):
                yield turn * (self.period or 0.0) + start, factor

    def at(self, time: float) -> float:
        """Return the factor at `time` >= 0 (seconds)."""
        period = self.period or 0.0
        turn = int(time // period) if period else 0
        # the same sums as in `segments`, so that both agree at every boundary
        turn += bool(period) and (turn + 1) * period <= time
        turn -= turn * period > time
        place = bisect_right(self._starts, time, key=lambda start: turn * period + start)
        return self._factors[place - 1]

    @property
    def mean(self) -> float:
        """The long-run mean factor: the mean over a period, or the last value."""
        if self.period is None:
            return self._factors[-1]
        spans = (end - start for start, end in pairwise((*self._starts, self.period)))
        parts = zip(spans, self._factors, strict=True)
        return sum(span * factor for span, factor in parts) / self.period


class StepProfile(TimeProfile):
    """A list of factors: `factor[i]` holds from the time `at[i]` on."""

    kind: Literal["steps"] = "steps"
    starts: Annotated[tuple[Seconds, ...], Strict(False)] = Field(
        alias="at",
        description='when each factor begins; the first is "0 s"',
        json_schema_extra={"minItems": 1},
    )
    factor: Annotated[tuple[Factor, ...], Strict(False)] = Field(
        description="one for each time in `at`", json_schema_extra={"minItems": 1}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._set(self.starts, self.factor, "`at`")
        return self


class ProfileFile(TimeProfile):
    """Factors from a file with two columns: time (seconds, or with units) and factor.

    `file` is relative to the scenario's folder (validation context "folder").
    """

    kind: Literal["trace"] = "trace"
    file: str = Field(description="CSV file of two columns, time and factor")

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> Self:
        path = Path((info.context or {}).get("folder", "."), self.file)
        readers = units.seconds, units.factor
        rows = csv_files.rows(path, readers, "a time and a factor")
        times, factors = zip(*rows, strict=True)
        self._set(times, factors, str(path))
        return self


def _kind(value: Any) -> Any:
    """Infer the kind of a table without `kind` from its keys."""
    if isinstance(value, dict) and "kind" not in value:
        return {"kind": "trace" if "file" in value else "steps"} | value
    return value


ProfileOf = Annotated[
    StepProfile | ProfileFile,
    Field(discriminator="kind"),
    BeforeValidator(_kind),
]
"""A profile in a scenario: `{ at, factor }` or `{ file }`."""
