"""The graph of a SimGrid platform: its hosts are the places of nodes, its links the lines."""

from collections import Counter
from math import inf

from ...distributions.law import Law
from ...distributions.parametric import Constant
from ...scenario.scenario import Scenario
from .graph import NicLines, PlacePath, add_loads
from .places import Places
from .traffic_shape import Line


class Hosts:
    """The same interface as `graph.NetworkGraph`, on a platform, whose links include the cards.

    The nodes of a region (a host, cluster or zone) take its hosts in turn; a node without a region
    takes the host of its rank. Of the links of a cluster's hosts, those of hosts in use are lines.
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
        ends = [platform.host(end) for each in self.network.background for end in each.between]
        used = (
            number
            for host in dict.fromkeys([*self.sites, *ends])
            for number in platform.host_links.get(host, ())
        )
        numbers = sorted({*platform.shared_links, *used})
        self._line = {number: line for line, number in enumerate(numbers)}
        wires = map(platform.wires.__getitem__, numbers)
        self.lines = [Line(link.name, link.capacity, link.per_flow) for link in wires]
        add_loads(scenario, self)
        self.cards = [NicLines()] * len(self.sites)
        if scenario.server.bandwidth is not None:
            last = len(self.lines)
            self.cards[-1] = NicLines((last,), (last + 1,))
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
