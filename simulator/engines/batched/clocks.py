"""Record the effects of all workers in order; replay them on the workers' clocks.

If all workers of a program always do the same, the order of effects does not depend on time. So
`node.BatchedNode` runs the program once and records its effects here; `flush` replays them on
arrays of clocks, with one NumPy operation for all workers and seeds. This replaces an event queue,
whose cost per worker and step is a hundred times larger.

A *segment* is a run of steps between two recorded events, whose compute times are summed at once; a
*block* is the segments between two calls of `flush`, which draws all its compute times in a few
large calls.

Arrays have the shape (seeds, workers), or (seeds,) where the workers of a seed share a number.
Seconds throughout.

Invariants:
- Events are replayed exactly once and in the order of recording; a segment is drawn before any
  event that follows it is replayed. A segment ends at an event or after `longest` steps, never
  because a block happens to end there, so that sums do not depend on the sizes of blocks. Only
  `merge` (runs without vectors) lets a segment span several steps: with vectors, gradients are
  computed while recording, so that steps past the deadline are wasted work, and blocks are small.
- Clocks never decrease. A clock of NEVER (inf) belongs to a worker that waits for an event after
  the deadline; such a worker takes no further part.
- Every second of a worker is waiting (for other workers), communication (for the network), or
  computation; computation is the rest, so only waits are added up.
- Random costs of a collective are drawn only for seeds in which it begins by the deadline, in the
  order of the collectives, as in the reference engine.

After a change: tests/engines/test_batched.py and test_conformance.py compare every number with the
reference engine (`engines.virtual`), ties and deadlines included; tests/lab/bench/parts.py measures
a step.
"""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import reduce
from math import inf
from typing import Any

import numpy as np

from ...cluster.speed import slowed_end
from ...distributions.distribution import Array
from ...network.closed_form import Traffic
from ...results.run import Kind, Spans
from ...scenario.scenario import Scenario
from ..observer import deadline

LONGEST = 1024  # most steps in one segment
SEGMENTS = 2**24  # most draws in memory at once, of all workers and seeds
STEPS = 2**12, 2**16  # most draws of one worker in memory: in the first block, and in any
FAR = sys.float_info.max  # replaces NEVER in arithmetic
FEW = 8  # workers whose clocks are compared one by one
NEVER = inf  # the clock of a worker that waits for an event after the deadline


class Timed:
    """A handle of a collective or of a gradient's piece; `Clocks` sets its times.

    `kind`: the kind of collective, None for a piece. `step`: the step at which it was started.
    `result`: the value that a wait for it returns. `begins`, `done`: seconds, (seeds,); a piece
    without `done` has a pair in `begins`: the previous piece (or seconds), and its own work (s).
    `ahead`: how many seconds before `done` each worker has the result, (seeds, workers) or zero.
    `chained`: whether another collective follows from it, so that the program does not act on its
    result.
    """

    __slots__ = ("ahead", "begins", "chained", "done", "kind", "result", "step")

    def __init__(self, kind: str | None, result: Any, step: int) -> None:
        self.kind, self.result, self.step = kind, result, step
        self.begins: Any = None
        self.done: Any = None
        self.ahead: Any = 0.0
        self.chained = False


