"""Describe a collective's messages: ends, size, and what they wait for.

Messages have no times; those follow from the paths that a network gives to routes. A collective
starts when its last worker has joined, and ends for all when its last message has arrived. A
message carries `share` times the payload of worker `origin`. `MessageBuilder` makes messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Team = Sequence[int]
"""The ranks of a collective's workers, in order."""


@dataclass(frozen=True, eq=False)
class Messages:
    """The n messages of a collective on routes between ranks.

    `routes`: the ranks that a message passes: two, or more for a pipelined chain, which is one
    transfer over all its hops. A route with several lanes occurs once per lane. `path` (n,): index
    into `routes` or, once `plan` has placed it, a path of a fabric. `share`, `origin` (n,): see the
    module's docstring. `waits` (n,): number of earlier messages that a message waits for;
    `followers[offsets[i] : offsets[i + 1]]`: the messages that wait for message i.
    """

    routes: tuple[tuple[int, ...], ...]
    path: Array
    share: Array
    origin: Array
    waits: Array
    offsets: Array
    followers: Array

    def plan(self, paths: Sequence[int]) -> Self:
        """Place the messages on paths of a fabric, one path per route."""
        return replace(self, path=np.asarray(paths, int)[self.path])


class MessageBuilder:
    """Builder of a collective's messages; messages wait for earlier ones only.

    `last`: the messages by rank that a worker waits for before it sends again.
    """

    def __init__(self) -> None:
        self.last: dict[int, list[int]] = {}
        self._routes: dict[tuple[tuple[int, ...], int], int] = {}
        self._rows: list[tuple[Array, ...]] = []
        self._count = 0

    def add(
        self,
        routes: Sequence[tuple[int, ...]],
        share: float,
        after: list[list[int]],
        lane: int = 0,
        origins: Sequence[int] | None = None,
    ) -> list[int]:
        """Add a message per route, which waits for the messages `after`; return numbers.

        Messages of one route and `lane` are sent in order; each lane is a separate connection.
        `origins`: the workers whose payloads they carry; None: their senders'.
        """
        keys = [(route, lane) for route in routes]
        number = [self._routes.setdefault(key, len(self._routes)) for key in keys]
        senders = [route[0] for route in routes] if origins is None else origins
        waits = np.array([len(numbers) for numbers in after], int)
        before = np.fromiter(chain.from_iterable(after), int)
        columns = np.array(number, int), np.full(len(routes), share), np.array(senders, int)
        self._rows.append((*columns, waits, before))
        first, self._count = self._count, self._count + len(routes)
        return list(range(first, self._count))

    def after_both(self, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
        """Return for each pair the messages after which both workers are free."""
        return [sorted({*self.last.get(a, []), *self.last.get(b, [])}) for a, b in pairs]

    def ring(self, team: Team, laps: int, share: float, passing_on: bool = False) -> list[int]:
        """Add `laps` times m - 1 steps around a ring; return the last step's messages.

        `passing_on`: a worker forwards the payload that it just received, not its own.
        """
        m = len(team)
        if m == 1:
            return self.last.get(team[0], [])
        pairs = list(zip(team, [*team[1:], team[0]], strict=True))
        before = self.after_both(pairs)  # the first part of a ring goes first
        numbers = self.add(pairs, share, before)
        for step in range(1, laps * (m - 1)):
            received = [[numbers[i - 1], *waits] for i, waits in enumerate(before)]
            origins = [team[(i - step) % m] for i in range(m)] if passing_on else None
            numbers = self.add(pairs, share, received, origins=origins)
        for i, rank in enumerate(team):
            self.last[rank] = [numbers[i], numbers[i - 1]]
        return numbers

    def messages(self) -> Messages:
        """Return the messages added so far."""
        empty = (np.zeros(0, int), np.zeros(0), *[np.zeros(0, int)] * 3)
        columns = zip(*[empty, *self._rows], strict=True)
        route, share, origin, waits, after = map(np.concatenate, columns)
        followers = np.repeat(np.arange(len(waits)), waits)[np.argsort(after, kind="stable")]
        counts = np.bincount(after, minlength=len(waits))
        offsets = np.concatenate(([0], np.cumsum(counts)))
        routes = tuple(ranks for ranks, _ in self._routes)
        return Messages(routes, route, share, origin, waits, offsets, followers)
