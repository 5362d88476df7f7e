"""Carry messages and collectives in closed form: times are known at the start.

`flows` has the other transport. Collectives take the links in the order in which their last worker
joined, each as soon as the links are free, and begin again if a worker of their team crashes.
Collectives that begin after the deadline are neither drawn nor counted. A message that a crash
interrupts is sent again (`Interrupted`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np

from ...cluster.failures import PATIENCE, Calendar
from ...network.closed_form import ClosedForm, MessageRoute, Nic, Traffic
from ...network.collectives import RegionPath
from ..collective import Collective


class Interrupted(MessageRoute):
    """A route between nodes that may crash; interrupted messages are sent again.

    `never`: called if crashes always prevent a message from arriving.
    """

    __slots__ = ("_ends", "_never", "delay")

    def __init__(self, *route: Any, ends: Iterable[Calendar], never: Callable[[], None]) -> None:
        super().__init__(*route)
        self.whole_transit = None
        self._ends, self._never = tuple(ends), never

    def send(self, now: float, size: float) -> tuple[float, float]:
        """Send a message at `now`; return its arrival and its last transit (s)."""
        planned, transit = super().send(now, size)
        start, at, self.delay = now, planned, 0.0
        for _ in range(PATIENCE):
            crash, back = min(calendar.next(start) for calendar in self._ends)
            if crash >= at:
                self.delay = at - planned
                return at, transit
            start, at = back, back + transit
        self._never()
        return inf, transit


class ClosedFormTransport:
    """The alpha-beta model of `network.closed_form`, with the server's network cards.

    `traffic`: the bytes and draws so far. `staggered`: whether times depend on when each worker
    joined a collective, which then has `arrivals`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.traffic = Traffic(
            ClosedForm(run.scenario), run.seed, self._interrupted if run.calendars else None
        )
        self.staggered = self.traffic.network.staggered
        bandwidth = run.scenario.server.bandwidth
        self._nic_in = Nic(bandwidth) if bandwidth else None
        self._nic_out = Nic(bandwidth) if bandwidth else None
        self._links_free = 0.0

    def _interrupted(self, link: RegionPath, size: float, seed: int, key: int) -> MessageRoute:
        run, pair = self._run, divmod(key, self._run.workers + 1)
        # A server that only makes means has no calendar.
        ends = [calendar for rank in pair for calendar in run.calendars[rank : rank + 1]]
        name = f"a message from {run.name_of(pair[0])} to {run.name_of(pair[1])}"
        never = partial(run.never, name)
        return Interrupted(link, size, seed, key, ends=ends, never=never)

    def route(self, source: int, to: int) -> MessageRoute:
        """Return the route of messages from one node to another."""
        route = self.traffic.route(source, to)
        if source == self._run.workers:
            route.leave_through(self._nic_out)
        elif to == self._run.workers:
            route.receiving_nic = self._nic_in
        return route

    def carry(self, collective: Collective, sizes: Sequence[float]) -> None:
        """Carry out a collective among its team as soon as the links are free.

        `sizes`: bytes of each worker, or one number if all are equal.
        """
        run, free = self._run, self._links_free
        if run.recovery.by_server:
            self._take_in(collective, sizes)
            return
        team = run.recovery.team(collective)
        begins = max(collective.begins, free)
        while begins <= run.deadline and begins < inf:
            crashed = run.recovery.first_crash(team, begins)
            if crashed[0] > begins:
                part = None if team is None or len(team) == run.workers else tuple(team)
                transmission, latency = self.traffic.collective(
                    collective.kind, sum(sizes) / len(sizes), max(sizes), part
                )
                idle = begins - free if free else inf  # new connections, and full buckets
                transmission += self.traffic.network.waking(
                    collective.kind, max(sizes), idle, latency, part
                )
                if crashed[0] >= begins + transmission + latency:
                    break
            begins = run.recovery.restart(collective, team, begins, crashed)
        if not run.recovery.begin(collective, team, begins, free):
            return
        self._links_free = begins + transmission
        if self.staggered and not run.outages:
            joined = np.array([collective.arrivals[rank] for rank in range(run.workers)])
            collective.ahead = self.traffic.network.ahead(
                np.maximum(joined, free), collective.kind, max(sizes), latency
            ).tolist()
        run.complete(collective, team, self._links_free + latency, run.release_at)

    def _take_in(self, collective: Collective, sizes: Sequence[float]) -> None:
        """Let a server receive each client's report, until the round is over."""
        run, arrivals, card = self._run, collective.arrivals, self._nic_in or Nic(inf)
        size = sizes if len(sizes) > 1 else [*sizes] * run.workers
        setup = 0.0 if self.traffic.begun else self.traffic.network.settings.setup
        self.traffic.add("mean", 0)
        routes = {rank: self.traffic.route(rank, run.workers) for rank in arrivals}
        sent = {r: setup + routes[r].send(at, size[r])[0] for r, at in arrivals.items()}
        falls = collective.falls = run.recovery.fallen(collective, sent)
        for rank in sorted(sent, key=lambda rank: (sent[rank], rank)):
            at = sent[rank]
            collective.reports[rank] = at if rank in falls else card.through(at, size[rank])
        team = run.recovery.team(collective) or []
        closes = collective.begins
        for rank in sent.keys() - team:
            start = arrivals[rank]
            crash = run.recovery.first_crash([rank], start)[0]
            ends = min(closes, run.deadline, crash, falls.get(rank, inf))
            duration = sent[rank] - start or inf  # zero over ideal links
            done = max(0.0, ends - start) / duration if ends < sent[rank] else 1
            routes[rank].bytes -= round(size[rank]) - round(done * size[rank])
        if run.recovery.begin(collective, team, closes):
            card.clear(closes)
            run.complete(collective, team, closes, run.release_at)

    def answer(self, handle: Collective, question: Collective) -> None:
        """Answer a poll immediately, because the end of the collective is known."""
        handle.answer(question)
        run = self._run
        if self.staggered and not run.outages and question.begins <= run.deadline:
            polls = np.array(question.payloads)
            question.ahead = self.traffic.network.ahead_of_poll(polls).tolist()
        run.release_at(question.done, question.waiting)
