"""Where the nodes are, and what [network] says of the way from one place to another."""

from typing import Any

from paceline.simulator.cluster.workers import workers
from paceline.simulator.distributions.law import Law
from paceline.simulator.scenario.network import Link
from paceline.simulator.scenario.scenario import Scenario


class Places:
    """The places of a scenario's nodes: regions, or the nodes themselves where they have none."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.regions = [worker.region for worker in workers(scenario)]
        self.server = scenario.server.region
        self._links = {frozenset(link.between): link for link in self.settings.link}

    def of(self, rank: int) -> str:
        """The place of a worker; rank `workers` is the server."""
        if rank == len(self.regions):
            return self.server or "server"
        return self.regions[rank] or f"worker {rank}"

    def link(self, source: str, to: str) -> Link | None:
        """The link between two places, either way, or that inside one."""
        return self._links.get(frozenset((source, to)))

    def setting(self, source: str, to: str, key: str) -> Any:
        """What the link, the table of regions or else [network] says of `key` between two places.

        A table may say it of each direction.
        """
        table = self.settings.regions
        said = [self.link(source, to), table and table.row(source, to)]
        found = (getattr(each, key, None) for each in (*said, self.settings))
        return next((value for value in found if value is not None), None)

    def laws(self, source: str, to: str) -> tuple[Law, ...]:
        """What the latency of one hop is the sum of."""
        laws = (self.setting(source, to, key) for key in ("latency", "jitter"))
        return tuple(law for law in laws if law is not None)
