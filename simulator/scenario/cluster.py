"""The tables of a scenario about its workers: speed, place, and crashes."""

import re
from functools import cached_property
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    model_validator,
)

from ..distributions.law import ComputeLaw, Law
from ..distributions.time_profile import ProfileOf
from ..inputs import csv_files
from ..inputs.units import Seconds
from .fields import (
    Bandwidth,
    Count,
    Delay,
    Duration,
    Many,
    Name,
    NonNegative,
    Positive,
    Section,
    Share,
    located,
    optional,
)
from .hardware import Card, of_inner

MOST_WORKERS = 65_535
DAY = 86_400.0  # seconds


class Bursts(Section):
    """Slow periods of each worker: a two-state Markov chain in time."""

    factor: Positive = Field(description="factor by which computing takes longer during a burst")
    on: Duration = Field(description="mean duration of a burst")
    off: Duration = Field(description="mean time between bursts")


class Device(Section):
    """A device that workers of a group compute on."""

    name: Name = Field(description="name of the device, unique")
    speed: Positive = optional("2 computes in half the time that `compute` says", 1.0)
    shared_by: Count = optional("workers on one device; n at once get 1/n of it each", 1)


DeviceOrLabel = Annotated[
    Annotated[Many[Device], Tag("devices")] | Annotated[Name, Tag("a label")],
    Discriminator(lambda value: "devices" if isinstance(value, list | tuple | dict) else "a label"),
]


class Failures(Section):
    """Random crashes, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next crash of one node")
    repair: Duration = Field(description="mean time to repair")


Rank = Annotated[int, Field(ge=0)]


class Crash(Section):
    """One crash, at a given time."""

    worker: Rank | Literal["server"] = Field(description='rank of the worker, or "server"')
    at: Annotated[Seconds, Field(ge=0)] = Field(description="time of the crash")
    lasts: Duration | None = optional("time until it is repaired; left out: for good")


class Checkpoint(Section):
    """The whole cluster's state, saved."""

    every: Count = Field(description="steps between two checkpoints")
    cost: Delay = optional("time for which all workers pause for one", 0.0)


def _quorum(value: Any) -> Any:
    if (type(value) is int and value >= 1) or (type(value) is float and 0 < value <= 1):
        return value
    either = "a number of workers, such as 3, or a share of all, such as 0.75 (1.0 at most)"
    raise ValueError(f"not a quorum; write {either}")


Quorum = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)], BeforeValidator(_quorum)
]


class Recovery(Section):
    """Handling of crashed and slow workers."""

    policy: Literal["wait", "shrink", "restart", "backup", "quorum"] = optional(
        "workers that need a crashed one wait for it; go on without it; all go back to "
        "the last checkpoint; or means leave out the slowest, or those that are late for a quorum",
        "wait",
    )
    timeout: Delay = optional("time until the others notice a crash", 0.0)
    reload: Delay = optional("time to load the state after a repair, or a restart", 0.0)
    warmup: Delay = optional("time that a node takes to warm up after that", 0.0)
    checkpoint: Checkpoint | None = optional('for policy = "restart"')
    backup: int = optional(
        'slowest workers that each mean leaves out; 1 with policy = "backup"', 0, ge=0
    )
    quorum: Quorum = optional(
        'for policy = "quorum": workers that a mean waits for, a number or a share', 0.5
    )
    grace: Delay = optional('for policy = "quorum": time that a mean then waits for more', 0.0)

    @property
    def backups(self) -> int:
        """The workers that each mean leaves out."""
        return self.backup or int(self.policy == "backup")

    def awaited(self, workers: int) -> int:
        """Return the number of workers that a mean waits for; others may be left out."""
        if self.policy == "quorum":
            share = self.quorum
            return share if isinstance(share, int) else max(1, ceil(share * workers - 1e-9))
        return max(1, workers - self.backups)

    @property
    def restarting(self) -> float:
        """Seconds that a repaired node takes to take part again."""
        return self.reload + self.warmup


def _rank(text: str) -> float:
    if not text.isdecimal() or len(text) > len(str(MOST_WORKERS)):
        raise ValueError("not a worker; write its rank, from 0")
    return float(text)


def _end(text: str) -> float:
    return csv_files.seconds(text) if text else inf


def _in_order(row: list[float], line: int) -> None:
    if row[1] >= row[2]:
        raise ValueError("the end is not after the start; write a later one, or leave it out")
    row.append(line)


Spans = Annotated[
    Many[str],
    BeforeValidator(
        lambda spans: [spans] if isinstance(spans, str) else spans,
        json_schema_input_type=str | list[str],
    ),
]


