"""The tables of a scenario about its network and its parameter server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, Strict, model_validator

from ..distributions.law import Law
from ..distributions.parametric import Constant
from ..distributions.time_profile import ProfileOf
from ..inputs import csv_files
from ..inputs.units import Bytes, Seconds, to_si
from .cluster import Failures
from .fields import (
    NO_TIME,
    Bandwidth,
    Count,
    Delay,
    Duration,
    Many,
    Name,
    Section,
    from_file,
    optional,
)
from .hardware import Card, of_line
from .simgrid import PlatformOf

SOCKETS = 4096  # between two nodes, at most: of a site, those of all its devices

CollectiveName = Literal[
    "ring", "tree", "star", "hierarchical", "recursive-doubling", "halving-doubling",
    "double-tree", "server", "given",
]  # fmt: skip
"""The collectives of a mean; `paceline.simulator.network.collectives` says what each does."""

LONGEST = 200  # characters of a region's name, which messages and figures show


class RegionPair(NamedTuple):
    """From one region to another: one-way latency, and bandwidth (bytes/s) if measured."""

    latency: Constant
    bandwidth: float | None


@dataclass(frozen=True)
class RegionTable:
    """Rows of a file by (from, to); a missing direction equals the other one."""

    file: str
    rows: dict[tuple[str, str], RegionPair]

    def row(self, source: str, to: str) -> RegionPair | None:
        """Return the row from `source` to `to`, or of the other direction, if there is one."""
        return self.rows.get((source, to)) or self.rows.get((to, source))

    @property
    def regions(self) -> list[str]:
        """Every region that the table names, in order of appearance."""
        return list(dict.fromkeys(name for pair in self.rows for name in pair))


def _region(text: str) -> str:
    if not 0 < len(text) <= LONGEST:
        raise ValueError(f"not a region; write a name of 1 to {LONGEST} characters")
    return text


def _latency(text: str) -> Constant:
    return Constant.model_construct(value=to_si(text, "time"))


def _rate(text: str) -> float | None:
    rate = to_si(text, "bandwidth") if text else None
    if rate == 0:
        raise ValueError("a bandwidth of zero; write one above zero")
    return rate


REGION_COLUMNS = {"from": _region, "to": _region, "latency": _latency, "bandwidth": _rate}


def read_regions(path: Path) -> RegionTable:
    """Read a table: from, to, latency one way and, if measured, bandwidth, with units.

    Raises ValueError naming the line.
    """
    rows: dict[tuple[str, str], RegionPair] = {}

    def add(row: list[Any], line: int) -> None:
        source, to, *pair = row
        if (source, to) in rows:
            raise ValueError(f"{source} to {to} is there already; keep one of the lines")
        rows[source, to] = RegionPair(*pair)

    what, readers = ", ".join(REGION_COLUMNS), [*REGION_COLUMNS.values()]
    for _ in csv_files.rows(path, readers, what, [*REGION_COLUMNS], add):
        pass
    return RegionTable(str(path), rows)


_reader, _schema = from_file(read_regions, "clouds.csv")
Regions = Annotated[RegionTable, _reader, _schema]

Window = Annotated[Bytes, Field(gt=0)]


class _Line(Section):
    """Keys that the network and each of its links may set."""

    bandwidth: Bandwidth | None = optional("bits or bytes per second")
    card: Card | None = optional(
        'kind of link, such as "100gbe": its usual bandwidth and latency, where they are left out'
    )
    jitter: Law | None = optional("random delay added to each latency")
    tcp_window: Window | None = optional("one flow's rate is at most tcp_window / round trip")
    up: Bandwidth | None = optional("the same, of sending, or from the first place to the second")
    down: Bandwidth | None = optional("of receiving, or from the second place to the first")

    @model_validator(mode="before")
    @classmethod
    def _of_card(cls, table: Any) -> Any:
        return of_line(table)


class Outages(Section):
    """Failures of a link, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next failure")
    repair: Duration = Field(description="mean time to repair")


Ends = Annotated[tuple[Name, Name], Strict(False)]


class Link(_Line):
    """The link between two regions; a key that is left out is taken from [network]."""

    between: Ends = Field(description='the two regions; "server" is that of the parameter server')
    latency: Law | None = optional("one way, per hop")
    sharing: Literal["full-duplex", "half-duplex", "per-flow"] = optional(
        "its bandwidth holds per direction, for both together, or per flow", "full-duplex"
    )
    profile: ProfileOf | None = optional("factor of its bandwidth over time")
    outages: Outages | None = optional("random failures, and repairs")


class Background(Section):
    """Background traffic, from the first place to the second."""

    between: Ends = Field(description="the place it comes from, and the place it goes to")
    rate: Bandwidth | None = optional("bandwidth that it takes from each link on its route")
    flows: Count | None = optional("number of flows that share the links and never end")
    on: Law | None = optional("how long a burst of it lasts")
    off: Law | None = optional("how long a pause lasts; it begins with one")


class Outage(Section):
    """One failure of a link, both ways, at a known time."""

    between: Ends = Field(description="the two ends of the link")
    at: Seconds = Field(description="when it fails")
    lasts: Duration | None = optional("for how long; left out: for good")


class Network(_Line):
    """The network that carries gradients and models."""

    model: Literal["closed-form", "flows"] = optional("formulas, or transfers", "closed-form")
    collective: CollectiveName = optional("algorithm of a mean over all workers", "ring")
    library: Literal["ideal", "nccl", "gloo", "byteps"] = optional(
        "formulas alone; NCCL, which chooses ring or double tree by size; gloo; or BytePS, whose "
        "servers average gradients chunk by chunk",
        "ideal",
    )
    setup: Delay = optional("added to a run's first collective: connections, buffers", 0.0, ge=0)
    latency: Law = optional('one way, per hop; needed unless collective = "given"', NO_TIME)
    transport: Literal["ideal", "tcp"] = optional(
        "what travels: payloads alone, or TCP's packets, with its windows", "ideal"
    )
    mtu: Literal[1500, 9000] = optional('bytes of a packet, with transport = "tcp"', 1500)
    sockets: Annotated[int, Field(ge=1, le=SOCKETS)] = optional("TCP connections between two", 1)
    burst: Window | None = optional("bytes that a shaped link passes at once after a pause (TCP)")
    duration: Law | None = optional('duration of one mean (D), with collective = "given"')
    duration_grows: Literal["not", "log", "linear"] = optional(
        "duration by the number of workers m that take part: as given, times log2(m) "
        "(a tree), or times m - 1 (each in turn); as given for two",
        "not",
    )
    slow_start: Window | None = optional(
        "first window of a connection, doubled every round trip (TCP); left out: ten segments"
    )
    regions: Regions | None = optional("CSV file of latencies and bandwidths from region to region")
    platform: PlatformOf | None = optional("SimGrid's XML file of hosts, links and routes")
    link: Many[Link] = optional("links between regions", ())
    background: Many[Background] = optional("background traffic", ())
    outage: Many[Outage] = optional("failures of links at known times", ())

    @property
    def closed_form(self) -> bool:
        """Whether formulas give the time of every transfer, whatever else is under way."""
        return self.model == "closed-form"


class Server(Section):
    """The parameter server of the programs that have one."""

    receive: Delay = optional("time to take in one gradient", 0.0)
    apply: Delay = optional("time to update the parameters", 0.0)
    bandwidth: Bandwidth | None = optional("of the server's own network card; left out: unlimited")
    region: Name | None = optional('where the server is; left out: a place of its own, "server"')
    failures: Failures | None = optional("crashes and repairs")
