"""Gates: where workers come to a server, and wait until others let them go on.

What a gate decides depends on who came. So its rule is a plain function of integers, which an
engine may compile, and a gate may be told "whoever it was" by an engine that runs a server once for
many seeds.
"""

from collections.abc import Callable, Iterable, MutableSequence
from typing import Any

STAY, GO, ALL = 0, 1, 2
"""What follows from an arrival: the worker stays, it goes on alone, or after all who stayed.

Never renumber: compiled code that is kept would not know."""

State = MutableSequence[int]
Rule = Callable[[State, int], int]
"""Takes in that a worker came, in the state; says which of `STAY`, `GO` and `ALL` follows."""


class Anyone:
    """A worker of which nothing is known but when it came."""

    def come_to(self, gate: "Gate") -> Iterable[Any]:
        """Come to a gate; return those who may go on."""
        raise NotImplementedError


class Gate:
    """A gate at a server; `state` is what its rule knows before anyone came."""

    def __init__(self, rule: Rule, state: list[int]) -> None:
        self.rule, self.state = rule, state
        self._waiting: list[int] = []

    def admit(self, worker: int) -> Iterable[int]:
        """Let a worker come; return those who may go on, in the order in which they came.

        What a program does for each of them may only be its answer, because an engine may do it for
        all of them at once.
        """
        if isinstance(worker, Anyone):
            return worker.come_to(self)
        follows = self.rule(self.state, worker)
        if follows == GO:
            return [worker]
        self._waiting.append(worker)
        if follows == STAY:
            return []
        free, self._waiting = self._waiting, []
        return free


def always(state: State, worker: int) -> int:
    """The rule of a gate that is open."""
    return GO


def bounded_lead(workers: int, lead: int) -> Gate:
    """A gate at which those wait who have come `lead` + 1 times more often than the slowest."""
    return Gate(within_lead, [lead, 0, workers, *[0] * workers])


def within_lead(state: State, worker: int) -> int:
    """The rule of `bounded_lead`: O(1) per arrival, on average.

    `state`: the lead, how often the slowest came, how many came no more often; then how often each
    worker came. Whoever waits is `lead` + 1 ahead, so that one step of the slowest frees them all.
    """
    times = state[3 + worker] + 1
    state[3 + worker] = times
    if times == state[1] + 1:
        state[2] -= 1
        if state[2] == 0:
            state[1] = times
            for each in range(3, len(state)):
                if state[each] == times:
                    state[2] += 1
            return ALL
    return GO if times - state[1] <= state[0] else STAY


COMPILED = (always, within_lead)
"""Rules that hold whole numbers only, so that compiled they say the same."""
