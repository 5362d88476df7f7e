"""What communication costs, in closed form: alpha-beta per collective and per message.

A collective has a critical path of hops, each paying one draw of its link's latency, and a serial
transmission time during which the workers' links are held. Collectives start in order, the next as
soon as the links are free: the latency of one overlaps the transmission of the next.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.distributions.random_streams import Purpose, blocks, generator
from paceline.simulator.network.fabric import rounds
from paceline.simulator.network.fabric.rounds import Round
from paceline.simulator.network.topology.places import Places
from paceline.simulator.scenario.scenario import Scenario

Team = tuple[int, ...] | None
"""The workers that take part in a collective, in rank order; None: all of them."""


@dataclass(frozen=True)
class RegionPath:
    """One way between two places. Rates in bytes/s; a hop's latency is the sum of its `laws`."""

    name: str
    laws: tuple[Law, ...]
    bandwidth: float

    @property
    def latency(self) -> float:
        """Expected seconds of one hop."""
        return sum(law.expectation for law in self.laws)

    @property
    def is_constant(self) -> bool:
        """Whether every hop takes the same time."""
        return all(law.is_constant for law in self.laws)

    def sample(self, rng: np.random.Generator, hops: int) -> float:
        """Seconds that `hops` hops in a row take."""
        return float(sum(law.sample(rng, hops).sum() for law in self.laws))


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds one collective holds the links, and seconds its latency adds."""

    transmission: float
    latency: float


@dataclass(frozen=True)
class CollectivePlan:
    """A collective, whatever its size: hops on its critical path, bytes it moves per payload byte.

    `path`: hops by link. `held`: seconds that the links are held per payload byte.
    `moved`: bytes over each link (by name) per payload byte.
    """

    path: dict[RegionPath, int]
    held: float
    moved: dict[str, float]


class ClosedForm:
    """The network of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.places = Places(scenario)
        self.regions = self.places.regions
        self.model_bytes = scenario.model.bytes
        self.overhead = scenario.costs
        self.charged: set[str] = set()  # names of links between regions, whose bytes are egress
        self._links: dict[tuple[int, int], RegionPath] = {}
        self._plans: dict[tuple[str, tuple[int, ...]], CollectivePlan] = {}

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.regions)

    def link(self, source: int, to: int) -> RegionPath:
        """The link from one node to another; rank `workers` is the server."""
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

    def way(self, source: int, to: int) -> RegionPath:
        """The link as a message finds it: with what messages cost beside its latency."""
        link, added = self.link(source, to), self.overhead.message
        if not added:
            return link
        return replace(link, laws=(*link.laws, Constant.model_construct(value=added)))

    @cached_property
    def mean_plan(self) -> CollectivePlan:
        """The average over all workers of one payload, by the scenario's collective."""
        return self.plan("mean", tuple(range(self.workers)))

    @cached_property
    def gather_plan(self) -> CollectivePlan:
        """Every worker's payload to every worker."""
        return self.plan("gather", tuple(range(self.workers)))

    def plan(self, kind: str, members: tuple[int, ...]) -> CollectivePlan:
        """A collective ("mean" or "gather") of some of the workers."""
        if (kind, members) not in self._plans:
            self._plans[kind, members] = self._plan(kind, list(members))
        return self._plans[kind, members]

    def _plan(self, kind: str, team: list[int]) -> CollectivePlan:  # noqa: PLR0911
        if len(team) < 2:
            return CollectivePlan({}, 0.0, {})
        if kind == "gather":  # around the ring: m - 1 hops, m - 1 payloads
            return self._around(team, len(team) - 1, float(len(team) - 1))
        match self.settings.collective:
            case "given":
                return CollectivePlan({}, 0.0, {})
            case "ring":
                return self._ring(team)
            case "tree":
                return self._rounds(rounds.tree(team))
            case "recursive-doubling":
                return self._rounds(rounds.recursive_doubling(team))
            case "halving-doubling":
                return self._rounds(rounds.halving_doubling(team))
            case "star":
                return self._star(team)
            case _:
                return self._hierarchical(team)

    def _around(self, team: list[int], hops: int, volume: float) -> CollectivePlan:
        """`hops` steps around a ring, `volume` payloads over each of its links.

        Steps overlap around the ring, so the slowest link sets the pace and the worst `hops`
        consecutive links set the latency.
        """
        ring = [self.link(a, b) for a, b in pairwise([*team, team[0]])]
        if len(team) == 1:
            return CollectivePlan({}, 0.0, {})
        rounds, rest = divmod(hops, len(ring))
        sums = np.cumsum([0.0, *(link.latency for link in ring + ring)])
        first = int(np.argmax(sums[rest : rest + len(ring)] - sums[: len(ring)]))
        worst = Counter({link: times * rounds for link, times in Counter(ring).items() if rounds})
        worst.update((ring + ring)[first : first + rest])
        moved: defaultdict[str, float] = defaultdict(float)
        for link in ring:
            moved[link.name] += volume
        return CollectivePlan(
            dict(Counter(worst)), volume / min(k.bandwidth for k in ring), dict(moved)
        )

    def _ring(self, team: list[int]) -> CollectivePlan:
        """Reduce-scatter, then all-gather: 2(m - 1) hops, 2(m - 1)/m payloads over each link."""
        m = len(team)
        return self._around(team, 2 * (m - 1), 2 * (m - 1) / m)

    def _rounds(self, parts: list[Round]) -> CollectivePlan:
        """Messages at the same time, round after round: of each the slowest sets the pace."""
        worst: Counter[RegionPath] = Counter()
        held = 0.0
        moved: defaultdict[str, float] = defaultdict(float)
        for each in parts:
            links = [self.link(a, b) for a, b in each.pairs]
            worst[max(links, key=lambda link: link.latency)] += 1
            held += each.share / min(link.bandwidth for link in links)
            for link in links:
                moved[link.name] += each.share
        return CollectivePlan(dict(worst), held, dict(moved))

    def _star(self, team: list[int]) -> CollectivePlan:
        """Worker 0 takes in m - 1 payloads one after another and sends m - 1 back."""
        spokes = [(rank, team[0]) for rank in team[1:]]
        links = [self.link(a, b) for a, b in spokes]
        worst = max(links, key=lambda link: link.latency)
        return CollectivePlan(
            {worst: 2}, sum(2 / k.bandwidth for k in links), self._both_ways(spokes)
        )

    def _hierarchical(self, members: list[int]) -> CollectivePlan:
        """A ring inside each region, a ring of their first workers, a pipeline back into each.

        Inside a single region it is the ring alone.
        """
        regions: dict[str | None, list[int]] = {}
        for rank in members:
            regions.setdefault(self.regions[rank], []).append(rank)
        teams = [team for team in regions.values() if len(team) > 1]
        phases = [[self._ring(team) for team in teams]]
        if len(regions) > 1:
            phases.append([self._ring([team[0] for team in regions.values()])])
            phases.append([self._pipeline(team) for team in teams])
        path: Counter[RegionPath] = Counter()
        held = 0.0
        moved: defaultdict[str, float] = defaultdict(float)
        for phase in filter(None, phases):
            path.update(max(phase, key=_expected_latency).path)
            held += max(plan.held for plan in phase)
            for plan in phase:
                for name, volume in plan.moved.items():
                    moved[name] += volume
        return CollectivePlan(dict(path), held, dict(moved))

    def _pipeline(self, team: list[int]) -> CollectivePlan:
        """From the first worker through each to the last: m - 1 hops, a payload over each link."""
        links = Counter(self.link(a, b) for a, b in pairwise(team))
        moved = {link.name: float(hops) for link, hops in links.items()}
        return CollectivePlan(dict(links), 1 / min(link.bandwidth for link in links), moved)

    def _both_ways(self, pairs: list[tuple[int, int]]) -> dict[str, float]:
        moved: defaultdict[str, float] = defaultdict(float)
        for a, b in pairs:
            moved[self.link(a, b).name] += 1
            moved[self.link(b, a).name] += 1
        return dict(moved)

    def mean_cost(self) -> CollectiveCost:
        """Expected cost of averaging the whole model."""
        if self.settings.collective == "given" and self.workers > 1:
            assert self.settings.duration is not None
            return CollectiveCost(self.settings.duration.expectation, 0.0)
        plan = self.mean_plan
        return CollectiveCost(plan.held * self.model_bytes, _expected_latency(plan))


