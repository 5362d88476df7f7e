"""Build the graph of `network.model = "flows"`: lines, and routes of transfers.

A line is one direction of a link or a network card, shared by transfers. A route leaves by the
sender's card, follows the path of lines between the two places, and arrives by the receiver's card.
Two places use their direct link, or their row in the table of regions. Otherwise they use the path
over links with the shortest expected latency or, if no links connect them, a separate line with
the numbers of [network]. Nodes without a region have only their network cards between them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from ...distributions.law import Law
from ...distributions.parametric import Constant
from ...distributions.time_profile import TimeProfile
from ...scenario.network import Link
from ...scenario.scenario import Scenario
from .. import tcp
from .places import Places

Pair = tuple[str, str]
Card = tuple[tuple[int, ...], tuple[int, ...]]
"""The lines of a node's network card, to send and to receive."""
PICOSECONDS = 1e12  # per second; every hop adds one, so the fewest hops win among equal paths
FOREVER = 1e9  # seconds, instead of a latency without a mean


@dataclass(frozen=True)
class Line:
    """One direction of a link or network card.

    `capacity`: bytes/s, inf: unlimited. `per_flow`: whether every flow has the whole capacity.
    `profile`: factor of the capacity over time, None for 1.
    """

    name: str
    capacity: float
    per_flow: bool = False
    profile: TimeProfile | None = None

    def capacities(self) -> Iterator[tuple[float, float]]:
        """Yield pairs (time, capacity from then on) lazily, beginning at time 0."""
        last = None
        for time, factor in self.profile.segments() if self.profile else [(0.0, 1.0)]:
            if factor != last:
                yield time, self.capacity * factor
            last = factor


class PlacePath(NamedTuple):
    """A path between places: lines, latency (the sum of `laws`), and TCP window.

    `window`: largest number of bytes in flight on one connection, inf: unlimited.
    """

    lines: tuple[int, ...]
    laws: tuple[Law, ...]
    window: float = inf


class NetworkGraph:
    """Places joined by links; `lines`: all of them, `sites`: each node's place."""

    def __init__(self, scenario: Scenario) -> None:
        self.lines: list[Line] = []
        self.network, self.places = scenario.network, Places(scenario)
        self.direct: dict[Pair, int] = {}
        places = self.places
        self.sites = [places.of(rank) for rank in range(scenario.cluster.workers + 1)]
        self.homes = list(dict.fromkeys(self.sites))
        for link in self.network.link:
            if link.between[0] != link.between[1]:
                self._join(*link.between, link)
        table, ends = self.network.regions, {end for pair in self.direct for end in pair}
        regions = {region for region in (*places.regions, places.server) if region}
        self.meeting = [home for home in self.homes if home in regions | ends]
        for pair in combinations(self.meeting, 2):
            if pair not in self.direct and table and table.row(*pair):
                self._join(*pair)
        self.linked = dict.fromkeys(self.direct)
        for pair in self.pairs():
            if regions & {*pair} and not self._path(*pair):
                self._join(*pair)
        nics = scenario.cluster.of_workers("nic")
        self.cards = [self._card(rank, nic) for rank, nic in enumerate(nics)]
        self.cards.append(self._card(len(self.cards), scenario.server.bandwidth or inf))

    def _card(self, rank: int, nic: float | None) -> Card:
        """Add a network card's lines, with sharing and profile of the inner link."""
        site, first = self.sites[rank], len(self.lines)
        name = "server" if rank == len(self.places.regions) else f"worker {rank}"
        line, node_rates = self.places.line(site, site), self.places.node_rates(rank)
        for way, own, rate in zip(("out", "in"), node_rates, line, strict=True):
            self._add(f"{name} {way}", own or nic or rate, self.places.link(site, site))
        return (first,), (first + 1,)

    def _join(self, source: str, to: str, link: Link | None = None) -> None:
        for ends in [(source, to), (to, source)]:
            self.direct[ends] = len(self.lines)
            self._add("->".join(ends), min(self.places.line(*ends)), link)

    def _add(self, name: str, capacity: float, link: Link | None) -> None:
        line = Line(name, capacity)
        if link is not None:
            line = replace(line, per_flow=link.sharing == "per-flow", profile=link.profile)
        self.lines.append(line)

    def pairs(self) -> Iterator[Pair]:
        """Yield every pair of places with nodes that lines may join."""
        meeting = set(self.meeting)
        for place, source in enumerate(self.meeting):
            yield from ((source, to) for to in self.meeting[place + 1 :])
            yield from ((source, to) for to in self.homes if to not in meeting)

    def between(self, source: str, to: str) -> PlacePath:
        """Return the path between two places; inside a place it is only a latency."""
        path = [(source, to)]
        if source != to and (source, to) not in self.direct:
            path = self._path(source, to) or path
        lines = tuple(self.direct[hop] for hop in path if hop in self.direct)
        laws = tuple(law for hop in path for law in self.places.laws(*hop))
        windows = [self.places.setting(*hop, "tcp_window") for hop in path]
        return PlacePath(
            lines, laws, min([window for window in windows if window is not None] or [inf])
        )

    def _path(self, source: str, to: str) -> list[Pair]:
        """Return the hops between two places over links; empty if no links connect them."""
        if (source, to) in self.linked:
            return [(source, to)]
        numbers, before = self._paths
        if source not in numbers or to not in numbers:
            return []
        names, ends, here = [*numbers], [to], numbers[to]
        while here != numbers[source]:
            here = int(before[numbers[source], here])
            if here < 0:
                return []
            ends.append(names[here])
        return list(pairwise(reversed(ends)))

    @cached_property
    def _paths(self) -> tuple[dict[str, int], np.ndarray]:
        """The number of each place, and the place before the last on the fastest path of a pair."""
        from scipy.sparse.csgraph import floyd_warshall  # noqa: PLC0415 - 0.1 s

        names = dict.fromkeys(name for hop in self.linked for name in hop)
        numbers = {name: number for number, name in enumerate(names)}
        times = np.full((len(names), len(names)), inf)
        for source, to in self.linked:
            latency = sum(law.expectation for law in self.places.laws(source, to))
            times[numbers[source], numbers[to]] = min(latency, FOREVER) * PICOSECONDS + 1
        return numbers, floyd_warshall(times, return_predecessors=True)[1]

    def idle(self) -> list[int]:
        """Return the indices of the [[network.link]] that no path between nodes uses."""
        paths = (self.between(*ends) for pair in self.pairs() for ends in (pair, pair[::-1]))
        used = {number for path in paths for number in path.lines}
        idle = []
        for index, link in enumerate(self.network.link):
            source, to = link.between
            lines = {self.direct[pair] for pair in ((source, to), (to, source)) if source != to}
            if not (lines & used if lines else source in self.homes):
                idle.append(index)
        return idle


