"""Compute times of a scenario's workers, and the workers' groups, devices and regions."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from math import floor, inf

import numpy as np

from ..distributions.distribution import Array, Distribution
from ..distributions.empirical import ReplayedTimes
from ..distributions.parametric import Constant
from ..distributions.random_streams import Purpose, blocks, generator
from ..distributions.time_profile import TimeProfile
from ..scenario.cluster import Bursts, Cluster, Group
from ..scenario.overhead import Overhead
from ..scenario.scenario import Scenario

NONE = Overhead().step


@dataclass(frozen=True)
class Worker:
    """One worker: its compute-time law (on its device), its possible extra delay, its region.

    `shared`: the extra delay hits a share of the cluster's workers, not of the group's. `profile`
    and `bursts`: how the speed changes over time. `inner`: seconds of each step in which its own
    devices communicate.
    """

    group: str
    compute: Distribution
    extra: Distribution | None
    extra_share: float
    shared: bool
    region: str | None
    profile: TimeProfile | None = None
    bursts: Bursts | None = None
    inner: float = 0.0


def workers(scenario: Scenario) -> list[Worker]:
    """List the workers in rank order: the groups as listed, then workers outside groups."""
    cluster = scenario.cluster
    found: list[Worker] = []
    for group in cluster.group:
        member = _member(cluster, group, scenario.model.bytes)
        found += _alike(member, len(found), group.workers)
    rest = Worker(
        "", cluster.compute, cluster.extra, cluster.extra_share, True, cluster.region,
        cluster.profile, cluster.bursts,
    )  # fmt: skip
    return found + _alike(rest, len(found), cluster.workers - len(found))


def _inner(group: Group, model_bytes: float) -> float:
    """Return the seconds of a step in which the devices of a worker communicate, around a ring.

    Without sharding an all-reduce, 2(n - 1) steps of 1/n of the model each; with FSDP an all-gather
    before either pass and a reduce-scatter, 3(n - 1) steps (Zhao et al., arXiv 2304.11277).
    """
    if group.inner is None:
        return 0.0
    passes = 3 if group.inner.sharding == "fsdp" else 2
    step = group.inner.latency + model_bytes / group.devices / group.inner.bandwidth
    return passes * (group.devices - 1) * step


def _member(cluster: Cluster, group: Group, model_bytes: float) -> Worker:
    compute = group.compute or cluster.compute
    if group.device in cluster.devices:
        compute = compute.scaled(1 / cluster.devices[group.device].speed)
    return Worker(
        group.name,
        compute,
        group.extra or cluster.extra,
        cluster.extra_share if group.extra_share is None else group.extra_share,
        group.extra_share is None,
        group.region or cluster.region,
        group.profile or cluster.profile,
        group.bursts or cluster.bursts,
        _inner(group, model_bytes),
    )


def _alike(worker: Worker, first: int, size: int) -> list[Worker]:
    """Repeat a worker for `size` ranks from `first` on; each replays its own column of a trace."""
    if not isinstance(worker.compute, ReplayedTimes):
        return [worker] * size
    each = [replace(worker, compute=column) for column in worker.compute.by_column]
    return [each[rank % len(each)] for rank in range(first, first + size)]


def shares_devices(scenario: Scenario) -> bool:
    """Tell whether any worker computes on a device that others share."""
    return any(device is not None for device in devices(scenario))


def devices(scenario: Scenario) -> list[int | None]:
    """Return the number of the device that each worker shares; None for a device of its own.

    The workers of a group fill its devices in order of rank; the last one may have fewer. Laws of
    workers that share a device hold for one that computes alone.
    """
    described = scenario.cluster.devices
    found: list[int | None] = []
    number = 0
    for group in scenario.cluster.group:
        size = described[group.device].shared_by if group.device in described else 1
        for start in range(0, group.workers, size):
            found += [number if size > 1 else None] * min(size, group.workers - start)
            number += size > 1
    return found + [None] * (scenario.cluster.workers - len(found))


def _lots(team: list[Worker]) -> list[tuple[list[int], int]]:
    """Return per group the ranks that may get the extra delay, and how many of them get it.

    The cluster's share is rounded (half up) over all its groups, not group by group.
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
    """Return how many workers get the extra delay, by group ("": outside groups)."""
    team = workers(scenario)
    return {team[ranks[0]].group: count for ranks, count in _lots(team)}


