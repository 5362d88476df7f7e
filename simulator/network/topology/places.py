"""Find the place of each node, and the settings of [network] between places."""

from math import inf
from typing import Any

from ...distributions.law import Law
from ...scenario.network import Link
from ...scenario.scenario import Scenario


class Places:
    """The places of nodes: their regions; a node without one is its own place."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.regions = [worker.region for worker in scenario.team.workers]
        self.server = scenario.server.region
        groups = scenario.cluster.group
        self._node_rates = [
            (group.up, group.down) for group in groups for _ in range(group.workers)
        ]
        self._links = {frozenset(link.between): link for link in self.settings.link}

    def of(self, rank: int) -> str:
        """Return the place of a node; the rank after the workers is the server."""
        if rank == len(self.regions):
            return self.server or "server"
        return self.regions[rank] or f"worker {rank}"

    def link(self, source: str, to: str) -> Link | None:
        """Return the [[network.link]] between two places (in either order), or inside one."""
        return self._links.get(frozenset((source, to)))

    def setting(self, source: str, to: str, key: str) -> Any:
        """Return `key` between two places, from their link, the region table or [network].

        The region table may have different values by direction. None if nothing sets the key.
        """
        table = self.settings.regions
        settings = [self.link(source, to), table and table.row(source, to)]
        values = (getattr(setting, key, None) for setting in (*settings, self.settings))
        return next((value for value in values if value is not None), None)

    def rates(self, source: int, to: int) -> tuple[float, float]:
        """Return the bytes/s that a node may send to another, and the other receive.

        inf: unlimited. A link between two places limits both ends. Without one, workers have
        separate lines, and the server's line is unlimited.
        """
        ends, server = (self.of(source), self.of(to)), len(self.regions)
        (out, into), link, table = self.line(*ends), self.link(*ends), self.settings.regions
        up, down = self.node_rates(source)[0] or inf, self.node_rates(to)[1] or inf
        row = table and table.row(*ends)
        direct = (link and (link.up or link.down or link.bandwidth)) or (row and row.bandwidth)
        if source == to or (ends[0] != ends[1] and direct):
            return min(out, up), min(into, down)
        return (
            inf if source == server else up if up < inf else out,
            inf if to == server else down if down < inf else into,
        )

    def node_rates(self, rank: int) -> tuple[float | None, float | None]:
        """Return the uplink and downlink bandwidths set by a node's group."""
        return self._node_rates[rank] if rank < len(self._node_rates) else (None, None)

    def line(self, source: str, to: str) -> tuple[float, float]:
        """Return the bytes/s that may leave a place, and enter another, or inf."""
        link, table, settings = self.link(source, to), self.settings.regions, self.settings
        row = table and table.row(source, to)
        rates = []
        for key in ("up", "down"):
            way = key if source == to else "up" if link and link.between[0] == source else "down"
            given = [getattr(link, way), link.bandwidth] if link else []
            given += [row.bandwidth if row else None, getattr(settings, key), settings.bandwidth]
            rates.append(next((rate for rate in given if rate is not None), inf))
        return rates[0], rates[1]

    def laws(self, source: str, to: str) -> tuple[Law, ...]:
        """Return the laws whose sum is the latency of one hop."""
        laws = (self.setting(source, to, key) for key in ("latency", "jitter"))
        return tuple(law for law in laws if law is not None)
