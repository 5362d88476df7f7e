"""Compute a line's capacity over time: profile, outages and background traffic."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from math import inf, prod

from ...distributions.law import Law
from ...distributions.parametric import Exponential
from ...distributions.random_streams import Purpose, blocks, generator
from ...distributions.time_profile import TimeProfile

Interval = tuple[float, float]
"""Start and end, in seconds."""


@dataclass(frozen=True)
class Once:
    """One interval, equal for all seeds."""

    start: float = 0.0
    end: float = inf

    def of(self, seed: int) -> Iterator[Interval]:
        """Yield the one interval."""
        yield self.start, self.end


@dataclass(frozen=True)
class Alternating:
    """Alternating pauses (`off`) and intervals (`on`); `purpose`, `key`: of draws."""

    purpose: Purpose
    key: tuple[int, ...]
    off: Law
    on: Law

    def of(self, seed: int) -> Iterator[Interval]:
        """Yield the intervals in order, endlessly."""
        pauses, lengths = self._draws(seed, 0, self.off), self._draws(seed, 1, self.on)
        end = 0.0
        for pause, length in zip(pauses, lengths, strict=False):
            start = end + pause
            end = start + length
            yield start, end

    def _draws(self, seed: int, which: int, law: Law) -> Iterator[float]:
        rng = generator(seed, self.purpose, *self.key, which)
        return blocks(lambda n: law.sample(rng, n))


TimesInForce = Once | Alternating
"""The intervals in which an outage or a load is active, in order, by seed."""


def failing(key: tuple[int, ...], between: float, repair: float) -> Alternating:
    """Return outages at exponential times; `between` and `repair`: means in seconds."""
    laws = [Exponential.model_validate({"mean": f"{mean!r} s"}) for mean in (between, repair)]
    return Alternating(Purpose.OUTAGE, key, *laws)


@dataclass(frozen=True)
class Line:
    """One direction of a link or network card, or both where it is half-duplex.

    `capacity`: bytes/s, inf: unlimited. `per_flow`: whether every flow has the whole capacity.
    `profile`: factor of the capacity over time, None for 1. During `outages` the capacity is zero.
    `loads`: bytes/s to subtract from the capacity, and the intervals of the loads.
    """

    name: str
    capacity: float
    per_flow: bool = False
    profile: TimeProfile | None = None
    outages: tuple[TimesInForce, ...] = ()
    loads: tuple[tuple[float, TimesInForce], ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the capacity may change over time."""
        return self.profile is not None or bool(self.outages or self.loads)

    def capacities(self, seed: int) -> Iterator[tuple[float, float]]:
        """Yield pairs (time, capacity from then on) lazily, beginning at time 0."""
        factors = [] if self.profile is None else [self.profile.segments()]
        factors += [_steps(times.of(seed), 0.0, 1.0) for times in self.outages]
        loads = [_steps(times.of(seed), rate, 0.0) for rate, times in self.loads]
        state = [1.0] * len(factors) + [0.0] * len(loads)
        sources = [_numbered(*steps) for steps in enumerate([*factors, *loads])]
        once = [outage for outage in self.outages if isinstance(outage, Once)]
        gone = min((outage.start for outage in once if outage.end == inf), default=inf)
        last = None
        for time, together in groupby(merge([(0.0, -1, 0.0)], *sources), lambda step: step[0]):
            if time == inf and gone == inf:
                return
            if time >= gone and last is not None:  # a permanent outage ends all changes
                if last:
                    yield gone, 0.0
                return
            for _, index, value in together:
                if index >= 0:
                    state[index] = value
            factor = prod(state[: len(factors)])
            scaled = self.capacity * factor if factor else 0.0  # even if the capacity is infinite
            now = max(0.0, scaled - sum(state[len(factors) :]))
            if now != last:
                yield time, now
            last = now


def _steps(times: Iterator[Interval], inside: float, outside: float) -> Iterator[Interval]:
    for start, end in times:
        yield start, inside
        yield end, outside


def _numbered(index: int, steps: Iterator[Interval]) -> Iterator[tuple[float, int, float]]:
    return ((time, index, value) for time, value in steps)
