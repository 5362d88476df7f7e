"""Make a real run as slow as the scenario's network: nothing arrives sooner than the scenario says.

Latencies are drawn by the simulator's own code from its own keyed streams, so that a collective's
n-th delay is the same number in both. Every rank computes the same sums from the shared times of
issue, so that all agree without further messages.
"""

from math import nan
from typing import NamedTuple

from paceline.simulator.engines.sampling import Sampled
from paceline.simulator.network.closed_form import ClosedForm, Nic, Team, Traffic
from paceline.simulator.network.mean_cost import download_cost, download_source
from paceline.simulator.programs import Program
from paceline.simulator.scenario.scenario import Scenario

from .clock import Clock
from .packing import TensorMeter


class Accounting(NamedTuple):
    """What counts a node's bytes and time."""

    meter: TensorMeter
    network: "RealNetwork"
    clock: Clock


class RealNetwork:
    """The real network: nothing is delayed; bytes are counted as in simulation.

    `traffic` counts what this rank sends and, on rank 0, all collectives; `heard`: what it
    receives.
    """

    def __init__(self, scenario: Scenario, seed: int, rank: int) -> None:
        network = ClosedForm(scenario)
        self.traffic, self.heard = Traffic(network, seed), Traffic(network, seed)
        self._rank, self._model_bytes = rank, round(scenario.model.bytes)

    def downloads(self, source: int | None) -> None:
        """Count the model's bytes from a node, if there is one that has it."""
        if source is not None:
            self.traffic.add_message(source, self._rank, self._model_bytes)

    def collective(
        self, kind: str, size: float, largest: float | None, joined: float, team: Team = None
    ) -> tuple[float, float]:
        """Return when the next collective begins and is due, from the last to join.

        `size`: mean bytes of the payloads; `largest`: bytes of the largest, if they differ; `team`:
        the workers that take part, in rank order; None: all.
        """
        return joined, joined

    def starts(self, kind: str, size: float, team: Team = None) -> None:
        """Count a collective of payloads of `size` bytes; rank 0 does so for all."""
        if self._rank == 0:
            self.traffic.count(kind, size, team)

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """Return when a message leaves, and its transit time (nan: unknown)."""
        self.traffic.route(self._rank, to).bytes += round(size)
        return now, nan

    def receives(self, size: float, due: float) -> float:
        """Return when a message is through this node's network card."""
        return due

    def hears(self, sender: int, size: float) -> None:
        """Count a message that is received."""
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
        self, kind: str, size: float, largest: float | None, joined: float, team: Team = None
    ) -> tuple[float, float]:
        """Begin when the links are free; due after the scenario's time."""
        begins = max(joined, self._links_free)
        transmission, latency = self.traffic.cost(kind, largest or size, team)
        transmission += self.traffic.waking(kind, largest or size, begins, self._links_free, team)
        self._links_free = begins + transmission
        return begins, self._links_free + latency

    def sends(self, to: int, size: float, now: float) -> tuple[float, float]:
        """Return when it leaves and its transit, not before the previous message."""
        route = self.traffic.route(self._rank, to)
        route.leave_through(self._card_out)
        due, transit = route.send(now, size)
        route.last = due = max(due, route.last)
        return due - transit, transit

    def receives(self, size: float, due: float) -> float:
        """Pass one message at a time through the card."""
        return due if self._card_in is None else self._card_in.through(due, size)


class Selection(NamedTuple):
    """Whom each round selects. `download`: seconds in which a client selected anew gets the model
    from the node `source` (None: from none).

    The others compute nothing, and bring zeros to the round's collective, which do not count.
    """

    rank: int
    rule: Sampled | None = None
    download: float = 0.0
    source: int | None = None

    def team(self, index: int) -> Team:
        """Return the workers that a collective takes, in rank order; None: all."""
        if self.rule is None or self.rule.wanted == self.rule.workers:
            return None
        return tuple(sorted(self.rule.chosen(index, 0.0)))

    def leaves_out(self, team: Team) -> bool:
        """Tell whether this worker is not in a team."""
        return team is not None and self.rank not in team


def selection(program: Program, scenario: Scenario, seed: int, rank: int) -> Selection:
    """Return the selection of a scenario, as worker `rank` needs it."""
    settings = scenario.cluster.sampling
    if settings is None or not program.rounds:
        return Selection(rank)
    rule = Sampled(scenario.cluster, settings, seed, lambda rank, at: False)
    served = program.server is not None
    seconds = sum(download_cost(scenario, served)(rank))
    return Selection(rank, rule, seconds, download_source(scenario, served)(rank))
