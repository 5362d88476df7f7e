"""Read a SimGrid platform file (version 4 and 4.1), `network.platform`.

Elements that would change results and are not supported are refused by name. Of hosts only the
names count: the speed of workers is set in [cluster].
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser, fromstring

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from ...inputs import untrusted
from ...inputs.messages import show
from .simgrid_elements import ALIASES, SILENT, Elements
from .simgrid_platform import (
    Cluster,
    Edge,
    Links,
    Platform,
    PlatformLink,
    Zone,
    around,
)

VERSIONS = ("4", "4.0", "4.1")
ROUTINGS = ("Full", "Floyd", "Dijkstra", "None")
SHARINGS = ("SHARED", "SPLITDUPLEX", "FATPIPE")
MOST_ELEMENTS = 100_000
MOST_HOSTS = 100_000  # of all clusters: seconds, and 150 MB
MOST_ROUTED = 2_000  # members of a zone whose routes are searched for: seconds, and 50 MB
DEEPEST = 32  # elements within each other


class _Reader(Elements):
    """Reads one file: first all named elements, then the routes."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.wires: list[PlatformLink] = []
        self.numbers: dict[str, int] = {}  # of links, by name
        self.back: dict[int, int] = {}  # of split links: the number of the other direction
        self.hosts: list[str] = []
        self.homes: dict[str, Zone] = {}  # of hosts and routers
        self.routers: set[str] = set()
        self.own: dict[str, Links] = {}  # links that a cluster made for a host
        self.zones: dict[str, range] = {}  # the places of their hosts
        self.named: set[int] = set()
        self.later: list[tuple[Zone, Element]] = []

    def join(self, element: Element, name: str, zone: Zone, *, host: bool) -> None:
        self.demand_new(element, name)
        self.homes[name] = zone
        if host:
            self.hosts.append(name)
        else:
            self.routers.add(name)
        zone.members[name] = len(zone.members)

    def demand_new(self, element: Element, name: str) -> None:
        if name in self.homes or name in self.zones:
            raise self.fault(element, f"{name} is there already; give each its own name")

    def link(self, element: Element, name: str, rate: float, latency: float, policy: str) -> Links:
        """Add a link; return its number, or those of its two directions."""
        split = policy == "SPLITDUPLEX"
        first = len(self.wires)
        for wire in (f"{name}_UP", f"{name}_DOWN") if split else (name,):
            if wire in self.numbers:
                raise self.fault(element, f"the link {wire} is there already; rename one")
            self.numbers[wire] = len(self.wires)
            self.wires.append(PlatformLink(wire, rate, latency, policy == "FATPIPE"))
        if split:
            self.back |= {first: first + 1, first + 1: first}
        return tuple(range(first, len(self.wires)))

    def zone(self, element: Element, parent: Zone | None) -> None:
        self.check(element)
        routing = self.choice(element, "routing", "", ROUTINGS)
        zone = Zone(self.get(element, "id"), routing, parent)
        self.enter(element, zone)
        before = len(self.hosts)
        for child in element:
            tag = self.check(child) if child.tag not in SILENT else ""
            if tag in ("route", "zoneRoute"):
                self.later.append((zone, child))
            elif tag == "zone":
                self.zone(child, zone)
            elif tag == "cluster":
                self.cluster(child, zone)
            elif tag == "link":
                policy = self.choice(child, "sharing_policy", "SHARED", SHARINGS)
                rate, latency = self.bandwidth(child, "bandwidth"), self.latency(child, "latency")
                self.named.update(self.link(child, self.get(child, "id"), rate, latency, policy))
            elif tag:
                self.join(child, self.get(child, "id"), zone, host=tag == "host")
        if routing in ("Floyd", "Dijkstra") and len(zone.members) > MOST_ROUTED:
            raise self.fault(
                element,
                f'{len(zone.members)} hosts, routers and zones; routing = "{routing}" is for at '
                f'most {MOST_ROUTED}: divide them into zones, or write routing = "Full"',
            )
        self.zones[zone.name] = range(before, len(self.hosts))

    def enter(self, element: Element, zone: Zone) -> None:
        self.demand_new(element, zone.name)
        self.zones[zone.name] = range(0)
        if zone.parent is not None:
            zone.parent.members[zone.name] = len(zone.parent.members)

    def cluster(self, element: Element, parent: Zone) -> None:
        self.choice(element, "topology", "FLAT", ("FLAT",))
        name = self.get(element, "id")
        prefix, suffix = element.get("prefix") or "", element.get("suffix") or ""
        zone = Cluster(name, "Full", parent)
        self.enter(element, zone)
        rate, latency = self.bandwidth(element, "bw"), self.latency(element, "lat")
        policy = self.choice(element, "sharing_policy", "SPLITDUPLEX", SHARINGS)
        before = len(self.hosts)
        for number in self.radical(element):
            host, stem = f"{prefix}{number}{suffix}", f"{name}_link_{number}"
            self.join(element, host, zone, host=True)
            loop: Links = ()
            last: Links = ()
            if element.get("loopback_bw"):
                inside = (
                    self.bandwidth(element, "loopback_bw"),
                    self.latency(element, "loopback_lat"),
                )
                loop = self.link(element, f"{stem}_loopback", *inside, "FATPIPE")
            links = self.link(element, stem, rate, latency, policy)
            if element.get("limiter_link"):
                limit = self.bandwidth(element, "limiter_link")
                last = self.link(element, f"{stem}_limiter", limit, 0.0, "SHARED")
            self.own[host] = (*loop, *links, *last)
            zone.loopback[host] = loop
            zone.up[host], zone.down[host] = (*last, links[0]), (links[-1], *last)
        self.zones[name] = range(before, len(self.hosts))
        router = element.get("router_id") or f"{prefix}{name}_router{suffix}"
        self.join(element, router, zone, host=False)
        if element.get("bb_bw"):
            rate, latency = self.bandwidth(element, "bb_bw"), self.latency(element, "bb_lat")
            zone.backbone = self.link(element, f"{name}_backbone", rate, latency, "SHARED")
            self.named.update(zone.backbone)

    def radical(self, element: Element) -> Iterator[int]:
        """The numbers of a cluster's hosts: "0-3,7"."""
        text = self.get(element, "radical")
        number = r"\s*([0-9]{1,9})\s*"
        for part in text.split(","):
            match = re.fullmatch(rf"{number}(?:-{number})?", part)
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not numbers:
                what = "not a list of numbers, the smaller first"
                remedy = 'write one such as "0-3,7"'
                raise self.fault(element, f"radical = {show(text)}: {what}; {remedy}")
            if len(self.hosts) + len(numbers) > MOST_HOSTS:
                raise self.fault(element, f"more than {MOST_HOSTS} hosts in the file; write fewer")
            yield from numbers

    def route(self, zone: Zone, element: Element) -> None:
        between = ALIASES.get(element.tag, element.tag) == "zoneRoute"
        source, to = self.get(element, "src"), self.get(element, "dst")
        leaves, enters = (
            self.get(element, key) if between else end
            for key, end in (("gw_src", source), ("gw_dst", to))
        )
        for end in (source, to):
            if end not in zone.members:
                raise self.fault(element, f"{end} is not in the zone {zone.name}; correct it")
        for end, gateway in ((source, leaves), (to, enters)):
            home = self.homes.get(gateway)
            if home is None:
                raise self.fault(element, f"{gateway} is not a host or router; correct it")
            if gateway != end and end not in (zone.name for zone in around(home)):
                raise self.fault(element, f"{gateway} is not in {end}; name a host or router there")
            self.named.update(self.own.get(gateway, ()))
        links = tuple(self.crossed(child) for child in element if child.tag not in SILENT)
        self.named.update(links)
        if not links:
            raise self.fault(element, "names no link; add <link_ctn> to it")
        self.edge(zone, element, (source, to), Edge(links, leaves, enters))
        if self.choice(element, "symmetrical", "YES", ("YES", "NO", "yes", "no")) in ("YES", "yes"):
            back = tuple(self.back.get(link, link) for link in reversed(links))
            self.edge(zone, element, (to, source), Edge(back, enters, leaves))

    def edge(self, zone: Zone, element: Element, ends: tuple[str, str], edge: Edge) -> None:
        if ends in zone.edges:
            raise self.fault(element, f"{ends[0]} to {ends[1]} has a route already (routes go both "
                             'ways unless symmetrical = "NO"); keep one')  # fmt: skip
        zone.edges[ends] = edge

    def crossed(self, element: Element) -> int:
        self.check(element)
        direction = self.choice(element, "direction", "NONE", ("UP", "DOWN", "NONE"))
        name = self.get(element, "id") + ("" if direction == "NONE" else f"_{direction}")
        number = self.numbers.get(name)
        if number is None:
            split = direction == "NONE" and f"{name}_UP" in self.numbers
            remedy = 'write direction = "UP" or "DOWN"' if split else "correct it"
            raise self.fault(element, f"there is no link {name}; {remedy}")
        return number


