"""The time of a step on this machine: measure a few steps of the very task, and extrapolate.

The steps have the task's own algorithm, cluster, network, objective, engine and threads, so that
whatever makes a step slow is measured. Only of a task whose single steps take seconds a smaller one
is measured, and scaled up by the operations that it leaves out.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from ..engines.batched.run import VECTORS
from ..engines.dispatch import pays_off
from ..engines.observer import POINTS
from ..load.load import known_programs
from ..objectives.build import dimension_of
from ..results.run import Run
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.tables import Modes, Quadratic
from ..scenario.world import World
from .execution import Execution

ENOUGH = 0.2  # seconds that further steps take once their time counts as known
LONGEST = 3.0  # seconds after which the time measured so far has to do
GROWTH = 4  # of the steps, from one measurement to the next
ENTRIES = 2**22  # of all workers' vectors; with more, fewer coordinates are measured ...
DIMENSION = 10_000  # ... but at least so many, so that they still take most of the time
MESSAGES = 2**20  # of one ring; with more, fewer workers are measured
RING = 512  # that many


class StepTime(NamedTuple):
    """Core seconds of one seed: of its start, of each step of all workers, of each evaluation.

    `simulated`: seconds of the simulated clock per step.
    """

    start: float
    step: float
    evaluation: float
    simulated: float


def seconds(scenario: Scenario, algorithm: Algorithm, seeds: int, execution: Execution) -> float:
    """Return the core seconds of the runs of an algorithm, from a measurement of its steps."""
    found = measure(scenario, algorithm, seeds, execution)
    run = scenario.run
    by_time = run.duration / found.simulated if run.duration and found.simulated else inf
    steps = min(run.steps or inf, by_time)
    points = min(steps, POINTS if run.evaluate_every is None else steps / run.evaluate_every)
    return seeds * (found.start + steps * found.step + points * found.evaluation)


def measure(scenario: Scenario, algorithm: Algorithm, seeds: int, execution: Execution) -> StepTime:
    """Measure the times of an algorithm, in a few tenths of a second."""
    program = known_programs(execution.programs)[algorithm.name]
    if execution.engine == "auto":  # that of the whole run: a few steps alone never pay off
        whole = pays_off(World.of(scenario, algorithm, program))
        execution = replace(execution, engine="batched" if whole else "virtual")
    small, scale = _smaller(scenario)
    count = execution.together(small, algorithm, seeds)
    entries = small.cluster.workers * (dimension_of(small.objective) or 0)
    few = range(min(count, max(1, VECTORS // entries)) if entries else count)
    settings = small.run

    def timed(steps: int, every: int) -> tuple[float, Run]:
        run = settings.model_copy(update={"steps": steps, "evaluate_every": every})
        began = time.perf_counter()
        short = small.model_copy(update={"run": run})
        runs = execution.run(short, algorithm, few)
        return (time.perf_counter() - began) / len(few), runs[0]

    warm = timed(1, 1)[0]  # compiles what must be compiled, and fills caches
    limit = settings.steps or inf
    first = min(timed(1, 1)[0] for _ in range(2 if warm * len(few) < ENOUGH else 1))
    step, run = _per_step(lambda steps: timed(steps, steps), first, len(few), limit)
    both, _ = _per_step(lambda steps: timed(steps, 1), first, len(few), limit)
    return StepTime(
        max(0.0, first - both) * scale,
        step * scale,
        max(0.0, both - step) * scale,
        run.duration / run.steps if run.steps else inf,
    )


def _per_step(
    timed: Callable[[int], tuple[float, Run]], first: float, seeds: int, limit: float
) -> tuple[float, Run]:
    """Return the seconds that each step after the `first` takes, and the longest run measured."""
    began = time.perf_counter()
    steps, taken = 1, first
    while True:
        growth = GROWTH**2 if steps > 1 and taken < 1.5 * first else GROWTH
        steps = int(min(steps * growth, max(limit, 1)))
        taken, run = timed(steps)
        if taken * seeds < 2 * ENOUGH:
            taken = min(taken, timed(steps)[0])  # something else may have slowed it down
        whole, further = steps >= limit or run.steps < steps, taken - first
        if whole or further * seeds > max(ENOUGH, first * seeds):
            return max(0.0, further) / max(1.0, run.steps - 1), run
        if time.perf_counter() - began > LONGEST:  # the start hides the steps: at most
            return max(further, 0.5 * first) / (run.steps - 1), run


def _smaller(scenario: Scenario) -> tuple[Scenario, float]:
    """Return a scenario whose steps do not take seconds, and the factor that they are cheaper by.

    Gradients of a quadratic cost time in proportion to the dimension; the messages of a ring to the
    square of its workers.
    """
    spec, cluster = scenario.objective, scenario.cluster
    if isinstance(spec, Quadratic) and spec.dimension > DIMENSION:
        room = spec.dimension * ENTRIES // (cluster.workers * (dimension_of(spec) or 1))
        fewer = max(DIMENSION, room)
        modes = len(spec.spectrum.curvature) if isinstance(spec.spectrum, Modes) else 1
        if modes < fewer < spec.dimension:
            update: dict[str, Any] = {"objective": spec.model_copy(update={"dimension": fewer})}
            return scenario.model_copy(update=update), spec.dimension / fewer
    flows = scenario.network.model == "flows" and scenario.network.collective == "ring"
    if flows and 2 * cluster.workers**2 > MESSAGES:
        bare = {"link": (), "background": (), "outage": (), "regions": None}
        update = {
            "cluster": cluster.model_copy(update={"workers": RING, "group": (), "crash": ()}),
            "network": scenario.network.model_copy(update=bare),
            "server": scenario.server.model_copy(update={"region": None}),
            "job": (),
        }
        return scenario.model_copy(update=update), (cluster.workers / RING) ** 2
    return scenario, 1.0