class Membership(Section):
    """When workers are members: a law (`present` and `absent`), a calendar, both at once (then who
    is there by the law is away at other times of day), or a trace.
    """

    present: Law | None = optional("time from joining to leaving")
    absent: Law | None = optional("time from leaving to coming back")
    start: Literal["present", "stationary"] = optional(
        "under a law, at the start: all, or as at any moment of a long process", "present"
    )
    daily: Spans = optional('times of day when they are there, such as "22:00-06:00"', ())
    file: Name | None = optional(
        "CSV file of three columns: worker, start and end of each time that it is "
        "there; an end left out: for good; a worker left out: always"
    )
    notice: Delay = optional("time that a worker is told before it has to leave", 0.0)
    _trace: dict[int, list[tuple[float, float]]] = PrivateAttr(default_factory=dict)

    @cached_property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Start and end of each time of day when workers are there (seconds), in order."""
        return tuple(sorted(map(_window, self.daily)))

    @property
    def trace(self) -> dict[int, list[tuple[float, float]]]:
        """Start and end of each time when a worker is there (seconds), in order, by rank."""
        return self._trace

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        laws = [law.expectation for law in (self.present, self.absent) if law is not None]
        if len(laws) == 1 or bool(laws or self.daily) + bool(self.file) != 1:
            raise ValueError(
                "neither one law, nor one calendar, nor both, nor one trace; write { present = "
                '"6 h", absent = "2 h" }, { daily = "22:00-06:00" }, both in one, or "trace.csv"'
            )
        if not all(laws):
            raise ValueError("takes no time; write times above 0 to be present and absent")
        if self.start == "stationary" and not laws:
            raise ValueError('start = "stationary" is for a law; remove it, the times say it all')
        if self.start == "stationary" and inf in laws:
            raise ValueError('infinite on average; remove start = "stationary", or change the law')
        if self.windows == () and self.file is not None:
            self._trace = _read_trace(located(self.file, info))
        return self


def _window(text: str) -> tuple[float, float]:
    """Read "22:00-06:00" as seconds since midnight, the end after the start."""
    match = re.fullmatch(r"\s*(\d\d?):([0-5]\d)\s*-\s*(\d\d?):([0-5]\d)\s*", text)
    hours = [int(number) for number in match.groups()] if match else [25] * 4
    since, until = 3600.0 * hours[0] + 60.0 * hours[1], 3600.0 * hours[2] + 60.0 * hours[3]
    if max(since, until) > DAY:
        raise ValueError(f'{text!r} is not a time of day; write one such as "22:00-06:00"')
    return since, until if until > since else until + DAY


def _read_trace(path: Path) -> dict[int, list[tuple[float, float]]]:
    """Read the times when workers are present, by rank, in order."""
    columns = {"worker": _rank, "start": csv_files.seconds, "end": _end}
    what, readers = "worker, start and end of a time that it is there", [*columns.values()]
    rows = csv_files.rows(path, readers, what, names=[*columns], check=_in_order)
    trace: dict[int, list[tuple[float, float]]] = {}
    for (rank, since, until, line), after in pairwise([*sorted(rows), (-1.0,) * 4]):
        trace.setdefault(int(rank), []).append((since, until))
        if rank == after[0] and after[1] < until:
            lines = " and ".join(f"{number:.0f}" for number in sorted((line, after[3])))
            remedy = "merge the two, or let one end before the other starts"
            raise ValueError(
                f"{path}, lines {lines}: worker {rank:.0f} is there twice at once; {remedy}"
            )
    return trace


MembershipOf = Annotated[
    Membership, BeforeValidator(lambda value: {"file": value} if isinstance(value, str) else value)
]


class _Nodes(Section):
    """Keys that the cluster and each of its groups may set."""

    extra: Law | None = optional("delay added to compute, for a fixed share")
    profile: ProfileOf | None = optional("speed over time: at 0.5 computing takes twice as long")
    bursts: Bursts | None = optional("slow periods, correlated in time")
    failures: Failures | None = optional("crashes and repairs")
    membership: MembershipOf | None = optional("when workers are there; left out: always")
    drop: float | None = optional("probability that a selected client never reports", ge=0, lt=1)
    region: Name | None = optional("where the workers are")
    nic: Bandwidth | None = optional("of a network card, each way; left out: that of its place")


_COMPUTE = "time to compute a step's gradient, of all its micro-batches"
_EXTRA_SHARE = "share of the workers that `extra` applies to, in (0, 1]"


class Inner(Section):
    """The links between the devices of a worker that is itself a node of several."""

    bandwidth: Bandwidth = Field(description="of each device, each way")
    card: Card | None = optional('kind of link, such as "nvlink4": its usual bandwidth and latency')
    latency: Delay = optional("one way, per hop", 0.0, ge=0)
    sharding: Literal["none", "fsdp"] = optional(
        "each step ends with an all-reduce of the gradient among the devices, or has "
        "the two all-gathers and the reduce-scatter of FSDP",
        "none",
    )


InnerOf = Annotated[Inner, BeforeValidator(of_inner, json_schema_input_type=str | Inner)]


class Group(_Nodes):
    """Some of the workers; a key that is left out is taken from [cluster]."""

    name: Name = Field(description="name of the group, unique")
    workers: int = Field(ge=0, le=10**9, description="number of the cluster's workers in it")
    compute: ComputeLaw | None = optional(_COMPUTE)
    device: Name | None = optional(
        'their device: one of cluster.device, a kind such as "h100-sxm", or just a label'
    )
    extra_share: Share | None = optional(_EXTRA_SHARE)
    up: Bandwidth | None = optional("bandwidth that a worker sends with")
    down: Bandwidth | None = optional("bandwidth that it receives with")
    devices: int = optional(
        "of a worker; without `inner`, `compute` contains their communication", 1, ge=1, le=65_536
    )
    inner: InnerOf | None = optional(
        'links between the devices of a worker: a table, or a kind such as "pcie3-host"'
    )
    node_hour: NonNegative | None = optional("one worker, all devices, 1 h, if not cost.node_hour")
    device_hour: NonNegative | None = optional("one device, if not cost.device_hour")


class Sampling(Section):
    """Clients that each round selects, of programs that average round by round."""

    share: Share | None = optional("share of the workers that a mean takes")
    clients: Count | None = optional("or their number")
    by: Literal["uniform", "availability"] = optional("from all, or those available", "uniform")
    over: float = optional("times as many are selected; the first count", 1.0, ge=1, le=1000)
    deadline: Duration | None = optional("time from a round's start that its mean waits at most")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.share is None) == (self.clients is None):
            raise ValueError("write share = 0.1, say, or clients = 10: one of the two")
        return self


class Cluster(_Nodes):
    """The workers: how many, and how long a gradient takes them."""

    workers: int = Field(ge=1, le=MOST_WORKERS, description="number of workers")
    compute: ComputeLaw = Field(description=_COMPUTE)
    device: DeviceOrLabel | None = optional("devices that groups may compute on, or just a label")
    extra_share: Share = optional(_EXTRA_SHARE, 0.0)
    allow_zero: bool = optional("allow a compute time of zero", False)
    accumulation: int = optional(
        "micro-batches of a step (`compute`: of all); means overlap the last", 1, ge=1, le=65_536
    )
    forward_share: float = optional(
        "share of a micro-batch before the first gradient", 1 / 3, ge=0, lt=1
    )
    beside_collectives: float = optional(
        "times as long that computing takes beside a collective", 1.0, ge=1, le=1000
    )
    group: Many[Group] = optional("overrides for some of the workers", ())
    crash: Many[Crash] = optional("crashes at given times", ())
    sampling: Sampling | None = optional("clients that each round selects")

    @model_validator(mode="before")
    @classmethod
    def _groups_of_all(cls, table: Any) -> Any:
        """Require no usual compute time if groups with their own hold all workers."""
        if not isinstance(table, dict) or "compute" in table:
            return table
        groups = [group for group in table.get("group") or () if isinstance(group, dict)]
        counts = [group.get("workers") for group in groups if "compute" in group]
        numbers = [count for count in counts if isinstance(count, int)]
        if not len(groups) == len(numbers) > 0 or sum(numbers) != table.get("workers"):
            return table
        return table | {"compute": groups[0]["compute"]}

    def of_workers(self, key: str) -> list[Any]:
        """Return the key's value of each worker, in rank order: its group's, or the cluster's."""
        usual, values = getattr(self, key), list[Any]()
        for group in self.group:
            its = getattr(group, key)
            values += [usual if its is None else its] * group.workers
        return values + [usual] * (self.workers - len(values))

    @property
    def drops(self) -> bool:
        """Whether clients that are selected may drop out."""
        return any(self.of_workers("drop"))

    def fails(self, server: Any) -> bool:
        """Tell whether workers, or the server of a [server] table, can crash."""
        settings = [self.failures, server and server.failures]
        return any([*settings, *(group.failures for group in self.group)]) or bool(self.crash)

    @property
    def unfreed_share(self) -> float:
        """Share of a step's computing before its first gradient is complete."""
        return (self.accumulation - 1 + self.forward_share) / self.accumulation

    @property
    def elastic(self) -> bool:
        """Whether workers come and go."""
        return any(nodes.membership is not None for nodes in (self, *self.group))

    @property
    def participants(self) -> int:
        """The workers that a mean takes, of a program that can sample clients."""
        sampling = self.sampling
        if sampling is None:
            return self.workers
        share = ceil((sampling.share or 0.0) * self.workers - 1e-9)
        return max(1, min(self.workers, sampling.clients or share))

    @property
    def described(self) -> tuple[Device, ...]:
        """The devices that have a table of their own, not just a label."""
        return self.device if isinstance(self.device, tuple) else ()

    @property
    def devices(self) -> dict[str | None, Device]:
        """The described devices by name."""
        return {device.name: device for device in self.described}
