"""A collective in the making: who has joined it, and who waits for it."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from paceline.simulator.engines import payloads
from paceline.simulator.errors import ProgramError
from paceline.simulator.programs.effects import Payload

TIE = 1e-12  # times that differ by rounding only are equal
IN_TIME = 1 + 1e-9  # times the end of a run: up to then things count; sums of a million steps do
ABSENT = -1  # the step of who has not joined
Follower = tuple[int, int, "Collective", Callable[[Payload], Payload]]


class Collective:
    """The n-th collective of every worker: complete when all have joined.

    `begins`: when the last one joined (then: when it got the links); `last`: who that was, and
    when; `done`: when the result is there, None until all have joined. `joined`: at which step each
    worker did, or `ABSENT`.
    `followers`: those who go on to another collective as soon as the result is there (rank, step,
    collective, with which function of the result); `chained`: whether others follow from it, so
    that it is not what its payload is used in. Where workers crash or are slow: `arrivals`: when
    each of those who are there joined, `computed`: how many seconds it had computed then, `late`:
    who of them is left out.
    """

    __slots__ = (
        "_asked",
        "_guard",
        "_questions",
        "arrivals",
        "begins",
        "chained",
        "computed",
        "done",
        "followers",
        "index",
        "joined",
        "kind",
        "last",
        "late",
        "missing",
        "payloads",
        "protected",
        "result",
        "waiting",
    )  # fmt: skip

    def __init__(self, index: int, kind: str, workers: int, guard: payloads.Guard) -> None:
        self.index, self.kind = index, kind
        self._guard = guard
        self.missing = workers
        self.payloads: list[Payload] = [None] * workers
        self.joined: list[int] = [ABSENT] * workers
        self.protected: dict[int, list[np.ndarray[Any, Any]]] = {}
        self.waiting: list[Any] = []
        self.followers: list[Follower] = []
        self.chained = False
        self._questions: list[Collective] = []
        self._asked: Counter[int] = Counter()
        self.result: Payload = None
        self.begins = 0.0
        self.last = 0, 0.0
        self.arrivals: dict[int, float] = {}
        self.computed: dict[int, float] = {}
        self.late: set[int] = set()
        self.done: float | None = None

    def demand(self, kind: str, rank: int) -> None:
        """Raise ProgramError unless worker `rank` wants the kind of collective that others do."""
        if kind != self.kind:
            raise ProgramError(
                f"worker {rank} starts a {kind} where others started a {self.kind}: "
                "every worker must start the same collectives in the same order"
            )

    def join(self, rank: int, step: int, payload: Payload) -> None:
        """Take part. The payload is read-only until `collect`."""
        if type(payload) is not complex:
            self.protected[rank] = self._guard.hold(payload)
        self.payloads[rank] = payload
        self.joined[rank] = step
        self.missing -= 1
        if not self.missing:
            everyone = self.payloads
            self.result = payloads.mean(everyone) if self.kind == "mean" else tuple(everyone)

    def leave_out(self, ranks: Collection[int]) -> None:
        """Work the result out anew, without what some workers brought."""
        others = [value for rank, value in enumerate(self.payloads) if rank not in ranks]
        if others:
            self.result = payloads.mean(others) if self.kind == "mean" else tuple(others)

    def question(self, rank: int) -> "Collective":
        """The next question of worker `rank` whether this is finished, which all workers ask."""
        number = self._asked[rank]
        self._asked[rank] += 1
        if number == len(self._questions):
            question = Collective(number, "gather", len(self.joined), self._guard)
            question.chained = True
            self._questions.append(question)
        return self._questions[number]

    def come(self, rank: int, now: float) -> None:
        """Worker `rank` joins, with nothing to share."""
        if now > self.begins:
            self.begins, self.last = now, (rank, now)

    def answer(self, question: "Collective") -> None:
        """Answer a question when the last worker has asked it."""
        question.done = question.begins
        question.result = self.done is not None and self.done <= question.done * (1 + TIE)

    def collect(self, rank: int) -> Payload:
        """Give worker `rank` the result, which all share, and its own payload back."""
        if self.protected:
            self._guard.release(self.protected.pop(rank, ()))
            payloads.protect(self.result)
        return self.result


class GradientPiece:
    """A piece of a gradient: there when the backward pass has freed it."""

    __slots__ = ("begins", "done", "result")

    def __init__(self, result: Payload, done: float) -> None:
        self.result = result
        self.begins = self.done = done

    def collect(self, rank: int) -> Payload:
        """The piece."""
        return self.result