def stragglers(scenario: Scenario, seed: int) -> set[int]:
    """Choose the ranks that get the extra delay: a fixed number per group, once per seed."""
    chosen: set[int] = set()
    for index, (ranks, count) in enumerate(_lots(workers(scenario))):
        order = generator(seed, Purpose.PLACEMENT, index).permutation(ranks)
        chosen.update(order[:count].tolist())
    return chosen


class Stream:
    """The compute times (seconds) of one worker with one seed, in order, at its full speed.

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
        for rank, worker in enumerate(workers(scenario))
    ]


def compute_times(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """Return iterators over the numbers of `streams`."""
    return [
        blocks(stream.draw) if stream.constant is None else repeat(stream.constant)
        for stream in streams(scenario, seed)
    ]


def overheads(scenario: Scenario, seed: int) -> list[Iterator[float]]:
    """Return iterators over what a real system adds to each step (s), as in `streams`."""
    law = scenario.costs.step
    return [
        blocks(partial(law.sample, generator(seed, Purpose.OVERHEAD, rank)))
        for rank in range(scenario.cluster.workers)
    ]


def expected_laws(scenario: Scenario) -> list[list[Distribution]]:
    """Return for each worker the laws whose sum is its compute time at its mean speed.

    A seed chooses which workers of a group get the extra delay, not how many: here the first do.
    """
    team, speeds = workers(scenario), mean_speeds(scenario)
    laws: list[list[Distribution]] = [
        [worker.compute, *([Constant.model_construct(value=worker.inner)] if worker.inner else [])]
        for worker in team
    ]
    for ranks, count in _lots(team):
        for rank in ranks[:count]:
            extra = team[rank].extra
            assert extra is not None
            laws[rank].append(extra)
    return [
        own if speed == 1 else [law.scaled(1 / speed) for law in own]
        for own, speed in zip(laws, speeds, strict=True)
    ]


def mean_speeds(scenario: Scenario) -> list[float]:
    """Return each worker's long-run speed, as a share of full speed, if it always computes.

    It is the mean of the profile times the mean over bursts (1 outside, 1/factor inside), divided
    by the number of workers on the device. As steps are work, not time, their mean
    duration is the mean work divided by this mean speed.
    """
    shared = devices(scenario)
    filled = Counter(shared)
    return [
        _mean_speed(worker) / (1 if device is None else filled[device])
        for worker, device in zip(workers(scenario), shared, strict=True)
    ]


def _mean_speed(worker: Worker) -> float:
    speed = 1.0 if worker.profile is None else worker.profile.mean
    if (bursts := worker.bursts) is not None:
        speed *= (bursts.off + bursts.on / bursts.factor) / (bursts.off + bursts.on)
    return speed


def mean_compute(scenario: Scenario) -> list[float]:
    """Return the expected seconds of one step of each worker, at its mean speed."""
    return [sum(law.expectation for law in laws) for laws in expected_laws(scenario)]


def paces(scenario: Scenario) -> list[float]:
    """Return the steps that each worker takes, as expected, while the slowest takes one.

    One for all where a time is zero or has no mean.
    """
    times = mean_compute(scenario)
    slowest = max(times)
    return [slowest / time if 0 < time <= slowest < inf else 1.0 for time in times]


def ideal_rate(scenario: Scenario) -> float:
    """Return gradients per second of all workers computing alone (inf if they take no time)."""
    times = mean_compute(scenario)
    return sum(1 / time for time in times) if all(times) else inf
