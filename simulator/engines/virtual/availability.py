"""Compute when the nodes of a run are up, and map their clocks to the wall clock.

Nodes crash one by one, by their calendars. With checkpoints, a crash takes all nodes back to the
last one, and they repeat their work. Repeated work takes as long as before. So nodes are then
simulated without crashes, by clocks that stop while the cluster is repaired and repeats its work;
`Availability` maps the nodes' clocks to the wall clock and back. Invariant: between rollbacks the
two differ by a constant offset (`_offsets`, valid from `_rollback_times` on), which only grows.

After a change run tests/engines/test_crashes.py.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappush, merge
from math import inf
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from ...cluster import failures
from ...cluster.failures import NEVER, PATIENCE, Calendar, Down
from ...cluster.membership import Members
from ...network.mean_cost import download_cost
from ...programs import Program
from ...results.run import SPAN, Kind
from ...scenario.scenario import Scenario
from .. import observer
from ..sampling import samples
from .node import VirtualNode
from .outages import Outages

LAST = EventPriority(2)  # below all others: events exactly at the deadline count


class Agenda:
    """SimPy's events (`env`), time of the `next` (s), and nodes to resume with values."""

    __slots__ = ("env", "next", "ready")

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.next = inf
        self.ready: deque[tuple[Any, Any]] = deque()

    def call_at(
        self,
        time: float,
        callback: Callable[[simpy.Event], None],
        value: Any = None,
        priority: EventPriority = NORMAL,
    ) -> None:
        """Schedule an event of SimPy's at exactly `time`, or now if that is past.

        SimPy itself adds a delay to its clock, which rounds. Nodes have exact clocks, and would be
        behind a fabric that has advanced to the event.
        """
        env, event = self.env, simpy.Event(self.env)
        event._ok, event._value = True, value
        event.callbacks.append(callback)
        heappush(env._queue, (max(time, env.now), priority, next(env._eid), event))
        self.next = min(self.next, time)


class Rollback(NamedTuple):
    """A rollback at `at` (nodes' clocks), from `start` to `done` (wall clock).

    `repairs`: spans in which the cluster was down; between them it repeated its work, until the
    next crash or until all was repeated. `done` is inf if that never happens.
    """

    at: float
    start: float
    repairs: list[Down]
    done: float

    def parts(self) -> Iterator[tuple[Kind, float, float]]:
        """Yield the parts of the rollback: kind, start and end by the wall clock."""
        following = [start for start, _ in self.repairs[1:]]
        for (start, back), then in zip(self.repairs, [*following, self.done], strict=True):
            yield Kind.DOWN, start, back
            yield Kind.COMPUTE, back, then


