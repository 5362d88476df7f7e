"""What a team does, noted in order, and how long its steps take, drawn a block at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from simulator.distribution import Array

LONGEST = 1024  # steps that are summed at once
SEGMENTS = 2**24  # of all streams, in memory at once
STEPS = 2**14  # of one stream, in memory at once


class Clocks(Protocol):
    """What draws compute times."""

    def sums(self, lengths: Sequence[int]) -> Array:
        """Seconds of the next segments, of so many steps each: (segments, seeds, workers)."""


class Leg(NamedTuple):
    """Seconds of one segment: `each`, (seeds, workers); the slowest's and the total, (seeds,)."""

    each: Array
    slowest: Array
    total: Array


class Agenda(ABC):
    """Notes of what all workers of all seeds do, replayed a block at a time.

    `merge`: steps between two notes are one segment, of up to `longest`; else each is its own.
    `due`: whether there is enough for a block; `over`: whether nothing that comes counts any more.
    """

    def __init__(self, clocks: Clocks, streams: int, *, merge: bool, threads: int) -> None:
        self._clocks = clocks
        self.longest = LONGEST if merge else 1
        # with vectors to compute on, steps past the deadline cost more than small blocks
        self._block = max(64, SEGMENTS // streams) if merge else 64
        self._noted = self._drawn = 0  # steps
        self._lengths: list[int] = []
        self._todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.due = self.over = False
        self._legs = Leg(*(3 * [np.empty(0)]))  # of the block, one after the other
        # drawing overlaps with what the program does, where that is all there is to do
        self._pool = ThreadPoolExecutor(1) if merge and threads > 1 else None
        self._under_way: tuple[Future[Leg], list[Any]] | None = None

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
        self.due = len(self._lengths) >= self._block or self._drawn >= STEPS or self.over
        return len(self._lengths) - 1

    def flush(self, step: int, wanted: bool = True) -> None:
        """Work out the times of everything noted up to `step`.

        If they are not `wanted` yet, they may be drawn while the program goes on.
        """
        self.advance(step)
        block = self._draw(self._lengths), self._todo
        self._lengths, self._todo, self._drawn = [], [], 0
        self._replay()  # the block before
        self._under_way = block
        if wanted or self._pool is None:
            self._replay()
        self.due = self.over

    def _draw(self, lengths: list[int]) -> Future[Leg]:
        if self._pool is not None:
            return self._pool.submit(self._segments, lengths)
        drawn: Future[Leg] = Future()
        drawn.set_result(self._segments(lengths))
        return drawn

    def _segments(self, lengths: list[int]) -> Leg:
        """Draw a block of segments."""
        if not lengths:
            return self._legs
        sums = self._clocks.sums(lengths)
        return Leg(sums, sums.max(axis=2), sums.sum(axis=2))

    def _replay(self) -> None:
        """Do what was noted of the block that is drawn."""
        if self._under_way is None:
            return
        drawn, todo = self._under_way
        self._under_way = None
        self._legs = drawn.result()
        for what, about in todo:
            what(*about)
        self._let_go()

    @abstractmethod
    def _compute(self, segment: int) -> None:
        """Every worker computes a segment of the block."""

    @abstractmethod
    def _let_go(self) -> None:
        """Keep nothing of the block, which is overwritten; find out whether all is `over`."""
