"""Collectives as their real messages: who sends what to whom, and what must have come before.

Written once: a network puts a path under every way, and times follow. A collective starts when its
last worker has joined, and is over for all when its last message has arrived. What a message
carries is `share` of the payload of worker `origin`. A team: the ranks that take part, in order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from paceline.simulator.network.fabric import rounds
from paceline.simulator.network.fabric.rounds import Round, Team

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class MessagePlan:
    """Messages on the paths of a fabric, as it runs them.

    Shapes, with n messages: `paths` (n,): the path of each; `shares` (n,): its bytes per byte of
    the payload of worker `origins` (n,); `stages` (n,): which stage it belongs to, counted from 0;
    `waits` (n,): how many messages each waits for; `followers[offsets[i] : offsets[i + 1]]`: which
    messages wait for message i.
    """

    paths: Array
    shares: Array
    origins: Array
    stages: Array
    waits: Array
    offsets: Array
    followers: Array


@dataclass(frozen=True, eq=False)
class Messages:
    """The n messages of a collective.

    `ways`: ranks from, to (and on to: a pipelined chain is one transfer over all its hops).
    Shapes: `way` (n,): an index into `ways`; `share` and `origin` (n,); `stage` (n,): an index into
    `stages`. Message i waits for `after[offsets[i] : offsets[i + 1]]`, all earlier than i.
    """

    ways: tuple[tuple[int, ...], ...]
    stages: tuple[str, ...]
    way: Array
    share: Array
    origin: Array
    stage: Array
    offsets: Array
    after: Array

    def plan(self, paths: Sequence[int]) -> MessagePlan:
        """Put the messages on paths of a fabric, one for each of `ways`."""
        waits = np.diff(self.offsets)
        followers = np.repeat(np.arange(len(waits)), waits)[np.argsort(self.after, kind="stable")]
        counts = np.bincount(self.after, minlength=len(waits))
        return MessagePlan(
            np.asarray(paths, int)[self.way], self.share, self.origin, self.stage, waits,
            np.concatenate(([0], np.cumsum(counts))), followers,
        )  # fmt: skip


def ring(team: Team) -> Messages:
    """Reduce-scatter, then all-gather, 2(m - 1) steps of 1/m each (Patarasuk & Yuan 2009).

    A worker sends the next part when it has received it: its messages follow each other on one
    connection, and need not have arrived before the next one leaves.
    """
    sheet = _Sheet()
    sheet.ring(team, ("reduce-scatter", "all-gather"), 1 / len(team))
    return sheet.messages()


def gather(team: Team) -> Messages:
    """Everybody's payload to everybody, around the ring in m - 1 steps."""
    sheet = _Sheet()
    sheet.ring(team, ("all-gather",), 1.0, passing_on=True)
    return sheet.messages()


def tree(team: Team) -> Messages:
    """Binomial tree: reduce to the first worker, broadcast; everybody does one thing at a time."""
    return _by_rounds(rounds.tree(team))


def recursive_doubling(team: Team) -> Messages:
    """Exchange whole payloads with ever further partners (Thakur et al. 2005)."""
    return _by_rounds(rounds.recursive_doubling(team))


def halving_doubling(team: Team) -> Messages:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner 2004)."""
    return _by_rounds(rounds.halving_doubling(team))


def star(team: Team) -> Messages:
    """All to the first worker at once; when it has all of them, back to all at once."""
    sheet = _Sheet()
    head, *others = team
    arrived = sheet.add("reduce", [(rank, head) for rank in others], 1.0, [[]] * len(others))
    sheet.add("broadcast", [(head, rank) for rank in others], 1.0, [arrived] * len(others))
    return sheet.messages()


def hierarchical(team: Team, regions: Sequence[object]) -> Messages:
    """A ring in each region, a ring of their first workers, and a chain back into each region.

    `regions`: by rank. A first worker starts when its own and the next region's ring are over; the
    chain is one pipelined transfer through all workers of a region. One region: the ring alone.
    """
    inside: dict[object, list[int]] = {}
    for rank in team:
        inside.setdefault(regions[rank], []).append(rank)
    if len(inside) == 1:
        return ring(team)
    sheet = _Sheet()
    for part in inside.values():
        sheet.last[part[0]] = sheet.ring(part, ("inside regions",) * 2, 1 / len(part))
    heads = [part[0] for part in inside.values()]
    sheet.ring(heads, ("across regions",) * 2, 1 / len(heads))
    for part in inside.values():
        if len(part) > 1:
            sheet.add("back into regions", [tuple(part)], 1.0, [sheet.last[part[0]]])
    return sheet.messages()


def mean(collective: str, team: Team, regions: Sequence[object]) -> Messages:
    """The messages of a mean over `team`, by the collective's name; `regions`: by rank."""
    if collective == "hierarchical":
        return hierarchical(team, regions)
    made = {
        "ring": ring,
        "tree": tree,
        "star": star,
        "recursive-doubling": recursive_doubling,
        "halving-doubling": halving_doubling,
    }
    return made[collective](team)


