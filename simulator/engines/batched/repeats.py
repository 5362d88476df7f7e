"""Time many steps side by side, in programs whose steps are all alike (`Repeats`).

Such a step ends when all workers have what they go on with, so that the next one begins as this one
did, however long this one took. What the program did in one step is thus replayed for many further
ones at once, each on clocks of its own from where the last known step ended; then they are put in
line. So a step costs arithmetic on arrays in place of Python's calls. Times are those of
stepping up to rounding, which is why only `run.sampling = "aggregate"` does it.

Nothing here depends on which seeds are run together: each has clocks of its own.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from copy import copy
from math import inf
from typing import Any

import numpy as np

from ...distributions.distribution import Array
from .clocks import NEVER, Clocks, Timed
from .schedule import Leg

ENTRIES = 2**15  # clocks side by side, at most: they fit into a core's cache


class Repeats(Clocks):
    """Clocks that take further steps by what was recorded of one."""

    _recorded: Sequence[tuple[Callable[..., None], tuple[Any, ...]]] = ()  # events of one step
    _of = 0  # that step
    _later = 0  # steps between it and the one whose timeline is being recorded
    _ready: Sequence["Repeats | None"] = ()  # of each seed: the same steps, side by side
    _number, _used, _size = 0, 16, 16  # of those: the first's number; how many are used; how many
    _took: Array  # seconds of steps side by side

    def learn(self, step: int) -> bool:
        """Replay what was recorded of `step` alone; return whether further steps are like it."""
        self._of = step
        self._recorded = [each for each in self._todo if getattr(each[0], "__self__", 0) is self]
        self.flush(step)
        begun = [each for replay, each in self._recorded if replay in {self.start, self.meet}]
        return not self._traffic[0].network.staggered and all(
            (handle.kind, payload) in self._costs for handle, payload, *_ in begun
        )

    def repeat(self, steps: int) -> None:
        """Let every worker take `steps` further steps."""
        self._noted += steps
        self.now = self.now.copy()
        while steps:
            if self._used == self._size:
                # grows, so that little is timed in vain past a deadline
                most = min(4 * self._size, max(1, ENTRIES // self._workers))
                self._number, self._used = self._noted - steps + 1, 0
                self._size = min(most, self.limit - self._number)
                each = self._times.legs([1] * self._size).each
                self._ready = [
                    self._aside(seed, each[:, seed]) if now < NEVER else None
                    for seed, now in enumerate(self._now[:, 0].tolist())
                ]
            until = min(self._used + steps, self._size)
            for seed, ready in enumerate(self._ready):
                if ready is not None:
                    self._take(seed, ready, self._used, until)
            steps -= until - self._used
            self._used = until

    def _aside(self, seed: int, each: Array, alone: bool = False) -> "Repeats":
        """Replay the recorded step on clocks of its own for each row of `each`, (steps, workers).

        `alone`: mind the deadline, and record the timeline if it is the first seed's.
        """
        own, steps, start = copy(self), len(each), self._now[seed, 0]
        own._seeds, own._at, own._leg = steps, np.full(steps, start), None
        own._free, own._flights = np.full(steps, self._free[seed]), deque()
        own.waited, own.communicated = np.zeros((2, *each.shape))
        own._stood = np.zeros((2, steps))
        own._payloads = defaultdict(Counter, {kind: Counter() for kind in self._payloads})
        own.staleness = defaultdict(lambda: np.zeros(steps, int))
        own._legs, own.limit = Leg(each[None], each.max(axis=1)[None]), sys.maxsize
        if not alone:
            own.deadline = inf
        if seed or not alone:
            own._spans = None
        for replay, arguments in self._recorded:
            getattr(own, replay.__name__)(*arguments)
        own.waited += own._stood[0][:, None]
        own.communicated += own._stood[1][:, None]
        assert alone or (own.now == own.now[:, :1]).all()
        own._took = own.now[:, 0] - start
        return own

    def _take(self, seed: int, ready: "Repeats", first: int, until: int) -> None:
        """Let a seed's workers take the steps from `first` up to `until` of those that are ready.

        A step that the deadline cuts is replayed alone, as is one that the timeline has room for.
        Sums go on from what there is, so that they do not depend on where they are interrupted.
        """
        while first < until and (now := self._now[seed, 0]) < NEVER:
            traced = not seed and self._spans is not None and not self._spans.truncated
            lengths = ready._took[first : first + 1 if traced else until]
            ends = np.cumsum([now, *lengths.tolist()])[1:]
            count = int(np.searchsorted(ends, self.deadline, side="right"))
            if traced or not count:
                self._later = self._number + first - self._of
                own = self._aside(seed, ready._legs.each[0, first : first + 1], alone=True)
                self._since, self._later = own._since, 0
            if count:
                own, rows, last = ready, slice(first, first + count), first + count - 1
                self._now[seed] = ends[count - 1]
                self._free[seed] = ends[count - 1] - (ready.now[last, 0] - ready._free[last])
            else:
                count, rows = 1, slice(1)
                self._now[seed], self._free[seed] = own.now[0], own._free[0]
            first += count
            for sums, each in (self.waited, own.waited), (self.communicated, own.communicated):
                sums[seed] = np.concatenate([sums[seed, None], each[rows]]).sum(axis=0)
            for age, numbers in own.staleness.items():
                self.staleness[age][seed] += count * numbers[0]
            for kind, sizes in own._payloads.items():
                for size, number in sizes.items():
                    more: Any = np.where(
                        np.arange(self._seeds) == seed, count * np.ravel(number)[0], 0
                    )
                    self._payloads[kind][size] += more

    def _record(self, handle: Timed, now: Array, begins: Array, done: Array, step: int) -> None:
        super()._record(handle, now, begins, done, step + self._later)
