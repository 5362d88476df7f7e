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

from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import show
from paceline.simulator.scenario.formats import simgrid_platform, simgrid_zones
from paceline.simulator.scenario.formats.simgrid_elements import ALIASES, SILENT, Elements
from paceline.simulator.scenario.formats.simgrid_platform import Platform
from paceline.simulator.scenario.formats.simgrid_zones import Links, PlatformLink, Zone

VERSIONS = ("4", "4.0", "4.1")
ROUTINGS = ("Full", "Floyd", "Dijkstra", "None")
SHARINGS = ("SHARED", "SPLITDUPLEX", "FATPIPE")
MOST_ELEMENTS = 100_000
MOST_ROUTED = 2_000  # members of a zone whose routes are searched for: seconds, and 50 MB
DEEPEST = 32  # elements within each other


class _Reader(Elements):
    """Reads one file: first all named elements, then the routes."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.wires, self.hosts, self.homes = (
            simgrid_platform.Wires(),
            simgrid_platform.HostNames(),
            simgrid_platform.Homes(),
        )
        self.zones: dict[str, range] = {}  # the places of their hosts
        self.elements: dict[str, Element] = {}  # of zones, hosts, routers and links, by name
        self.named: set[int] = set()
        self.ranges = 0
        self.later: list[tuple[Zone, Element]] = []

    def join(self, element: Element, name: str, zone: Zone) -> None:
        if name in self.homes.written or name in self.zones:
            raise self.repeated(element, name)
        self.homes.written[name] = zone
        if element.tag != "host":
            self.homes.routers.add(name)
        self.elements[name] = element
        zone.members[name] = len(zone.members)

    def repeated(self, element: Element, name: str) -> ValueError:
        return self.fault(element, f"{name} is there already; give each its own name")

    def link(self, element: Element, name: str, rate: float, latency: float, policy: str) -> Links:
        """Add a link; return its number, or those of its two directions."""
        links = _directions(name, rate, latency, policy)
        for each in links:
            if each.name in self.wires.written:
                raise self.fault(element, f"the link {each.name} is there already; rename one")
            self.elements[each.name] = element
        return self.wires.add(links)

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
                self.link(child, self.get(child, "id"), rate, latency, policy)
            elif tag:
                self.join(child, self.get(child, "id"), zone)
                if tag == "host":
                    self.hosts.add(self.get(child, "id"))
        if routing in ("Floyd", "Dijkstra") and len(zone.members) > MOST_ROUTED:
            raise self.fault(
                element,
                f'{len(zone.members)} hosts, routers and zones; routing = "{routing}" is for at '
                f'most {MOST_ROUTED}: divide them into zones, or write routing = "Full"',
            )
        self.zones[zone.name] = range(before, len(self.hosts))

    def enter(self, element: Element, zone: Zone) -> None:
        if zone.name in self.zones or zone.name in self.homes.written:
            raise self.repeated(element, zone.name)
        self.zones[zone.name] = range(0)
        if zone.parent is not None:
            zone.parent.members[zone.name] = len(zone.parent.members)

    def cluster(self, element: Element, parent: Zone) -> None:
        self.choice(element, "topology", "FLAT", ("FLAT",))
        name = self.get(element, "id")
        prefix, suffix = element.get("prefix") or "", element.get("suffix") or ""
        hosts = simgrid_zones.NumberedNames(prefix, suffix, tuple(self.radical(element)))
        loop: tuple[PlatformLink, ...] = ()
        limiter: tuple[PlatformLink, ...] = ()
        if element.get("loopback_bw"):
            rate, latency = (
                self.bandwidth(element, "loopback_bw"),
                self.latency(element, "loopback_lat"),
            )
            loop = _directions("_loopback", rate, latency, "FATPIPE")
        rate, latency = self.bandwidth(element, "bw"), self.latency(element, "lat")
        policy = self.choice(element, "sharing_policy", "SPLITDUPLEX", SHARINGS)
        own = _directions("", rate, latency, policy)
        if element.get("limiter_link"):
            rate = self.bandwidth(element, "limiter_link")
            limiter = _directions("_limiter", rate, 0.0, "SHARED")
        up, down = len(loop), len(loop) + len(own) - 1
        last = tuple(range(down + 1, down + 1 + len(limiter)))
        zone = simgrid_zones.ClusterZone(
            name, "Full", parent, hosts=hosts, first=len(self.wires),
            kinds=(*loop, *own, *limiter),
            up=(*last, up), down=(down, *last), loopback=tuple(range(len(loop))),
            flip=(*range(up), *range(down, up - 1, -1), *last),
        )  # fmt: skip
        self.enter(element, zone)
        self.elements[name] = element
        self.homes.clusters.append(zone)
        self.wires.add_hosts(zone)
        before = len(self.hosts)
        self.hosts.add(hosts)
        self.zones[name] = range(before, len(self.hosts))
        self.join(element, element.get("router_id") or f"{prefix}{name}_router{suffix}", zone)
        if element.get("bb_bw"):
            rate, latency = self.bandwidth(element, "bb_bw"), self.latency(element, "bb_lat")
            zone.backbone = self.link(element, f"{name}_backbone", rate, latency, "SHARED")

    def radical(self, element: Element) -> Iterator[range]:
        """The numbers of a cluster's hosts: "0-3,7"."""
        text = self.get(element, "radical")
        number = rf"\s*([0-9]{{1,{simgrid_zones.DIGITS}}})\s*"
        for part in text.split(","):
            match = re.fullmatch(rf"{number}(?:-{number})?", part)
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not numbers:
                what = "not a list of numbers, the smaller first"
                remedy = 'write one such as "0-3,7"'
                raise self.fault(element, f"radical = {show(text)}: {what}; {remedy}")
            self.ranges += 1
            if self.ranges > MOST_ELEMENTS:
                raise self.fault(element, f"more than {MOST_ELEMENTS} ranges of hosts; write fewer")
            yield numbers

    def demand_unique(self) -> None:
        """Refuse names that are there twice, once as that of a cluster's host or its link."""
        if (name := self.homes.repeated()) is not None:
            zone = self.homes.zones(name)[-1]
            raise self.repeated(self.elements.get(name, self.elements[zone.name]), name)
        for name in self.wires.written:
            if self.wires.of_host(name) is not None:
                raise self.fault(
                    self.elements[name], f"the link {name} is there already; rename one"
                )

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
            homes = self.homes.zones(gateway)
            if not homes:
                raise self.fault(element, f"{gateway} is not a host or router; correct it")
            if gateway != end and end not in (zone.name for zone in simgrid_zones.around(homes[0])):
                raise self.fault(element, f"{gateway} is not in {end}; name a host or router there")
            self.named.update(simgrid_platform.links_of(homes[0], gateway))
        links = tuple(self.crossed(child) for child in element if child.tag not in SILENT)
        self.named.update(links)
        if not links:
            raise self.fault(element, "names no link; add <link_ctn> to it")
        self.edge(zone, element, (source, to), simgrid_zones.Edge(links, leaves, enters))
        if self.choice(element, "symmetrical", "YES", ("YES", "NO", "yes", "no")) in ("YES", "yes"):
            back = tuple(map(self.wires.flipped, reversed(links)))
            self.edge(zone, element, (to, source), simgrid_zones.Edge(back, enters, leaves))

    def edge(
        self, zone: Zone, element: Element, ends: tuple[str, str], edge: simgrid_zones.Edge
    ) -> None:
        if ends in zone.edges:
            raise self.fault(element, f"{ends[0]} to {ends[1]} has a route already (routes go both "
                             'ways unless symmetrical = "NO"); keep one')  # fmt: skip
        zone.edges[ends] = edge

    def crossed(self, element: Element) -> int:
        self.check(element)
        direction = self.choice(element, "direction", "NONE", ("UP", "DOWN", "NONE"))
        name = self.get(element, "id") + ("" if direction == "NONE" else f"_{direction}")
        number = self.wires.number(name)
        if number is None:
            split = direction == "NONE" and self.wires.number(f"{name}_UP") is not None
            remedy = 'write direction = "UP" or "DOWN"' if split else "correct it"
            raise self.fault(element, f"there is no link {name}; {remedy}")
        return number


def _directions(name: str, rate: float, latency: float, policy: str) -> tuple[PlatformLink, ...]:
    """Return a link, or the two directions of one."""
    names = (f"{name}_UP", f"{name}_DOWN") if policy == "SPLITDUPLEX" else (name,)
    return tuple(PlatformLink(each, rate, latency, policy == "FATPIPE") for each in names)


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
    reader.demand_unique()
    for zone, element in reader.later:
        reader.route(zone, element)
    if not reader.hosts:
        raise ValueError(f"{file} has no <host> and no <cluster>; add the workers' machines")
    named = frozenset([*reader.named, *reader.wires.written.values()])
    digest = sha256(text.encode()).hexdigest()
    return Platform(file, digest, reader.wires, reader.hosts, reader.zones, reader.homes, named)


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
