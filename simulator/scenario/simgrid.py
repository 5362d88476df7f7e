"""Read SimGrid platform files (versions 4, 4.1) for `network.platform`.

Unsupported elements that would change results are refused by name. Only the names of hosts count:
[cluster] sets the speed of workers. A route between two zones leads from a gateway of one to a
gateway of the other; each zone routes the part between its host and its gateway (hierarchical
routing, as in SimGrid 3.32).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from xml.etree.ElementTree import Element, ParseError, iterparse

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import InputError
from ..inputs import messages, untrusted
from ..inputs.units import to_si
from .fields import from_file

VERSIONS = [{"version": version} for version in ("4", "4.0", "4.1")]
MOST_ELEMENTS = 100_000
MOST_HOSTS = 100_000  # hosts in all clusters: so many take seconds and 150 MB
DEEPEST = 32  # levels of elements
LONGEST = 200  # most characters of an attribute; messages and results show names
ALIASES = {"AS": "zone", "ASroute": "zoneRoute"}
CHILDREN = {
    "platform": ("zone",),
    "zone": ("zone", "cluster", "host", "router", "link", "route", "zoneRoute"),
    "route": ("link_ctn",),
    "zoneRoute": ("link_ctn",),
}
SILENT = ("prop", "disk")  # elements without effect on the simulation
UNREAD = ("speed", "core", "pstate", "coordinates")  # attributes without effect


def seconds(text: str) -> float:
    """Read a time such as "50us"; without a unit it is in seconds. Raises ValueError."""
    return to_si(text if text[-1:].isalpha() else f"{text} s", "time")


def bytes_per_second(text: str) -> float:
    """Read a rate such as "125MBps", or in bytes/s without unit. Raises ValueError."""
    spelt = re.sub("K(?!i)", "k", text).replace("Bps", "B/s")
    if not (rate := to_si(spelt if text[-1:].isalpha() else f"{text} B/s", "bandwidth")):
        raise ValueError("not a bandwidth; write one above zero")
    return rate


Time = Annotated[float, BeforeValidator(seconds)]
Rate = Annotated[float, BeforeValidator(bytes_per_second)]
Sharing = Literal["SHARED", "SPLITDUPLEX", "FATPIPE"]
Links = tuple[int, ...]
"""Numbers of links in the order in which a transfer passes them."""


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid", str_max_length=LONGEST)
    id: str


class _Zone(_Named):
    routing: Literal["Full", "None"]


class _Link(_Named):
    bandwidth: Rate
    latency: Time = 0.0
    sharing_policy: Sharing = "SHARED"


class _Passed(_Named):
    direction: Literal["UP", "DOWN", "NONE"] = "NONE"


class _Route(_Named):
    id: str = ""
    src: str
    dst: str
    symmetrical: Literal["YES", "NO", "yes", "no"] = "YES"


class _ZoneRoute(_Route):
    gw_src: str
    gw_dst: str


class _Cluster(_Named):
    prefix: str = ""
    suffix: str = ""
    radical: Annotated[str, Field(max_length=untrusted.LARGEST)]
    bw: Rate
    lat: Time = 0.0
    sharing_policy: Sharing = "SPLITDUPLEX"
    bb_bw: Rate | None = None
    bb_lat: Time = 0.0
    bb_sharing_policy: Literal["SHARED", "FATPIPE"] = "SHARED"
    router_id: str = ""
    topology: Literal["FLAT"] = "FLAT"


Attributes = TypeVar("Attributes", bound=_Named)


class PlatformLink(NamedTuple):
    """A link, or one direction of one: capacity in bytes/s, latency in seconds."""

    name: str
    capacity: float
    latency: float
    per_flow: bool


class Edge(NamedTuple):
    """Links from one end to the other; the end of a zone is its gateway."""

    links: Links
    leaves: str
    enters: str


@dataclass
class Zone:
    """Hosts, routers and zones (`members`: places by name), and edges between them.

    `backbone`: of a cluster, where a transfer goes up through the first of a host's `ports`, over
    the backbone, and down through the last of the other's; elsewhere None.
    """

    name: str
    parent: "Zone | None"
    members: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)
    ports: dict[str, Links] = field(default_factory=dict)
    backbone: Links | None = None

    @property
    def lineage(self) -> "list[Zone]":
        """The enclosing zones and this one, outermost first."""
        return [*(self.parent.lineage if self.parent else ()), self]

    def edge(self, source: str, to: str) -> Edge | None:
        """Return the edge from one member to another; None if there is no route."""
        if self.backbone is None:
            return self.edges.get((source, to))
        out, into = (self.ports.get(name, ()) for name in (source, to))
        return Edge(out[:1] + self.backbone + into[-1:], source, to)


@dataclass(frozen=True, repr=False)
class Platform:
    """A platform; two are equal if their files are.

    `digest`: of the file's text. `wires`: all links by number, in file order; `hosts`: all hosts in
    file order; `members`: the range of them in each place: a zone, a cluster or a host. `homes`:
    the zone of each host and router;
    `host_links`: the links that a cluster created for each host. `shared_links`: numbers of the
    links that the file names, or that belong to the gateways of its routes.
    """

    file: str
    digest: str
    wires: list[PlatformLink] = field(default_factory=list, compare=False)
    hosts: list[str] = field(default_factory=list, compare=False)
    members: dict[str, range] = field(default_factory=dict, compare=False)
    homes: dict[str, Zone] = field(default_factory=dict, compare=False)
    host_links: dict[str, Links] = field(default_factory=dict, compare=False)
    shared_links: set[int] = field(default_factory=set, compare=False)

    def __contains__(self, place: str) -> bool:
        """Return whether a place (a host, zone or cluster) has a host."""
        return bool(self.members.get(place))

    def host(self, place: str | None, turn: int = 0) -> str:
        """Return the host of a place's node number `turn`; place None: among all hosts."""
        within = range(len(self.hosts)) if place is None else self.members[place]
        return self.hosts[within[turn % len(within)]]

    def route(self, source: str, to: str) -> Links:
        """Return the links that a transfer from one host to another passes, in order.

        A transfer within a host passes only a route from it to itself, if any. Raises InputError if
        the file has no route.
        """
        if source != to:
            return self._between(source, to)
        written = self.homes[source].edges.get((source, source))
        return written.links if written else ()

    def _between(self, source: str, to: str) -> Links:
        if source == to:
            return ()
        origin, target = self.homes[source].lineage, self.homes[to].lineage
        shared = sum(a is b for a, b in zip(origin, target, strict=False))
        start = origin[shared].name if len(origin) > shared else source
        end = target[shared].name if len(target) > shared else to
        edge = origin[shared - 1].edge(start, end)
        if edge is None:
            raise InputError(
                f"{self.file} has no route from {start} to {end} in the zone "
                f"{origin[shared - 1].name}; add it, or place the workers elsewhere"
            )
        return self._between(source, edge.leaves) + edge.links + self._between(edge.enters, to)


