"""The graph of a SimGrid platform: its hosts are the places of nodes, its links the lines."""

from collections import Counter
from math import inf

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.network.topology.graph import NicLines, PlacePath, add_loads
from paceline.simulator.network.topology.places import Places
from paceline.simulator.network.topology.traffic_shape import Line
from paceline.simulator.scenario.scenario import Scenario


class Hosts:
    """The same interface as `graph.NetworkGraph`, on a platform, whose links include the cards.

    The nodes of a region (a host, cluster or zone) take its hosts in turn; a node without a region
    takes the host of its rank.
    """

    def __init__(self, scenario: Scenario) -> None:
        platform = scenario.network.platform
        assert platform is not None
        self.platform, self.network = platform, scenario.network
        places = Places(scenario)
        self.sites: list[str] = []
        turn: Counter[str] = Counter()
        for rank, region in enumerate((*places.regions, places.server)):
            hosts = platform.hosts if region is None else platform.hosts_of(region)
            place = rank if region is None else turn[region]
            self.sites.append(hosts[place % len(hosts)])
            turn[region or ""] += 1
        self.lines = [Line(link.name, link.capacity, link.per_flow) for link in platform.wires]
        add_loads(scenario, self)
        self.cards = [NicLines()] * len(self.sites)
        if scenario.server.bandwidth is not None:
            last = len(self.lines)
            self.cards[-1] = NicLines((last,), (last + 1,))
            names = ("server out", "server in")
            self.lines += [Line(name, scenario.server.bandwidth) for name in names]

    def between(self, source: str, to: str) -> PlacePath:
        """Return the path between two hosts, or between the first hosts of two zones."""
        ends = (self.platform.hosts_of(place)[0] for place in (source, to))
        lines = self.platform.route(*ends)
        latency = sum(self.platform.wires[number].latency for number in lines)
        laws: list[Law] = [Constant.model_validate({"value": f"{latency!r} s"})]
        if self.network.jitter is not None and lines:
            laws.append(self.network.jitter)
        return PlacePath(lines, tuple(laws), self.network.tcp_window or inf)
