"""A run whose nodes crash, or that drops the slowest workers' contributions ([recovery]).

Three ways to go on after a crash, by the scenario:
- `policy = "wait"`: a collective begins when all workers are there, and begins again where one of
  them crashes in it; messages that a crash interrupts are sent again (`Interrupted`);
- `policy = "shrink"`: the others notice a crash after `timeout` and go on without that worker;
- checkpoints: all nodes go back to the last one. Nodes then run without crashes, by clocks that
  stand still meanwhile, and `checkpoints` maps their clocks to the wall clock.

Each collective decides whose contributions it takes (`_present`) when its last worker has joined;
a worker that is down joins without delaying it. `settle` books what the others lose. Loops over
crashes are bounded by `PATIENCE`, after which something "takes too long to end".
After a change run tests/engines/test_crashes.py and test_flows.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import Any

import numpy as np
import simpy

from paceline.simulator.cluster import speed, workers
from paceline.simulator.cluster.failures import (
    PATIENCE,
    Calendar,
    Down,
    any_in,
    calendars,
    merged,
)
from paceline.simulator.engines.collective import Collective
from paceline.simulator.engines.virtual.checkpoints import Checkpoints
from paceline.simulator.engines.virtual.crashing_node import CrashingNode
from paceline.simulator.engines.virtual.simulation import LAST, Simulation, deadline
from paceline.simulator.network.closed_form import ClosedForm, MessageRoute, Traffic
from paceline.simulator.network.region_path import RegionPath
from paceline.simulator.programs.effects import Payload
from paceline.simulator.results.run import Spans

MANY_RESTARTS = 10  # of one collective, worth a note


class Interrupted(MessageRoute):
    """A route between nodes that may crash: a message in flight then is sent again.

    `delay`: seconds by which crashes delayed the last one.
    """

    __slots__ = ("_ends", "delay")

    def __init__(
        self, link: RegionPath, model_bytes: float, seed: int, key: int, ends: Iterable[Calendar]
    ) -> None:
        super().__init__(link, model_bytes, seed, key)
        self.whole_transit = None
        self._ends = tuple(ends)

    def send(self, now: float, size: float) -> tuple[float, float]:
        """Return when a message arrives, and its last transit, both in seconds."""
        at, transit = super().send(now, size)
        due = at
        start, self.delay = now, 0.0
        for _ in range(PATIENCE):
            crash, back = min(calendar.next(start) for calendar in self._ends)
            if crash >= at:
                self.delay = at - due
                return at, transit
            start, at = back, back + transit
        return inf, transit


class FaultTolerantSimulation(Simulation):
    """A run with failures or [recovery].

    `calendars`: when each node is down; empty where all go back to checkpoints instead.
    `dropped`: contributions to collectives that were left out; `averages`: whether the program
    averages; `save_every`, `save_cost`: steps between checkpoints, and seconds that one takes.
    """

    node = CrashingNode
    nodes: Sequence[CrashingNode]

    def prepare(self) -> None:
        """Make the calendars, the checkpoints, and the network."""
        scenario = self.scenario
        self.recovery = recovery = scenario.recovery
        self.averages = self.program.averages
        self.dropped = 0
        crashing = calendars(scenario, self.seed) if any_in(scenario) else []
        self._crashing = crashing if self.program.server else crashing[: self.workers]
        self.calendars = self._crashing
        self.checkpoints: Checkpoints | None = None
        self.save_every, self.save_cost = 0, 0.0
        if crashing and recovery.checkpoint is not None:
            self.checkpoints = Checkpoints(
                self._crashing, recovery.timeout, recovery.reload, deadline(scenario)
            )
            self.calendars = []
            scale = self.workers if self.program.server else 1
            self.save_every = scale * recovery.checkpoint.every
            self.save_cost = recovery.checkpoint.cost
        self._last_completion = self._stalled_since = 0.0
        self._saves: dict[int, list[float]] = {}
        self._restarts = 0, ""  # the most of one collective, and its name
        self.connect()

    def durations(self) -> list[Iterator[float]]:
        """Return each worker's compute times at full speed; the nodes apply speed and crashes."""
        for node, each in zip(self.nodes, speed.speeds(self.scenario, self.seed), strict=False):
            node.speed = each
        return workers.compute_times(self.scenario, self.seed)

    def connect(self) -> None:
        """Make the network, with routes that crashes interrupt."""
        route = self._route if self.calendars else None
        self.traffic = Traffic(ClosedForm(self.scenario), self.seed, route)

    def _route(self, link: RegionPath, size: float, seed: int, key: int) -> MessageRoute:
        ends = [self.calendars[rank] for rank in divmod(key, self.workers + 1)]
        return Interrupted(link, size, seed, key, ends)

    # Checkpoints

    def wall_clock(self, time: float) -> float:
        """Return the wall-clock time when the nodes' clocks show `time`."""
        return time if self.checkpoints is None else self.checkpoints.wall_clock(time)

    def save(self, node: CrashingNode) -> None:
        """Note that a node has saved its state; once all have, that is a checkpoint."""
        times = self._saves.setdefault(node.step, [])
        times.append(node.now)
        if len(times) == (1 if self.program.server else self.workers):
            del self._saves[node.step]
            assert self.checkpoints is not None
            self.checkpoints.save(max(times))

    def completion_time(self, times: Sequence[float]) -> float:
        """Return the wall-clock time at which all workers but the backups reached this step.

        It never decreases from step to step, even if the slowest worker has gone down since.
        """
        kept = self.workers - self.recovery.backup
        self._last_completion = max(self._last_completion, sorted(times)[:kept][-1])
        return self.wall_clock(self._last_completion)

    def run(self) -> None:
        """Run to the end; each rollback moves it to an earlier time of the nodes' clocks."""
        if self.checkpoints is not None and self.deadline < inf:
            self._crash_at(self.checkpoints, self.checkpoints.next)
        super().run()

    def _crash_at(self, checkpoints: Checkpoints, time: float) -> None:
        """Schedule a rollback at `time`, when all checkpoints saved before it are known."""

        def crash(event: simpy.Event) -> None:
            while checkpoints.next <= time:
                checkpoints.roll_back()
            if not self._finished:
                self.stop_at(checkpoints.node_clock(deadline(self.scenario)))
                self._crash_at(checkpoints, checkpoints.next)
            self._events += 1
            self._release(event)

        if time <= self.deadline:
            self.call_at(time, crash, priority=LAST)

    @property
    def end(self) -> float:
        """Time at which the run ends, by the nodes' clocks."""
        if self.checkpoints is None:
            return super().end
        if self._completed:
            return self.checkpoints.node_clock(self.observer.curve["time"][-1])
        return min(self.deadline, self.checkpoints.node_clock(self.scenario.run.duration or inf))

    @property
    def ended(self) -> float:
        """Wall-clock time at which the run ended, or stalled for good."""
        if self._finished:
            return self.observer.curve["time"][-1]
        last = self.wall_clock(
            min(self.end, max(self._stalled_since, *(node.now for node in self.nodes)))
        )
        return self.scenario.run.duration or last

    @property
    def _finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self._completed or self.observer.complete

    # Means

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join; one that is down delays no other."""
        node = self.nodes[rank]
        node.joined_at = at
        if node.down_since is None:
            collective.arrivals[rank] = at
            collective.computed[rank] = node.computed
        super().enter(collective, rank, step, value, at if node.down_since is None else 0.0)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Carry out a collective among the present workers; begin again if one of them crashes."""
        team = self._present(collective)
        free = self._links_free
        begins = max(collective.begins, free)
        for _ in range(PATIENCE):
            if begins > self.deadline or begins == inf:
                collective.begins, collective.done = begins, inf  # it never begins
                self.note_stalls(collective, team, free)
                return
            crash, back, rank = self._first_crash(team, begins)
            if crash > begins:
                whole = None if len(team) == self.workers else tuple(team)
                transmission, latency = self.traffic.collective(
                    collective.kind, size, largest, whole
                )
                if crash >= begins + transmission + latency:
                    break
            begins = self._without(collective, team, rank, begins, crash, back)
        else:
            self.never(f"{collective.kind} {collective.index}")
            collective.begins = collective.done = inf
            self.note_stalls(collective, team, free)
            return
        self._links_free = begins + transmission
        collective.begins = begins
        self.note_stalls(collective, team, free)
        self.settle(collective, team)
        self.complete(collective, self._links_free + latency)

    def _without(  # noqa: PLR0913, PLR0917 - who crashed, when
        self,
        collective: Collective,
        team: list[int],
        rank: int,
        begins: float,
        crash: float,
        back: float,
    ) -> float:
        """Return when a collective begins (again) after a member's crash; drop it if `shrink`."""
        collective.restarts += 1
        if collective.restarts > self._restarts[0]:
            self._restarts = collective.restarts, f"{collective.kind} {collective.index}"
        if self.recovery.policy == "shrink" and len(team) > 1:
            team.remove(rank)
            return max(begins, crash + self.recovery.timeout)
        if back == inf:
            self.unfinished.append(
                f"{collective.kind} {collective.index} waits for {self.name_of(rank)}, "
                f"down for good since {crash:g} s"
            )
        return back

    def _first_crash(self, team: Iterable[int], begins: float) -> tuple[float, float, int]:
        """Return the first crash in a team at or after `begins`: its time, the return, the rank."""
        crashes = ((*self.calendars[rank].next(begins), rank) for rank in team if self.calendars)
        return min(crashes, default=(inf, inf, 0))

    def _present(self, collective: Collective) -> list[int]:
        """Return the workers whose contributions a collective takes; set when it begins."""
        arrivals, shrinks = collective.arrivals, self.recovery.policy == "shrink"
        team, noticed = sorted(arrivals), 0.0
        if shrinks and self.calendars:
            for node in self.nodes[: self.workers]:
                if node.down_since is not None and node.rank not in arrivals:
                    noticed = max(noticed, node.down_since + self.recovery.timeout)
            while team:
                begins = max(noticed, *(arrivals[rank] for rank in team))
                crashes = [(self.calendars[rank].next(arrivals[rank])[0], rank) for rank in team]
                crash, rank = min(crashes)
                if crash >= begins:
                    break
                team.remove(rank)
                noticed = max(noticed, crash + self.recovery.timeout)
        if not team:  # all are down: it begins when the first is back
            since = max([noticed, *arrivals.values()])
            downs = [calendar.next(since) for calendar in self.calendars[: self.workers]]
            collective.begins = min(back if crash <= since else since for crash, back in downs)
            return []
        kept = max(1, self.workers - self.recovery.backup)
        team = sorted(sorted(team, key=lambda rank: (arrivals[rank], rank))[:kept])
        collective.begins = max(noticed, *(arrivals[rank] for rank in team))
        last = max(team, key=arrivals.__getitem__)
        collective.last = last, arrivals[last]
        return team

    def note_stalls(self, collective: Collective, team: Sequence[int], free: float = 0.0) -> None:
        """Note when a collective stood still for crashes: while one of the team was down, and once
        all had come. Those who come late for another reason make the others wait, as do links that
        become `free` later.
        """
        begins = min(collective.begins, self.deadline)
        if not self.calendars or not team or begins == inf:
            return
        arrivals = [collective.arrivals[rank] for rank in team]
        first, ready = min(arrivals), max(free, *arrivals)
        stood = [(ready, begins)] if ready < begins else []
        if self.recovery.policy == "wait":
            late = [rank for rank in team if self.nodes[rank].was_down(first)]
            stood += self._downs(late, first, min(ready, begins))
        collective.stalls = merged(stood)

    def stalls(self, awaited: Any, start: float, end: float) -> Sequence[Down]:
        """Return when what a node waits for, a handle or a rank, stands still for crashes."""
        if type(awaited) is Collective:
            if not awaited.missing or self.recovery.policy != "wait":
                return awaited.stalls
            return merged(self._downs(range(self.workers), start, end))
        if type(awaited) is int and awaited >= 0:
            return self.calendars[awaited].during(start, end)
        return ()

    def _downs(self, ranks: Iterable[int], start: float, end: float) -> list[Down]:
        return [down for rank in ranks for down in self.calendars[rank].during(start, end)]

    def goes_on_without(self, node: CrashingNode, crash: float, back: float) -> bool:
        """Whether the others go on while a node is down; not if all of them are down, too."""
        if self.recovery.policy != "shrink":
            return False
        others = [each for each in self.nodes if each is not node and each.down_since is None]
        return back == inf or any(
            self.calendars[each.rank].next(crash)[0] > crash for each in others
        )

    def settle(self, collective: Collective, team: Sequence[int]) -> None:
        """Leave out workers that are not in the team: what they computed for this is lost."""
        out = set(range(self.workers)).difference(team)
        if out:
            collective.leave_out(out)
            self.dropped += len(out)
        for rank, computed in collective.computed.items():
            node = self.nodes[rank]
            if rank in out:
                node.lose(collective.arrivals[rank], computed - node.shared)
                collective.left_out.add(rank)
            node.shared = max(node.shared, computed)

    # The end

    def never(self, what: str) -> None:
        """Note that something, named by `what`, never gets done."""
        self.unfinished.append(f"{what} takes too long to end before the next crash")

    def report_stall(self, nodes: list[str]) -> None:
        """Note why the run stalled, if nodes wait for some that never come back."""
        gone_since: dict[str, float] = {}
        for crash in self.scenario.cluster.crash:
            rank = self.workers if crash.worker == "server" else crash.worker
            if crash.lasts is None and rank < len(self.nodes):
                gone_since[self.name_of(rank)] = crash.at
        self._stalled_since = max(gone_since.values(), default=0.0)
        nodes = [*dict.fromkeys(nodes)]
        crashed = [
            f"{who} is down for good since {crash:g} s"
            for who, crash in gone_since.items()
            if not any(f"{who}, down for good" in clause for clause in nodes)
        ]
        if self.checkpoints is not None and self.checkpoints.stuck:
            again = "crashes come too fast to get from one checkpoint to the next"
            self.stall = f"{again}, since {self.checkpoints.stuck.start:g} s"
        elif not (gone_since or self.unfinished):
            super().report_stall(nodes)
        elif nodes or (self.deadline == inf and not self._finished):
            self.stall = "; ".join([*nodes, *crashed])

    def spent(self) -> dict[str, list[float]]:
        """Return each worker's seconds by kind of activity, also lost and down."""
        found, team = super().spent(), self.nodes[: self.workers]
        if not self._crashing and not self.recovery.backup:
            return found
        again = repairs = 0.0
        if self.checkpoints is not None:
            end = self.ended
            repairs = sum(rollback.down(end) for rollback in self.checkpoints.rollbacks)
            again = max(0.0, end - self.checkpoints.node_clock(end) - repairs)
        found["stalled"] = [node.stalled for node in team]
        found["lost"] = [node.lost + again for node in team]
        found["down"] = [node.down + repairs for node in team]
        return found

    def failures(self) -> dict[str, Any] | None:
        """Return the cost of crashes, as `Run.failures`."""
        if not self._crashing and not self.recovery.backup:
            return None
        spent = self.seconds()
        whole = sum(spent.values())
        end = nextafter(self.ended, inf)
        recovery_seconds = [each for node in self.nodes for each in node.recovery_seconds.values()]
        if self.checkpoints is not None:
            recovery_seconds = [
                each.done - each.start for each in self.checkpoints.rollbacks if each.done < end
            ]
        served = self._crashing[self.workers :]
        downs = (down for each in served for down in each.during(0.0, self.ended))
        return {
            "crashes": sum(sum(1 for _ in each.until(end)) for each in self._crashing),
            "recovery_seconds": sum(recovery_seconds) / len(recovery_seconds)
            if recovery_seconds
            else None,
            "lost_seconds": spent["lost"] * self.workers,
            "down_seconds": spent["down"] * self.workers,
            "server_down_seconds": sum(back - crash for crash, back in downs),
            "goodput": 1 - (spent["lost"] + spent["down"]) / whole if whole else 1.0,
            "dropped": self.dropped,
            "stall": self.stall or None,
        }

    def notes(self) -> list[str]:
        """Return notes on why the run stalled, if it did, and on means that crashes kept up."""
        found = [f"the run did not finish: {self.stall}"] if self.stall else []
        count, name = self._restarts
        if count >= MANY_RESTARTS and self.recovery.policy == "wait" and not self.stall:
            found.append(
                f"{name} had to wait for workers that were down, or begin again, {count} times: "
                "crashes come faster than all workers are up together; write "
                'recovery.policy = "shrink", or shorten the period so that less is lost'
            )
        return found

    def averages_begun(self) -> bool:
        """Whether an average has begun, or workers wait for one to begin."""
        return super().averages_begun() or any(node.meets for node in self.nodes)

    def timeline(self, kept: Spans, until: float) -> tuple[np.ndarray, np.ndarray]:
        """Return spans and arrows in wall-clock time, cut where all nodes rolled back."""
        spans, arrows = super().timeline(kept, until)
        if not spans.size:
            return spans, arrows
        for rank in range(len(self.nodes)):  # the later of two overlapping spans is true
            own = np.flatnonzero(spans["worker"] == rank)
            later = np.append(np.minimum.accumulate(spans["start"][own][::-1])[::-1][1:], inf)
            spans["end"][own] = np.minimum(spans["end"][own], later)
        spans = spans[spans["end"] > spans["start"]]
        if self.checkpoints is None:
            return spans, arrows
        for name in ("sent", "taken"):
            arrows[name] = self.checkpoints.wall_clocks(arrows[name])
        return self.checkpoints.timeline(spans, self.ended, self.workers), arrows
