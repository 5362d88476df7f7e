"""Time and memory that a simulation needs: estimated before it starts, refused if excessive."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

from paceline.simulator.cluster.workers import ideal_rate
from paceline.simulator.engines.observer import POINTS
from paceline.simulator.errors import InputError
from paceline.simulator.objectives.build import dimension_of
from paceline.simulator.results.run import COLUMNS
from paceline.simulator.results.statistics import human, number
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import Execution

LONGEST = 7 * 86_400.0  # seconds of computing that need --force
VECTORS = 3  # of each worker at once: its parameters, its gradient, the message being sent
POINT = 32.0  # bytes of a number of a curve, as Python keeps it
SECONDS = {  # per gradient, in the fastest engine, by the kind of objective
    "none": 7e-9,
    "bound": 7e-9,
    "quadratic": 1e-7,
    "softmax": 1e-5,
    "torch": 1e-4,
}
VIRTUAL = 1e-6  # seconds per gradient in the virtual engine


@dataclass(frozen=True)
class Size:
    """An estimate, to a factor of ten: gradients of all runs, core seconds, peak bytes."""

    gradients: float
    seconds: float
    memory: float


def estimate(scenario: Scenario, seeds: int, engine: str = "auto") -> Size:
    """Estimate the size of a scenario's runs: every algorithm with `seeds` seeds.

    A run that ends by its duration is assumed to compute all the time; where computing takes no
    time, such a run counts as nothing.
    """
    run, workers = scenario.run, scenario.cluster.workers
    every_run = seeds * max(1, len(scenario.algorithm))
    steps = min(
        inf if run.steps is None else float(run.steps),
        inf if run.duration is None else run.duration * ideal_rate(scenario) / workers,
    )
    steps = steps if isfinite(steps) else 0.0
    gradients = steps * workers * every_run
    each = SECONDS.get(scenario.objective.kind, SECONDS["torch"])
    if engine == "virtual":
        each = max(each, VIRTUAL)
    points = 2.0 * POINTS if run.evaluate_every is None else steps / run.evaluate_every
    entries = dimension_of(scenario.objective) or 0
    memory = 8.0 * VECTORS * entries * workers + POINT * len(COLUMNS) * points * every_run
    return Size(gradients, gradients * each, memory)


def demand(runs: Iterable[tuple[Scenario, range]], execution: Execution | None = None) -> None:
    """Refuse scenarios, each with its range of seeds, that exceed a week or this machine's memory.

    Raises InputError with the estimate.
    """
    execution = execution or Execution()
    import psutil  # noqa: PLC0415 - only here

    file, gradients, seconds, memory = "", 0.0, 0.0, 0.0
    for scenario, seeds in runs:
        count = seeds.stop - seeds.start  # len() takes no more than 2^63
        size = estimate(scenario, count, execution.engine)
        file = scenario.file
        gradients, seconds = gradients + size.gradients, seconds + size.seconds / execution.jobs
        memory = max(memory, size.memory)
    there = float(psutil.virtual_memory().total)
    if seconds > LONGEST:
        raise InputError(
            f"{file}: some {gradients:.1e} gradients would take about {human(seconds)}; ask for "
            "less (run.steps, run.duration, seeds, cluster.workers), or insist with --force"
        )
    if memory > there:
        raise InputError(
            f"{file}: it would need about {number(memory / 2**30)} GiB of memory, and this machine "
            f"has {number(there / 2**30)}; ask for less (objective.dimension, cluster.workers, "
            "seeds, a larger run.evaluate_every), or insist with --force"
        )
