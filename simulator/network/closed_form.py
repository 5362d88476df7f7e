"""Cost communication in closed form: formulas per collective and per message.

A collective has a critical path of hops, with one draw of the link's latency per hop, and a
transmission time during which it occupies the workers' links (`collectives`). Collectives start in
order, as soon as the links are free: the latency of one overlaps the transmission of the next. A
server's messages pass its network card (NIC) one at a time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise, repeat
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ..distributions.law import Law
from ..distributions.parametric import Constant
from ..distributions.random_streams import Purpose, blocks, generator
from ..scenario.overhead import Overhead, Passage
from ..scenario.scenario import Scenario
from . import tcp
from .collectives import (
    COLLECTIVES,
    NOTHING_SENT,
    CollectivePlan,
    RegionPath,
    around,
    double_tree_plan,
    gather_plan,
    server_plan,
)
from .libraries import (
    CHUNK,
    Cluster,
    Loops,
    Segments,
    gloo_segments,
    nccl_choice,
    nccl_loops,
)
from .topology.places import Places

REMEMBERED = 10_000  # entries of a cache
HALVINGS = 40  # halvings after which every window equals the first
Team = tuple[int, ...] | None
"""The workers that take part in a collective, in rank order; None: all of them."""


class CollectiveCost(NamedTuple):
    """The seconds that a collective occupies the links, and its latency in seconds."""

    transmission: float
    latency: float


class Way(NamedTuple):
    """A library's execution of a collective of some size.

    `key`: identifies it in `ClosedForm.plan` and the counts of bytes. `pipeline`: how a ring hides
    latency. `delay`: seconds added by NCCL, whose collectives do not overlap; None: the next one
    may begin once the links are free. `extra`: seconds of transmission beyond the plan's, inside
    hosts or by a slower protocol. `other`: time of NCCL's other algorithm on the links,
    relative to this one. `within`: seconds of concurrent communication inside workers; `chunk`: its
    part before the first chunk is on the links and after the last one. `overlap`: most seconds for
    which the links carry chunks both ways.
    """

    key: str
    pipeline: Segments | Loops | None = None
    delay: float | None = None
    extra: float = 0.0
    other: float = 1.0
    within: float = 0.0
    chunk: float = 0.0
    overlap: float = 0.0

    def cost(
        self, added: Overhead, held: float, latency: float, passage: Passage
    ) -> tuple[float, float]:
        """Return the seconds on the links and the further latency of a plan's collective.

        Overheads of TCP and hosts apply only to transmission, even if NCCL's latency also occupies
        the links.
        """
        if isinstance(self.pipeline, Loops):
            whole = added.of_collective(held, 0.0, passage)[0] + self.extra
            latency = self.pipeline.latency(whole, latency)
        elif self.pipeline is not None:  # gloo's only thread cannot overlap its work
            latency = self.pipeline.latency(held, latency)
        if self.delay is None:
            on_links, latency = added.of_collective(held, latency, passage)
            on_links -= min(self.overlap, on_links / 2)
            return max(on_links, self.within), latency + self.chunk
        return sum(added.of_collective(held, latency + self.delay + self.extra, passage)), 0.0


class ClosedForm:
    """A scenario's links and the plans of its collectives, equal for all seeds.

    `regions`: the region of each worker. `card`: bytes/s of the server's network card per
    direction. `given`: the law of a whole model's mean (s), if [network] sets it; else None.
    `charged`: names of links whose bytes are egress.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.settings = scenario.network
        self.places = Places(scenario)
        self.regions = self.places.regions
        self.workers, self.card = len(self.regions), scenario.server.bandwidth or inf
        self.everyone = tuple(range(self.workers))
        self.model_bytes = scenario.model.bytes
        self.overhead = tcp.costs(scenario)
        self.given = scenario.network.duration if self.workers > 1 else None
        self._scenario = scenario
        self.charged: set[str] = set()
        self._links: dict[tuple[int, int], RegionPath] = {}
        self._plans: dict[tuple[str, tuple[int, ...]], CollectivePlan] = {}
        self._ways: dict[tuple[str, float, Team], Way] = {}
        self._pauses = lru_cache(REMEMBERED)(self.after_pause)
        self._groups = [group for group in scenario.cluster.group for _ in range(group.workers)]

    def link(self, source: int, to: int) -> RegionPath:
        """Return the link from one node to another; rank `workers` is the server."""
        if (source, to) not in self._links:
            self._links[source, to] = self._make(source, to)
        return self._links[source, to]

    def _make(self, source: int, to: int) -> RegionPath:
        places = self.places
        ends = places.of(source), places.of(to)
        if ends[0] != ends[1]:  # without regions every worker is a separate place
            self.charged.add("->".join(ends))
        usable = tcp.usable(self.settings)
        out, into = (rate * usable for rate in places.rates(source, to))
        link = RegionPath("->".join(ends), places.laws(*ends), min(out, into), out, into)
        window = tcp.window(self.settings, places.setting(*ends, "tcp_window"))
        if window == inf or not link.latency:
            return link
        return replace(link, bandwidth=min(link.bandwidth, window / (2 * link.latency)))

    @cached_property
    def staggered(self) -> bool:
        """Whether a worker that joins a collective late also leaves it late."""
        return self.settings.library == "gloo" and self.given is None and self.workers > 1

    @cached_property
    def _from_neighbour(self) -> np.ndarray[Any, Any]:
        size = self.workers
        return np.array([self.link((n - 1) % size, n).latency for n in range(size)])

    def ahead(
        self, joined: np.ndarray[Any, Any], kind: str, payload: float, latency: Any
    ) -> np.ndarray[Any, Any]:
        """Return each worker's lead (s) over the last at the end of a gloo collective.

        `joined`: when each worker joined (s), shape (..., workers), also the result's shape. In the
        ring, worker w has segment h at R_h(w) = max(R_h-1(w - 1), R_h-1(w) + l) + l: it reports
        readiness as soon as it has the previous segment. A late worker therefore delays only its
        successors, by one latency l less per hop. Latency that hides behind transmission saves
        nothing: no lead is longer than the other latency, without the overheads of the host.
        """
        ends = joined
        for _ in range(self.workers - 1):
            ends = np.maximum(joined, np.roll(ends, 1, axis=-1) - self._from_neighbour)
        hops = self.plan(self.way(kind, payload, None).key, self.everyone).hops
        most = latency - self.overhead.of_collective(0.0, 0.0, Passage(inf, hops, 1))[1]
        return np.asarray(np.minimum(_before_last(ends), np.maximum(0.0, most)[..., None]))

    def ahead_of_poll(self, polled: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return how many seconds before the last worker each worker has a poll's answer.

        `polled`: when each worker polled (s), shape (..., workers), as is the result. Workers
        notify each other directly once both have polled, so a worker that polled a latency before
        the last one also has the answer a latency earlier.
        """
        one = min(self.overhead.agree_latencies, 1.0) * self.word
        return np.asarray(np.minimum(_before_last(polled), one))

    @property
    def hop(self) -> float:
        """Expected latency (s) between the first two workers."""
        return self.link(0, min(1, self.workers - 1)).latency

    @cached_property
    def word(self) -> float:
        """Expected time (s) of a notification between the slowest pair of neighbours.

        A hop of a collective is a notification of readiness and a segment, so a notification has
        half of the hop's overhead bytes.
        """
        size = self.overhead.hop_bytes / 2
        links = (self.link((n - 1) % self.workers, n) for n in range(self.workers))
        return max(link.latency + size / link.bandwidth for link in links)

    def message_link(self, source: int, to: int) -> RegionPath:
        """Return the link including the overheads of a message."""
        link = self.link(source, to)
        laws = self.overhead.of_message(link.laws) + self.message_start(source, to)
        return replace(link, laws=laws, bandwidth=link.bandwidth / self.overhead.message_factor)

    def message_start(self, source: int, to: int) -> tuple[Law, ...]:
        """Return slow start's law for a message, if the fastest worker's step is a pause."""
        if self.pause == inf:
            return ()
        idle = min(min(self._scenario.team.mean_compute) // self.pause, HALVINGS - 1)
        added = self._starts([self.model_bytes], self.link(source, to))[int(idle)]
        return (Constant.model_construct(value=added),)

    @cached_property
    def pause(self) -> float:
        """Seconds without traffic after which a connection's window halves; inf: never."""
        return tcp.IDLE + 2 * self.hop if self.settings.transport == "tcp" else inf

    @cached_property
    def filling(self) -> float:
        """Seconds until an empty token bucket is full."""
        return (self.settings.burst or 0.0) * tcp.usable(self.settings) / self.mean_plan.rate

    def _starts(self, sizes: Sequence[float], link: RegionPath, times: int = 1) -> list[float]:
        """Return slow start's seconds by the number of time-outs in the pause before."""
        first, sent = tcp.first_window(self.settings), sum(sizes)
        windows = [tcp.resumed(first, sent, count) for count in range(HALVINGS)]
        trip = 2 * link.latency
        added = (tcp.start(sizes, link.bandwidth, trip, window) for window in windows[1:])
        return [0.0, *(times * seconds for seconds in added)]

    def after_pause(
        self, kind: str, members: Sequence[int], payload: float
    ) -> tuple[list[float], float]:
        """Return the seconds that a pause adds, and the seconds that full buckets save.

        The first is a list, for slow start, by the number of time-outs that the pause lasts.
        """
        team = tuple(members)
        key = self.way(kind, payload, None if len(team) == self.workers else team).key
        plan = self.plan(key, team)
        hops, rate = plan.hops, plan.rate
        if self.given is not None or not hops:
            return [0.0], 0.0
        on_one = not key.endswith("double-tree") and tcp.on_one(self.settings, kind)
        share = plan.held * rate / hops if rate < inf else 1 / (len(members) if on_one else 1)
        size, burst = share * payload, (self.settings.burst or 0.0) * tcp.usable(self.settings)
        if on_one:
            added = max(self._starts([size] * hops, link) for link in plan.path)
        else:
            starts = [self._starts([size], link, count) for link, count in plan.path.items()]
            added = [sum(column) for column in zip(*starts, strict=True)]
        if kind != "gather" and tcp.one_way(self.settings):
            # workers send once on the way up; on the way down the first worker sends repeatedly
            saved = tcp.credit([size], rate, 0.0, burst) * (hops / 2)
            return added, saved + tcp.credit([size] * (hops // 2), rate, 0.0, burst)
        return added, tcp.credit([size] * hops, rate, plan.latency / hops, burst)

    def waking(self, kind: str, payload: float, idle: Any, latency: Any, team: Team = None) -> Any:
        """Return the seconds that a pause adds: slow start, less what token buckets save.

        The collective begins when the links have been `idle` (s; inf: always), and the last bytes
        arrived `latency` (s) after they became so: times of one seed, or arrays.
        """
        if self.pause == inf:
            return 0.0
        members = self.everyone if team is None else team
        added, saved = self._pauses(kind, members, payload)
        longest = len(added) * self.pause  # a pause may be endless
        halvings = np.clip(idle - latency, 0.0, longest) // self.pause
        slow = np.asarray(added)[np.minimum(halvings, len(added) - 1).astype(int)]
        if not saved:
            return slow
        return slow - np.maximum(0.0, saved - np.maximum(0.0, self.filling - idle))

    @cached_property
    def mean_plan(self) -> CollectivePlan:
        """The scenario's collective, averaging over all workers."""
        return self.plan("mean", self.everyone)

    def plan(self, kind: str, members: tuple[int, ...]) -> CollectivePlan:
        """Return the plan of a collective, "mean" or "gather", of some of the workers."""
        if (kind, members) not in self._plans:
            self._plans[kind, members] = self._plan(kind, members)
        return self._plans[kind, members]

    def _plan(self, kind: str, team: tuple[int, ...]) -> CollectivePlan:
        if len(team) < 2:
            return NOTHING_SENT
        if self.settings.library != "ideal":
            return self.plan(self.way(kind, self.model_bytes, team).key, team)
        gathers = kind == "gather"
        formula = gather_plan if gathers else COLLECTIVES[self.settings.collective].formula
        return formula(self, team)

    def way(self, kind: str, payload: float, team: Team) -> Way:
        """Return the execution of a collective of `payload` bytes per worker."""
        library = self.settings.library
        if library == "ideal" or self.workers < 2 or (team is not None and len(team) < 2):
            return Way(kind)
        if (kind, payload, team) not in self._ways:
            if len(self._ways) >= REMEMBERED:  # some codecs send payloads of any size
                self._ways.clear()
            makers = {"nccl": self._nccl, "gloo": self._gloo, "byteps": self._byteps}
            members = self.everyone if team is None else team
            self._ways[kind, payload, team] = makers[library](kind, payload, members)
        return self._ways[kind, payload, team]

    def _gloo(self, kind: str, payload: float, team: tuple[int, ...]) -> Way:
        ring = gloo_segments(len(team), payload, kind == "gather")
        way = Way(f"{kind} of {ring.segments} segments", ring)
        if (way.key, team) not in self._plans:
            volume = ring.phases * ring.segments * ring.share
            self._plans[way.key, team] = around(self, team, ring.hops, volume)
        return way

    def _byteps(self, kind: str, payload: float, team: tuple[int, ...]) -> Way:
        """Return how BytePS averages: by servers, in chunks that devices pass on.

        A chunk passes the links of the devices twice: scattered and copied to the host, copied back
        and gathered. Over TCP one socket carries all chunks and requests in order (ps-lite,
        src/zmq_van.h). A worker requests a chunk's mean after pushing the chunk, behind all chunks
        that the devices have delivered by then.
        """
        way = f"{kind} by servers" if kind == "mean" else kind
        if (way, team) not in self._plans:
            duplex = self.settings.transport == "ideal"
            plan = server_plan(self, team, duplex) if kind == "mean" else gather_plan(self, team)
            self._plans[way, team] = plan
        groups = [self._groups[rank] for rank in team if rank < len(self._groups)]
        rates = [group.inner.bandwidth for group in groups if group.inner is not None]
        twice = 2 / min(rates) if rates and kind == "mean" else 0.0
        within = twice * payload
        overlap = within / 2 if self.settings.transport == "tcp" else 0.0
        chunk = twice * min(payload, CHUNK)
        return Way(way, within=within, chunk=chunk, overlap=overlap)

    def _nccl(self, kind: str, payload: float, team: tuple[int, ...]) -> Way:
        """Return NCCL's execution of a collective, by its tuner's choice."""
        hosts, size, gather = self.hosts(team), len(team), kind == "gather"
        ring, tree = (f"{kind} by {name}" for name in ("ring", "double-tree"))
        if (ring, team) not in self._plans:
            order = [rank for host in hosts for rank in host]
            formula = gather_plan if gather else COLLECTIVES["ring"].formula
            self._plans[ring, team] = formula(self, order)
            self._plans[tree, team] = double_tree_plan(self, hosts)
        cluster, held, hop = self._nccl_cluster(team, hosts, gather, ring, tree)
        choice = nccl_choice(cluster, payload * (size if gather else 1), gather)
        key, ranks = f"{kind} by {choice.algorithm}", cluster.ranks
        below = ranks // len(hosts) - 1
        hops = 2 * below if key == tree else (ranks - len(hosts)) * (1 if gather else 2)
        per_byte = choice.slowdown * held[key]
        extra = per_byte - self._plans[key, team].held
        other = held[ring if key == tree else tree] / per_byte if per_byte else 1.0
        loops = nccl_loops(size, payload, gather) if key == ring else None
        return Way(key, loops, choice.latency + hops * hop, extra * payload, other)

    def _nccl_cluster(
        self, team: tuple[int, ...], hosts: list[list[int]], gather: bool, ring: str, tree: str
    ) -> tuple[Cluster, dict[str, float], float]:
        """Return the tuner's input, seconds per byte by plan, and an inner hop's latency."""
        size = len(team)
        islands = [self._groups[rank] for rank in team if rank < len(self._groups)]
        ranks = size + sum(group.devices - 1 for group in islands)
        links = [group.inner for group in islands if group.inner is not None]
        within = [self.link(a, b).bandwidth for host in hosts for a, b in pairwise(host)]
        inner = min([*within, *(link.bandwidth for link in links)], default=inf)
        hop = max((link.latency for link in links), default=0.0)
        volume = size - 1.0 if gather else 2 * (size - 1) / size
        once = self._plans[ring, team].held  # seconds per byte of payload
        pace = min(volume / once if once else inf, *(link.bandwidth for link in links), inf)
        held = {ring: (volume if gather else 2 * (ranks - 1) / ranks) / pace}
        held[tree] = max(self._plans[tree, team].held, 2 / inner if links else 0.0)
        two = len(hosts) == 2 < ranks and held[tree]
        cluster = Cluster(ranks, len(hosts), pace, 2 / held[tree] if two else pace, inner)
        return cluster, held, hop

    def hosts(self, team: Sequence[int]) -> list[list[int]]:
        """Split a team by host: a region with an inner link is one host."""
        by_host: dict[object, list[int]] = {}
        for rank in team:
            place = self.places.of(rank)
            by_host.setdefault(place if self.places.link(place, place) else rank, []).append(rank)
        return list(by_host.values())

    def mean_cost(self, share: float = 1.0) -> CollectiveCost:
        """Return the expected cost of averaging a share of the model."""
        if self.given is not None:
            return CollectiveCost(*self.overhead.of_collective(share * self.given.expectation, 0.0))
        size = share * self.model_bytes
        way = self.way("mean", size, None)
        plan = self.plan(way.key, self.everyone)
        return self.way_cost(way, plan, size, plan.latency)

    def way_cost(
        self, way: Way, plan: CollectivePlan, size: float, latency: float
    ) -> CollectiveCost:
        """Return the cost of a collective of `size` bytes per worker."""
        if not plan.moved:
            return CollectiveCost(0.0, 0.0)
        held = plan.held * size + plan.hops * self.overhead.hop_bytes / plan.rate
        passage = Passage(plan.rate, plan.hops, plan.ring)
        return CollectiveCost(*way.cost(self.overhead, held, latency, passage))


def _before_last(ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return each worker's lead (s) over the last one; same shape as `ends`."""
    last = ends.max(axis=-1, keepdims=True)
    return np.asarray(np.subtract(last, ends, out=np.zeros(ends.shape), where=last < inf))


class Traffic:
    """The communication of one run: its random draws, and its bytes.

    `links` has the bytes of the last call of `totals`, at the last point of a curve, so the bytes
    of a link match its price.
    """

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
        self._costly: list[MessageRoute] = []  # routes whose bytes are egress
        self._added: defaultdict[str, int] = defaultdict(int)  # bytes of further messages, by link
        self._last: tuple[dict[tuple[str, Team], int], list[int], dict[str, int]] | None = None

    def _plan(self, key: str, team: Team = None) -> CollectivePlan:
        return self.network.plan(key, self.network.everyone if team is None else team)

    def collective(
        self, kind: str, payload: float, largest: float | None = None, team: Team = None
    ) -> tuple[float, float]:
        """Count the next collective; return its (transmission, latency) in seconds.

        `payload`: bytes per worker (their mean, if payloads differ); the time depends on the
        `largest`. `team`: the workers that take part, in rank order; None: all.
        """
        first = not self.begun
        self.count(kind, payload, team)
        transmission, latency = self.cost(kind, largest or payload, team)
        return transmission + self.network.settings.setup if first else transmission, latency

    def count(self, kind: str, payload: float, team: Team = None) -> None:
        """Count a collective's bytes as whole numbers, so that order cannot change the sum."""
        self.add(self.network.way(kind, payload, team).key, round(payload), team)

    def add(self, key: str, payload: int, team: Team = None) -> None:
        """Count the bytes of collectives, by the key of their `Way`."""
        self._payloads[key, team] += payload

    @property
    def begun(self) -> bool:
        """Whether a collective has been counted."""
        return bool(self._payloads)

    def cost(self, kind: str, payload: float, team: Team = None) -> tuple[float, float]:
        """Draw the next collective; return (transmission, latency) in seconds."""
        given, overhead = self.network.given, self.network.overhead
        if given is not None:
            duration = float(given.sample(self._rng, 1)[0])
            return overhead.of_collective(duration * payload / self.network.model_bytes, 0.0)
        way = self.network.way(kind, payload, team)
        plan, key = self._plan(way.key, team), way.key
        if (key, team) not in self._fixed:
            constant = all(link.is_constant for link in plan.path)
            self._fixed[key, team] = plan.latency if constant else None
        latency = self._fixed[key, team]
        if latency is None:
            latency = sum(link.sample(self._rng, hops) for link, hops in plan.path.items())
        return self.network.way_cost(way, plan, payload, latency)

    def is_constant(self, kind: str, payload: float) -> bool:
        """Return whether equal collectives always cost the same."""
        given = self.network.given
        if given is not None:
            return given.is_constant
        key = self.network.way(kind, payload, None).key
        return all(link.is_constant for link in self._plan(key).path)

    def volumes(self, kind: str, team: Team = None) -> tuple[float, float]:
        """Return a collective's bytes per byte of payload, in total and as egress."""
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
            route = self._messages[source, to] = self._make_route(link, size, self._seed, key)
            if link.name in self.network.charged:
                self._costly.append(route)
        return self._messages[source, to]

    def add_message(self, source: int, to: int, size: int) -> None:
        """Count the bytes of a message that needs no draw."""
        self._added[self.network.link(source, to).name] += size

    def _counted(self) -> tuple[dict[tuple[str, Team], int], list[int], dict[str, int]]:
        sent = [route.bytes for route in self._messages.values()]
        return dict(self._payloads), sent, dict(self._added)

    def links(self) -> dict[str, float]:
        """Return the bytes over each link, by "from->to"."""
        total: defaultdict[str, float] = defaultdict(int)
        payloads, sent, added = self._last or self._counted()
        for (kind, team), payload in payloads.items():
            for name, volume in self._plan(kind, team).moved.items():
                total[name] += volume * payload
        for route, size in zip(self._messages.values(), sent, strict=False):  # new links are last
            total[route.link.name] += size
        for name, size in added.items():
            total[name] += size
        return {name: float(total[name]) for name in sorted(total)}

    def totals(self) -> tuple[float, float]:
        """Return the bytes so far over all links (a whole number), and the egress bytes.

        Payloads are summed before they are multiplied, as in all engines.
        """
        moved = charged = 0.0
        for (kind, team), payload in self._payloads.items():
            volume, egress = self.volumes(kind, team)
            moved += payload * volume
            charged += payload * egress
        self._last = self._counted()
        own = sum(self._last[1]) + sum(self._added.values())
        paid = sum(route.bytes for route in self._costly)
        paid += sum(size for name, size in self._added.items() if name in self.network.charged)
        return float(round(moved) + own), charged + paid


class Nic:
    """One direction of a network card, which passes payloads in order of arrival."""

    def __init__(self, bandwidth: float) -> None:
        self._seconds_per_byte = 1 / bandwidth
        self._free = 0.0

    def through(self, at: float, size: float) -> float:
        """Return when `size` bytes that arrive at `at` (s) have passed the card."""
        self._free = max(self._free, at) + size * self._seconds_per_byte
        return self._free

    def clear(self, at: float) -> None:
        """Drop the payloads that are still waiting or in transit at time `at` (s)."""
        self._free = min(self._free, at)


class MessageRoute:
    """The messages from one node to another.

    `whole_transit`: transit time (s) of a whole model, if constant; else None. `bytes`: sent so
    far, a whole number. The engine sets the number of messages `in_flight`, the arrival of the
    `last` one (s), the `version` of its parameters, the receiving `node`, and the `receiving_nic`
    or None.
    """

    shared = False  # whether the cost depends on other messages in flight
    delay = 0.0  # delay of the last message by crashes (s)

    __slots__ = (
        "_departs", "_latencies", "_seconds_per_byte", "bytes", "in_flight", "last", "link",
        "node", "receiving_nic", "version", "whole_transit",
    )  # fmt: skip

    def __init__(self, link: RegionPath, model_bytes: float, seed: int, key: int) -> None:
        self.link = link
        self.last = 0.0
        self.bytes = self.in_flight = self.version = 0
        self.node: Any = None
        self.receiving_nic: Nic | None = None
        self.whole_transit: float | None = None
        self._departs: Nic | None = None
        self._latencies: Iterator[float] = repeat(link.latency)
        self._seconds_per_byte = 1 / link.bandwidth
        if link.is_constant:
            self.whole_transit = link.latency + model_bytes * self._seconds_per_byte
        else:
            rng = generator(seed, Purpose.MESSAGE, key)
            self._latencies = blocks(lambda n: np.array([link.sample(rng, 1) for _ in range(n)]))

    def leave_through(self, card: Nic | None) -> None:
        """Send through a network card shared with other routes; None: no card."""
        if card is not None:
            self._departs, self.whole_transit = card, None

    def send(self, now: float, size: float) -> tuple[float, float]:
        """Send a message of `size` bytes at `now` (s); return its arrival and transit (s)."""
        self.bytes += round(size)
        transit = next(self._latencies) + size * self._seconds_per_byte
        leaves = now if self._departs is None else self._departs.through(now, size)
        return leaves + transit, transit
