"""Sample clients: select a round's clients, and choose the reports in its mean.

Rounds follow Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019 (arXiv 1902.01046,
section 2.2): more clients are selected than needed, the mean includes the first to report, and a
deadline ends the wait for the others.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapreplace
from itertools import islice
from math import ceil, inf
from typing import Any

from ..cluster.failures import Calendar
from ..distributions.random_streams import Purpose, generator
from ..programs import Program
from ..programs.pieces.schedule import FixedPeriod
from ..scenario.cluster import Cluster, Sampling
from ..scenario.scenario import Scenario
from .collective import TIME_TOLERANCE, Collective, earliest
from .observer import NEVER


def samples(program: Program, scenario: Scenario) -> bool:
    """Return whether a program's rounds, or its server, select clients."""
    return scenario.cluster.sampling is not None and (program.rounds or program.selects)


class Sampled:
    """The rule by which rounds leave out clients; `wanted`: results that a mean needs.

    A round is one collective. Its draw depends only on the seed and its number. If clients are
    chosen by availability, it skips clients that are absent when the round begins. `away(rank,
    time)`: whether a client is absent; `starts`: when each round began, at the end of the previous
    one (s); `taken`: numbers of results and gradients in each round's mean.
    """

    def __init__(
        self, cluster: Cluster, settings: Sampling, seed: int, away: Callable[[int, float], bool]
    ) -> None:
        self.workers, self._seed, self._away = cluster.workers, seed, away
        self.wanted, workers = cluster.participants, cluster.workers
        self._selected = min(workers, ceil(self.wanted * settings.over - 1e-9))
        self._present = settings.by == "availability"
        self._patience = inf if settings.deadline is None else settings.deadline
        self._chosen: dict[int, dict[int, None]] = {}
        self.starts: list[float] = []
        self.taken: list[tuple[int, float]] = []

    def chosen(self, index: int, at: float) -> dict[int, None]:
        """Return the clients of a round in the order of their draw.

        The first call, at the end of the previous round, draws them.
        """
        if index not in self._chosen:
            order = generator(self._seed, Purpose.SAMPLING, index).permutation(self.workers)
            ranks = (int(rank) for rank in order)
            if self._present:
                ranks = (rank for rank in ranks if not self._away(rank, at))
            self._chosen[index] = dict.fromkeys(islice(ranks, self._selected))
            self._chosen.pop(index - 2, None)
            self.starts.append(at)
        return self._chosen[index]

    def sits_out(self, rank: int, index: int, at: float) -> bool:
        """Return whether a client is not selected in a round."""
        return rank not in self.chosen(index, at)

    @property
    def due(self) -> float:
        """Deadline of the round under way (s)."""
        return (self.starts or [0.0])[-1] + self._patience

    def reached(self, times: Sequence[float]) -> float:
        """Return when (s) a round reaches a step, given the times of its clients.

        The deadline ends their steps, unless no client has reached it by then.
        """
        *_, last = ordered = sorted(times)[: self.wanted]
        return max(ordered[0], min(last, self.due))

    def narrow(self, team: list[int], arrivals: Mapping[int, float], begins: float) -> float:
        """Reduce `team` to the first `wanted` clients that report by the deadline.

        At least one remains: if none is in time, the mean waits for the first. Returns the earliest
        time (s) at which the mean may begin.
        """
        first = earliest(team, arrivals, self.wanted)
        enough, deadline = len(first) == self.wanted, self.due
        latest = deadline * (1 + TIME_TOLERANCE)
        punctual = [rank for rank in first if arrivals[rank] <= latest] or first[:1]
        team[:] = sorted(punctual)
        if len(punctual) < len(first):
            return deadline
        return 0.0 if enough else min(begins, deadline)


class Parked:
    """Clients that wait to be selected, and are not simulated until then.

    In a run without vectors and with a fixed period all rounds look equal to a program, so a client
    that missed some is in the same state. `nodes`: parked clients by rank; `_going`: ranks that
    join the next collective.
    """

    def __init__(self, run: Any, rule: Sampled) -> None:
        self._run, self._rule = run, rule
        self._going = set(range(run.workers))
        self.nodes: dict[int, Any] = {}

    def release(self, collective: Collective, done: float) -> list[Any]:
        """Return the nodes to resume at `done`, when a collective ends; park the others.

        The last client to join never waits, so it needs no resume.
        """
        run, index, rule = self._run, collective.index, self._rule
        following = rule.chosen(index + 1, done)
        going = self._going.difference(node.rank for node in collective.waiting)
        step = max(collective.joined)
        released = []
        for node in collective.waiting:
            if node.rank in following:
                released.append(node)
            else:
                node.park(collective)
                self.nodes[node.rank] = node
        for node in [self.nodes.pop(rank) for rank in following if rank in self.nodes]:
            node.skip_to(collective, step)
            released.append(node)
        self._going = going.union(node.rank for node in released)
        after = Collective(index + 1, collective.kind, run.workers)
        after.missing = len(self._going)
        after.payloads = [collective.payloads[collective.last[0]]] * run.workers  # left out
        run.open_collectives[index + 1] = after
        run.observer.watch(len(self._going))
        return released


def leaping(
    run: Any, rule: Sampled | None, parameters: Mapping[str, Any]
) -> tuple[Parked | None, bool, bool]:
    """Return a run's `Parked`, if clients may be parked, and whether workers, or idle ones, leap.

    All need a fixed period, so that phases are equal, and the first two a run without vectors.
    """
    fixed = isinstance(parameters.get("tau", FixedPeriod(1)), FixedPeriod)
    uniform = fixed and "switch_step" not in parameters
    if not (isinstance(run.objective.start, complex) and uniform):
        return None, False, uniform and rule is not None
    family, unsaved = run.program.family, run.availability.save_every == NEVER
    parked = Parked(run, rule) if rule is not None and family == "blocking" else None
    return parked, family == "server" and unsaved, False


class Absentees:
    """Absent clients, if availability matters; `ranks`: the last result of `at`.

    Times of calls never decrease.
    """

    def __init__(self, sampling: Sampling | None, calendars: Sequence[Calendar]) -> None:
        chosen = sampling is not None and sampling.by == "availability"
        self._calendars, self.ranks = calendars, set[int]()
        self._changes = [(0.0, rank) for rank in range(len(calendars))] if chosen else []

    def at(self, time: float) -> set[int]:
        """Return the ranks of absent clients at a time (s)."""
        while self._changes and self._changes[0][0] <= time:
            _, rank = self._changes[0]
            leaves, back = self._calendars[rank].next(time)
            (self.ranks.add if leaves <= time else self.ranks.discard)(rank)
            heapreplace(self._changes, (back if leaves <= time else leaves, rank))
        return self.ranks
