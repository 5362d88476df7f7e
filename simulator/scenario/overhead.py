"""What a real system adds to what a scenario prescribes, and how well that is known.

A profile (`paceline probe`, `paceline calibrate`) holds these tables; a scenario takes them in by
`extends`. Without them nothing is added: the published models.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.inputs.units import Seconds
from paceline.simulator.scenario.table import (
    ZERO,
    Count,
    Many,
    Name,
    NonNegative,
    Positive,
    Section,
)

Extra = Annotated[Seconds, Field(json_schema_extra=ZERO)]
OWN = ("issue", "collect", "send", "receive", "agree")
"""Costs that are a node's own time."""


class Overhead(Section):
    """Costs of one kind of machine, measured with so many workers."""

    workers: Count | None = Field(
        default=None, description="number of workers it was measured with; left out: any"
    )
    step: Law = Field(
        default=Constant.model_construct(value=0.0),
        description="added to each step: the framework's own time, and being late",
        json_schema_extra=ZERO,
    )
    issue: Extra = Field(default=0.0, description="a worker's own time to start a collective")
    collect: Extra = Field(default=0.0, description="a worker's own time to take a result over")
    collective: Extra = Field(
        default=0.0, description="added to the duration of each collective, hidden where that is"
    )
    agree: Extra = Field(
        default=0.0, description="asking all workers whether a collective is finished"
    )
    agree_latencies: NonNegative = Field(
        default=0.0, description="latencies of [network] that this question takes besides"
    )
    send: Extra = Field(default=0.0, description="a node's own time to send a message")
    message: Extra = Field(default=0.0, description="added to the way of each message")
    receive: Extra = Field(default=0.0, description="a node's own time to take a message over")
    latency_factor: Positive = Field(
        default=1.0, description="latencies that a hop of a collective takes (gloo's ring: 2)"
    )
    transmission_factor: Positive = Field(
        default=1.0, description="how much longer payloads hold links than their bytes say"
    )

    @property
    def owns(self) -> bool:
        """Whether nodes spend time of their own on anything but steps."""
        return any(getattr(self, name) for name in OWN) or self.agree_latencies > 0


class MeasuredRange(Section):
    """Within what a profile was measured: predictions beyond it say so."""

    workers: Many[Count] = Field(default=(), description="fewest and most workers")
    step: Many[Seconds] = Field(default=(), description="shortest and longest mean step")
    bytes: Many[NonNegative] = Field(default=(), description="least and most bytes of a payload")
    latency: Many[Seconds] = Field(default=(), description="lowest and highest latency")
    loss: Many[float] = Field(default=(), description="lowest and highest loss")


class Calibration(Section):
    """Where a profile comes from, and how far its numbers may be off."""

    date: str = Field(default="", description="when it was measured")
    hardware: str = Field(default="", description="on what")
    versions: dict[str, str] = Field(default={}, description="of what was used")
    runs: Many[Name] = Field(default=(), description="what it was fitted to")
    sd: dict[str, NonNegative] = Field(
        default={},
        description="relative standard error of a number of this scenario, by its dotted key",
    )
    run_to_run: NonNegative = Field(
        default=0.0,
        description="relative standard deviation of the pace that no other number tells",
    )
    overlap: float | None = Field(
        default=None, ge=0, le=1, description="share of the collectives' time that computing hid"
    )
    collective: Seconds | None = Field(
        default=None, description="median time of a collective, hidden or not"
    )
    replicates: int = Field(
        default=8, ge=2, le=1000, description="simulations with numbers that may as well be true"
    )
    measured: MeasuredRange = MeasuredRange()
    notes: Many[str] = Field(default=(), description="what was assumed")


def at(tables: Sequence[Overhead], workers: int) -> Overhead:
    """The costs with so many workers: between two tables in proportion, beyond them the nearest's.

    Tables without a number of workers are for any; the first of them wins.
    """
    found = next((each for each in tables if each.workers in (None, workers)), None)
    if found is not None or not tables:
        return found or Overhead()
    known = {each.workers: each for each in tables if each.workers is not None}
    below = max((count for count in known if count < workers), default=None)
    above = min((count for count in known if count > workers), default=None)
    if below is None or above is None:
        return known[min(known) if below is None else max(known)]
    low, high, share = known[below], known[above], (workers - below) / (above - below)
    nearer = low if share < 0.5 else high
    mean = _between(low.step.expectation, high.step.expectation, share)
    own = nearer.step.expectation
    between = {
        name: _between(getattr(low, name), getattr(high, name), share)
        for name in Overhead.model_fields
        if name not in ("workers", "step")
    }
    step = nearer.step.scaled(mean / own) if own else nearer.step
    return nearer.model_copy(update=between | {"workers": workers, "step": step})


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)
