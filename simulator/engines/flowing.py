"""A run whose transfers share the lines of a network, and whose workers may share a device.

All that is shared lives in the fabric; nodes hand it a transfer (or a gradient to compute) and are
resumed when its ticket ends. What changes the network meanwhile (outages, profiles, others' flows,
crashes) is its weather: it comes when it is due, and only while something is under way.
"""

import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Any, NamedTuple

import simpy

from simulator import cluster
from simulator.carrier import Carrier, Ground
from simulator.effects import ANY, Handle, Payload, Vector
from simulator.engines.collective import Collective, Piece
from simulator.engines.fragile import FragileNode
from simulator.engines.node import Message, VirtualNode
from simulator.engines.recovering import RecoveringSimulation
from simulator.failures import PATIENCE
from simulator.topology import Topology

ENDLESS = 1e24  # bytes of a flow that never ends


class Ticket(NamedTuple):
    """What a run waits for: what follows, and the lines that it passes."""

    run: "FlowSimulation"
    follow: Callable[[float], None]
    lines: Callable[[], frozenset[int]]


class Connection:
    """Messages from one node to another, in order. For the attributes see `Route`."""

    arrives = None
    whole_transit = None

    def __init__(self, node: "FlowNode") -> None:
        self.node = node
        self.version = self.flying = 0
        self.last = 0.0
        self.under_way: deque[Letter] = deque()


class Letter:
    """A message under way. `came`: when it arrived, None until then; `posted`: how often."""

    __slots__ = ("came", "posted", "route", "sender", "sent", "size", "value")

    def __init__(
        self, sender: "FlowNode", route: Connection, sent: float, size: float, value: Payload
    ) -> None:
        self.sender, self.route, self.sent, self.size = sender, route, sent, size
        self.value = value
        self.came: float | None = None
        self.posted = 0


class FlowNode(FragileNode):
    """A node whose transfers share lines. `device`: the line it computes on, if it shares one."""

    __slots__ = ("_computing", "device")
    _run: "FlowSimulation"
    _routes: list[Any]

    def __init__(self, run: Any, rank: int) -> None:
        super().__init__(run, rank)
        self.device: int | None = run.device(rank)
        self._computing = False

    def _route(self, to: int) -> Any:
        run = self._run
        if not run.flows:
            return super()._route(to)
        self._routes[to] = Connection(run.nodes[to])
        return self._routes[to]

    def send(self, to: int, value: Payload) -> None:
        """Hand a message to the fabric."""
        run = self._run
        if not run.flows:
            super().send(to, value)
        elif self.gone is None:
            self.shared = self.computed
            route = self._routes[to] or self._route(to)
            route.version = self.updates
            letter = Letter(self, route, self.now, run.meter(value), value)
            route.under_way.append(letter)
            run.post(letter, self.now)

    @property
    def meeting(self) -> Collective | None:
        """The collective under way that it waits for, if any."""
        handle = self._handle
        return handle if isinstance(handle, Collective) and not handle.missing else None

    def arrived(self, at: float) -> None:
        """What it sent last has arrived."""
        self._sent_until = at

    async def finished(self, handle: Handle) -> bool:
        """Ask as all others do; the answer is known when the run has come to that time."""
        question = handle.question(self.rank)
        question.join(self.rank, self.step, 0.0)
        question.begins = max(question.begins, self.now)
        if not question.missing:
            self._run.answer_at(question.begins, handle, question)
        return bool(await self.wait(question))

    async def _step(self) -> float:
        """Count one step; compute it, where the device is shared beside others."""
        if self.device is None:
            return await super()._step()
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        return await self._beside_others(next(self._durations))

    @types.coroutine
    def _beside_others(self, work: float) -> Generator[None, float, float]:
        """Compute on a shared device; return how long that took."""
        self._run.compute(self, work)
        self._computing = True
        done = yield
        self._computing = False
        took = done - self.now
        while self.now + took < done:  # by rounding; the fabric knows no past
            took = nextafter(took, inf)
        return took

    def finish(self, end: float) -> None:
        """Account for the time up to `end`; on a shared device it computes to the last."""
        if self._computing and self.now < end < inf:
            self.now = end
        super().finish(end)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """As everywhere; but a shared device frees all pieces at the end."""
        started = await super().start_backward(x, pieces)
        if self.device is None or started[0].done == inf:
            return started
        self.now = max(self._run.fabric.clock, *(piece.done for piece in started))
        return [Piece(piece.result, self.now) for piece in started]


