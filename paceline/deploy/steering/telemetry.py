"""The record of a round that all ranks agree on: what a session tells a controller."""

from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
"""Steered parameters of the program by name (tau, delay, period, codec, ...), as a scenario
writes them."""


def period(settings: Settings) -> int:
    """Return the steps between averages."""
    return int(settings.get("tau") or settings.get("period") or 1)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A round: the local steps up to an average, and that average. Times in seconds.

    `step`: the round's last local step; `steps`: those it has; `clock`: mean over workers of the
    time on arrival at the average. `compute`: seconds per step of each worker, without waiting;
    `average`: from the last worker's arrival to the result, None where none has come yet; `bytes`:
    what each worker handed to it. `first_loss`, `mean_loss`, `last_loss`: training loss at the
    round's first step, over its steps and at its last, means over workers (nan: no loss). `rate`:
    the learning rate at the last step.
    """

    step: int
    steps: int
    clock: float
    compute: tuple[float, ...]
    average: float | None
    bytes: float
    first_loss: float
    mean_loss: float
    last_loss: float
    rate: float
