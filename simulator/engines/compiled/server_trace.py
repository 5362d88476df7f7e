"""What a server does, whoever sends: run once, for all seeds.

In a time-only run a server's program does not depend on who sent what it received; only where its
answers go does. So its coroutine is run with stand-ins for the senders and its effects noted down.
A program that looks closer is handed over.
"""

import struct
import types
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from paceline.simulator.engines.compiled.worker_trace import Begin, TracingNode, Unknown
from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.programs.effects import ANY, Payload, Vector
from paceline.simulator.programs.pieces.gate import Anyone, Gate
from paceline.simulator.scenario.scenario import Scenario

RECEIVE, WORK, MARK, SEND, GATE, DISCARD = range(6)
"""What a server does. Never renumber: compiled code that is kept would not know."""

# `slot`: where the sender of an arrival is kept until it is answered.
OPERATION = np.dtype([("code", "i4"), ("slot", "i4"), ("seconds", "f8")])

_pack = struct.Struct("=iid").pack  # an `OPERATION`
_MARK, _DISCARD = _pack(MARK, 0, 0.0), _pack(DISCARD, 0, 0.0)
_new = object.__new__


class Sender(Unknown, Anyone):
    """Whoever sent what arrived; of use once, to answer it. `slot`: where the loop keeps it."""

    __slots__ = ("script", "slot")
    what = "who sent a gradient"
    script: "ServerTrace"
    slot: int

    def come_to(self, gate: Gate) -> Iterable[Anyone]:
        """Let the loop ask the gate."""
        return self.script.through(self, gate)


ANSWERED = -1
RELEASED = -2  # the slot of those that a gate lets go


class ServerTrace(TracingNode):
    """The server. `gate`: the one that it has come to, if any."""

    __slots__ = (
        "_arrivals", "_ask", "_gated", "_note", "_operations", "_payload", "_receive",
        "_released", "_seconds", "_send", "_slots", "_work", "gate",
    )  # fmt: skip
    does = "its server does more than answer the gradients that come"

    def __init__(self, scenario: Scenario, begin: Begin, payload: Payload) -> None:
        super().__init__(scenario)
        self.rank = self.server
        self._payload = payload
        self._operations: list[bytes] = []
        self._note = self._operations.append
        self._arrivals = 0  # still to be scripted
        self._slots = list(range(self.workers))
        self.gate: Gate | None = None
        self._gated = 0  # operations up to where the last sender came to the gate
        self._released = self._sender(RELEASED)  # whoever the gate lets go
        self._seconds, self._work = 0.0, b""  # that it worked last
        self._receive, self._send, self._ask = (
            [_pack(code, slot, 0.0) for slot in range(self.workers)]
            for code in (RECEIVE, SEND, GATE)
        )
        self._coroutine = begin(self)

    def write(self, arrivals: int) -> np.ndarray:
        """The script of the next so many arrivals, up to where it waits for the one after."""
        self._arrivals = arrivals
        self._operations.clear()
        self._resume()
        return np.frombuffer(b"".join(self._operations), OPERATION)

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, None, tuple[Any, Payload]]:
        """Take in the next message, whoever sent it."""
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
        sender = _new(Sender)  # a third of what its call would cost
        sender.script, sender.slot = self, slot
        return sender

    def work(self, seconds: float) -> None:
        """Note it."""
        if seconds:
            if self._seconds != seconds:
                self._seconds, self._work = seconds, _pack(WORK, 0, seconds)
            self._note(self._work)

    def mark(self, x: Vector) -> None:
        """Note it."""
        self._note(_MARK)

    def discard(self) -> None:
        """Note it."""
        self._note(_DISCARD)

    def send(self, to: Any, value: Payload) -> None:
        """Answer a sender, once."""
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
        """Let a sender come to the gate; return one for all that it lets go, to be answered."""
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
        """What was done for one that the gate let go is done for each: that can be an answer."""
        if self._released.slot != ANSWERED or len(self._operations) != self._gated:
            self._refuse()
        self._gated = 0
