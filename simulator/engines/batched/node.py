"""Run a program once for all workers of all seeds, as one node (`BatchedNode`).

Values are computed at once; effects that take time are recorded, and `clocks` times them later.
"""

import types
from collections.abc import Callable, Generator, Sequence
from math import nan
from typing import Any, cast

import numpy as np

from ...distributions.distribution import Array
from ...objectives.objective import GradientSource
from ...programs.effects import Encoded, Handle, Node, Payload, Phase, Pieces, Vector
from ...programs.pieces.transform import Identity, Momentum, Nesterov
from .. import payloads
from ..collective import TIME_TOLERANCE
from ..node import introduce
from . import codecs
from .arrays import PerWorker, Stack, Unsupported, array
from .clocks import Clocks, Timed
from .repeats import Repeats

LINEAR = Identity, Momentum, Nesterov  # transforms that keep steps normal
LONGEST = 1024  # most steps in one draw


class SeedsDiffer(BaseException):
    """Raised when a program reads a value that differs between seeds.

    Not an Exception, so that no program catches it.
    """


class BatchedNode(Node):
    """All workers of all seeds as one node; its `Batch` evaluates marks when due.

    `seeds`: number of seeds; `step`: gradients that each worker has computed; `period`: steps
    between the last two collectives; `updates`: number of marks. Raises Unsupported when a
    program's effects differ between workers.
    """

    __slots__ = (
        "_alike", "_clocks", "_generators", "_gradient", "_jump", "_loss_and_gradient", "_met_at",
        "_pause_at", "_run", "mark_at", "meter", "period", "seeds", "step", "updates",
    )  # fmt: skip

    def __init__(self, run: Any, start: Vector, gradients: GradientSource) -> None:
        timeless = isinstance(start, complex)
        stacked = start if timeless else Stack(start.reshape(-1, 1, start.shape[-1]))
        introduce(self, run.scenario, stacked)
        self.meter = payloads.Meter(run.scenario.model.bytes, 1 if timeless else start.shape[-1])
        self.seeds = len(run.seeds)
        self._gradient, self._loss_and_gradient = gradients.gradient, gradients.loss_and_gradient
        self._run, self._clocks = run, cast(Clocks, run.clocks)
        self.mark_at = run.observers[0].first
        self._jump: Any = (
            getattr(gradients, "jump", None) if run.scenario.run.sampling == "aggregate" else None
        )
        self.step = self.updates = self._met_at = self._pause_at = 0
        self.period = nan
        self._alike = isinstance(self._clocks, Repeats)
        self._generators = {True: 0, False: 0}

    # Effects that the engine supports

    async def gradient(self, x: Vector) -> Vector:
        """Compute every worker's next gradient."""
        step = self.step
        if step >= self._pause_at:
            await self._pause()
        self.step = step + 1
        compute = self._gradient
        return compute(x)

    def leap(self, transform: Any) -> Any:
        """Return an effect that takes many local steps at once, or None."""
        if type(self.start) is complex:
            return self._stride
        return None if self._jump is None or type(transform) not in LINEAR else self._leap

    async def _stride(self, x: Vector, state: Any, k: int, phase: Phase) -> tuple[Vector, Any, int]:
        """Take local steps without vectors, up to each mark and pause."""
        first, ends = k, False
        while True:
            if self.step >= self._pause_at:
                await self._pause()
            begin, most = k, 1 if self._alike else min(self.mark_at, self._pause_at) - self.step
            while k < begin + max(most, 1) and not ends:
                ends = k - first + 1 >= phase.until(k)
                k += 1
            self.step += k - begin
            self.updates += k - begin - 1
            if ends:
                return x, state, k - 1
            self.mark(x)

    async def _leap(self, x: Vector, state: Any, k: int, phase: Phase) -> tuple[Vector, Any, int]:
        """Take local steps, with one draw between two evaluations."""
        lr, transform, tau = phase
        first, ends = k, False
        while True:
            if self.step >= self._pause_at:
                await self._pause()
            until = k + min(LONGEST, self.mark_at - self.step, self._clocks.limit - self.step)
            begin = k
            while k < until and not ends:
                ends = k - first + 1 >= tau(k)
                k += 1
            rates = [*map(lr, range(begin, k))]
            if len(rates) == 1:  # the same draws as in other programs
                direction, state = transform.update(self._gradient(x), state, x)
                x = x - rates[0] * direction
            else:
                x, state = self._jump(x, state, transform, rates)
            self.step += len(rates)
            self.updates += len(rates) - 1
            if ends:
                return x, state, k - 1
            self.mark(x)

    async def loss_and_gradient(self, x: Vector) -> tuple[Any, Vector]:
        """Compute every worker's next loss and gradient."""
        self._demand_one_seed()
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        return self._loss_and_gradient(x)

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Compute every worker's next gradient, in pieces."""
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        parts = self.cut(self._gradient(x), pieces)
        handles = [Timed(None, part, self.step) for part in parts]
        share = self._run.scenario.cluster.unfreed_share
        self._clocks.backward(self.step, handles, share, payloads.progress(pieces))
        self._plan()
        return handles

    @types.coroutine
    def _pause(self) -> Generator[None, None, None]:
        clocks = self._clocks
        clocks.advance(self.step)
        if clocks.due or self.step >= clocks.limit:
            clocks.flush(self.step)
        if self.step >= clocks.limit or clocks.over:
            yield  # never ends
        self._plan()

    def _plan(self) -> None:
        clocks = self._clocks
        self._pause_at = min(self.step + (0 if clocks.due else clocks.longest), clocks.limit)

    def _record(self, replay: Callable[..., None], *arguments: Any) -> None:
        self._clocks.record(self.step, replay, *arguments)
        self._plan()

    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector along its last axis; the last entries come first."""
        if type(vector) is Stack:
            places = payloads.splits(pieces, vector.of.shape[-1])
            return list(map(Stack, np.array_split(vector.of, places, axis=-1)))[::-1]
        return payloads.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join pieces; a piece may have one row for all workers, or a row per worker."""
        if type(pieces[0]) is not Stack:
            return payloads.join(pieces)
        parts = [array(piece) for piece in pieces[::-1]]
        lead = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
        rows = [np.broadcast_to(part, (*lead, part.shape[-1])) for part in parts]
        return Stack(np.concatenate(rows, axis=-1))

    async def mean(self, value: Payload) -> Any:
        """Join the next collective, a mean, and wait for it."""
        handle = self._next("mean", self._mean(value))
        self._record(self._clocks.meet, handle, self._size(value), self.step)
        return handle.result

    def start_mean(self, value: Payload) -> Handle:
        """Join the next collective, a mean."""
        return self._start("mean", value, self._mean(value))

    def start_gather(self, value: Payload) -> Handle:
        """Join the next collective, a gather."""
        if type(self.start) is not Stack:
            return self._start("gather", value, (value,) * self.workers)
        return self._start("gather", value, codecs.by_worker(value, self.workers))

    def _start(self, kind: str, value: Payload, result: Payload) -> Handle:
        handle = self._next(kind, result)
        self._record(self._clocks.start, handle, self._size(value))
        return handle

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Join the next mean with `value(result)`, as soon as `handle` is done."""
        handle.chained = True
        payload = value(handle.result)
        following = self._next("mean", self._mean(payload))
        self._record(self._clocks.start, following, self._size(payload), handle)
        return following

    def _next(self, kind: str, result: Payload) -> Timed:
        if self.step > self._met_at:
            self.period, self._met_at = self.step - self._met_at, self.step
        return Timed(kind, result, self.step)

    async def wait(self, handle: Handle) -> Any:
        """Wait for a collective, or a piece of a gradient."""
        if handle.kind is None:
            self._record(self._clocks.piece, handle)
        else:
            self._record(self._clocks.wait, handle, self.step, not handle.chained)
        return handle.result

    async def finished(self, handle: Handle) -> bool:
        """Return whether `handle` is done when the last worker polls: one answer for all."""
        self._demand_one_seed()
        self._record(self._clocks.ask, self.step)
        self._clocks.flush(self.step)
        polled = self._clocks.latest()[0]
        return bool(handle.done[0] <= polled * (1 + TIME_TOLERANCE))

    def work(self, seconds: float) -> None:
        """Keep the devices busy with work, which delays gradients under way."""
        if seconds:
            self._record(self._clocks.work, seconds)

    def spend(self, seconds: float) -> None:
        """Advance every worker's clock by `seconds`, while its device keeps computing."""
        if seconds:
            self._record(self._clocks.spend, seconds)

    def clock(self) -> Any:
        """Return every worker's clock."""
        self._demand_one_seed()
        self._clocks.flush(self.step)
        return PerWorker(np.minimum(self._clocks.now[0], self._clocks.deadline))

    def arrival(self) -> Any:
        """Return every worker's clock; an average of clocks is the latest one."""
        return PerWorker(self.clock().of, latest=True)

    def mark(self, x: Vector) -> None:
        """Count an update; evaluate the parameters where an evaluation is due."""
        self.updates += 1
        if self.step >= self.mark_at:
            self.mark_at = self._run.evaluate(self, x)
        if self._alike:
            self._repeat(x)

    def _repeat(self, x: Vector) -> None:
        """Repeat the second step for all later ones but the last: only times differ."""
        clocks = cast(Repeats, self._clocks)
        if self.step < 2:
            clocks.flush(self.step)
            return
        self._alike = False
        if clocks.learn(self.step):
            while self.step < clocks.limit - 1 and not clocks.over:
                steps = min(self.mark_at, clocks.limit - 1) - self.step
                clocks.repeat(steps)
                self.step = self._met_at = self.step + steps
                self.updates += steps
                if self.step >= self.mark_at:
                    self.mark_at = self._run.evaluate(self, x)
                clocks.flush(self.step)
        self._plan()

    # Effects that the engine refuses

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Unsupported("its workers send each other messages")

    send = receive = receive_before = request = timer = count = arrived = _refuse

    def generator(self, *, shared: bool = False) -> None:  # type: ignore[override]
        """Return None instead of a generator, which the program may pass on, but not use."""
        self._generators[shared] += 1

    def row_generator(self, *, shared: bool = False) -> codecs.RowGenerator:
        """Return a codec's generator, which draws separately for each worker of each seed."""
        number, ranks = self._generators[shared], range(1 if shared else self.workers)
        self._generators[shared] += 1
        return codecs.RowGenerator(self._run.seeds, ranks, number, shared)

    def _demand_one_seed(self) -> None:
        if self.seeds > 1:
            raise SeedsDiffer

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Raise Unsupported, because the node stands for all ranks."""
        raise Unsupported("its workers do different things")

    # Payloads

    def _mean(self, value: Payload) -> Payload:
        """Average over the workers, summed in rank order as in every engine."""
        if type(value) is Stack:
            return Stack(self.mean_of(value.of))
        if type(value) is PerWorker:
            return float(value.of.max()) if value.latest else payloads.mean(value.of.tolist())
        if isinstance(value, tuple):
            return tuple(map(self._mean, value))
        if type(value) is Encoded and type(self.start) is Stack:
            return codecs.mean(value)
        if type(value) in (int, float):
            return payloads.mean([value] * self.workers)
        if type(self.start) is Stack:
            raise Unsupported("its program creates vectors itself")
        return payloads.mean([value])

    def mean_of(self, vectors: Array) -> Array:
        """Return the average of the workers' vectors, shape (seeds, 1, dimension)."""
        everyone = np.broadcast_to(vectors, (self.seeds, self.workers, vectors.shape[-1]))
        if (
            everyone.shape[-1] == 1
        ):  # NumPy would sum a contiguous axis in pairs, with other rounding
            total: Array = np.add.accumulate(everyone, axis=1)[:, -1:]
        else:
            total = np.add.reduce(everyone, axis=1, keepdims=True)
        return total / self.workers

    def _size(self, value: Payload) -> float:
        """Return the bytes of one worker's payload."""
        if value is self.samples and value is not None:
            return self.meter(0.0)
        if type(value) is Stack:
            return self.meter(value.of[(0,) * (value.of.ndim - 1)])
        if type(value) is PerWorker:
            return self.meter(0.0)
        if isinstance(value, tuple):
            return sum(map(self._size, value))
        return self.meter(value)
