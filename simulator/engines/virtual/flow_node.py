"""A node whose transfers go over lines that others use, too."""

import types
from collections import deque
from collections.abc import Generator, Sequence
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

from paceline.simulator.engines.collective import Collective, GradientPiece
from paceline.simulator.engines.virtual.crashing_node import CrashingNode
from paceline.simulator.programs.effects import Handle, Payload, Vector

if TYPE_CHECKING:
    from paceline.simulator.engines.virtual.flows import FlowSimulation


class Connection:
    """Messages from one node to another, in order. For the attributes see `Route`."""

    arrives = None
    whole_transit = None

    def __init__(self, node: "FlowNode") -> None:
        self.node = node
        self.version = self.flying = 0
        self.last = 0.0
        self.under_way: deque[InFlight] = deque()


class InFlight:
    """A message under way. `came`: when it arrived, None until then; `posted`: how often."""

    __slots__ = ("came", "posted", "route", "sender", "sent", "size", "value")

    def __init__(
        self, sender: "FlowNode", route: Connection, sent: float, size: float, value: Payload
    ) -> None:
        self.sender, self.route, self.sent, self.size = sender, route, sent, size
        self.value = value
        self.came: float | None = None
        self.posted = 0


class FlowNode(CrashingNode):
    """A node whose transfers share lines. `device`: the line it computes on, if it shares one."""

    __slots__ = ("_computing", "device")
    _run: "FlowSimulation"
    _routes: list[Any]

    def __init__(self, run: Any, rank: int) -> None:
        super().__init__(run, rank)
        self.device: int | None = run.device(rank)
        self._computing = False

    def _route(self, to: int) -> Any:
        run = self._run
        if not run.flows:
            return super()._route(to)
        self._routes[to] = Connection(run.nodes[to])
        return self._routes[to]

    def send(self, to: int, value: Payload) -> None:
        """Hand a message to the fabric."""
        run = self._run
        if not run.flows:
            super().send(to, value)
        elif self.gone is None:
            self.shared = self.computed
            route = self._routes[to] or self._route(to)
            route.version = self.updates
            letter = InFlight(self, route, self.now, run.meter(value), value)
            route.under_way.append(letter)
            if self._spans is not None:
                self._spans.sent(self.rank, to, self.now)
            run.post(letter, self.now)

    @property
    def meeting(self) -> Collective | None:
        """The collective under way that it waits for, if any."""
        handle = self._handle
        return handle if isinstance(handle, Collective) and not handle.missing else None

    def arrived(self, at: float) -> None:
        """What it sent last has arrived."""
        self._sent_until = at

    async def finished(self, handle: Handle) -> bool:
        """Ask as all others do; the answer is known when the run has come to that time."""
        question = handle.question(self.rank)
        question.join(self.rank, self.step, 0.0)
        question.come(self.rank, self.now)
        if not question.missing:
            self._run.answer_at(question.begins, handle, question)
        return bool(await self.wait(question))

    async def _step(self) -> float:
        """Count one step; compute it, where the device is shared beside others."""
        if self.device is None:
            return await super()._step()
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        return await self._beside_others(next(self._durations))

    @types.coroutine
    def _beside_others(self, work: float) -> Generator[None, float, float]:
        """Compute on a shared device; return how long that took."""
        self._run.compute(self, work)
        self._computing = True
        done = yield
        self._computing = False
        took = done - self.now
        while self.now + took < done:  # by rounding; the fabric knows no past
            took = nextafter(took, inf)
        return took

    def finish(self, end: float) -> None:
        """Account for the time up to `end`; on a shared device it computes to the last."""
        if self._computing and self.now < end < inf:
            self.now = end
        super().finish(end)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """As everywhere; but a shared device frees all pieces at the end."""
        started = await super().start_backward(x, pieces)
        if self.device is None or started[0].done == inf:
            return started
        self.now = max(self._run.fabric.clock, *(piece.done for piece in started))
        return [GradientPiece(piece.result, self.now) for piece in started]
