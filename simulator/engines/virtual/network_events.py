"""Changes of a network during a run: outages, profiles, competing flows, crashes.

All are known beforehand. They are not SimPy events: `SharedLines` applies them when they are
due, and only while transfers are in flight, so that endless ones keep no run alive.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

from ...network.flow_network import SharedNetwork
from ...network.topology.routes import Greedy

ENDLESS = 1e24  # bytes of a flow that never ends

Change = Callable[[float], None]


class NetworkEvents:
    """The changes to come, in order of time. `dead_lines`: lines whose capacity stays zero."""

    def __init__(self, network: SharedNetwork) -> None:
        self._network, self._fabric = network, network.fabric
        self._changes: list[tuple[float, int, Change]] = []
        self._count = 0
        self.dead_lines: set[int] = set()
        for line in network.changing:
            self._change_next(line)

    @property
    def due(self) -> float:
        """Time of the next change, in seconds; inf if there is none."""
        return self._changes[0][0] if self._changes else inf

    def at(self, time: float, change: Change) -> None:
        """Schedule a change at `time`; changes of equal times keep their order."""
        if time < inf:
            self._count += 1
            heappush(self._changes, (time, self._count, change))

    def apply_next(self) -> None:
        """Apply the next change; the fabric must have advanced to its time."""
        time, _, change = heappop(self._changes)
        change(time)

    def add_competing_flow(self, greedy: Greedy, seed: int) -> None:
        """Schedule a competing flow, which comes and goes by its scenario."""
        lines = tuple(dict.fromkeys(greedy.route.lines))
        path = self._fabric.path(lines, 0.0, limit=greedy.route.limit)
        self._next_interval(path, greedy.times.of(seed))

    def _next_interval(self, path: int, intervals: Iterator[tuple[float, float]]) -> None:
        start, end = next(intervals, (inf, inf))

        def begin(at: float) -> None:
            number = self._fabric.send(at, path, ENDLESS)
            self.at(end, lambda at: over(at, number))

        def over(at: float, number: int) -> None:
            self._fabric.cancel(at, number)
            self._next_interval(path, intervals)

        self.at(start, begin)

    def _change_next(self, line: int) -> None:
        """Schedule the next change of a line's capacity."""
        time, capacity = self._network.next_change(line)
        if time == inf and capacity == 0:
            self.dead_lines.add(line)

        def change(at: float) -> None:
            self._network.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)
