"""The network as a graph, for `network.model = "flows"`: lines, and the way of every transfer.

A line is one direction of a link between two places, or of a node's network card; transfers share
it. A transfer leaves by its sender's card, passes the lines between the places, and arrives by the
receiver's card.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from paceline.simulator.distributions.law import Law
from paceline.simulator.network.topology.graph import NetworkGraph, Stretch, spells
from paceline.simulator.network.topology.hosts import Hosts
from paceline.simulator.network.topology.places import Places
from paceline.simulator.network.topology.traffic_shape import Line, TimesInForce
from paceline.simulator.scenario.scenario import Scenario

__all__ = ["Greedy", "Line", "Route", "Topology"]


@dataclass(frozen=True)
class Route:
    """How a transfer goes.

    lines: numbers of the lines it passes, in order (one that it passes twice is there twice). laws:
    its latency is their sum. limit: its highest rate (bytes/s), by TCP's window. rtt: twice its
    expected latency (seconds).
    """

    lines: tuple[int, ...]
    laws: tuple[Law, ...]
    limit: float
    rtt: float


@dataclass(frozen=True)
class Greedy:
    """A flow of somebody else's: without end, and there in certain spells."""

    way: Route
    spells: TimesInForce


class Topology:
    """The graph of a scenario. Ranks are the workers' and, after them, the server's."""

    def __init__(self, scenario: Scenario) -> None:
        self.places = Places(scenario)
        platform = scenario.network.platform
        self._graph = NetworkGraph(scenario) if platform is None else Hosts(scenario)
        self._scenario = scenario
        self._ways: dict[tuple[int, ...], Route] = {}
        self.lines: list[Line] = self._graph.lines
        self._numbers = list(range(len(self.lines)))

    def among(self, lines: list[Line], name: str) -> "Topology":
        """This graph, on lines of another one that are called alike; what is new is added to them.

        Network cards are always new, and are called by the `name` too.
        """
        cards = {number for card in self._graph.cards for number in (*card.out, *card.into)}
        known = {line.name: number for number, line in enumerate(lines)}
        for number, line in enumerate(self.lines):
            own = number in cards and not self._on_hosts
            called = f"{name} {line.name}" if own else line.name
            if called not in known:
                known[called] = len(lines)
                lines.append(replace(line, name=called))
            self._numbers[number] = known[called]
        self._ways.clear()
        return self

    def way(self, ranks: tuple[int, ...]) -> Route:
        """The way from the first rank to the last; through those between, in one pipelined flow.

        Each hop is a TCP connection of its own: its window limits the rate by its own round trip.
        """
        if ranks not in self._ways:
            graph = self._graph
            lines: tuple[int, ...] = ()
            stretches = []
            for source, to in pairwise(ranks):
                stretch = graph.between(graph.sites[source], graph.sites[to])
                lines += graph.cards[source].out + stretch.lines + graph.cards[to].into
                stretches.append(stretch)
            self._ways[ranks] = _way(tuple(self._numbers[line] for line in lines), stretches)
        return self._ways[ranks]

    def hop(self, source: int, to: int) -> str:
        """The ends of a transfer, "from->to": regions, or nodes where there are none."""
        return f"{self._end(source)}->{self._end(to)}"

    def charged(self, source: int, to: int) -> bool:
        """Whether a transfer leaves its region, so that its bytes are egress."""
        return self._end(source) != self._end(to)

    def _end(self, rank: int) -> str:
        """A place as `hop` names it; on a platform, nodes without a region go by their hosts."""
        server = rank == len(self.places.regions)
        region = self.places.server if server else self.places.regions[rank]
        return region or (self._graph.sites[rank] if self._on_hosts else self.places.of(rank))

    @property
    def _on_hosts(self) -> bool:
        return isinstance(self._graph, Hosts)

    @property
    def changing(self) -> list[int]:
        """Numbers of the lines whose capacity is not the same all the time."""
        return [number for number, line in enumerate(self.lines) if line.changes]

    def capacities(self, line: int, seed: int) -> Iterator[tuple[float, float]]:
        """Yield (time, capacity from then on) of a line, the first at 0, as far as anybody asks."""
        return self.lines[line].capacities(seed)

    def greedy(self) -> list[Greedy]:
        """The flows of [[network.background]], which share lines and never end."""
        found = []
        for index, traffic in enumerate(self._scenario.network.background):
            if traffic.flows is not None:
                stretch = self._graph.between(*traffic.between)
                flow = Greedy(_way(stretch.lines, [stretch]), spells(self._scenario, index))
                found += [flow] * traffic.flows
        return found


def _way(lines: tuple[int, ...], stretches: list[Stretch]) -> Route:
    limits = [each.window / (2 * each.latency) for each in stretches if each.latency]
    laws = tuple(law for each in stretches for law in each.laws)
    return Route(lines, laws, min(limits, default=inf), 2 * sum(law.expectation for law in laws))