def _by_rounds(parts: Iterable[Round]) -> Messages:
    """A message is sent when its sender and its receiver have done with the rounds before."""
    sheet = _Sheet()
    for stage, pairs, share in parts:
        numbers = sheet.add(stage, pairs, share, sheet.both(pairs))
        done: dict[int, list[int]] = {}
        for number, pair in zip(numbers, pairs, strict=True):
            for rank in pair:
                done.setdefault(rank, []).append(number)
        sheet.last.update(done)
    return sheet.messages()


class _Sheet:
    """Messages as they are written down. `last`: what a worker waits for before it sends again."""

    def __init__(self) -> None:
        self.last: dict[int, list[int]] = {}
        self._ways: dict[tuple[int, ...], int] = {}
        self._stages: dict[str, int] = {}
        self._rows: list[tuple[Array, ...]] = []
        self._count = 0

    def add(
        self, stage: str, ways: Sequence[tuple[int, ...]], share: float, after: list[list[int]]
    ) -> list[int]:
        """Write messages down, and what each waits for; return their numbers."""
        number = [self._ways.setdefault(way, len(self._ways)) for way in ways]
        waits = np.array([len(each) for each in after], int)
        sender = np.array([way[0] for way in ways], int)
        return self._write(
            np.array(number, int), np.full(len(ways), share), sender,
            np.full(len(ways), self._stages.setdefault(stage, len(self._stages))),
            waits, np.fromiter(chain.from_iterable(after), int),
        )  # fmt: skip

    def both(self, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
        """What messages between two wait for, so that both have nothing else to do."""
        return [sorted({*self.last.get(a, []), *self.last.get(b, [])}) for a, b in pairs]

    def ring(
        self, team: Team, stages: tuple[str, ...], share: float, passing_on: bool = False
    ) -> list[int]:
        """Write m - 1 steps around a ring for each stage; return the messages of the last step.

        `passing_on`: what a worker sends is what it has just received, not its own.
        """
        m = len(team)
        if m == 1:
            return self.last.get(team[0], [])
        members = np.array(team)
        steps = len(stages) * (m - 1)
        pairs = list(zip(team, [*team[1:], team[0]], strict=True))
        gates = self.both(pairs)  # nothing of a ring is sent before its first part can be
        begun = self.add(stages[0], pairs, share, gates)
        first, place = begun[0], np.arange(m)
        step = np.arange(1, steps)[:, None]
        received = first + (step - 1) * m + (place - 1) % m
        origin = members[(place - step) % m] if passing_on else members + 0 * step
        number = [self._stages.setdefault(stage, len(self._stages)) for stage in stages]
        rows = (steps - 1) * m
        ways = np.array([self._ways[team[i], team[(i + 1) % m]] for i in range(m)])
        waits = np.array([1 + len(gate) for gate in gates])
        after = np.tile(np.array([n for gate in gates for n in (0, *gate)], int), (steps - 1, 1))
        after[:, np.cumsum(waits) - waits] = received
        self._write(
            np.tile(ways, steps - 1), np.full(rows, share), origin.ravel(),
            np.array(number)[step // (m - 1) + 0 * place].ravel(),
            np.tile(waits, steps - 1), after.ravel(),
        )  # fmt: skip
        end = first + (steps - 1) * m
        for i, rank in enumerate(team):
            self.last[rank] = [end + i, end + (i - 1) % m]
        return list(range(end, end + m))

    def _write(self, *rows: Array) -> list[int]:
        self._rows.append(rows)
        first, self._count = self._count, self._count + len(rows[0])
        return list(range(first, self._count))

    def messages(self) -> Messages:
        """What was written down."""
        empty = (np.zeros(0, int), np.zeros(0), *[np.zeros(0, int)] * 4)
        columns = zip(*[empty, *self._rows], strict=True)
        way, share, origin, stage, waits, after = map(np.concatenate, columns)
        offsets = np.concatenate(([0], np.cumsum(waits)))
        return Messages(
            tuple(self._ways), tuple(self._stages), way, share, origin, stage, offsets, after
        )
