"""The network as a graph, for `network.model = "flows"`: lines, and the route of every transfer.

A line is one direction of a link between two places, or of a node's network card; transfers share
it. A route leaves by the sender's card, follows the path of lines between the two places, and
arrives by the receiver's card.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from ...distributions.law import Law
from ...scenario.network import Network
from ...scenario.scenario import Scenario
from .. import tcp
from .graph import Hosts, NetworkGraph, PlacePath, background_times
from .places import Places
from .traffic_shape import Line, TimesInForce

__all__ = ["Greedy", "Line", "Route", "Topology"]


@dataclass(frozen=True)
class Route:
    """The route of a transfer.

    `lines`: their numbers, in order; a line passed twice occurs twice. `laws`: the latency is the
    sum of one draw of each. `limit`: highest rate in bytes/s, by TCP's window. `rtt`: round-trip
    time, twice the expected latency, in seconds.
    """

    lines: tuple[int, ...]
    laws: tuple[Law, ...]
    limit: float
    rtt: float


@dataclass(frozen=True)
class Greedy:
    """An endless background flow, which takes its fair share of its route in some intervals."""

    route: Route
    times: TimesInForce


class Topology:
    """The graph of a scenario. Ranks are those of the workers and, after them, the server."""

    def __init__(self, scenario: Scenario) -> None:
        self.places = Places(scenario)
        platform = scenario.network.platform
        self._graph = NetworkGraph(scenario) if platform is None else Hosts(scenario)
        self._scenario = scenario
        self._routes: dict[tuple[int, ...], Route] = {}
        usable = tcp.usable(scenario.network)
        self.lines: list[Line] = [
            replace(line, capacity=line.capacity * usable) for line in self._graph.lines
        ]

    def route(self, ranks: tuple[int, ...]) -> Route:
        """Return the route of a pipelined flow through all ranks in order.

        Each hop is a separate TCP connection, whose window limits the rate by its round trip.
        """
        if ranks not in self._routes:
            graph = self._graph
            lines: tuple[int, ...] = ()
            paths = []
            for source, to in pairwise(ranks):
                path = graph.between(graph.sites[source], graph.sites[to])
                lines += graph.cards[source].out + path.lines + graph.cards[to].into
                paths.append(path)
            self._routes[ranks] = _route(lines, paths, self._scenario.network)
        return self._routes[ranks]

    def hop(self, source: int, to: int) -> str:
        """Return the ends of a hop, "from->to": regions, or nodes without a region."""
        return f"{self._end(source)}->{self._end(to)}"

    def charged(self, source: int, to: int) -> bool:
        """Return whether a transfer leaves its region, so that its bytes are egress."""
        return self._end(source) != self._end(to)

    def _end(self, rank: int) -> str:
        """Return a node's place as `hop` names it: region, host of a platform, or node."""
        server = rank == len(self.places.regions)
        region = self.places.server if server else self.places.regions[rank]
        on_hosts = isinstance(self._graph, Hosts)
        return region or (self._graph.sites[rank] if on_hosts else self.places.of(rank))

    def greedy(self) -> list[Greedy]:
        """Return the endless flows of [[network.background]]."""
        flows = []
        for index, traffic in enumerate(self._scenario.network.background):
            if traffic.flows is not None:
                path = self._graph.between(*traffic.between)
                flow = Greedy(
                    _route(path.lines, [path], self._scenario.network),
                    background_times(self._scenario, index),
                )
                flows += [flow] * traffic.flows
        return flows


def _route(lines: tuple[int, ...], paths: list[PlacePath], network: Network) -> Route:
    windows = [tcp.window(network, path.window if path.window < inf else None) for path in paths]
    limits = [
        a / (2 * path.latency) for a, path in zip(windows, paths, strict=True) if path.latency
    ]
    laws = tuple(law for path in paths for law in path.laws)
    return Route(lines, laws, min(limits, default=inf), 2 * sum(law.expectation for law in laws))
