"""The world of a run in simulated time: its nodes, and what they share."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop
from math import inf
from typing import Any, ClassVar

import numpy as np
import simpy
from simpy.core import StopSimulation
from simpy.events import EventPriority

from paceline.simulator.cluster import speed
from paceline.simulator.engines import payloads
from paceline.simulator.engines.collective import ABSENT, IN_TIME, Collective, GradientPiece
from paceline.simulator.engines.observer import Observer, evaluation_interval
from paceline.simulator.engines.overheads import EffectCosts
from paceline.simulator.engines.virtual.node import NEVER, Message, VirtualNode
from paceline.simulator.errors import DeadlockError
from paceline.simulator.network.closed_form import ClosedForm, Nic, Traffic
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, Payload
from paceline.simulator.results.run import Spans
from paceline.simulator.scenario.scenario import Algorithm, Scenario

LAST = EventPriority(2)  # what happens at the deadline itself still counts


def deadline(scenario: Scenario) -> float:
    """Up to when things count, in seconds: what is later by rounding only is in time."""
    return (scenario.run.duration or inf) * IN_TIME


class Simulation:
    """One algorithm with one seed: its nodes, and the world they share.

    `limit`: the step at which a node stops (`NEVER` where the run ends by time). A server counts
    the gradients that it has received, and workers whose steps are pooled count everyone's: the
    first update after as many as all workers' steps is the last.
    """

    node: ClassVar[type[VirtualNode]] = VirtualNode

    def __init__(
        self,
        program: Program,
        algorithm: Algorithm,
        scenario: Scenario,
        seed: int,
        spans: Spans | None = None,
    ) -> None:
        self.scenario, self.seed, self.program = scenario, seed, program
        self.env = simpy.Environment()
        self.workers = scenario.cluster.workers
        self.objective = build.build(scenario, algorithm, seed)
        self.meter = payloads.Meter(scenario.model.bytes, self.objective.dimension)
        self.whole = self.meter.whole
        self.prepare()
        self.spans = spans
        self.ready: deque[tuple[VirtualNode, Any]] = deque()
        self.flights: list[Message] = []
        self.sent = 0
        self.staleness: dict[int, int] = defaultdict(int)
        self.inbox_bytes = 0.0  # the most that waited at the server at once
        self._events = 0  # still to come
        self._next_event = inf
        self.late = False  # whether the server has work left at the deadline
        self.over = False  # whether a node has stopped because the run is long enough
        self.deadline = deadline(scenario)
        self._open: dict[int, Collective] = {}
        self.guard = payloads.Guard()
        self._links_free = 0.0
        self.unsettled: list[str] = []  # what nobody will ever see the end of
        self.stall = ""  # why the run stood still before its end, if it did

        card = scenario.server.bandwidth
        self.card_in = Nic(card) if card else None
        self.card_out = Nic(card) if card else None
        together = program.server is not None or program.pooled
        scale = self.workers if together else 1
        self.limit = scale * scenario.run.steps if scenario.run.steps else NEVER
        interval, adaptive = evaluation_interval(scenario)
        every = scale * interval
        nodes = [self.make(rank) for rank in range(self.workers)]
        self.nodes: Sequence[VirtualNode] = nodes
        costs = EffectCosts(scenario)
        for node, durations in zip(self.nodes, self.durations(), strict=True):
            node.compute_with(durations, self.objective.source(node.rank))
            node.execute(program.start(program.worker, costs.on(node), algorithm.parameters))
        watched = self.nodes[:]
        if program.server:
            server = self.make(self.workers)
            server.serve(scenario.server.receive)
            server.execute(program.start(program.server, costs.on(server), algorithm.parameters))
            nodes.append(server)
            watched = [server]
        for node in watched:
            node.watch(0 if program.pooled else min(every, self.limit))
        self.observer = Observer(
            len(watched),
            every=every,
            adaptive=adaptive,
            limit=self.limit,
            scale=scale,
            objective=self.objective,
            traffic=self.traffic,
            cost=scenario.cost,
            nodes=len(self.nodes),
            averages=program.averages,
            deadline=self.deadline,
            pooled=program.pooled,
            together=together,
            when=self.when,
        )

    def prepare(self) -> None:
        """Make what nodes need: here, the network."""
        self.traffic = Traffic(ClosedForm(self.scenario), self.seed)

    def make(self, rank: int) -> VirtualNode:
        """Make a node."""
        return self.node(self, rank)

    def durations(self) -> list[Iterator[float]]:
        """What each worker's steps take, by its clock when they begin."""
        return speed.compute_times(self.scenario, self.seed, self.nodes)

    def when(self, times: Sequence[float]) -> float:
        """When all nodes have got somewhere, of their clocks."""
        return max(times)

    def run(self) -> None:
        """Run to the end of the steps, or of the time.

        Raises DeadlockError when nodes wait for each other.
        """
        if self.deadline < inf:
            self._end_at(self.deadline)
        try:
            self.release_at(0.0, self.nodes)
            self.env.run()
        finally:
            for node in self.nodes:
                node.coroutine.close()
        if not (self.expects() or self.observer.complete or self.late):
            self.stalled(self._deadlocked())
        end = self.end
        for node in self.nodes:
            node.finish(min(node.now, end) if self._whole else end)

    def expects(self) -> bool:
        """Whether something was still to come when the run ended."""
        return bool(self._events or self.flights)

    def stalled(self, nodes: list[str]) -> None:
        """Raise DeadlockError if nodes wait for each other: who waits for whom."""
        if nodes:
            raise DeadlockError(f"deadlock: {'; '.join(nodes)}")

    def seconds(self) -> dict[str, float]:
        """Mean over the workers of what their time was spent on, once the run is over."""
        return {kind: sum(each) / len(each) for kind, each in self.spent().items()}

    def spent(self) -> dict[str, list[float]]:
        """What each worker's time was spent on, as `Run.workers`."""
        team = self.nodes[: self.workers]
        return {
            "compute": [node.busy for node in team],
            "wait": [node.waited for node in team],
            "communicate": [node.communicated for node in team],
        }

    def account(self) -> dict[str, Any] | None:
        """What crashes cost, once the run is over; None where nothing can crash."""
        return None

    def usage(self) -> list[dict[str, Any]]:
        """What each line of the network has carried, as `Run.lines`."""
        return []

    def jobs(self) -> list[dict[str, Any]]:
        """How far other jobs on the network have come, as `Run.jobs`."""
        return []

    def phases(self) -> dict[str, dict[str, float]]:
        """What stages of collectives and messages took, as `Run.phases`."""
        return {}

    def notes(self) -> list[str]:
        """What a reader of the results must know of this run."""
        return []

    def shown(self, kept: Spans, until: float) -> tuple[np.ndarray, np.ndarray]:
        """Spans and arrows up to a time, as a timeline shows them."""
        return kept.array(until), kept.arrows(until)

    @property
    def end(self) -> float:
        """Up to when time counts: the deadline, or the end of the last step."""
        if self._whole:
            return self.observer.curve["time"][-1]
        return min(self.deadline, self.scenario.run.duration or inf)

    @property
    def _whole(self) -> bool:
        """Whether the workers have ended the run, by coming to its last step in time."""
        return self.over and self.observer.curve["step"][-1] == self.scenario.run.steps

    def stop_at(self, time: float) -> None:
        """End the run at `time`: the last update has been made."""
        self.deadline = min(self.deadline, time)
        self._end_at(self.deadline)

    def _end_at(self, time: float) -> None:
        """Schedule the end of the run; what happens at `time` itself still counts."""
        end = simpy.Event(self.env)
        end._ok, end._value = True, None  # as SimPy makes it for `until` a number, but LAST
        end.callbacks.append(StopSimulation.callback)
        self.env.schedule(end, LAST, max(0.0, time - self.env.now))
        self._next_event = min(self._next_event, time)

    @property
    def staleness_unit(self) -> str:
        """What the staleness of this program's updates is counted in."""
        if len(self.nodes) > self.workers:
            return "updates"
        return "averagings" if self.nodes[0].gossips else "steps"

    def release_at(self, time: float, nodes: Sequence[VirtualNode]) -> None:
        """Let nodes go on when SimPy's clock reaches `time`."""
        event = self.env.timeout(max(0.0, time - self.env.now), nodes)
        event.callbacks.append(self._release)
        self._events += 1
        self._next_event = min(self._next_event, time)

    def _release(self, event: simpy.Event) -> None:
        """Resume nodes, those this sets free, and the receivers of messages up to the next event.

        When no node is ready, only an event of SimPy's can come before the first message under way.
        """
        ready, flights = self.ready, self.flights
        ready.extend([(node, None) for node in event.value or ()])
        self._events -= 1
        self._next_event = self.env.peek()
        while True:
            try:
                while ready:
                    node, value = ready.popleft()
                    resume = node.resume
                    resume(value)
                if not flights or flights[0][0] > self._next_event:
                    return
                message = heappop(flights)
                route, source = message[2], message[4]
                route.flying -= 1
                if route.arrives is not None:
                    message = self._through(route.arrives, message)
                node = route.node
                if node.sought == ANY or node.sought == source:  # noqa: PLR1714 - 1.7 times as fast
                    node.sought = None
                    resume = node.resume
                    resume(message)
                else:
                    node.keep(message)
            except StopIteration:
                pass  # its program has returned

    def _through(self, card: Nic, message: Message) -> Message:
        """Take a message in through the server's network card."""
        at, number, route, transit, source, value = message
        at = card.through(at, self.meter(value))
        return at, number, route, transit, source, value

    def wake(self, node: VirtualNode, gradient: GradientPiece) -> None:
        """Let a node go on when its gradient is computed, unless a message comes before."""
        if node.alarm <= gradient.done:
            return  # it is looked after before that

        at = node.alarm = gradient.done

        def ring(event: simpy.Event) -> None:
            if node.alarm == at:
                node.alarm = inf
                current = node.gradient_under_way
                if current is not None and current.done <= at:
                    event._value = [node]
                elif current is not None:
                    self.wake(node, current)
            self._release(event)

        event = self.env.timeout(max(0.0, at - self.env.now))
        event.callbacks.append(ring)
        self._events += 1
        self._next_event = min(self._next_event, at)

    def collective(self, index: int, kind: str) -> Collective:
        """The `index`-th collective of the run; the first worker to come opens it."""
        if index not in self._open:
            self._open[index] = Collective(index, kind, self.workers, self.guard)
        return self._open[index]

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join; the last one begins the collective."""
        collective.join(rank, step, value)
        if at > collective.begins:
            collective.begins, collective.last = at, (rank, at)
        if not collective.missing:
            self._begin(collective)

    def _begin(self, collective: Collective) -> None:
        """All have joined: carry it out."""
        del self._open[collective.index]
        size, largest = self.meter(collective.payloads[0]), None
        if collective.kind == "gather":
            sizes = [self.meter(each) for each in collective.payloads]
            size, largest = sum(sizes) / len(sizes), max(sizes)
        self.transfer(collective, size, largest)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Take the links as soon as they are free."""
        begins = collective.begins = max(collective.begins, self._links_free)
        if begins > self.deadline:
            collective.done = inf  # nobody will see it
            return
        transmission, latency = self.traffic.collective(collective.kind, size, largest)
        self._links_free = begins + transmission
        self.complete(collective, self._links_free + latency)

    def complete(self, collective: Collective, done: float) -> None:
        """The result is there at `done`."""
        collective.done = done
        collective.payloads.clear()
        self.release_at(done, collective.waiting)
        for rank, step, following, value in collective.followers:
            self.enter(following, rank, step, value(collective.result), done)
            following.last = collective.last  # who waits for this one's result waits for the same

    def _deadlocked(self) -> list[str]:
        """Which nodes wait for each other.

        At the end of a run nodes may wait for messages, but not in the midst of a collective.
        """
        stuck = self.unsettled[:]
        for index, collective in self._open.items():
            ranks = sorted(node.rank for node in collective.waiting)
            if not ranks:
                continue
            absent = [rank for rank, step in enumerate(collective.joined) if step == ABSENT]
            stuck.append(f"workers {ranks} wait in {collective.kind} {index} for workers {absent}")
        for node in self.nodes:
            if node.sought is not None and not self.over:
                stuck.append(f"{self.called(node.rank)} waits for {self.called(node.sought)}")
        return stuck

    def called(self, rank: int) -> str:
        """A node as messages call it."""
        return "anyone" if rank < 0 else "the server" if rank == self.workers else f"worker {rank}"
