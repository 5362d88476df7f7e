"""Overheads of a real system beyond what a scenario prescribes, and their uncertainty.

A profile (`paceline probe`, `paceline calibrate`) holds these tables; a scenario takes them in by
`extends`. Without them nothing is added: the published models.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ..distributions.law import Law
from ..distributions.parametric import Constant
from ..inputs.units import Bytes, Seconds
from .fields import (
    NO_TIME,
    ZERO,
    Count,
    Delay,
    Many,
    Name,
    NonNegative,
    Positive,
    Section,
    optional,
)

GIGABIT = 125e6  # bytes per second
Relative = Annotated[float, Field(ge=0, le=10)]
Factor = Annotated[float, Field(ge=-1e6, le=1e6)]
Factors = Annotated[Many[Factor], Field(min_length=1, max_length=1000)]
OWN = ("issue", "collect", "send", "receive", "agree")
"""Overheads that occupy a node itself."""


class Passage(NamedTuple):
    """How a collective passes through a network.

    `rate`: bytes per second of the slowest link; `hops`: on the critical path; `ring`: workers
    around which a mean passes, else 1.
    """

    rate: float = inf
    hops: int = 0
    ring: int = 1


NO_PASSAGE = Passage()


class Overhead(Section):
    """Overheads of one kind of machine, measured with a number of workers."""

    workers: Count | None = optional("number of workers it was measured with; left out: any")
    algorithm: Name | None = optional("program that it is for; left out: those without their own")
    step: Law = optional(
        "added to each step: framework's time, and lateness", NO_TIME, json_schema_extra=ZERO
    )
    issue: Delay = optional("a worker's own time to start a collective", 0.0)
    collect: Delay = optional("a worker's own time to take a result over", 0.0)
    collective: Delay = optional("added to each collective, and hidden if that is", 0.0)
    agree: Delay = optional("time to ask all workers whether a collective has finished", 0.0)
    agree_latencies: NonNegative = optional("latencies of that, with half of hop_bytes each", 0.0)
    send: Delay = optional("a node's own time to send a message", 0.0)
    message: Delay = optional("added to the latency of each message", 0.0)
    message_factor: Positive = optional("time of a message on its link, relative to bytes", 1.0)
    receive: Delay = optional("a node's own time to take a message over", 0.0)
    latency_factor: Positive = optional("latencies of a hop of a collective (gloo's ring: 2)", 1.0)
    transmission_factor: Positive = optional("time of payloads, relative to bytes / bandwidth", 1.0)
    transmission_exponent: float = optional(
        "transmission_factor falls with this power of (bandwidth / 1 Gbit/s)", 0.0, ge=-1, le=1
    )
    tree_exponent: float = optional(
        "transmission_factor grows with this power of n / (n - 1), n > 3 workers",
        0.0,
        ge=-10,
        le=10,
    )
    per_byte: NonNegative = optional("seconds per byte that passes a link of any bandwidth", 0.0)
    hop: Delay = optional("added to the latency of each hop of a collective", 0.0)
    hop_bytes: Bytes = optional(
        "bytes in each hop of a collective beside its payload",
        0.0,
        json_schema_extra={"default": "0 B"},
    )

    @property
    def owns(self) -> bool:
        """Whether nodes spend time of their own on anything except steps."""
        return any(getattr(self, name) for name in OWN) or self.agree_latencies > 0

    def of_message(self, laws: tuple[Law, ...]) -> tuple[Law, ...]:
        """Return the laws whose sum is the latency of a message, with what is added to it."""
        return (*laws, Constant.model_construct(value=self.message)) if self.message else laws

    def of_collective(
        self, transmission: Any, latency: Any, passage: Passage = NO_PASSAGE, *, once: Any = 1.0
    ) -> tuple[Any, Any]:
        """Return what a collective transmits, and its latency, with what is added to them.

        Numbers of the whole, or arrays over its messages; `once`: 1 for the first ones, else 0.
        """
        rate, hops, ring = passage
        factor = self.transmission_factor * tree(ring) ** self.tree_exponent
        if (self.transmission_exponent or self.per_byte) and rate < inf:
            factor *= (rate / GIGABIT) ** -self.transmission_exponent
            factor += self.per_byte * rate
        longer = latency * self.latency_factor + hops * self.hop + self.collective * once
        return transmission * factor, longer


class MeasuredRange(Section):
    """The ranges in which a profile was measured: a prediction beyond them has a note."""

    workers: Many[Count] = optional("fewest and most workers", ())
    step: Many[Seconds] = optional("shortest and longest mean step", ())
    bytes: Many[NonNegative] = optional("least and most bytes of a payload", ())
    latency: Many[Seconds] = optional("lowest and highest latency", ())


class ModelError(Section):
    """Errors of predictions with the same delays, of programs that no run was fitted to.

    Relative standard deviations, by `Program.family`; a family that was not measured has the
    widest.
    """

    programs: int = Field(ge=2, le=1000, description="programs predicted without a run of theirs")
    source: str = optional("the measurements that it was learnt from", "")
    seconds_per_step: dict[str, Relative] = optional("relative standard deviation by family", {})
    time_to_target: dict[str, Relative] = optional("relative standard deviation by family", {})

    def of(self, quantity: str, family: str | None) -> float:
        """Return the relative standard deviation of a quantity; of an unknown family, the widest.

        0 for a quantity of which nothing is known.
        """
        errors: dict[str, float] = getattr(self, quantity)
        return errors.get(family or "", max(errors.values(), default=0.0))


class CodecCost(Section):
    """What a codec takes a node, beyond what a mean without one does."""

    kind: Name = Field(description="name of the codec")
    size: Annotated[Bytes, Field(gt=0)] = Field(description="bytes of the vector")
    compress: Delay = optional("time to compress it", 0.0)
    decompress: Delay = optional("time to decompress one message of it", 0.0)


class Calibration(Section):
    """Origin of a profile, and the standard errors of its numbers."""

    date: str = optional("when it was measured", "")
    hardware: str = optional("machine that it was measured on", "")
    versions: dict[str, str] = optional("versions of the software, by package", {})
    runs: Many[Name] = optional("runs that it was fitted to", ())
    fingerprints: Many[Name] = optional(
        "SHA-256 of their files: comparing with these proves nothing", ()
    )
    sd: dict[str, NonNegative] = optional("relative standard errors by dotted key", {})
    draws: dict[str, Factors] = optional(
        "factors by dotted key, uncertain together, one a replicate", {}
    )
    run_to_run: NonNegative = optional("relative standard deviation between runs", 0.0)
    fitted: Many[Name] = optional("programs that it was fitted to, with their parameters", ())
    model_error: ModelError | None = optional("errors of programs that it was not fitted to")
    transport: Literal["ideal", "tcp"] = optional(
        "the network.transport that overheads were measured beside: with ideal, their "
        "factors contain what TCP's packets take",
        "ideal",
    )
    library: Literal["ideal", "nccl", "gloo", "byteps"] = optional(
        "the network.library that overheads were measured beside: they come on top of it", "ideal"
    )
    replicates: int = optional("simulations with redrawn numbers (bootstrap)", 8, ge=2, le=1000)
    measured: MeasuredRange = MeasuredRange()
    notes: Many[str] = optional("assumptions of the fit", ())


def tree(workers: int) -> float:
    """Return how long a double tree holds a link, relative to a ring of as many workers."""
    return workers / (workers - 1) if workers > 3 else 1.0


def at(tables: Sequence[Overhead], workers: int) -> Overhead:
    """Return the overheads with `workers` workers: interpolated, or beyond all tables the nearest.

    Tables without a number of workers are for any; the first of them wins.
    """
    exact = next((table for table in tables if table.workers in (None, workers)), None)
    if exact is not None or not tables:
        return exact or Overhead()
    counted = {table.workers: table for table in tables if table.workers is not None}
    within = min(max(workers, min(counted)), max(counted))
    if within != workers:
        return counted[within]
    below = max(count for count in counted if count < workers)
    above = min(count for count in counted if count > workers)
    low, high, share = counted[below], counted[above], (workers - below) / (above - below)
    nearer = low if share < 0.5 else high
    mean = _between(low.step.expectation, high.step.expectation, share)
    update: dict[str, Any] = {
        name: _between(getattr(low, name), getattr(high, name), share)
        for name in Overhead.model_fields.keys() - {"workers", "algorithm", "step"}
    }
    if nearer.step.expectation:
        update["step"] = nearer.step.scaled(mean / nearer.step.expectation)
    return nearer.model_copy(update=update | {"workers": workers})


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)
