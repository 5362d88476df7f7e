"""Start a run's transfers on the graph of its network, and count their bytes.

`SharedNetwork` is the graph and its fabric; `FlowNetwork` has the draws, payloads and bytes of one
run. A *ticket* is the fabric's number of a transfer under way; a *line* is one direction of a link
or network card.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from math import inf
from typing import Any

import numpy as np

from ..distributions.law import Law
from ..distributions.random_streams import Purpose, blocks, generator
from ..scenario.overhead import Passage
from ..scenario.scenario import Scenario
from . import tcp
from .closed_form import ClosedForm, Way
from .collectives import double_tree, gather, messages
from .fabric.fabric import Fabric
from .fabric.messages import MessagePlan, Messages
from .libraries import Loops, Segments
from .topology.graph import Topology

Array = np.ndarray[Any, np.dtype[Any]]
Team = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PreparedTransfer:
    """A collective of n messages on the graph.

    `fixed` (n,): the constant part of each message's latency (s), used if any is random;
    `random`: the messages that draw from laws, by law. `moved`: the share of each worker's payload
    that passes a hop, by the hop's "from->to".
    """

    plan: MessagePlan
    fixed: Array
    random: dict[tuple[Law, ...], Array]
    moved: dict[str, Array]


class SharedNetwork:
    """The graph and the fabric of one run.

    `offered`: for each line of changing capacity, the bytes that it could have carried before a
    time, that time, and its capacity since then.
    """

    def __init__(self, topology: Topology) -> None:
        lines = self.lines = topology.lines
        self.changing = [number for number, line in enumerate(lines) if line.profile is not None]
        self._changes = {number: lines[number].capacities() for number in self.changing}
        first = {number: next(changes)[1] for number, changes in self._changes.items()}
        self.offered = {number: (0.0, 0.0, capacity) for number, capacity in first.items()}
        capacities = [first.get(number, line.capacity) for number, line in enumerate(lines)]
        per_flow = [number for number, line in enumerate(lines) if line.per_flow]
        self.fabric = Fabric(capacities, per_flow)

    def next_change(self, line: int) -> tuple[float, float]:
        """Return the next change of a line: its time (inf: none), and the new capacity."""
        return next(self._changes[line], (inf, self.offered[line][2]))

    def change(self, at: float, line: int, capacity: float) -> None:
        """Change a line's capacity."""
        offered, since, before = self.offered[line]
        self.offered[line] = offered + before * (at - since), at, capacity
        self.fabric.set_capacity(line, capacity)

    def usage(self, end: float) -> list[dict[str, Any]]:
        """Return the traffic of the lines until `end` (s), in the form of `Run.lines`."""
        moved, saturated = self.fabric.usage()
        rows = []
        for number, line in enumerate(self.lines):
            most = line.capacity * end
            if number in self.offered:
                offered, since, capacity = self.offered[number]
                most = offered + capacity * max(0.0, end - since)
            share = float(moved[number]) / most if 0 < most < inf else 0.0
            rows.append(
                {
                    "line": line.name,
                    "bandwidth": line.capacity if line.capacity < inf else None,
                    "bytes": float(moved[number]),
                    "utilisation": None if line.per_flow else min(1.0, share),
                    "saturated_seconds": min(float(saturated[number]), end),
                }
            )
        return rows


