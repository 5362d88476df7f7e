"""One run of the reference engine: the loop that resumes its nodes, and what they share.

Strategy. Programs are plain coroutines that the nodes resume with `send`; SimPy keeps only the
events that several nodes can observe: results of collectives, alarms of nodes that compute until
a message comes (`wake`), and the end. `_release`, the one callback, resumes the nodes of its event,
all nodes which these make ready, and then the receivers of messages, up to SimPy's next event.
One event per collective resumes all its workers, so that a barrier costs O(workers).

Invariants.
- Nodes see messages in order of arrival, and equal times in the order of sending (`undelivered`).
- When no node is ready, only SimPy's next event (`_next_event`) can come before the first message.
  All who schedule an event therefore lower `_next_event`, and count it in `_events`, unless it is
  the end.
- The end has the lowest priority (`LAST`): what happens exactly at the deadline counts. `deadline`
  carries a tolerance for rounding, while times that are reported stop at the scenario's duration.
- Collectives take the links in the order in which their last worker joined, each as soon as the
  links are free (`_links_free`); those that begin after the deadline are neither drawn nor counted.

Why so. SimPy's own processes, `AllOf` and stores give the same order at several times the cost.
Subclasses add crashes (`fault_tolerance`), shared links (`flows`) and other jobs
(`background_jobs`); `request_reply` is a shorter loop for most parameter servers.

After a change run tests/engines and tests/programs, then `make bench`.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, ClassVar

import numpy as np
import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, EventPriority

from paceline.simulator.cluster import speed
from paceline.simulator.engines import payloads
from paceline.simulator.engines.collective import ABSENT, Collective, GradientPiece
from paceline.simulator.engines.observer import Observer, evaluation_interval
from paceline.simulator.engines.overheads import EffectCosts
from paceline.simulator.engines.tolerances import DEADLINE_TOLERANCE
from paceline.simulator.engines.virtual.node import NEVER, Message, VirtualNode
from paceline.simulator.errors import DeadlockError
from paceline.simulator.network.closed_form import ClosedForm, Nic, Traffic
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, Payload
from paceline.simulator.results.run import Spans
from paceline.simulator.scenario.scenario import Algorithm, Scenario

LAST = EventPriority(2)  # below all others: what happens exactly at the deadline counts


def deadline(scenario: Scenario) -> float:
    """Return the last time that counts, in seconds: the duration, with a tolerance for rounding."""
    return (scenario.run.duration or inf) * DEADLINE_TOLERANCE


class Simulation:
    """One algorithm with one seed: its nodes, and what they share.

    `limit`: the step at which a node stops (`NEVER` where the run ends by time). A server counts
    the gradients that it has received, and workers whose steps are pooled count all workers'
    steps; both then end with the first update at or after workers x steps.
    `ready`: nodes to resume, and with what. `undelivered`: a heap of messages by time of arrival;
    `sent`: their serial number. `staleness`: uses of results, by age. `inbox_bytes`: the most that
    waited at the server at once. `work_left`: whether the server has messages to serve after the
    deadline; `over`: whether a node has stopped at `limit`. `unfinished`: what never gets done, as
    clauses; `stall`: why the run stopped before its end, or empty.
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
        self.whole_bytes = round(scenario.model.bytes)
        self.prepare()
        self.spans = spans
        self.ready: deque[tuple[VirtualNode, Any]] = deque()
        self.undelivered: list[Message] = []
        self.sent = 0
        self.staleness: dict[int, int] = defaultdict(int)
        self.inbox_bytes = 0.0
        self._events = 0  # scheduled, not counting the end of the run
        self._next_event = inf
        self.work_left = self.over = False
        self.deadline = deadline(scenario)
        self._open_collectives: dict[int, Collective] = {}
        self.guard = payloads.Guard()
        self._links_free = 0.0
        self.unfinished: list[str] = []
        self.stall = ""

        bandwidth = scenario.server.bandwidth
        self.nic_in = Nic(bandwidth) if bandwidth else None
        self.nic_out = Nic(bandwidth) if bandwidth else None
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
            completion_time=self.completion_time,
        )

    def prepare(self) -> None:
        """Make what the nodes need, before they exist: here, the network."""
        self.traffic = Traffic(ClosedForm(self.scenario), self.seed)

    def make(self, rank: int) -> VirtualNode:
        """Make a node."""
        return self.node(self, rank)

    def durations(self) -> list[Iterator[float]]:
        """Return each worker's compute times, in seconds, by its clock when a step begins."""
        return speed.compute_times(self.scenario, self.seed, self.nodes)

    def completion_time(self, times: Sequence[float]) -> float:
        """Return the time at which the last node reached a step, of all nodes' clocks then."""
        return max(times)

    def run(self) -> None:
        """Run to the last step, or to the deadline.

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
        if not (self.has_pending() or self.observer.complete or self.work_left):
            self.report_stall(self._deadlocked())
        end = self.end
        for node in self.nodes:
            node.finish(min(node.now, end) if self._completed else end)

    def has_pending(self) -> bool:
        """Whether events or messages were pending when the run ended."""
        return bool(self._events or self.undelivered)

    def report_stall(self, nodes: list[str]) -> None:
        """Raise DeadlockError if there are `nodes`: clauses that say which waits for which."""
        if nodes:
            raise DeadlockError(f"deadlock: {'; '.join(nodes)}")

    def seconds(self) -> dict[str, float]:
        """Return the mean seconds of a worker by kind of activity, once the run is over."""
        return {kind: sum(each) / len(each) for kind, each in self.spent().items()}

    def spent(self) -> dict[str, list[float]]:
        """Return each worker's seconds by kind of activity, as `Run.workers`."""
        team = self.nodes[: self.workers]
        return {
            "compute": [node.busy for node in team],
            "wait": [node.waited for node in team],
            "communicate": [node.communicated for node in team],
        }

    def failures(self) -> dict[str, Any] | None:
        """Return the cost of crashes, as `Run.failures`; None where nothing can crash."""
        return None

    def usage(self) -> list[dict[str, Any]]:
        """Return the traffic of each line of the network, as `Run.lines`."""
        return []

    def jobs(self) -> list[dict[str, Any]]:
        """Return the progress of other jobs on the network, as `Run.jobs`."""
        return []

    def phases(self) -> dict[str, dict[str, float]]:
        """Return the seconds of each stage of collectives and messages, as `Run.phases`."""
        return {}

    def notes(self) -> list[str]:
        """Return notes on this run for readers of its results."""
        return []

    def timeline(self, kept: Spans, until: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the spans and arrows up to a time, as a timeline shows them."""
        return kept.array(until), kept.arrows(until)

    @property
    def end(self) -> float:
        """Time at which the run ends: that of the last step, or the scenario's duration."""
        if self._completed:
            return self.observer.curve["time"][-1]
        return min(self.deadline, self.scenario.run.duration or inf)

    @property
    def horizon(self) -> float:
        """Wall-clock time at which the scenario's duration ended the run; inf if it did not."""
        reached = self._completed or self.observer.complete
        return inf if reached else self.scenario.run.duration or inf

    def averages_begun(self) -> bool:
        """Whether an average has begun."""
        return bool(self.traffic.begun)

    @property
    def _completed(self) -> bool:
        """Whether the workers have reached the last step in time."""
        return self.over and self.observer.curve["step"][-1] == self.scenario.run.steps

    def stop_at(self, time: float) -> None:
        """End the run at `time`, when the last update has been made."""
        self.deadline = min(self.deadline, time)
        self._end_at(self.deadline)

    def _end_at(self, time: float) -> None:
        """Schedule the end of the run; what happens exactly at `time` still counts."""
        self.call_at(time, StopSimulation.callback, priority=LAST)

    def call_at(
        self,
        time: float,
        callback: Callable[[simpy.Event], None],
        value: Any = None,
        priority: EventPriority = NORMAL,
    ) -> None:
        """Schedule an event of SimPy's at exactly `time`, or now if that is past.

        SimPy itself would add a delay to its clock, and round: nodes, whose clocks are exact, would
        then be behind a fabric that has advanced to the event.
        """
        env, event = self.env, simpy.Event(self.env)
        event._ok, event._value = True, value
        event.callbacks.append(callback)
        heappush(env._queue, (max(time, env.now), priority, next(env._eid), event))
        self._next_event = min(self._next_event, time)

    @property
    def staleness_unit(self) -> str:
        """The unit in which this program's staleness is counted."""
        if len(self.nodes) > self.workers:
            return "updates"
        return "averagings" if self.nodes[0].gossips else "steps"

    def release_at(self, time: float, nodes: Sequence[VirtualNode]) -> None:
        """Resume nodes when SimPy's clock reaches `time`."""
        self._events += 1
        self.call_at(time, self._release, nodes)

    def _release(self, event: simpy.Event) -> None:
        """Resume the event's nodes, those made ready, and receivers of messages until SimPy's next.

        When no node is ready, only an event of SimPy's can come before the first message in flight.
        """
        ready, undelivered = self.ready, self.undelivered
        ready.extend([(node, None) for node in event.value or ()])
        self._events -= 1
        self._next_event = self.env.peek()
        while True:
            try:
                while ready:
                    node, value = ready.popleft()
                    resume = node.resume
                    resume(value)
                if not undelivered or undelivered[0][0] > self._next_event:
                    return
                message = heappop(undelivered)
                route, source = message[2], message[4]
                route.in_flight -= 1
                if route.receiving_nic is not None:
                    message = self._through(route.receiving_nic, message)
                node = route.node
                awaited = node.awaited_rank
                if awaited == ANY or awaited == source:  # noqa: PLR1714, SIM109 - faster
                    node.awaited_rank = None
                    resume = node.resume
                    resume(message)
                else:
                    node.keep(message)
            except StopIteration:
                pass  # its program has returned

    def _through(self, nic: Nic, message: Message) -> Message:
        """Return a message as it leaves the server's network card, which it must pass."""
        at, number, route, transit, source, value = message
        at = nic.through(at, self.meter(value))
        return at, number, route, transit, source, value

    def wake(self, node: VirtualNode, gradient: GradientPiece) -> None:
        """Resume a node when its gradient is computed, unless a message comes before."""
        if node.wakeup_at <= gradient.done:
            return  # an earlier alarm is set, and sets the next

        at = node.wakeup_at = gradient.done

        def ring(event: simpy.Event) -> None:
            if node.wakeup_at == at:
                node.wakeup_at = inf
                current = node.gradient_under_way
                if current is not None and current.done <= at:
                    event._value = [node]
                elif current is not None:
                    self.wake(node, current)
            self._release(event)

        self._events += 1
        self.call_at(at, ring)

    def collective(self, index: int, kind: str) -> Collective:
        """Return the `index`-th collective of the run; the first worker to ask opens it."""
        if index not in self._open_collectives:
            self._open_collectives[index] = Collective(index, kind, self.workers, self.guard)
        return self._open_collectives[index]

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join at `at`; the last one begins the collective."""
        collective.join(rank, step, value)
        if at > collective.begins:
            collective.begins, collective.last = at, (rank, at)
        if not collective.missing:
            self._begin(collective)

    def _begin(self, collective: Collective) -> None:
        """Carry out a collective that all workers have joined."""
        del self._open_collectives[collective.index]
        size, largest = self.meter(collective.payloads[0]), None
        if collective.kind == "gather":
            sizes = [self.meter(each) for each in collective.payloads]
            size, largest = sum(sizes) / len(sizes), max(sizes)
        self.transfer(collective, size, largest)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Begin a collective as soon as the links are free; work out when it is done.

        `size`: bytes per worker, on average; `largest`: of the worker with most, if they differ.
        """
        begins = collective.begins = max(collective.begins, self._links_free)
        if begins > self.deadline:
            collective.done = inf  # it never begins, so that no node sees its result
            return
        transmission, latency = self.traffic.collective(collective.kind, size, largest)
        self._links_free = begins + transmission
        self.complete(collective, self._links_free + latency)

    def complete(self, collective: Collective, done: float) -> None:
        """Resume all who wait for a collective at `done`; let the followers join theirs then."""
        collective.done = done
        collective.payloads.clear()
        self.release_at(done, collective.waiting)
        for rank, step, following, value in collective.followers:
            self.enter(following, rank, step, value(collective.result), done)
            following.last = collective.last  # its waits are caused by the same worker

    def _deadlocked(self) -> list[str]:
        """Return clauses that say which nodes wait for which.

        Nodes may end a run waiting for messages, but not inside a collective.
        """
        stuck = self.unfinished[:]
        for index, collective in self._open_collectives.items():
            ranks = sorted(node.rank for node in collective.waiting)
            if not ranks:
                continue
            absent = [rank for rank, step in enumerate(collective.joined) if step == ABSENT]
            stuck.append(f"workers {ranks} wait in {collective.kind} {index} for workers {absent}")
        for node in self.nodes:
            if node.awaited_rank is not None and not self.over:
                awaited = self.name_of(node.awaited_rank)
                stuck.append(f"{self.name_of(node.rank)} waits for {awaited}")
        return stuck

    def name_of(self, rank: int) -> str:
        """Return a node's name as error messages and notes give it."""
        return "anyone" if rank < 0 else "the server" if rank == self.workers else f"worker {rank}"
