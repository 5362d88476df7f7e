"""The place of each node, and the settings of [network] from one place to another."""

from typing import Any

from paceline.simulator.cluster.workers import workers
from paceline.simulator.distributions.law import Law
from paceline.simulator.scenario.network import Link
from paceline.simulator.scenario.scenario import Scenario


class Places:
    """The places of a scenario's nodes: regions; a node without a region is its own place."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.regions = [worker.region for worker in workers(scenario)]
        self.server = scenario.server.region
        self._links = {frozenset(link.between): link for link in self.settings.link}

    def of(self, rank: int) -> str:
        """Return the place of a node; the rank after the workers' is the server."""
        if rank == len(self.regions):
            return self.server or "server"
        return self.regions[rank] or f"worker {rank}"

    def link(self, source: str, to: str) -> Link | None:
        """Return the [[network.link]] between two places, in either order, or inside one."""
        return self._links.get(frozenset((source, to)))

    def setting(self, source: str, to: str, key: str) -> Any:
        """Return setting `key` between two places: their link's, the region table's or [network]'s.

        The table of regions may have a value for each direction. None where none of them sets it.
        """
        table = self.settings.regions
        said = [self.link(source, to), table and table.row(source, to)]
        found = (getattr(each, key, None) for each in (*said, self.settings))
        return next((value for value in found if value is not None), None)

    def laws(self, source: str, to: str) -> tuple[Law, ...]:
        """Return the laws whose sum is the latency of one hop."""
        laws = (self.setting(source, to, key) for key in ("latency", "jitter"))
        return tuple(law for law in laws if law is not None)
