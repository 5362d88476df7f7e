"""Start a run's transfers on the graph of its network.

A *ticket* is the fabric's number of a transfer under way; a *line* is one direction of a link or
network card.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import inf
from typing import Any

import numpy as np

from ..distributions.law import Law
from ..distributions.random_streams import Purpose, blocks, generator
from ..scenario.overhead import Passage
from ..scenario.scenario import Scenario
from .closed_form import ClosedForm, Traffic, Way
from .collectives import double_tree, gather, messages
from .fabric.fabric import Fabric
from .fabric.messages import Messages
from .libraries import Loops, Segments
from .topology.graph import Topology

Array = np.ndarray[Any, np.dtype[Any]]
Team = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PreparedTransfer:
    """A collective of n messages on the graph.

    `fixed` (n,): the constant part of each message's latency (s), used if any is random;
    `random`: the messages that draw from laws, by law.
    """

    plan: Messages
    fixed: Array
    random: dict[tuple[Law, ...], Array]


class FlowNetwork(Traffic):
    """The transfers of one run over the lines of a graph; bytes are counted by the formulas.

    `offered`: for each line of changing capacity, the bytes that it could have carried before a
    time, that time, and its capacity since then. `quiet_since`: end of the last collective (s).
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(ClosedForm(scenario), seed)
        self.topology = Topology(scenario)
        lines = self.topology.lines
        self.changing = [number for number, line in enumerate(lines) if line.profile is not None]
        self._changes = {number: lines[number].capacities() for number in self.changing}
        first = {number: next(changes)[1] for number, changes in self._changes.items()}
        self.offered = {number: (0.0, 0.0, capacity) for number, capacity in first.items()}
        capacities = [first.get(number, line.capacity) for number, line in enumerate(lines)]
        per_flow = [number for number, line in enumerate(lines) if line.per_flow]
        self.fabric = Fabric(capacities, per_flow)
        self._paths: dict[tuple[Team, int], int] = {}
        self._prepared: dict[tuple[str, Team], PreparedTransfer] = {}
        self._latencies: dict[tuple[int, int], Iterator[float]] = {}
        self.quiet_since = 0.0

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
        for number, line in enumerate(self.topology.lines):
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

    def path(self, ranks: Team, lane: int = 0) -> int:
        """Return the fabric's path through all ranks; lanes are separate connections."""
        if (ranks, lane) not in self._paths:
            route = self.topology.route(ranks)
            latency = sum(law.expectation for law in route.laws)
            lines = tuple(dict.fromkeys(route.lines))
            path = self.fabric.path(lines, latency, limit=route.limit, serial=True)
            self._paths[ranks, lane] = path
        return self._paths[ranks, lane]

    def send(self, at: float, source: int, to: int, size: float) -> int:
        """Start a message; return its ticket."""
        self.add_message(source, to, round(size))
        path = self.path((source, to))
        if (source, to) not in self._latencies:
            self._latencies[source, to] = self._message_latencies(source, to)
        occupying = size * self.network.overhead.message_factor
        return self.fabric.send(at, path, occupying, next(self._latencies[source, to]))

    def _message_latencies(self, source: int, to: int) -> Iterator[float]:
        """Yield the latencies (s) of successive messages from one node to another."""
        laws = self.network.overhead.of_message(self.topology.route((source, to)).laws)
        laws += self.network.message_start(source, to)
        if all(law.is_constant for law in laws):
            return repeat(sum((law.expectation for law in laws), 0.0))
        rng = generator(self._seed, Purpose.MESSAGE, source * (self.network.workers + 1) + to)
        return blocks(
            lambda n: np.array([sum(law.sample(rng, 1)[0] for law in laws) for _ in range(n)])
        )

    def start(
        self, at: float, kind: str, team: Team, sizes: Sequence[float], drawn: bool = True
    ) -> int:
        """Start a team's mean or gather at `at` (s); return its ticket.

        `sizes`: bytes of each worker's payload. `drawn`: whether latencies are drawn or expected.
        """
        way = self.network.way(kind, max(sizes), team)
        delay = (way.delay or 0.0) + way.extra
        delay += 0.0 if self.begun else self.network.settings.setup
        plan = self.network.plan(way.key, team)
        idle = at - self.quiet_since + plan.latency if self.begun else inf
        delay += float(self.network.waking(kind, max(sizes), idle, plan.latency, team))
        if (way.key, team) not in self._prepared:
            self._prepared[way.key, team] = self._prepare(kind, way, team)
        prepared = self._prepared[way.key, team]
        self.add(way.key, round(sum(sizes[rank] for rank in team) / len(team)), team)
        latencies, overhead = None, self.network.overhead
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

    def _list(self, kind: str, way: Way, team: Team) -> Messages:
        if isinstance(way.pipeline, Segments):
            return way.pipeline.messages(team)
        if way.delay is None:
            if kind == "gather":
                return gather(team)
            return messages(self.network.settings.collective, team, self.network.regions)
        hosts = self.network.hosts(team)
        if way.key.endswith("double-tree"):
            return double_tree(hosts)
        order = [rank for host in hosts for rank in host]
        return gather(order) if kind == "gather" else messages("ring", order)

    def _prepare(self, kind: str, way: Way, team: Team) -> PreparedTransfer:
        sent = self._list(kind, way, team)
        routes = [self.topology.route(ranks) for ranks in sent.routes]
        fixed = np.array([sum(law.expectation for law in route.laws) for route in routes])
        laws = [
            route.laws if not all(law.is_constant for law in route.laws) else () for route in routes
        ]
        random = {
            law: np.flatnonzero(
                np.isin(sent.path, [n for n, route_laws in enumerate(laws) if route_laws == law])
            )
            for law in dict.fromkeys(laws)
            if law
        }
        for which in random.values():
            fixed[sent.path[which]] = 0.0
        lanes: Counter[Team] = Counter()
        paths = []
        for ranks in sent.routes:
            paths.append(self.path(ranks, lanes[ranks]))
            lanes[ranks] += 1
        return PreparedTransfer(sent.plan(paths), fixed[sent.path], random)
