"""`paceline sweep`: run a scenario at many points of its keys, and collect one table."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...load.load import Programs, loaded, varied
from ...objectives import plugins
from ...results import statistics, store
from ...results.figures import style
from ...results.store import Destination
from ...scenario.scenario import Scenario
from .. import executors, size
from ..execution import Execution, Progress, Task, demand_algorithms, seed_range, settings
from . import figure, table
from . import points as grids
from .points import Point
from .table import Record, SweepResult


@dataclass(frozen=True)
class SweepTask:
    """A point, with all its algorithms and seeds."""

    scenario: Scenario
    seeds: range
    point: Point

    def key(self, engine: str) -> str:
        """Hash everything that determines the point's numbers."""
        tasks = [Task(one, self.seeds.start, 0, engine) for one in self.scenario.algorithm]
        keys = [*(task.key(self.scenario) for task in tasks), len(self.seeds)]
        return hashlib.sha256(store.dump(keys)).hexdigest()[:32]


def sweep(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    points: Sequence[Mapping[str, Any]] = (),
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> SweepResult:
    """Simulate `scenario` at every combination of values, or at every point.

    Keys and values are those of `--set` ("algorithm.local-sgd.tau", "20 ms"); values may also be
    numbers, lists and dicts. The last key varies fastest. All points are checked before anything
    runs, and equal points are computed once. The other options are those of
    `simulate`. With `out`, everything finished stays there, so that the same call, or one with more
    points, computes only the rest. A table of other settings, or of other points than these, is
    replaced only if `overwrite`. Raises InputError.
    """
    scenario = loaded(scenario, programs)
    if vary and points:
        raise InputError("vary and points: both given; leave one out")
    chosen = grids.grid(_axes(vary)) if vary else [grids.texts(point) for point in points]
    grids.check(chosen)
    scenarios = table.labelled(_scenarios(scenario, chosen))
    execution = Execution(engine, jobs, dask)
    ranges = [seed_range(scenario, seeds, seed) for scenario in scenarios]
    for one in scenarios:
        demand_algorithms(one)
    if not force:
        size.demand(zip(scenarios, ranges, strict=True), execution)
    tasks = [*map(SweepTask, scenarios, ranges, chosen)]
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    stated = settings("sweep", scenario, points=chosen, **how)
    with executors.study(execution, store.SweepDirectory, stated, out, overwrite) as place:
        work = executors.Work(
            partial(run_tasks, execution),
            _description,
            lambda block: len(block[0].seeds) * len(block[0].scenario.algorithm),
            plugins.versions(*(scenario.objective for scenario in scenarios)),
            lambda task: task.key(engine),
            # shuffled, so that the remaining time can be estimated early
            lambda left: [[at] for at in random.Random(0).sample(left, len(left))],
        )
        records, resumed = executors.complete(place, work, tasks, progress)
        result = table.collected(scenario, chosen, scenarios, records, resumed)
        if place.directory:
            save(result, place.directory)
    return result


def _axes(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of every key as texts; one text may hold several."""
    return {
        key: grids.split(values, key)
        if isinstance(values, str)
        else [grids.texts({key: value})[key] for value in values]
        for key, values in vary.items()
    }


def _scenarios(base: Scenario, points: Sequence[Point]) -> list[Scenario]:
    """Return the scenario at every point. Raises InputError for the first fault."""
    scenarios = list[Scenario]()
    for point in points:
        overrides = [f"{key}={text}" for key, text in point.items()]
        try:
            scenarios.append(varied(base, overrides))
        except InputError as error:
            message = str(error)
            for text in overrides:
                message = message.replace(f"--set {text}", text)
            raise InputError(message) from None
    return scenarios


def _description(tasks: Sequence[SweepTask]) -> str:
    (task,) = tasks
    point = ", ".join(f"{key}={value}" for key, value in task.point.items())
    return f"{point} ({statistics.seeds(task.seeds)})"


def run_tasks(execution: Execution, tasks: Sequence[SweepTask]) -> list[Record]:
    """Run tasks in this process."""
    return [table.measured(task.scenario, task.seeds, execution) for task in tasks]


def save(result: SweepResult, directory: store.SweepDirectory) -> None:
    """Write the table, the figure and sweep.json."""
    document = {
        "scenario": result.json()["scenario"] | {"table": result.scenario.table},
        "vary": result.vary,
        "points": result.points,
        "verdict": result.verdict.json(),
        "picks": result.picks,
        "bounds": result.bounds,
        "engine": result.engine,
        "versions": result.versions,
        "notes": result.notes,
    }
    files = {"sweep.csv": table.csv_table(result.rows)}
    style.save(
        partial(figure.files, result),
        lambda figures: directory.replace({**files, **figures}, document),
        directory.path,
    )
