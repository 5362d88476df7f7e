"""Who takes part in each collective of a run, and why the others do not.

All programs join every collective; a worker that takes no part joins at once, without weight, and
gets the result. `Participation` decides when the last worker has joined (`team`), and books what
those lose who are left out (`settle`). Two things decide:
- `Presence`: which workers are there. It waits for a crashed worker, or goes on without it once the
  others notice; it always goes on without workers that are absent (`cluster.membership`), and
  waits until a quorum is there, where the scenario asks for one;
- the `Rule`s, in order: each may keep a worker from computing (`sits_out`), or leave out some of
  those that came (`narrow`). `Backup` and `Quorum` leave out the slowest.

After a change run tests/engines/test_crashes.py, test_membership.py and test_flows.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from math import inf
from typing import Any, Protocol

from ...cluster.failures import PATIENCE, Down, merged
from ...cluster.membership import Members
from ...distributions.random_streams import Purpose, quick
from ...network.closed_form import Nic
from ...network.mean_cost import download_cost, download_source
from ...scenario.cluster import Recovery
from ..collective import Collective, Why, earliest
from ..sampling import Sampled
from .node import VirtualNode

Team = list[int] | None
"""The workers whose contributions a collective takes, in rank order; None: all of them."""
MANY_RESTARTS = 10  # of one collective, worth a note
Crash = tuple[float, float, int]
"""When a worker crashes, when it is back (both in seconds), and its rank."""
NO_CRASH: Crash = (inf, inf, 0)


class Rule(Protocol):
    """One reason to leave workers out of collectives."""

    why: Why

    def sits_out(self, rank: int, index: int, at: float) -> bool:
        """Whether a worker that begins, at `at` seconds, to compute for its `index`-th collective
        takes no part in that one: it then computes nothing, joins at once, and loses nothing.
        """
        return False

    def narrow(self, team: list[int], arrivals: Mapping[int, float], begins: float) -> float:
        """Remove workers from a team, given when each arrived (s); return when it begins at best.

        `begins`: the same so far. The collective never begins before all of its team are there.
        """
        return begins


class Backup(Rule):
    """Leaves out all but the first `kept` to arrive."""

    why = Why.LATE

    def __init__(self, kept: int) -> None:
        self._kept = kept

    def narrow(self, team: list[int], arrivals: Mapping[int, float], begins: float) -> float:
        """Keep the first to arrive."""
        team[:] = sorted(earliest(team, arrivals, self._kept))
        return begins


class Quorum(Backup):
    """Leaves out those that arrive later than `grace` seconds after the `kept`-th."""

    def __init__(self, kept: int, grace: float) -> None:
        super().__init__(kept)
        self._grace = grace

    def narrow(self, team: list[int], arrivals: Mapping[int, float], begins: float) -> float:
        """Keep those that arrive in time; go on sooner once all that are up have arrived."""
        if len(team) < self._kept:
            return begins
        last = sorted(arrivals[rank] for rank in team)[self._kept - 1] + self._grace
        late = {rank for rank in team if arrivals[rank] > last}
        team[:] = [rank for rank in team if rank not in late]
        return last if late else min(begins, last)


class Leaving(Rule):
    """Lets workers leave that have notice that they will have to, or are absent."""

    why = Why.ABSENT

    def __init__(self, members: Members) -> None:
        self._members = members

    def sits_out(self, rank: int, index: int, at: float) -> bool:
        """Whether it leaves now, rather than begin what it may not have time to finish."""
        return self._members.leaves(rank, at)


def rules(run: Any, least: int) -> list[Rule]:
    """Return the rules of a run, in their order; `least`: how many workers a mean waits for."""
    settings, members, found = run.scenario.recovery, run.availability.members, list[Rule]()
    if members is not None:
        found.append(Leaving(members))
    cluster = run.scenario.cluster
    if run.program.rounds and cluster.sampling is not None:
        found.append(Sampled(cluster, cluster.sampling, run.seed, partial(_away, run)))
    if settings.policy == "quorum":
        found.append(Quorum(least, settings.grace))
    elif settings.backups:
        found.append(Backup(least))
    return found


def _away(run: Any, rank: int, time: float) -> bool:
    return bool(run.calendars) and run.calendars[rank].next(time)[0] <= time


class Presence:
    """Which workers are there, and since when the others know.

    `waits`: whether they wait for a crashed one; `timeout`: seconds until they notice a crash;
    `means`: whether the program has means that can do without some of them; `_least`: workers that
    must be there.
    """

    def __init__(self, run: Any, settings: Recovery, least: int) -> None:
        self._run, self.timeout = run, settings.timeout
        self.means = "shrink" in run.program.recovers
        self.waits = not self.means or settings.policy in ("wait", "restart")
        self._least = least if settings.policy == "quorum" else 1

    def skips(self, rank: int, crash: float) -> bool:
        """Whether the others go on without a worker that is down at a time."""
        return self.means and (not self.waits or self._run.availability.absent(rank, crash))

    def goes_on_without(
        self, node: VirtualNode, crash: float, back: float, why: Why | None
    ) -> bool:
        """Whether the others go on while a node is down from `crash` on; `why`: None for a crash.

        Not if all of them have crashed, too: it computes anew what it has lost.
        """
        run = self._run
        if not self.means or (why is None and self.waits):
            return False
        up = (each for each in run.nodes if each is not node and each.outages.down_since is None)
        return (
            back == inf
            or why is not None
            or self._least > 1
            or run.recovery.sampled is not None  # a round without anyone is one without effect
            or any(run.calendars[each.rank].next(crash)[0] > crash for each in up)
        )

    def present(
        self, collective: Collective, narrow: Callable[[list[int], float], float]
    ) -> tuple[list[int], float]:
        """Return those who arrived, and did not leave before the collective could begin, or before
        a server had their report.

        `narrow`: the rules, which may let it begin before the last of them arrives.
        """
        run, arrivals, reports = self._run, collective.arrivals, collective.reports
        team = [rank for rank in sorted(arrivals) if rank not in collective.falls]
        noticed = max((at + self.timeout for at in collective.falls.values()), default=0.0)
        for rank, outages in enumerate(run.outages[: run.workers]):
            if outages.down_since is not None and rank not in arrivals:
                noticed = max(noticed, outages.down_since + self.timeout * outages.abrupt)
        calendars, leave = run.calendars, not self.waits or run.availability.members is not None
        asked = team if calendars and leave else ()
        downs = ((calendars[rank].next(arrivals[rank])[0], rank) for rank in asked)
        for crash, rank in sorted(each for each in downs if self.skips(*each[::-1])):
            if reports and crash >= reports[rank]:
                continue
            if crash >= narrow(team.copy(), noticed):
                break
            team.remove(rank)
            noticed = max(noticed, crash + self.timeout)
        return (team, noticed) if reports else self._enough(team, arrivals, noticed)

    def up(self, rank: int, time: float) -> float:
        """Return when a worker that takes no part at a time can take part again (s)."""
        members = self._run.availability.members
        for _ in range(PATIENCE):
            crash, back = self._run.calendars[rank].next(time)
            if crash > time and members is not None and members.leaves(rank, time):
                crash, back = time, members.returns(rank, time)
            if crash > time or time == inf:
                return time
            time = back
        return inf

    def _enough(
        self, team: list[int], arrivals: Mapping[int, float], begins: float
    ) -> tuple[list[int], float]:
        """Wait until enough workers are there: those who were down count as soon as they are up."""
        calendars = self._run.calendars[: self._run.workers]
        if max(len(team), 1) >= self._least or not calendars:
            return team, begins
        begins = max([begins, *(arrivals[rank] for rank in team)])
        while begins < inf:
            downs = [calendar.next(begins) for calendar in calendars]
            back = sorted(back if crash <= begins else begins for crash, back in downs)
            if back[self._least - 1] == begins:
                break
            begins = back[self._least - 1]
        stayed = [rank for rank in team if calendars[rank].next(arrivals[rank])[0] >= begins]
        return stayed, begins

    def restart(self, team: list[int], begins: float, crashed: Crash) -> float:
        """Return when a collective goes on after a crash in its team: without that worker once it
        is noticed, or when that worker is back.
        """
        crash, back, rank = crashed
        if len(team) == 1 or not self.skips(rank, crash):
            return back
        team.remove(rank)
        begins = max(begins, crash + self.timeout)
        team[:], begins = self._enough(team, dict.fromkeys(team, begins), begins)
        return begins


class Participation:
    """Who takes part in the collectives of one run. `dropped`: contributions that were left out;
    `taken`: those that were not, of so many `means`; `drop_outs`: of clients that were selected;
    `kept`: workers that a mean waits for; `sampled`: the rule that selects clients, if any;
    `by_server`: whether clients get the model from a server, which takes in each one's report;
    `chosen`: whether a server chooses them, without rounds; `abandons_phases`: whether those who
    are late for one drop all that they have done for it, not just their last step.
    """

    def __init__(self, run: Any) -> None:
        settings = run.scenario.recovery
        least = settings.awaited(run.workers)
        self._run, self.presence = run, Presence(run, settings, least)
        self.rules = rules(run, least)
        self.sampled = next((rule for rule in self.rules if isinstance(rule, Sampled)), None)
        self.kept = self.sampled.wanted if self.sampled else least
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
        self._most_restarts = 0, ""  # of one collective, and its name
        self._downloads: dict[int, tuple[float, float]] = {}
        self._begun: list[tuple[float, int]] = []  # downloads not yet counted: s, rank

    def part(self, rank: int, number: int) -> float:
        """Return after which share of its `number`-th work a client drops out; 1: never."""
        share = self._drop[rank]
        return min(self._lots(number)[rank] / share, 1.0) if share else 1.0

    def falls(self, rank: int, number: int, due: float) -> float:
        """Return when a client drops out of what it does since it got the model, and would have
        done when `due` (s); infinite: it does not.
        """
        since, part = self._run.nodes[rank].busy_since, self.part(rank, number)
        return since + part * (due - since) if part < 1 else inf

    def fallen(self, collective: Collective, dues: Mapping[int, float]) -> dict[int, float]:
        """Return when clients drop out of a round, given when their reports are due (s)."""
        if self.sampled is None:
            return {}
        found = {rank: self.falls(rank, collective.index, due) for rank, due in dues.items()}
        return {rank: at for rank, at in found.items() if at < inf}

    def team(self, collective: Collective) -> Team:
        """Return the workers that a collective takes; set when it begins, and who came last."""
        run, arrivals = self._run, collective.reports or collective.arrivals
        if not run.outages:  # nodes are always up
            return None
        if not collective.reports:
            collective.falls = self.fallen(collective, arrivals)

        def narrow(team: list[int], begins: float) -> float:
            for rule in self.rules:
                begins = rule.narrow(team, arrivals, begins)
            return max([begins, *(arrivals[rank] for rank in team)])

        team, begins = self.presence.present(collective, narrow)
        if not team:  # it begins when the first is back, or without any after drop-outs
            since = max([begins, *(arrivals[each] for each in arrivals.keys() - collective.falls)])
            back = () if collective.falls else range(run.workers)
            ups = (self.presence.up(rank, since) for rank in back)
            collective.begins = min(ups, default=since)
            return team
        collective.begins = narrow(team, begins)
        if collective.begins == inf:
            run.unfinished.append(
                f"{collective.kind} {collective.index} waits for {self.kept} workers, and so many "
                "are never there again"
            )
        last = max(team, key=arrivals.__getitem__)
        collective.last = last, arrivals[last]
        return team

    def reached(self, times: Sequence[float]) -> float:
        """Return when as many workers as a mean waits for reached a step, of all `times` (s)."""
        return self.sampled.reached(times) if self.sampled else sorted(times)[: self.kept][-1]

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
        at = self.presence.restart(team, begins, crashed)
        if crashed[2] in team and collective.restarts > self._most_restarts[0]:
            self._most_restarts = collective.restarts, name
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
        another reason make the others wait, as do links that become `free` later, and a deadline.
        """
        run, begins = self._run, min(collective.begins, self._run.deadline)
        if not run.calendars or not team or begins == inf:
            return
        arrivals = [(collective.reports or collective.arrivals)[rank] for rank in team]
        first, ready = min(arrivals), max(free, *arrivals)
        patient = self.sampled is not None and begins >= self.sampled.due
        stood = [(ready, begins)] if ready < begins and not patient else []
        if self.presence.waits:
            late = [rank for rank in team if run.outages[rank].was_down(first)]
            stood += self._downs(late, first, min(ready, begins))
        collective.stalls = merged(stood)

    def stalls(self, awaited: Any, start: float, end: float) -> Sequence[Down]:
        """Return when what a node waits for, a handle or a rank, stands still for crashes."""
        if type(awaited) is Collective:
            if not awaited.missing or not self.presence.waits:
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
        if count < MANY_RESTARTS or not self.presence.waits:
            return []
        return [
            f"{name} had to wait for workers that were down, or begin again, {count} times: "
            "crashes come faster than all workers are up together; write "
            'recovery.policy = "shrink", or shorten the period so that less is lost'
        ]

    def settle(self, collective: Collective, team: list[int]) -> None:
        """Leave out workers that are not in the team: what they computed for this is lost."""
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
        """Return why a worker takes no part in its next collective, by the rules; None: it does."""
        for each in self.rules:
            if each.sits_out(rank, index, at):
                return each.why
        return None

    def download(self, rank: int) -> float:
        """Return the seconds that a client needs to get the model, once it is selected (again)."""
        run, now = self._run, self._run.nodes[rank].now
        if rank not in self._downloads:
            self._downloads[rank] = self._download_cost(rank)
        self._begun.append((now, rank))
        sending, latency = self._downloads[rank]
        if self.by_server:
            passed, last = self._served(run.nodes[rank].collectives)
            until = passed.get(rank, 0.0)
            if until <= now < last:  # it was away as the round began, or has lost what it got
                until = last + run.whole_bytes / run.scenario.server.bandwidth
            sending = max(sending, until - now)
        return sending + latency

    def _serve(self, index: int) -> tuple[dict[int, float], float]:
        """Return when the model for each client of a round has passed the server's card, and the
        last one (s).

        It serves them in the order of their draw, whoever asks first, without those who are away;
        each of these is served after all others, as if alone.
        """
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
        """Count the bytes of the model that workers have got which joined, or began to get it,
        before a time (s).
        """
        members, until = self._run.availability.members, min(until, self._run.deadline)
        begun, self._begun = self._begun, [each for each in self._begun if each[0] >= until]
        for _, rank in (each for each in begun if each[0] < until):
            self._count_download(rank)
        if members is not None and members.pay and until < inf:
            for rank, share in members.sent(until):
                self._count_download(rank, share)

    def _count_download(self, rank: int, share: float = 1.0) -> None:
        run, source = self._run, self._download_source(rank)
        if source is not None:
            run.traffic.add_message(source, rank, round(share * run.whole_bytes))

    @cached_property
    def usual(self) -> list[float]:
        """Each worker's expected seconds of a step."""
        expected: list[float] = self._run.scenario.team.mean_compute
        return expected

    @cached_property
    def _download_source(self) -> Callable[[int], int | None]:
        return download_source(self._run.scenario, self._run.program.server is not None)

    @cached_property
    def _download_cost(self) -> Callable[[int], tuple[float, float]]:
        return download_cost(self._run.scenario, self._run.program.server is not None)
