"""Draw the workers' compute times, and choose the workers with the extra delay."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat

import numpy as np

from ..distributions.distribution import Array, Distribution
from ..distributions.empirical import ReplayedTimes
from ..distributions.random_streams import Purpose, blocks, generator
from ..scenario.overhead import Overhead
from ..scenario.scenario import Scenario
from ..scenario.team import Worker

NONE = Overhead().step


def stragglers(scenario: Scenario, seed: int) -> set[int]:
    """Choose the ranks with the extra delay: a fixed number per group, once per seed."""
    chosen: set[int] = set()
    for index, (ranks, count) in enumerate(scenario.team.delayed):
        order = generator(seed, Purpose.PLACEMENT, index).permutation(ranks)
        chosen.update(order[:count].tolist())
    return chosen


class Stream:
    """The compute times (s) of one worker with one seed, in order, at full speed.

    Drawing them in blocks of any size gives the same numbers.
    """

    def __init__(
        self,
        worker: Worker,
        seed: int,
        rank: int,
        extra: Distribution | None,
        overhead: Distribution,
    ) -> None:
        law = worker.compute
        fixed = law.is_constant and extra is None and overhead.is_constant
        self._inner = worker.inner
        self.constant = law.expectation + overhead.expectation + self._inner if fixed else None
        self._draws: list[Callable[[int], Array]] = []
        if isinstance(law, ReplayedTimes):
            self._draws.append(law.replay(generator(seed, Purpose.TRACE, rank)))
        elif self.constant is None:
            self._draws.append(partial(law.sample, generator(seed, Purpose.COMPUTE, rank)))
        if extra is not None:
            self._draws.append(partial(extra.sample, generator(seed, Purpose.EXTRA, rank)))
        if overhead != NONE:
            self._draws.append(partial(overhead.sample, generator(seed, Purpose.OVERHEAD, rank)))

    def draw(self, n: int) -> Array:
        """Return the next `n` times (seconds), shape (n,)."""
        if self.constant is not None:
            return np.full(n, self.constant)
        times = self._draws[0](n)
        for draw in self._draws[1:]:
            times = times + draw(n)
        return times + self._inner if self._inner else times


def streams(scenario: Scenario, seed: int) -> list[Stream]:
    """Return each worker's stream of step durations (s), the same for every program."""
    slow, overhead = stragglers(scenario, seed), scenario.costs.step
    return [
        Stream(worker, seed, rank, worker.extra if rank in slow else None, overhead)
        for rank, worker in enumerate(scenario.team.workers)
    ]


def compute_times(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """Return an iterator over each worker's step durations (s), drawn from `streams`."""
    return [
        blocks(stream.draw) if stream.constant is None else repeat(stream.constant)
        for stream in streams(scenario, seed)
    ]


def overheads(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """Return iterators over the workers' overheads per step (s), as in `streams`."""
    law = scenario.costs.step
    return [
        blocks(partial(law.sample, generator(seed, Purpose.OVERHEAD, rank)))
        for rank in range(scenario.cluster.workers)
    ]
