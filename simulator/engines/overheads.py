"""Overheads of effects on a real node, added as work around them in every engine."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import numpy as np

from ..network import tcp
from ..network.mean_cost import word_cost
from ..programs.effects import Handle, Node, Payload, Pieces, Vector
from ..scenario.overhead import CodecCost, Overhead
from ..scenario.scenario import Scenario


class EffectCosts:
    """Seconds of a node's time per effect, from a scenario's [[overhead]]."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.overhead: Overhead = tcp.costs(scenario)
        self._coding: dict[tuple[str, float], tuple[float, float]] = {}

    @cached_property
    def agree(self) -> float:
        """Seconds of one poll of all workers, including its notifications."""
        fixed, words = self.overhead.agree, self.overhead.agree_latencies
        return fixed + words * word_cost(self._scenario) if words else fixed

    @cached_property
    def _codecs(self) -> dict[str, list[CodecCost]]:
        by_kind = defaultdict[str, list[CodecCost]](list)
        for cost in sorted(self._scenario.codec, key=attrgetter("size")):
            by_kind[cost.kind].append(cost)
        return by_kind

    def on(self, node: Node) -> Node:
        """Return the node, wrapped if its effects have overheads."""
        wrapped = self.overhead.owns or self._codecs
        return cast(Node, NodeWithOverheads(node, self)) if wrapped else node

    def coding(self, kind: str, size: float) -> tuple[float, float]:
        """Return the seconds to compress and decompress a vector of `size` bytes.

        Between measured sizes they are interpolated; beyond the largest they grow with the size.
        """
        if not (costs := self._codecs.get(kind)):
            return 0.0, 0.0
        if (kind, size) not in self._coding:
            sizes, *columns = zip(*((e.size, e.compress, e.decompress) for e in costs), strict=True)
            scale = max(1.0, size / sizes[-1])
            compress, decompress = (scale * float(np.interp(size, sizes, y)) for y in columns)
            self._coding[kind, size] = compress, decompress
        return self._coding[kind, size]


class NodeWithOverheads:
    """A wrapper that adds the time of effects, which the wrapped node carries out.

    The overhead of a step is part of its duration. The overhead of starting a collective comes
    before it, all others after the effect: sending does not delay the message.
    """

    def __init__(self, node: Any, costs: EffectCosts) -> None:
        self._node, self._costs, self._effects = node, costs.overhead, costs
        self._pieces: Sequence[Handle] = ()
        self.gradient, self.mark = node.gradient, node.mark  # looked up at every step
        for name in ("start_mean", "start_gather", "start_mean_after"):
            setattr(self, name, self._issuing(getattr(node, name)))
        for name in ("receive", "receive_before", "request"):
            setattr(self, name, self._receiving(getattr(node, name)))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped node, such as its rank."""
        return getattr(self._node, name)

    def _issuing(self, start: Callable[..., Handle]) -> Callable[..., Handle]:
        def issue(*arguments: Any) -> Handle:
            self._node.spend(self._costs.issue)
            return start(*arguments)

        return issue

    def _receiving(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        async def receive(*arguments: Any) -> Any:
            message = await effect(*arguments)
            if message is not None:
                self._node.spend(self._costs.receive)
            return message

        return receive

    async def mean(self, value: Payload) -> Any:
        """Average vectors, and wait for the result."""
        return await self.wait(self.start_mean(value))

    async def wait(self, handle: Handle) -> Any:
        """Wait; a collective's result takes time to collect, a gradient's piece does not."""
        result = await self._node.wait(handle)
        if not any(handle is piece for piece in self._pieces):
            self._node.spend(self._costs.collect)
        return result

    async def finished(self, handle: Handle) -> bool:
        """Poll all workers, and add the time of their agreement."""
        answer: bool = await self._node.finished(handle)
        self._node.spend(self._effects.agree)
        return answer

    def coding(self, kind: str, share: float) -> tuple[float, float]:
        """Return a codec's seconds from the overhead profile."""
        node = self._node
        return self._effects.coding(kind, share * node.parameters * node.bytes_per_parameter)

    def send(self, to: int, value: Payload) -> None:
        """Send, and add the time of sending, which does not delay the message."""
        self._node.send(to, value)
        self._node.spend(self._costs.send)

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Begin a gradient, and store its pieces: waiting for them has no overhead."""
        self._pieces = await self._node.start_backward(x, pieces)
        return self._pieces
