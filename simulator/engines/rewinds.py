"""All go back to the last checkpoint when a node crashes: time that is lost, in any program.

What is done again is what was done before, and takes as long. So nodes are simulated without
crashes, by clocks that stand still while the cluster is repaired and does its work again; this
module knows what the clock on the wall shows meanwhile.
"""

from bisect import bisect_right
from heapq import merge
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.failures import NEVER, Calendar


class Rewind(NamedTuple):
    """Back to a checkpoint: nodes' time of the crash, seconds to repair, and to do all again."""

    at: float
    repair: float
    again: float


class Rewinds:
    """The crashes of one run, and when nodes are again where they had been.

    `timeout`: until a crash is noticed; `reload`: until all have loaded the checkpoint, which is
    part of the calendars' repairs.
    """

    def __init__(self, calendars: list[Calendar], timeout: float, reload: float) -> None:
        self._crashes = merge(*(calendar.walk() for calendar in calendars))
        self._ahead = next(self._crashes, NEVER)
        self._least = timeout + reload
        self._saved = 0.0
        self._since = [0.0]  # nodes' times from which on the offset holds
        self._offsets = [0.0]
        self.rewinds: list[Rewind] = []

    def save(self, time: float) -> None:
        """All nodes have saved their state at `time`, by their clocks."""
        self.wall(time)
        self._saved = time

    def wall(self, time: float) -> float:
        """What the clock on the wall shows when the nodes' clocks show `time`.

        All checkpoints before it must have been saved.
        """
        while self._ahead[0] - self._offsets[-1] < time:
            self._rewind()
        return time + self._offsets[bisect_right(self._since, time) - 1]

    def clock(self, wall: float) -> float:
        """What the nodes' clocks show when the one on the wall shows `wall`, late in the run."""
        if wall == inf:
            return inf
        self.wall(wall)  # nodes' clocks are never ahead of it
        found = wall
        for since, before, after in zip(
            self._since[1:], self._offsets, self._offsets[1:], strict=False
        ):
            if wall <= since + after:
                return min(wall - before, since)
            found = wall - after
        return found

    def walls(self, times: np.ndarray, *, after: bool) -> np.ndarray:
        """`wall` of many times at once; at a rewind itself, before or `after` it."""
        places = np.searchsorted(self._since, times, side="right" if after else "left")
        return np.asarray(times + np.array(self._offsets)[np.maximum(places - 1, 0)])

    def stood(self, until: float) -> list[tuple[float, float]]:
        """From when to when, on the wall, all nodes' clocks stood still, up to a time of theirs."""
        offsets = zip(self._since[1:], self._offsets, self._offsets[1:], strict=False)
        return [(at + old, at + new) for at, old, new in offsets if at < until]

    def _rewind(self) -> None:
        """Crash; a crash before all is done again begins that anew."""
        crash, back = self._ahead
        at = crash - self._offsets[-1]
        again = at - self._saved
        ready = max(back, crash + self._least)
        self._ahead = next(self._crashes, NEVER)
        while self._ahead[0] < ready + again:
            ready = max(ready, self._ahead[1], self._ahead[0] + self._least)
            self._ahead = next(self._crashes, NEVER)
        self._since.append(at)
        self._offsets.append(ready + again - at)
        self.rewinds.append(Rewind(at, ready - crash, again))
