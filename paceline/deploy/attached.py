"""Run a program on the gradients of the user's loop: the interpreter `attached`.

A program is suspended only where it awaits a gradient. The model then has the parameters for that
gradient, and the loop's next `Session.step` resumes the program. All other effects block, as in
`validate`, on the same collectives and messages, over the real network.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paceline.simulator.engines import payloads
from paceline.simulator.errors import ProgramError, RunError
from paceline.simulator.programs.effects import Handle, Payload, Phase, Pieces, Vector
from paceline.simulator.programs.pieces.transform import Proximal
from paceline.validate.host.device import fetch
from paceline.validate.training.collectives import RealCollective
from paceline.validate.training.node import TensorNode

from .checkpoint import Freezer
from .live import LiveParameters, ShardedParameters
from .local_steps import Reached, Shift, UserRate, UserSteps
from .transport import Transport


class Gradient:
    """A gradient of the user's loop, which a program awaits."""

    def __await__(self) -> Generator["Gradient", None, None]:
        yield self


GRADIENT = Gradient()


class LateLoss:
    """A loss on its way from a GPU: whoever reads its number waits for it."""

    def __init__(self, loss: Tensor) -> None:
        self._arrived = fetch(loss)

    def __float__(self) -> float:
        return float(self._arrived())

    def __radd__(self, other: float) -> float:
        return other + float(self)


class Period:
    """A communication period that may change during use.

    `now`: the new period in steps, if set. A local phase under way ends at its first step that
    completes the new period.
    """

    def __init__(self, planned: Any) -> None:
        self._planned = planned
        self.now: int | None = None

    def __call__(self, step: int) -> float:
        """Return the period at a step."""
        return float(self._planned(step)) if self.now is None else self.now


class UserLoop(NamedTuple):
    """The parts of the user's loop: parameters, optimizer, rate and period.

    `local`: the user's optimizer as the program's transform; None if the program makes the step
    itself, with `decay` as weight decay.
    """

    live: LiveParameters
    local: UserSteps | None
    rate: UserRate
    decay: float
    period: Period | None