class FlowSimulation(RecoveringSimulation):
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
        self._devices = cluster.devices(scenario)
        self._dead: set[int] = set()  # lines that never work again
        self._turn = self.pending = 0
        self._slots: dict[int, int] = {}  # paths of shared devices
        self.share()
        self.fabric = self.ground.fabric
        if self.topology is None:
            super().connect()
            return
        self.carrier = Carrier(scenario, self.topology, self.fabric, self.seed)
        self.traffic: Any = self.carrier
        self.blow()

    def share(self) -> None:
        """Make what guests share."""
        self.tickets: dict[int, Ticket] = {}
        self.weather: list[tuple[float, int, Callable[[float], None]]] = []
        devices = max((each for each in self._devices if each is not None), default=-1) + 1
        self.topology = Topology(self.scenario) if self.flows else None
        others = [Topology(job.scenario) for job in self.scenario.job]
        self.ground = Ground(self.topology, self.seed, devices, others)

    def blow(self) -> None:
        """Let the weather begin: lines that change, and others' flows."""
        assert self.topology is not None
        for line in self.ground.changing:
            self._change_next(line)
        for greedy in self.topology.greedy():
            lines = tuple(dict.fromkeys(greedy.way.lines))
            path = self.fabric.path(lines, 0.0, limit=greedy.way.limit)
            self._come_next(path, greedy.spells.of(self.seed))

    def device(self, rank: int) -> int | None:
        """The line on which a node computes, if others do too."""
        shared = None if rank == self.workers else self._devices[rank]
        return None if shared is None else self.ground.devices + shared

    # The weather

    def at(self, time: float, change: Callable[[float], None]) -> None:
        """Let something change the fabric at `time`."""
        if time < inf:
            self._turn += 1
            heappush(self.weather, (time, self._turn, change))

    def _change_next(self, line: int) -> None:
        """Let a line's capacity change when it next does."""
        time, capacity = self.ground.next_change(line)
        if time == inf and capacity == 0:
            self._dead.add(line)

        def change(at: float) -> None:
            self.ground.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)

    def _come_next(self, path: int, spells: Iterator[tuple[float, float]]) -> None:
        """Let somebody else's flow begin when it next does, and end."""
        start, end = next(spells, (inf, inf))

        def begin(at: float) -> None:
            ticket = self.fabric.send(at, path, ENDLESS)
            self.at(end, lambda at: over(at, ticket))

        def over(at: float, ticket: int) -> None:
            self.fabric.cancel(at, ticket)
            self._come_next(path, spells)

        self.at(start, begin)

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
            due = self.weather[0][0] if self.weather else inf
            if due > until or due == inf:
                return self.fabric.advance(until)
            found = self.fabric.advance(due)
            if found is not None:
                return found
            heappop(self.weather)[2](due)
            if self.ready:  # a crash has left one worker alone, who needs no network
                break
            if until == inf and self._dead and all(map(self._doomed, self.tickets)):
                break
        return None

    def _doomed(self, ticket: int) -> bool:
        return not self._dead.isdisjoint(self.tickets[ticket].lines())

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
        self.tickets[ticket] = Ticket(self, follow, lines)
        self.pending += 1

    def post(self, letter: Letter, at: float) -> None:
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
        self.at(crash, partial(self._post_again, ticket, letter))

    def _post_again(self, ticket: int, letter: Letter, at: float) -> None:
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

    def _arrive(self, letter: Letter, at: float) -> None:
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

        self.at(crash, crashed)

    def _mean_done(self, collective: Collective, team: list[int], at: float) -> None:
        """A collective has its result."""
        self.settle(collective, team)
        collective.done = at
        collective.payloads.clear()
        self.ready.extend((node, None) for node in collective.waiting)
        for rank, step, following, value in collective.followers:
            self.enter(following, rank, step, value(collective.result), at)

    # The end

    def expects(self) -> bool:
        """Whether something was still to come: a transfer, too, unless it never gets through."""
        mine = [number for number, ticket in self.tickets.items() if ticket.run is self]
        return super().expects() or not all(map(self._doomed, mine))

    def _deadlocked(self) -> list[str]:
        """Who waits for whom, or for which line."""
        names = [line.name for line in self.ground.lines]
        stuck = [
            f"transfers wait for {names[line]}, which is down for good"
            for line in sorted(self._dead)
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
