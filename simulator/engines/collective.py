"""Track a collective: which workers have joined, which wait, and its result."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ..programs.effects import Payload
from . import payloads

TIME_TOLERANCE = 1e-12
"""Relative difference of times below which they are equal up to rounding."""
ABSENT = -1  # instead of a step: this worker has not joined
Follower = tuple[int, int, "Collective", Callable[[Payload], Payload]]


class Why(StrEnum):
    """Why a worker takes no part in a collective."""

    CRASHED = "crashed"
    ABSENT = "absent"
    UNSELECTED = "not selected"
    LATE = "too late"


def earliest(team: Collection[int], arrivals: Mapping[int, float], most: int) -> list[int]:
    """Return the first `most` of a team to arrive, lower ranks first at equal times."""
    return sorted(team, key=lambda rank: (arrivals[rank], rank))[:most]


class Collective:
    """A collective, complete when all workers have joined it.

    Times are in seconds. `begins`: when the last worker joined or, later, when the links were free;
    `last`: that worker's rank, and when it joined; `done`: when the result is available, None until
    all have joined, inf: never. `joined`: the step at which each worker joined, or `ABSENT`.
    `followers`: workers that join another collective as soon as this one is done (rank, step, that
    collective, and the function that makes their payload from the result). `chained`: whether other
    collectives follow from it, so that the program does not act on its result. `ahead`: how many
    seconds before `done` each worker has the result; None: none. `arrivals`: when each present
    worker joined, where that matters; `reports`: when its message then arrived, for servers that
    receive one by one. `falls`: when clients dropped out of the round. With failures or
    [recovery]: `computed`: the seconds that each worker had computed when it joined; `left_out`:
    workers whose contributions were dropped, and why; `restarts`: crashes that delayed its start or
    interrupted it; `stalls`: spans of seconds in which crashes stopped it, in order.
    """

    __slots__ = (
        "_question", "ahead", "arrivals", "begins", "chained", "computed", "done", "falls",
        "followers", "index", "joined", "kind", "last", "left_out", "missing", "payloads",
        "reports", "restarts", "result", "stalls", "waiting",
    )  # fmt: skip

    def __init__(self, index: int, kind: str, workers: int) -> None:
        self.index, self.kind = index, kind
        self.missing = workers
        self.payloads: list[Payload] = [None] * workers
        self.joined: list[int] = [ABSENT] * workers
        self.waiting: list[Any] = []
        self.followers: list[Follower] = []
        self.chained = False
        self._question: Collective | None = None
        self.result: Payload = None
        self.begins = 0.0
        self.last = 0, 0.0
        self.arrivals: dict[int, float] = {}
        self.reports: dict[int, float] = {}
        self.falls: dict[int, float] = {}
        self.computed: dict[int, float] = {}
        self.left_out: dict[int, Why] = {}
        self.restarts = 0
        self.stalls: Sequence[tuple[float, float]] = ()
        self.done: float | None = None
        self.ahead: list[float] | None = None

    def join(self, rank: int, step: int, payload: Payload, at: float) -> None:
        """Add a worker's payload, read-only from now on; the last completes the result.

        `at`: when the worker joins; the latest sets `begins`.
        """
        if at > self.begins:
            self.begins, self.last = at, (rank, at)
        if type(payload) is not complex:
            payloads.protect(payload)
        self.payloads[rank] = payload
        self.joined[rank] = step
        self.missing -= 1
        if not self.missing:
            self._share(self.payloads)

    def leave_out(self, ranks: Collection[int]) -> None:
        """Recompute the result without the payloads of some workers."""
        payloads_ = [value for rank, value in enumerate(self.payloads) if rank not in ranks]
        if payloads_:
            self._share(payloads_)

    def _share(self, values: Sequence[Payload]) -> None:
        self.result = payloads.mean(values) if self.kind == "mean" else tuple(values)
        if type(values[0]) is not complex:
            payloads.protect(self.result)

    def question(self) -> "Collective":
        """Return the poll "is this done?" that some workers have yet to join."""
        if self._question is None or not self._question.missing:
            self._question = Collective(self.index, "gather", len(self.joined))
            self._question.chained = True
        return self._question

    def answer(self, question: "Collective") -> None:
        """Answer a poll when the last worker joins it: whether this was done by then."""
        question.done = question.begins
        question.result = self.done is not None and self.done <= question.done * (
            1 + TIME_TOLERANCE
        )

    def reaches(self, rank: int) -> float:
        """Return when worker `rank` has the result (s); `done` must be set."""
        assert self.done is not None
        return self.done if self.ahead is None else self.done - self.ahead[rank]


class GradientPiece:
    """A piece of a gradient; `done`: when the backward pass frees it, in seconds.

    While that is None, the node that waits for the piece computes it by `free`: `work` seconds
    after the piece `before`, or after the time `before`.
    """

    ahead = None

    __slots__ = ("before", "begins", "done", "free", "result", "work")
    free: Callable[[], Generator[None, Any, None]]
    before: Any
    work: float
    done: Any

    def __init__(self, result: Payload, done: float) -> None:
        self.result = result
        self.begins = self.done = done


class Timer(GradientPiece):
    """A timer, which ends at `done` (s); a wait for it counts as waiting, not as work."""

    last, missing = (0, 0.0), 0

    __slots__ = ()
