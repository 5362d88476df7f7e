"""Gates: points at a server where workers wait until the arrivals of others release them.

A gate's decision depends on the worker that came. So its rule is a plain function of integers,
which an engine may compile, and an engine that runs a server once for many seeds passes `Anyone`.
"""

from collections.abc import Callable, Iterable, MutableSequence
from typing import Any

STAY, GO, ALL = 0, 1, 2
"""Results of an arrival: the worker stays, goes on alone, or goes on after all that stayed.

Never renumber: compiled code is cached with these values."""

State = MutableSequence[int]
Rule = Callable[[State, int], int]
"""Records an arrival in the state and returns `STAY`, `GO` or `ALL`."""


class Anyone:
    """A worker known only by its time of arrival."""

    def come_to(self, gate: "Gate") -> Iterable[Any]:
        """Arrive at a gate; return the workers that may go on."""
        raise NotImplementedError


class Gate:
    """A gate at a server; `state`: the state of its rule before the first arrival."""

    def __init__(self, rule: Rule, state: list[int]) -> None:
        self.rule, self.state = rule, state
        self._waiting: list[int] = []

    def admit(self, worker: int) -> Iterable[int]:
        """Record an arrival; return the workers that may go on, in order of arrival.

        A program may only answer each of them, because an engine may do so for all at once.
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
    """Rule of an open gate: every worker goes on."""
    return GO


def bounded_lead(workers: int, lead: int) -> Gate:
    """Make a gate at which a worker waits once it is `lead` + 1 arrivals ahead of the slowest."""
    return Gate(within_lead, [lead, 0, workers, *[0] * workers])


def within_lead(state: State, worker: int) -> int:
    """Rule of `bounded_lead`: O(1) per arrival, amortised.

    `state`: the lead, arrivals of the slowest, number of workers with as few; then the arrivals of
    each worker. A waiting worker is `lead` + 1 ahead, so that one step of the slowest frees all.
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
"""Rules on whole numbers only, so that compiled code gives the same results."""
