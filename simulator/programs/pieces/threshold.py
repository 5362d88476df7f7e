"""Thresholds: the number of gradients that a server waits for, as a function of a count."""

from collections.abc import Callable
from typing import Annotated, Self

from pydantic import Field, InstanceOf, model_validator

from .piece import piece
from .schedule import WHOLE, TableSchedule, whole


@piece
class Monotone:
    """A schedule that never decreases, of a count (0, 1, ...), rounded down to whole gradients.

    Raises ValueError if the schedule ever decreases or starts below 1.
    """

    schedule: InstanceOf[TableSchedule]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.schedule.never_decreases:
            raise ValueError("decreases; write a threshold whose later values are no smaller")
        if self.schedule(0) < 1:
            raise ValueError("starts below 1; write a threshold that starts at 1 or more")
        return self

    def __call__(self, count: int) -> int:
        """Return the gradients to wait for at `count`."""
        return int(self.schedule(count))


@piece
class StepsOf:
    """Hybrid's step function: wait for one more gradient after every `size` counted."""

    size: Annotated[int, Field(ge=1, strict=True, description="gradients per unit of threshold")]

    def __call__(self, count: int) -> int:
        """Return the gradients to wait for at `count` (0, 1, ...): K = 1 + count // size."""
        return 1 + count // self.size


Threshold = Annotated[Callable[[int], int], whole(Monotone, "threshold", "gradient"), WHOLE]
"""The number of gradients that a server waits for, given the count (0, 1, ...) of gradients or
updates so far: 1 or more, never decreasing."""
