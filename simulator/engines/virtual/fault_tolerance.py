"""A run whose nodes crash, or that leaves out the slowest: who waits for whom, and what is lost."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import Any

import numpy as np
import simpy

from paceline.simulator.cluster import speed, workers
from paceline.simulator.cluster.failures import PATIENCE, Calendar, any_in, calendars
from paceline.simulator.engines.collective import Collective
from paceline.simulator.engines.virtual.checkpoints import Checkpoints
from paceline.simulator.engines.virtual.crashing_node import CrashingNode
from paceline.simulator.engines.virtual.simulation import LAST, Simulation, deadline
from paceline.simulator.network.closed_form import ClosedForm, MessageRoute, RegionPath, Traffic
from paceline.simulator.programs.effects import Payload
from paceline.simulator.results.run import Spans


class Interrupted(MessageRoute):
    """Messages between nodes that may crash: what is under way then is sent again."""

    __slots__ = ("_ends",)

    def __init__(
        self, link: RegionPath, model_bytes: float, seed: int, key: int, ends: Iterable[Calendar]
    ) -> None:
        super().__init__(link, model_bytes, seed, key)
        self.whole_transit = None
        self._ends = tuple(ends)

    def send(self, now: float, size: float) -> tuple[float, float]:
        """When a message arrives, and how long it is on its way at last."""
        at, transit = super().send(now, size)
        start = now
        for _ in range(PATIENCE):
            crash, back = min(calendar.next(start) for calendar in self._ends)
            if crash >= at:
                return at, transit
            start, at = back, back + transit
        return inf, transit


class FaultTolerantSimulation(Simulation):
    """A run with failures or [recovery].

    `calendars`: when each node is down, empty where all go back to checkpoints instead;
    `dropped`: contributions to means that were left out; `meets`: whether workers share anything;
    `stall`: why the run stood still before its end, if it did.
    """

    node = CrashingNode
    nodes: Sequence[CrashingNode]

    def prepare(self) -> None:
        """Make the network, the calendars, and what goes back to checkpoints."""
        scenario = self.scenario
        self.recovery = recovery = scenario.recovery
        self.meets = self.program.averages
        self.dropped = 0
        crashing = calendars(scenario, self.seed) if any_in(scenario) else []
        self._crashing = crashing if self.program.server else crashing[: self.workers]
        self.calendars = self._crashing
        self.rewinds: Checkpoints | None = None
        self.save_every, self.save_cost = 0, 0.0
        if crashing and recovery.checkpoint is not None:
            self.rewinds = Checkpoints(
                self._crashing, recovery.timeout, recovery.reload, deadline(scenario)
            )
            self.calendars = []
            scale = self.workers if self.program.server else 1
            self.save_every = scale * recovery.checkpoint.every
            self.save_cost = recovery.checkpoint.cost
        self._got_there = self._gone = 0.0
        self._saving: dict[int, list[float]] = {}
        self.connect()

    def durations(self) -> list[Iterator[float]]:
        """What each worker's steps take at full speed: the nodes know their own, and crashes."""
        for node, each in zip(self.nodes, speed.speeds(self.scenario, self.seed), strict=False):
            node.speed = each
        return workers.compute_times(self.scenario, self.seed)

    def connect(self) -> None:
        """Make the network."""
        route = self._route if self.calendars else None
        self.traffic = Traffic(ClosedForm(self.scenario), self.seed, route)

    def _route(self, link: RegionPath, size: float, seed: int, key: int) -> MessageRoute:
        ends = [self.calendars[rank] for rank in divmod(key, self.workers + 1)]
        return Interrupted(link, size, seed, key, ends)

    # Checkpoints

    def wall(self, time: float) -> float:
        """What the clock on the wall shows when the nodes' clocks show `time`."""
        return time if self.rewinds is None else self.rewinds.wall(time)

    def save(self, node: CrashingNode) -> None:
        """A node has saved its state; when all have, it is a checkpoint."""
        times = self._saving.setdefault(node.step, [])
        times.append(node.now)
        if len(times) == (1 if self.program.server else self.workers):
            del self._saving[node.step]
            assert self.rewinds is not None
            self.rewinds.save(max(times))

    def when(self, times: Sequence[float]) -> float:
        """When nodes have got somewhere, of their clocks: all, but for backup workers.

        Never before they got to an earlier step, though the slowest of then may be down by now.
        """
        kept = self.workers - self.recovery.backup
        self._got_there = max(self._got_there, sorted(times)[:kept][-1])
        return self.wall(self._got_there)

    def run(self) -> None:
        """Run to the end, which by the nodes' clocks comes the sooner, the longer they stood."""
        if self.rewinds is not None and self.deadline < inf:
            self._crash_at(self.rewinds, self.rewinds.next)
        super().run()

    def _crash_at(self, rewinds: Checkpoints, time: float) -> None:
        """Go back to a checkpoint at `time`, when all that were saved before it are known."""

        def crash(event: simpy.Event) -> None:
            while rewinds.next <= time:
                rewinds.rewind()
            if not self._finished:
                self.stop_at(rewinds.clock(deadline(self.scenario)))
                self._crash_at(rewinds, rewinds.next)
            self._events += 1
            self._release(event)

        if time <= self.deadline:
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(crash)
            self.env.schedule(event, LAST, max(0.0, time - self.env.now))
            self._next_event = min(self._next_event, time)

    @property
    def end(self) -> float:
        """Up to when time counts, by the nodes' clocks."""
        if self.rewinds is None:
            return super().end
        if self._whole:
            return self.rewinds.clock(self.observer.curve["time"][-1])
        return min(self.deadline, self.rewinds.clock(self.scenario.run.duration or inf))

    @property
    def ended(self) -> float:
        """When the run was over, on the wall; if it stood still for good, when it began to."""
        if self._finished:
            return self.observer.curve["time"][-1]
        last = self.wall(min(self.end, max(self._gone, *(node.now for node in self.nodes))))
        return self.scenario.run.duration or last

    @property
    def _finished(self) -> bool:
        """Whether it has come to its last step."""
        return self._whole or self.observer.complete

    # Means

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join; one that is down delays nobody."""
        node = self.nodes[rank]
        node.met = at
        if node.fell is None:
            collective.arrivals[rank] = at
            collective.computed[rank] = node.computed
        super().enter(collective, rank, step, value, at if node.fell is None else 0.0)

    def transfer(self, collective: Collective, size: float, largest: float | None) -> None:
        """Carry it out among those who are there; begin again where one of them crashes."""
        team = self._present(collective)
        begins = max(collective.begins, self._links_free)
        for _ in range(PATIENCE):
            if begins > self.deadline or begins == inf:
                collective.begins, collective.done = begins, inf  # nobody will see it
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
            collective.done = inf
            return
        self._links_free = begins + transmission
        collective.begins = begins
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
        """When a collective begins (again), a member having crashed: it may leave the team."""
        if self.recovery.policy == "shrink" and len(team) > 1:
            team.remove(rank)
            return max(begins, crash + self.recovery.timeout)
        if back == inf:
            self.unsettled.append(
                f"{collective.kind} {collective.index} waits for {self.called(rank)}, "
                f"down for good since {crash:g} s"
            )
        return back

    def _first_crash(self, team: Iterable[int], begins: float) -> tuple[float, float, int]:
        """Of a team, who is down at `begins` or crashes first after it, and when it is back."""
        crashes = ((*self.calendars[rank].next(begins), rank) for rank in team if self.calendars)
        return min(crashes, default=(inf, inf, 0))

    def _present(self, collective: Collective) -> list[int]:
        """Whose contributions a collective can begin with; sets when."""
        arrivals, shrinks = collective.arrivals, self.recovery.policy == "shrink"
        team, noticed = sorted(arrivals), 0.0
        if shrinks and self.calendars:
            for node in self.nodes[: self.workers]:
                if node.fell is not None and not node.noticed:
                    node.noticed, noticed = True, max(noticed, node.fell + self.recovery.timeout)
            while team:
                begins = max(noticed, *(arrivals[rank] for rank in team))
                crashes = [(self.calendars[rank].next(arrivals[rank])[0], rank) for rank in team]
                crash, rank = min(crashes)
                if crash >= begins:
                    break
                team.remove(rank)
                noticed = max(noticed, crash + self.recovery.timeout)
        if not team:  # all are down: whoever is back first
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

    def goes_on_without(self, node: CrashingNode, crash: float, back: float) -> bool:
        """Whether the others go on while a node is down; not if nobody else is there to do so."""
        if self.recovery.policy != "shrink":
            return False
        others = [each for each in self.nodes if each is not node and each.fell is None]
        return back == inf or any(
            self.calendars[each.rank].next(crash)[0] > crash for each in others
        )

    def settle(self, collective: Collective, team: Sequence[int]) -> None:
        """Leave out who is not in the team: what it computed for this is lost."""
        out = set(range(self.workers)).difference(team)
        if out:
            collective.leave_out(out)
            self.dropped += len(out)
        for rank, computed in collective.computed.items():
            node = self.nodes[rank]
            if rank in out:
                node.lose(collective.arrivals[rank], computed - node.shared)
                collective.late.add(rank)
            node.shared = max(node.shared, computed)

    # The end

    def never(self, what: str) -> None:
        """Note that something never gets done."""
        self.unsettled.append(f"{what} takes too long to end before the next crash")

    def stalled(self, nodes: list[str]) -> None:
        """Say that the run stood still, if nodes wait for some that never come back."""
        gone: dict[str, float] = {}
        for crash in self.scenario.cluster.crash:
            rank = self.workers if crash.worker == "server" else crash.worker
            if crash.lasts is None and rank < len(self.nodes):
                gone[self.called(rank)] = crash.at
        self._gone = max(gone.values(), default=0.0)
        nodes = [*dict.fromkeys(nodes)]
        told = [
            f"{who} is down for good since {crash:g} s"
            for who, crash in gone.items()
            if not any(f"{who}, down for good" in said for said in nodes)
        ]
        if self.rewinds is not None and self.rewinds.stuck:
            again = "crashes come too fast to get from one checkpoint to the next"
            self.stall = f"{again}, since {self.rewinds.stuck.start:g} s"
        elif not (gone or self.unsettled):
            super().stalled(nodes)
        elif nodes or (self.deadline == inf and not self._finished):
            self.stall = "; ".join([*nodes, *told])

    def spent(self) -> dict[str, list[float]]:
        """What each worker's time was spent on; lost: what was in vain."""
        found, team = super().spent(), self.nodes[: self.workers]
        if not self._crashing and not self.recovery.backup:
            return found
        again = repairs = 0.0
        if self.rewinds is not None:
            end = self.ended
            repairs = sum(rewind.down(end) for rewind in self.rewinds.rewinds)
            again = max(0.0, end - self.rewinds.clock(end) - repairs)
        found["lost"] = [node.lost + again for node in team]
        found["down"] = [node.down + repairs for node in team]
        return found

    def account(self) -> dict[str, Any] | None:
        """What crashes cost: as `Run.failures`."""
        if not self._crashing and not self.recovery.backup:
            return None
        spent = self.seconds()
        whole = sum(spent.values())
        end = nextafter(self.ended, inf)
        recovered = [each for node in self.nodes for each in node.recovered.values()]
        if self.rewinds is not None:
            recovered = [each.done - each.start for each in self.rewinds.rewinds if each.done < end]
        served = self._crashing[self.workers :]
        downs = (down for each in served for down in each.during(0.0, self.ended))
        return {
            "crashes": sum(sum(1 for _ in each.until(end)) for each in self._crashing),
            "recovery_seconds": sum(recovered) / len(recovered) if recovered else None,
            "lost_seconds": spent["lost"] * self.workers,
            "down_seconds": spent["down"] * self.workers,
            "server_down_seconds": sum(back - crash for crash, back in downs),
            "goodput": 1 - (spent["lost"] + spent["down"]) / whole if whole else 1.0,
            "dropped": self.dropped,
            "stall": self.stall or None,
        }

    def notes(self) -> list[str]:
        """That the run stood still, if so."""
        if not self.stall:
            return []
        return [f"it came to no end: {self.stall}"]

    def shown(self, kept: Spans, until: float) -> tuple[np.ndarray, np.ndarray]:
        """Spans and arrows by the clock on the wall, cut where all stood still."""
        spans, arrows = super().shown(kept, until)
        if not spans.size:
            return spans, arrows
        for rank in range(len(self.nodes)):  # what was done instead of what was given up comes last
            own = np.flatnonzero(spans["worker"] == rank)
            later = np.append(np.minimum.accumulate(spans["start"][own][::-1])[::-1][1:], inf)
            spans["end"][own] = np.minimum(spans["end"][own], later)
        spans = spans[spans["end"] > spans["start"]]
        if self.rewinds is None:
            return spans, arrows
        for name in ("sent", "taken"):
            arrows[name] = self.rewinds.walls(arrows[name])
        return self.rewinds.shown(spans, self.ended, self.workers), arrows
