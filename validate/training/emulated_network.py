"""The network of a scenario, added to the real one: nothing ends sooner than the scenario says.

Latencies are drawn by the simulator's own code from its own keyed streams, so that a collective's
n-th delay is the same number in both. Every rank does the same sums from the same shared times of
issue, so that all agree without another word.
"""

from math import nan

from paceline.simulator.network.closed_form import ClosedForm, Nic, Traffic
from paceline.simulator.scenario.scenario import Scenario


class RealNetwork:
    """The network as it is: things are done when they are; bytes are counted as in simulation.

    `traffic` counts what this rank sends, and on rank 0 all collectives; `heard`: what it receives.
    """

    def __init__(self, scenario: Scenario, seed: int, rank: int) -> None:
        network = ClosedForm(scenario)
        self.traffic, self.heard = Traffic(network, seed), Traffic(network, seed)
        self._rank = rank

    def collective(
        self, kind: str, size: float, largest: float | None, joined: float
    ) -> tuple[float, float]:
        """When the next collective, all of whose ranks have `joined`, begins and is due.

        `size`: mean bytes of the payloads; `largest`: of the largest one, where they differ.
        """
        return joined, joined

    def starts(self, kind: str, size: float) -> None:
        """Count a collective of payloads of `size` bytes: one rank does so for all."""
        if self._rank == 0:
            self.traffic.count(kind, size)

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """When a message of `size` bytes leaves, and how long it is on its way (nan: who knows)."""
        self.traffic.route(self._rank, to).bytes += size
        return now, nan

    def receives(self, size: float, due: float) -> float:
        """When a message is through the network card that it arrives at."""
        return due

    def hears(self, sender: int, size: float) -> None:
        """Count a message that is received."""
        self.heard.route(sender, self._rank).bytes += size

    def totals(self) -> tuple[float, float]:
        """Bytes so far that this rank knows of, and those of them that are charged as egress."""
        moved, charged = self.traffic.totals()
        more, paid = self.heard.totals()
        return moved + more, charged + paid


class EmulatedNetwork(RealNetwork):
    """Delays of [network] in closed form."""

    def __init__(self, scenario: Scenario, seed: int, rank: int) -> None:
        super().__init__(scenario, seed, rank)
        self._links_free = 0.0
        card = scenario.server.bandwidth if rank == scenario.cluster.workers else None
        self._card_in = Nic(card) if card else None
        self._card_out = Nic(card) if card else None

    def collective(
        self, kind: str, size: float, largest: float | None, joined: float
    ) -> tuple[float, float]:
        """It begins when the links are free, and is due when the scenario says."""
        begins = max(joined, self._links_free)
        transmission, latency = self.traffic.cost(kind, largest or size)
        self._links_free = begins + transmission
        return begins, self._links_free + latency

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """It is due when the scenario says, and after the one before it."""
        route = self.traffic.route(self._rank, to)
        route.leave_through(self._card_out)
        due, transit = route.send(now, size)
        route.last = due = max(due, route.last)
        return due - transit, transit

    def receives(self, size: float, due: float) -> float:
        """Cards let one message through at a time."""
        return due if self._card_in is None else self._card_in.through(due, size)
