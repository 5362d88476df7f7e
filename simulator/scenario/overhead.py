"""Model a real system's overheads beyond a scenario's times, and their errors.

A profile (`paceline probe`, `paceline calibrate`) holds these tables; a scenario includes it with
`extends`. Without them there are no overheads, as in the published models.
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
"""Overheads during which a node is busy."""


class Passage(NamedTuple):
    """The path of a collective through a network.

    `rate`: bytes per second of the slowest link; `hops`: number on the critical path; `ring`:
    number of workers if the collective is a ring, else 1.
    """

    rate: float = inf
    hops: int = 0
    ring: int = 1


NO_PASSAGE = Passage()


class Overhead(Section):
    """Overheads of one kind of machine, measured with some number of workers."""

    workers: Count | None = optional("number of workers in the measurement; left out: any")
    algorithm: Name | None = optional("program; left out: all programs without a table")
    step: Law = optional(
        "time added to a step by the framework and by late starts", NO_TIME, json_schema_extra=ZERO
    )
    issue: Delay = optional("a worker's time to start a collective", 0.0)
    collect: Delay = optional("a worker's time to take over a result", 0.0)
    collective: Delay = optional("time added to a collective; hidden if that is", 0.0)
    agree: Delay = optional("time to ask all workers whether a collective has finished", 0.0)
    agree_latencies: NonNegative = optional("latencies in `agree`, with half of hop_bytes", 0.0)
    send: Delay = optional("a node's time to send a message", 0.0)
    message: Delay = optional("time added to the latency of a message", 0.0)
    message_factor: Positive = optional("time of a message, relative to bytes / bandwidth", 1.0)
    receive: Delay = optional("a node's time to take over a message", 0.0)
    latency_factor: Positive = optional("latencies per hop of a collective (gloo's ring: 2)", 1.0)
    transmission_factor: Positive = optional("factor of a collective's transmission time", 1.0)
    transmission_exponent: float = optional(
        "transmission_factor falls by this power of (bandwidth / 1 Gbit/s)", 0.0, ge=-1, le=1
    )
    tree_exponent: float = optional(
        "transmission_factor grows by this power of n / (n - 1), for n > 3 workers",
        0.0,
        ge=-10,
        le=10,
    )
    per_byte: NonNegative = optional("additional seconds per byte on a link of any bandwidth", 0.0)
    hop: Delay = optional("time added to the latency of each hop of a collective", 0.0)
    hop_bytes: Bytes = optional(
        "bytes in each hop of a collective in addition to its payload",
        0.0,
        json_schema_extra={"default": "0 B"},
    )

    @property
    def owns(self) -> bool:
        """Whether nodes are busy with anything except steps."""
        return any(getattr(self, name) for name in OWN) or self.agree_latencies > 0

    def of_message(self, laws: tuple[Law, ...]) -> tuple[Law, ...]:
        """Return the laws whose sum is the latency of a message, including overhead."""
        return (*laws, Constant.model_construct(value=self.message)) if self.message else laws

    def of_collective(
        self, transmission: Any, latency: Any, passage: Passage = NO_PASSAGE, *, once: Any = 1.0
    ) -> tuple[Any, Any]:
        """Return a collective's transmission time and latency (s), including overheads.

        Both may be arrays over its messages; `once`: 1 for messages that bear `collective`, else 0.
        """
        rate, hops, ring = passage
        factor = self.transmission_factor * tree(ring) ** self.tree_exponent
        if (self.transmission_exponent or self.per_byte) and rate < inf:
            factor *= (rate / GIGABIT) ** -self.transmission_exponent
            factor += self.per_byte * rate
        longer = latency * self.latency_factor + hops * self.hop + self.collective * once
        return transmission * factor, longer


class MeasuredRange(Section):
    """The ranges of a profile's measurements; a prediction beyond them has a note."""

    workers: Many[Count] = optional("smallest and largest number of workers", ())
    step: Many[Seconds] = optional("shortest and longest mean step", ())
    bytes: Many[NonNegative] = optional("smallest and largest payload in bytes", ())
    latency: Many[Seconds] = optional("lowest and highest latency", ())


class ModelError(Section):
    """Errors of predictions for programs without a fitted run, under the same delays.

    Relative standard deviations, by `Program.family`; an unmeasured family has the largest.
    """

    programs: int = Field(ge=2, le=1000, description="number of programs predicted without a run")
    source: str = optional("measurements behind these errors", "")
    seconds_per_step: dict[str, Relative] = optional("relative standard deviation by family", {})
    time_to_target: dict[str, Relative] = optional("relative standard deviation by family", {})

    def of(self, quantity: str, family: str | None) -> float:
        """Return a quantity's relative deviation; the largest for an unknown family.

        It is 0 for an unmeasured quantity.
        """
        errors: dict[str, float] = getattr(self, quantity)
        return errors.get(family or "", max(errors.values(), default=0.0))


class CodecCost(Section):
    """A node's additional time for a codec."""

    kind: Name = Field(description="name of the codec")
    size: Annotated[Bytes, Field(gt=0)] = Field(description="bytes of the vector")
    compress: Delay = optional("time to compress it", 0.0)
    decompress: Delay = optional("time to decompress one message of this vector", 0.0)


class Calibration(Section):
    """The origin of a profile, and the standard errors of its numbers."""

    date: str = optional("date of the measurement", "")
    hardware: str = optional("machine of the measurement", "")
    versions: dict[str, str] = optional("versions of the software, by package", {})
    runs: Many[Name] = optional("runs behind the fit", ())
    fingerprints: Many[Name] = optional(
        "SHA-256 of these runs' files; a comparison with the same runs proves nothing", ()
    )
    sd: dict[str, NonNegative] = optional("relative standard errors by dotted key", {})
    draws: dict[str, Factors] = optional(
        "jointly drawn factors by dotted key, one per replicate", {}
    )
    run_to_run: NonNegative = optional("relative standard deviation between runs", 0.0)
    fitted: Many[Name] = optional("programs in the fit, with their parameters", ())
    model_error: ModelError | None = optional("errors of programs outside the fit")
    transport: Literal["ideal", "tcp"] = optional(
        "network.transport of the fit; with ideal, the factors of overheads include the "
        "cost of TCP's packets",
        "ideal",
    )
    library: Literal["ideal", "nccl", "gloo", "byteps"] = optional(
        "network.library of the fit; overheads are additional to its costs", "ideal"
    )
    replicates: int = optional("simulations with redrawn numbers (bootstrap)", 8, ge=2, le=1000)
    measured: MeasuredRange = MeasuredRange()
    notes: Many[str] = optional("assumptions of the fit", ())


def tree(workers: int) -> float:
    """Return a double tree's time on a link, relative to a ring of as many workers."""
    return workers / (workers - 1) if workers > 3 else 1.0


def at(tables: Sequence[Overhead], workers: int) -> Overhead:
    """Return the overheads for `workers` workers, interpolated between tables.

    A table without a number of workers applies to any number; the first such table wins.
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
    pairs = {name: (getattr(low, name), getattr(high, name)) for name in Overhead.model_fields}
    pairs = {name: pair for name, pair in pairs.items() if isinstance(pair[0], float)}
    pairs["step"] = low.step.expectation, high.step.expectation
    update: dict[str, Any] = {name: a + share * (b - a) for name, (a, b) in pairs.items()}
    mean, usual = update.pop("step"), nearer.step.expectation
    update |= {"step": nearer.step.scaled(mean / usual)} if usual else {}
    return nearer.model_copy(update=update | {"workers": workers})
