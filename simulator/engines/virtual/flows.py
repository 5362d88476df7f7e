"""A run whose transfers share the lines of a network, and whose workers may share a device.

The fabric (`network.fabric`) is a flow-level max-min model of the lines; a shared device is one
more line. Nodes start transfers there (or gradients to compute), by number, and what follows is
called when a transfer ends.

Three sources of events then advance together, in `_release` and `_advance`: SimPy (up to
`_next_event`), the fabric (when a transfer ends next), and `network_events` (outages, profiles,
competing flows, crashes). Invariant: the fabric's clock never passes the earliest of the others, as
it cannot go back; events of equal times come in the order fabric, network, messages, SimPy. Network
events pass only while a transfer is in flight, so that endless ones keep no run alive.
A crash cancels what it interrupts and starts it again (`_resend`, `_launch`).
After a change run tests/engines/test_flows.py, test_background_jobs.py and tests/network.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop
from math import inf
from typing import Any, NamedTuple

import simpy

from paceline.simulator.cluster import workers
from paceline.simulator.cluster.failures import PATIENCE
from paceline.simulator.engines.collective import Collective
from paceline.simulator.engines.virtual.fault_tolerance import FaultTolerantSimulation
from paceline.simulator.engines.virtual.flow_node import FlowNode, InFlight
from paceline.simulator.engines.virtual.network_events import NetworkEvents
from paceline.simulator.engines.virtual.node import Message, VirtualNode
from paceline.simulator.network.flow_network import FlowNetwork, SharedNetwork
from paceline.simulator.network.topology.routes import Topology
from paceline.simulator.programs.effects import ANY


class Transfer(NamedTuple):
    """A transfer that a run waits for: what to call when it ends, and the lines that it uses."""

    run: "FlowSimulation"
    follow: Callable[[float], None]
    lines: Callable[[], frozenset[int]]


class FlowSimulation(FaultTolerantSimulation):
    """A run over the fabric.

    `flows`: whether transfers go there; else only gradients on shared devices do. `transfers`: by
    number, those in flight of this run and of those beside it; competing flows, which never end,
    are not among them. `pending`: how many are this run's. `network_events`: the changes to come.
    """

    node = FlowNode
    nodes: Sequence[FlowNode]

    def connect(self) -> None:
        """Make the fabric, and the events that change it."""
        scenario = self.scenario
        self.flows = scenario.network.model == "flows"
        self._devices = workers.devices(scenario)
        self.pending = 0
        self._slots: dict[int, int] = {}  # paths of shared devices
        self.share()
        self.fabric = self.shared_network.fabric
        if self.topology is None:
            super().connect()
            return
        self.flow_network = FlowNetwork(scenario, self.topology, self.fabric, self.seed)
        self.traffic: Any = self.flow_network

    def share(self) -> None:
        """Make what background jobs share with this run."""
        self.transfers: dict[int, Transfer] = {}
        devices = max((each for each in self._devices if each is not None), default=-1) + 1
        self.topology = Topology(self.scenario) if self.flows else None
        others = [Topology(job.scenario) for job in self.scenario.job]
        self.shared_network = SharedNetwork(self.topology, self.seed, devices, others)
        self.network_events = NetworkEvents(self.shared_network)
        for greedy in self.topology.greedy() if self.topology else ():
            self.network_events.add_competing_flow(greedy, self.seed)

    def device(self, rank: int) -> int | None:
        """Return the line on which a node computes, None unless it shares its device."""
        shared = None if rank == self.workers else self._devices[rank]
        return None if shared is None else self.shared_network.devices + shared

    # The loop

    def _release(self, event: simpy.Event) -> None:
        """Resume nodes, and those made ready by transfers and messages until SimPy's next event."""
        ready, undelivered = self.ready, self.undelivered
        ready.extend([(node, None) for node in event.value or ()])
        self._events -= 1
        self._next_event = self.env.peek()
        while True:
            while ready:
                node, value = ready.popleft()
                with suppress(StopIteration):  # its program has returned
                    node.resume(value)
            if self.idle():
                self._end_at(self.env.now)
                return
            until = min(self._next_event, undelivered[0][0] if undelivered else inf)
            found = self._advance(until)
            if found is not None:
                at, ended = found
                for number in ended:
                    run, follow, _ = self.transfers.pop(number)
                    run.pending -= 1
                    follow(at)
            elif ready:
                continue
            elif undelivered and undelivered[0][0] <= self._next_event:
                message = heappop(undelivered)
                route = message[2]
                route.in_flight -= 1
                if route.receiving_nic is not None:
                    message = self._through(route.receiving_nic, message)
                self._deliver(route.node, message)
            else:
                return

    def idle(self) -> bool:
        """Whether this run has nothing left to do, though background jobs go on."""
        return False

    def _advance(self, until: float) -> tuple[float, list[int]] | None:
        """Advance the fabric until transfers end, or to `until`, through network events.

        Return the time, and the numbers of the transfers that end then; None if there are none.
        """
        while self.transfers:
            due = self.network_events.due
            if due > until or due == inf:
                return self.fabric.advance(until)
            found = self.fabric.advance(due)
            if found is not None:
                return found
            self.network_events.apply_next()
            if self.ready:  # a crash has left one worker alone, which needs no network
                break
            if (
                until == inf
                and self.network_events.dead_lines
                and all(map(self._never_arrives, self.transfers))
            ):
                break
        return None

    def _never_arrives(self, number: int) -> bool:
        return not self.network_events.dead_lines.isdisjoint(self.transfers[number].lines())

    def _deliver(self, node: VirtualNode, message: Message) -> None:
        """Hand a message to a node that waits for it; else keep it."""
        if node.awaited_rank in (ANY, message[4]):
            node.awaited_rank = None
            self.ready.append((node, message))
        else:
            node.keep(message)

    def answer_at(self, time: float, handle: Collective, question: Collective) -> None:
        """Answer at `time`, by SimPy's clock, whether a collective is finished."""

        def answer(event: simpy.Event) -> None:
            handle.answer(question)
            event._value = question.waiting
            self._release(event)

        self._events += 1
        self.call_at(time, answer)

    # Transfers that nodes start

    def compute(self, node: FlowNode, work: float) -> None:
        """Start `work` seconds of computing on a shared device, at most at full speed."""
        assert node.device is not None
        if node.device not in self._slots:
            self._slots[node.device] = self.fabric.path([node.device], 0.0, limit=1.0)
        number = self.fabric.send(node.now, self._slots[node.device], work)
        self._track(number, lambda at: self.ready.append((node, at)), frozenset)

    def _track(
        self, number: int, follow: Callable[[float], None], lines: Callable[[], frozenset[int]]
    ) -> None:
        """Remember what follows when a transfer ends."""
        self.transfers[number] = Transfer(self, follow, lines)
        self.pending += 1

    def send_message(self, message: InFlight, at: float) -> None:
        """Start a message when both ends are up; again, if one of them crashes meanwhile."""
        source, to = message.sender.rank, message.route.node.rank
        ends = [self.calendars[rank] for rank in (source, to)] if self.calendars else []
        crash = inf
        message.attempts += 1
        if message.attempts > PATIENCE:
            self.never(f"a message from {self.name_of(source)} to {self.name_of(to)}")
            return
        while ends and at < inf:
            crash, back = min(calendar.next(at) for calendar in ends)
            if crash > at:
                break
            at = back
        if at > self.deadline or at == inf:
            self.work_left = self.work_left or at < inf
            return
        message.began = at
        number = self.flow_network.send(at, source, to, message.size)
        self._track(
            number, partial(self._arrive, message), lambda: self.flow_network.lines((source, to))
        )
        self.network_events.at(crash, partial(self._resend, number, message))

    def _resend(self, number: int, message: InFlight, at: float) -> None:
        """Send a message again, if a crash at `at` finds it in flight."""
        if self._cancel(number, at):
            self.send_message(message, at)

    def _cancel(self, number: int, at: float) -> bool:
        """Cancel a transfer; return whether it was still in flight."""
        if self.transfers.pop(number, None) is None:
            return False
        self.pending -= 1
        self.fabric.cancel(at, number)
        return True

    def _arrive(self, message: InFlight, at: float) -> None:
        """Deliver a message that has arrived, once those sent before it have."""
        message.arrived_at = at
        waiting = message.route.under_way
        while waiting and waiting[0].arrived_at is not None:
            first = waiting.popleft()
            sender, route = first.sender, first.route
            sender.arrived(at - (first.began - first.sent))
            self.flow_network.arrived(sender.rank, route.node.rank, at - first.sent)
            delivered: Any = (at, 0, route, at - first.began, sender.rank, first.value)
            self._deliver(route.node, delivered)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Carry a collective out on the fabric."""
        if not self.flows:
            super().transfer(collective, size, largest)
            return
        sizes = [size] * self.workers
        if collective.kind == "gather":
            sizes = [self.meter(each) for each in collective.payloads]
        team = self._present(collective)
        ready = max(collective.begins, self.fabric.clock)  # past only where backups join late
        self._launch(collective, team, sizes, ready)

    def _launch(
        self,
        collective: Collective,
        team: list[int],
        sizes: list[float],
        begins: float,
        attempts: int = 0,
    ) -> None:
        """Begin a collective when all of its team are up, and again if one crashes in it."""
        while attempts < PATIENCE:
            attempts += 1
            crash, back, rank = self._first_crash(team, begins)
            if crash > begins or begins == inf:
                break
            begins = self._without(collective, team, rank, begins, crash, back)
        else:
            self.never(f"{collective.kind} {collective.index}")
            begins = inf
        collective.begins = begins
        self.note_stalls(collective, team)
        if begins > self.deadline or begins == inf:
            collective.done = inf  # it never begins
            return
        if len(team) < 2:
            self._collective_done(collective, team, begins)
            return
        number = self.flow_network.start(begins, collective.kind, tuple(team), sizes)
        prepared = self.flow_network.prepared(collective.kind, tuple(team))
        self._track(
            number, partial(self._collective_done, collective, team), lambda: prepared.lines
        )

        def crashed(at: float) -> None:
            if self._cancel(number, at):
                again = self._without(collective, team, rank, at, at, back)
                self._launch(collective, team, sizes, again, attempts)

        self.network_events.at(crash, crashed)

    def _collective_done(self, collective: Collective, team: list[int], at: float) -> None:
        """Resume all who wait for a collective; let the followers join theirs."""
        self.settle(collective, team)
        collective.done = at
        collective.payloads.clear()
        self.ready.extend((node, None) for node in collective.waiting)
        for rank, step, following, value in collective.followers:
            self.enter(following, rank, step, value(collective.result), at)
            following.last = collective.last

    # The end

    def has_pending(self) -> bool:
        """Whether anything was pending: a transfer counts, unless its lines never carry again."""
        mine = [number for number, transfer in self.transfers.items() if transfer.run is self]
        return super().has_pending() or not all(map(self._never_arrives, mine))

    def _deadlocked(self) -> list[str]:
        """Return clauses that say which nodes wait for which, or for which line."""
        names = [line.name for line in self.shared_network.lines]
        own = [transfer for transfer in self.transfers.values() if transfer.run is self]
        stuck = [
            f"transfers wait for {names[line]}, which carries nothing any more"
            for line in sorted(self.network_events.dead_lines)
            if any(line in transfer.lines() for transfer in own)
        ]
        for collective in dict.fromkeys(node.meeting for node in self.nodes if stuck):
            if collective is None:
                continue
            ranks = sorted(node.rank for node in self.nodes if node.meeting is collective)
            stuck.append(f"workers {ranks} wait in {collective.kind} {collective.index}")
        self.unfinished += stuck
        return [] if self.pending and not stuck else super()._deadlocked()

    def usage(self) -> list[dict[str, Any]]:
        """Return the traffic of each line, as `Run.lines`."""
        end = self.wall_clock(self.end)
        return self.shared_network.usage(end) if 0 < end < inf else []

    def phases(self) -> dict[str, dict[str, float]]:
        """Return the seconds of each stage of collectives and messages, as `Run.phases`."""
        return self.flow_network.phases() if self.flows else {}