class FlowNetwork:
    """The transfers of one run: random draws, and bytes counted as in `Traffic`.

    `links` has the bytes of the last call of `totals`.
    """

    def __init__(self, scenario: Scenario, topology: Topology, fabric: Fabric, seed: int) -> None:
        self.topology, self.fabric = topology, fabric
        self._settings, self._seed = scenario.network, seed
        self._workers, self._overhead = scenario.cluster.workers, tcp.costs(scenario)
        self._regions = [self.topology.places.of(rank) for rank in range(self._workers)]
        self._paths: dict[tuple[Team, int], int] = {}
        self._prepared: dict[tuple[str, Team], PreparedTransfer] = {}
        self._payloads: dict[tuple[str, Team], Array] = {}
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._latencies: dict[tuple[int, int], Iterator[float]] = {}
        self._rng = generator(seed, Purpose.COLLECTIVE)
        self._formula = ClosedForm(scenario)
        self.quiet_since = 0.0  # end of the last collective (s)
        self._charged: set[str] = set()  # hops whose bytes are egress
        self._last: tuple[dict[tuple[str, Team], Array], dict[tuple[int, int], int]] | None = None

    def path(self, ranks: Team, lane: int = 0) -> int:
        """Return the fabric's path through all ranks; lanes are separate connections."""
        if (ranks, lane) not in self._paths:
            route = self.topology.route(ranks)
            latency = sum(law.expectation for law in route.laws)
            self._paths[ranks, lane] = self.fabric.path(
                tuple(dict.fromkeys(route.lines)), latency, limit=route.limit,
                serial=True,
            )  # fmt: skip
        return self._paths[ranks, lane]

    def send(self, at: float, source: int, to: int, size: float) -> int:
        """Start a message; return its ticket."""
        self.add_message(source, to, round(size))
        path = self.path((source, to))
        if (source, to) not in self._latencies:
            self._latencies[source, to] = self._message_latencies(source, to)
        occupying = size * self._overhead.message_factor
        return self.fabric.send(at, path, occupying, next(self._latencies[source, to]))

    def add_message(self, source: int, to: int, size: int) -> None:
        """Count the bytes of a message."""
        self._sent[source, to] += size

    def _message_latencies(self, source: int, to: int) -> Iterator[float]:
        """Yield the latencies (s) of successive messages from one node to another."""
        laws = self._overhead.of_message(self.topology.route((source, to)).laws)
        laws += self._formula.message_start(source, to)
        if all(law.is_constant for law in laws):
            return repeat(sum((law.expectation for law in laws), 0.0))
        rng = generator(self._seed, Purpose.MESSAGE, source * (self._workers + 1) + to)
        return blocks(
            lambda n: np.array([sum(law.sample(rng, 1)[0] for law in laws) for _ in range(n)])
        )

    def start(
        self, at: float, kind: str, team: Team, sizes: Sequence[float], drawn: bool = True
    ) -> int:
        """Start a team's mean or gather at `at` (s); return its ticket.

        `sizes`: bytes of each worker's payload. `drawn`: whether latencies are drawn or expected.
        """
        way = self._formula.way(kind, max(sizes), team)
        delay = (way.delay or 0.0) + way.extra + (0.0 if self.begun else self._settings.setup)
        plan = self._formula.plan(way.key, team)
        idle = at - self.quiet_since + plan.latency if self.begun else inf
        delay += float(self._formula.waking(kind, max(sizes), idle, plan.latency, team))
        prepared = self.prepared(kind, team, max(sizes))
        payloads = self._payloads.setdefault((way.key, team), np.zeros(self._workers))
        payloads += np.rint(sizes)  # whole bytes, as in `Traffic`
        latencies, overhead = None, self._overhead
        charge = partial(overhead.of_collective, passage=Passage(plan.rate, 1, plan.ring))
        added = charge(1.0, 1.0) != (1.0, 1.0) or overhead.hop_bytes
        if prepared.random or delay or way.pipeline or added:
            twice = 2 if isinstance(way.pipeline, Segments) else 1
            latencies = prepared.fixed * float(twice)
            for laws, which in prepared.random.items():
                for law in laws * twice:
                    n = len(which)
                    latencies[which] += law.sample(self._rng, n) if drawn else law.expectation
            if isinstance(way.pipeline, Loops) and plan.latency:
                held, _ = charge(plan.held * max(sizes), 0.0)
                latencies *= way.pipeline.latency(held + way.extra, plan.latency) / plan.latency
            first = prepared.plan.waits == 0
            latencies[first] += delay
            if added:
                sizes, latencies = charge(np.array(sizes), latencies, once=first)
                latencies += charge(overhead.hop_bytes / plan.rate, 0.0)[0]
        return self.fabric.start(at, prepared.plan, sizes, latencies)

    @property
    def begun(self) -> bool:
        """Whether a collective has been started."""
        return bool(self._payloads)

    def prepared(self, kind: str, team: Team, payload: float) -> PreparedTransfer:
        """Return a team's collective, prepared once for all payloads with the same `Way`."""
        way = self._formula.way(kind, payload, team)
        if (way.key, team) not in self._prepared:
            self._prepared[way.key, team] = self._prepare(kind, way, team)
        return self._prepared[way.key, team]

    def _messages(self, kind: str, way: Way, team: Team) -> Messages:
        if isinstance(way.pipeline, Segments):
            return way.pipeline.messages(team)
        if way.delay is None:
            if kind == "gather":
                return gather(team)
            return messages(self._settings.collective, team, self._regions)
        hosts = self._formula.hosts(team)
        if way.key.endswith("double-tree"):
            return double_tree(hosts)
        order = [rank for host in hosts for rank in host]
        return gather(order) if kind == "gather" else messages("ring", order)

    def _prepare(self, kind: str, way: Way, team: Team) -> PreparedTransfer:
        sent = self._messages(kind, way, team)
        routes = [self.topology.route(ranks) for ranks in sent.routes]
        fixed = np.array([sum(law.expectation for law in route.laws) for route in routes])
        laws = [
            route.laws if not all(law.is_constant for law in route.laws) else () for route in routes
        ]
        random = {
            law: np.flatnonzero(
                np.isin(sent.route, [n for n, route_laws in enumerate(laws) if route_laws == law])
            )
            for law in dict.fromkeys(laws)
            if law
        }
        for which in random.values():
            fixed[sent.route[which]] = 0.0
        moved: defaultdict[str, Array] = defaultdict(lambda: np.zeros(self._workers))
        for number, ranks in enumerate(sent.routes):
            rows = sent.route == number
            for source, to in pairwise(ranks):
                np.add.at(moved[self._hop(source, to)], sent.origin[rows], sent.share[rows])
        lanes: Counter[Team] = Counter()
        paths = []
        for ranks in sent.routes:
            paths.append(self.path(ranks, lanes[ranks]))
            lanes[ranks] += 1
        plan = sent.plan(paths)
        return PreparedTransfer(plan, fixed[sent.route], random, dict(moved))

    def _hop(self, source: int, to: int) -> str:
        """Return a hop's "from->to", and record whether its bytes are egress."""
        name = self.topology.hop(source, to)
        if self.topology.charged(source, to):
            self._charged.add(name)
        return name

    def _counted(self) -> tuple[dict[tuple[str, Team], Array], dict[tuple[int, int], int]]:
        return {key: sizes.copy() for key, sizes in self._payloads.items()}, dict(self._sent)

    def links(self) -> dict[str, float]:
        """Return the bytes between places, by "from->to"."""
        total: defaultdict[str, float] = defaultdict(float)
        collectives, sent = self._last or self._counted()
        for key, payloads in collectives.items():
            for name, shares in self._prepared[key].moved.items():
                total[name] += float(shares @ payloads)
        for (source, to), size in sent.items():
            total[self._hop(source, to)] += size
        return {name: float(total[name]) for name in sorted(total)}

    def totals(self) -> tuple[float, float]:
        """Return the bytes so far in total (a whole number), and the egress bytes."""
        self._last = self._counted()
        links = self.links()
        charged = (size for name, size in links.items() if name in self._charged)
        return float(round(sum(links.values()))), sum(charged)
