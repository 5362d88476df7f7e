"""Make whole runs with all seeds in other processes, while this one answers the page."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor, Future

from ...engines.dispatch import run_seeds
from ...results.run import Run
from ...scenario.scenario import Scenario

KEPT = 32  # states of the sliders whose runs stay in memory
NICE = 10  # whole runs give way to previews, which are made while a slider moves

State = tuple[tuple[str, str], ...]
Task = tuple[State, int, int]
"""A state, the index of an algorithm, and the first of its seeds."""


def blocks(seeds: int) -> list[range]:
    """Seeds that run together: one, then as many as before, so that the first come soon."""
    found, first = [], 0
    while first < seeds:
        size = min(max(1, first), seeds - first)
        found.append(range(first, first + size))
        first += size
    return found


def whole(scenario: Scenario, index: int, seeds: Sequence[int]) -> list[Run]:
    """Run an algorithm as `paceline simulate` does, at low priority."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    return run_seeds(scenario, scenario.algorithm[index], list(seeds))


class Pool:
    """Runs one state at a time: wanting another drops runs that have not begun."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._kept: OrderedDict[State, dict[int, list[Run]]] = OrderedDict()
        self._waiting: dict[Task, Future[list[Run]]] = {}
        self._failed: dict[State, str] = {}
        self._wanted: State | None = None

    def want(self, state: State | None, scenario: Scenario | None = None) -> None:
        """Begin the runs of a state; None only drops those that have not begun."""
        with self._lock:
            if state == self._wanted:
                return
            self._wanted = state
            for task, future in list(self._waiting.items()):
                if task[0] != state and future.cancel():
                    self._waiting.pop(task, None)
            if state is None or scenario is None:
                return
            for seeds in blocks(scenario.run.seeds):
                for index in range(len(scenario.algorithm)):
                    task = state, index, seeds[0]
                    done = len(self._kept.get(state, {}).get(index, ()))
                    if done <= seeds[0] and task not in self._waiting:
                        self._waiting[task] = self._executor.submit(whole, scenario, index, seeds)

    def found(self, state: State) -> dict[int, list[Run]]:
        """Return the finished runs of a state by algorithm index, in the order of their seeds.

        Raises RuntimeError where a run has failed.
        """
        with self._lock:
            for task in sorted(self._waiting, key=lambda task: task[1:]):
                earlier = len(self._kept.get(task[0], {}).get(task[1], ()))
                if self._waiting[task].done() and earlier == task[2]:  # seeds stay in order
                    self._take(task, self._waiting.pop(task))
            if state in self._failed:
                raise RuntimeError(self._failed[state])
            if state in self._kept:
                self._kept.move_to_end(state)
            return {index: list(runs) for index, runs in self._kept.get(state, {}).items()}

    def _take(self, task: Task, future: Future[list[Run]]) -> None:
        state, index, _ = task
        try:
            runs = future.result()
        except Exception as error:  # programs and objectives may raise anything
            self._failed[state] = f"{type(error).__name__}: {error}"
            return
        self._kept.setdefault(state, {}).setdefault(index, []).extend(runs)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
