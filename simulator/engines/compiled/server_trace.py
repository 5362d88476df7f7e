"""Trace the operations of a server's program once, for all seeds.

In a time-only run a server's program does not depend on who sent a gradient; only the addresses of
its answers do. So its coroutine runs with stand-ins for the senders (`Sender`), and its effects are
recorded as operations. A program that looks at a sender raises Unsupported.
"""

import struct
import types
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from paceline.simulator.engines.compiled.worker_trace import Begin, TracingNode
from paceline.simulator.engines.unsupported import Unknown, Unsupported
from paceline.simulator.objectives.bound import Nothing
from paceline.simulator.programs.effects import ANY, Payload, Vector
from paceline.simulator.programs.pieces.gate import Anyone, Gate
from paceline.simulator.scenario.scenario import Scenario

RECEIVE, WORK, MARK, SEND, GATE, DISCARD = range(6)
"""Codes of operations. Never renumber them: compiled code that is cached would not notice."""

# `slot`: index under which the loop keeps the sender of an arrival until it is answered.
OPERATION = np.dtype([("code", "i4"), ("slot", "i4"), ("seconds", "f8")])

_pack = struct.Struct("=iid").pack  # an `OPERATION`
_MARK, _DISCARD = _pack(MARK, 0, 0.0), _pack(DISCARD, 0, 0.0)
_new = object.__new__


class Sender(Unknown, Anyone):
    """Stand-in for a sender, which may be answered once. `slot`: its index in the loop."""

    __slots__ = ("slot", "trace")
    why = "its program looks at who sent a gradient"
    trace: "ServerTrace"
    slot: int

    def come_to(self, gate: Gate) -> Iterable[Anyone]:
        """Record that the loop asks the gate."""
        return self.trace.through(self, gate)


ANSWERED = -1
RELEASED = -2  # the slot of the stand-in for all whom a gate lets go


class ServerTrace(TracingNode):
    """The server's trace. `gate`: the gate that it uses, or None."""

    __slots__ = (
        "_arrivals", "_ask", "_gated", "_note", "_operations", "_payload", "_receive",
        "_released", "_seconds", "_send", "_slots", "_work", "gate",
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
        self._gated = 0  # number of operations when the last sender came to the gate
        self._released = self._sender(RELEASED)
        self._seconds, self._work = 0.0, b""  # of the last `work`
        self._receive, self._send, self._ask = (
            [_pack(code, slot, 0.0) for slot in range(self.workers)]
            for code in (RECEIVE, SEND, GATE)
        )
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
        if self._gated:
            self._leave_gate()
        if not self._arrivals:
            yield
        self._arrivals -= 1
        if not self._slots:
            raise Unsupported("its workers all wait")
        slot = self._slots.pop()
        self._note(self._receive[slot])
        return self._sender(slot), self._payload

    def _sender(self, slot: int) -> Sender:
        sender = _new(Sender)  # a third of the cost of calling the class
        sender.trace, sender.slot = self, slot
        return sender

    def work(self, seconds: float) -> None:
        """Record it."""
        if seconds:
            if self._seconds != seconds:
                self._seconds, self._work = seconds, _pack(WORK, 0, seconds)
            self._note(self._work)

    def mark(self, x: Vector) -> None:
        """Record it."""
        self._note(_MARK)

    def discard(self) -> None:
        """Record it."""
        self._note(_DISCARD)

    def send(self, to: Any, value: Payload) -> None:
        """Record the answer to a sender, once."""
        if type(to) is not Sender or type(value) is not complex:
            self._refuse()
        slot = to.slot
        if slot >= 0:
            self._note(self._send[slot])
            self._slots.append(slot)
        elif slot == ANSWERED:
            self._refuse()
        to.slot = ANSWERED

    def through(self, sender: Sender, gate: Gate) -> Iterable[Sender]:
        """Record that a sender comes to the gate; return the stand-in for all whom it lets go."""
        if self.gate not in (None, gate) or sender.slot < 0 or self._gated:
            self._refuse()
        self.gate = gate
        self._note(self._ask[sender.slot])
        self._slots.append(sender.slot)
        sender.slot = ANSWERED
        self._released = self._sender(RELEASED)
        self._gated = len(self._operations)
        return (self._released,)

    def _leave_gate(self) -> None:
        """Check that all the program did for those whom the gate let go was to answer each."""
        if self._released.slot != ANSWERED or len(self._operations) != self._gated:
            self._refuse()
        self._gated = 0
