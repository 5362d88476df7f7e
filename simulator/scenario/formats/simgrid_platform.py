"""A SimGrid platform: its zones, its hosts and links by name and number, and routes between hosts.

A route between two zones leads from a gateway of the one to a gateway of the other; the parts
before and after it are routed inside the zones (SimGrid's hierarchical routing, as in its 3.32).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from ...errors import InputError

Links = tuple[int, ...]
"""Numbers of links, in the order that a transfer passes them."""


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
        edges, before, names = [], self._before, [*self.members]
        start, here = self.members[source], self.members[to]
        while here != start:
            previous = int(before[start, here])
            if previous < 0:
                return []
            edges.append(self.edges[names[previous], names[here]])
            here = previous
        return edges[::-1]

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
class Cluster(Zone):
    """Hosts around a router: up a host's links, perhaps over a backbone, and down another's.

    `up`, `down` and `loopback` are links by host; the router has none.
    """

    up: dict[str, Links] = field(default_factory=dict)
    down: dict[str, Links] = field(default_factory=dict)
    loopback: dict[str, Links] = field(default_factory=dict)
    backbone: Links = ()

    def edge(self, source: str, to: str) -> list[Edge]:
        """Return the edge between two hosts, or between a host and the router."""
        links = self.up.get(source, ()) + self.backbone + self.down.get(to, ())
        return [Edge(links, source, to)]


def around(zone: Zone | None) -> Iterator[Zone]:
    """Yield a zone and those around it, innermost first."""
    while zone is not None:
        yield zone
        zone = zone.parent


@dataclass(frozen=True)
class Platform:
    """A platform.

    `digest`: of the file's text. `wires`: all links by number, in the order of the file; `hosts`:
    in that order, too; `members`: the places in it of each zone's hosts. `homes`: the zone of each
    host and router; `own`: the links that a cluster made for each of its hosts. `named`: numbers of
    the links that the file names, or that belong to the gateways of its routes.
    """

    file: str
    digest: str
    wires: list[PlatformLink] = field(compare=False, repr=False)
    hosts: list[str] = field(compare=False, repr=False)
    members: dict[str, range] = field(compare=False, repr=False)
    homes: dict[str, Zone] = field(compare=False, repr=False)
    routers: set[str] = field(compare=False, repr=False)
    own: dict[str, Links] = field(compare=False, repr=False)
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

    def route(self, source: str, to: str) -> Links:
        """Return the links that a transfer from one host to another passes, in order.

        Within one host there are none, unless its cluster has a loopback. Raises InputError if the
        file has no route.
        """
        if source == to:
            home = self.homes[source]
            return home.loopback[source] if isinstance(home, Cluster) else ()
        return self._between(source, to)

    def _between(self, source: str, to: str) -> Links:
        if source == to:
            return ()
        above, beside = ([*around(self.homes[end])][::-1] for end in (source, to))
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
        return place in self.homes and place not in self.routers
