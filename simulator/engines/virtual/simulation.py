"""Run the reference engine: the loop that resumes nodes, and what they share.

Strategy. Programs are plain coroutines that the nodes resume with `send`; SimPy keeps only the
events that several nodes can observe: results of collectives, alarms of nodes that compute until
a message comes (`wake`), and the end. `release`, the one callback, resumes the nodes of its event,
all nodes that these make ready, and then the receivers of messages, up to SimPy's next event.
One event per collective resumes all its workers, so that a barrier costs O(workers).

Invariants.
- Nodes see messages in order of arrival, and equal times in the order of sending (`undelivered`).
- When no node is ready, only SimPy's next event (`agenda.next`), or the end of a transfer over
  shared lines, can come before the first message. So only the agenda schedules events, counted in
  `events`, unless they are the end or a rollback.
- The end has the lowest priority (`LAST`), so that events exactly at the deadline count. `deadline`
  has a tolerance for rounding, while reported times stop at the scenario's duration.

Reasons. SimPy's processes, `AllOf` and stores give the same order at several times the cost. A run
is composed: `transport` carries messages and collectives, `availability` has the times at which
nodes are up (they have `outages` if they may be down), and `recovery` decides whose contributions
collectives use. Without crashes and shared lines, that costs a comparison with None.

After a change run tests/engines and tests/programs, then `make bench`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop
from itertools import repeat
from math import inf
from typing import Any, Self

import numpy as np
import simpy
from simpy.core import StopSimulation

from ...cluster import speed, workers
from ...cluster.failures import Calendar
from ...cluster.prices import worker_devices, worker_prices
from ...objectives import build
from ...programs.effects import ANY, Payload
from ...programs.pieces.schedule import FixedPeriod, paced
from ...results.run import Spans
from ...scenario.scenario import World
from .. import payloads
from ..collective import ABSENT, Collective, GradientPiece
from ..node import compare
from ..observer import Discount, Observer, RoundObserver, deadline
from ..overheads import EffectCosts
from ..sampling import Absentees, leaping
from .availability import LAST, Agenda, Availability
from .collective_slowdown import resume_computing, slow
from .node import Message, VirtualNode
from .outages import Outages
from .recovery import Participation, Team
from .transport import ClosedFormTransport

NEVER_DOWN = Calendar(iter(()))
FEW = 4  # waits that a note on a stall names; it only counts further ones


class Simulation:
    """One algorithm with one seed: its nodes, and what they share.

    Servers, and workers whose steps are pooled, end with the first update at or after workers x
    steps (`Observer.limit`). `undelivered`: a heap of messages by time of arrival; `sent`: their
    serial number; `events`: number of events in SimPy, without the run's end. `staleness`: uses of
    results, by age. `strides`: whether workers take a phase's steps at once, because only outages
    disturb them; `slowed`: the workers' computing, if collectives slow it. `work_left`: whether the
    server has messages to serve after the deadline; `over`: whether a node has stopped at `limit`.
    `unfinished`: clauses on what never ends; `stall`: why the run stopped early, or empty.
    """

    __slots__ = (  # CPython 3.11 reads this many attributes slowly without slots
        "_last_completion", "_stalled_since", "absentees", "agenda", "answer", "availability",
        "calendars", "deadline", "events", "idles", "lines", "meter", "nodes", "objective",
        "observer", "open_collectives", "outages", "over", "parked", "program", "ready",
        "recovery", "scenario", "seed", "sent", "slowed", "spans", "staleness", "stall", "strides",
        "traffic", "transport", "undelivered", "unfinished", "whole_bytes", "work_left", "workers",
    )  # fmt: skip

    def __init__(self, world: World, seed: int, spans: Spans | None = None) -> None:
        scenario, program, parameters = world.scenario, world.program, world.algorithm.parameters
        self.scenario, self.seed, self.program = scenario, seed, program
        self.agenda = Agenda()
        self.workers = scenario.cluster.workers
        self.objective = build.build(scenario, world.algorithm, seed)
        self.meter = payloads.Meter(scenario.model.bytes, self.objective.dimension)
        self.whole_bytes = round(scenario.model.bytes)
        self.availability = Availability(program, scenario, seed)
        self.calendars = self.availability.calendars
        self.absentees = Absentees(scenario.cluster.sampling, self.calendars)
        self.recovery = Participation(self)
        self.transport: Any = ClosedFormTransport(self) if scenario.network.closed_form else None
        if self.transport is None:
            from . import flows  # noqa: PLC0415 - it loads numba

            self.transport = flows.FlowTransport(self)
        self.lines = None if scenario.network.closed_form else self.transport  # shared ones
        self.traffic, self.answer = self.transport.traffic, self.transport.answer
        self.spans, self.ready = spans, self.agenda.ready
        self.outages: list[Outages] = []
        self.undelivered: list[Message] = []
        self.sent = self.events = 0
        self.staleness: dict[int, int] = defaultdict(int)
        self.work_left = self.over = False
        self.deadline: float = deadline(scenario)
        self.open_collectives: dict[int, Collective] = {}
        self.parked, self.strides, self.idles = leaping(self, self.recovery.sampled, parameters)
        self.unfinished: list[str] = []
        self.stall = ""
        self._stalled_since = self._last_completion = 0.0

        totals, completed = self.traffic.totals, self._completion_time
        by_rounds = paced(parameters) and program.server is None
        self.observer: Observer = (RoundObserver if by_rounds else Observer)(
            program, scenario, self.objective, totals, self.deadline, completed, self._discount()
        )
        self.nodes = [
            VirtualNode(self, rank) for rank in range(self.workers + bool(program.server))
        ]
        period = parameters.get("tau")
        if self.recovery.sampled is not None and isinstance(period, FixedPeriod):
            self.observer.evaluate_whole_rounds(period.value)
        self._start_programs(parameters)

    def _start_programs(self, parameters: Mapping[str, Any]) -> None:
        """Give every node its compute times and its program, with these parameters."""
        program, scenario = self.program, self.scenario
        compare(self.nodes, scenario, self.objective, parameters)
        watched = self.nodes[self.workers :] or self.nodes[:]
        costs = EffectCosts(scenario)
        for node, durations in zip(self.nodes, self._durations(), strict=False):
            node.compute_with(durations, self.objective.source(node.rank))
            node.coroutine = program.start(program.worker, costs.on(node), parameters)
        self.slowed = slow(self)
        if program.server:
            server = self.nodes[-1]
            server.serve(scenario.server.receive)
            server.coroutine = program.start(program.server, costs.on(server), parameters)
        for node in self.nodes:
            node.resume = node.coroutine.send
        for node in watched:
            node.watch(self.observer.first)

    def _durations(self) -> list[Iterator[float]]:
        """Return workers' compute times (s), without the speeds that outages apply."""
        if not self.scenario.troubled:
            return speed.compute_times(self.scenario, self.seed, self.nodes)
        speeds = [*speed.speeds(self.scenario, self.seed), None]  # the server's is constant
        crashing = self.calendars or repeat(NEVER_DOWN)
        for node, calendar, node_speed in zip(self.nodes, crashing, speeds, strict=False):
            node.outages = node.computing = Outages(self, node, calendar, node_speed)
            self.outages.append(node.outages)
        return workers.compute_times(self.scenario, self.seed)

    def _discount(self) -> Discount | None:
        """Return a function for the costs that absent workers save, if they save any."""
        members, cost = self.availability.members, self.scenario.cost
        if members is None or (cost.node_hour is None and cost.device_hour is None):
            return None
        rates = np.stack([worker_prices(self.scenario), worker_devices(self.scenario)], axis=1)
        saved, last = np.zeros(2), 0.0

        def discount(time: float) -> tuple[float, float]:
            nonlocal saved, last
            saved = saved + members.away(last, time) @ rates
            last = time
            return float(saved[0]), float(saved[1])

        return discount

    def _completion_time(self, times: Sequence[float]) -> float:
        """Return when (wall clock, s) enough workers have reached a step; it never falls."""
        self._last_completion = max(self._last_completion, self.recovery.reached(times))
        self.recovery.count_downloads(self._last_completion)
        return self.availability.wall_clock(self._last_completion)

    def run(self) -> Self:
        """Run to the last step, the deadline, or a deadlock."""
        self.availability.start(self)
        if self.deadline < inf:
            self._end_at(self.deadline)
        try:
            self.release_at(0.0, self.nodes)
            self.agenda.env.run()
        finally:
            for node in self.nodes:
                node.coroutine.close()
        pending = self.events or self.undelivered or (self.lines and self.lines.transfers)
        if not (pending or self.observer.complete or self.work_left):
            self.report_stall()
        end = self.end
        behind = set() if self.parked is None else {*self.parked.nodes}
        for node in self.nodes:
            early = self._completed and node.rank not in behind
            node.finish(min(node.now, end) if early else end)
        return self

    def report_stall(self) -> None:
        """Record why the run stalled: what never ends, who waits for whom, who is gone."""
        last = max(node.now for node in self.nodes)
        downs = [(*calendar.next(last), rank) for rank, calendar in enumerate(self.calendars)]
        gone = sorted((crash, rank) for crash, back, rank in downs if crash < back == inf)
        self._stalled_since = max((crash for crash, _ in gone), default=0.0)
        clauses = [*dict.fromkeys([*self.unfinished, *self._waits()])]
        if len(clauses) > FEW:
            clauses[FEW:] = [f"and {len(clauses) - FEW} others wait"]
        if again := self.availability.stall():
            self.stall = again
        elif not (gone or self.unfinished):
            self.stall = f"deadlock: {'; '.join(clauses)}" if clauses else ""
        elif clauses or (self.deadline == inf and not self.finished):
            members = self.availability.members
            for crash, rank in gone[:FEW]:
                hurried = members is not None and rank in members.hurried
                fate = "never stays long enough to download the model"
                fate = fate if hurried else f"is down for good since {crash:g} s"
                clauses.append(f"{self.name_of(rank)} {fate}")
            self.stall = "; ".join(clauses)

    def never(self, name: str) -> None:
        """Record that the activity `name` never ends."""
        self.unfinished.append(f"{name} takes too long to end before the next crash")

    @property
    def end(self) -> float:
        """Time at which the run ends, by the nodes' clocks."""
        node_clock = self.availability.node_clock
        if self._completed:
            return node_clock(self.observer.curve["time"][-1])
        return min(self.deadline, node_clock(self.scenario.run.duration or inf))

    @property
    def ended(self) -> float:
        """Wall-clock time at which the run ended, or stalled for good."""
        if self.finished:
            return self.observer.curve["time"][-1]
        last = min(self.end, max(self._stalled_since, *(node.now for node in self.nodes)))
        return self.scenario.run.duration or self.availability.wall_clock(last)

    @property
    def _completed(self) -> bool:
        """Whether the workers have reached the last step in time."""
        return self.over and self.observer.curve["step"][-1] == self.scenario.run.steps

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self._completed or self.observer.complete

    @property
    def horizon(self) -> float:
        """Wall-clock time (s) at which the duration ended the run; inf if it did not."""
        return inf if self.finished else self.scenario.run.duration or inf

    def deserted(self, time: float) -> float:
        """Return the seconds before a time in which every worker was absent."""
        members = self.availability.members
        return 0.0 if members is None else members.deserted(time)

    def averages_begun(self) -> bool:
        """Return whether an average has begun, or workers that may crash wait for one."""
        crashing = (node for node in self.nodes if node.outages is not None)
        return self.traffic.begun or any(type(node.handle) is Collective for node in crashing)

    def stop_at(self, time: float) -> None:
        """End the run at `time`, when the last update has been made."""
        self.deadline = min(self.deadline, time)
        self._end_at(self.deadline)

    def _end_at(self, time: float) -> None:
        """Schedule the end of the run; events exactly at `time` still count."""
        self.agenda.call_at(time, StopSimulation.callback, priority=LAST)

    @property
    def staleness_unit(self) -> str:
        """The unit in which this program's staleness is counted."""
        if len(self.nodes) > self.workers:
            return "updates"
        return "averagings" if self.nodes[0].gossips else "steps"

    def release_at(self, time: float, nodes: Sequence[VirtualNode]) -> None:
        """Resume nodes when SimPy's clock reaches `time`."""
        self.events += 1
        self.agenda.call_at(time, self.release, nodes)

    def release(self, event: simpy.Event) -> None:
        """Resume an event's nodes, ready nodes and receivers, until SimPy's next event.

        When no node is ready, only an event of SimPy's, or the end of a transfer over shared lines,
        can precede the first message in flight.
        """
        agenda, lines, undelivered = self.agenda, self.lines, self.undelivered
        ready = agenda.ready
        ready.extend([(node, None) for node in event.value or ()])
        self.events -= 1
        agenda.next = agenda.env.peek()
        while True:
            try:
                while ready:
                    node, value = ready.popleft()
                    resume = node.resume
                    resume(value)
                if lines is not None:
                    first = undelivered[0][0] if undelivered else inf
                    if lines.advance(min(agenda.next, first)):
                        continue
                if not undelivered or undelivered[0][0] > agenda.next:
                    return
                message = heappop(undelivered)
                _, _, route, _, source, _ = message
                route.in_flight -= 1
                if route.receiving_nic is not None:
                    at = route.receiving_nic.through(message[0], self.meter(message[5]))
                    message = at, *message[1:]
                node = route.node
                awaited = node.awaited_rank
                if awaited == ANY or awaited == source:  # noqa: PLR1714, SIM109 - faster
                    node.awaited_rank = None
                    resume = node.resume
                    resume(message)
                else:
                    node.mailbox.append(message)
            except StopIteration:
                pass  # its program has returned

    def wake(self, node: VirtualNode, gradient: GradientPiece) -> None:
        """Resume a node when its gradient is computed, unless a message comes before."""
        if node.wakeup_at <= gradient.done:
            return  # an earlier alarm is pending; it sets the next one

        at = node.wakeup_at = gradient.done

        def ring(event: simpy.Event) -> None:
            if node.wakeup_at == at:
                node.wakeup_at = inf
                current = node.handle if isinstance(node.handle, GradientPiece) else None
                if current is not None and current.done <= at:
                    event._value = [node]
                elif current is not None:
                    self.wake(node, current)
            self.release(event)

        self.events += 1
        self.agenda.call_at(at, ring)

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join at `at`; the last one begins the collective."""
        if self.outages:
            at = self.outages[rank].joined(collective, at)
        elif self.transport.staggered:
            collective.arrivals[rank] = at
        if self.slowed:
            self.slowed[rank].flights.append(collective)
        collective.join(rank, step, value, at)
        if not collective.missing:
            self._begin(collective)

    def _begin(self, collective: Collective) -> None:
        """Carry out a collective that all workers have joined."""
        del self.open_collectives[collective.index]
        measured = collective.payloads
        if collective.kind == "mean":  # all payloads have the same size
            measured = [measured[collective.last[0]]]
        self.transport.carry(collective, [self.meter(payload) for payload in measured])
        resume_computing(self)

    def complete(
        self,
        collective: Collective,
        team: Team,
        done: float,
        release: Callable[[float, Sequence[VirtualNode]], None],
    ) -> None:
        """Resume the nodes that wait for a collective; let its followers join theirs."""
        if team is not None:
            self.recovery.settle(collective, team)
        collective.done = done
        resume_computing(self)
        waiting = collective.waiting
        if self.recovery.sampled is not None:
            self.recovery.sampled.chosen(collective.index + 1, done)
        if self.parked is not None:
            waiting = self.parked.release(collective, done)
        collective.payloads.clear()
        if collective.ahead is None:
            release(done, waiting)
        else:
            for node in waiting:
                release(collective.reaches(node.rank), [node])
        for rank, step, following, value in collective.followers:
            at = collective.reaches(rank)
            self.enter(following, rank, step, value(collective.result), at)

    def _waits(self) -> list[str]:
        """Return clauses on which nodes wait for which, in collectives or for messages."""
        clauses = []
        for index, collective in self.open_collectives.items():
            ranks = sorted(node.rank for node in collective.waiting)
            absent = [rank for rank, step in enumerate(collective.joined) if step == ABSENT]
            handles = [self.nodes[rank].handle for rank in absent]
            late = any(handle is not None and handle.done is not None for handle in handles)
            if ranks and not late:  # else some have a result after the deadline
                kind = f"{collective.kind} {index}"
                clauses.append(f"workers {ranks} wait in {kind} for workers {absent}")
        for node in self.nodes:
            if node.awaited_rank is not None and not self.over:
                awaited = self.name_of(node.awaited_rank)
                clauses.append(f"{self.name_of(node.rank)} waits for {awaited}")
        return clauses

    def name_of(self, rank: int) -> str:
        """Return a node's name for error messages and notes."""
        return "anyone" if rank < 0 else "the server" if rank == self.workers else f"worker {rank}"
