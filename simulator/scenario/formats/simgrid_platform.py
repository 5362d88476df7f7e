"""A SimGrid platform: its hosts and links by name and number, and the routes between hosts.

A route between two zones leads from a gateway of the one to a gateway of the other; the parts
before and after it are routed inside the zones (SimGrid's hierarchical routing, as in its 3.32).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Generic, TypeVar

from paceline.simulator.errors import InputError
from paceline.simulator.scenario.formats.simgrid_zones import (
    DIGITS,
    ClusterZone,
    Links,
    NumberedNames,
    PlatformLink,
    Zone,
    around,
)

B = TypeVar("B")


class _Blocks(Generic[B]):
    """Things numbered from 0 in the order of the file, kept as blocks of several."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: list[B] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _append(self, block: B, count: int) -> None:
        self._starts.append(self._count)
        self._blocks.append(block)
        self._count += count

    def _block(self, number: int) -> tuple[int, B]:
        at = bisect_right(self._starts, number) - 1
        return self._starts[at], self._blocks[at]


class Wires(_Blocks[tuple[PlatformLink, ...] | ClusterZone]):
    """All links by number, in the order of the file.

    `written`: numbers of those that have an element of their own, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, int] = {}
        self._clusters: dict[str, ClusterZone] = {}

    def __getitem__(self, index: int) -> PlatformLink:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, block = self._block(index)
        return block.link(index) if isinstance(block, ClusterZone) else block[index - start]

    def add(self, links: tuple[PlatformLink, ...]) -> Links:
        """Add a link, or both directions of one; return the numbers."""
        numbers = tuple(range(self._count, self._count + len(links)))
        self.written |= {link.name: number for link, number in zip(links, numbers, strict=True)}
        self._append(links, len(links))
        return numbers

    def add_hosts(self, cluster: ClusterZone) -> None:
        """Add the links of all hosts of a cluster, numbered from its `first` on."""
        self._clusters[cluster.name] = cluster
        self._append(cluster, len(cluster.hosts) * len(cluster.kinds))

    def number(self, name: str) -> int | None:
        """Return the number of a link; None if there is none of that name."""
        own = self.of_host(name)
        return self.written.get(name) if own is None else own

    def of_host(self, name: str) -> int | None:
        """Return the number of a link that belongs to a cluster's host; None for other names."""
        stem, _, rest = name.rpartition("_link_")
        cluster = self._clusters.get(stem)
        match = re.fullmatch(rf"(0|[1-9][0-9]{{0,{DIGITS - 1}}})(|_[A-Za-z]+)", rest)
        if cluster is None or match is None:
            return None
        endings = [kind.name for kind in cluster.kinds]
        place = cluster.hosts.place_of(int(match[1]))
        if place is None or match[2] not in endings:
            return None
        return cluster.first + place * len(endings) + endings.index(match[2])

    def flipped(self, number: int) -> int:
        """Return the number of the same cable in the other direction."""
        start, block = self._block(number)
        if isinstance(block, ClusterZone):
            return block.flipped(number)
        return start + len(block) - 1 - (number - start)


class HostNames(_Blocks[str | NumberedNames]):
    """The names of all hosts, in the order of the file; clusters' as ranges."""

    def __getitem__(self, place: int) -> str:
        start, block = self._block(place)
        return block if isinstance(block, str) else block.name(place - start)

    def add(self, block: str | NumberedNames) -> None:
        """Add a host, or those of a cluster."""
        self._append(block, 1 if isinstance(block, str) else len(block))


