"""The zones of a SimGrid platform, and the edges inside each.

The hosts and links of a cluster are kept as ranges of numbers, and made when they are asked for.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

Links = tuple[int, ...]
"""Numbers of links, in the order that a transfer passes them."""
DIGITS = 9  # of a host's number, at most


@dataclass(frozen=True)
class PlatformLink:
    """A link, or one direction of one: capacity in bytes/s, latency in seconds."""

    name: str
    capacity: float
    latency: float
    per_flow: bool


@dataclass(frozen=True)
class Edge:
    """Links from one end to another; where the ends are zones, from which node to which."""

    links: Links
    leaves: str
    enters: str


@dataclass(frozen=True)
class NumberedNames:
    """Names made of a prefix, each number of some disjoint ranges in turn, and a suffix."""

    prefix: str
    suffix: str
    ranges: tuple[range, ...]

    def __len__(self) -> int:
        return self._starts[-1]

    def number(self, place: int) -> int:
        """Return the number in the name at a place."""
        part = bisect_right(self._starts, place) - 1
        return self.ranges[part][place - self._starts[part]]

    def name(self, place: int) -> str:
        """Return the name at a place."""
        return f"{self.prefix}{self.number(place)}{self.suffix}"

    def place(self, name: str) -> int | None:
        """Return the place of a name; None if it is not one of them."""
        digits = name[len(self.prefix) : len(name) - len(self.suffix)]
        if not re.fullmatch(rf"[0-9]{{1,{DIGITS}}}", digits):
            return None
        place = self.place_of(int(digits))
        return place if place is not None and self.name(place) == name else None

    def place_of(self, number: int) -> int | None:
        """Return the place of the name with a number; None if there is none."""
        at = bisect_right(self._ordered, number, key=lambda part: self.ranges[part].start) - 1
        part = self._ordered[at]
        inside = at >= 0 and number in self.ranges[part]
        return self._starts[part] + number - self.ranges[part].start if inside else None

    @cached_property
    def _starts(self) -> list[int]:
        """The place of the first number of each range, and the number of names."""
        return [*accumulate(map(len, self.ranges), initial=0)]

    @cached_property
    def _ordered(self) -> list[int]:
        return sorted(range(len(self.ranges)), key=lambda part: self.ranges[part].start)


@dataclass
class Zone:
    """Hosts, routers and zones, and the edges between them.

    `routing` "Full": every pair has its own edge; "Floyd" and "Dijkstra": the fewest links;
    "None": there are no routes. `members`: their places by name.
    """

    name: str
    routing: str
    parent: "Zone | None"
    members: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)

    def edge(self, source: str, to: str) -> list[Edge]:
        """Return the edges that lead from one member to another; none if there is no route."""
        if self.routing == "Full":
            return [self.edges[source, to]] if (source, to) in self.edges else []
        found, before, names = [], self._before, [*self.members]
        start, here = self.members[source], self.members[to]
        while here != start:
            previous = int(before[start, here])
            if previous < 0:
                return []
            found.append(self.edges[names[previous], names[here]])
            here = previous
        return found[::-1]

    @cached_property
    def _before(self) -> np.ndarray:
        """The member before the last one on the shortest way, shape (members, members)."""
        from scipy.sparse.csgraph import floyd_warshall  # noqa: PLC0415 - 0.1 s

        links = np.full((len(self.members), len(self.members)), np.inf)
        for (source, to), edge in self.edges.items():
            links[self.members[source], self.members[to]] = len(edge.links)
        before: np.ndarray = floyd_warshall(links, return_predecessors=True)[1]
        return before


@dataclass
class ClusterZone(Zone):
    """Hosts around a router: up its own links, perhaps over a backbone, and down another's.

    Each host has the links `kinds`, whose names are endings, numbered from `first` on, host by
    host; `up`, `down`, `loopback` and `flip` are places in `kinds`.
    """

    hosts: NumberedNames = NumberedNames("", "", ())
    first: int = 0
    kinds: tuple[PlatformLink, ...] = ()
    up: Links = ()
    down: Links = ()
    loopback: Links = ()
    flip: Links = ()
    backbone: Links = ()

    def edge(self, source: str, to: str) -> list[Edge]:
        """Return the edge between two hosts, or between a host and the router."""
        links = self.of(source, self.up) + self.backbone + self.of(to, self.down)
        return [Edge(links, source, to)]

    def of(self, host: str, places: Links) -> Links:
        """Return links of a host by their places in `kinds`; none of the router."""
        place = self.hosts.place(host)
        if place is None:
            return ()
        return tuple(self.first + place * len(self.kinds) + each for each in places)

    def link(self, number: int) -> PlatformLink:
        """Return a link of a host by its number."""
        place, kind = divmod(number - self.first, len(self.kinds))
        ending = self.kinds[kind]
        name = f"{self.name}_link_{self.hosts.number(place)}{ending.name}"
        return PlatformLink(name, ending.capacity, ending.latency, ending.per_flow)

    def flipped(self, number: int) -> int:
        """Return the number of the same cable in the other direction."""
        place, kind = divmod(number - self.first, len(self.kinds))
        return self.first + place * len(self.kinds) + self.flip[kind]


def around(zone: Zone | None) -> Iterator[Zone]:
    """Yield a zone and those around it, innermost first."""
    while zone is not None:
        yield zone
        zone = zone.parent
