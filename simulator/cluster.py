"""The workers of a scenario: who computes how long, and where."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from simulator.delay import Law
from simulator.scenario import Scenario
from simulator.streams import Purpose, blocks, generator


@dataclass(frozen=True)
class Worker:
    """One worker: its compute-time law, the extra delay it may suffer, and its region."""

    group: str
    compute: Law
    extra: Law | None
    extra_share: float
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
            group.region or cluster.region,
        )
        found += [worker] * group.workers
    rest = Worker("", cluster.compute, cluster.extra, cluster.extra_share, cluster.region)
    return found + [rest] * (cluster.workers - len(found))


def _members(team: list[Worker]) -> dict[str, list[int]]:
    """Ranks by group."""
    groups: dict[str, list[int]] = {}
    for rank, worker in enumerate(team):
        groups.setdefault(worker.group, []).append(rank)
    return groups


def _delayed(team: list[Worker], ranks: list[int]) -> int:
    """How many of one group's workers suffer the extra delay."""
    worker = team[ranks[0]]
    return round(worker.extra_share * len(ranks)) if worker.extra else 0


def stragglers(scenario: Scenario, seed: int) -> set[int]:
    """Ranks that suffer the extra delay: a share of each group, chosen once per seed."""
    team = workers(scenario)
    chosen: set[int] = set()
    for index, ranks in enumerate(_members(team).values()):
        order = generator(seed, Purpose.PLACEMENT, index).permutation(ranks)
        chosen.update(order[: _delayed(team, ranks)].tolist())
    return chosen


def compute_times(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """Per worker, the durations in seconds of its steps 1, 2, ...: the same for every program."""
    slow = stragglers(scenario, seed)
    return [
        _durations(worker, seed, rank, worker.extra if rank in slow else None)
        for rank, worker in enumerate(workers(scenario))
    ]


def _durations(worker: Worker, seed: int, rank: int, extra: Law | None) -> Iterator[float]:
    law = worker.compute
    if law.is_constant and extra is None:
        return repeat(law.expectation)
    own = generator(seed, Purpose.COMPUTE, rank)
    if extra is None:
        return blocks(lambda n: law.sample(own, n))
    more = generator(seed, Purpose.EXTRA, rank)
    return blocks(lambda n: law.sample(own, n) + extra.sample(more, n))


def expected_laws(scenario: Scenario) -> list[list[Law]]:
    """Per worker, the laws whose sum is its compute time.

    A seed chooses which of a group suffer the extra delay, not how many: here the first ones do.
    """
    team = workers(scenario)
    laws: list[list[Law]] = [[worker.compute] for worker in team]
    for ranks in _members(team).values():
        for rank in ranks[: _delayed(team, ranks)]:
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
