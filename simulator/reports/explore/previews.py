"""Previews: runs of few seeds and points, cut short if need be, within a fraction of a second."""

import math
import time
from dataclasses import dataclass

from ...engines.dispatch import run_seeds
from ...results.run import Run
from ...scenario.scenario import Scenario

BUDGET = 0.15  # seconds of computing (of one core) until the page redraws
POINTS = 60  # of a curve, at most about
SEEDS = 4  # at most
SHORTEST = 1 / 64  # of a run; less shows nothing
TIMED = 32  # steps from which the time of one can be told
SLACK = 1.03  # steps beyond those expected, as times are random


@dataclass(frozen=True)
class Preview:
    """Runs of one algorithm with the first seeds; none where even a short run takes too long.

    `share`: of their whole length, 0 to 1. A share of 1 has the numbers of `paceline simulate`.
    """

    runs: list[Run]
    share: float


@dataclass(frozen=True)
class Pace:
    """Seconds of computing that an algorithm takes to begin and per step and seed.

    `simulated`: simulated seconds per step.
    """

    begin: float
    step: float
    simulated: float


class Previewer:
    """Makes previews within the budget, by the time that earlier ones took."""

    def __init__(self) -> None:
        self._paces: dict[int, Pace] = {}

    def learn(self, scenario: Scenario) -> None:
        """Run each algorithm briefly: this compiles its code and measures its pace."""
        for index in range(len(scenario.algorithm)):
            for steps in (8, 8, 2 * TIMED):  # the first compiles
                self._draw(scenario, index, 1, steps)

    def draw(self, scenario: Scenario) -> dict[int, Preview]:
        """Return a preview of each algorithm, by index."""
        costs = {index: self._cost(scenario, index) for index in range(len(scenario.algorithm))}
        total = sum(costs.values())
        seeds = 1
        while seeds < min(SEEDS, scenario.run.seeds) and 2 * seeds * total <= BUDGET:
            seeds *= 2
        found = {}
        left, waiting = BUDGET, len(costs)
        for index in sorted(costs, key=lambda each: costs[each]):
            share = min(1.0, left / waiting / max(costs[index], 1e-9))
            waiting -= 1
            began = time.thread_time()
            whole, pace = self._steps(scenario, index), self._paces.get(index)
            found[index] = (
                self._draw(scenario, index, min(seeds, scenario.run.seeds), share * whole)
                if share >= SHORTEST or (pace and pace.begin <= BUDGET / 3)  # a few steps at least
                else Preview([], 0.0)
            )
            left -= time.thread_time() - began
        return found

    def _cost(self, scenario: Scenario, index: int) -> float:
        """Return the seconds of computing that a whole run with one seed takes."""
        pace = self._paces.get(index)
        if pace is None:
            return math.inf
        return pace.begin + pace.step * self._steps(scenario, index)

    def _steps(self, scenario: Scenario, index: int) -> float:
        run, pace = scenario.run, self._paces.get(index)
        if run.duration is None or (run.steps and pace is None):
            return float(run.steps or 1)
        simulated = pace.simulated if pace else 0.0
        most = run.steps or math.inf
        return min(most, run.duration / simulated) if simulated else min(most, 1024.0)

    def _draw(self, scenario: Scenario, index: int, seeds: int, steps: float) -> Preview:
        """Run the first `seeds` seeds for so many steps, or to the end if that comes first."""
        settings = scenario.run
        cap = min(max(8, math.ceil(SLACK * steps)), settings.steps or math.inf)
        limits = {"steps": cap, "evaluate_every": max(1, int(cap // POINTS))}
        short = scenario.model_copy(update={"run": settings.model_copy(update=limits)})
        began = time.thread_time()
        runs = run_seeds(short, scenario.algorithm[index], list(range(seeds)))
        took = time.thread_time() - began
        done = sum(run.steps for run in runs)
        if done:
            self._learn(index, took, done, sum(run.duration for run in runs) / done)
        cut = cap != settings.steps and any(run.steps >= cap for run in runs)
        whole = self._steps(scenario, index)
        return Preview(runs, min(0.99, done / seeds / whole) if cut else 1.0)

    def _learn(self, index: int, took: float, steps: float, simulated: float) -> None:
        """Update the pace from what a run `took` (s); the shortest runs tell `begin`."""
        pace = self._paces.get(index)
        if pace is None or (steps < TIMED and not pace.step):
            self._paces[index] = Pace(took, 0.0, simulated)
            return
        step = max(0.0, took - pace.begin) / steps if steps >= TIMED else pace.step
        if step > pace.step > 0:  # perhaps a hiccup of the machine
            step = (step + pace.step) / 2
        self._paces[index] = Pace(pace.begin, step, simulated)
