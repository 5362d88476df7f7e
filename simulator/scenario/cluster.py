"""The tables of a scenario about its workers: speed, place, and crashes."""

import re
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
from ..inputs import csv_columns
from ..inputs.units import Seconds
from .table import (
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
    shared_by: Count = optional(
        "workers of a group on one device; n that compute at once get 1/n of it each", 1
    )


DeviceOrLabel = Annotated[
    Annotated[Many[Device], Tag("devices")] | Annotated[Name, Tag("a label")],
    Discriminator(lambda value: "devices" if isinstance(value, list | tuple | dict) else "a label"),
]


class Failures(Section):
    """Random crashes, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next crash of one node")
    repair: Duration = Field(description="mean time to repair")


class Crash(Section):
    """One crash, at a given time."""

    worker: Annotated[int, Field(ge=0)] | Literal["server"] = Field(
        description='rank of the worker, from 0, or "server"'
    )
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
    reload: Delay = optional(
        "time that a repaired node (or all, to restart) takes to load its state", 0.0
    )
    warmup: Delay = optional("time that a node takes to warm up after that", 0.0)
    checkpoint: Checkpoint | None = optional('for policy = "restart"')
    backup: int = optional(
        "backup workers: each mean leaves out so many, the slowest (default with "
        'policy = "backup": 1)',
        0,
        ge=0,
    )
    quorum: Quorum = optional(
        'for policy = "quorum": workers that a mean waits for, a number or a share', 0.5
    )
    grace: Delay = optional('for policy = "quorum": time that a mean then waits for more', 0.0)

    @property
    def backups(self) -> int:
        """The workers that each mean leaves out."""
        return self.backup or int(self.policy == "backup")

    def kept(self, workers: int) -> int:
        """Return how many of the workers a mean waits for; the others may be left out."""
        if self.policy == "quorum":
            quorum = self.quorum
            return quorum if isinstance(quorum, int) else max(1, ceil(quorum * workers - 1e-9))
        return max(1, workers - self.backups)

    @property
    def restarting(self) -> float:
        """Seconds that a repaired node takes to take part again."""
        return self.reload + self.warmup


_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")


def _time_of_day(text: str) -> float:
    """Read "22:00" as seconds since midnight."""
    match = _CLOCK.fullmatch(text.strip())
    seconds = 3600.0 * int(match[1]) + 60.0 * int(match[2]) if match else inf
    if seconds > DAY:
        raise ValueError(f'{text!r} is not a time of day; write one such as "22:00"')
    return seconds


def _rank(text: str) -> float:
    if not text.isdecimal() or len(text) > len(str(MOST_WORKERS)):
        raise ValueError("not a worker; write its rank, from 0")
    return float(text)


def _until(text: str) -> float:
    return csv_columns.seconds(text) if text else inf


def _in_order(row: list[float], line: int) -> None:
    if row[1] >= row[2]:
        raise ValueError("the end is not after the start; write a later one, or leave it out")
    row.append(line)


class Membership(Section):
    """When workers are members: a law (`present` and `absent`), a calendar, both at once (then who
    is there by the law is away at other times of day), or a trace.
    """

    present: Law | None = optional("time from joining to leaving")
    absent: Law | None = optional("time from leaving to coming back")
    start: Literal["present", "stationary"] = optional(
        "who is there when the run begins, under a law: all, or those who are at any "
        "moment of a process that has long been going on",
        "present",
    )
    daily: Annotated[
        Many[str],
        BeforeValidator(
            lambda v: [v] if isinstance(v, str) else v, json_schema_input_type=str | list[str]
        ),
    ] = optional('times of day when they are there, such as "22:00-06:00"', ())
    file: Name | None = optional(
        "CSV file of three columns: worker, start and end of each time that it is "
        "there; an end left out: for good; a worker left out: always"
    )
    notice: Delay = optional("time that a worker is told before it has to leave", 0.0)
    _windows: tuple[tuple[float, float], ...] = PrivateAttr(default=())
    _trace: dict[int, list[tuple[float, float]]] = PrivateAttr(default_factory=dict)

    @property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Start and end of each time of day when workers are there (seconds), in order."""
        return self._windows

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
        self._windows = tuple(sorted(map(_window, self.daily)))
        if self.file is not None:
            self._trace = _read_trace(located(self.file, info))
        return self


def _window(text: str) -> tuple[float, float]:
    """Read "22:00-06:00" as seconds since midnight, the end after the start."""
    start, dash, end = text.partition("-")
    if not dash:
        raise ValueError(f'{text!r} is not a time span; write one such as "22:00-06:00"')
    since, until = _time_of_day(start), _time_of_day(end)
    return since, until if until > since else until + DAY


def _read_trace(path: Path) -> dict[int, list[tuple[float, float]]]:
    """Read the times when workers are there, by rank, in order."""
    rows = csv_columns.rows(
        path,
        (_rank, csv_columns.seconds, _until),
        "a worker, and the start and end of a time that it is there",
        names=("worker", "start", "end"),
        check=_in_order,
    )
    trace: dict[int, list[tuple[float, float]]] = {}
    for (rank, since, until, line), after in pairwise([*sorted(rows), (-1.0,) * 4]):
        trace.setdefault(int(rank), []).append((since, until))
        if rank == after[0] and after[1] < until:
            first, second = sorted((line, after[3]))
            raise ValueError(
                f"{path}, lines {first:.0f} and {second:.0f}: worker {rank:.0f} is there "
                "twice at once; merge the two, or let one end before the other starts"
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
    drop: float | None = optional(
        "probability that a client which is selected drops out of that round, or of its report "
        "where there are none (default: 0)",
        ge=0, lt=1,
    )  # fmt: skip
    region: Name | None = optional("where the workers are")
    nic: Bandwidth | None = optional(
        "bandwidth of a worker's network card, each way; left out: that of its place"
    )


_COMPUTE = "time to compute a step's gradient, of all its micro-batches"
_EXTRA_SHARE = "share of the workers that `extra` applies to, in (0, 1]"


class Inner(Section):
    """The links between the devices of a worker that is itself a node of several."""

    bandwidth: Bandwidth = Field(description="of each device, each way")
    latency: Delay = optional("one way, per hop", 0.0, ge=0)
    sharding: Literal["none", "fsdp"] = optional(
        "each step ends with an all-reduce of the gradient among the devices, or has "
        "the two all-gathers and the reduce-scatter of FSDP",
        "none",
    )


class Group(_Nodes):
    """Some of the workers; a key that is left out is taken from [cluster]."""

    name: Name = Field(description="name of the group, unique")
    workers: int = Field(
        ge=0, le=10**9, description="how many of the cluster's workers are in the group, or none"
    )
    compute: ComputeLaw | None = optional(_COMPUTE)
    device: Name | None = optional("their device: one of cluster.device, or just a label")
    extra_share: Share | None = optional(_EXTRA_SHARE)
    up: Bandwidth | None = optional("bandwidth that a worker sends with")
    down: Bandwidth | None = optional("bandwidth that it receives with")
    devices: int = optional(
        "devices of a worker; without `inner`, `compute` contains their communication",
        1, ge=1, le=65_536,
    )  # fmt: skip
    inner: Inner | None = optional("links between the devices of a worker")
    node_hour: NonNegative | None = optional(
        "one worker, with all its devices, for one hour, if not cost.node_hour"
    )
    device_hour: NonNegative | None = optional("one device, if not cost.device_hour")


class Sampling(Section):
    """Clients that each round selects, of programs that average round by round."""

    share: Share | None = optional("share of the workers that a mean takes")
    clients: Count | None = optional("or their number")
    by: Literal["uniform", "availability"] = optional(
        "draw from all workers, or from those that are there when the round begins", "uniform"
    )
    over: float = optional("times as many are selected; the first count", 1.0, ge=1, le=1000)
    deadline: Duration | None = optional(
        "time from a round's start after which its mean waits for no more"
    )

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
        "micro-batches that a step's gradient sums up (gradient accumulation): buckets are "
        "averaged during the backward pass of the last one",
        1, ge=1, le=65_536,
    )  # fmt: skip
    forward_share: float = optional(
        "share of a micro-batch before its backward pass frees the first gradient",
        1 / 3, ge=0, lt=1,
    )  # fmt: skip
    beside_collectives: float = optional(
        "times as long that computing takes while a collective of the worker is under way",
        1.0, ge=1, le=1000,
    )  # fmt: skip
    group: Many[Group] = optional("overrides for some of the workers", ())
    crash: Many[Crash] = optional("crashes at given times", ())
    sampling: Sampling | None = optional("clients that each round selects")

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
