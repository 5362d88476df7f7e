"""Cost communication in closed form: alpha-beta formulas per collective and per message.

A collective has a critical path of hops, each paying one draw of its link's latency, and a serial
transmission time during which it holds the workers' links (`collectives`). Collectives start in
order, the next as soon as the links are free: the latency of one overlaps the transmission of the
next. A server's messages pass its network card (NIC) one at a time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.distributions.random_streams import Purpose, blocks, generator
from paceline.simulator.network.collectives import (
    COLLECTIVES,
    GATHER,
    NOTHING_SENT,
    CollectivePlan,
)
from paceline.simulator.network.region_path import RegionPath
from paceline.simulator.network.topology.places import Places
from paceline.simulator.scenario.scenario import Scenario

Team = tuple[int, ...] | None
"""The workers that take part in a collective, in rank order; None: all of them."""


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds for which one collective holds the links, and seconds that its latency adds."""

    transmission: float
    latency: float


class ClosedForm:
    """The links of a scenario's network and the plans of its collectives, the same for all seeds.

    `regions`: of each worker. `given`: the law of the seconds of a mean of the whole model, where
    [network] says them; else None. `charged`: names of links whose bytes are egress.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.places = Places(scenario)
        self.regions = self.places.regions
        self.model_bytes = scenario.model.bytes
        self.overhead = scenario.costs
        self.given = scenario.network.duration if self.workers > 1 else None
        self.charged: set[str] = set()
        self._links: dict[tuple[int, int], RegionPath] = {}
        self._plans: dict[tuple[str, tuple[int, ...]], CollectivePlan] = {}

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.regions)

    def link(self, source: int, to: int) -> RegionPath:
        """Return the link from one node to another; rank `workers` is the server."""
        if (source, to) not in self._links:
            self._links[source, to] = self._make(source, to)
        return self._links[source, to]

    def _make(self, source: int, to: int) -> RegionPath:
        places = self.places
        ends = places.of(source), places.of(to)
        if ends[0] != ends[1]:  # without regions every worker is a place of its own
            self.charged.add("->".join(ends))
        bandwidth = places.setting(*ends, "bandwidth") or inf
        link = RegionPath("->".join(ends), places.laws(*ends), bandwidth)
        window = places.setting(*ends, "tcp_window")
        if window is None or not link.latency:
            return link
        return replace(link, bandwidth=min(link.bandwidth, window / (2 * link.latency)))

    @property
    def hop(self) -> float:
        """Expected seconds of latency between the first two workers."""
        return self.link(0, min(1, self.workers - 1)).latency

    def message_link(self, source: int, to: int) -> RegionPath:
        """Return the link with the overhead of one message added to its latency."""
        link, added = self.link(source, to), self.overhead.message
        if not added:
            return link
        return replace(link, laws=(*link.laws, Constant.model_construct(value=added)))

    @cached_property
    def mean_plan(self) -> CollectivePlan:
        """The scenario's collective, averaging over all workers."""
        return self.plan("mean", tuple(range(self.workers)))

    @cached_property
    def gather_plan(self) -> CollectivePlan:
        """The all-gather among all workers."""
        return self.plan("gather", tuple(range(self.workers)))

    def plan(self, kind: str, members: tuple[int, ...]) -> CollectivePlan:
        """Return the plan of a collective, "mean" or "gather", of some of the workers."""
        if (kind, members) not in self._plans:
            self._plans[kind, members] = self._plan(kind, members)
        return self._plans[kind, members]

    def _plan(self, kind: str, team: tuple[int, ...]) -> CollectivePlan:
        if len(team) < 2:
            return NOTHING_SENT
        found = GATHER if kind == "gather" else COLLECTIVES[self.settings.collective]
        return found.formula(self, team)

    def mean_cost(self) -> CollectiveCost:
        """Return the expected cost of averaging the whole model."""
        if self.given is not None:
            return CollectiveCost(self.given.expectation, 0.0)
        plan = self.mean_plan
        return CollectiveCost(plan.held * self.model_bytes, plan.latency)


