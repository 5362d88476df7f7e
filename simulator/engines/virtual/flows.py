"""Carry messages and collectives over lines whose rates depend on all transfers.

The end of a transfer is known only when it happens. A crash cancels the transfers that it
interrupts and starts them again (`_resend`, `_launch`). The fabric (`network.fabric`) is a
flow-level max-min model of the lines; transfers start there by number, with a callback for the end.

Three sources of events advance together, in `Simulation.release` and `FlowTransport.advance`: SimPy
and messages (up to `until`), the fabric (when a transfer ends next), and changes (profiles,
crashes). Invariant: the fabric's clock never passes the earliest of the others, because it cannot
go back. Events of equal times come in the order fabric, changes, messages, SimPy. Changes pass only
while a transfer is in flight, so that endless ones keep no run alive. After a change run
tests/engines/test_flows.py and tests/network.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any

import simpy

from ...cluster.failures import PATIENCE
from ...network.flow_network import FlowNetwork
from ...programs.effects import ANY, Payload
from ..collective import Collective
from .node import VirtualNode
from .recovery import Team

Change = Callable[[float], None]


class Connection:
    """Ordered messages from one node to another; attributes as in `MessageRoute`.

    `start(sender, value)` sends one.
    """

    shared = True
    whole_transit = None

    def __init__(self, start: Callable[["Connection", VirtualNode, Payload], None]) -> None:
        self.start = partial(start, self)
        self.node: Any = None
        self.version = 0
        self.under_way: deque[InFlight] = deque()


@dataclass(slots=True)
class InFlight:
    """A message in flight.

    `sent`, `began`: when it was first and last sent (s); `attempts`: times it was sent;
    `arrived_at`: None until it arrives.
    """

    sender: VirtualNode
    route: Connection
    size: float
    value: Payload
    sent: float
    began: float = 0.0
    attempts: int = 0
    arrived_at: float | None = None


class FlowTransport:
    """The transport of one run over shared lines.

    `transfers`: by number of those in flight, the functions to call at their ends.
    """

    staggered = False

    def __init__(self, run: Any) -> None:
        self._run, self._agenda = run, run.agenda
        self.transfers: dict[int, Change] = {}
        self.traffic = FlowNetwork(run.scenario, run.seed)
        self.fabric = self.traffic.fabric
        self._changes: list[tuple[float, int, Change]] = []
        self._count = 0
        for line in self.traffic.changing:
            self._change_next(line)

    def at(self, time: float, change: Change) -> None:
        """Schedule a change at `time`; changes of equal times keep their order."""
        if time < inf:
            self._count += 1
            heappush(self._changes, (time, self._count, change))

    def _change_next(self, line: int) -> None:
        """Schedule the next change of a line's capacity."""
        time, capacity = self.traffic.next_change(line)

        def change(at: float) -> None:
            self.traffic.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)

    def cancel(self, number: int) -> bool:
        """Cancel a transfer; return whether it was still in flight."""
        if self.transfers.pop(number, None) is None:
            return False
        self.fabric.cancel(number)
        return True

    def advance(self, until: float) -> bool:
        """Advance the fabric until transfers end, or to `until`, through network events.

        Calls the functions of ended transfers. Returns whether nodes may have become ready.
        """
        ready, ended_at = self._agenda.ready, None
        while self.transfers:
            change_at = self._changes[0][0] if self._changes else inf
            if change_at > until or change_at == inf:
                ended_at = self.fabric.advance(until)
                break
            ended_at = self.fabric.advance(change_at)
            if ended_at is not None:
                break
            time, _, change = heappop(self._changes)
            change(time)
            if ready:  # a crash left a single worker, which needs no network
                break
        if ended_at is None:
            return bool(ready)
        at, ended = ended_at
        for number in ended:
            self.transfers.pop(number)(at)
        return True

    # Messages

    def route(self, source: int, to: int) -> Connection:
        """Return a connection from one node to another."""
        return Connection(self._send)

    def _send(self, route: Connection, source: VirtualNode, value: Payload) -> None:
        message = InFlight(source, route, self._run.meter(value), value, source.now)
        route.under_way.append(message)
        self._start(message, source.now)

    def _start(self, message: InFlight, at: float) -> None:
        """Start a message when both ends are up, and again after one of them crashes."""
        run = self._run
        source, to = message.sender.rank, message.route.node.rank
        ends = [run.calendars[rank] for rank in (source, to)] if run.calendars else []
        crash = inf
        message.attempts += 1
        if message.attempts > PATIENCE:
            run.never(f"a message from {run.name_of(source)} to {run.name_of(to)}")
            return
        while ends and at < inf:
            crash, back = min(calendar.next(at) for calendar in ends)
            if crash > at:
                break
            at = back
        if at > run.deadline or at == inf:
            run.work_left = run.work_left or at < inf
            return
        message.began = at
        number = self.traffic.send(at, source, to, message.size)
        self.transfers[number] = partial(self._arrive, message)
        self.at(crash, partial(self._resend, number, message))

    def _resend(self, number: int, message: InFlight, at: float) -> None:
        """Send a message again if it is in flight when an end crashes at `at`."""
        if self.cancel(number):
            self._start(message, at)

    def _arrive(self, message: InFlight, at: float) -> None:
        """Deliver a message that has arrived, after all messages sent before it."""
        message.arrived_at = at
        waiting = message.route.under_way
        while waiting and waiting[0].arrived_at is not None:
            first = waiting.popleft()
            sender, node = first.sender, first.route.node
            sender.sent_until = at - (first.began - first.sent)
            delivered: Any = (at, 0, first.route, at - first.began, sender.rank, first.value)
            if node.awaited_rank in (ANY, sender.rank):
                node.awaited_rank = None
                self._agenda.ready.append((node, delivered))
            else:
                node.mailbox.append(delivered)

    # Collectives

    def carry(self, collective: Collective, sizes: Sequence[float]) -> None:
        """Carry a collective out as soon as its team is up."""
        run = self._run
        by_worker = list(sizes) * (run.workers // len(sizes))
        team = run.recovery.team(collective)
        ready = max(collective.begins, self.fabric.clock)  # past if backups join late
        self._launch(collective, team, by_worker, ready)

    def _launch(
        self, collective: Collective, team: Team, sizes: list[float], begins: float
    ) -> None:
        """Begin a collective when its whole team is up, and again if a member crashes."""
        run = self._run
        while (crashed := run.recovery.first_crash(team, begins))[0] <= begins < inf:
            begins = run.recovery.restart(collective, team, begins, crashed)
        if not run.recovery.begin(collective, team, begins):
            return
        members = tuple(range(run.workers) if team is None else team)
        if len(members) < 2:
            self._finish(collective, team, begins)
            return
        number = self.traffic.start(begins, collective.kind, members, sizes)
        self.transfers[number] = partial(self._finish, collective, team)

        def crash(at: float) -> None:
            if self.cancel(number):
                again = run.recovery.restart(collective, team, at, (at, *crashed[1:]))
                self._launch(collective, team, sizes, again)

        self.at(crashed[0], crash)

    def _finish(self, collective: Collective, team: Team, at: float) -> None:
        """Complete a collective; waiting nodes resume at once, at the fabric's clock."""
        ready = self._agenda.ready
        self.traffic.quiet_since = at
        self._run.complete(
            collective, team, at, lambda _, nodes: ready.extend((node, None) for node in nodes)
        )

    def answer(self, handle: Collective, question: Collective) -> None:
        """Schedule the answer to a poll for when its last worker polls."""
        run = self._run

        def answer(event: simpy.Event) -> None:
            handle.answer(question)
            event._value = question.waiting
            run.release(event)

        run.events += 1
        self._agenda.call_at(question.begins, answer)
