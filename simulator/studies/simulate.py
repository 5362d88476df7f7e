"""`paceline simulate`: plan a task for every algorithm and seed, execute them, save the result."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from ..engines.dispatch import batches_seeds
from ..load.load import Programs, loaded
from ..objectives import plugins
from ..results import statistics, store
from ..results.run import Run
from ..results.store import Destination
from ..scenario.scenario import Scenario, World
from . import executors, links, size
from .execution import Execution, Progress, Task, demand_algorithms, seed_range, settings
from .executors import Place
from .result import Result, save

TOGETHER = 64  # most seeds that run at once: a killed command may lose them


def simulate(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    *,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    kept: store.Directory | None = None,
    programs: Programs = None,
    progress: Progress | None = None,
    paired: bool = False,
    force: bool = False,
) -> Result:
    """Simulate every algorithm of `scenario` (or its file) with `seeds` seeds from `seed` on.

    `jobs` processes, or the Dask cluster at address `dask`, share the tasks; the numbers are the
    same. With `out`, finished tasks are stored there immediately, so that the same call resumes
    after an interruption. At the end the complete run directory is written. It replaces results of
    another scenario or of other settings only if `overwrite`. With `kept`, finished tasks stay
    there for other calls that need them. `programs`, by name, extend the catalogue; their code has
    no version, so such runs are not resumed. `paired`: the measured runs that are predicted have
    the same delays as these seeds, so intervals leave out the spread of delays if the scenario
    extends a profile. `force`: run even if the estimated time or memory exceeds the safety limit.
    Raises InputError.
    """
    scenario = loaded(scenario, programs)
    execution = Execution(engine, jobs, dask)
    numbers = seed_range(scenario, seeds, seed)
    demand_algorithms(scenario)
    if not force:
        size.demand([(scenario, numbers)], execution)
    stated = settings("simulate", scenario, seeds=list(numbers), engine=engine, paired=paired)
    with executors.study(execution, store.Directory, stated, out, overwrite) as place:
        inside = place._replace(directory=kept or place.directory)
        result = run_on(inside, scenario, numbers, progress=progress, paired=paired)
        if place.directory:
            save(result, place.directory)
    return result


def run_on(
    place: Place,
    scenario: Scenario,
    numbers: Sequence[int],
    *,
    progress: Progress | None = None,
    paired: bool = False,
) -> Result:
    """Simulate the seeds `numbers` of `scenario` at a place.

    Many short simulations can thus share one executor, whose processes take longer to start.
    """
    tasks, execution = plan(scenario, numbers, place.execution.engine, paired), place.execution
    work: executors.Work[Sequence[Task], list[Run]] = executors.Work(
        partial(run_block, scenario, execution),
        lambda block: (
            f"{block[0].algorithm.label} ({statistics.seeds(task.seed for task in block)})"
        ),
        len,
        plugins.versions(scenario.objective),
        (lambda task: task.key(scenario)) if place.kept else None,
        partial(_blocks, scenario, execution, tasks),
    )
    runs, resumed = executors.complete(place, work, tasks, progress)
    count = len(scenario.algorithm) * len(numbers)
    errors = links.uncalibrated(scenario, statistics.group(runs[:count]), execution)
    return Result(scenario, list(numbers), runs[:count], resumed, runs[count:], paired, errors)


def plan(scenario: Scenario, seeds: Sequence[int], engine: str, paired: bool) -> list[Task]:
    """Return a task per algorithm and seed, then the tasks of bootstrap replicates.

    The first seed records a timeline. Replicates have the seeds of the runs if `paired`, else other
    seeds.
    """
    tasks = [
        Task(algorithm, seed, scenario.run.timeline_spans if seed == seeds[0] else 0, engine)
        for algorithm in scenario.algorithm
        for seed in seeds
    ]
    if scenario.calibration is None:
        return tasks
    first, count = seeds[0], len(seeds)
    return tasks + [
        Task(algorithm, seeds[number % count] if paired else first + number, 0, engine, number)
        for algorithm in scenario.algorithm
        for number in range(scenario.calibration.replicates)
    ]


def _blocks(
    scenario: Scenario, execution: Execution, tasks: Sequence[Task], left: Sequence[int]
) -> list[list[int]]:
    """Group the tasks `left` into blocks of one algorithm's seeds, in the order of the seeds."""
    shares = list[list[int]]()
    pairs = groupby(left, lambda at: (tasks[at].algorithm.label, tasks[at].replicate is None))
    for (_, seeds), same in pairs:
        group = [*same]
        algorithm = tasks[group[0]].algorithm
        many = seeds and batches_seeds(World(scenario, algorithm), execution.engine)
        count = min(TOGETHER, -(-len(group) // execution.jobs)) if many else 1
        shares += [group[start : start + count] for start in range(0, len(group), count)]
    return sorted(shares, key=lambda block: tasks[block[0]].seed)


def run_block(scenario: Scenario, execution: Execution, tasks: Sequence[Task]) -> list[Run]:
    """Run tasks of one algorithm in this process."""
    first, seeds = tasks[0], [task.seed for task in tasks]
    replicates = [task.replicate for task in tasks if task.replicate is not None] or None
    return execution.run(scenario, first.algorithm, seeds, spans=first.spans, replicates=replicates)
