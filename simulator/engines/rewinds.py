"""All go back to the last checkpoint when a node crashes: time that is lost, in any program.

What is done again is what was done before, and takes as long. So nodes are simulated without
crashes, by clocks that stand still while the cluster is repaired and does its work again; this
module knows what the clock on the wall shows meanwhile.
"""

from bisect import bisect_left
from heapq import merge
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.failures import NEVER, Calendar, Down

PATIENCE = 10_000  # crashes before a checkpoint is reached again; with more it never will be


class Rewind(NamedTuple):
    """Back to a checkpoint: by nodes' clocks at `at`, on the wall from `start` to `done`.

    `repairs`: when the cluster was down; between them it did `again` seconds of work anew, up to
    the next crash or to the end. `done` is inf where it never comes so far.
    """

    at: float
    start: float
    repairs: list[Down]
    again: float
    done: float

    def down(self, end: float) -> float:
        """Seconds of repair up to `end`."""
        return sum(max(0.0, min(b, end) - a) for a, b in self.repairs)


class Rewinds:
    """The crashes of one run, and when nodes are again where they had been.

    `timeout`: until a crash is noticed; `reload`: until all have loaded the checkpoint, which is
    part of the calendars' repairs; `deadline`: nothing after it matters.
    """

    def __init__(
        self, calendars: list[Calendar], timeout: float, reload: float, deadline: float
    ) -> None:
        self._crashes = merge(*(calendar.walk() for calendar in calendars))
        self._ahead = next(self._crashes, NEVER)
        self._least, self._deadline = timeout + reload, deadline
        self._saved = 0.0
        self._since = [0.0]  # nodes' times from which on the offset holds
        self._offsets = [0.0]
        self.rewinds: list[Rewind] = []

    @property
    def next(self) -> float:
        """What the nodes' clocks show at the next crash."""
        return self._ahead[0] - self._offsets[-1] if self._ahead < NEVER else inf

    @property
    def stuck(self) -> Rewind | None:
        """The crash after which the cluster never came as far again as it had been."""
        last = self.rewinds[-1] if self.rewinds else None
        return last if last is not None and last.done == inf else None

    def save(self, time: float) -> None:
        """All nodes have saved their state at `time`, by their clocks."""
        self.wall(time)
        self._saved = time

    def wall(self, time: float) -> float:
        """What the clock on the wall shows when the nodes' clocks show `time`; not after a crash.

        All checkpoints before it must have been saved.
        """
        while self.next < time:
            self.rewind()
        return time + self._offsets[max(0, bisect_left(self._since, time) - 1)]

    def clock(self, wall: float) -> float:
        """What the nodes' clocks show when the one on the wall shows `wall`, which has been."""
        for rewind, before in zip(self.rewinds, self._offsets, strict=False):
            if wall <= rewind.done:
                return min(wall - before, rewind.at)
        return wall - self._offsets[-1]

    def walls(self, times: np.ndarray, *, after: bool) -> np.ndarray:
        """`wall` of many times at once; at a rewind itself, before or `after` it."""
        places = np.searchsorted(self._since, times, side="right" if after else "left")
        return np.asarray(times + np.array(self._offsets)[np.maximum(places - 1, 0)])

    def rewind(self) -> None:
        """Crash; a crash before all is done again begins that anew."""
        start = self._ahead[0]
        at = self.next
        again = at - self._saved
        repairs = [self._repair()]
        while self._ahead[0] < repairs[-1][1] + again:
            if len(repairs) == PATIENCE or self._ahead[0] > self._deadline:
                self._ahead, again = NEVER, inf
                break
            crash, ready = self._repair()
            if crash < repairs[-1][1]:
                crash, ready = repairs[-1][0], max(ready, repairs.pop()[1])
            repairs.append((crash, ready))
        done = repairs[-1][1] + again
        self._since.append(at)
        self._offsets.append(done - at)
        self.rewinds.append(Rewind(at, start, repairs, again, done))

    def _repair(self) -> Down:
        """The next crash, and when all have loaded the checkpoint after it."""
        crash, back = self._ahead
        self._ahead = next(self._crashes, NEVER)
        return crash, max(back, crash + self._least)
