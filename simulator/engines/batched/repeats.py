"""Time many steps in parallel, for programs whose steps are all equal (`Repeats`).

Such a step ends when all workers have the result, so that every step begins in the same state,
whatever its duration. So the effects of one step are replayed for many later steps at once, on
separate clocks that start at the end of the last step; then they are put in sequence. A step costs
arithmetic on arrays instead of Python calls. Times equal those of stepping up to rounding, so only
`run.sampling = "aggregate"` uses this.

Results do not depend on which seeds are run together, because every seed has separate clocks.
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

ENTRIES = 2**15  # most parallel clocks: as many as fit into a core's cache


class Repeats(Clocks):
    """Clocks that repeat the recorded events of one step."""

    _recorded: Sequence[tuple[Callable[..., None], tuple[Any, ...]]] = ()  # events of one step
    _of = 0  # number of that step
    _later = 0  # steps between it and the one whose timeline is being recorded
    _ready: Sequence["Repeats | None"] = ()  # by seed: parallel repeats of the step
    _number, _used, _size = 0, 16, 16  # first step, repeats used, repeats in all
    _took: Array  # seconds of each parallel step

    def learn(self, step: int) -> bool:
        """Record and replay `step`; return whether further steps equal it."""
        self._of = step
        self._recorded = [event for event in self._todo if getattr(event[0], "__self__", 0) is self]
        self.flush(step)
        begun = [event for replay, event in self._recorded if replay in {self.start, self.meet}]
        return not self._traffic[0].network.staggered and all(
            (handle.kind, payload) in self._costs for handle, payload, *_ in begun
        )

    def repeat(self, steps: int) -> None:
        """Let every worker take `steps` further steps."""
        self._planned += steps
        self.now = self.now.copy()
        while steps:
            if self._used == self._size:
                # grows slowly, so that few steps past a deadline are timed in vain
                most = min(4 * self._size, max(1, ENTRIES // self._workers))
                self._number, self._used = self._planned - steps + 1, 0
                self._size = min(most, self.limit - self._number)
                times = self._times.legs([1] * self._size)
                self._ready = [
                    self._in_parallel(seed, times[:, seed]) if now < NEVER else None
                    for seed, now in enumerate(self.now[:, 0].tolist())
                ]
            until = min(self._used + steps, self._size)
            for seed, ready in enumerate(self._ready):
                if ready is not None:
                    self._take(seed, ready, self._used, until)
            steps -= until - self._used
            self._used = until

    def _in_parallel(self, seed: int, times: Array, alone: bool = False) -> "Repeats":
        """Replay the step on clocks per row of `times`; `alone`: up to the deadline."""
        clone, steps, start = copy(self), len(times), self.now[seed, 0]
        clone._seeds, clone.now = steps, np.full(times.shape, start)
        clone._free, clone._flights = np.full(steps, self._free[seed]), deque()
        clone.waited, clone.communicated = np.zeros((2, *times.shape))
        clone._payloads = defaultdict(Counter, {kind: Counter() for kind in self._payloads})
        clone.staleness = defaultdict(lambda: np.zeros(steps, int))
        clone._legs, clone.limit = times[None], sys.maxsize
        if not alone:
            clone.deadline = inf
        if seed or not alone:
            clone._spans = None
        for replay, arguments in self._recorded:
            getattr(clone, replay.__name__)(*arguments)
        assert alone or (clone.now == clone.now[:, :1]).all()
        clone._took = clone.now[:, 0] - start
        return clone

    def _take(self, seed: int, ready: "Repeats", first: int, until: int) -> None:
        """Let one seed's workers take steps; those cut or drawn are replayed alone."""
        while first < until and (now := self.now[seed, 0]) < NEVER:
            traced = not seed and self._spans is not None and not self._spans.truncated
            lengths = ready._took[first : first + 1 if traced else until]
            ends = np.cumsum([now, *lengths.tolist()])[1:]
            count = int(np.searchsorted(ends, self.deadline, side="right"))
            if traced or not count:
                self._later = self._number + first - self._of
                source = self._in_parallel(seed, ready._legs[0, first : first + 1], alone=True)
                self._since, self._later = source._since, 0
            if count:
                source, rows, last = ready, slice(first, first + count), first + count - 1
                self.now[seed] = ends[count - 1]
                self._free[seed] = ends[count - 1] - (ready.now[last, 0] - ready._free[last])
            else:
                count, rows = 1, slice(1)
                self.now[seed], self._free[seed] = source.now[0], source._free[0]
            first += count
            for sums, part in (
                (self.waited, source.waited),
                (self.communicated, source.communicated),
            ):
                sums[seed] = np.concatenate([sums[seed, None], part[rows]]).sum(axis=0)
            for age, numbers in source.staleness.items():
                self.staleness[age][seed] += count * numbers[0]
            for kind, sizes in source._payloads.items():
                for size, number in sizes.items():
                    more: Any = np.where(
                        np.arange(self._seeds) == seed, count * np.ravel(number)[0], 0
                    )
                    self._payloads[kind][size] += more

    def _record(self, handle: Timed, now: Array, begins: Array, done: Array, step: int) -> None:
        super()._record(handle, now, begins, done, step + self._later)
