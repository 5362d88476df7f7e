"""Define a round's record, and the settings that a controller may change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.simulator.programs.pieces.schedule import OwnPeriod

STEPS = "tau", "overlap", "period", "delay"
Settings = dict[str, int]
"""Parameters of the program that may change during a run, by name."""


def period(settings: Settings) -> int:
    """Return the steps between averages."""
    return int(settings.get("tau") or settings.get("period") or 1)


def written(settings: Settings) -> str:
    """Format settings."""
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def settings(parameters: Mapping[str, Any]) -> Settings:
    """Return the parameters that may change during a run."""
    steered: Settings = {key: n for key in STEPS if type(n := parameters.get(key)) is int}
    tau = parameters.get("tau")
    if callable(tau) and not isinstance(tau, OwnPeriod):
        steered["tau"] = int(tau(1))
    return steered


class StepRecord(NamedTuple):
    """Telemetry of one step.

    `computing` and `waiting`: seconds outside and inside waits for other processes. `computing` is
    nan for a session's first step, and after `averaged`, `state_dict` and `load_state_dict`,
    because the loop's work around them is not part of a step. `bytes`: payloads that this process
    sent; `loss`: the loss from the loop, or None; `took`: seconds from start to arrival of every
    timed mean that the step waited for.
    """

    step: int
    computing: float
    waiting: float
    bytes: float
    loss: Any
    took: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A round: the local steps up to an average, and that average. Times in seconds.

    `step`: the round's last local step; `steps`: their number; `clock`: mean over workers of the
    time on arrival at the average. `compute`: seconds per step of every worker, without waiting;
    `average`: seconds from the last worker's arrival to the result, None before any result;
    `bytes`: payload of every worker. `loss`: training loss at the round's first step, mean over
    workers (nan: none).
    """

    step: int
    steps: int
    clock: float
    compute: tuple[float, ...]
    average: float | None
    bytes: float
    loss: float
