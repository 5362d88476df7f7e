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
        self._out = self._spare = np.empty((0, *self._shape))

    def sums(self, lengths: Sequence[int]) -> Array:
        """Seconds that the next segments take, of so many steps each: (segments, seeds, workers).

        The segments follow each other in time. The call after the next overwrites what is returned.
        """
        out = self._spare
        if len(out) < len(lengths):
            out = np.empty((len(lengths), *self._shape))
        self._spare, self._out = self._out, out
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
            out[: len(counts), seed, first : first + TILE] = sums.T

        tiles = [(s, w) for s in range(self._shape[0]) for w in range(0, self._shape[1], TILE)]
        share(fill, tiles, self._threads)
        return out[: len(counts)]


class SumDraws:
    """Sums over a segment drawn from their own law: the same distribution, far fewer draws.

    Raises ValueError where the law of a sum is not known.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int], threads: int) -> None:
        self._shape = len(seeds), scenario.cluster.workers
        self._threads = threads
        self._teams = [list(_teams(scenario, seed)) for seed in seeds]
        # of one seed, which one thread draws, together
        self._out = self._spare = np.empty((self._shape[0], 0, self._shape[1]))

    def sums(self, lengths: Sequence[int]) -> Array:
        """As `Draws.sums`."""
        seeds, workers = self._shape
        out = self._spare
        if out.shape[1] < len(lengths):
            out = np.empty((seeds, len(lengths), workers))
        self._spare, self._out = self._out, out
        out = out[:, : len(lengths)]

        def fill(seed: int) -> None:
            for team in self._teams[seed]:
                sums = team.draw(lengths)
                if team.extra:
                    sums += out[seed][:, team.ranks]
                out[seed][:, team.ranks] = sums

        share(fill, range(seeds), self._threads)
        return out.swapaxes(0, 1)


class _Team:
    """Those workers of one seed that have one law; `ranks` says which, as an index.

    `extra`: their times are added to those that other teams have drawn.
    """

    def __init__(
        self, law: Law, own: np.random.Generator, ranks: Sequence[int], extra: bool
    ) -> None:
        if law.closed_sum(1) is None:
            raise ValueError("the law of a sum of these times is not known")
        self._law, self._own, self._size, self.extra = law, own, len(ranks), extra
        together = ranks[-1] - ranks[0] == len(ranks) - 1
        self.ranks = slice(ranks[0], ranks[-1] + 1) if together else list(ranks)

    def draw(self, lengths: Sequence[int]) -> Array:
        """Sums of so many times, shape (segments, workers)."""
        parts = [self._equal(length, len(list(equal))) for length, equal in groupby(lengths)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _equal(self, length: int, segments: int) -> Array:
        fixed, law = self._law.closed_sum(length) or (0.0, None)
        if law is None:
            return np.full((segments, self._size), fixed)
        sums = law.sample(self._own, segments * self._size).reshape(segments, self._size)
        sums += fixed
        return sums


def _teams(scenario: Scenario, seed: int) -> Iterator[_Team]:
    """For each law those that have it; the extra delays are laws of their own."""
    slow = cluster.stragglers(scenario, seed)
    team = list(enumerate(cluster.workers(scenario)))
    ranks: dict[tuple[Purpose, Law], list[int]] = {}
    for rank, worker in team:
        ranks.setdefault((Purpose.COMPUTE, worker.compute), []).append(rank)
    for rank, worker in team:  # after all to whose times theirs are added
        if rank in slow and worker.extra is not None:
            ranks.setdefault((Purpose.EXTRA, worker.extra), []).append(rank)
    for (purpose, law), members in ranks.items():
        own = streams.quick(seed, Purpose.AGGREGATE, int(purpose), members[0])
        yield _Team(law, own, members, extra=purpose == Purpose.EXTRA)


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
