"""Compute when workers are members: by a law, by times of day, or by a trace.

A worker that joins receives the model as a message from the server or another worker. It is absent
until it has the model; if it leaves earlier, the transfer restarts on its return.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain, count, islice, takewhile
from math import inf, nextafter
from typing import NamedTuple

import numpy as np

from ..distributions.distribution import Distribution
from ..distributions.random_streams import Purpose, generator
from ..scenario.cluster import DAY, Cluster, Membership
from ..scenario.scenario import Scenario
from .failures import NEVER, Calendar, Down, merged, united

Transfer = Callable[[int], tuple[float, float]]
"""A function from a joining rank to the model's transmission time and latency (s)."""
OUT = ("down", "absent", "communicate", "wait", "unselected")
"""Activities of a worker during an outage; `communicate`: it downloads the model."""
TRIES = 200  # a worker that fails to join this often in a row has left for good


class Absence(NamedTuple):
    """One absence (s): when the worker left, returned, restarted, and had the model.

    `sent`: when the transfer of the model ended; `share`: of the model that was sent by then.
    """

    left: float
    back: float
    ready: float
    joined: float
    sent: float = inf
    share: float = 0.0


def _absences(spec: Membership | None, seed: int, rank: int) -> Iterator[Down]:
    """Yield the spans in which a worker is absent, in order, without the time to join."""
    sources = (_outside(spec, rank), _by_law(spec, seed, rank)) if spec else ()
    return united(merge(*sources))


def _by_law(spec: Membership, seed: int, rank: int) -> Iterator[Down]:
    if spec.present is not None and spec.absent is not None:
        rng, present, absent = generator(seed, Purpose.MEMBERSHIP, rank), spec.present, spec.absent

        def draw(law: Distribution) -> float:
            return float(law.sample(rng, 1)[0])

        if spec.start == "present":
            leaves = draw(present)
            back = leaves + draw(absent)
        elif rng.random() * (present.expectation + absent.expectation) < present.expectation:
            leaves = float(present.residual(rng.random()))
            back = leaves + draw(absent)
        else:
            leaves, back = 0.0, float(absent.residual(rng.random()))
        while True:
            yield leaves, back
            leaves = back + draw(present)
            back = leaves + draw(absent)


def _outside(spec: Membership, rank: int) -> Iterator[Down]:
    """Yield the spans in which times of day or a trace keep a worker absent."""
    windows: Iterator[Down] = iter(spec.trace.get(rank, [(0.0, inf)]))
    if spec.windows:
        daily = hours(spec.windows)
        if daily == [(0.0, DAY)]:
            return
        windows = ((day * DAY + a, day * DAY + b) for day in count() for a, b in daily)
    end = 0.0
    for start, until in windows:
        if start > end:
            yield end, start
        end = max(end, until)
    if end < inf:
        yield end, inf


def hours(windows: Iterable[Down]) -> list[Down]:
    """Return the union of times of day (s), in order; a window may cross midnight."""
    parts = (part for a, b in windows for part in ((a, min(b, DAY)), (0.0, b - DAY)))
    return merged((a, b) for a, b in parts if a < b)


def working_hours(cluster: Cluster) -> list[Down]:
    """Return the times of day (s) at which workers may be present."""
    specs = cluster.of_workers("membership")
    calendars = {spec.windows if spec else () for spec in specs}
    return hours(chain(*calendars) if all(calendars) else [(0.0, DAY)])


def all_day(cluster: Cluster) -> bool:
    """Return whether workers may be present at all times of day."""
    return working_hours(cluster) == [(0.0, DAY)]


