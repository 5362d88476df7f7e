"""Compute when workers are members: by a law, a calendar of the day, or a trace.

A worker that joins gets the model: a message from the server, or from another worker, over whose
link all who join meanwhile share alike (`Members`). It is absent until it has that.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from itertools import count, takewhile
from math import inf, nextafter
from typing import NamedTuple

import numpy as np

from paceline.simulator.cluster.failures import Calendar, Down
from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.scenario.cluster import DAY, Membership
from paceline.simulator.scenario.scenario import Scenario

Transfer = Callable[[int], tuple[float, float]]
"""Seconds that the model holds the source's link, and its latency, by the rank that joins."""


class Absence(NamedTuple):
    """A worker's absence: when it left, was back, had restarted, and had the model (seconds)."""

    left: float
    back: float
    ready: float
    joined: float


def settings(scenario: Scenario) -> list[Membership | None]:
    """Return the membership of each worker, in rank order; None: always a member."""
    cluster = scenario.cluster
    found = [
        group.membership or cluster.membership
        for group in cluster.group
        for _ in range(group.workers)
    ]
    return found + [cluster.membership] * (cluster.workers - len(found))


def _absences(spec: Membership | None, seed: int, rank: int) -> Iterator[Down]:
    """Yield when a worker is absent, in order, not counting what joining takes."""
    if spec is None:
        return
    if spec.present is not None and spec.absent is not None:
        rng, time = generator(seed, Purpose.MEMBERSHIP, rank), 0.0
        while True:
            left = time + float(spec.present.sample(rng, 1)[0])
            time = left + float(spec.absent.sample(rng, 1)[0])
            yield left, time
    windows: Iterator[Down] = iter(spec.trace.get(rank, [(0.0, inf)]))
    if spec.windows:
        windows = ((day * DAY + a, day * DAY + b) for day in count(-1) for a, b in spec.windows)
    end = 0.0
    for start, until in windows:
        if start > end:
            yield end, start
        end = max(end, until)
    if end < inf:
        yield end, inf


class Members:
    """When the workers of one run are absent; made on demand, in order of who is back first.

    Joining workers share the source's link alike (processor sharing): n of them take n times as
    long. `restart`: seconds from a worker's return until it asks for the model.
    """

    def __init__(self, scenario: Scenario, seed: int, transfer: Transfer) -> None:
        self._restart, self._transfer = scenario.recovery.restarting, transfer
        specs = settings(scenario)
        self.notice = [0.0 if spec is None else spec.notice for spec in specs]
        self._coming = [_absences(spec, seed, rank) for rank, spec in enumerate(specs)]
        self._next: list[tuple[float, int, float]] = []  # back, rank, left
        self._gone = [inf] * len(specs)  # when each leaves for good
        self._known: list[list[Absence]] = [[] for _ in specs]
        self._pending = [0] * len(specs)  # absences of each that are on their way to `_known`
        self._under_way: list[list[float]] = []  # transfers: seconds left, then what is known of it
        self._clock = 0.0
        for rank in range(len(specs)):
            self._announce(rank)
        ranks = range(len(specs))
        self.calendars = [Calendar((a.left, a.joined) for a in self.of(rank)) for rank in ranks]

    def absent(self, rank: int, time: float) -> bool:
        """Whether a worker, by rank, is absent at a time; the server never is."""
        return rank < len(self.calendars) and self.calendars[rank].next(time)[0] <= time

    def returns(self, rank: int, time: float) -> float:
        """Return when a worker is back from the absence that it is in, or has notice of (s)."""
        return self.calendars[rank].next(time)[1]

    def leaves(self, rank: int, time: float) -> bool:
        """Whether a worker has notice at a time that it will have to leave, or has left."""
        return self.calendars[rank].next(time)[0] - self.notice[rank] <= time

    def beside(self, rank: int, crashes: Iterator[Down]) -> Iterator[Down]:
        """Yield when a worker is down: absent, or crashed while it is a member."""
        return merge(self._while_member(rank, crashes), ((a.left, a.joined) for a in self.of(rank)))

    def _while_member(self, rank: int, crashes: Iterator[Down]) -> Iterator[Down]:
        away = self.calendars[rank]
        for crash, back in crashes:
            left, _ = away.next(crash)
            if left > crash:  # who joins again is sound; a gap keeps the two apart in a `Calendar`
                yield crash, min(back, nextafter(left, 0.0))

    def of(self, rank: int, after: float = 0.0) -> Iterator[Absence]:
        """Yield a worker's absences in order, from the first that ends after a time (s) on."""
        known = self._known[rank]
        for index in count(bisect_right(known, after, key=lambda each: each.joined)):
            while len(known) <= index and self._pending[rank]:
                self._advance()
            if len(known) <= index:
                break
            if known[index].joined > after:
                yield known[index]
        if self._gone[rank] < inf:
            yield Absence(self._gone[rank], inf, inf, inf)

    def _announce(self, rank: int) -> None:
        left, back = next(self._coming[rank], (inf, inf))
        if back < inf:
            heappush(self._next, (back, rank, left))
            self._pending[rank] += 1
        else:
            self._gone[rank] = left

    def _advance(self) -> None:
        """Advance to the next worker that asks for the model, or to the last that gets it."""
        until = self._next[0][0] + self._restart if self._next else inf
        while self._under_way:
            first = min(self._under_way)
            end = self._clock + first[0] * len(self._under_way)
            if end > until:
                break
            self._pass(end)
            self._under_way.remove(first)
            _, rank, left, back, latency = first
            absence = Absence(left, back, back + self._restart, end + latency)
            self._known[int(rank)].append(absence)
            self._pending[int(rank)] -= 1
        if self._next:
            self._pass(until)
            back, rank, left = heappop(self._next)
            holds, latency = self._transfer(rank)
            self._under_way.append([holds, rank, left, back, latency])
            self._announce(rank)

    def _pass(self, time: float) -> None:
        """Let the transfers under way progress, each at an equal share of the link."""
        for each in self._under_way:
            each[0] -= (time - self._clock) / len(self._under_way)
        self._clock = time

    def away(self, start: float, end: float) -> np.ndarray:
        """Return the seconds of a span in which each worker was away, not counting its joining."""
        return np.array(
            [
                sum(
                    max(0.0, min(a.back, end) - max(a.left, start))
                    for a in takewhile(lambda a: a.left < end, self.of(rank, start))
                )
                for rank in range(len(self.calendars))
            ]
        )

    def split(self, rank: int, start: float, end: float, left: bool) -> np.ndarray:
        """Split an outage into seconds down, absent, getting the model, and waiting after that.

        `left`: whether it left before the end of its notice.
        """
        parts, since, kind = np.zeros(4), start, int(left)
        for a in takewhile(lambda a: a.left < end, self.of(rank, start)):
            marks = zip((a.left, a.back, a.ready, a.joined), (kind, 1, 0, 2), strict=True)
            for mark, what in marks:
                until = min(max(mark, since), end)
                parts[what] += until - since
                since = until
            kind = 3
        parts[kind] += end - since
        return parts
