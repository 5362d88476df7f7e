"""All go back to the last checkpoint when a node crashes: time that is lost, in any program.

What is done again is what was done before, and takes as long. So nodes are simulated without
crashes, by clocks that stand still while the cluster is repaired and does its work again; this
module knows what the clock on the wall shows meanwhile.
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from math import inf
from typing import NamedTuple

import numpy as np

from paceline.simulator.cluster.failures import NEVER, PATIENCE, Calendar, Down
from paceline.simulator.results.run import SPAN, Kind


class Rollback(NamedTuple):
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

    def parts(self) -> Iterator[tuple[Kind, float, float]]:
        """What all did, from when to when."""
        following = [start for start, _ in self.repairs[1:]]
        for (start, back), then in zip(self.repairs, [*following, self.done], strict=True):
            yield Kind.DOWN, start, back
            yield Kind.COMPUTE, back, then


class Checkpoints:
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
        self.rewinds: list[Rollback] = []

    @property
    def next(self) -> float:
        """What the nodes' clocks show at the next crash."""
        return self._ahead[0] - self._offsets[-1] if self._ahead < NEVER else inf

    @property
    def stuck(self) -> Rollback | None:
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

    def shown(self, spans: np.ndarray, end: float, workers: int) -> np.ndarray:
        """Spans by nodes' clocks as the clock on the wall shows them, up to `end`.

        They are cut where all stood still: down, or busy with what had been done before.
        """
        last = float(spans["end"].max())
        seen = [each for each in self.rewinds if each.at <= last and each.start < end]
        for rewind in seen:
            within = (spans["start"] < rewind.at) & (spans["end"] > rewind.at)
            rest = spans[within]
            spans["end"][within] = rest["start"] = rewind.at
            spans = np.concatenate([spans, rest])
        since, offsets = np.array(self._since), np.array(self._offsets)
        spans["start"] += offsets[np.searchsorted(since, spans["start"], side="right") - 1]
        spans["end"] = self.walls(spans["end"])
        ranks = sorted(set(spans["worker"].tolist()))
        stood = [
            (rank, kind, start, min(until, end), 0)
            for rewind in seen
            for kind, start, until in rewind.parts()
            for rank in ranks
            if start < min(until, end)
        ]
        busy = np.array(stood, dtype=SPAN)
        busy["kind"][(busy["worker"] == workers) & (busy["kind"] == Kind.COMPUTE)] = Kind.SERVE
        return np.sort(np.concatenate([spans, busy]), order=["start"])

    def walls(self, times: np.ndarray) -> np.ndarray:
        """What the clock on the wall shows at nodes' times before which all crashes are known."""
        places = np.searchsorted(np.array(self._since), times, side="left")
        shifted: np.ndarray = times + np.array(self._offsets)[np.maximum(places - 1, 0)]
        return shifted

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
        self.rewinds.append(Rollback(at, start, repairs, again, done))

    def _repair(self) -> Down:
        """The next crash, and when all have loaded the checkpoint after it."""
        crash, back = self._ahead
        self._ahead = next(self._crashes, NEVER)
        return crash, max(back, crash + self._least)
