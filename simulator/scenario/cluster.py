"""Define a scenario's tables of workers: their speeds, places and crashes."""

import re
from functools import cached_property
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from ..distributions.law import ComputeLaw, Law
from ..distributions.time_profile import TimeProfile
from ..inputs import csv_files, units
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
    """Slow periods of a worker: a two-state Markov chain in time."""

    factor: Positive = Field(description="factor of the computing time during a burst")
    on: Duration = Field(description="mean duration of a burst")
    off: Duration = Field(description="mean time between bursts")


class Failures(Section):
    """Random crashes, at exponentially distributed times."""

    between: Duration = Field(description="mean time from a repair to the next crash of one node")
    repair: Duration = Field(description="mean time to repair")


Rank = Annotated[int, Field(ge=0)]


class Crash(Section):
    """One crash, at a given time."""

    worker: Rank | Literal["server"] = Field(description='rank of the worker, or "server"')
    at: Annotated[Seconds, Field(ge=0)] = Field(description="time of the crash")
    lasts: Duration | None = optional("time until the repair; left out: never repaired")


class Checkpoint(Section):
    """Checkpoints of the whole cluster."""

    every: Count = Field(description="steps between two checkpoints")
    cost: Delay = optional("time that all workers pause to save one", 0.0)


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
        "what others do about a crashed worker: wait for it; go on without it; return to the last "
        "checkpoint; leave out the slowest from means; or leave out those late for a quorum",
        "wait",
    )
    timeout: Delay = optional("time until the others notice a crash", 0.0)
    reload: Delay = optional("time from a repair, or a restart, until a node takes part again", 0.0)
    checkpoint: Checkpoint | None = optional('checkpoints, for policy = "restart"')
    backup: int = optional(
        'number of slowest workers that a mean leaves out; 1 with policy = "backup"', 0, ge=0
    )
    quorum: Quorum = optional(
        'for policy = "quorum": number or share of workers that a mean waits for', 0.5
    )
    grace: Delay = optional('for policy = "quorum": extra wait for further workers', 0.0)

    @property
    def backups(self) -> int:
        """Number of workers that a mean leaves out."""
        return self.backup or int(self.policy == "backup")

    def awaited(self, workers: int) -> int:
        """Return the number of workers that a mean waits for; others may be left out."""
        if self.policy == "quorum":
            share = self.quorum
            return share if isinstance(share, int) else max(1, ceil(share * workers - 1e-9))
        return max(1, workers - self.backups)


def _rank(text: str) -> float:
    if not text.isdecimal() or len(text) > len(str(MOST_WORKERS)):
        raise ValueError("not a worker; write its rank, from 0")
    return float(text)


def _end(text: str) -> float:
    return units.seconds(text) if text else inf


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
    """When workers are members: by a law, by times of day, by both, or by a trace.

    By both, they are present only when both allow it.
    """

    present: Law | None = optional("time from joining to leaving")
    absent: Law | None = optional("time from leaving to returning")
    start: Literal["present", "stationary"] = optional(
        "initial state under a law: all present, or the long-run state", "present"
    )
    daily: Spans = optional('times of day when workers are present, such as "22:00-06:00"', ())
    file: Name | None = optional(
        "CSV file with columns worker, start and end of its presence; "
        "no end: it stays; a worker without a row: always present"
    )
    notice: Delay = optional("time from the notice to leave until the worker has to leave", 0.0)
    _trace: dict[int, list[tuple[float, float]]] = PrivateAttr(default_factory=dict)

    @cached_property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """Start and end (s) of the times of day when workers are present, in order."""
        return tuple(sorted(map(_window, self.daily)))

    @property
    def trace(self) -> dict[int, list[tuple[float, float]]]:
        """Start and end (s) of each worker's times of presence, in order, by rank."""
        return self._trace

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        laws = [law.expectation for law in (self.present, self.absent) if law is not None]
        if len(laws) == 1 or bool(laws or self.daily) + bool(self.file) != 1:
            raise ValueError(
                "neither one law, nor times of day, nor both, nor one trace; write { present = "
                '"6 h", absent = "2 h" }, { daily = "22:00-06:00" }, both in one, or "trace.csv"'
            )
        if not all(laws):
            raise ValueError("takes no time; write times above 0 for present and absent")
        if self.start == "stationary" and not laws:
            raise ValueError('start = "stationary" needs a law, and there is none; remove it')
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
    """Read the times when workers are present (s), by rank, in order."""
    columns = {"worker": _rank, "start": units.seconds, "end": _end}
    content, readers = "a worker, start and end of its presence", [*columns.values()]
    rows = csv_files.rows(path, readers, content, names=[*columns], check=_in_order)
    trace: dict[int, list[tuple[float, float]]] = {}
    for (rank, since, until, line), after in pairwise([*sorted(rows), (-1.0,) * 4]):
        trace.setdefault(int(rank), []).append((since, until))
        if rank == after[0] and after[1] < until:
            lines = " and ".join(f"{number:.0f}" for number in sorted((line, after[3])))
            remedy = "merge the two, or let one end before the other starts"
            raise ValueError(
                f"{path}, lines {lines}: worker {rank:.0f} is present twice at once; {remedy}"
            )
    return trace


MembershipOf = Annotated[
    Membership, BeforeValidator(lambda value: {"file": value} if isinstance(value, str) else value)
]


