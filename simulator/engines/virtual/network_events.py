"""What changes a network while a run goes on: outages, profiles, others' flows, crashes.

All of it is known beforehand. It is no event of SimPy's but comes when it is due, and only while
something is under way: weather without end keeps no run alive.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from paceline.simulator.network.flow_network import SharedNetwork
from paceline.simulator.network.topology.routes import Greedy

ENDLESS = 1e24  # bytes of a flow that never ends

Change = Callable[[float], None]


class NetworkEvents:
    """The changes to come, in order. `dead`: lines that never work again."""

    def __init__(self, ground: SharedNetwork) -> None:
        self._ground, self._fabric = ground, ground.fabric
        self._changes: list[tuple[float, int, Change]] = []
        self._count = 0
        self.dead: set[int] = set()
        for line in ground.changing:
            self._change_next(line)

    @property
    def due(self) -> float:
        """When something changes next; inf if never."""
        return self._changes[0][0] if self._changes else inf

    def at(self, time: float, change: Change) -> None:
        """Let something change at `time`; changes of one time come in this order."""
        if time < inf:
            self._count += 1
            heappush(self._changes, (time, self._count, change))

    def turn(self) -> None:
        """Make the next change, to whose time the fabric has come."""
        time, _, change = heappop(self._changes)
        change(time)

    def visit(self, greedy: Greedy, seed: int) -> None:
        """Let somebody else's flow come and go."""
        lines = tuple(dict.fromkeys(greedy.way.lines))
        path = self._fabric.path(lines, 0.0, limit=greedy.way.limit)
        self._come_next(path, greedy.spells.of(seed))

    def _come_next(self, path: int, spells: Iterator[tuple[float, float]]) -> None:
        start, end = next(spells, (inf, inf))

        def begin(at: float) -> None:
            ticket = self._fabric.send(at, path, ENDLESS)
            self.at(end, lambda at: over(at, ticket))

        def over(at: float, ticket: int) -> None:
            self._fabric.cancel(at, ticket)
            self._come_next(path, spells)

        self.at(start, begin)

    def _change_next(self, line: int) -> None:
        """Let a line's capacity change when it next does."""
        time, capacity = self._ground.next_change(line)
        if time == inf and capacity == 0:
            self.dead.add(line)

        def change(at: float) -> None:
            self._ground.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)