def _expected_latency(plan: CollectivePlan) -> float:
    return sum(link.latency * hops for link, hops in plan.path.items())


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
        self._payloads: defaultdict[tuple[str, Team], float] = defaultdict(float)
        self._messages: dict[tuple[int, int], MessageRoute] = {}

    def _plan(self, kind: str, team: Team = None) -> CollectivePlan:
        if team is not None:
            return self.network.plan(kind, team)
        return self.network.mean_plan if kind == "mean" else self.network.gather_plan

    def collective(
        self, kind: str, payload: float, largest: float | None = None, team: Team = None
    ) -> tuple[float, float]:
        """Return (transmission, latency) in seconds of the next collective of `payload` bytes.

        Where the workers' payloads differ, that is their mean, and the `largest` sets the pace.
        `team`: the workers that take part, in rank order; None: all.
        """
        self.count(kind, payload, team)
        return self.cost(kind, largest or payload, team)

    def count(self, kind: str, payload: float, team: Team = None) -> None:
        """Count the bytes of a collective."""
        self._payloads[kind, team] += payload

    def cost(self, kind: str, payload: float, team: Team = None) -> tuple[float, float]:
        """Return (transmission, latency) in seconds of the next collective, drawing the random."""
        settings = self.network.settings
        if settings.collective == "given" and self.network.workers > 1:
            assert settings.duration is not None
            duration = float(settings.duration.sample(self._rng, 1)[0])
            return self._real(duration * payload / self.network.model_bytes, 0.0)
        plan = self._plan(kind, team)
        if (kind, team) not in self._fixed:
            constant = all(link.is_constant for link in plan.path)
            self._fixed[kind, team] = _expected_latency(plan) if constant else None
        latency = self._fixed[kind, team]
        if latency is None:
            latency = sum(link.sample(self._rng, hops) for link, hops in plan.path.items())
        return self._real(plan.held * payload, latency) if plan.moved else (0.0, 0.0)

    def _real(self, transmission: float, latency: float) -> tuple[float, float]:
        """With what a real system adds."""
        overhead = self.network.overhead
        return (
            transmission * overhead.transmission_factor,
            latency * overhead.latency_factor + overhead.collective,
        )

    def is_constant(self, kind: str) -> bool:
        """Whether equal collectives always cost the same."""
        settings = self.network.settings
        if settings.collective == "given" and self.network.workers > 1:
            assert settings.duration is not None
            return settings.duration.is_constant
        return all(link.is_constant for link in self._plan(kind).path)

    def volumes(self, kind: str) -> tuple[float, float]:
        """Bytes that a collective moves in all, and as egress, per byte of its payload."""
        moved = self._plan(kind).moved
        charged = (size for name, size in moved.items() if name in self.network.charged)
        return sum(moved.values()), sum(charged)

    def route(self, source: int, to: int) -> "MessageRoute":
        """The way from one node to another, for its messages."""
        if (source, to) not in self._messages:
            link, size = self.network.way(source, to), self.network.model_bytes
            key = source * (self.network.workers + 1) + to
            self._messages[source, to] = self._make_route(link, size, self._seed, key)
        return self._messages[source, to]

    def links(self) -> dict[str, float]:
        """Bytes so far over each link, by "from->to"."""
        total: defaultdict[str, float] = defaultdict(float)
        for (kind, team), payload in self._payloads.items():
            for name, volume in self._plan(kind, team).moved.items():
                total[name] += volume * payload
        for route in self._messages.values():
            total[route.link.name] += route.bytes
        return {name: total[name] for name in sorted(total)}

    def totals(self) -> tuple[float, float]:
        """Bytes so far over all links, and over those that are charged as egress."""
        links = self.links()
        charged = (size for name, size in links.items() if name in self.network.charged)
        return sum(links.values()), sum(charged)


