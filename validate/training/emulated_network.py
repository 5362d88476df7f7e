"""Slow a real run down to the scenario's network.

Latencies are drawn by the simulator's code from its keyed streams, so that a collective's n-th
delay is the same number in both. Every rank computes the same sums from the shared times of
issue, so that all agree without further messages.
"""

from math import nan
from typing import NamedTuple

from paceline.simulator.network.closed_form import ClosedForm, Nic, Traffic
from paceline.simulator.scenario.scenario import Scenario

from .clock import Clock
from .packing import TensorMeter


class Accounting(NamedTuple):
    """The counters of a node's bytes and time."""

    meter: TensorMeter
    network: "RealNetwork"
    clock: Clock


class RealNetwork:
    """The real network without delays; bytes are counted as in simulation.

    `traffic` counts the messages that this rank sends and, on rank 0, all collectives; `heard`
    counts the messages it receives.
    """

    def __init__(self, scenario: Scenario, seed: int, rank: int) -> None:
        network = ClosedForm(scenario)
        self.traffic, self.heard = Traffic(network, seed), Traffic(network, seed)
        self._rank = rank

    def collective(
        self, kind: str, size: float, largest: float | None, joined: float
    ) -> tuple[float, float]:
        """Return when the next collective begins and is due (s); `joined`: the last join.

        `size`: mean bytes of the payloads; `largest`: bytes of the largest, if they differ.
        """
        return joined, joined

    def starts(self, kind: str, size: float) -> None:
        """Count a collective of payloads of `size` bytes; rank 0 does so for all."""
        if self._rank == 0:
            self.traffic.count(kind, size)

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """Return when a message leaves (s), and its transit time (s; nan: unknown)."""
        self.traffic.route(self._rank, to).bytes += round(size)
        return now, nan

    def receives(self, size: float, due: float) -> float:
        """Return when a message has passed this node's network card (s)."""
        return due

    def hears(self, sender: int, size: float) -> None:
        """Count a received message."""
        self.heard.route(sender, self._rank).bytes += round(size)

    def totals(self) -> tuple[float, float]:
        """Return the bytes that this rank counted, and those charged as egress."""
        moved, charged = self.traffic.totals()
        more, paid = self.heard.totals()
        return moved + more, charged + paid


class EmulatedNetwork(RealNetwork):
    """The real network plus the delays of [network] in closed form."""

    def __init__(self, scenario: Scenario, seed: int, rank: int) -> None:
        super().__init__(scenario, seed, rank)
        self._links_free = 0.0
        card = scenario.server.bandwidth if rank == scenario.cluster.workers else None
        self._card_in = Nic(card) if card else None
        self._card_out = Nic(card) if card else None

    def collective(
        self, kind: str, size: float, largest: float | None, joined: float
    ) -> tuple[float, float]:
        """Return when the links are free for a collective, and when it is due."""
        begins = max(joined, self._links_free)
        transmission, latency = self.traffic.cost(kind, largest or size)
        transmission += self.traffic.network.waking(kind, largest or size, begins, self._links_free)
        self._links_free = begins + transmission
        return begins, self._links_free + latency

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """Return when a message leaves and its transit; it arrives after the previous one."""
        route = self.traffic.route(self._rank, to)
        route.leave_through(self._card_out)
        arrival, transit = route.send(now, size)
        route.last = arrival = max(arrival, route.last)
        return arrival - transit, transit

    def receives(self, size: float, due: float) -> float:
        """Return when a message has passed the network card, which passes one at a time."""
        return due if self._card_in is None else self._card_in.through(due, size)
