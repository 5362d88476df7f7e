"""Estimate a simulation's time and memory before it starts; refuse excessive ones.

Operations are counted, and never measured, so the time is right only in its order of magnitude. The
limit stops mistakes, such as a billion steps; --force overrides it.
"""

from collections.abc import Iterable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from ..engines.dispatch import batches_seeds
from ..engines.observer import POINTS
from ..errors import InputError
from ..objectives.build import dimension_of
from ..results.run import COLUMNS
from ..results.statistics import human, number
from ..scenario.scenario import Scenario, World
from .execution import Execution, cores

LONGEST = 7 * 86_400.0  # seconds of computing that need --force
BRIEF = 6.0  # seconds that are not worth the start of processes

# Seconds of operations, in the shipped scenarios.
GRADIENT = 1e-5
COMPILED = 1e-7  # per gradient without a loss in the batched engine
ENTRY = 1e-9  # per entry of a vector, and of a sample's activations
MESSAGE = 1e-5  # per flow
SAMPLES = 1e4  # samples of the data set that evaluates a loss

# Bytes, from measured peaks.
VECTORS = 8  # vectors per worker: parameters, gradient, noise, optimum, payload, ...
SAMPLE = 160.0  # numbers per sample of a mini-batch of `softmax`
OF_MESSAGE = 170.0  # per flow of a collective
POINT = 32.0  # per number of a curve, as a Python object
CGROUP = Path("/sys/fs/cgroup/memory.max")


class Size(NamedTuple):
    """The size of all runs of an algorithm.

    `gradients`: their number; `seconds`: of computing; `memory`: peak bytes of one process.
    """

    gradients: float
    seconds: float
    memory: float


def count(scenario: Scenario, seeds: int, *, compiled: bool = False) -> Size:
    """Count the operations of one algorithm of a scenario with `seeds` seeds.

    A run that ends by its duration is assumed to compute all the time. `compiled`: whether the
    batched engine runs.
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
    gradient = COMPILED if compiled and not entries else GRADIENT + ENTRY * entries * batch
    evaluation = GRADIENT + ENTRY * entries * (1 if batch == 1 else SAMPLES)
    memory = 8.0 * entries * workers * VECTORS
    if objective.kind == "softmax":
        memory += 8.0 * workers * batch * (SAMPLE + 3 * objective.hidden)
    if scenario.network.model == "flows" and scenario.network.collective == "ring":
        gradient += MESSAGE * 2 * workers
        memory += OF_MESSAGE * 2 * workers * workers
    memory += POINT * len(COLUMNS) * seeds * (points if points < inf else 2 * POINTS)
    took = steps * workers * gradient + points * evaluation
    return Size(steps * workers * seeds, took * seeds, memory)


def brief(scenario: Scenario, seeds: int | None) -> bool:
    """Return whether all runs together take hardly longer than starting processes.

    `seeds`: per algorithm; None: run.seeds.
    """
    sizes = count(scenario, scenario.run.seeds if seeds is None else seeds)
    return len(scenario.algorithm) * sizes.seconds < BRIEF


def demand(runs: Iterable[tuple[Scenario, range]], execution: Execution | None = None) -> None:
    """Refuse scenarios that need more than a week or this machine's memory.

    Every scenario comes with its seeds. Raises InputError with the estimate.
    """
    execution = execution or Execution()
    sizes, file = list[Size](), ""
    for scenario, numbers in runs:
        seeds = numbers.stop - numbers.start  # len() takes no more than 2^63
        for algorithm in scenario.algorithm:
            compiled = batches_seeds(World(scenario, algorithm), execution.engine)
            sizes.append(count(scenario, seeds, compiled=compiled))
        file = scenario.file
    needed = execution.jobs * max((size.memory for size in sizes), default=0.0)
    there = available()
    if needed > there:
        raise InputError(
            f"{file}: this would need about {number(needed / 2**30)} GiB of memory, and this "
            f"machine has {number(there / 2**30)} to spare; ask for less (objective.dimension, "
            "cluster.workers, seeds, jobs, a larger run.evaluate_every), or insist with --force"
        )
    seconds = sum(size.seconds for size in sizes) / min(execution.jobs, cores())
    if LONGEST < seconds < inf:  # steps without a mean time cannot be counted
        gradients = sum(size.gradients for size in sizes)
        raise InputError(
            f"{file}: some {gradients:.1e} gradients would take about {human(seconds)}; ask for "
            "less (run.steps, run.duration, seeds, cluster.workers, objective.dimension), or "
            "insist with --force"
        )


def available() -> float:
    """Return how many bytes of memory this process may still use."""
    import psutil  # noqa: PLC0415 - only here

    there = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no such limit
        there = min(there, float(CGROUP.read_text(encoding="ascii")))
    return there
