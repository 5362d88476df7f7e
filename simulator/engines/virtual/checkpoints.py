"""Rollbacks: when a node crashes, all go back to the last checkpoint and repeat their work.

Repeated work is the same, and takes as long. So nodes are simulated without crashes, by clocks that
stand still while the cluster is repaired and repeats its work; this module maps the nodes' clocks
to the wall clock and back. Invariant: between rollbacks the two differ by a constant offset
(`_offsets`, valid from `_rollback_times` on), which only grows.
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
    """A rollback: at `at` by the nodes' clocks, from `start` to `done` by the wall clock.

    `repairs`: when the cluster was down; between them it repeated up to `again` seconds of work,
    until the next crash or until all was repeated. `done` is inf if that never happens.
    """

    at: float
    start: float
    repairs: list[Down]
    again: float
    done: float

    def down(self, end: float) -> float:
        """Return the seconds of repair up to `end`."""
        return sum(max(0.0, min(b, end) - a) for a, b in self.repairs)

    def parts(self) -> Iterator[tuple[Kind, float, float]]:
        """Yield the parts of the rollback: kind, start and end by the wall clock."""
        following = [start for start, _ in self.repairs[1:]]
        for (start, back), then in zip(self.repairs, [*following, self.done], strict=True):
            yield Kind.DOWN, start, back
            yield Kind.COMPUTE, back, then


class Checkpoints:
    """The crashes of one run, and the rollbacks that they cause.

    `timeout`: seconds until a crash is noticed; `reload`: seconds to load a checkpoint, which the
    calendars' repairs include; `deadline`: nothing after it matters.
    """

    def __init__(
        self, calendars: list[Calendar], timeout: float, reload: float, deadline: float
    ) -> None:
        self._crashes = merge(*(calendar.walk() for calendar in calendars))
        self._next_crash = next(self._crashes, NEVER)
        self._least_repair, self._deadline = timeout + reload, deadline
        self._saved = 0.0
        self._rollback_times = [0.0]  # by the nodes' clocks: from when each offset holds
        self._offsets = [0.0]  # seconds
        self.rollbacks: list[Rollback] = []

    @property
    def next(self) -> float:
        """Time of the next crash, by the nodes' clocks."""
        return self._next_crash[0] - self._offsets[-1] if self._next_crash < NEVER else inf

    @property
    def stuck(self) -> Rollback | None:
        """The last rollback, if its work never gets repeated; else None."""
        last = self.rollbacks[-1] if self.rollbacks else None
        return last if last is not None and last.done == inf else None

    def save(self, time: float) -> None:
        """Note that all nodes have saved their state at `time`, by their clocks."""
        self.wall_clock(time)
        self._saved = time

    def wall_clock(self, time: float) -> float:
        """Return the wall-clock time of `time` by the nodes' clocks, before a crash at that time.

        All checkpoints before it must have been saved.
        """
        while self.next < time:
            self.roll_back()
        return time + self._offsets[max(0, bisect_left(self._rollback_times, time) - 1)]

    def node_clock(self, wall_clock: float) -> float:
        """Return the nodes' clocks at a past wall-clock time."""
        for rollback, before in zip(self.rollbacks, self._offsets, strict=False):
            if wall_clock <= rollback.done:
                return min(wall_clock - before, rollback.at)
        return wall_clock - self._offsets[-1]

    def timeline(self, spans: np.ndarray, end: float, workers: int) -> np.ndarray:
        """Return spans, given by the nodes' clocks, in wall-clock time up to `end`.

        Rollbacks cut them, and add spans of their own: down, or computing again.
        """
        last = float(spans["end"].max())
        seen = [each for each in self.rollbacks if each.at <= last and each.start < end]
        for rollback in seen:
            within = (spans["start"] < rollback.at) & (spans["end"] > rollback.at)
            rest = spans[within]
            spans["end"][within] = rest["start"] = rollback.at
            spans = np.concatenate([spans, rest])
        since, offsets = np.array(self._rollback_times), np.array(self._offsets)
        spans["start"] += offsets[np.searchsorted(since, spans["start"], side="right") - 1]
        spans["end"] = self.wall_clocks(spans["end"])
        ranks = sorted(set(spans["worker"].tolist()))
        stood = [
            (rank, kind, start, min(until, end), 0)
            for rollback in seen
            for kind, start, until in rollback.parts()
            for rank in ranks
            if start < min(until, end)
        ]
        busy = np.array(stood, dtype=SPAN)
        busy["kind"][(busy["worker"] == workers) & (busy["kind"] == Kind.COMPUTE)] = Kind.SERVE
        return np.sort(np.concatenate([spans, busy]), order=["start"])

    def wall_clocks(self, times: np.ndarray) -> np.ndarray:
        """Return the wall-clock times of nodes' times before which all crashes are known."""
        places = np.searchsorted(np.array(self._rollback_times), times, side="left")
        shifted: np.ndarray = times + np.array(self._offsets)[np.maximum(places - 1, 0)]
        return shifted

    def roll_back(self) -> None:
        """Roll back at the next crash; further crashes before all is repeated begin it anew."""
        start = self._next_crash[0]
        at = self.next
        again = at - self._saved
        repairs = [self._repair()]
        while self._next_crash[0] < repairs[-1][1] + again:
            if len(repairs) == PATIENCE or self._next_crash[0] > self._deadline:
                self._next_crash, again = NEVER, inf
                break
            crash, ready = self._repair()
            if crash < repairs[-1][1]:
                crash, ready = repairs[-1][0], max(ready, repairs.pop()[1])
            repairs.append((crash, ready))
        done = repairs[-1][1] + again
        self._rollback_times.append(at)
        self._offsets.append(done - at)
        self.rollbacks.append(Rollback(at, start, repairs, again, done))

    def _repair(self) -> Down:
        """Return the next crash, and when all have loaded the checkpoint after it."""
        crash, back = self._next_crash
        self._next_crash = next(self._crashes, NEVER)
        return crash, max(back, crash + self._least_repair)