class _Nodes(Section):
    """Keys that the cluster and each of its groups may set."""

    extra: Law | None = optional("delay added to the compute time of a fixed share of workers")
    profile: TimeProfile | None = optional("speed over time; at 0.5 computing takes twice as long")
    bursts: Bursts | None = optional("slow periods, correlated in time")
    failures: Failures | None = optional("crashes and repairs")
    membership: MembershipOf | None = optional("when workers are present; left out: always")
    drop: float | None = optional("probability that a selected client never reports", ge=0, lt=1)
    samples: Count | None = optional("training samples of a worker; left out: by the partition")
    region: Name | None = optional("region of the workers")
    device: Name | None = optional('device of the workers: a kind such as "h100-sxm", or a label')
    nic: Bandwidth | None = optional("bandwidth of the network card, each way")


_COMPUTE = "time to compute a step's gradient, including all micro-batches"
_EXTRA_SHARE = "share of workers with the delay `extra`, in (0, 1]"


class Inner(Section):
    """The links between the devices of one worker."""

    bandwidth: Bandwidth = Field(description="bandwidth of a device, each way")
    card: Card | None = optional('kind of link, such as "nvlink4": its usual bandwidth and latency')
    latency: Delay = optional("one-way latency per hop", 0.0, ge=0)
    sharding: Literal["none", "fsdp"] = optional(
        "none: a step ends with an all-reduce of the gradient among the devices; fsdp: it has "
        "the two all-gathers and the reduce-scatter of FSDP",
        "none",
    )


InnerOf = Annotated[Inner, BeforeValidator(of_inner, json_schema_input_type=str | Inner)]


class Group(_Nodes):
    """A group of workers; missing keys come from [cluster]."""

    name: Name = Field(description="unique name of the group")
    workers: int = Field(ge=0, le=10**9, description="number of workers in the group")
    compute: ComputeLaw | None = optional(_COMPUTE)
    extra_share: Share | None = optional(_EXTRA_SHARE)
    up: Bandwidth | None = optional("bandwidth of a worker's sending")
    down: Bandwidth | None = optional("bandwidth of a worker's receiving")
    devices: int = optional(
        "devices per worker; without `inner`, `compute` includes their links",
        1,
        ge=1,
        le=65_536,
    )
    inner: InnerOf | None = optional(
        'links between the devices of a worker: a table, or a kind such as "pcie3-host"'
    )
    node_hour: NonNegative | None = optional("replaces cost.node_hour")
    device_hour: NonNegative | None = optional("replaces cost.device_hour")


class Sampling(Section):
    """The selection of clients for each round, in programs that average by rounds."""

    share: Share | None = optional("share of workers in a mean")
    clients: Count | None = optional("number of workers in a mean, instead of the share")
    by: Literal["uniform", "availability"] = optional(
        "draw from all, or from available ones", "uniform"
    )
    over: float = optional("overselection factor; the first reports count", 1.0, ge=1, le=1000)
    deadline: Duration | None = optional("longest wait of a mean, from the start of its round")

    @model_validator(mode="after")
    def _require_one_size(self) -> Self:
        if (self.share is None) == (self.clients is None):
            raise ValueError("write either share, such as 0.1, or clients, such as 10")
        return self


class Cluster(_Nodes):
    """The workers, and the time of a gradient."""

    workers: int = Field(ge=1, le=MOST_WORKERS, description="number of workers")
    compute: ComputeLaw = Field(description=_COMPUTE)
    extra_share: Share = optional(_EXTRA_SHARE, 0.0)
    allow_zero: bool = optional("allow a compute time of zero", False)
    accumulation: int = optional(
        "micro-batches per step (`compute` covers all); means overlap the last", 1, ge=1, le=65_536
    )
    forward_share: float = optional(
        "share of a micro-batch's time before its first gradient", 1 / 3, ge=0, lt=1
    )
    beside_collectives: float = optional(
        "factor of computing time during a collective", 1.0, ge=1, le=1000
    )
    group: Many[Group] = optional("overrides for some of the workers", ())
    crash: Many[Crash] = optional("crashes at given times", ())
    sampling: Sampling | None = optional("clients that each round selects")

    @model_validator(mode="before")
    @classmethod
    def _groups_of_all(cls, table: Any) -> Any:
        """Allow a cluster without `compute` if groups with `compute` have all workers."""
        if not isinstance(table, dict) or "compute" in table:
            return table
        groups = [group for group in table.get("group") or () if isinstance(group, dict)]
        counts = [group.get("workers") for group in groups if "compute" in group]
        numbers = [count for count in counts if isinstance(count, int)]
        if not len(groups) == len(numbers) > 0 or sum(numbers) != table.get("workers"):
            return table
        return table | {"compute": groups[0]["compute"]}

    def of_workers(self, key: str) -> list[Any]:
        """Return a key's value for each worker, by rank: the group's, or the cluster's."""
        usual, values = getattr(self, key), list[Any]()
        for group in self.group:
            its = getattr(group, key)
            values += [usual if its is None else its] * group.workers
        return values + [usual] * (self.workers - len(values))

    @property
    def samples_of_workers(self) -> list[int]:
        """Training samples of every worker, by rank; empty if not set."""
        return [*filter(None, self.of_workers("samples"))]

    @property
    def drops(self) -> bool:
        """Whether selected clients may drop out."""
        return any(self.of_workers("drop"))

    def fails(self, server: Any) -> bool:
        """Return whether workers, or the server of a [server] table, can crash."""
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
        """Number of workers in a mean of a program that can sample clients."""
        sampling = self.sampling
        if sampling is None:
            return self.workers
        share = ceil((sampling.share or 0.0) * self.workers - 1e-9)
        return max(1, min(self.workers, sampling.clients or share))
