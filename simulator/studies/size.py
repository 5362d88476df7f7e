"""Time and memory that a simulation needs: estimated before it starts, refused if excessive.

Operations are counted, and cost nothing to count. Only where so many could take too long is the
time of a step measured on this machine, in a short run of the task itself.
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
BRIEF = 60.0  # seconds at most, by the numbers below, which exceed what a step takes by far
PROBING = 5.0  # seconds of measuring, after which the times measured so far have to do
ENOUGH = 0.2  # seconds of one run whose steps are measured
SLOW = 10.0  # seconds of a step, by the numbers below: it is not measured

# Seconds that no operation exceeds: what takes less than LONGEST by these needs no measurement.
GRADIENT = 1e-4
ENTRY = 1e-7  # of a vector, and of a sample's activations
MESSAGE = 1e-5  # of a flow

# Bytes, by peaks that were measured.
VECTORS = 8  # of each worker at once: parameters, gradient, noise, optimum, what is being sent, ...
SAMPLE = 160.0  # numbers held for each sample of a mini-batch of `softmax`
OF_MESSAGE = 170.0  # of a collective, in flows
POINT = 32.0  # of a number of a curve, as Python keeps it
OF_SPAN = 20.0 * SPAN.itemsize  # of a timeline, with the document that is written from it
CGROUP = Path("/sys/fs/cgroup/memory.max")


class Size(NamedTuple):
    """Operations of all runs of an algorithm.

    `gradients`; `seconds`: of computing, at most; `memory`: peak bytes of one process; `steps`: of
    one run, which may be infinite.
    """

    gradients: float
    seconds: float
    memory: float
    steps: float = 1.0


class Part(NamedTuple):
    """The runs of one algorithm of a scenario, with as many seeds, and their size."""

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
    evaluation = GRADIENT + ENTRY * entries * (1 if batch == 1 else 1e5)  # of a data set
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
    """Return whether all runs take little longer than starting processes would.

    `seeds` of each algorithm; None: run.seeds.
    """
    each = count(scenario, scenario.run.seeds if seeds is None else seeds)
    return len(scenario.algorithm) * each.seconds < BRIEF


def demand(
    runs: Iterable[tuple[Scenario, range]],
    execution: Execution | None = None,
) -> None:
    """Refuse scenarios, each with its seeds, beyond a week or this machine's memory.

    Raises InputError with the estimate.
    """
    execution = execution or Execution()
    parts = []
    for scenario, numbers in runs:
        seeds = numbers.stop - numbers.start  # len() takes no more than 2^63
        size = count(scenario, seeds)
        parts += [Part(scenario, each, seeds, size) for each in scenario.algorithm]
    if not parts:
        return
    file = parts[0].scenario.file
    needed = execution.jobs * max(part.size.memory for part in parts)
    there = available()
    if needed > there:
        raise InputError(
            f"{file}: it would need about {number(needed / 2**30)} GiB of memory, and this machine "
            f"has {number(there / 2**30)} to spare; ask for less (objective.dimension, "
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
    """Return the core seconds that runs take together.

    The largest parts are measured; after `PROBING` seconds, or beyond `enough`, the others are
    assumed to stay as far below their counts as these. Where all together cannot reach `enough`,
    returns what they take at most.
    """
    left = sorted(parts, key=lambda part: part.size.seconds, reverse=True)
    most = sum(part.size.seconds for part in left)  # of the parts that are not measured
    found = counted = 0.0
    end = perf_counter() + PROBING
    for part in left:
        if found + most <= enough:
            return found + most
        if counted and (found > enough > 0 or perf_counter() > end):
            break
        try:
            found += measured(part, execution)
        except Exception:  # the run itself will say what is wrong
            return 0.0
        counted, most = counted + part.size.seconds, most - part.size.seconds
    return found * (1 + max(0.0, most) / counted) if counted < inf else found


def measured(part: Part, execution: Execution) -> float:
    """Return the core seconds of the runs of a part, by the steps of a short one."""
    scenario, algorithm, run = part.scenario, part.algorithm, part.scenario.run
    counted = part.size.seconds / part.seeds / max(part.size.steps, 1.0)
    if counted > SLOW:
        return part.size.seconds
    if execution.engine == "auto":  # that of the whole run: a few steps alone never pay off
        whole = pays_off(World(scenario, algorithm))
        execution = replace(execution, engine="batched" if whole else "virtual")
    few = range(execution.together(scenario, algorithm, part.seeds))
    every = run.evaluate_every or max(1.0, min(part.size.steps, 1e9) / POINTS)
    steps, end = 1.0, perf_counter() + PROBING / 2
    while True:
        ends = {"steps": int(steps), "evaluate_every": max(1, int(min(every, steps)))}
        short = scenario.model_copy(update={"run": run.model_copy(update=ends)})
        execution.run(short, algorithm, few[:1])  # compiles, and fills caches
        began = perf_counter()
        made = execution.run(short, algorithm, few)[0]
        taken = perf_counter() - began
        if taken > ENOUGH or made.steps < steps or steps >= part.size.steps or began > end:
            by_time = made.duration / max(made.steps, 1.0)  # of the simulated clock
            whole_run = run.duration / by_time if run.duration and by_time else inf
            left = min(run.steps or inf, whole_run) / max(made.steps, 1.0)
            if left == inf:  # the short run has not moved the clock
                return part.size.seconds
            return taken / len(few) * part.seeds * max(left, 1.0)
        steps = min(8 * steps, part.size.steps)


def available() -> float:
    """Return the bytes of memory that this process may still use."""
    import psutil  # noqa: PLC0415 - only here

    there = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no such limit
        there = min(there, float(CGROUP.read_text(encoding="ascii")))
    return there
