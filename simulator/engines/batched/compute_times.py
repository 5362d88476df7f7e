"""Draw the compute times of all workers and seeds, summed over segments of steps."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

import numpy as np

from ...cluster import workers as cluster
from ...distributions import random_streams
from ...distributions.distribution import Array, Distribution
from ...distributions.parametric import Constant
from ...distributions.random_streams import Purpose
from ...scenario.scenario import Scenario

TILE = 64  # workers whose draws are in memory before they are written: they fit into a cache


class Draws:
    """Draws from a stream per seed and worker, equal to the reference engine's.

    Sums depend neither on how calls divide the segments, nor on the other seeds.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int]) -> None:
        self._streams = [cluster.streams(scenario, seed) for seed in seeds]
        self._shape = len(seeds), scenario.cluster.workers
        self._out = np.empty((0, *self._shape))

    def legs(self, lengths: Sequence[int]) -> Array:
        """Draw the seconds of the next segments; `lengths`: their steps, in order.

        The next call overwrites the array returned, (segments, seeds, workers).
        """
        seeds, workers = self._shape
        if len(self._out) < len(lengths):
            self._out = np.empty((len(lengths), seeds, workers))
        totals = self._out[: len(lengths)]
        groups = [(length, len(list(equal))) for length, equal in groupby(lengths)]
        total, sums = sum(lengths), np.empty((min(TILE, workers), len(lengths)))
        for seed, streams in enumerate(self._streams):
            for first in range(0, workers, TILE):
                tile = streams[first : first + TILE]
                for row, stream in zip(sums, tile, strict=False):
                    if stream.constant is not None:
                        np.multiply(lengths, stream.constant, out=row)
                    else:
                        _add_up(stream.draw(total), groups, row)
                totals[:, seed, first : first + len(tile)] = sums[: len(tile)].T
        return totals


def _add_up(times: Array, groups: Sequence[tuple[int, int]], sums: Array) -> None:
    """Sum segments of `times`, in order; `groups`: pairs (length, number of segments)."""
    first = done = 0
    for length, segments in groups:
        rows = times[done : done + length * segments].reshape(segments, length)
        # einsum adds up each row separately, so that a sum does not depend on its neighbours
        np.einsum("ij->i", rows, out=sums[first : first + segments])
        first, done = first + segments, done + length * segments


class SumDraws:
    """Draws of a segment's sum from the distribution of the sum: far fewer draws.

    Raises ValueError if the law of a sum is unknown.
    """

    def __init__(self, scenario: Scenario, seeds: Sequence[int]) -> None:
        self._shape = len(seeds), scenario.cluster.workers
        self._groups = [list(_by_law(scenario, seed)) for seed in seeds]
        self._out = np.empty((self._shape[0], 0, self._shape[1]))

    def legs(self, lengths: Sequence[int]) -> Array:
        """Draw the seconds of the next segments, as `Draws.legs` does."""
        seeds, workers = self._shape
        if self._out.shape[1] < len(lengths):
            self._out = np.empty((seeds, len(lengths), workers))
        totals = self._out[:, : len(lengths)].swapaxes(0, 1)

        for seed, groups in enumerate(self._groups):
            of_seed = totals[:, seed]
            for group in groups:
                sums = group.draw(lengths)
                if group.extra:
                    sums += of_seed[:, group.ranks]
                of_seed[:, group.ranks] = sums
        return totals


class _LawGroup:
    """The workers of one seed with one law; `extra`: added to earlier groups' times."""

    def __init__(
        self, law: Distribution, rng: np.random.Generator, ranks: Sequence[int], extra: bool
    ) -> None:
        if law.closed_sum(1) is None:
            raise ValueError("the law of a sum of these times has no closed form")
        self._rng, self._size, self.extra = rng, len(ranks), extra
        self._sum = cache(law.closed_sum)
        together = ranks[-1] - ranks[0] == len(ranks) - 1
        self.ranks = slice(ranks[0], ranks[-1] + 1) if together else list(ranks)

    def draw(self, lengths: Sequence[int]) -> Array:
        """Draw the sums of segments, shape (segments, workers), given their `lengths`."""
        parts = [self._of_length(length, len(list(equal))) for length, equal in groupby(lengths)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of_length(self, length: int, segments: int) -> Array:
        fixed, law = self._sum(length) or (0.0, None)
        if law is None:
            return np.full((segments, self._size), fixed)
        sums = law.sample(self._rng, segments * self._size).reshape(segments, self._size)
        sums += fixed
        return sums


def _by_law(scenario: Scenario, seed: int) -> Iterator[_LawGroup]:
    """Yield the workers of each law; extra delays and overheads are separate groups."""
    slow = cluster.stragglers(scenario, seed)
    team = list(enumerate(scenario.team.workers))
    ranks: dict[tuple[Purpose, Distribution], list[int]] = {}
    for rank, worker in team:
        ranks.setdefault((Purpose.COMPUTE, worker.compute), []).append(rank)
    for rank, worker in team:  # after the compute times to which these are added
        if rank in slow and worker.extra is not None:
            ranks.setdefault((Purpose.EXTRA, worker.extra), []).append(rank)
        if scenario.costs.step != cluster.NONE:
            ranks.setdefault((Purpose.OVERHEAD, scenario.costs.step), []).append(rank)
        if worker.inner:
            # a constant draws nothing: the purpose only separates it from the overhead
            inner = Constant.model_construct(value=worker.inner)
            ranks.setdefault((Purpose.MESSAGE, inner), []).append(rank)
    for (purpose, law), members in ranks.items():
        rng = random_streams.quick(seed, Purpose.AGGREGATE, int(purpose), members[0])
        yield _LawGroup(law, rng, members, extra=purpose != Purpose.COMPUTE)