class _Tree(TreeBuilder):
    """Builds the tree of a document of bounded size and depth. Raises ValueError beyond it."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = self._depth = 0

    def start(self, tag: str, attrs: dict[Any, Any], /) -> Element:
        self._elements += 1
        self._depth += 1
        if self._elements > MOST_ELEMENTS:
            raise ValueError(f"more than {MOST_ELEMENTS} elements")
        if self._depth > DEEPEST:
            raise ValueError(f"nested too deeply; no platform has {DEEPEST} zones in each other")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def read(path: Path) -> Platform:
    """Read a platform file. Raises ValueError, which names the element, for unsupported content."""
    file = str(path)
    with untrusted.refused(path, "name a platform file of SimGrid", error=ValueError):
        text = untrusted.text(path)
    if "<!ENTITY" in text:  # never expanded: a few lines of them can mean gigabytes, or other files
        raise ValueError(f"{file} declares entities; write out what they stand for")
    try:
        root = fromstring(text, XMLParser(target=_Tree()))
    except ParseError as error:
        raise ValueError(f"{file}: not XML ({error}); correct it there") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}; write a smaller platform") from None
    reader = _Reader(file)
    if root.tag != "platform" or root.get("version") not in VERSIONS:
        raise ValueError(f'{file} is not <platform version="4.1">; bring it to that version')
    reader.check(root)
    zones = [child for child in root if child.tag not in SILENT]
    if len(zones) != 1:
        raise ValueError(f"{file} has {len(zones)} outermost zones; put all into one <zone>")
    reader.zone(zones[0], None)
    for zone, element in reader.later:
        reader.route(zone, element)
    if not reader.hosts:
        raise ValueError(f"{file} has no <host> and no <cluster>; add the workers' machines")
    return Platform(
        file,
        sha256(text.encode()).hexdigest(),
        reader.wires,
        reader.hosts,
        reader.zones,
        reader.homes,
        reader.routers,
        reader.own,
        frozenset(reader.named),
    )


def _load(value: Any, info: ValidationInfo) -> Platform:
    if not isinstance(value, str):
        raise ValueError('not the name of a file; write one such as "cluster.xml"')
    return read(Path((info.context or {}).get("folder", "."), value))


PlatformOf = Annotated[
    Platform,
    PlainValidator(_load),
    WithJsonSchema({"type": "string", "examples": ["cluster.xml"]}),
]
"""A platform as a scenario names it: a file, relative to the scenario's folder."""
