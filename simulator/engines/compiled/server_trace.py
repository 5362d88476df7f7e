"""Trace the operations of a server's program once, for all seeds.

A server's program does not depend on who sent a gradient; only the addresses of its answers do. So
its coroutine runs with stand-ins for senders (`Sender`), and for vectors (`registers`) unless the
run is time-only, and its effects are recorded as operations. A program that looks at a stand-in
raises Unsupported.
"""

import types
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from ...objectives.bound import Nothing
from ...programs.effects import ANY, Payload, Vector
from ...programs.pieces.gate import Anyone, Gate
from ...scenario.scenario import Scenario
from ..unsupported import Unknown, Unsupported
from .registers import Code, Registers, pack
from .worker_trace import Begin, TracingNode

# `slot`: index under which the loop keeps the sender of an arrival until it is answered; in upper
# bits the register of the vector that comes, goes or is marked, if any; or three registers.
OPERATION = np.dtype([("code", "i4"), ("slot", "i4"), ("seconds", "f8")])

_DISCARD = pack(Code.DISCARD, 0, 0.0)


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
        trace.gate, trace._asked = gate, slot
        trace._gated = trace._none.asks[slot]
        trace._note(trace._gated)
        trace._slots.append(slot)
        self.slot = ANSWERED
        released = trace._released = Sender()
        released.slot = RELEASED
        return (released,)


ANSWERED = -1
RELEASED = -2  # the slot of the stand-in for all whom a gate lets go


class ServerTrace(TracingNode):
    """The server's trace. `gate`: the gate that it uses, or None; `registers`: its vectors."""

    __slots__ = (
        "_arrivals", "_asked", "_gated", "_moves", "_new", "_none", "_note", "_operations",
        "_payload", "_plain", "_released", "_seconds", "_slots", "_work", "gate", "registers",
    )  # fmt: skip
    does = "its server does more than answer the gradients that come"

    def __init__(self, scenario: Scenario, begin: Begin, payload: Payload, moves: bool) -> None:
        super().__init__(scenario, Nothing.start)
        self.rank = self.server
        self._payload = payload
        self._operations: list[bytes] = []
        self._note = self._operations.append
        found = self.registers = Registers(self._note, self.workers)
        self._new, self._plain, self._moves = found.new, found.plain, moves
        self._none = found.new()  # the first, number 0, which stands for none without vectors
        if moves:
            self.start = self._none
        self._arrivals = 0  # still to be traced
        self._slots, self._asked = list(range(self.workers)), 0
        self.gate: Gate | None = None
        self._gated: bytes | None = None  # the last operation, while a sender is at the gate
        self._released = Sender()
        self._seconds, self._work = 0.0, b""  # of the last `work`
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
        held = self._new() if self._moves else self._none
        self._note(held.receives[slot])
        return sender, held if self._moves else self._payload

    def work(self, seconds: float) -> None:
        """Record it."""
        if seconds:
            if self._seconds != seconds:
                self._seconds, self._work = seconds, pack(Code.WORK, 0, seconds)
            self._note(self._work)

    def mark(self, x: Vector) -> None:
        """Record it."""
        held = x if type(x) is self._plain else self._held(x) if self._moves else self._none
        self._note(held.mark)

    def _held(self, x: Vector) -> Any:
        """Return a vector's stand-in. Raises Unsupported for what is not the server's own."""
        return x.plain() if type(x) in self.registers.kinds else self._refuse()

    def discard(self) -> None:
        """Record it."""
        self._note(_DISCARD)

    def send(self, to: Any, value: Payload) -> None:
        """Record the answer to a sender, once."""
        if type(to) is not Sender or (type(value) is complex) is self._moves:
            self._refuse()
        held = value
        if type(value) is not self._plain:
            held = self._held(value) if self._moves else self._none
        slot = to.slot
        if slot >= 0:
            self._note(held.sends[slot])
            self._slots.append(slot)
        elif slot == ANSWERED or self._operations[-1] is not self._gated:
            self._refuse()
        else:
            self._gated = self._operations[-1] = held.asks[self._asked]
        to.slot = ANSWERED
