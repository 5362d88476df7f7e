"""What effects cost a real node, as work around them: the same in every interpreter."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.programs.effects import ANY, Handle, Node, Payload, Vector
from paceline.simulator.scenario.overhead import Overhead
from paceline.simulator.scenario.scenario import Scenario


class EffectCosts:
    """Seconds of a node's own time for each effect, by [[overhead]] of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.overhead: Overhead = scenario.costs
        self.agree = self.overhead.agree
        if self.overhead.agree_latencies:
            self.agree += self.overhead.agree_latencies * ClosedForm(scenario).hop

    def on(self, node: Node) -> Node:
        """The node, with its costs if it has any."""
        return Loaded(node, self) if self.overhead.owns else node


class Loaded(Node):
    """A node whose effects cost it time; what they do is left to the node inside."""

    __slots__ = ("_agree", "_costs", "_node", "_pieces")

    def __init__(self, node: Node, costs: EffectCosts) -> None:
        self._node, self._costs, self._agree = node, costs.overhead, costs.agree
        self._pieces: Sequence[Handle] = ()
        self.workers, self.server = node.workers, node.server
        self.start, self.apply_seconds = node.start, node.apply_seconds
        self.parameters, self.bytes_per_parameter = node.parameters, node.bytes_per_parameter

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The node's, where it has one."""
        return self._node.rank

    # Collectives

    def start_mean(self, value: Payload) -> Handle:
        """Start it, at a cost."""
        self._node.work(self._costs.issue)
        return self._node.start_mean(value)

    def start_gather(self, value: Payload) -> Handle:
        """Start it, at a cost."""
        self._node.work(self._costs.issue)
        return self._node.start_gather(value)

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Start it, at a cost."""
        self._node.work(self._costs.issue)
        return self._node.start_mean_after(handle, value)

    async def mean(self, value: Payload) -> Any:
        """Start it, wait, and take it over, each at a cost."""
        self._node.work(self._costs.issue)
        found = await self._node.mean(value)
        self._node.work(self._costs.collect)
        return found

    async def wait(self, handle: Handle) -> Any:
        """Wait; taking a collective's result over has a cost."""
        found = await self._node.wait(handle)
        if not any(handle is each for each in self._pieces):
            self._node.work(self._costs.collect)
        return found

    async def finished(self, handle: Handle) -> bool:
        """Ask everybody, and hear the answers."""
        answer = await self._node.finished(handle)
        self._node.work(self._agree)
        return answer

    # Messages

    def send(self, to: int, value: Payload) -> None:
        """Send, at a cost that does not hold the message back."""
        self._node.send(to, value)
        self._node.work(self._costs.send)

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Take a message over, at a cost."""
        found = await self._node.receive(source)
        self._node.work(self._costs.receive)
        return found

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """Take a message over, if there is one, at a cost."""
        found = await self._node.receive_before(handle, source)
        if found is not None:
            self._node.work(self._costs.receive)
        return found

    async def request(self, to: int, value: Payload) -> Payload:
        """Send, and take the answer over, at a cost; sending is over before the answer is there."""
        answer = await self._node.request(to, value)
        self._node.work(self._costs.receive)
        return answer

    # What costs nothing more

    def gradient(self, x: Vector) -> Awaitable[Vector]:
        """The node's: what a step costs is in its duration."""
        return self._node.gradient(x)

    def loss_and_gradient(self, x: Vector) -> Awaitable[tuple[float, Vector]]:
        """The node's."""
        return self._node.loss_and_gradient(x)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """The node's."""
        self._pieces = await self._node.start_backward(x, pieces)
        return self._pieces

    def cut(self, vector: Vector, pieces: int) -> Sequence[Vector]:
        """The node's."""
        return self._node.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """The node's."""
        return self._node.join(pieces)

    def discard(self) -> None:
        """The node's."""
        self._node.discard()

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """The node's."""
        return self._node.generator(shared=shared)

    def work(self, seconds: float) -> None:
        """The node's."""
        self._node.work(seconds)

    def clock(self) -> float:
        """The node's."""
        return self._node.clock()

    def mark(self, x: Vector) -> None:
        """The node's."""
        self._node.mark(x)