class Clocks:
    """The clocks at the last `flush`: `now`, shape (seeds, workers).

    `times`: draws compute times, `compute_times.Draws` or `SumDraws`. `merge`: the steps between
    two events are one segment of up to `longest` steps; otherwise every step is a segment. `due`:
    whether a block is full, so that `flush` must be called. `deadline`: seconds at which a run
    ends, with the tolerance for rounding: events up to it count. `limit`: the last step. `over`:
    whether all workers have reached the deadline. `waited`, `communicated`: seconds, (seeds,
    workers). `staleness`: by age in steps, the number of results used at that age, (seeds,).
    """

    def __init__(
        self,
        times: Any,
        traffic: Sequence[Traffic],
        scenario: Scenario,
        spans: Spans | None,
        *,
        merge: bool,
    ) -> None:
        workers, end = scenario.cluster.workers, scenario.run.duration or inf
        self._times, self.longest = times, LONGEST if merge else 1
        # with vectors to compute on, steps past the deadline cost more than small blocks
        self._block = max(64, SEGMENTS // (len(traffic) * workers)) if merge else 64
        self._most = STEPS[0]  # grows, so that few steps past a deadline are computed
        self._planned = self._drawn = 0  # steps
        self._lengths: list[int] = []
        self._todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.due = self.over = False
        self._legs: Array = np.empty(0)  # of the block's segments, (segments, seeds, workers)
        self._traffic, self._seeds, self._workers = traffic, len(traffic), workers
        self.limit = scenario.run.steps or sys.maxsize
        self._end, self.deadline = end, deadline(scenario)
        self.now = np.zeros((self._seeds, workers))
        self._free = np.zeros(self._seeds)  # time from which the links are free
        self._beside = scenario.cluster.beside_collectives
        self._pieces: Sequence[Timed] = ()  # pieces of the gradient under way
        self._flights: deque[tuple[Array, Array]] = deque()  # begins, ends
        self.waited = np.zeros((self._seeds, workers))  # seconds
        self.communicated = np.zeros((self._seeds, workers))
        # collectives that began in each seed, by kind and whole bytes of payload
        self._payloads: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        self._begun: dict[str, Any] = {}  # by kind: the seeds in which one began by the deadline
        self._counted: dict[str, Array] = {}  # by kind: payloads up to the last point; -1: none
        self._costs: dict[tuple[str, float], tuple[float, float]] = {}
        self.staleness: defaultdict[int, Array] = defaultdict(lambda: np.zeros(self._seeds, int))
        self._last: list[tuple[Array, Array, Array]] = []  # the waits at the last step
        self._spans, self._since = spans, np.zeros(workers)

    def record(self, step: int, replay: Callable[..., None], *arguments: Any) -> None:
        """Record an event after `step` steps of every worker: `replay(*arguments)`."""
        self.advance(step)
        self._todo.append((replay, arguments))

    def advance(self, step: int) -> None:
        """Let every worker compute up to `step`."""
        if step > self._planned:
            self._todo.append((self._compute, (self._segment(step),)))

    def _segment(self, step: int) -> int:
        """Close a segment at `step`; return its number in the block."""
        self._lengths.append(step - self._planned)
        self._drawn += step - self._planned
        self._planned = step
        self.due = len(self._lengths) >= self._block or self._drawn >= self._most or self.over
        return len(self._lengths) - 1

    def flush(self, step: int) -> None:
        """Draw the block's compute times and replay all events recorded up to `step`."""
        self.advance(step)
        if self._lengths:
            self._legs = self._times.legs(self._lengths)
        todo, self._todo, self._lengths, self._drawn = self._todo, [], [], 0
        self._most = min(4 * self._most, STEPS[1])
        for replay, arguments in todo:
            replay(*arguments)
        if self.deadline < inf:
            self.over = bool((self.now.min(axis=1) > self.deadline).all())
        self.due = self.over

    def latest(self) -> Array:
        """Return the clock of each seed's last worker, (seeds,)."""
        if self._workers <= FEW:  # the same maximum, faster along so short an axis
            return reduce(np.maximum, self.now.T)
        latest: Array = self.now.max(axis=1)
        return latest

    def _fly(self, begins: Array, ends: Array) -> None:
        """Record a collective; collectives without a gap between them are one flight."""
        if self._flights and (begins <= self._flights[-1][1]).all():
            begins, before = self._flights.pop()
            ends = np.maximum(before, ends)
        self._flights.append((begins, ends))

    def _ends(self, start: Array, work: Array) -> Array:
        """Return when computing that begins at `start` ends; ends never decrease."""
        while self._flights and (self._flights[0][1] <= start).all():
            self._flights.popleft()
        ends: Array = slowed_end(start, work, self._flights, self._beside)
        return ends

    def _compute(self, segment: int) -> None:
        legs = self._legs[segment]
        self.now = self._ends(self.now, legs) if self._flights else self.now + legs

    def work(self, seconds: float) -> None:
        """Keep every worker's device busy for `seconds`, which delays its gradient."""
        for piece in self._pieces:
            if piece.done is None:
                before, work = piece.begins
                piece.begins = before, work + seconds
                break
            piece.done = np.where(piece.done > self.now, piece.done + seconds, piece.done)
        self.spend(seconds)

    def spend(self, seconds: float) -> None:
        """Advance every worker's clock by `seconds`."""
        self.now = self.now + seconds

    def backward(
        self, step: int, pieces: Sequence[Timed], forward: float, progress: tuple[list[int], int]
    ) -> None:
        """Schedule gradient `step`, whose pieces become ready after the `forward` share.

        `progress`: the result of `payloads.progress`. No clock moves before a wait for a piece.
        """
        self.advance(step - 1)
        self._todo.append((self._backward, (pieces, forward, progress, self._segment(step))))

    def _backward(
        self,
        pieces: Sequence[Timed],
        forward: float,
        progress: tuple[list[int], int],
        segment: int,
    ) -> None:
        duration, (done, total) = self._legs[segment], progress
        before: Any = self.now
        since, self._pieces = 0.0, pieces
        for far, piece in zip(done, pieces, strict=True):
            share = forward + (1 - forward) * far / total
            piece.done = self.now + duration * share if self._beside == 1 else None
            piece.begins = before, duration * (share - since)
            before, since = piece, share

    def piece(self, piece: Timed) -> None:
        """Let every worker wait for a piece of its gradient."""
        self.now = np.maximum(self.now, self._freed(piece))

    def _freed(self, piece: Any) -> Array:
        """Return when a piece is freed; `piece` may also be that time itself."""
        if isinstance(piece, Timed) and piece.done is None:
            before, work = piece.begins
            piece.done = self._ends(self._freed(before), work)
        done: Array = piece.done if isinstance(piece, Timed) else piece
        return done

    def start(self, handle: Timed, payload: float, after: Timed | None = None) -> None:
        """Begin a collective that all workers have joined, as soon as the links are free.

        `after`: an earlier collective whose result is the workers' payload in this one.
        """
        network = self._traffic[0].network
        joined, ready = self.now if network.staggered else None, self.latest()
        if after is not None and joined is not None:
            joined = np.maximum(joined, after.done[:, None] - after.ahead)
            ready = joined.max(axis=1)
        elif after is not None:
            ready = np.maximum(ready, after.done)
        begins = handle.begins = np.maximum(ready, self._free)
        begun: Any = True if self.deadline == inf else begins <= self.deadline
        kind = str(handle.kind)
        transmission, latency = self._cost(kind, payload, begun)
        if joined is not None:
            joined = np.maximum(joined, self._free[:, None])
            handle.ahead = network.ahead(joined, kind, payload, latency)
        if not self._payloads:
            transmission = transmission + network.settings.setup
        if network.pause < inf:
            idle = np.where(self._free == 0, inf, begins - self._free)
            transmission = transmission + network.waking(kind, payload, idle, latency)
        kind = network.way(kind, payload, None).key
        free: Any = begins + transmission
        done: Any = free + latency
        if begun is not True:
            free, done = np.where(begun, free, self._free), np.where(begun, done, NEVER)
        self._free, handle.done = free, done
        if self._beside > 1:
            ends = np.minimum(done[:, None] - handle.ahead, FAR)
            self._fly(np.minimum(begins[:, None], FAR), ends)
        if kind not in self._begun:  # clocks only rise: if the first never begins, none does
            self._begun[kind] = begun
        self._payloads[kind][round(payload)] += begun

    def _cost(self, kind: str, payload: float, begun: Any) -> tuple[Any, Any]:
        if (kind, payload) in self._costs:
            return self._costs[kind, payload]
        first = self._traffic[0]
        if first.is_constant(kind, payload):
            self._costs[kind, payload] = first.cost(kind, payload)
            return self._costs[kind, payload]
        costs = np.zeros((self._seeds, 2))
        for seed in np.flatnonzero(np.broadcast_to(begun, self._seeds)).tolist():
            costs[seed] = self._traffic[seed].cost(kind, payload)
        return costs[:, 0], costs[:, 1]

    def meet(self, handle: Timed, payload: float, step: int) -> None:
        """Let all workers join a collective and wait for it."""
        self.start(handle, payload)
        self.wait(handle, step)

    def wait(self, handle: Timed, step: int, used: bool = True) -> None:
        """Let every worker wait for a collective; `used`: count the result's staleness."""
        before = self.now
        self._block_all(handle, step)
        if step >= self.limit:
            self._last.append((before, handle.begins[:, None], self.now))
        if used:
            in_time: Any = self._workers
            if self.deadline < inf:
                in_time = (self.now <= self.deadline).sum(axis=1)
            self.staleness[step - handle.step] += in_time

    def _block_all(self, handle: Timed, step: int) -> None:
        """Wait until `done`: up to `begins` for other workers, then for the network."""
        begins, done = handle.begins[:, None], handle.done[:, None] - handle.ahead
        now, blocked = self.now, None
        running: Any = True
        if self.deadline < inf:
            running, late = now < NEVER, done > self.deadline
            blocked, done = late & (done > now), np.where(late, self._end, done)
        done = np.maximum(now, done)
        begins = np.minimum(np.maximum(begins, now), done)
        np.add(self.waited, begins - now, out=self.waited, where=running)
        np.add(self.communicated, done - begins, out=self.communicated, where=running)
        if self._spans is not None:
            self._record(handle, now[0], begins[0], done[0], step)
        self.now = done if blocked is None else np.where(blocked, NEVER, done)

    def _record(self, handle: Timed, now: Array, begins: Array, done: Array, step: int) -> None:
        """Store spans of the first seed's timeline while there is room."""
        assert self._spans is not None
        done = np.broadcast_to(done, now.shape)
        blocked = (done > now) & (now < NEVER)
        for rank in np.flatnonzero(blocked).tolist():
            times = self._since[rank], now[rank], begins[rank], done[rank]
            self._spans.add(rank, int(Kind.COMPUTE), *times, step)
        self._since = np.where(blocked, done, self._since)

    def ask(self, step: int) -> None:
        """Let every worker wait until the last one polls whether a collective is done."""
        poll = Timed("question", None, step)
        poll.begins = poll.done = self.latest()
        network = self._traffic[0].network
        if network.staggered:
            ahead = network.ahead_of_poll(self.now)
            poll.ahead = np.where(poll.done[:, None] <= self.deadline, ahead, 0.0)
        self.wait(poll, step, used=False)

    def totals(self) -> tuple[Array, Array]:
        """Return the bytes so far over all links, and those charged as egress, (seeds,).

        `finish` counts the bytes at each seed's last point before the deadline.
        """
        moved, charged = np.zeros(self._seeds), np.zeros(self._seeds)
        in_time = self.latest() <= self.deadline
        for kind in self._payloads:
            volume, egress = self._traffic[0].volumes(kind)
            payload, before = self._moved(kind), self._counted.get(kind, -1)
            self._counted[kind] = np.where(in_time & self._begun[kind], payload, before)
            moved += payload.astype(float) * volume
            charged += payload.astype(float) * egress
        return np.rint(moved), charged

    def _moved(self, kind: str) -> Array:
        """Return the bytes of all payloads of one kind of collective, exact, (seeds,)."""
        total = sum(size * np.asarray(n, object) for size, n in self._payloads[kind].items())
        return np.broadcast_to(np.asarray(total, object), self._seeds)

    def finish(self, ends: Array, step: int) -> None:
        """Cut times off at each seed's end, `ends` (seeds,), and count its bytes."""
        end = ends[:, None]
        for before, begins, done in self._last:
            until = np.where(done > self.deadline, self._end, done)  # as `_block_all` has counted
            beyond = np.where(until > before, np.maximum(until - end, 0.0), 0.0)
            network = np.clip(until - np.maximum(begins, before), 0.0, beyond)
            self.communicated -= network
            self.waited -= beyond - network
        self.now = np.minimum(self.now, end)
        if self._spans is not None:
            for rank, (since, now) in enumerate(zip(self._since, self.now[0], strict=True)):
                self._spans.add(rank, int(Kind.COMPUTE), since, now, now, now, step)
        for kind, moved in self._counted.items():
            for seed in np.flatnonzero(moved >= 0).tolist():  # an empty payload uses the links, too
                self._traffic[seed].add(kind, moved[seed])
        for traffic in self._traffic:
            traffic.totals()  # as at the last point; later bytes count if the end is a point
        for kind in self._payloads:
            rest = self._moved(kind) - np.maximum(self._counted.get(kind, 0), 0)
            for seed in np.flatnonzero(np.broadcast_to(self._begun[kind], self._seeds)).tolist():
                self._traffic[seed].add(kind, rest[seed])
