"""What takes capacity away from a line for a while: outages and background traffic."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from math import inf, prod
from typing import Protocol

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.parametric import Exponential
from paceline.simulator.distributions.random_streams import Purpose, blocks, generator
from paceline.simulator.distributions.time_profile import TimeProfile

Spell = tuple[float, float]
"""From when to when (seconds) something holds."""


class TimesInForce(Protocol):
    """When something holds, with each seed."""

    def of(self, seed: int) -> Iterator[Spell]:
        """Yield the spells in order of time; perhaps without end."""
        ...


@dataclass(frozen=True)
class Once:
    """From one time to another, with every seed."""

    start: float = 0.0
    end: float = inf

    def of(self, seed: int) -> Iterator[Spell]:
        """Yield the one spell."""
        yield self.start, self.end


@dataclass(frozen=True)
class Alternating:
    """A pause, a spell, a pause, ...: lasting `off` and `on`, drawn by `purpose` and `key`."""

    purpose: Purpose
    key: tuple[int, ...]
    off: Law
    on: Law

    def of(self, seed: int) -> Iterator[Spell]:
        """Yield spell after spell, without end."""
        pauses, lengths = self._draws(seed, 0, self.off), self._draws(seed, 1, self.on)
        end = 0.0
        for pause, length in zip(pauses, lengths, strict=False):
            start = end + pause
            end = start + length
            yield start, end

    def _draws(self, seed: int, which: int, law: Law) -> Iterator[float]:
        own = generator(seed, self.purpose, *self.key, which)
        return blocks(lambda n: law.sample(own, n))


def failing(key: tuple[int, ...], between: float, repair: float) -> Alternating:
    """Outages at exponential times: `between` and `repair` are means (seconds)."""
    laws = [Exponential.model_validate({"mean": f"{mean!r} s"}) for mean in (between, repair)]
    return Alternating(Purpose.OUTAGE, key, *laws)


@dataclass(frozen=True)
class Line:
    """One direction of a link or of a network card, or both where they share it.

    capacity: bytes/s, inf where it is never a limit. per_flow: every flow gets all of it. The
    profile is a factor of the capacity over time; in an outage it is zero; `loads` (bytes/s, when)
    are taken away from what is left.
    """

    name: str
    capacity: float
    per_flow: bool = False
    profile: TimeProfile | None = None
    outages: tuple[TimesInForce, ...] = ()
    loads: tuple[tuple[float, TimesInForce], ...] = ()

    @property
    def changes(self) -> bool:
        """Whether its capacity is not the same all the time."""
        return self.profile is not None or bool(self.outages or self.loads)

    def capacities(self, seed: int) -> Iterator[tuple[float, float]]:
        """Yield (time, capacity from then on), the first at 0, as far as anybody asks."""
        factors = [] if self.profile is None else [self.profile.segments()]
        factors += [_steps(spells.of(seed), 0.0, 1.0) for spells in self.outages]
        loads = [_steps(spells.of(seed), rate, 0.0) for rate, spells in self.loads]
        state = [1.0] * len(factors) + [0.0] * len(loads)
        sources = [_numbered(*each) for each in enumerate([*factors, *loads])]
        once = [each for each in self.outages if isinstance(each, Once)]
        gone = min((each.start for each in once if each.end == inf), default=inf)
        last = None
        for time, together in groupby(merge([(0.0, -1, 0.0)], *sources), lambda step: step[0]):
            if time == inf and gone == inf:
                return
            if time >= gone and last is not None:  # whatever else comes and goes
                if last:
                    yield gone, 0.0
                return
            for _, index, value in together:
                if index >= 0:
                    state[index] = value
            factor = prod(state[: len(factors)])
            left = self.capacity * factor if factor else 0.0  # also of an infinite capacity
            now = max(0.0, left - sum(state[len(factors) :]))
            if now != last:
                yield time, now
            last = now


def _steps(spells: Iterator[Spell], inside: float, outside: float) -> Iterator[Spell]:
    for start, end in spells:
        yield start, inside
        yield end, outside


def _numbered(index: int, steps: Iterator[Spell]) -> Iterator[tuple[float, int, float]]:
    return ((time, index, value) for time, value in steps)
