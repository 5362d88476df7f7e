"""Compute times of all workers and seeds at once, summed over segments of steps."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

import numpy as np

from simulator import cluster, streams
from simulator.delay import Law
from simulator.distribution import Array
from simulator.scenario import Scenario
from simulator.streams import Purpose

T = TypeVar("T")
TILE = 64  # streams that a thread draws before it writes them: they stay in its cache


class Draws:
    """The keyed draws: the same numbers as the reference engine's, for every (seed, worker).

    Sums do not depend on how segments are asked for, nor on which seeds are drawn together.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int], threads: int) -> None:
        self._streams = [cluster.streams(scenario, seed) for seed in seeds]
        self._shape = len(seeds), scenario.cluster.workers
        self._threads = threads

    def sums(self, lengths: Sequence[int]) -> Array:
        """Seconds that the next segments take, of so many steps each: (segments, seeds, workers).

        The segments follow each other in time.
        """
        out = np.empty((len(lengths), *self._shape))
        counts = np.asarray(lengths)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        total, single = int(counts.sum()), bool((counts == 1).all())

        def fill(tile: tuple[int, int]) -> None:
            seed, first = tile
            found = self._streams[seed][first : first + TILE]
            sums = np.empty((len(found), len(counts)))
            for row, stream in zip(sums, found, strict=True):
                if stream.constant is not None:
                    np.multiply(counts, stream.constant, out=row)
                elif single:
                    row[:] = stream.draw(total)
                else:
                    np.add.reduceat(stream.draw(total), starts, out=row)
            out[:, seed, first : first + TILE] = sums.T

        tiles = [(s, w) for s in range(self._shape[0]) for w in range(0, self._shape[1], TILE)]
        share(fill, tiles, self._threads)
        return out


class SumDraws:
    """Sums over a segment drawn from their own law: the same distribution, far fewer draws.

    Raises ValueError where the law of a sum is not known.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int], threads: int) -> None:
        self._shape = len(seeds), scenario.cluster.workers
        self._threads = threads
        self._teams = [list(_teams(scenario, seed)) for seed in seeds]

    def sums(self, lengths: Sequence[int]) -> Array:
        """As `Draws.sums`."""
        out = np.zeros((len(lengths), *self._shape))

        def fill(seed: int) -> None:
            for team in self._teams[seed]:
                out[:, seed, team.ranks] += team.draw(lengths)

        share(fill, range(self._shape[0]), self._threads)
        return out


class _Team:
    """Those workers of one seed that have one law."""

    def __init__(self, law: Law, own: np.random.Generator, ranks: Sequence[int]) -> None:
        if law.closed_sum(1) is None:
            raise ValueError("unknown")
        self._law, self._own, self.ranks = law, own, ranks

    def draw(self, lengths: Sequence[int]) -> Array:
        """Sums of so many times, shape (segments, ranks)."""
        parts = []
        for length, equal in groupby(lengths):
            fixed, law = self._law.closed_sum(length) or (0.0, None)
            shape = len(list(equal)), len(self.ranks)
            random = 0.0 if law is None else law.sample(self._own, shape[0] * shape[1])
            parts.append(np.full(shape, fixed) + np.reshape(random, shape if law else ()))
        return np.concatenate(parts)


def _teams(scenario: Scenario, seed: int) -> Iterator[_Team]:
    """For each law those that have it; the extra delays are laws of their own."""
    slow = cluster.stragglers(scenario, seed)
    ranks: dict[tuple[Purpose, Law], list[int]] = {}
    for rank, worker in enumerate(cluster.workers(scenario)):
        ranks.setdefault((Purpose.COMPUTE, worker.compute), []).append(rank)
        if rank in slow and worker.extra is not None:
            ranks.setdefault((Purpose.EXTRA, worker.extra), []).append(rank)
    for (purpose, law), team in ranks.items():
        yield _Team(law, streams.generator(seed, Purpose.AGGREGATE, int(purpose), team[0]), team)


def share(work: Callable[[T], None], items: Sequence[T], threads: int) -> None:
    """Do the work on every item, neighbours in one thread."""
    if threads == 1 or len(items) == 1:
        for item in items:
            work(item)
        return

    def several(part: Sequence[T]) -> None:
        for item in part:
            work(item)

    size = -(-len(items) // threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(several, [items[i : i + size] for i in range(0, len(items), size)]))
