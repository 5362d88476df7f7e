"""Define time profiles: the factor of a link's capacity or a worker's speed.

A profile is piecewise constant, so the durations of transfers and steps are exact.
"""

from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationInfo, model_validator

from ..inputs import csv_files, units
from ..inputs.units import Seconds

Duration = Annotated[Seconds, Field(gt=0)]
Factor = Annotated[float, Field(ge=0, le=1e30)]
Segment = tuple[float, float]
"""Start (seconds), and the factor from then on."""


class TimeProfile(BaseModel):
    """A factor, 0 or more, that is piecewise constant in time.

    `factor[i]` holds from the time `at[i]` on; or both are the columns of a file, relative to the
    scenario's folder (validation context "folder").
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    starts: Annotated[tuple[Seconds, ...], Strict(False)] = Field(
        default=(), alias="at", description='when each factor begins; the first is "0 s"'
    )
    factor: Annotated[tuple[Factor, ...], Strict(False)] = Field(
        default=(), description="one for each time in `at`"
    )
    file: str | None = Field(
        default=None, description="CSV file of two columns, instead of `at` and `factor`"
    )
    period: Duration | None = Field(
        default=None, description="time after which it repeats; left out: the last value stays"
    )

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        source = "`at`"
        if self.file is not None:
            if self.starts or self.factor:
                raise ValueError("`file` has the times and factors; remove `at` and `factor`")
            path = Path((info.context or {}).get("folder", "."), self.file)
            rows = csv_files.rows(path, (units.seconds, units.factor), "a time and a factor")
            source, (starts, factors) = str(path), zip(*rows, strict=True)
            self.__dict__ |= {"starts": starts, "factor": factors}
        starts, last = self.starts, self.starts[-1] if self.starts else 0.0
        if len(starts) != len(self.factor):
            raise ValueError(
                f"{len(starts)} times and {len(self.factor)} factors; write one factor per time"
            )
        if not starts or starts[0] != 0:
            raise ValueError(f'{source} does not begin at "0 s"; add a factor for the start')
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"{source} is out of order; list every time once, in ascending order")
        if self.period is not None and last >= self.period:
            raise ValueError(
                f"period ({self.period:g} s) must be above the last time ({last:g} s); "
                "raise it, or drop the times beyond it"
            )
        if self.mean == 0:
            raise ValueError(
                "the factor stays zero, so work never ends; write a last factor above 0, "
                "or add a period"
            )
        return self

    def segments(self) -> Iterator[Segment]:
        """Yield the segments in order of time, endlessly if the profile is periodic."""
        for turn in count() if self.period else (0,):
            for start, factor in zip(self.starts, self.factor, strict=True):
                yield turn * (self.period or 0.0) + start, factor

    @property
    def mean(self) -> float:
        """The long-run mean factor: the mean over a period, or the last value."""
        if self.period is None:
            return self.factor[-1]
        spans = (end - start for start, end in pairwise((*self.starts, self.period)))
        parts = zip(spans, self.factor, strict=True)
        return sum(span * factor for span, factor in parts) / self.period