class _Reader:
    """Reader of one file into `platform`: first all named elements, then the routes."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.numbers: dict[str, int] = {}  # numbers of links by name
        self.back: dict[int, int] = {}  # number of a split link's opposite direction
        self.routes: list[tuple[Zone, Element]] = []

    def fault(self, element: Element, problem: str) -> ValueError:
        """Make an error that names the file and the element."""
        name = element.get("id") or "->".join(filter(None, map(element.get, ("src", "dst"))))
        where = f"{element.tag} {name}" if name else element.tag
        return ValueError(f"{self.platform.file}: <{where[:LONGEST]}>: {problem}")

    def demand_supported(self, element: Element) -> None:
        for child in element:
            if child.tag not in CHILDREN.get(element.tag, ()):
                raise self.fault(child, f"not simulated inside <{element.tag}>; remove it")

    def parsed(self, element: Element, model: type[Attributes]) -> Attributes:
        """Return an element's attributes; refuse unsupported ones that change results."""
        self.demand_supported(element)
        table = {key: text for key, text in element.items() if text and key not in UNREAD}
        try:
            return model.model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
        key, value = str(first["loc"][0])[:LONGEST], first["input"]
        problem = {
            "extra_forbidden": f"{key} is not simulated; remove it",
            "missing": f"{key} is missing; add it",
            "string_too_long": f"{key} is too long; write at most {LONGEST} characters",
        }.get(first["type"])
        reason = f"{key} = {messages.show(value)}: {messages.sentence(first, (key,), value)}"
        raise self.fault(element, problem or reason)

    def join(self, element: Element, name: str, zone: Zone | None) -> None:
        """Add a new node or zone to its zone; the outermost has none."""
        if name in self.platform.homes or name in self.platform.members:
            raise self.fault(element, f"{name} exists already; choose another name")
        if zone is not None:
            zone.members[name] = len(zone.members)

    def host(self, element: Element, name: str, zone: Zone, *, router: bool = False) -> None:
        self.join(element, name, zone)
        self.platform.homes[name] = zone
        if not router:
            self.platform.members[name] = range(count := len(self.platform.hosts), count + 1)
            self.platform.hosts.append(name)

    def link(self, element: Element, *wire: Any, policy: str = "SHARED") -> Links:
        """Add a link with name, rate (None: no link) and latency; return its numbers."""
        (name, rate, latency), wires = wire, self.platform.wires
        if rate is None:
            return ()
        first, split = len(wires), policy == "SPLITDUPLEX"
        for end in ("_UP", "_DOWN") if split else ("",):
            if name + end in self.numbers:
                raise self.fault(element, f"the link {name}{end} exists already; rename one")
            self.numbers[name + end] = len(wires)
            wires.append(PlatformLink(name + end, rate, latency, policy == "FATPIPE"))
        if split:
            self.back |= {first: first + 1, first + 1: first}
        return tuple(range(first, len(wires)))

    def zone(self, element: Element, parent: Zone | None) -> None:
        cluster = self.parsed(element, _Cluster) if element.tag == "cluster" else None
        zone = Zone((cluster or self.parsed(element, _Zone)).id, parent)
        self.join(element, zone.name, parent)
        self.platform.members[zone.name] = range(0)
        first = len(self.platform.hosts)
        if cluster:
            self.cluster(element, cluster, zone)
        for child in element:
            self.member(child, zone)
        self.platform.members[zone.name] = range(first, len(self.platform.hosts))

    def member(self, element: Element, zone: Zone) -> None:
        match element.tag:
            case "zone" | "cluster":
                self.zone(element, zone)
            case "host" | "router" as tag:
                self.host(element, self.parsed(element, _Named).id, zone, router=tag == "router")
            case "route" | "zoneRoute":
                self.routes.append((zone, element))
            case "link":
                table = self.parsed(element, _Link)
                wire = table.id, table.bandwidth, table.latency
                numbers = self.link(element, *wire, policy=table.sharing_policy)
                self.platform.shared_links.update(numbers)

    def cluster(self, element: Element, table: _Cluster, zone: Zone) -> None:
        for number in self.radical(element, table.radical):
            host, stem = f"{table.prefix}{number}{table.suffix}", f"{table.id}_link_{number}"
            self.host(element, host, zone)
            links = self.link(element, stem, table.bw, table.lat, policy=table.sharing_policy)
            zone.ports[host] = self.platform.host_links[host] = links
        router = table.router_id or f"{table.prefix}{table.id}_router{table.suffix}"
        self.host(element, router, zone, router=True)
        backbone = f"{table.id}_backbone", table.bb_bw, table.bb_lat
        zone.backbone = self.link(element, *backbone, policy=table.bb_sharing_policy)
        self.platform.shared_links.update(zone.backbone)

    def radical(self, element: Element, text: str) -> Iterator[int]:
        """Yield the numbers of a cluster's hosts from a text such as "0-3,7"."""
        number = r"\s*([0-9]{1,9})\s*"
        for part in text.split(","):
            match = re.fullmatch(rf"{number}(?:-{number})?", part)
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not numbers:
                problem = "not a list of numbers, the smaller first"
                remedy = 'write one such as "0-3,7"'
                raise self.fault(element, f"radical = {messages.show(text)}: {problem}; {remedy}")
            if len(self.platform.hosts) + len(numbers) > MOST_HOSTS:
                raise self.fault(element, f"more than {MOST_HOSTS} hosts in the file; write fewer")
            yield from numbers

    def route(self, zone: Zone, element: Element) -> None:
        table = self.parsed(element, _ZoneRoute if element.tag == "zoneRoute" else _Route)
        gateways = table.src, table.dst
        if isinstance(table, _ZoneRoute):
            gateways = table.gw_src, table.gw_dst
        for end, gateway in zip((table.src, table.dst), gateways, strict=True):
            home = self.platform.homes.get(gateway)
            if end not in zone.members:
                raise self.fault(element, f"{end} is not in the zone {zone.name}; correct it")
            if home is None:
                raise self.fault(element, f"{gateway} is not a host or router; correct it")
            if gateway != end and end not in (zone.name for zone in home.lineage):
                raise self.fault(element, f"{gateway} is not in {end}; name a host or router there")
            self.platform.shared_links.update(self.platform.host_links.get(gateway, ()))
        links = tuple(map(self.passed, element))
        if not links:
            raise self.fault(element, "names no link; add <link_ctn> to it")
        self.platform.shared_links.update(links)
        edges = {(table.src, table.dst): Edge(links, *gateways)}
        if table.symmetrical in ("YES", "yes"):
            back = tuple(self.back.get(link, link) for link in reversed(links))
            edges[table.dst, table.src] = Edge(back, *gateways[::-1])
        if double := [ends for ends in edges if ends in zone.edges]:
            source, to = double[0]
            remedy = 'routes go both ways unless symmetrical = "NO"; keep one'
            raise self.fault(element, f"{source} to {to} has a route already: {remedy}")
        zone.edges |= edges

    def passed(self, element: Element) -> int:
        table = self.parsed(element, _Passed)
        name = table.id if table.direction == "NONE" else f"{table.id}_{table.direction}"
        if name in self.numbers:
            return self.numbers[name]
        split = table.direction == "NONE" and f"{name}_UP" in self.numbers
        remedy = 'write direction = "UP" or "DOWN"' if split else "correct it"
        raise self.fault(element, f"there is no link {name}; {remedy}")