def _day(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Return times of day (s), and the share of the working hours before every time."""
    edges = np.array([0.0, *chain(*working_hours(cluster)), DAY])
    spans = np.diff(edges) * np.where(np.arange(len(edges) - 1) % 2, 1.0, 1e-9)  # strictly rising
    done = np.append(0.0, spans.cumsum())
    return edges, done / done[-1]


def working(cluster: Cluster) -> Callable[[float], float]:
    """Return a function from a time (s) to the days of working hours before it, such as nights."""
    day = _day(cluster)
    return lambda time: time // DAY + float(np.interp(time % DAY, *day))


def working_seconds(cluster: Cluster, time: float) -> float:
    """Return the seconds of working hours before a time (s)."""
    daily = sum(end - start for start, end in working_hours(cluster))
    return time if daily == DAY else daily * working(cluster)(time)


def stretched(cluster: Cluster, time: float, factors: np.ndarray) -> np.ndarray:
    """Convert factors of the work done by `time` (s) to factors of the duration."""
    if all_day(cluster) or not 0 < time < inf:
        return factors
    days, part = np.divmod(working(cluster)(time) * np.minimum(factors, 1e9), 1.0)
    ends = days * DAY + np.interp(part, *reversed(_day(cluster)))
    result: np.ndarray = np.where(np.isfinite(factors), ends / time, factors)
    return result


class Members:
    """Absences of the workers of one run, computed on demand.

    `pay`: whether workers download the model when they join; without a `transfer` they do so when
    selected. `hurried`: workers that never stayed long enough to receive the model.
    """

    def __init__(self, scenario: Scenario, seed: int, transfer: Transfer | None) -> None:
        self._restart, self.pay = scenario.recovery.reload, transfer is not None
        self._transfer = transfer or (lambda rank: (0.0, 0.0))
        specs: list[Membership | None] = scenario.cluster.of_workers("membership")
        self.notice = [0.0 if spec is None else spec.notice for spec in specs]
        self.hurried = set[int]()
        self._coming = [self._of(spec, seed, rank) for rank, spec in enumerate(specs)]
        self._absences: list[list[Absence]] = [[] for _ in specs]
        self._counted = 0.0  # time up to which `sent` has yielded transfers
        ranks = range(len(specs))
        self.calendars = [Calendar((a.left, a.joined) for a in self.of(rank)) for rank in ranks]

    def _of(self, spec: Membership | None, seed: int, rank: int) -> Iterator[Absence]:
        """Yield a worker's absences, which end when it has the model or leaves again."""
        spans, tries = _absences(spec, seed, rank), 0
        (left, back), (sends, latency) = next(spans, NEVER), self._transfer(rank)
        while left < inf:
            if back == inf or tries == TRIES:
                self.hurried |= {rank} if back < inf else set()
                yield Absence(left, inf, inf, inf)
                return
            leaves, returns = next(spans, NEVER)
            ready = min(back + self._restart, leaves)
            sent = min(ready + sends, leaves)
            joined = min(sent + latency, leaves)
            share = 1 - (ready + sends - sent) / (sends or 1.0) if ready < leaves else 0.0
            yield Absence(left, back, ready, joined, sent, share)
            tries = tries + 1 if joined == leaves else 0
            left, back = leaves, returns

    def absent(self, rank: int, time: float) -> bool:
        """Return whether a worker, by rank, is absent at a time (s); the server never is."""
        return rank < len(self.calendars) and self.calendars[rank].next(time)[0] <= time

    def leaves(self, rank: int, time: float) -> bool:
        """Return whether a worker is absent at a time (s), or has notice of an absence."""
        return self.notice_time(rank, time) <= time

    def notice_time(self, rank: int, time: float) -> float:
        """Return when (s) a worker receives notice of its current or next absence."""
        return self.calendars[rank].next(time)[0] - self.notice[rank]

    def down(self, rank: int, crashes: Iterator[Down]) -> Iterator[Down]:
        """Yield the spans in which a worker is absent, or crashed while it is a member."""
        return merge(self._while_member(rank, crashes), ((a.left, a.joined) for a in self.of(rank)))

    def _while_member(self, rank: int, crashes: Iterator[Down]) -> Iterator[Down]:
        away = self.calendars[rank]
        for crash, back in crashes:
            left, joined = away.next(crash)
            if left > crash:  # the worker joins repaired; a gap keeps both spans apart
                yield crash, min(back, nextafter(left, 0.0))
            elif joined == inf:  # the worker has left for good
                return

    def of(self, rank: int, after: float = 0.0) -> Iterator[Absence]:
        """Yield a worker's absences that end after a time (s), in order."""
        absences = self._absences[rank]
        for index in count(bisect_right(absences, after, key=lambda span: span.joined)):
            if index == len(absences):
                absences += islice(self._coming[rank], 1)
            if index == len(absences):
                return
            if absences[index].joined > after:
                yield absences[index]

    def sent(self, until: float) -> Iterator[tuple[int, float]]:
        """Yield rank and share sent of each transfer that ended since the last call.

        The share is below 1 if the worker left before the transfer's end.
        """
        for rank in range(len(self._absences)):
            for absence in takewhile(lambda a: a.sent <= until, self.of(rank, self._counted)):
                if absence.sent > self._counted:
                    yield rank, absence.share
        self._counted = max(self._counted, until)

    def away(self, start: float, end: float) -> np.ndarray:
        """Return each worker's seconds of absence in a span, shape (workers,)."""
        return np.array(
            [
                sum(
                    max(0.0, min(a.back, end) - max(a.left, start))
                    for a in takewhile(lambda a: a.left < end, self.of(rank, start))
                )
                for rank in range(len(self.calendars))
            ]
        )

    def deserted(self, end: float) -> float:
        """Return the seconds before `end` in which no worker was present."""
        spans = [span for calendar in self.calendars for span in calendar.during(0.0, end)]
        times = np.array(spans).reshape(-1, 2)
        edges, order = times.ravel(), np.argsort(times.ravel(), kind="stable")
        away = np.cumsum(np.tile([1, -1], len(times))[order])
        return float(np.diff(edges[order])[away[:-1] == len(self.calendars)].sum())

    def split(self, rank: int, start: float, end: float, kind: str) -> np.ndarray:
        """Split an outage into its seconds of each kind in `OUT`.

        Time before an absence is of `kind`; time after one is "wait", or again "unselected".
        """
        parts, since = dict.fromkeys(OUT, 0.0), start
        for a in takewhile(lambda a: a.left < end, self.of(rank, start)):
            times, kinds = (a.left, a.back, a.ready, a.joined), (kind, "absent", "down", OUT[2])
            for mark, activity in zip(times, kinds, strict=True):
                until = min(max(mark, since), end)
                parts[activity] += until - since
                since = until
            kind = kind if kind == "unselected" else "wait"
        parts[kind] += end - since
        return np.array([*parts.values()])
