"""Recovery from crashes, and from slow workers: whose contributions each collective takes.

`Recovery` decides when the last worker has joined (`team`), and books what those lose who are left
out (`settle`): backups, that is the slowest, and those whom its `policy` leaves out. A worker that
is down joins without delaying the others.
- `Wait`: a collective begins when all workers are there, and again where one of them crashes in it;
- `Shrink`: the others notice a crash after a timeout, and go on without that worker.

After a change run tests/engines/test_crashes.py and test_flows.py.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from paceline.simulator.cluster.failures import PATIENCE, Down, merged
from paceline.simulator.engines.collective import Collective
from paceline.simulator.engines.virtual.node import VirtualNode

Team = list[int] | None
"""The workers whose contributions a collective takes, in rank order; None: all of them."""
MANY_RESTARTS = 10  # of one collective, worth a note
Crash = tuple[float, float, int]
"""When a worker crashes, when it is back (both in seconds), and its rank."""
NO_CRASH: Crash = (inf, inf, 0)


class Wait:
    """Workers that need a crashed one wait for it."""

    waits = True

    def present(self, arrivals: dict[int, float]) -> tuple[list[int], float]:
        """Return all who arrived; no crash needs to be noticed."""
        return sorted(arrivals), 0.0

    def restart(self, team: list[int], begins: float, crashed: Crash) -> float:
        """Return when the crashed worker is back."""
        return crashed[1]

    def goes_on_without(self, node: VirtualNode, crash: float, back: float) -> bool:
        """Return False: it computes anew what it has lost."""
        return False


class Shrink:
    """Workers go on without a crashed one, which they notice after `timeout` seconds."""

    waits = False

    def __init__(self, run: Any, timeout: float) -> None:
        self._run, self._timeout = run, timeout

    def present(self, arrivals: dict[int, float]) -> tuple[list[int], float]:
        """Return those who arrived and did not crash before the last of them could begin."""
        team, noticed = sorted(arrivals), 0.0
        calendars = self._run.calendars
        for rank, outages in enumerate(self._run.outages[: self._run.workers]):
            if outages.down_since is not None and rank not in arrivals:
                noticed = max(noticed, outages.down_since + self._timeout)
        while team and calendars:
            begins = max(noticed, *(arrivals[rank] for rank in team))
            crash, rank = min((calendars[rank].next(arrivals[rank])[0], rank) for rank in team)
            if crash >= begins:
                break
            team.remove(rank)
            noticed = max(noticed, crash + self._timeout)
        return team, noticed

    def restart(self, team: list[int], begins: float, crashed: Crash) -> float:
        """Return when the crash is noticed; take that worker off the team, unless none is left."""
        crash, back, rank = crashed
        if len(team) == 1:
            return back
        team.remove(rank)
        return max(begins, crash + self._timeout)

    def goes_on_without(self, node: VirtualNode, crash: float, back: float) -> bool:
        """Whether the others go on while a node is down; not if all of them are down, too."""
        run = self._run
        up = (each for each in run.nodes if each is not node and each.outages.down_since is None)
        return back == inf or any(run.calendars[each.rank].next(crash)[0] > crash for each in up)


class Recovery:
    """The recovery of one run. `dropped`: contributions to collectives that were left out."""

    def __init__(self, run: Any) -> None:
        settings = run.scenario.recovery
        self._run, self._backup = run, settings.backup
        shrinks = settings.policy == "shrink"
        self.policy: Wait | Shrink = Shrink(run, settings.timeout) if shrinks else Wait()
        self.dropped = 0
        self._most_restarts = 0, ""  # of one collective, and its name

    def team(self, collective: Collective) -> Team:
        """Return the workers that a collective takes; set when it begins, and who came last."""
        run, arrivals = self._run, collective.arrivals
        if not run.outages:  # nodes are always up
            return None
        team, noticed = self.policy.present(arrivals)
        if not team:  # all are down: it begins when the first is back
            since = max([noticed, *arrivals.values()])
            downs = [calendar.next(since) for calendar in run.calendars[: run.workers]]
            collective.begins = min(back if crash <= since else since for crash, back in downs)
            return team
        kept = max(1, run.workers - self._backup)
        team = sorted(sorted(team, key=lambda rank: (arrivals[rank], rank))[:kept])
        collective.begins = max(noticed, *(arrivals[rank] for rank in team))
        last = max(team, key=arrivals.__getitem__)
        collective.last = last, arrivals[last]
        return team

    def first_crash(self, team: Team, begins: float) -> Crash:
        """Return the first crash in a team at or after `begins`; it may never come."""
        calendars = self._run.calendars
        if team is None or not calendars:
            return NO_CRASH
        return min(((*calendars[rank].next(begins), rank) for rank in team), default=NO_CRASH)

    def restart(self, collective: Collective, team: Team, begins: float, crashed: Crash) -> float:
        """Return when a collective begins (again) after a crash in its team; inf: never."""
        assert team is not None
        collective.restarts += 1
        name = f"{collective.kind} {collective.index}"
        if collective.restarts > self._most_restarts[0]:
            self._most_restarts = collective.restarts, name
        at = self.policy.restart(team, begins, crashed)
        if at == inf:
            self._run.unfinished.append(
                f"{name} waits for {self._run.name_of(crashed[2])}, "
                f"down for good since {crashed[0]:g} s"
            )
        if collective.restarts == PATIENCE:
            self._run.never(name)
            return inf
        return at

    def begin(self, collective: Collective, team: Team, at: float, free: float = 0.0) -> bool:
        """Let a collective begin; return whether it does, before the end of the run.

        `free`: when the links were.
        """
        collective.begins = at
        self._note_stalls(collective, team, free)
        if at <= self._run.deadline and at < inf:
            return True
        collective.done = inf
        return False

    def _note_stalls(self, collective: Collective, team: Team, free: float) -> None:
        """Note when a collective stood still for crashes.

        That is while one of the team was down, and once all had come. Those who come late for
        another reason make the others wait, as do links that become `free` later.
        """
        run, begins = self._run, min(collective.begins, self._run.deadline)
        if not run.calendars or not team or begins == inf:
            return
        arrivals = [collective.arrivals[rank] for rank in team]
        first, ready = min(arrivals), max(free, *arrivals)
        stood = [(ready, begins)] if ready < begins else []
        if self.policy.waits:
            late = [rank for rank in team if run.outages[rank].was_down(first)]
            stood += self._downs(late, first, min(ready, begins))
        collective.stalls = merged(stood)

    def stalls(self, awaited: Any, start: float, end: float) -> Sequence[Down]:
        """Return when what a node waits for, a handle or a rank, stands still for crashes."""
        if type(awaited) is Collective:
            if not awaited.missing or not self.policy.waits:
                return awaited.stalls
            return merged(self._downs(range(self._run.workers), start, end))
        if type(awaited) is int and awaited >= 0:
            downs: Sequence[Down] = self._run.calendars[awaited].during(start, end)
            return downs
        return ()

    def _downs(self, ranks: Iterable[int], start: float, end: float) -> list[Down]:
        return [down for rank in ranks for down in self._run.calendars[rank].during(start, end)]

    def notes(self) -> list[str]:
        """Return a note on a collective that crashes kept up time and again, if there is one."""
        count, name = self._most_restarts
        if count < MANY_RESTARTS or not self.policy.waits:
            return []
        return [
            f"{name} had to wait for workers that were down, or begin again, {count} times: "
            "crashes come faster than all workers are up together; write "
            'recovery.policy = "shrink", or shorten the period so that less is lost'
        ]

    def settle(self, collective: Collective, team: list[int]) -> None:
        """Leave out workers that are not in the team: what they computed for this is lost."""
        out = set(range(self._run.workers)).difference(team)
        if out:
            collective.leave_out(out)
            self.dropped += len(out)
        for rank in collective.computed:
            if rank in out:
                collective.left_out.add(rank)
            self._run.outages[rank].settle(collective, rank in out)
