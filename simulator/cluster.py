"""The workers of a scenario: who computes how long, and where."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from math import floor

import numpy as np

from simulator.delay import Law
from simulator.distribution import Array
from simulator.scenario import Scenario
from simulator.streams import Purpose, blocks, generator


@dataclass(frozen=True)
class Worker:
    """One worker: its compute-time law, the extra delay it may suffer, and its region.

    `shared`: the extra delay befalls a share of the cluster's workers, not of its own group's.
    """

    group: str
    compute: Law
    extra: Law | None
    extra_share: float
    shared: bool
    region: str | None


def workers(scenario: Scenario) -> list[Worker]:
    """Every worker in rank order: the groups as listed, then those that no group claims."""
    cluster = scenario.cluster
    found = []
    for group in cluster.group:
        worker = Worker(
            group.name,
            group.compute or cluster.compute,
            group.extra or cluster.extra,
            cluster.extra_share if group.extra_share is None else group.extra_share,
            group.extra_share is None,
            group.region or cluster.region,
        )
        found += [worker] * group.workers
    rest = Worker("", cluster.compute, cluster.extra, cluster.extra_share, True, cluster.region)
    return found + [rest] * (cluster.workers - len(found))


def _lots(team: list[Worker]) -> list[tuple[list[int], int]]:
    """Per group, the ranks that draw lots for the extra delay, and how many of them suffer it.

    The cluster's share is rounded (half up) over all whom it concerns, not group by group.
    """
    groups: dict[str, list[int]] = {}
    for rank, worker in enumerate(team):
        if worker.extra is not None:
            groups.setdefault(worker.group, []).append(rank)
    lots, before = [], 0
    for ranks in groups.values():
        worker = team[ranks[0]]
        start = before if worker.shared else 0
        end = start + len(ranks)
        lots.append(
            (ranks, _half_up(worker.extra_share * end) - _half_up(worker.extra_share * start))
        )
        before = end if worker.shared else before
    return lots


def _half_up(value: float) -> int:
    return floor(value + 0.5)


def delayed(scenario: Scenario) -> dict[str, int]:
    """How many suffer the extra delay, in each group ("": those in none) that has one."""
    team = workers(scenario)
    return {team[ranks[0]].group: count for ranks, count in _lots(team)}


def stragglers(scenario: Scenario, seed: int) -> set[int]:
    """Ranks that suffer the extra delay: so many of each group, chosen once per seed."""
    chosen: set[int] = set()
    for index, (ranks, count) in enumerate(_lots(workers(scenario))):
        order = generator(seed, Purpose.PLACEMENT, index).permutation(ranks)
        chosen.update(order[:count].tolist())
    return chosen


class Stream:
    """The compute times (seconds) of one worker with one seed, in order.

    Drawing them in blocks of any size gives the same numbers.
    """

    def __init__(self, worker: Worker, seed: int, rank: int, extra: Law | None) -> None:
        law = worker.compute
        self.constant = law.expectation if law.is_constant and extra is None else None
        self._laws = []
        if self.constant is None:
            self._laws.append((law, generator(seed, Purpose.COMPUTE, rank)))
        if extra is not None:
            self._laws.append((extra, generator(seed, Purpose.EXTRA, rank)))

    def draw(self, n: int) -> Array:
        """The next `n`, shape (n,)."""
        if self.constant is not None:
            return np.full(n, self.constant)
        law, own = self._laws[0]
        times = law.sample(own, n)
        for law, own in self._laws[1:]:
            times = times + law.sample(own, n)
        return times


def streams(scenario: Scenario, seed: int) -> list[Stream]:
    """Per worker, the durations of its steps 1, 2, ...: the same for every program."""
    slow = stragglers(scenario, seed)
    return [
        Stream(worker, seed, rank, worker.extra if rank in slow else None)
        for rank, worker in enumerate(workers(scenario))
    ]


def compute_times(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """`streams`, number by number."""
    return [
        blocks(stream.draw) if stream.constant is None else repeat(stream.constant)
        for stream in streams(scenario, seed)
    ]


def expected_laws(scenario: Scenario) -> list[list[Law]]:
    """Per worker, the laws whose sum is its compute time.

    A seed chooses which of a group suffer the extra delay, not how many: here the first ones do.
    """
    team = workers(scenario)
    laws: list[list[Law]] = [[worker.compute] for worker in team]
    for ranks, count in _lots(team):
        for rank in ranks[:count]:
            extra = team[rank].extra
            assert extra is not None
            laws[rank].append(extra)
    return laws


def mean_compute(scenario: Scenario) -> list[float]:
    """Per worker, the expected seconds of one step."""
    return [sum(law.expectation for law in laws) for laws in expected_laws(scenario)]


def ideal_rate(scenario: Scenario) -> float:
    """Gradients per second of all workers computing alone (infinite if computing takes no time)."""
    times = mean_compute(scenario)
    return sum(1 / time for time in times) if all(times) else float("inf")
