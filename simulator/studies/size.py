"""Estimate a simulation's time and memory before it starts; refuse excessive ones.

Counting operations costs nothing. If the count could take too long, the time of a step is measured
on this machine, in a short run of the task itself.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from ..engines.dispatch import pays_off
from ..engines.observer import POINTS
from ..errors import InputError
from ..objectives.build import dimension_of
from ..results.run import COLUMNS, SPAN
from ..results.statistics import human, number
from ..scenario.scenario import Algorithm, Scenario, World
from .execution import Execution, cores

LONGEST = 7 * 86_400.0  # seconds of computing that need --force
BRIEF = 60.0  # seconds at most, by the numbers below, which far exceed the time of a step
PROBING = 5.0  # seconds of measuring, after which the times measured so far must do
ENOUGH = 0.2  # seconds of one run whose steps are measured
SLOW = 10.0  # seconds by the numbers below up to which a step is not measured

# Upper bounds of operations in seconds; less than LONGEST by these needs no measurement.
GRADIENT = 1e-4
ENTRY = 1e-7  # per entry of a vector, and of a sample's activations
MESSAGE = 1e-5  # per flow

# Bytes, from measured peaks.
VECTORS = 8  # vectors per worker: parameters, gradient, noise, optimum, payload, ...
SAMPLE = 160.0  # numbers per sample of a mini-batch of `softmax`
OF_MESSAGE = 170.0  # flows of a collective
POINT = 32.0  # per number of a curve, as a Python object
OF_SPAN = 20.0 * SPAN.itemsize  # per span of a timeline, with its document
CGROUP = Path("/sys/fs/cgroup/memory.max")


class Size(NamedTuple):
    """The size of all runs of an algorithm.

    `gradients`: their number; `seconds`: most seconds of computing; `memory`: peak bytes of one
    process; `steps`: steps of one run, possibly infinite.
    """

    gradients: float
    seconds: float
    memory: float
    steps: float = 1.0


class Part(NamedTuple):
    """The runs of one algorithm of a scenario with `seeds` seeds, and their size."""

    scenario: Scenario
    algorithm: Algorithm
    seeds: int
    size: Size


def count(scenario: Scenario, seeds: int) -> Size:
    """Count the operations of one algorithm of a scenario with `seeds` seeds.

    A run that ends by its duration is assumed to compute all the time.
    """
    run, objective, workers = scenario.run, scenario.objective, scenario.cluster.workers
    rate = scenario.team.ideal_rate or inf  # 0 where the mean is infinite
    steps = min(
        inf if run.steps is None else float(run.steps),
        inf if run.duration is None else run.duration * rate / workers,
    )
    points = min(steps, 2.0 * POINTS if run.evaluate_every is None else steps / run.evaluate_every)
    if scenario.calibration is not None:
        seeds += scenario.calibration.replicates
    entries = float(dimension_of(objective) or 0)
    batch = float(getattr(objective, "batch", 1))
    gradient = GRADIENT + ENTRY * entries * batch
    evaluation = GRADIENT + ENTRY * entries * (1 if batch == 1 else 1e5)  # a data set
    memory = 8.0 * entries * workers * VECTORS
    if objective.kind == "softmax":
        memory += 8.0 * workers * batch * (SAMPLE + 3 * objective.hidden)
    if scenario.network.model == "flows" and scenario.network.collective == "ring":
        gradient += MESSAGE * 2 * workers
        memory += OF_MESSAGE * 2 * workers * workers
    memory += POINT * len(COLUMNS) * seeds * (points if points < inf else 2 * POINTS)
    memory += OF_SPAN * min(float(run.timeline_spans), 3 * steps * workers)
    took = steps * workers * gradient + points * evaluation
    return Size(steps * workers * seeds, took * seeds, memory, steps)


def brief(scenario: Scenario, seeds: int | None) -> bool:
    """Return whether all runs take hardly longer than starting processes.

    `seeds`: per algorithm; None: run.seeds.
    """
    sizes = count(scenario, scenario.run.seeds if seeds is None else seeds)
    return len(scenario.algorithm) * sizes.seconds < BRIEF


def demand(
    runs: Iterable[tuple[Scenario, range]],
    execution: Execution | None = None,
) -> None:
    """Refuse scenarios that need more than a week or this machine's memory.

    Every scenario comes with its seeds. Raises InputError with the estimate.
    """
    execution = execution or Execution()
    parts = []
    for scenario, numbers in runs:
        seeds = numbers.stop - numbers.start  # len() takes no more than 2^63
        size = count(scenario, seeds)
        parts += [Part(scenario, algorithm, seeds, size) for algorithm in scenario.algorithm]
    if not parts:
        return
    file = parts[0].scenario.file
    needed = execution.jobs * max(part.size.memory for part in parts)
    there = available()
    if needed > there:
        raise InputError(
            f"{file}: this would need about {number(needed / 2**30)} GiB of memory, and this "
            f"machine has {number(there / 2**30)} to spare; ask for less (objective.dimension, "
            "cluster.workers, seeds, jobs, a larger run.evaluate_every), or insist with --force"
        )
    shared = min(execution.jobs, cores())
    seconds = estimate(parts, execution, enough=LONGEST * shared) / shared
    if seconds > LONGEST:
        gradients = sum(part.size.gradients for part in parts)
        raise InputError(
            f"{file}: some {gradients:.1e} gradients would take about {human(seconds)}; ask for "
            "less (run.steps, run.duration, seeds, cluster.workers, objective.dimension), or "
            "insist with --force"
        )


def estimate(parts: Iterable[Part], execution: Execution, enough: float = 0.0) -> float:
    """Estimate the core seconds that runs take together.

    The largest parts are measured. After `PROBING` seconds, or beyond `enough`, other parts are
    assumed to stay below their counts by the same factor. If all parts together cannot reach
    `enough`, returns their upper bound.
    """
    left = sorted(parts, key=lambda part: part.size.seconds, reverse=True)
    most = sum(part.size.seconds for part in left)  # the parts that are not measured
    seconds = counted = 0.0
    end = perf_counter() + PROBING
    for part in left:
        if seconds + most <= enough:
            return seconds + most
        if counted and (seconds > enough > 0 or perf_counter() > end):
            break
        try:
            seconds += measured(part, execution)
        except Exception:  # the run itself will report the fault
            return 0.0
        counted, most = counted + part.size.seconds, most - part.size.seconds
    return seconds * (1 + max(0.0, most) / counted) if counted < inf else seconds


def measured(part: Part, execution: Execution) -> float:
    """Return the core seconds of a part's runs, measured on the steps of a short run."""
    scenario, algorithm, run = part.scenario, part.algorithm, part.scenario.run
    counted = part.size.seconds / part.seeds / max(part.size.steps, 1.0)
    if counted > SLOW:
        return part.size.seconds
    if execution.engine == "auto":  # the engine of the whole run: a few steps alone never pay off
        whole = pays_off(World(scenario, algorithm))
        execution = replace(execution, engine="batched" if whole else "virtual")
    few = range(execution.together(scenario, algorithm, part.seeds))
    every = run.evaluate_every or max(1.0, min(part.size.steps, 1e9) / POINTS)
    steps, end = 1.0, perf_counter() + PROBING / 2
    while True:
        ends = {"steps": int(steps), "evaluate_every": max(1, int(min(every, steps)))}
        short = scenario.model_copy(update={"run": run.model_copy(update=ends)})
        execution.run(short, algorithm, few[:1])  # compiles code and fills caches
        began = perf_counter()
        made = execution.run(short, algorithm, few)[0]
        taken = perf_counter() - began
        if taken > ENOUGH or made.steps < steps or steps >= part.size.steps or began > end:
            by_time = made.duration / max(made.steps, 1.0)  # by the simulated clock
            whole_run = run.duration / by_time if run.duration and by_time else inf
            left = min(run.steps or inf, whole_run) / max(made.steps, 1.0)
            if left == inf:  # the short run has not moved the clock
                return part.size.seconds
            return taken / len(few) * part.seeds * max(left, 1.0)
        steps = min(8 * steps, part.size.steps)


def available() -> float:
    """Return how many bytes of memory this process may still use."""
    import psutil  # noqa: PLC0415 - only here

    there = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no such limit
        there = min(there, float(CGROUP.read_text(encoding="ascii")))
    return there