class Nic:
    """One direction of a network card, as a clock: it lets one payload through at a time."""

    def __init__(self, bandwidth: float) -> None:
        self._seconds_per_byte = 1 / bandwidth
        self._free = 0.0

    def through(self, at: float, size: float) -> float:
        """When a payload of `size` bytes that comes at `at` is through."""
        self._free = max(self._free, at) + size * self._seconds_per_byte
        return self._free


class MessageRoute:
    """Messages from one node to another.

    `whole_transit`: seconds that a whole model is on its way, where that is always the same.
    `bytes` counts what was sent. The engine keeps the rest: how many are `in_flight`, when the
    `last` one arrives, which `version` of the parameters it had, the `node` at the far end, and the
    `receiving_nic` that messages arrive through, if any.
    """

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
        self.bytes = self.last = 0.0
        self.in_flight = self.version = 0
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
        """Send through a network card, which other routes share."""
        if card is not None:
            self._departs, self.whole_transit = card, None

    def send(self, now: float, size: float) -> tuple[float, float]:
        """When a message of `size` bytes sent `now` arrives, and how long it is on its way."""
        self.bytes += size
        latency = self._latency if self._latencies is None else next(self._latencies)
        transit = latency + size * self._seconds_per_byte
        leaves = now if self._departs is None else self._departs.through(now, size)
        return leaves + transit, transit