@dataclass
class Homes:
    """The zone of each host and router. `written`: of those with an element of their own."""

    written: dict[str, Zone] = field(default_factory=dict)
    routers: set[str] = field(default_factory=set)
    clusters: list[ClusterZone] = field(default_factory=list)

    def zones(self, name: str) -> list[Zone]:
        """Return the zones that have a host or router of that name; more than one is a mistake."""
        found = [self.written[name]] if name in self.written else []
        return [*found, *self._of_hosts(name)]

    def repeated(self) -> str | None:
        """Return a name that is there twice, if any is.

        Hosts of two clusters whose prefixes or suffixes differ may have the same name, too, which
        is noticed when that host is used.
        """
        for spans in self._families.values():
            for (_, last, _), (first, _, zone) in pairwise(spans):
                if first <= last:
                    return f"{zone.hosts.prefix}{first}{zone.hosts.suffix}"
        return next((name for name in self.written if len(self.zones(name)) > 1), None)

    def _of_hosts(self, name: str) -> Iterator[ClusterZone]:
        if not self._families:
            return
        for digits in re.finditer("[0-9]+", name):
            for start in range(*digits.span()):
                stops = range(start + 1, min(start + DIGITS, digits.end()) + 1)
                for stop in stops[:1] if name[start] == "0" else stops:
                    spans = self._families.get((name[:start], name[stop:]), [])
                    number = int(name[start:stop])
                    at = bisect_right(spans, number, key=lambda span: span[0]) - 1
                    if at >= 0 and number <= spans[at][1]:
                        yield spans[at][2]

    @cached_property
    def _families(self) -> dict[tuple[str, str], list[tuple[int, int, ClusterZone]]]:
        """First and last number of each range of hosts, in order, by prefix and suffix."""
        found: dict[tuple[str, str], list[tuple[int, int, ClusterZone]]] = {}
        for zone in self.clusters:
            family = found.setdefault((zone.hosts.prefix, zone.hosts.suffix), [])
            family += [(part[0], part[-1], zone) for part in zone.hosts.ranges]
        for family in found.values():
            family.sort(key=lambda span: span[:2])
        return found


def links_of(home: Zone, host: str) -> Links:
    """Return the numbers of the links that a cluster made for a host; none elsewhere."""
    return home.of(host, tuple(range(len(home.kinds)))) if isinstance(home, ClusterZone) else ()


@dataclass(frozen=True)
class Platform:
    """A platform.

    `digest`: of the file's text. `hosts`: in the order of the file; `members`: the places in it of
    each zone's hosts. `named`: numbers of the links that the file names, or that belong to the
    gateways of its routes.
    """

    file: str
    digest: str
    wires: Wires = field(compare=False, repr=False)
    hosts: HostNames = field(compare=False, repr=False)
    members: dict[str, range] = field(compare=False, repr=False)
    homes: Homes = field(compare=False, repr=False)
    named: frozenset[int] = field(compare=False, repr=False)

    def __contains__(self, place: object) -> bool:
        """Tell whether there is a host at a place: a host itself, a zone or a cluster."""
        if not isinstance(place, str):
            return False
        return bool(self.members.get(place)) or self._is_host(place)

    def host(self, place: str | None, turn: int = 0) -> str:
        """Return the host that a place's node number `turn` takes; None: of all hosts."""
        if place is not None and self._is_host(place):
            return place
        within = range(len(self.hosts)) if place is None else self.members[place]
        return self.hosts[within[turn % len(within)]]

    def links_of(self, host: str) -> Links:
        """Return the numbers of the links that a cluster made for a host."""
        return links_of(self._home(host), host)

    def route(self, source: str, to: str) -> Links:
        """Return the links that a transfer from one host to another passes, in order.

        Within one host there are none, unless its cluster has a loopback. Raises InputError if the
        file has no route.
        """
        if source == to:
            home = self._home(source)
            return home.of(source, home.loopback) if isinstance(home, ClusterZone) else ()
        return self._between(source, to)

    def _between(self, source: str, to: str) -> Links:
        if source == to:
            return ()
        above, beside = ([*around(self._home(end))][::-1] for end in (source, to))
        shared = sum(a is b for a, b in zip(above, beside, strict=False))
        zone = above[shared - 1]
        ends = [
            line[shared].name if len(line) > shared else name
            for line, name in ((above, source), (beside, to))
        ]
        edges = zone.edge(*ends) if zone.routing != "None" else []
        if not edges:
            raise InputError(
                f"{self.file} has no route from {ends[0]} to {ends[1]} in the zone {zone.name}; "
                "add it, or place the workers elsewhere"
            )
        links = [*self._between(source, edges[0].leaves), *edges[0].links]
        for before, edge in pairwise(edges):
            links += self._between(before.enters, edge.leaves)
            links += edge.links
        return (*links, *self._between(edges[-1].enters, to))

    def _is_host(self, place: str) -> bool:
        return place not in self.homes.routers and bool(self.homes.zones(place))

    def _home(self, name: str) -> Zone:
        home, *others = self.homes.zones(name)
        if others:
            raise InputError(
                f"{self.file} has {name} in {home.name} and in {others[0].name}; "
                "give each its own name"
            )
        return home