def _root(text: str) -> Element:
    """Parse a document within bounds; resolve aliases, drop elements without effect."""
    if "<!ENTITY" in text:  # never expanded: a few lines can expand to gigabytes, or to other files
        raise ValueError("it declares entities; replace them by their text")
    events = iterparse(StringIO(text), ("start", "end"))
    root: Element = next(events)[1]
    depth = elements = 1
    for event, element in events:
        if event == "end":
            depth -= 1
            element[:] = [child for child in element if child.tag not in SILENT]
            continue
        depth, elements = depth + 1, elements + 1
        element.tag = ALIASES.get(element.tag, element.tag)
        if depth > DEEPEST:
            raise ValueError(f"nested too deeply; no platform has {DEEPEST} zones in each other")
        if elements > MOST_ELEMENTS:
            raise ValueError(f"more than {MOST_ELEMENTS} elements; write a smaller platform")
    return root


def read(path: Path) -> Platform:
    """Read a platform file. Raises ValueError that names an unsupported element."""
    with untrusted.refused(path, "name a platform file of SimGrid", error=ValueError):
        text = untrusted.text(path)
    reader = _Reader(Platform(str(path), sha256(text.encode()).hexdigest()))
    try:
        root = _root(text)
    except ParseError as error:
        raise ValueError(f"{path}: not XML ({error}); correct it there") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if root.tag != "platform" or root.attrib not in VERSIONS:
        raise ValueError(f'{path} is not <platform version="4.1">; bring it to that version')
    reader.demand_supported(root)
    if len(root) != 1:
        raise ValueError(f"{path} has {len(root)} outermost zones; put all into one <zone>")
    reader.zone(root[0], None)
    for zone, element in reader.routes:
        reader.route(zone, element)
    if not reader.platform.hosts:
        raise ValueError(f"{path} has no <host> and no <cluster>; add the workers' machines")
    return reader.platform


_read, _schema = from_file(read, "cluster.xml")
PlatformOf = Annotated[Platform, _read, _schema]
