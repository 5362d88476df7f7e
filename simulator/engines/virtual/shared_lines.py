"""The lines that the transfers of a run share.

The fabric (`network.fabric`) is a flow-level max-min model of the lines. Transports start transfers
there by number, with a callback for a transfer's end.

Three sources of events advance together, in `Simulation.release` and `advance`: SimPy and messages
(up to `until`), the fabric (when a transfer ends next), and `events` (outages, profiles, competing
flows, crashes). Invariant: the fabric's clock never passes the earliest of the others, because it
cannot go back. Events of equal times come in the order fabric, network, messages, SimPy. Network
events pass only while a transfer is in flight, so that endless ones keep no run alive. After a
change run tests/engines/test_flows.py and tests/network.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

from ...network.flow_network import SharedNetwork
from ...network.topology.graph import Greedy, Topology
from .node import VirtualNode

ENDLESS = 1e24  # bytes of a flow that never ends

Change = Callable[[float], None]


class NetworkEvents:
    """Coming changes of a network, such as outages and competing flows, in order.

    `dead_lines`: lines whose capacity stays zero.
    """

    def __init__(self, network: SharedNetwork) -> None:
        self._network, self._fabric = network, network.fabric
        self._changes: list[tuple[float, int, Change]] = []
        self._count = 0
        self.dead_lines: set[int] = set()
        for line in network.changing:
            self._change_next(line)

    @property
    def due(self) -> float:
        """Time of the next change, in seconds; inf if there is none."""
        return self._changes[0][0] if self._changes else inf

    def at(self, time: float, change: Change) -> None:
        """Schedule a change at `time`; changes of equal times keep their order."""
        if time < inf:
            self._count += 1
            heappush(self._changes, (time, self._count, change))

    def apply_next(self) -> None:
        """Apply the next change; the fabric must have advanced to its time."""
        time, _, change = heappop(self._changes)
        change(time)

    def add_competing_flow(self, greedy: Greedy, seed: int) -> None:
        """Schedule a competing flow, which is active in the intervals of its scenario."""
        lines = tuple(dict.fromkeys(greedy.route.lines))
        path = self._fabric.path(lines, 0.0, limit=greedy.route.limit)
        self._next_interval(path, greedy.times.of(seed))

    def _next_interval(self, path: int, intervals: Iterator[tuple[float, float]]) -> None:
        start, end = next(intervals, (inf, inf))

        def begin(at: float) -> None:
            number = self._fabric.send(at, path, ENDLESS)
            self.at(end, lambda at: end_flow(at, number))

        def end_flow(at: float, number: int) -> None:
            self._fabric.cancel(at, number)
            self._next_interval(path, intervals)

        self.at(start, begin)

    def _change_next(self, line: int) -> None:
        """Schedule the next change of a line's capacity."""
        time, capacity = self._network.next_change(line)
        if time == inf and capacity == 0:
            self.dead_lines.add(line)

        def change(at: float) -> None:
            self._network.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)


class Transfer(NamedTuple):
    """A transfer in flight: the function to call at its end, and its lines."""

    follow: Callable[[float], None]
    lines: Callable[[], frozenset[int]]


class SharedLines:
    """The lines of a run.

    `topology`: the network's graph. `events`: the changes to come. `transfers`: those in flight by
    number, without competing flows, which never end.
    """

    def __init__(self, run: Any) -> None:
        self._agenda = run.agenda
        self.transfers: dict[int, Transfer] = {}
        self.topology = Topology(run.scenario)
        self.network = SharedNetwork(self.topology, run.seed)
        self.fabric = self.network.fabric
        self.events = NetworkEvents(self.network)
        for greedy in self.topology.greedy():
            self.events.add_competing_flow(greedy, run.seed)

    def track(
        self, number: int, follow: Callable[[float], None], lines: Callable[[], frozenset[int]]
    ) -> None:
        """Store the function to call when a transfer ends, and its lines."""
        self.transfers[number] = Transfer(follow, lines)

    def cancel(self, number: int, at: float) -> bool:
        """Cancel a transfer; return whether it was still in flight."""
        if self.transfers.pop(number, None) is None:
            return False
        self.fabric.cancel(at, number)
        return True

    def advance(self, until: float) -> bool:
        """Advance the fabric until transfers end, or to `until`, through network events.

        Calls the functions of ended transfers. Returns whether nodes may have become ready.
        """
        ready, ended_at = self._agenda.ready, None
        while self.transfers:
            change_at = self.events.due
            if change_at > until or change_at == inf:
                ended_at = self.fabric.advance(until)
                break
            ended_at = self.fabric.advance(change_at)
            if ended_at is not None:
                break
            self.events.apply_next()
            if ready:  # a crash left a single worker, which needs no network
                break
            if (
                until == inf
                and self.events.dead_lines
                and all(map(self._never_arrives, self.transfers.values()))
            ):
                break
        if ended_at is None:
            return bool(ready)
        at, ended = ended_at
        for number in ended:
            self.transfers.pop(number).follow(at)
        return True

    def _never_arrives(self, transfer: Transfer) -> bool:
        return not self.events.dead_lines.isdisjoint(transfer.lines())

    def has_pending(self) -> bool:
        """Return whether transfers in flight can still arrive."""
        return not all(map(self._never_arrives, self.transfers.values()))

    def stuck(self, nodes: Sequence[VirtualNode]) -> list[str]:
        """Return clauses that name transfers waiting for dead lines, and their workers."""
        stuck = [
            f"transfers wait for {self.network.lines[line].name}, which no longer carries anything"
            for line in sorted(self.events.dead_lines)
            if any(line in transfer.lines() for transfer in self.transfers.values())
        ]
        for collective in dict.fromkeys(node.meeting for node in nodes if stuck):
            if collective is not None:
                ranks = sorted(node.rank for node in nodes if node.meeting is collective)
                stuck.append(f"workers {ranks} wait in {collective.kind} {collective.index}")
        return stuck
