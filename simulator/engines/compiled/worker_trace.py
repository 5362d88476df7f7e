"""Trace the program of a parameter server's workers once, for all workers and seeds.

A program that looks at anything that differs between workers or seeds raises Unsupported.
"""

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, cast

import numpy as np

from ...objectives.bound import Nothing
from ...programs.effects import NOTHING, Encoded, Node, Payload, Vector
from ...scenario.scenario import Scenario
from ..node import RefusingNode
from ..unsupported import Unknown, Unsupported

# A stretch of iterations alike: from iteration `first` on a worker computes `work` seconds beside
# the gradient and sends `size` bytes.
STRETCH = np.dtype([("first", "i8"), ("work", "f8"), ("size", "f8")])

Begin = Callable[[Node], Coroutine[Any, Any, None]]


class TracingNode(RefusingNode):
    """A node with the effects of a parameter server and its workers, and without a clock."""

    __slots__ = ("_coroutine",)
    _coroutine: Coroutine[Any, Any, None]

    def _give_up(self, *_: Any, **__: Any) -> Any:
        raise Unsupported("which gradient comes first decides its values")

    start_backward = receive_before = _give_up

    def clock(self) -> float:
        """Refuse."""
        raise Unsupported("its program reads the clock")

    def _resume(self) -> None:
        try:
            self._coroutine.send(None)
        except StopIteration:
            raise Unsupported("its program ends by itself") from None
        except Exception as error:  # if it is a mistake, the reference engine will say so
            raise Unsupported("its program does what cannot be done for all at once") from error


class WorkerTrace(TracingNode):
    """The trace of every worker, which computes a gradient, compresses it and asks the server.

    `payload`: of its first message; `stretches`: of its iterations before `traced`.
    """

    __slots__ = ("_computed", "_meter", "_more", "_size", "payload", "stretches", "traced")
    does = "its workers do more than send each gradient to the server"

    def __init__(self, scenario: Scenario, begin: Begin, meter: Callable[[Payload], float]) -> None:
        super().__init__(scenario, Nothing.start)
        self.rank = cast(int, Unknown("its program looks at who computes it"))
        self._meter = meter
        self._computed, self._more = False, 0.0
        self.payload: Payload = None
        self.stretches = np.empty(0, STRETCH)
        self.traced = 0
        self._coroutine = begin(self)

    def trace(self, iterations: int) -> None:
        """Trace so many more iterations."""
        found = []
        work, size = self.stretches[-1].tolist()[1:] if self.traced else (None, None)
        for _ in range(iterations):
            self._resume()
            if (self._more, self._size) != (work, size):
                work, size = self._more, self._size
                found.append((self.traced, work, size))
            self._computed, self._more = False, 0.0
            self.traced += 1
        if found:
            self.stretches = np.concatenate([self.stretches, np.array(found, STRETCH)])

    @types.coroutine
    def gradient(self, x: Vector) -> Generator[None, None, Vector]:
        """Record the one gradient of an iteration."""
        if self._computed:
            self._refuse()
        self._computed = True
        return NOTHING
        yield

    def work(self, seconds: float) -> None:
        """Record it: all work of an iteration is done between an answer and the next request."""
        self._more += seconds

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, None, Payload]:
        """Record it, and end the iteration."""
        first = self.payload
        if not self._computed or to != self.server or not _is_vector(value):
            self._refuse()
        if first is not None and getattr(value, "share", 1.0) != getattr(first, "share", 1.0):
            self._refuse()
        self.payload, self._size = first or value, self._meter(value)
        yield
        return NOTHING


def _is_vector(value: Payload) -> bool:
    if isinstance(value, Encoded):
        return value.places is None and all(type(each) is complex for each in value.data)
    return type(value) is complex
