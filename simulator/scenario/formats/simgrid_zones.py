"""Find routes on a SimGrid platform: zones inside zones, each with a routing of its own.

A route between two zones leads from a gateway of the one to a gateway of the other; the parts
before and after it are routed inside the zones (SimGrid's hierarchical routing, as in its 3.32).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np

from paceline.simulator.errors import InputError

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
    "None": there are no routes.
    """

    name: str
    routing: str
    parent: "Zone | None"
    members: list[str] = field(default_factory=list)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)

    def edge(self, source: str, to: str) -> list[Edge]:
        """Return the edges that lead from one member to another; none if there is no route."""
        if self.routing == "Full":
            return [self.edges[source, to]] if (source, to) in self.edges else []
        found, before = [], self._before
        place = {name: index for index, name in enumerate(self.members)}
        here = place[to]
        while here != place[source]:
            previous = before[place[source], here]
            if previous < 0:
                return []
            found.append(self.edges[self.members[previous], self.members[here]])
            here = previous
        return found[::-1]

    @cached_property
    def _before(self) -> np.ndarray:
        """The member before the last one on the shortest way, shape (members, members)."""
        from scipy.sparse.csgraph import floyd_warshall  # noqa: PLC0415 - 0.1 s

        place = {name: index for index, name in enumerate(self.members)}
        links = np.full((len(place), len(place)), inf)
        for (source, to), edge in self.edges.items():
            links[place[source], place[to]] = len(edge.links)
        before: np.ndarray = floyd_warshall(links, return_predecessors=True)[1]
        return before


@dataclass
class ClusterZone(Zone):
    """Hosts around a router: up its own links, perhaps over a backbone, and down another's."""

    up: dict[str, Links] = field(default_factory=dict)
    down: dict[str, Links] = field(default_factory=dict)
    backbone: Links = ()
    loopback: dict[str, Links] = field(default_factory=dict)

    def edge(self, source: str, to: str) -> list[Edge]:
        """Return the edge between two hosts, or between a host and the router."""
        links = self.up.get(source, ()) + self.backbone + self.down.get(to, ())
        return [Edge(links, source, to)]


@dataclass(frozen=True)
class Platform:
    """A platform. `hosts`: in file order; `members`: hosts of each zone by its name."""

    file: str
    wires: tuple[PlatformLink, ...]
    hosts: tuple[str, ...]
    members: dict[str, tuple[str, ...]]
    homes: dict[str, Zone] = field(compare=False, repr=False)

    def hosts_of(self, place: str) -> tuple[str, ...]:
        """Return the hosts of a place: a host itself, or all of a zone or cluster; or none."""
        return (place,) if place in self.hosts else self.members.get(place, ())

    def route(self, source: str, to: str) -> Links:
        """Return the links that a transfer from one host to another passes, in order.

        Within one host there are none, unless its cluster has a loopback. Raises InputError if the
        file has no route.
        """
        if source == to:
            home = self.homes[source]
            return home.loopback.get(source, ()) if isinstance(home, ClusterZone) else ()
        return self._between(source, to)

    def _between(self, source: str, to: str) -> Links:
        if source == to:
            return ()
        above, beside = ([*self._above(end)][::-1] for end in (source, to))
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
        links = self._between(source, edges[0].leaves)
        for before, edge in pairwise([None, *edges]):
            assert edge is not None
            if before is not None:
                links += self._between(before.enters, edge.leaves)
            links += edge.links
        return links + self._between(edges[-1].enters, to)

    def _above(self, name: str) -> Iterator[Zone]:
        """Yield the zones around a node, innermost first."""
        zone: Zone | None = self.homes[name]
        while zone is not None:
            yield zone
            zone = zone.parent