class Hosts:
    """A SimGrid platform, used like `NetworkGraph`; its links include the cards.

    The nodes of a region (a host, cluster or zone) use its hosts in turn; a node without a region
    uses the host of its rank. Links of a cluster's hosts are lines only for hosts in use.
    """

    def __init__(self, scenario: Scenario) -> None:
        platform = scenario.network.platform
        assert platform is not None
        self.platform, self.network = platform, scenario.network
        places = Places(scenario)
        self.sites: list[str] = []
        turn: Counter[str | None] = Counter()
        for rank, region in enumerate((*places.regions, places.server)):
            self.sites.append(platform.host(region, rank if region is None else turn[region]))
            turn[region] += 1
        used = (
            number
            for host in dict.fromkeys(self.sites)
            for number in platform.host_links.get(host, ())
        )
        numbers = sorted({*platform.shared_links, *used})
        self._line = {number: line for line, number in enumerate(numbers)}
        wires = map(platform.wires.__getitem__, numbers)
        self.lines = [Line(link.name, link.capacity, link.per_flow) for link in wires]
        self.cards: list[Card] = [((), ())] * len(self.sites)
        if scenario.server.bandwidth is not None:
            last = len(self.lines)
            self.cards[-1] = (last,), (last + 1,)
            names = ("server out", "server in")
            self.lines += [Line(name, scenario.server.bandwidth) for name in names]

    def between(self, source: str, to: str) -> PlacePath:
        """Return the path between two hosts, or between the first hosts of two zones."""
        links = self.platform.route(self.platform.host(source), self.platform.host(to))
        lines = tuple(self._line[number] for number in links)
        latency = sum(self.platform.wires[number].latency for number in links)
        laws: list[Law] = [Constant.model_construct(value=latency)]
        if self.network.jitter is not None and lines:
            laws.append(self.network.jitter)
        return PlacePath(lines, tuple(laws), self.network.tcp_window or inf)


@dataclass(frozen=True)
class Route:
    """The route of a transfer.

    `lines`: numbers of its lines in order; a line passed twice occurs twice. `laws`: the latency
    is the sum of one draw from every law. `limit`: highest rate in bytes/s, by TCP's window.
    """

    lines: tuple[int, ...]
    laws: tuple[Law, ...]
    limit: float


class Topology:
    """The graph of a scenario. Ranks: the workers, then the server."""

    def __init__(self, scenario: Scenario) -> None:
        self._network = scenario.network
        self._graph = Hosts(scenario) if scenario.network.platform else NetworkGraph(scenario)
        self._routes: dict[tuple[int, ...], Route] = {}
        usable = tcp.usable(scenario.network)
        self.lines = [replace(line, capacity=line.capacity * usable) for line in self._graph.lines]

    def route(self, ranks: tuple[int, ...]) -> Route:
        """Return the route of a pipelined flow through all ranks, in order.

        Hops are separate TCP connections, whose windows limit the rate by the round trip.
        """
        if ranks not in self._routes:
            lines: tuple[int, ...] = ()
            laws: tuple[Law, ...] = ()
            graph, limits = self._graph, [inf]
            for source, to in pairwise(ranks):
                path = graph.between(graph.sites[source], graph.sites[to])
                lines += graph.cards[source][0] + path.lines + graph.cards[to][1]
                laws += path.laws
                if latency := sum(law.expectation for law in path.laws):
                    window = tcp.window(self._network, path.window if path.window < inf else None)
                    limits.append(window / (2 * latency))
            self._routes[ranks] = Route(lines, laws, min(limits))
        return self._routes[ranks]
