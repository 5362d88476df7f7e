"""A run whose transfers share the lines of a network, and whose workers may share a device.

All that is shared lives in the fabric; nodes hand it a transfer (or a gradient to compute) and are
resumed when its ticket ends. What changes the network meanwhile (outages, profiles, others' flows,
crashes) is its weather: it comes when it is due, and only while something is under way.
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
    """What a run waits for: what follows, and the lines that it passes."""

    run: "FlowSimulation"
    follow: Callable[[float], None]
    lines: Callable[[], frozenset[int]]


class FlowSimulation(FaultTolerantSimulation):
    """A run over the fabric.

    `flows`: whether transfers go there; else only what shares a device does. `tickets`: whose each
    is, what to do when it ends, and the lines that it passes; others' flows, which never end, have
    none. `pending`: how many are this run's. `weather`: what changes the fabric next, and when.
    """

    node = FlowNode
    nodes: Sequence[FlowNode]

    def connect(self) -> None:
        """Make the fabric, and what changes it."""
        scenario = self.scenario
        self.flows = scenario.network.model == "flows"
        self._devices = workers.devices(scenario)
        self.pending = 0
        self._slots: dict[int, int] = {}  # paths of shared devices
        self.share()
        self.fabric = self.ground.fabric
        if self.topology is None:
            super().connect()
            return
        self.carrier = FlowNetwork(scenario, self.topology, self.fabric, self.seed)
        self.traffic: Any = self.carrier

    def share(self) -> None:
        """Make what guests share."""
        self.tickets: dict[int, Transfer] = {}
        devices = max((each for each in self._devices if each is not None), default=-1) + 1
        self.topology = Topology(self.scenario) if self.flows else None
        others = [Topology(job.scenario) for job in self.scenario.job]
        self.ground = SharedNetwork(self.topology, self.seed, devices, others)
        self.weather = NetworkEvents(self.ground)
        for greedy in self.topology.greedy() if self.topology else ():
            self.weather.visit(greedy, self.seed)

    def device(self, rank: int) -> int | None:
        """The line on which a node computes, if others do too."""
        shared = None if rank == self.workers else self._devices[rank]
        return None if shared is None else self.ground.devices + shared

    # Going on

    def _release(self, event: simpy.Event) -> None:
        """Resume nodes, and all whom tickets and messages free up to SimPy's next event."""
        ready, flights = self.ready, self.flights
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
            until = min(self._next_event, flights[0][0] if flights else inf)
            found = self._advance(until)
            if found is not None:
                at, tickets = found
                for ticket in tickets:
                    run, follow, _ = self.tickets.pop(ticket)
                    run.pending -= 1
                    follow(at)
            elif ready:
                continue
            elif flights and flights[0][0] <= self._next_event:
                message = heappop(flights)
                route = message[2]
                route.flying -= 1
                if route.arrives is not None:
                    message = self._through(route.arrives, message)
                self._deliver(route.node, message)
            else:
                return

    def idle(self) -> bool:
        """Whether nothing of its own is to come, though others go on."""
        return False

    def _advance(self, until: float) -> tuple[float, list[int]] | None:
        """Run the fabric to when tickets end, or up to `until`; the weather changes on the way."""
        while self.tickets:
            due = self.weather.due
            if due > until or due == inf:
                return self.fabric.advance(until)
            found = self.fabric.advance(due)
            if found is not None:
                return found
            self.weather.turn()
            if self.ready:  # a crash has left one worker alone, who needs no network
                break
            if until == inf and self.weather.dead and all(map(self._doomed, self.tickets)):
                break
        return None

    def _doomed(self, ticket: int) -> bool:
        return not self.weather.dead.isdisjoint(self.tickets[ticket].lines())

    def _deliver(self, node: VirtualNode, message: Message) -> None:
        """Give a message to a node that waits for it, or keep it."""
        if node.sought in (ANY, message[4]):
            node.sought = None
            self.ready.append((node, message))
        else:
            node.keep(message)

    def answer_at(self, time: float, handle: Collective, question: Collective) -> None:
        """Answer whether a collective is finished, when the run has come to that time."""

        def answer(event: simpy.Event) -> None:
            handle.answer(question)
            event._value = question.waiting
            self._release(event)

        event = self.env.timeout(max(0.0, time - self.env.now))
        event.callbacks.append(answer)
        self._events += 1
        self._next_event = min(self._next_event, time)

    # What nodes hand over

    def compute(self, node: FlowNode, work: float) -> None:
        """Compute on a shared device, at most at the pace of one worker alone."""
        assert node.device is not None
        if node.device not in self._slots:
            self._slots[node.device] = self.fabric.path([node.device], 0.0, limit=1.0)
        ticket = self.fabric.send(node.now, self._slots[node.device], work)
        self._hold(ticket, lambda at: self.ready.append((node, at)), frozenset)

    def _hold(
        self, ticket: int, follow: Callable[[float], None], lines: Callable[[], frozenset[int]]
    ) -> None:
        """Remember what follows from a ticket."""
        self.tickets[ticket] = Transfer(self, follow, lines)
        self.pending += 1

    def post(self, letter: InFlight, at: float) -> None:
        """Send a message when both ends are there; again, if one of them crashes meanwhile."""
        source, to = letter.sender.rank, letter.route.node.rank
        ends = [self.calendars[rank] for rank in (source, to)] if self.calendars else []
        crash = inf
        letter.posted += 1
        if letter.posted > PATIENCE:
            self.never(f"a message from {self.called(source)} to {self.called(to)}")
            return
        while ends and at < inf:
            crash, back = min(calendar.next(at) for calendar in ends)
            if crash > at:
                break
            at = back
        if at > self.deadline or at == inf:
            self.late = self.late or at < inf
            return
        ticket = self.carrier.send(at, source, to, letter.size)
        self._hold(ticket, partial(self._arrive, letter), lambda: self.carrier.lines((source, to)))
        self.weather.at(crash, partial(self._post_again, ticket, letter))

    def _post_again(self, ticket: int, letter: InFlight, at: float) -> None:
        """A node has crashed: what is under way is lost."""
        if self._call_off(ticket, at):
            self.post(letter, at)

    def _call_off(self, ticket: int, at: float) -> bool:
        """Cancel a ticket; return whether it was still under way."""
        if self.tickets.pop(ticket, None) is None:
            return False
        self.pending -= 1
        self.fabric.cancel(at, ticket)
        return True

    def _arrive(self, letter: InFlight, at: float) -> None:
        """A message is there; messages of one connection keep their order."""
        letter.came = at
        waiting = letter.route.under_way
        while waiting and waiting[0].came is not None:
            first = waiting.popleft()
            sender, route = first.sender, first.route
            sender.arrived(at)
            self.carrier.arrived(sender.rank, route.node.rank, at - first.sent)
            message: Any = (at, 0, route, at - first.sent, sender.rank, first.value)
            self._deliver(route.node, message)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Carry a collective out on the fabric."""
        if not self.flows:
            super().transfer(collective, size, largest)
            return
        sizes = [size] * self.workers
        if collective.kind == "gather":
            sizes = [self.meter(each) for each in collective.payloads]
        self._launch(collective, self._present(collective), sizes, collective.begins)

    def _launch(
        self,
        collective: Collective,
        team: list[int],
        sizes: list[float],
        begins: float,
        attempts: int = 0,
    ) -> None:
        """Begin a collective when all of its team are there, and again where one crashes."""
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
        if begins > self.deadline or begins == inf:
            collective.done = inf  # nobody will see it
            return
        if len(team) < 2:
            self._mean_done(collective, team, begins)
            return
        ticket = self.carrier.start(begins, collective.kind, tuple(team), sizes)
        prepared = self.carrier.prepared(collective.kind, tuple(team))
        self._hold(ticket, partial(self._mean_done, collective, team), lambda: prepared.lines)

        def crashed(at: float) -> None:
            if self._call_off(ticket, at):
                again = self._without(collective, team, rank, at, at, back)
                self._launch(collective, team, sizes, again, attempts)

        self.weather.at(crash, crashed)

    def _mean_done(self, collective: Collective, team: list[int], at: float) -> None:
        """A collective has its result."""
        self.settle(collective, team)
        collective.done = at
        collective.payloads.clear()
        self.ready.extend((node, None) for node in collective.waiting)
        for rank, step, following, value in collective.followers:
            self.enter(following, rank, step, value(collective.result), at)
            following.last = collective.last

    # The end

    def expects(self) -> bool:
        """Whether something was still to come: a transfer, too, unless it never gets through."""
        mine = [number for number, ticket in self.tickets.items() if ticket.run is self]
        return super().expects() or not all(map(self._doomed, mine))

    def _deadlocked(self) -> list[str]:
        """Who waits for whom, or for which line."""
        names = [line.name for line in self.ground.lines]
        stuck = [
            f"transfers wait for {names[line]}, which carries nothing any more"
            for line in sorted(self.weather.dead)
            if any(line in ticket.lines() for ticket in self.tickets.values() if ticket.run is self)
        ]
        for collective in dict.fromkeys(node.meeting for node in self.nodes if stuck):
            if collective is None:
                continue
            ranks = sorted(node.rank for node in self.nodes if node.meeting is collective)
            stuck.append(f"workers {ranks} wait in {collective.kind} {collective.index}")
        self.unsettled += stuck
        return [] if self.pending and not stuck else super()._deadlocked()

    def usage(self) -> list[dict[str, Any]]:
        """What each line has carried."""
        end = self.wall(self.end)
        return self.ground.usage(end) if 0 < end < inf else []

    def phases(self) -> dict[str, dict[str, float]]:
        """What stages of collectives and messages took."""
        return self.carrier.phases() if self.flows else {}
