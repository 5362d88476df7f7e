"""A node whose messages go over shared lines, and which may compute on a shared device."""

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
    """Messages from one node to another, in order; attributes as in `MessageRoute`."""

    receiving_nic = None
    whole_transit = None

    def __init__(self, node: "FlowNode") -> None:
        self.node = node
        self.version = self.in_flight = 0
        self.last = 0.0
        self.under_way: deque[InFlight] = deque()


class InFlight:
    """A message in flight. `arrived_at`: None until it arrives; `attempts`: times it was sent;
    `began`: when for the last time.
    """

    __slots__ = ("arrived_at", "attempts", "began", "route", "sender", "sent", "size", "value")

    def __init__(
        self, sender: "FlowNode", route: Connection, sent: float, size: float, value: Payload
    ) -> None:
        self.sender, self.route, self.sent, self.size = sender, route, sent, size
        self.value, self.began = value, sent
        self.arrived_at: float | None = None
        self.attempts = 0


class FlowNode(CrashingNode):
    """A node whose transfers share lines. `device`: the line it computes on, if that is shared."""

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
        """Send a message over the fabric."""
        run = self._run
        if not run.flows:
            super().send(to, value)
        elif self.gone_since is None:
            self.shared = self.computed
            route = self._routes[to] or self._route(to)
            route.version = self.updates
            message = InFlight(self, route, self.now, run.meter(value), value)
            route.under_way.append(message)
            if self._spans is not None:
                self._spans.sent(self.rank, to, self.now)
            run.send_message(message, self.now)

    @property
    def meeting(self) -> Collective | None:
        """The collective in progress that it waits for, if any."""
        handle = self._handle
        return handle if isinstance(handle, Collective) and not handle.missing else None

    def arrived(self, at: float) -> None:
        """Note when a message that this node sent arrives."""
        self._sent_until = at

    async def finished(self, handle: Handle) -> bool:
        """Ask whether `handle` is done, as all workers do; the last one's time decides."""
        question = handle.question(self.rank)
        question.join(self.rank, self.step, 0.0)
        question.arrive(self.rank, self.now)
        if not question.missing:
            self._run.answer_at(question.begins, handle, question)
        return bool(await self.wait(question))

    async def _step(self) -> float:
        """Count one step; return its duration in seconds, beside others on a shared device."""
        if self.device is None:
            return await super()._step()
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        return await self._beside_others(next(self._durations))

    @types.coroutine
    def _beside_others(self, work: float) -> Generator[None, float, float]:
        """Compute `work` seconds on a shared device; return the seconds that it took."""
        self._run.compute(self, work)
        self._computing = True
        done = yield
        self._computing = False
        took = done - self.now
        while self.now + took < done:  # by rounding; the fabric cannot go back
            took = nextafter(took, inf)
        return took

    def finish(self, end: float) -> None:
        """Account for the time up to `end`; on a shared device it computes until then."""
        if self._computing and self.now < end < inf:
            self.now = end
        super().finish(end)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """Start a step; a shared device frees all pieces at its end."""
        started = await super().start_backward(x, pieces)
        if self.device is None or started[0].done == inf:
            return started
        self.now = max(self._run.fabric.clock, *(piece.done for piece in started))
        return [GradientPiece(piece.result, self.now) for piece in started]
