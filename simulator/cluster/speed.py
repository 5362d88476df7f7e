"""Compute each worker's speed over time, by its profile and bursts of slowness.

A step is an amount of work, in seconds at full speed. Its duration depends on the speed while it
runs: a burst stretches the steps, or parts of steps, that it overlaps.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from math import inf, prod
from operator import add
from typing import Any

import numpy as np

from ..distributions.random_streams import Purpose, blocks, generator
from ..distributions.time_profile import Segment
from ..scenario.cluster import Bursts
from ..scenario.scenario import Scenario
from ..scenario.team import Worker
from . import workers


class Speed:
    """The speed of one worker over time, computed on demand.

    `segments`: (start in seconds, speed from then on), from time 0 on. The last speed stays; if it
    is zero, work never ends.
    """

    def __init__(self, segments: Iterator[Segment]) -> None:
        self._coming = segments
        self._starts: list[float] = []
        self._speeds: list[float] = []
        self._extend()

    def after(self, start: float, work: float) -> float:
        """Return the end (s) of work from `start` that takes `work` s at full speed."""
        if work == 0:
            return start
        place = self._place(start)
        starts, speeds = self._starts, self._speeds
        while True:
            if place + 1 == len(starts):
                self._extend()
            speed, end = speeds[place], starts[place + 1]
            done = (end - start) * speed if speed else 0.0
            if done >= work:
                return start + work / speed
            if end == inf:
                return inf
            work -= done
            start = end
            place += 1

    def _place(self, time: float) -> int:
        """Return the index of the segment that holds `time` (s)."""
        while self._starts[-1] <= time:
            self._extend()
        return bisect_right(self._starts, time) - 1

    def _extend(self) -> None:
        start, speed = next(self._coming, (inf, 0.0))
        self._starts.append(start)
        self._speeds.append(speed)


def speeds(scenario: Scenario, seed: int) -> list[Speed | None]:
    """Return each worker's speed over time; None for a constant speed.

    Random streams are keyed by (seed, worker), so speeds are the same under every algorithm.
    """
    return [
        Speed(_segments(worker, seed, rank)) if worker.varies else None
        for rank, worker in enumerate(scenario.team.workers)
    ]


def _segments(worker: Worker, seed: int, rank: int) -> Iterator[Segment]:
    factors: list[Iterable[Segment]] = []
    if worker.profile is not None:
        factors.append(worker.profile.segments())
    if worker.bursts is not None:
        factors.append(burst_segments(worker.bursts, seed, rank))
    return product(factors)


def product(factors: list[Iterable[Segment]]) -> Iterator[Segment]:
    """Yield the segments of a product of step functions, given by ordered segments."""

    def numbered(index: int, segments: Iterable[Segment]) -> Iterator[tuple[float, int, float]]:
        for start, value in segments:
            yield start, index, value

    values = [1.0] * len(factors)
    for start, index, value in merge(*(numbered(*factor) for factor in enumerate(factors))):
        values[index] = value
        yield start, prod(values)


def burst_segments(bursts: Bursts, seed: int, rank: int) -> Iterator[Segment]:
    """Yield one worker's speed as segments: 1/factor in bursts, and 1 between them.

    The process is a two-state Markov chain (Gilbert 1960) that starts in its stationary law.
    Bursts and pauses are exponential, including the remainder of the first.
    """
    rng = generator(seed, Purpose.BURST, rank)
    on, time = bool(rng.random() < bursts.on / (bursts.on + bursts.off)), 0.0
    for length in blocks(rng.standard_exponential):
        yield time, 1 / bursts.factor if on else 1.0
        time += length * (bursts.on if on else bursts.off)
        on = not on


def slowed_end(start: Any, work: Any, flights: Iterable[tuple[Any, Any]], times: float) -> Any:
    """Return the end (s) of `work` seconds of computing that begin at `start`.

    Computing takes `times` as long during `flights`: pairs (start, end), in order of starts.
    """
    now, remaining = start, work
    for begins, done in flights:
        if np.all(begins >= now + remaining):
            break
        free = np.minimum(np.maximum(begins - now, 0.0), remaining)
        now, remaining = now + free, remaining - free
        slow = np.minimum(np.maximum((done - now) / times, 0.0), remaining)
        now, remaining = now + slow * times, remaining - slow
    return now + remaining


def stretched(node: Any, durations: Iterator[float], speed: Speed) -> Iterator[float]:
    """Yield the durations (s) of a node's next steps, given those at full speed."""
    for work in durations:
        start = node.now
        yield speed.after(start, work) - start


def compute_times(scenario: Scenario, seed: int, nodes: Sequence[Any]) -> list[Iterator[float]]:
    """Return iterators over the workers' step durations (s), by the clocks of `nodes`."""
    worker_speeds = speeds(scenario, seed)
    steady = workers.compute_times(scenario, seed)
    work = workers.compute_times(scenario.nominal, seed)  # speeds do not apply to overheads
    added = workers.overheads(scenario, seed)
    return [
        steady[rank]
        if speed is None
        else map(add, stretched(nodes[rank], work[rank], speed), added[rank])
        for rank, speed in enumerate(worker_speeds)
    ]
