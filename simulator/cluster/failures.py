"""Compute when nodes are down, by scheduled and by random crashes."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import takewhile
from math import inf

from ..distributions.random_streams import Purpose, generator
from ..scenario.cluster import Failures
from ..scenario.scenario import Scenario

NEVER = (inf, inf)
PATIENCE = 1_000  # after this many crashes in a row, an action counts as never finished
Down = tuple[float, float]
"""Interval from a crash until the node resumes (seconds); `NEVER`: no crash."""
Extend = Callable[[int, Iterator[Down]], Iterator[Down]]


class Calendar:
    """The intervals in which one node is down: disjoint, in order, computed on demand.

    A crash during a repair or a reload restarts the repair.
    """

    def __init__(self, crashes: Iterator[Down]) -> None:
        self._crashes = crashes
        self._ahead = next(crashes, NEVER)
        self._downs: list[Down] = []
        self._ends: list[float] = []
        self._latest, self._holds = NEVER, (inf, inf)  # the last answer, and its times (s)

    def next(self, time: float) -> Down:
        """Return the first interval that ends after `time` (s), even if it began before."""
        since, until = self._holds
        if since <= time < until or time == inf:
            return self._latest if time < inf else NEVER
        while not self._ends or self._ends[-1] <= time:
            self._append()
        index = bisect_right(self._ends, time)
        self._holds = self._ends[index - 1] if index else -inf, self._ends[index]
        self._latest = self._downs[index]
        return self._latest

    def during(self, start: float, end: float) -> list[Down]:
        """Return the parts of [start, end] (s) in which the node is down."""
        parts = []
        time = start
        while time < end:
            crash, back = self.next(time)
            if crash >= end:
                break
            parts.append((max(crash, start), min(back, end)))
            time = back
        return parts

    def walk(self) -> Iterator[Down]:
        """Yield all intervals, in order."""
        time = -1.0
        while (down := self.next(time)) != NEVER:
            yield down
            time = down[1]

    def until(self, end: float) -> Iterator[Down]:
        """Yield the intervals that begin before `end` (s)."""
        return takewhile(lambda down: down[0] < end, self.walk())

    def _append(self) -> None:
        crash, back = self._ahead
        self._ahead = next(self._crashes, NEVER)
        while self._ahead[0] <= back < inf:
            back = max(back, self._ahead[1])
            self._ahead = next(self._crashes, NEVER)
        self._downs.append((crash, back))
        self._ends.append(back)


def united(spans: Iterable[Down]) -> Iterator[Down]:
    """Yield the union of ordered spans as disjoint spans; the input may be endless."""
    current: Down | None = None
    for start, end in spans:
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = start, end
        else:
            current = current[0], max(current[1], end)
        if current[1] == inf:
            break
    if current is not None:
        yield current


def merged(spans: Iterable[Down]) -> list[Down]:
    """Return the union of spans in any order as disjoint spans, in order."""
    return [*united(sorted(spans))]


def _random(failures: Failures, seed: int, rank: int) -> Iterator[Down]:
    """Yield crashes at exponential times after each repair; repairs are exponential."""
    rng = generator(seed, Purpose.FAILURE, rank)
    time = 0.0
    while True:
        crash = time + rng.exponential(failures.between)
        time = crash + rng.exponential(failures.repair)
        yield crash, time


def calendars(scenario: Scenario, seed: int, extend: Extend | None = None) -> list[Calendar]:
    """Return a calendar for each worker, in rank order, and then one for the server.

    A node is down until it is repaired and has reloaded its state (`Recovery.reload`).
    `extend`: a function that adds a worker's absences to its crashes.
    """
    cluster, reload = scenario.cluster, scenario.recovery.reload
    result = []
    for rank, failures in enumerate([*cluster.of_workers("failures"), scenario.server.failures]):
        scheduled = sorted(
            (crash.at, inf if crash.lasts is None else crash.at + crash.lasts)
            for crash in cluster.crash
            if crash.worker == ("server" if rank == cluster.workers else rank)
        )
        random = iter(()) if failures is None else _random(failures, seed, rank)
        downs = ((crash, back + reload) for crash, back in merge(scheduled, random))
        result.append(Calendar(extend(rank, downs) if extend and rank < cluster.workers else downs))
    return result
