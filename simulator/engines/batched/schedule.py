"""What a team does, noted in order, and how long its steps take, drawn a block at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from paceline.simulator.distributions.distribution import Array

LONGEST = 1024  # steps that are summed at once
SEGMENTS = 2**24  # of all streams, in memory at once
STEPS = 2**12, 2**16  # of one stream, in memory at once: in the first block, and at most


class Leg(NamedTuple):
    """Seconds of one segment: of `each` worker, (seeds, workers), and of the slowest, (seeds,).

    Of several segments: the same with one axis more, the first.
    """

    each: Array
    slowest: Array


class StepTimes(Protocol):
    """What draws compute times."""

    def legs(self, lengths: Sequence[int]) -> Leg:
        """Seconds of the next segments, of so many steps each."""


class Schedule(ABC):
    """Notes of what all workers of all seeds do, replayed a block at a time.

    `merge`: steps between two notes are one segment, of up to `longest`; else each is its own.
    `due`: whether there is enough for a block; `over`: whether nothing that comes counts any more.
    """

    def __init__(self, clocks: StepTimes, streams: int, *, merge: bool) -> None:
        self._clocks = clocks
        self.longest = LONGEST if merge else 1
        # with vectors to compute on, steps past the deadline cost more than small blocks
        self._block = max(64, SEGMENTS // streams) if merge else 64
        self._most = STEPS[0]  # growing, so that little is done in vain beyond a deadline
        self._noted = self._drawn = 0  # steps
        self._lengths: list[int] = []
        self._todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.due = self.over = False
        self._legs = Leg(np.empty(0), np.empty(0))  # of the block, one after the other

    def note(self, step: int, what: Callable[..., None], *about: Any) -> None:
        """Note something to be timed, which every worker does after `step` steps."""
        self.advance(step)
        self._todo.append((what, about))

    def advance(self, step: int) -> None:
        """Every worker computes up to `step`."""
        if step > self._noted:
            self._todo.append((self._compute, (self._segment(step),)))

    def _segment(self, step: int) -> int:
        """Ask for the time of the steps up to `step`; return the number of the segment."""
        self._lengths.append(step - self._noted)
        self._drawn += step - self._noted
        self._noted = step
        self.due = len(self._lengths) >= self._block or self._drawn >= self._most or self.over
        return len(self._lengths) - 1

    def flush(self, step: int) -> None:
        """Work out the times of everything noted up to `step`."""
        self.advance(step)
        if self._lengths:
            self._legs = self._clocks.legs(self._lengths)
        todo, self._todo, self._lengths, self._drawn = self._todo, [], [], 0
        self._most = min(4 * self._most, STEPS[1])
        for what, about in todo:
            what(*about)
        self._let_go()
        self.due = self.over

    @abstractmethod
    def _compute(self, segment: int) -> None:
        """Every worker computes a segment of the block."""

    @abstractmethod
    def _let_go(self) -> None:
        """Keep nothing of the block, which is overwritten; find out whether all is `over`."""
