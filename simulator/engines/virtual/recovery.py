"""Decide which workers take part in each collective, and why others do not.

All programs join every collective; a worker that takes no part joins at once, without weight, and
gets the result. When the last worker has joined, `Participation` decides on the participants
(`team`), and records the losses of the others (`settle`). Three things decide:
- `_present`: it waits for a crashed worker, or goes on without it once the others notice; it always
  goes on without workers that are absent (`cluster.membership`), and waits for a quorum if the
  scenario sets one;
- `sits_out`: workers that are absent, about to leave or not selected compute nothing;
- `_narrow`: a mean does not wait for the slowest, by sampling, backup workers or a quorum.

After a change run tests/engines/test_crashes.py, test_membership.py and test_flows.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from math import inf
from typing import Any

from ...cluster.failures import PATIENCE, Down, merged
from ...distributions.random_streams import Purpose, quick
from ...network.closed_form import Nic
from ...network.mean_cost import download_cost, download_source
from ..collective import TIME_TOLERANCE, Collective, Why, earliest
from ..sampling import Sampled
from .node import VirtualNode

Team = list[int] | None
"""The workers whose contributions a collective takes, in rank order; None: all of them."""
Crash = tuple[float, float, int]
"""A crash: when the worker goes down and is back (s), and its rank."""
NO_CRASH: Crash = (inf, inf, 0)


def _away(run: Any, rank: int, time: float) -> bool:
    return bool(run.calendars) and run.calendars[rank].next(time)[0] <= time


class Participation:
    """The participants of the collectives of one run.

    `can_shrink`: whether the program has means that work without some workers; `waits`: whether the
    others wait for a crashed worker; `timeout`: seconds until they notice it; `dropped`: number of
    contributions that were left out; `taken`: number of those included, in `means` means;
    `drop_outs`: number of selected clients that dropped out; `needed`: workers that a mean waits
    for; `sampled`: the rule that selects clients, if any; `by_server`: whether clients get the
    model from a server, which receives each report separately; `chosen`: whether a server chooses
    clients, without rounds; `abandons_phases`: whether late workers drop all their work for a
    collective, not just their last step.
    """

    def __init__(self, run: Any) -> None:
        settings = run.scenario.recovery
        least = settings.awaited(run.workers)
        self._run, self.timeout = run, settings.timeout
        self._settings, self._least, self._members = settings, least, run.availability.members
        self.can_shrink = "shrink" in run.program.recovers
        self.waits = not self.can_shrink or settings.policy in ("wait", "restart")
        self._enough_present = least if settings.policy == "quorum" else 1
        cluster, self.sampled = run.scenario.cluster, None
        if run.program.rounds and cluster.sampling is not None:
            self.sampled = Sampled(cluster, cluster.sampling, run.seed, partial(_away, run))
        self.needed = self.sampled.wanted if self.sampled else least
        self.chosen = run.program.selects and run.scenario.cluster.sampling is not None
        served = run.scenario.network.collective == "server"
        self.by_server = self.sampled is not None and served
        self._drop = run.scenario.cluster.of_workers("drop")
        self._lots = lru_cache(256)(
            lambda number: quick(run.seed, Purpose.DROP_OUT, number).random(run.workers).tolist()
        )
        self._served = lru_cache(1)(self._serve)
        self.abandons_phases = settings.policy == "quorum" or self.sampled is not None
        self.dropped = self.taken = self.means = self.drop_outs = 0
        self._begun: list[tuple[float, int]] = []  # downloads not yet counted: s, rank

    def _skips(self, rank: int, crash: float) -> bool:
        """Return whether the others go on without a worker that is down at `crash` (s)."""
        return self.can_shrink and (not self.waits or self._run.availability.absent(rank, crash))

    def goes_on_without(
        self, node: VirtualNode, crash: float, back: float, why: Why | None
    ) -> bool:
        """Return whether the others go on while a node is down from `crash` on.

        `why`: None for a crash. If all others have crashed too, the node repeats its work instead.
        """
        run = self._run
        if not self.can_shrink or (why is None and self.waits):
            return False
        up = (peer for peer in run.nodes if peer is not node and peer.outages.down_since is None)
        return (
            back == inf
            or why is not None
            or self._enough_present > 1
            or self.sampled is not None  # a round without clients has no effect
            or any(run.calendars[peer.rank].next(crash)[0] > crash for peer in up)
        )

    def _present(
        self, collective: Collective, narrow: Callable[[list[int], float], float]
    ) -> tuple[list[int], float]:
        """Return the present workers, and when the others notice who is absent.

        A worker is present if it arrived, and did not leave before the collective could begin, or
        before a server had its report. `narrow`: removes late workers, and may let the collective
        begin before the last arrival.
        """
        run, arrivals, reports = self._run, collective.arrivals, collective.reports
        team = [rank for rank in sorted(arrivals) if rank not in collective.falls]
        noticed = max((at + self.timeout for at in collective.falls.values()), default=0.0)
        for rank, outages in enumerate(run.outages[: run.workers]):
            if outages.down_since is not None and rank not in arrivals:
                noticed = max(noticed, outages.down_since + self.timeout * outages.abrupt)
        calendars, leave = run.calendars, not self.waits or run.availability.members is not None
        leaving = team if calendars and leave else ()
        downs = ((calendars[rank].next(arrivals[rank])[0], rank) for rank in leaving)
        for crash, rank in sorted(down for down in downs if self._skips(*down[::-1])):
            if reports and crash >= reports[rank]:
                continue
            if crash >= narrow(team.copy(), noticed):
                break
            team.remove(rank)
            noticed = max(noticed, crash + self.timeout)
        return (team, noticed) if reports else self._enough(team, arrivals, noticed)

    def _up(self, rank: int, time: float) -> float:
        """Return when (s) a worker that is out at a time can take part again."""
        members = self._run.availability.members
        for _ in range(PATIENCE):
            crash, back = self._run.calendars[rank].next(time)
            if crash > time and members is not None and members.leaves(rank, time):
                crash, back = time, members.calendars[rank].next(time)[1]
            if crash > time or time == inf:
                return time
            time = back
        return inf

    def _enough(
        self, team: list[int], arrivals: Mapping[int, float], begins: float
    ) -> tuple[list[int], float]:
        """Wait for enough workers; workers that were down count as soon as they are up."""
        calendars = self._run.calendars[: self._run.workers]
        if max(len(team), 1) >= self._enough_present or not calendars:
            return team, begins
        begins = max([begins, *(arrivals[rank] for rank in team)])
        while begins < inf:
            downs = [calendar.next(begins) for calendar in calendars]
            back = sorted(back if crash <= begins else begins for crash, back in downs)
            if back[self._enough_present - 1] == begins:
                break
            begins = back[self._enough_present - 1]
        stayed = [rank for rank in team if calendars[rank].next(arrivals[rank])[0] >= begins]
        return stayed, begins

    def part(self, rank: int, number: int) -> float:
        """Return the share of its `number`-th work at which a client drops out, or 1."""
        share = self._drop[rank]
        return min(self._lots(number)[rank] / share, 1.0) if share else 1.0

    def falls(self, rank: int, number: int, done: float) -> float:
        """Return when (s) a client drops out of its work until `done`, or inf."""
        since, part = self._run.nodes[rank].busy_since, self.part(rank, number)
        return since + part * (done - since) if part < 1 else inf

    def fallen(self, collective: Collective, arrivals: Mapping[int, float]) -> dict[int, float]:
        """Return when (s) clients drop out of a round, given the arrivals of reports."""
        if self.sampled is None:
            return {}
        drops = {rank: self.falls(rank, collective.index, done) for rank, done in arrivals.items()}
        return {rank: at for rank, at in drops.items() if at < inf}

    def team(self, collective: Collective) -> Team:
        """Return the participants of a collective; set its start and its last arrival."""
        run, arrivals = self._run, collective.reports or collective.arrivals
        if not run.outages:  # nodes are always up
            return None
        if not collective.reports:
            collective.falls = self.fallen(collective, arrivals)

        narrow = partial(self._narrow, arrivals)
        team, begins = self._present(collective, narrow)
        if not team:  # it begins when the first worker is back, or with no worker after drop-outs
            since = max([begins, *(arrivals[r] for r in arrivals.keys() - collective.falls)])
            back = () if collective.falls else range(run.workers)
            ups = (self._up(rank, since) for rank in back)
            collective.begins = min(ups, default=since)
            return team
        collective.begins = narrow(team, begins)
        if collective.begins == inf:
            run.unfinished.append(
                f"{collective.kind} {collective.index} waits for {self.needed} workers, but fewer "
                "are available from then on"
            )
        last = max(team, key=arrivals.__getitem__)
        collective.last = last, arrivals[last]
        return team

    def _narrow(self, arrivals: Mapping[int, float], team: list[int], begins: float) -> float:
        """Remove workers for which a mean does not wait; return its earliest begin (s).

        `begins`: the earliest begin so far. A quorum waits `grace` seconds for further workers.
        """
        wanted, settings = self._least, self._settings
        if self.sampled is not None:
            begins = self.sampled.narrow(team, arrivals, begins)
        if settings.policy == "quorum" and len(team) >= wanted:
            last = sorted(arrivals[rank] for rank in team)[wanted - 1] + settings.grace
            late = {rank for rank in team if arrivals[rank] > last * (1 + TIME_TOLERANCE)}
            team[:] = [rank for rank in team if rank not in late]
            begins = last if late else min(begins, last)
        elif settings.policy != "quorum" and settings.backups:
            team[:] = sorted(earliest(team, arrivals, wanted))
        return max([begins, *(arrivals[rank] for rank in team)])

    def reached(self, times: Sequence[float]) -> float:
        """Return when (s) enough workers for a mean have reached a step."""
        return self.sampled.reached(times) if self.sampled else sorted(times)[: self.needed][-1]

    def first_crash(self, team: Team, begins: float) -> Crash:
        """Return the first crash in a team at or after `begins` (s), or `NO_CRASH`."""
        calendars = self._run.calendars
        if team is None or not calendars:
            return NO_CRASH
        return min(((*calendars[rank].next(begins), rank) for rank in team), default=NO_CRASH)

    def restart(self, collective: Collective, team: Team, begins: float, crashed: Crash) -> float:
        """Return when a collective begins (again) after a crash in its team; inf: never."""
        assert team is not None
        collective.restarts += 1
        name = f"{collective.kind} {collective.index}"
        crash, at, rank = crashed
        if len(team) > 1 and self._skips(rank, crash):
            team.remove(rank)
            begins = max(begins, crash + self.timeout)
            team[:], at = self._enough(team, dict.fromkeys(team, begins), begins)
        if at == inf:
            self._run.unfinished.append(f"{name} waits for {self._run.name_of(rank)}")
        if collective.restarts == PATIENCE:
            self._run.never(name)
            return inf
        return at

    def begin(self, collective: Collective, team: Team, at: float, free: float = 0.0) -> bool:
        """Let a collective begin at `at` (s); return whether the run lasts until then.

        `free`: when the links became free (s).
        """
        collective.begins = at
        self._note_stalls(collective, team, free)
        if at <= self._run.deadline and at < inf:
            return True
        collective.done = inf
        return False

    def _note_stalls(self, collective: Collective, team: Team, free: float) -> None:
        """Record spans in which a member was down, and those after all had arrived."""
        run, begins = self._run, min(collective.begins, self._run.deadline)
        if not run.calendars or not team or begins == inf:
            return
        arrivals = [(collective.reports or collective.arrivals)[rank] for rank in team]
        first, ready = min(arrivals), max(free, *arrivals)
        patient = self.sampled is not None and begins >= self.sampled.due
        stops = [(ready, begins)] if ready < begins and not patient else []
        if self.waits:
            late = [rank for rank in team if run.outages[rank].was_down(first)]
            stops += self._downs(late, first, min(ready, begins))
        collective.stalls = merged(stops)

    def stalls(self, awaited: Any, start: float, end: float) -> Sequence[Down]:
        """Return the spans in which crashes stop the handle or rank that a node waits for."""
        if type(awaited) is Collective:
            if not awaited.missing or not self.waits:
                return awaited.stalls
            return merged(self._downs(range(self._run.workers), start, end))
        if type(awaited) is int and awaited >= 0:
            downs: Sequence[Down] = self._run.calendars[awaited].during(start, end)
            return downs
        return ()

    def _downs(self, ranks: Iterable[int], start: float, end: float) -> list[Down]:
        return [down for rank in ranks for down in self._run.calendars[rank].during(start, end)]

    def settle(self, collective: Collective, team: list[int]) -> None:
        """Leave out workers that are not in the team; their computing for it is lost."""
        run = self._run
        out = set(range(run.workers)).difference(team)
        self.taken += len(team)
        self.drop_outs += len(collective.falls)
        self.means += 1
        if self.sampled is not None:
            gradients = sum(run.nodes[rank].period for rank in team)
            self.sampled.taken.append((len(team), gradients))
        if out:
            collective.leave_out(out)
            self.dropped += len(out)
        for rank in collective.computed:
            if rank in out:
                collective.left_out[rank] = self._why(rank, collective)
            run.outages[rank].settle(collective, rank in out)

    def _why(self, rank: int, collective: Collective) -> Why:
        """Return why a worker that had computed for a collective is left out of it."""
        crash = self.first_crash([rank], collective.arrivals[rank])[0]
        if crash > collective.begins:
            return Why.LATE
        return Why.ABSENT if self._run.availability.absent(rank, crash) else Why.CRASHED

    def sits_out(self, rank: int, index: int, at: float) -> Why | None:
        """Return why a worker takes no part in its `index`-th collective, or None.

        Called at `at` (s), when it begins to compute for it. A worker that takes no part computes
        nothing, joins at once, and loses nothing.
        """
        if self._members is not None and self._members.leaves(rank, at):
            return Why.ABSENT
        unselected = self.sampled is not None and self.sampled.sits_out(rank, index, at)
        return Why.UNSELECTED if unselected else None

    def download(self, rank: int) -> float:
        """Return the seconds that a selected client needs to get the model."""
        run, now = self._run, self._run.nodes[rank].now
        self._begun.append((now, rank))
        sending, latency = self._download_cost(rank)
        if self.by_server:
            passed, last = self._served(run.nodes[rank].collectives)
            until = passed.get(rank, 0.0)
            if until <= now < last:  # it was absent at the start, or lost the model
                until = last + run.whole_bytes / run.scenario.server.bandwidth
            sending = max(sending, until - now)
        return sending + latency

    def _serve(self, index: int) -> tuple[dict[int, float], float]:
        """Return when (s) the server has sent the model, by client as drawn, and overall."""
        run, card = self._run, Nic(self._run.scenario.server.bandwidth or inf)
        assert self.sampled is not None
        at = self.sampled.starts[-1]
        passed = {
            rank: card.through(at, run.whole_bytes)
            for rank in self.sampled.chosen(index, at)
            if self.sits_out(rank, index, at) is None and not run.outages[rank].away(at)
        }
        return passed, max(passed.values(), default=at)

    def count_downloads(self, until: float) -> None:
        """Count the bytes of downloads of the model that began or ended before a time (s)."""
        members, until = self._run.availability.members, min(until, self._run.deadline)
        begun, self._begun = self._begun, [d for d in self._begun if d[0] >= until]
        for _, rank in (d for d in begun if d[0] < until):
            self._count_download(rank)
        if members is not None and members.pay and until < inf:
            for rank, share in members.sent(until):
                self._count_download(rank, share)

    def _count_download(self, rank: int, share: float = 1.0) -> None:
        run, source = self._run, self._download_source(rank)
        if source is not None:
            run.traffic.add_message(source, rank, round(share * run.whole_bytes))

    @cached_property
    def _download_source(self) -> Callable[[int], int | None]:
        return download_source(self._run.scenario, self._run.program.server is not None)

    @cached_property
    def _download_cost(self) -> Callable[[int], tuple[float, float]]:
        return download_cost(self._run.scenario, self._run.program.server is not None)
