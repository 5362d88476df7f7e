"""Slow the computing of a worker while one of its collectives is under way.

The duration of computing depends on when collectives begin and end. These times are known once all
workers have joined or, over shared links, at the end. So a worker that computes meanwhile is
resumed when such a time becomes known, or else when its computing is done.
"""

import types
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from math import inf
from typing import Any

import simpy

from ...cluster.speed import slowed_end
from ..collective import Collective, GradientPiece
from .node import VirtualNode


class CollectiveSlowdown:
    """A worker's computing; `flights`: joined collectives, `due`: when it ends (s)."""

    def __init__(self, run: Any, node: VirtualNode) -> None:
        self._run, self._node = run, node
        self._times = run.scenario.cluster.beside_collectives
        self.flights: deque[Collective] = deque()
        self.due: float | None = None

    @types.coroutine
    def takes(self, work: float, since: float | None = None) -> Generator[None, Any, float]:
        """Compute `work` seconds from `since` on (None: now); return their duration (s)."""
        run, node, flights = self._run, self._node, self.flights
        start = node.now if since is None else since
        while flights and (first := flights[0]).done is not None:
            if first.reaches(node.rank) > start:
                break
            flights.popleft()
        if not flights:
            return work
        node.handle = GradientPiece(None, inf)
        while True:
            spans_ = [
                (flight.begins, inf if flight.done is None else flight.reaches(node.rank))
                for flight in flights if not flight.missing
            ]  # fmt: skip
            at = float(slowed_end(start, work, spans_, self._times))
            if at <= run.agenda.env.now or all(flight.done is not None for flight in flights):
                break
            self.due = at
            if at <= run.deadline:
                run.events += 1
                run.agenda.call_at(at, self._alarm, at)
            yield
        node.handle = None
        return at - start

    def _alarm(self, event: simpy.Event) -> None:
        valid = event.value == self.due
        event._value = [self._node] if valid else []
        self.due = None if valid else self.due
        self._run.release(event)

    async def backward(self, work: float) -> float:
        """Return the work unchanged: its pieces are slowed one by one (`freed`)."""
        return work

    def freed(self, pieces: Sequence[GradientPiece]) -> Sequence[GradientPiece]:
        """Mark pieces to be computed when the node waits for them, one after another."""
        before: Any = self._node.now
        since = before
        for piece in pieces:
            piece.before, piece.work = before, piece.done - since
            before, since, piece.done = piece, piece.done, None
            piece.free = partial(self._free, piece)
        return pieces

    def _free(self, piece: GradientPiece) -> Generator[None, Any, None]:
        """Compute a piece, and before it the earlier pieces that no wait has computed."""
        before = piece.before
        if isinstance(before, GradientPiece):
            if before.done is None:
                yield from before.free()
            before = before.done
        piece.done = before + (yield from self.takes(piece.work, before))


def slow(run: Any) -> list[CollectiveSlowdown]:
    """Let collectives slow computing, unless outages do; return what they slow, by rank."""
    slows = run.scenario.cluster.beside_collectives > 1 and not run.program.server
    if not slows or run.outages:
        return []
    slowed = [CollectiveSlowdown(run, node) for node in run.nodes]
    for node, computing in zip(run.nodes, slowed, strict=True):
        node.computing = computing
    return slowed


def resume_computing(run: Any) -> None:
    """Resume the nodes whose computing waits for times of collectives."""
    for node, computing in zip(run.nodes, run.slowed, strict=False):
        if computing.due is not None:
            computing.due = None
            run.agenda.ready.append((node, None))
