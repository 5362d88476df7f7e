"""Read a SimGrid platform file (version 4 and 4.1), `network.platform`.

Elements that would change results and are not supported are refused by name. Of hosts only the
names count: the speed of workers is set in [cluster].
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from xml.etree.ElementTree import Element, ParseError, fromstring

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from paceline.simulator.inputs import untrusted
from paceline.simulator.scenario.formats.simgrid_elements import ALIASES, SILENT, Elements
from paceline.simulator.scenario.formats.simgrid_zones import (
    ClusterZone,
    Edge,
    Links,
    Platform,
    PlatformLink,
    Zone,
)

VERSIONS = ("4", "4.0", "4.1")
ROUTINGS = ("Full", "Floyd", "Dijkstra", "None")
SHARINGS = ("SHARED", "SPLITDUPLEX", "FATPIPE")


class _Reader(Elements):
    """Reads one file: first all named elements, then the routes."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.wires: list[PlatformLink] = []
        self.links: dict[str, int] = {}  # by name; a split link's directions have their own
        self.flip: dict[int, int] = {}  # the same cable in the other direction
        self.hosts: list[str] = []
        self.homes: dict[str, Zone] = {}
        self.zones: dict[str, tuple[str, ...]] = {}
        self.later: list[tuple[Zone, Element]] = []

    def join(self, element: Element, name: str, zone: Zone) -> None:
        if name in self.homes or name in self.zones:
            raise self.fault(element, f"{name} is there already; give each its own name")
        self.homes[name] = zone
        zone.members.append(name)

    def link(self, element: Element, name: str, rate: float, latency: float, policy: str) -> Links:
        """Add a link; return its number, or those of its two directions."""
        split = policy == "SPLITDUPLEX"
        first = len(self.wires)
        for each in (f"{name}_UP", f"{name}_DOWN") if split else (name,):
            if each in self.links:
                raise self.fault(element, f"the link {each} is there already; rename one")
            self.links[each] = len(self.wires)
            self.wires.append(PlatformLink(each, rate, latency, policy == "FATPIPE"))
        numbers = tuple(range(first, len(self.wires)))
        self.flip |= dict(zip(numbers, numbers[::-1], strict=True))
        return numbers

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
                self.hosts += [self.get(child, "id")] * (tag == "host")
        self.zones[zone.name] = tuple(self.hosts[before:])

    def enter(self, element: Element, zone: Zone) -> None:
        if zone.name in self.zones or zone.name in self.homes:
            raise self.fault(element, f"{zone.name} is there already; give each its own name")
        self.zones[zone.name] = ()
        if zone.parent is not None:
            zone.parent.members.append(zone.name)

    def cluster(self, element: Element, parent: Zone) -> None:
        self.choice(element, "topology", "FLAT", ("FLAT",))
        name = self.get(element, "id")
        prefix, suffix = element.get("prefix") or "", element.get("suffix") or ""
        zone = ClusterZone(name, "Full", parent)
        self.enter(element, zone)
        before = len(self.hosts)
        rate, latency = self.bandwidth(element, "bw"), self.latency(element, "lat")
        policy = self.choice(element, "sharing_policy", "SPLITDUPLEX", SHARINGS)
        for number in self.radical(element):
            host = f"{prefix}{number}{suffix}"
            self.join(element, host, zone)
            self.hosts.append(host)
            own = f"{name}_link_{number}"
            if element.get("loopback_bw"):
                rates = (
                    self.bandwidth(element, "loopback_bw"),
                    self.latency(element, "loopback_lat"),
                )
                zone.loopback[host] = self.link(element, f"{own}_loopback", *rates, "FATPIPE")
            up, *down = self.link(element, own, rate, latency, policy)
            limiter: Links = ()
            if element.get("limiter_link"):
                limit = self.bandwidth(element, "limiter_link")
                limiter = self.link(element, f"{own}_limiter", limit, 0.0, "SHARED")
            zone.up[host] = (*limiter, up)
            zone.down[host] = (*(down or [up]), *limiter)
        self.join(element, element.get("router_id") or f"{prefix}{name}_router{suffix}", zone)
        if element.get("bb_bw"):
            shared = self.bandwidth(element, "bb_bw"), self.latency(element, "bb_lat")
            zone.backbone = self.link(element, f"{name}_backbone", *shared, "SHARED")
        self.zones[name] = tuple(self.hosts[before:])

    def radical(self, element: Element) -> Iterator[int]:
        """The numbers of a cluster's hosts: "0-3,7"."""
        text = self.get(element, "radical")
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
            if match is None:
                raise self.fault(element, f'radical = "{text}" is none; write one such as "0-3,7"')
            yield from range(int(match[1]), int(match[2] or match[1]) + 1)

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
        for end in (leaves, enters):
            if end not in self.homes:
                raise self.fault(element, f"{end} is not a host or router; correct it")
        links = tuple(self.crossed(child) for child in element if child.tag not in SILENT)
        if not links:
            raise self.fault(element, "names no link; add <link_ctn> to it")
        self.edge(zone, element, (source, to), Edge(links, leaves, enters))
        if self.choice(element, "symmetrical", "YES", ("YES", "NO", "yes", "no")) in ("YES", "yes"):
            back = tuple(self.flip[link] for link in reversed(links))
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
        if name not in self.links:
            split = direction == "NONE" and f"{name}_UP" in self.links
            remedy = 'write direction = "UP" or "DOWN"' if split else "correct it"
            raise self.fault(element, f"there is no link {name}; {remedy}")
        return self.links[name]


def read(path: Path) -> Platform:
    """Read a platform file. Raises ValueError, which names the element, for unsupported content."""
    file = str(path)
    with untrusted.refused(path, "name a platform file of SimGrid", error=ValueError):
        text = untrusted.text(path)
    if "<!ENTITY" in text:  # never expanded: a few lines of them can mean gigabytes, or other files
        raise ValueError(f"{file} declares entities; write out what they stand for")
    try:
        root = fromstring(text)
    except (ParseError, ValueError) as error:
        raise ValueError(f"{file}: not XML ({error}); correct it there") from None
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
    return Platform(file, tuple(reader.wires), tuple(reader.hosts), reader.zones, reader.homes)


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
