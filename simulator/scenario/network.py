"""Define a scenario's tables of the network and the parameter server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, Strict, model_validator

from ..distributions.law import Law
from ..distributions.parametric import Constant
from ..distributions.time_profile import TimeProfile
from ..inputs import csv_files
from ..inputs.units import Bytes, to_si
from .cluster import Failures
from .fields import (
    NO_TIME,
    Bandwidth,
    Delay,
    Many,
    Name,
    Section,
    from_file,
    optional,
)
from .hardware import Card, of_line
from .simgrid import PlatformOf

SOCKETS = 4096  # most connections between two nodes, including all devices of a site

CollectiveName = Literal["ring", "tree", "star", "hierarchical", "double-tree", "server", "given"]
"""The collectives of a mean; see `paceline.simulator.network.collectives`."""

LONGEST = 200  # most characters of a region's name, which messages and figures show


class RegionPair(NamedTuple):
    """One direction between two regions: latency, and bandwidth (bytes/s) if measured."""

    latency: Constant
    bandwidth: float | None


@dataclass(frozen=True)
class RegionTable:
    """Rows of a file by (from, to); a missing direction equals the opposite one."""

    file: str
    rows: dict[tuple[str, str], RegionPair]

    def row(self, source: str, to: str) -> RegionPair | None:
        """Return the row from `source` to `to`, or of the opposite direction, if any."""
        return self.rows.get((source, to)) or self.rows.get((to, source))

    @property
    def regions(self) -> list[str]:
        """The regions in the table, in order of appearance."""
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
        raise ValueError("zero bandwidth; write one above zero")
    return rate


REGION_COLUMNS = {"from": _region, "to": _region, "latency": _latency, "bandwidth": _rate}


def read_regions(path: Path) -> RegionTable:
    """Read a table with columns from, to, one-way latency, and optionally bandwidth.

    Raises ValueError with the line.
    """
    rows: dict[tuple[str, str], RegionPair] = {}

    def add(row: list[Any], line: int) -> None:
        source, to, *pair = row
        if (source, to) in rows:
            raise ValueError(f"{source} to {to} has a line already; keep one of them")
        rows[source, to] = RegionPair(*pair)

    content, readers = ", ".join(REGION_COLUMNS), [*REGION_COLUMNS.values()]
    for _ in csv_files.rows(path, readers, content, [*REGION_COLUMNS], add):
        pass
    return RegionTable(str(path), rows)


_reader, _schema = from_file(read_regions, "clouds.csv")
Regions = Annotated[RegionTable, _reader, _schema]

Window = Annotated[Bytes, Field(gt=0)]


class _Line(Section):
    """Keys that the network and each of its links may set."""

    bandwidth: Bandwidth | None = optional("bits or bytes per second")
    card: Card | None = optional(
        'kind of link, such as "100gbe", whose usual bandwidth and latency fill missing keys'
    )
    jitter: Law | None = optional("random delay added to each latency")
    tcp_window: Window | None = optional("a flow's rate is at most tcp_window / round trip")
    up: Bandwidth | None = optional("bandwidth of sending, or from the first place to the second")
    down: Bandwidth | None = optional("bandwidth of receiving, or back to the first")

    @model_validator(mode="before")
    @classmethod
    def _of_card(cls, table: Any) -> Any:
        return of_line(table)


Ends = Annotated[tuple[Name, Name], Strict(False)]


class Link(_Line):
    """The link between two regions; missing keys come from [network]."""

    between: Ends = Field(description='two regions, or "server" for the parameter server')
    latency: Law | None = optional("one-way latency per hop")
    sharing: Literal["full-duplex", "per-flow"] = optional(
        "whether the bandwidth applies per direction or per flow", "full-duplex"
    )
    profile: TimeProfile | None = optional("factor of its bandwidth over time")


class Network(_Line):
    """The network that carries gradients and models."""

    model: Literal["closed-form", "flows"] = optional("formulas, or simulated flows", "closed-form")
    collective: CollectiveName = optional("algorithm of a mean over all workers", "ring")
    library: Literal["ideal", "nccl", "gloo", "byteps"] = optional(
        "ideal: formulas alone; nccl: chooses ring or double tree by size; gloo; byteps: servers "
        "average gradients in chunks",
        "ideal",
    )
    setup: Delay = optional("time added to the first collective (connections, buffers)", 0.0, ge=0)
    latency: Law = optional('one way, per hop; required unless collective = "given"', NO_TIME)
    transport: Literal["ideal", "tcp"] = optional(
        "ideal: payloads alone; tcp: TCP's packets and windows", "ideal"
    )
    mtu: Literal[1500, 9000] = optional('bytes per packet, with transport = "tcp"', 1500)
    sockets: Annotated[int, Field(ge=1, le=SOCKETS)] = optional("TCP connections per pair", 1)
    burst: Window | None = optional("bytes that a shaped link passes at once after a pause (TCP)")
    duration: Law | None = optional('duration of one mean (D), with collective = "given"')
    slow_start: Window | None = optional(
        "first window of a connection, doubled every round trip (TCP); left out: 10 segments"
    )
    regions: Regions | None = optional("CSV file of latencies and bandwidths between regions")
    platform: PlatformOf | None = optional("SimGrid XML file of hosts, links and routes")
    link: Many[Link] = optional("links between regions", ())

    @property
    def closed_form(self) -> bool:
        """Whether formulas give the time of every transfer, regardless of other traffic."""
        return self.model == "closed-form"


class Server(Section):
    """The parameter server of programs with one."""

    receive: Delay = optional("time to receive one gradient", 0.0)
    apply: Delay = optional("time to update the parameters", 0.0)
    bandwidth: Bandwidth | None = optional("of the server's network card; left out: unlimited")
    region: Name | None = optional('region of the server; left out: a separate place, "server"')
    failures: Failures | None = optional("crashes and repairs")