class AttachedNode(TensorNode):
    """A user's process as its program sees it.

    `step`: number of gradients from the loop; `loss`: the last loss; `waited`: total seconds of
    waiting. `plain`: a phase's displacement is only averaged, and subtracted from the phase's
    start. `unread`: a gradient with a loss is only passed to the optimizer, so None stands for one
    that stays in place.
    """

    def __init__(self, loop: UserLoop, transport: Transport, seed: int) -> None:
        self.rank, self.workers = transport.rank, transport.workers
        self.server, self.apply_seconds = self.workers, 0.0
        self.samples, self.pace = None, 1.0
        self.live, self._local, self.rate, self._decay, self.period = loop
        self.start = start = loop.live.start
        self.parameters, self.bytes_per_parameter = len(start), start.element_size()
        self.tensors = ()
        self.seed(seed)
        self.transport = transport
        self.step, self.waited, self.origin = 0, 0.0, time.monotonic()
        self.loss: Any = None
        self.plain = self.unread = False
        self.watcher: ThreadPoolExecutor | None = None  # executor that times collectives
        self.took: list[float] = []  # seconds of collectives that the program has waited for
        self._timed: dict[Any, tuple[float, Future[float]]] = {}
        self.channels: list[Any] = []
        self._bases: dict[Handle, Tensor] = {}  # bases of shifts whose mean is under way
        self._landed: Tensor | None = None  # the last mean of parameters
        self._made: list[np.random.Generator] = []
        self._phase: tuple[int, int] | None = None  # the local phase's next step, and steps done
        self._names: tuple[str, ...] = ()
        self._frame: Any = None
        self._hidden = False  # whether gradients are computed outside the saved state
        self.saved: dict[str, Any] | None = None

    # Computing

    async def _compute(self, x: Vector) -> None:
        if self._local is None:
            self.live.go_to(x)
        else:
            self.live.take(x)
        await GRADIENT

    async def gradient(self, x: Vector) -> Vector:
        """Let the user's loop compute a gradient at `x`."""
        await self._compute(x)
        g = self.live.gradient()
        return g.add_(x, alpha=self._decay) if self._decay else g

    async def loss_and_gradient(self, x: Vector) -> tuple[Any, Vector]:
        """Return the loss from the loop, a `LateLoss` if it is on a GPU, and its gradient."""
        gradient = await (self._compute(x) if self.unread else self.gradient(x))
        if self.loss is None:
            raise ProgramError("the program needs the loss: call session.step(loss)")
        late = isinstance(self.loss, Tensor) and self.loss.device.type != "cpu"
        return (LateLoss if late else float)(self.loss), gradient

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Let the loop compute a gradient; return its pieces, which serve as handles."""
        return self.cut(await self.gradient(x), pieces)

    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into pieces; a shard where the whole vector would be cut."""
        if not isinstance(self.live, ShardedParameters):
            return super().cut(vector, pieces)
        whole = sum(one.numel() for one in self.live.parameters)
        ends = self.live.ends(payloads.splits(pieces, whole))
        parts: Sequence[Vector] = vector.tensor_split(ends)[::-1]
        return parts

    def leap(self, transform: Any) -> Any:
        """Return the effect that runs a local phase in place with the user's optimizer."""
        inner = transform.inner if isinstance(transform, Proximal) else transform
        if inner is self._local:
            return self._leap
        self._hidden = True
        return None

    async def _leap(self, x: Vector, state: Any, k: int, phase: Phase) -> tuple[Vector, Any, int]:
        _, transform, tau = phase
        done, local = 0, self._local
        assert local is not None
        if self.saved is not None:
            (k, done), x = self.saved["phase"], self.saved["x"]
        vector = self.live.enter(x, free=x is self._landed and transform is local)
        self._landed = None
        while True:
            self._phase = k, done
            await GRADIENT
            self._phase = None
            self.rate.note(k)
            if isinstance(transform, Proximal):
                pull = transform.mu * local.scale * (vector - state[0])
                self.live.write(self.live.gradient() + pull)
            local.begun = True
            local.apply()
            done += 1
            if done >= tau(k):
                x = self.live.give()
                return x.as_subclass(Reached) if self.plain else x, state, k
            k += 1

    # Collectives

    def start_mean(self, value: Payload) -> Handle:
        """Start an all-reduce; a `Shift` sends the vector at which it ends."""
        shift = isinstance(value, Shift)
        handle = self.transport.collectives.mean(value.end if shift else value, self.step)
        if shift:
            self._bases[handle] = value.base
        return self._time(handle)

    def start_gather(self, value: Payload) -> Handle:
        """Start an all-gather."""
        return self._time(self.transport.collectives.gather(value, self.step))

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Start an all-reduce on a thread, once the first one has arrived."""
        self._timed.pop(handle, None)
        return self._time(self.transport.collectives.mean_after(handle, value, self.step))

    def _time(self, handle: RealCollective) -> RealCollective:
        """Time a collective from now on in a thread, because the program may wait later."""
        if self.watcher is not None:

            def end() -> float:
                handle.arrived()
                return time.monotonic()

            self._timed[handle] = time.monotonic(), self.watcher.submit(end)
        return handle

    async def wait(self, handle: Handle) -> Any:
        """Wait until a result has arrived."""
        if not isinstance(handle, RealCollective):
            return handle  # a piece of a gradient
        result, base = self.land(handle), self._bases.pop(handle, None)
        if base is not None:
            self._landed, result = result, Shift(base, result)
        return result

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting. Raises RunError if a process is gone."""
        begin = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # of gloo
            raise RunError(self.transport.lost()) from error
        finally:
            self.waited += time.monotonic() - begin

    def land(self, handle: RealCollective) -> Any:
        """Wait until a collective has arrived; return its result."""
        if not handle.settled:
            team = self.transport.collectives
            with self.waiting():
                team.land(handle)
                team.settle(handle)
            if handle in self._timed:
                since, end = self._timed.pop(handle)
                self.took.append(end.result() - since)
        return handle.result

    async def finished(self, handle: Handle) -> bool:
        """Poll whether a mean is finished on all ranks."""
        team = self.transport.collectives
        with self.waiting():
            return team.answer(team.question(handle, self.step))

    # Loops that are saved, or end, after one step need equal numbers of means under way.
    arrived = finished

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ProgramError("the program sends messages, but a session has only means and gathers")

    send = receive = request = receive_before = timer = _refuse

    # Time, and the observer, which is the user

    def work(self, seconds: float) -> None:
        """Do nothing, because a codec takes real time."""

    def clock(self) -> float:
        """Return seconds since the training began, without pauses between sessions."""
        return time.monotonic() - self.origin

    def mark(self, x: Vector) -> None:
        """Ignore a mark."""

    def count(self, gradients: int) -> None:
        """Ignore a count."""

    # State

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Make the program's next generator, whose state is part of the program's."""
        self._made.append(super().generator(shared=shared))
        return self._made[-1]

    def resumed(self, **state: Any) -> tuple[Any, ...]:
        """Return the state of a program's loop, from the checkpoint if there is one.

        From now on only the length, type and device of the initial parameters matter.
        """
        self._frame, self._names = sys._getframe(1), tuple(state)
        self.start = self.live.start = self.start.new_zeros(1).expand(len(self.start))
        saved = self.saved
        if saved is None:
            return tuple(state.values())
        freezer = self._freezer(saved["x"])
        for generator, frozen in zip(self._made, saved["generators"], strict=True):
            generator.bit_generator.state = freezer.thaw(frozen)
        for channel, frozen in zip(self.channels, saved["channels"], strict=True):
            vars(channel).update(freezer.thaw(frozen))
        loop = saved["loop"]
        return tuple(freezer.thaw(loop[name], value) for name, value in state.items())

    def _freezer(self, x: Tensor) -> Freezer:
        return Freezer(x, self._made, self.land)

    def state(self) -> dict[str, Any]:
        """Return the state of a suspended program. Completes collectives under way."""
        if self._frame is None or self._hidden:
            raise ProgramError(
                "the program's state is unknown: call `me.resumed` before its loop, and compute "
                "gradients there, or in `descend` with the transform of its parameters "
                "(docs/how-to/add-an-algorithm.md)"
            )
        freeze, variables = self._freezer(self.live.now()).freeze, self._frame.f_locals
        excluded = "_me", "_codec", "_xp"
        return {
            "x": self.live.at,
            "phase": self._phase,
            "period": self.period and self.period.now,
            "loop": {name: freeze(variables[name]) for name in self._names},
            "channels": [
                freeze({key: value for key, value in vars(channel).items() if key not in excluded})
                for channel in self.channels
            ],
            "generators": [freeze(generator.bit_generator.state) for generator in self._made],
            "rates": [self.rate.last, self.rate.steps, list(map(float, self.rate.rates))],
            "step": self.step,
            "clock": self.clock(),
            "waited": self.waited,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Set the state with which a new program begins; this consumes `saved`."""
        self.saved = saved
        if self.period is not None:
            self.period.now = saved["period"]
        self.rate.last, self.rate.steps, self.rate.rates = saved["rates"]
        self.step, self.waited = saved["step"], saved["waited"]
        self.origin = time.monotonic() - saved["clock"]