class Availability:
    """The availability of a run's nodes, and the rollbacks that their crashes cause.

    `crashes`: the calendar of each node; `calendars`: the same if nodes are down one by one, else
    empty. `members`: when workers are members, None if always. `save_every`: steps between
    checkpoints; `save_cost`: seconds that a node needs to save one.
    """

    save_every, save_cost = observer.NEVER, 0.0

    def __init__(self, program: Program, scenario: Scenario, seed: int) -> None:
        self.members: Members | None = None
        if scenario.cluster.elastic:
            cost = download_cost(scenario, program.server is not None)
            self.members = Members(scenario, seed, None if samples(program, scenario) else cost)
        crashes: Sequence[Calendar] = []
        if scenario.unstable:
            absences = self.members.down if self.members else None
            crashes = failures.calendars(scenario, seed, absences)
        workers, recovery = scenario.cluster.workers, scenario.recovery
        if not program.server:
            crashes = crashes[:workers]
        self.crashes = self.calendars = crashes
        self._next_crash = NEVER
        self._saves: dict[int, list[float]] = {}
        self._deadline = observer.deadline(scenario)
        self._saved = 0.0
        self._rollback_times = [0.0]  # by the nodes' clocks: start of each offset
        self._offsets = [0.0]  # seconds
        self.rollbacks: list[Rollback] = []
        if not crashes or recovery.policy != "restart":
            return
        # nodes go on: downtime appears only in the wall clock
        self.members, self.calendars = None, ()
        assert recovery.checkpoint is not None
        self._savers = 1 if program.server else workers  # nodes that save for a checkpoint
        self.save_every = workers // self._savers * recovery.checkpoint.every
        self.save_cost = recovery.checkpoint.cost
        self._coming = merge(*(calendar.walk() for calendar in crashes))
        self._next_crash = next(self._coming, NEVER)
        self._least_repair = recovery.timeout + recovery.reload

    def absent(self, rank: int, time: float) -> bool:
        """Return whether a worker is down at a time (s) because it is not a member then."""
        return self.members is not None and self.members.absent(rank, time)

    @property
    def next(self) -> float:
        """Time of the next crash by the nodes' clocks."""
        return self._next_crash[0] - self._offsets[-1] if self._next_crash < NEVER else inf

    def start(self, run: Any) -> None:
        """Schedule the first rollback; nodes handle all other crashes ahead of time."""
        if run.deadline < inf:
            self._crash_at(run, self.next)

    def _crash_at(self, run: Any, time: float) -> None:
        """Schedule a rollback, which moves the end of the run to an earlier time."""

        def crash(event: simpy.Event) -> None:
            while self.next <= time:
                self._roll_back()
            if not run.finished:
                run.stop_at(self.node_clock(self._deadline))
                self._crash_at(run, self.next)
            run.events += 1
            run.release(event)

        if time <= run.deadline:
            run.agenda.call_at(time, crash, priority=LAST)

    def save(self, node: VirtualNode) -> None:
        """Record that a node has saved its state; the last node completes a checkpoint."""
        times = self._saves.setdefault(node.step, [])
        times.append(node.now)
        if len(times) == self._savers:
            at = max(self._saves.pop(node.step))
            self.wall_clock(at)  # earlier crashes go back to the previous one
            self._saved = at

    def repeated(self, end: float) -> tuple[float, float]:
        """Return the seconds up to `end` of common downtime, and of repeated work."""
        if not self.rollbacks:
            return 0.0, 0.0
        downs = [down for rollback in self.rollbacks for down in rollback.repairs]
        repairs = sum(max(0.0, min(back, end) - start) for start, back in downs)
        return repairs, max(0.0, end - self.node_clock(end) - repairs)

    def recovery_seconds(self, outages: Sequence[Outages], end: float) -> list[float]:
        """Return the recovery time (s) of each crash that was recovered before `end` (s)."""
        if self.save_every == observer.NEVER:
            return [seconds for entry in outages for seconds in entry.recovery_seconds.values()]
        return [entry.done - entry.start for entry in self.rollbacks if entry.done < end]

    def stall(self) -> str:
        """Return why the run never reaches another checkpoint; empty if it does."""
        if not self.rollbacks or self.rollbacks[-1].done < inf:
            return ""
        since = f"{self.rollbacks[-1].start:g} s"
        return f"crashes come too fast to reach the next checkpoint, since {since}"

    def wall_clock(self, time: float) -> float:
        """Convert a time by the nodes' clocks to wall-clock time, before any crash then.

        All checkpoints before it must have been saved.
        """
        while self.next < time:
            self._roll_back()
        return time + self._offsets[max(0, bisect_left(self._rollback_times, time) - 1)]

    def node_clock(self, wall_clock: float) -> float:
        """Return the nodes' clocks at a past wall-clock time."""
        for rollback, before in zip(self.rollbacks, self._offsets, strict=False):
            if wall_clock <= rollback.done:
                return min(wall_clock - before, rollback.at)
        return wall_clock - self._offsets[-1]

    def timeline(self, spans: np.ndarray, end: float, workers: int) -> np.ndarray:
        """Return spans, given by the nodes' clocks, in wall-clock time up to `end`.

        Rollbacks cut spans, and add spans of downtime and repeated computing.
        """
        if self.save_every == observer.NEVER:
            return spans
        last = float(spans["end"].max())
        shown = [past for past in self.rollbacks if past.at <= last and past.start < end]
        for rollback in shown:
            within = (spans["start"] < rollback.at) & (spans["end"] > rollback.at)
            rest = spans[within]
            spans["end"][within] = rest["start"] = rollback.at
            spans = np.concatenate([spans, rest])
        since, offsets = np.array(self._rollback_times), np.array(self._offsets)
        spans["start"] += offsets[np.searchsorted(since, spans["start"], side="right") - 1]
        spans["end"] += offsets[
            np.maximum(np.searchsorted(since, spans["end"], side="left") - 1, 0)
        ]
        ranks = sorted(set(spans["worker"].tolist()))
        pauses = [
            (rank, kind, start, min(until, end), 0)
            for rollback in shown
            for kind, start, until in rollback.parts()
            for rank in ranks
            if start < min(until, end)
        ]
        busy = np.array(pauses, dtype=SPAN)
        busy["kind"][(busy["worker"] == workers) & (busy["kind"] == Kind.COMPUTE)] = Kind.SERVE
        return np.sort(np.concatenate([spans, busy]), order=["start"])

    def _roll_back(self) -> None:
        """Roll back at the next crash; a further crash during the repeat starts it again."""
        start = self._next_crash[0]
        at = self.next
        again = at - self._saved
        repairs = [self._repair()]
        while self._next_crash[0] < repairs[-1][1] + again:
            if len(repairs) == PATIENCE or self._next_crash[0] > self._deadline:
                self._next_crash, again = NEVER, inf
                break
            crash, ready = self._repair()
            if crash < repairs[-1][1]:
                crash, ready = repairs[-1][0], max(ready, repairs.pop()[1])
            repairs.append((crash, ready))
        done = repairs[-1][1] + again
        self._rollback_times.append(at)
        self._offsets.append(done - at)
        self.rollbacks.append(Rollback(at, start, repairs, done))

    def _repair(self) -> Down:
        """Return the next crash's time, and when all nodes have loaded the checkpoint."""
        crash, back = self._next_crash
        self._next_crash = next(self._coming, NEVER)
        return crash, max(back, crash + self._least_repair)
