"""Record the effects of all workers in order, and draw the seconds of their steps by blocks.

A *segment* is a run of steps between two recorded events, whose compute times are summed at once; a
*block* is the segments between two calls of `flush`. Recording costs one list entry per event,
whatever the number of workers and seeds; `flush` then draws all compute times of the block in a few
large calls and replays the events in order on the clocks (`clocks.Clocks`).

Invariants: events are replayed exactly once and in the order of recording; a segment is drawn
before any event that follows it is replayed. A segment ends at an event or after `longest` steps,
never because a block happens to end there, so that sums do not depend on the sizes of blocks. Only
`merge` (runs without vectors) lets a segment span several steps: with vectors, gradients are
computed while recording, so that steps past the deadline are wasted work, and blocks are small.

After a change: tests/engines/test_batched.py (the sizes of blocks change no number), and the memory
and rates that tests/lab/bench/parts.py prints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ...distributions.distribution import Array

LONGEST = 1024  # steps in one segment, at most
SEGMENTS = 2**24  # in memory at once, of all workers of all seeds
STEPS = 2**12, 2**16  # of one worker in memory at once: in the first block, at most


class Schedule(ABC):
    """The recorded events of all workers of all seeds, replayed by blocks.

    `times`: draws compute times, `compute_times.Draws` or `SumDraws`.
    `merge`: the steps between two events are one segment, of up to `longest`; otherwise each step
    is. `due`: a block is full, so call `flush`; `over`: all further events come after the end.
    """

    def __init__(self, times: Any, streams: int, *, merge: bool) -> None:
        self._times = times
        self.longest = LONGEST if merge else 1
        # with vectors to compute on, steps past the deadline cost more than small blocks
        self._block = max(64, SEGMENTS // streams) if merge else 64
        self._most = STEPS[0]  # grows, so that few steps past a deadline are computed
        self._noted = self._drawn = 0  # steps
        self._lengths: list[int] = []
        self._todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.due = self.over = False
        self._legs: Array = np.empty(0)  # of the block's segments, (segments, seeds, workers)

    def record(self, step: int, replay: Callable[..., None], *arguments: Any) -> None:
        """Record an event after `step` steps of every worker: `replay(*arguments)`."""
        self.advance(step)
        self._todo.append((replay, arguments))

    def advance(self, step: int) -> None:
        """Let every worker compute up to `step`."""
        if step > self._noted:
            self._todo.append((self._compute, (self._segment(step),)))

    def _segment(self, step: int) -> int:
        """Close a segment at `step`; return its number in the block."""
        self._lengths.append(step - self._noted)
        self._drawn += step - self._noted
        self._noted = step
        self.due = len(self._lengths) >= self._block or self._drawn >= self._most or self.over
        return len(self._lengths) - 1

    def flush(self, step: int) -> None:
        """Draw the block's compute times and replay all events recorded up to `step`."""
        self.advance(step)
        if self._lengths:
            self._legs = self._times.legs(self._lengths)
        todo, self._todo, self._lengths, self._drawn = self._todo, [], [], 0
        self._most = min(4 * self._most, STEPS[1])
        for replay, arguments in todo:
            replay(*arguments)
        self._let_go()
        self.due = self.over

    @abstractmethod
    def _compute(self, segment: int) -> None:
        """Let every worker compute a segment of the block."""

    @abstractmethod
    def _let_go(self) -> None:
        """Set `over`, before the next block overwrites the arrays."""
