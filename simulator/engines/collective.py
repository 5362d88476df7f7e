"""A collective in the making: who has joined it, and who waits for it."""

from typing import Any

import numpy as np

from simulator.effects import Payload
from simulator.engines import values
from simulator.errors import ProgramError


class Collective:
    """The n-th collective of every worker: complete when all have joined.

    `begins`: when the last one joined (then: when it got the links); `done`: when the result is
    there, None until all have joined. Engines without time leave them alone.
    """

    __slots__ = (
        "_guard", "begins", "done", "joined", "kind", "missing", "payloads", "protected", "result",
        "waiting",
    )  # fmt: skip

    def __init__(self, kind: str, workers: int, guard: values.Guard) -> None:
        self.kind = kind
        self._guard = guard
        self.missing = workers
        self.payloads: list[Payload] = [None] * workers
        self.joined = [False] * workers
        self.protected: dict[int, list[np.ndarray[Any, Any]]] = {}
        self.waiting: list[Any] = []
        self.result: Payload = None
        self.begins = 0.0
        self.done: float | None = None

    def join(self, rank: int, kind: str, payload: Payload) -> None:
        """Take part. The payload is read-only until `collect`."""
        if kind != self.kind:
            raise ProgramError(
                f"worker {rank} starts a {kind} where others started a {self.kind}: "
                "every worker must start the same collectives in the same order"
            )
        if type(payload) is not complex:
            self.protected[rank] = self._guard.hold(payload)
        self.payloads[rank] = payload
        self.joined[rank] = True
        self.missing -= 1
        if not self.missing:
            everyone = self.payloads
            self.result = values.mean(everyone) if kind == "mean" else tuple(everyone)

    def collect(self, rank: int) -> Payload:
        """Give worker `rank` the result, which all share, and its own payload back."""
        if self.protected:
            self._guard.release(self.protected.pop(rank, ()))
            values.protect(self.result)
        return self.result


class Piece:
    """A piece of a gradient: there when the backward pass has freed it."""

    __slots__ = ("begins", "done", "result")

    def __init__(self, result: Payload, done: float) -> None:
        self.result = result
        self.begins = self.done = done

    def collect(self, rank: int) -> Payload:
        """The piece."""
        return self.result