class Traffic:
    """One run's communication: its random draws, and the bytes it moves."""

    def __init__(
        self, network: ClosedForm, seed: int, route: "Callable[..., MessageRoute] | None" = None
    ) -> None:
        self.network = network
        self._seed = seed
        self._make_route = route or MessageRoute
        self._rng = generator(seed, Purpose.COLLECTIVE)
        self._fixed: dict[tuple[str, Team], float | None] = {}
        self._payloads: defaultdict[tuple[str, Team], int] = defaultdict(int)  # bytes
        self._volumes: dict[tuple[str, Team], tuple[float, float]] = {}
        self._messages: dict[tuple[int, int], MessageRoute] = {}

    def _plan(self, kind: str, team: Team = None) -> CollectivePlan:
        if team is not None:
            return self.network.plan(kind, team)
        return self.network.mean_plan if kind == "mean" else self.network.gather_plan

    def collective(
        self, kind: str, payload: float, largest: float | None = None, team: Team = None
    ) -> tuple[float, float]:
        """Count the next collective; return its (transmission, latency) in seconds.

        `payload`: bytes of one worker; where the workers' payloads differ, their mean, and the
        `largest` sets the pace. `team`: the workers that take part, in rank order; None: all.
        """
        self.count(kind, payload, team)
        return self.cost(kind, largest or payload, team)

    def count(self, kind: str, payload: float, team: Team = None) -> None:
        """Count the bytes of a collective: whole ones, whose sums do not depend on their order."""
        self._payloads[kind, team] += round(payload)

    @property
    def begun(self) -> bool:
        """Whether a collective has been counted."""
        return bool(self._payloads)

    def cost(self, kind: str, payload: float, team: Team = None) -> tuple[float, float]:
        """Draw what is random of the next collective; return (transmission, latency) in seconds."""
        given = self.network.given
        if given is not None:
            duration = float(given.sample(self._rng, 1)[0])
            return self._real(duration * payload / self.network.model_bytes, 0.0)
        plan = self._plan(kind, team)
        if (kind, team) not in self._fixed:
            constant = all(link.is_constant for link in plan.path)
            self._fixed[kind, team] = plan.latency if constant else None
        latency = self._fixed[kind, team]
        if latency is None:
            latency = sum(link.sample(self._rng, hops) for link, hops in plan.path.items())
        return self._real(plan.held * payload, latency) if plan.moved else (0.0, 0.0)

    def _real(self, transmission: float, latency: float) -> tuple[float, float]:
        """Add the overheads of a real system, as calibrated."""
        overhead = self.network.overhead
        return (
            transmission * overhead.transmission_factor,
            latency * overhead.latency_factor + overhead.collective,
        )

    def is_constant(self, kind: str) -> bool:
        """Return whether equal collectives always cost the same."""
        given = self.network.given
        if given is not None:
            return given.is_constant
        return all(link.is_constant for link in self._plan(kind).path)

    def volumes(self, kind: str, team: Team = None) -> tuple[float, float]:
        """Return the bytes that a collective moves, in all and as egress, per byte of payload."""
        if (kind, team) not in self._volumes:
            moved = self._plan(kind, team).moved
            charged = sum(size for name, size in moved.items() if name in self.network.charged)
            self._volumes[kind, team] = sum(moved.values()), charged
        return self._volumes[kind, team]

    def route(self, source: int, to: int) -> "MessageRoute":
        """Return the route of the messages from one node to another."""
        if (source, to) not in self._messages:
            link, size = self.network.message_link(source, to), self.network.model_bytes
            key = source * (self.network.workers + 1) + to
            self._messages[source, to] = self._make_route(link, size, self._seed, key)
        return self._messages[source, to]

    def links(self) -> dict[str, float]:
        """Return the bytes so far over each link, by "from->to"."""
        total: defaultdict[str, float] = defaultdict(int)
        for (kind, team), payload in self._payloads.items():
            for name, volume in self._plan(kind, team).moved.items():
                total[name] += volume * payload
        for route in self._messages.values():
            total[route.link.name] += route.bytes
        return {name: float(total[name]) for name in sorted(total)}

    def phases(self) -> dict[str, dict[str, float]]:
        """Return nothing: the stages of a collective are not told apart."""
        return {}

    def totals(self) -> tuple[float, float]:
        """Return the whole bytes so far over all links, and those charged as egress.

        Payloads are added up before they are multiplied, as all engines do.
        """
        moved = charged = 0.0
        for (kind, team), payload in self._payloads.items():
            each, egress = self.volumes(kind, team)
            moved += payload * each
            charged += payload * egress
        sent = [(route.bytes, route.link.name) for route in self._messages.values()]
        own = sum(size for size, _ in sent)
        paid = sum(size for size, name in sent if name in self.network.charged)
        return float(round(moved) + own), charged + paid


class Nic:
    """One direction of a network card, which passes one payload at a time, in order of arrival."""

    def __init__(self, bandwidth: float) -> None:
        self._seconds_per_byte = 1 / bandwidth
        self._free = 0.0

    def through(self, at: float, size: float) -> float:
        """Return when a payload of `size` bytes that arrives at time `at` has passed the card."""
        self._free = max(self._free, at) + size * self._seconds_per_byte
        return self._free


class MessageRoute:
    """The messages from one node to another.

    `whole_transit`: seconds that a whole model is in transit, where they are always the same, else
    None. `bytes`: whole ones sent so far. The engine keeps the rest: how many messages are
    `in_flight`, when the `last` one arrives, the `version` of the parameters that it carries, the
    `node` at the far end, and the `receiving_nic` that messages arrive through, or None.
    """

    shared = False  # its cost does not depend on other messages in flight
    delay = 0.0  # seconds by which crashes delayed the last message

    __slots__ = (
        "_departs",
        "_latencies",
        "_latency",
        "_seconds_per_byte",
        "bytes",
        "in_flight",
        "last",
        "link",
        "node",
        "receiving_nic",
        "version",
        "whole_transit",
    )  # fmt: skip

    def __init__(self, link: RegionPath, model_bytes: float, seed: int, key: int) -> None:
        self.link = link
        self.last = 0.0
        self.bytes = self.in_flight = self.version = 0
        self.node: Any = None
        self.receiving_nic: Nic | None = None
        self.whole_transit: float | None = None
        self._departs: Nic | None = None
        self._latency, self._latencies = link.latency, None
        self._seconds_per_byte = 1 / link.bandwidth
        if link.is_constant:
            self.whole_transit = self._latency + model_bytes * self._seconds_per_byte
        else:
            rng = generator(seed, Purpose.MESSAGE, key)
            self._latencies = blocks(lambda n: np.array([link.sample(rng, 1) for _ in range(n)]))

    def leave_through(self, card: Nic | None) -> None:
        """Send through a network card, which other routes share; None: through none."""
        if card is not None:
            self._departs, self.whole_transit = card, None

    def send(self, now: float, size: float) -> tuple[float, float]:
        """Return when a message of `size` bytes sent `now` arrives, and its seconds in transit."""
        self.bytes += round(size)
        latency = self._latency if self._latencies is None else next(self._latencies)
        transit = latency + size * self._seconds_per_byte
        leaves = now if self._departs is None else self._departs.through(now, size)
        return leaves + transit, transit
