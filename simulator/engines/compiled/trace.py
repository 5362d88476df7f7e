"""Trace the programs of a parameter server and of its workers once, for all workers and seeds.

A server's program does not depend on who sent a gradient; only the addresses of its answers do. So
its coroutine runs with stand-ins for senders (`Sender`), and its effects are recorded as
operations. A program that looks at a stand-in, or at anything that differs between workers or
seeds, raises Unsupported.
"""

import struct
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from enum import IntEnum
from typing import Any, cast

import numpy as np

from ...objectives.objective import Nothing
from ...programs.effects import ANY, NOTHING, Encoded, Node, Payload, Vector
from ...programs.pieces.gate import Anyone, Gate
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


# `slot`: index under which the loop keeps the sender of an arrival until it is answered.
OPERATION = np.dtype([("code", "i4"), ("slot", "i4"), ("seconds", "f8")])


class Code(IntEnum):
    """Operations. Never renumber them: compiled code that is cached would not notice."""

    RECEIVE = 0
    WORK = 1
    MARK = 2
    SEND = 3
    GATE = 4
    DISCARD = 5


pack = struct.Struct("=iid").pack  # an operation
MARKED, DISCARDED = pack(Code.MARK, 0, 0.0), pack(Code.DISCARD, 0, 0.0)


class Sender(Unknown, Anyone):
    """Stand-in for a sender, which may be answered once. `slot`: its index in the loop."""

    __slots__ = ("slot", "trace")
    __init__ = object.__init__
    why = "its program looks at who sent a gradient"
    trace: "ServerTrace"
    slot: int

    def come_to(self, gate: Gate) -> Iterable[Anyone]:
        """Record that the loop asks the gate; return the stand-in for all whom it lets go."""
        trace, slot = self.trace, self.slot
        if (trace.gate is not gate and trace.gate is not None) or slot < 0 or trace._gated:
            trace._refuse()
        trace.gate = gate
        trace._gated = pack(Code.GATE, slot, 0.0)
        trace._note(trace._gated)
        trace._slots.append(slot)
        self.slot = ANSWERED
        released = trace._released = Sender()
        released.slot = RELEASED
        return (released,)


ANSWERED = -1
RELEASED = -2  # the slot of the stand-in for all whom a gate lets go


class ServerTrace(TracingNode):
    """The server's trace. `gate`: the gate that it uses, or None."""

    __slots__ = (
        "_arrivals", "_gated", "_note", "_operations", "_payload", "_released",
        "_slots", "gate",
    )  # fmt: skip
    does = "its server does more than answer the gradients that come"

    def __init__(self, scenario: Scenario, begin: Begin, payload: Payload) -> None:
        super().__init__(scenario, Nothing.start)
        self.rank = self.server
        self._payload = payload
        self._operations: list[bytes] = []
        self._note = self._operations.append
        self._arrivals = 0  # still to be traced
        self._slots = list(range(self.workers))
        self.gate: Gate | None = None
        self._gated: bytes | None = None  # the last operation, while a sender is at the gate
        self._released = Sender()
        self._coroutine = begin(self)

    def write(self, arrivals: int) -> np.ndarray:
        """Return the operations of the next `arrivals` arrivals, up to the following receive."""
        self._arrivals = arrivals
        self._operations.clear()
        self._resume()
        return np.frombuffer(b"".join(self._operations), OPERATION)

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, None, tuple[Any, Payload]]:
        """Record that the server receives the next message; return a stand-in for its sender."""
        if source != ANY:
            self._refuse()
        if self._gated is not None:  # those whom the gate let go were answered, and no more done
            if self._released.slot != ANSWERED or self._operations[-1] is not self._gated:
                self._refuse()
            self._gated = None
        if not self._arrivals:
            yield
        self._arrivals -= 1
        if not self._slots:
            raise Unsupported("its workers all wait")
        slot = self._slots.pop()
        sender = Sender()
        sender.trace, sender.slot = self, slot
        self._note(pack(Code.RECEIVE, slot, 0.0))
        return sender, self._payload

    def work(self, seconds: float) -> None:
        """Record it."""
        if seconds:
            self._note(pack(Code.WORK, 0, seconds))

    def mark(self, x: Vector) -> None:
        """Record it."""
        self._note(MARKED)

    def discard(self) -> None:
        """Record it."""
        self._note(DISCARDED)

    def send(self, to: Any, value: Payload) -> None:
        """Record the answer to a sender, once."""
        if type(to) is not Sender or type(value) is not complex:
            self._refuse()
        slot = to.slot
        if slot >= 0:
            self._note(pack(Code.SEND, slot, 0.0))
            self._slots.append(slot)
        elif slot == ANSWERED or self._operations[-1] is not self._gated:
            self._refuse()
        to.slot = ANSWERED
