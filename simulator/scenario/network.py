"""The tables of a scenario about its network and its parameter server."""

from typing import Annotated, Literal

from pydantic import Field, Strict

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.distributions.time_profile import ProfileOf
from paceline.simulator.inputs.units import Bytes, Seconds
from paceline.simulator.scenario.cluster import Failures
from paceline.simulator.scenario.formats.region_table import TableOf
from paceline.simulator.scenario.formats.simgrid_xml import PlatformOf
from paceline.simulator.scenario.table import (
    Bandwidth,
    Count,
    Delay,
    Duration,
    Many,
    Name,
    Section,
)

CollectiveName = Literal[
    "ring",
    "tree",
    "star",
    "hierarchical",
    "recursive-doubling",
    "halving-doubling",
    "double-tree",
    "server",
    "given",
]
"""The collectives of a mean; `paceline.simulator.network.collectives` says what each does."""


class _Line(Section):
    """Keys that the network and each of its links may set."""

    bandwidth: Bandwidth | None = Field(default=None, description="bits or bytes per second")
    jitter: Law | None = Field(default=None, description="random delay added to each latency")
    tcp_window: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="one flow's rate is at most tcp_window / round trip"
    )
    up: Bandwidth | None = Field(
        default=None, description="the same, but of sending, or from the first place to the second"
    )
    down: Bandwidth | None = Field(
        default=None, description="of receiving, or from the second place to the first"
    )


class Outages(Section):
    """Failures of a link, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next failure")
    repair: Duration = Field(description="mean time to repair")


_Ends = Annotated[tuple[Name, Name], Strict(False)]


class Link(_Line):
    """The link between two regions; a key that is left out is taken from [network]."""

    between: _Ends = Field(
        description='the two regions it joins; "server" is the parameter server\'s'
    )
    latency: Law | None = Field(default=None, description="one way, per hop")
    sharing: Literal["full-duplex", "half-duplex", "per-flow"] = Field(
        default="full-duplex",
        description="its bandwidth holds per direction, for both together, or per flow",
    )
    profile: ProfileOf | None = Field(default=None, description="factor of its bandwidth over time")
    outages: Outages | None = Field(default=None, description="random failures, and repairs")


class Background(Section):
    """Background traffic, from the first place to the second."""

    between: _Ends = Field(description="the place it comes from, and the place it goes to")
    rate: Bandwidth | None = Field(
        default=None, description="bandwidth that it takes from each link on its route"
    )
    flows: Count | None = Field(
        default=None, description="number of flows that share the links and never end"
    )
    on: Law | None = Field(default=None, description="how long a burst of it lasts")
    off: Law | None = Field(default=None, description="how long a pause lasts; it begins with one")


class Outage(Section):
    """One failure of a link, both ways, at a known time."""

    between: _Ends = Field(description="the two ends of the link")
    at: Seconds = Field(description="when it fails")
    lasts: Duration | None = Field(default=None, description="for how long; left out: for good")


class Network(_Line):
    """The network that carries gradients and models."""

    model: Literal["closed-form", "flows"] = Field(
        default="closed-form", description="alpha-beta formulas, or every transfer simulated"
    )
    collective: CollectiveName = Field(
        default="ring", description="algorithm of a mean over all workers"
    )
    library: Literal["ideal", "nccl", "gloo"] = Field(
        default="ideal",
        description="formulas alone; NCCL, which chooses ring or double tree by size; or gloo",
    )
    setup: Delay = Field(
        default=0.0,
        ge=0,
        description="added to the first collective of a run: connections, buffers",
    )
    latency: Law = Field(
        default=Constant.model_validate({"value": "0 s"}),
        description='one way, per hop; required unless collective = "given"',
    )
    transport: Literal["ideal", "tcp"] = Field(
        default="ideal",
        description="what travels: payloads alone, or TCP's packets, with its windows",
    )
    mtu: Literal[1500, 9000] = Field(
        default=1500, description='bytes of a packet, with transport = "tcp"'
    )
    sockets: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description='connections between two nodes, with transport = "tcp"'
    )
    burst: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None,
        description="token bucket of a shaped link: what passes at once after a pause, with "
        'transport = "tcp"',
    )
    duration: Law | None = Field(
        default=None, description='duration of one mean (D), with collective = "given"'
    )
    duration_grows: Literal["not", "log", "linear"] = Field(
        default="not",
        description="duration by the number of workers m that take part: as given, times log2(m) "
        "(a tree), or times m - 1 (each in turn); as given for two",
    )
    fairness: Literal["max-min", "rtt"] = Field(
        default="max-min",
        description="shares at a bottleneck: equal, or as TCP's, inverse to the round trip",
    )
    slow_start: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None,
        description="a flow's first window, doubled every round trip; left out: no slow start, or, "
        'with transport = "tcp", ten segments after each pause',
    )
    regions: TableOf | None = Field(
        default=None, description="CSV file of latencies and bandwidths from region to region"
    )
    platform: PlatformOf | None = Field(
        default=None, description="SimGrid's XML file of hosts, links and routes"
    )
    link: Many[Link] = Field(default=(), description="links between regions")
    background: Many[Background] = Field(default=(), description="background traffic")
    outage: Many[Outage] = Field(default=(), description="failures of links at known times")

    @property
    def closed_form(self) -> bool:
        """Whether formulas give the time of every transfer, whatever else is under way."""
        return self.model == "closed-form"


class Server(Section):
    """The parameter server of the programs that have one."""

    receive: Delay = Field(default=0.0, description="time to take in one gradient")
    apply: Delay = Field(default=0.0, description="time to update the parameters")
    bandwidth: Bandwidth | None = Field(
        default=None, description="of the server's own network card; left out: unlimited"
    )
    region: Name | None = Field(
        default=None, description='where the server is; left out: a place of its own, "server"'
    )
    failures: Failures | None = Field(default=None, description="crashes and repairs")
