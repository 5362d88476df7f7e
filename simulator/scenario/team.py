"""Resolve a scenario's workers: laws, groups, devices, regions and mean speeds."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, inf

from ..distributions.distribution import Distribution
from ..distributions.empirical import ReplayedTimes
from ..distributions.parametric import Constant
from ..distributions.time_profile import TimeProfile
from .cluster import Bursts, Cluster, Group
from .tables import BUCKET


@dataclass(frozen=True)
class Worker:
    """One worker: its compute-time law, its possible extra delay, its region.

    `shared`: whether the extra delay hits a share of the cluster, not of the group. `profile` and
    `bursts` change the speed over time. `inner`: seconds per step in which its devices
    communicate.
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

    @property
    def varies(self) -> bool:
        """Whether the speed changes over time."""
        return self.profile is not None or self.bursts is not None

    @property
    def mean_speed(self) -> float:
        """Long-run speed, as a share of full speed."""
        speed = 1.0 if self.profile is None else self.profile.mean
        if (bursts := self.bursts) is not None:
            speed *= (bursts.off + bursts.on / bursts.factor) / (bursts.off + bursts.on)
        return speed


class Team:
    """The workers of a cluster, and values that follow from their laws; computed once."""

    def __init__(self, cluster: Cluster, model_bytes: float, boxes_apart: bool = True) -> None:
        self._cluster = cluster
        self._inner_bytes = model_bytes if boxes_apart else 0.0

    @cached_property
    def workers(self) -> list[Worker]:
        """The workers in rank order: the groups in order, then workers outside groups."""
        cluster, ranks = self._cluster, list[Worker]()
        for group in (*cluster.group, None):
            size = cluster.workers - len(ranks) if group is None else group.workers
            ranks += _repeated(_worker(cluster, group, self._inner_bytes), len(ranks), size)
        return ranks

    @cached_property
    def varies(self) -> bool:
        """Whether any worker's speed changes over time."""
        return any(worker.varies for worker in self.workers)

    @cached_property
    def delayed(self) -> list[tuple[list[int], int]]:
        """By group, the ranks that may get the extra delay, and the number that gets it.

        The cluster's share is rounded (half up) once for all groups.
        """
        groups: dict[str, list[int]] = {}
        for rank, worker in enumerate(self.workers):
            if worker.extra is not None:
                groups.setdefault(worker.group, []).append(rank)
        lots, before = [], 0
        for ranks in groups.values():
            worker = self.workers[ranks[0]]
            start = before if worker.shared else 0
            end = start + len(ranks)
            count = floor(worker.extra_share * end + 0.5) - floor(worker.extra_share * start + 0.5)
            lots.append((ranks, count))
            before = end if worker.shared else before
        return lots

    @cached_property
    def expected_laws(self) -> list[list[Distribution]]:
        """The laws of each worker, whose sum is its compute time at its mean speed.

        The first workers of a group have the extra delay here; in a run the seed chooses them.
        """
        laws: list[list[Distribution]] = []
        for worker in self.workers:
            inner = [Constant.model_construct(value=worker.inner)] if worker.inner else []
            laws.append([worker.compute, *inner])
        for ranks, count in self.delayed:
            for rank in ranks[:count]:
                if (extra := self.workers[rank].extra) is not None:
                    laws[rank].append(extra)
        # A step is an amount of work: its mean duration is the mean work over the mean speed.
        return [
            sums if worker.mean_speed == 1 else [law.scaled(1 / worker.mean_speed) for law in sums]
            for sums, worker in zip(laws, self.workers, strict=True)
        ]

    @cached_property
    def mean_compute(self) -> list[float]:
        """Expected seconds per step of each worker, at its mean speed."""
        return [sum(law.expectation for law in laws) for laws in self.expected_laws]

    @cached_property
    def relative_speeds(self) -> list[float]:
        """Expected number of steps of each worker during a step of the slowest.

        All are one if a time is zero or has no mean.
        """
        slowest = max(self.mean_compute)
        return [slowest / time if 0 < time <= slowest < inf else 1.0 for time in self.mean_compute]

    @cached_property
    def ideal_rate(self) -> float:
        """Gradients per second of all workers without communication (inf: no time)."""
        times = self.mean_compute
        return sum(1 / time for time in times) if all(times) else inf


UNITS = 32  # a transformer's blocks: FSDP gathers each while the previous one computes


def _inner_seconds(group: Group, cluster: Cluster, compute: float, model_bytes: float) -> float:
    """Return the seconds per step that a ring among a worker's devices adds to `compute`.

    Without sharding, an all-reduce (2(n - 1) steps of 1/n of the model) hides behind the backward
    pass, except its last bucket. With FSDP, an all-gather before each pass and a reduce-scatter
    (Zhao et al., arXiv 2304.11277) hide behind the passes, except the ends: a gather, a scatter.
    """
    if group.inner is None or not model_bytes:
        return 0.0
    step = group.inner.latency + model_bytes / group.devices / group.inner.bandwidth
    once = (group.devices - 1) * step
    if group.inner.sharding == "fsdp":
        forward = compute * cluster.forward_share
        return _visible(once, UNITS, forward) + _visible(2 * once, UNITS, compute - forward)
    backward = compute * (1 - cluster.unfreed_share)
    return _visible(2 * once, max(1.0, model_bytes / BUCKET), backward)


def _visible(spent: float, pieces: float, window: float) -> float:
    """Return the seconds `spent` beyond the window: at least one of equal pieces."""
    return max(spent / pieces, spent - window) if window < inf else spent / pieces


def _worker(cluster: Cluster, group: Group | None, model_bytes: float) -> Worker:
    """Resolve a worker of a group, or outside groups."""
    if group is None:
        return Worker(
            "", cluster.compute, cluster.extra, cluster.extra_share, True, cluster.region,
            cluster.profile, cluster.bursts,
        )  # fmt: skip
    compute = group.compute or cluster.compute
    return Worker(
        group.name,
        compute,
        group.extra or cluster.extra,
        cluster.extra_share if group.extra_share is None else group.extra_share,
        group.extra_share is None,
        group.region or cluster.region,
        group.profile or cluster.profile,
        group.bursts or cluster.bursts,
        _inner_seconds(group, cluster, compute.expectation, model_bytes),
    )


def _repeated(worker: Worker, first: int, size: int) -> list[Worker]:
    """Repeat a worker from rank `first` on; each replays another column of a trace."""
    if not isinstance(worker.compute, ReplayedTimes):
        return [worker] * size
    columns = [replace(worker, compute=column) for column in worker.compute.by_column]
    return [columns[rank % len(columns)] for rank in range(first, first + size)]
