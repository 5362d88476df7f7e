"""Run a scenario at many points of its keys, on many cores or a Dask cluster, into one table."""

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import SHOWN, Programs, load, parse
from paceline.simulator.objectives import plugins
from paceline.simulator.results import statistics, store
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.studies import executors, size
from paceline.simulator.studies.simulate import Progress, Task, check
from paceline.simulator.studies.sweep import figure, table
from paceline.simulator.studies.sweep import points as grids
from paceline.simulator.studies.sweep.points import Point
from paceline.simulator.studies.sweep.table import Record, SweepResult

BATCH = 16  # tasks that a Dask worker is sent at once: sending one takes Dask some 5 ms
SLICE = 0.25  # seconds after which a batch gives back what it has done


@dataclass(frozen=True)
class Work:
    """One algorithm at one point, with all seeds."""

    scenario: Scenario
    algorithm: Algorithm
    seeds: range
    point: Point

    def key(self, engine: str) -> str:
        """Hash of everything that determines its numbers."""
        first = Task(self.algorithm, self.seeds.start, spans=0, engine=engine)
        return f"{first.key(self.scenario)}-{len(self.seeds)}"


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
    out: str | Path | None = None,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> SweepResult:
    """Simulate `scenario` at every combination of the values of `vary`, or at each of `points`.

    Keys are as `--set` takes them ("algorithm.local-sgd.tau"), values too ("20 ms"), or numbers,
    lists and dicts. The last key varies fastest. All points are checked before anything runs, and
    what is the same at several of them is computed once. The other options are `simulate`'s; with
    `out`, everything finished is kept there for good, so that the same call, or one with more
    points, computes only what is new. Raises InputError.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario, programs=programs)
    if vary and points:
        raise InputError("vary and points: both given; leave one out")
    asked = grids.grid(_axes(vary)) if vary else [grids.texts(point) for point in points]
    grids.check(asked)
    scenarios = _scenarios(scenario, asked, programs)
    works = []
    counts = [each.run.seeds if seeds is None else seeds for each in scenarios]
    for point, each, count in zip(asked, scenarios, counts, strict=True):
        check(each, count, seed, engine, jobs, programs)
        numbers = range(seed, seed + count)
        works += [Work(each, algorithm, numbers, point) for algorithm in each.algorithm]
    if not force:
        size.demand(zip(scenarios, counts, strict=True), engine, jobs)
    directory = store.SweepDirectory(Path(out)) if out is not None else None
    versioned = programs is None
    kept = directory.kept if directory and versioned else {}

    keys = [work.key(engine) if versioned else str(place) for place, work in enumerate(works)]
    tasks = dict(zip(keys, works, strict=True))
    done = {key: kept[key] for key in tasks if key in kept}
    resumed = ready = sum(len(tasks[key].seeds) for key in done)
    total = sum(len(task.seeds) for task in tasks.values())
    if progress:
        progress(ready, total)
    todo = {key: task for key, task in tasks.items() if key not in done}
    versions = plugins.versions(*(each.objective for each in scenarios))
    run = partial(run_batch, engine=engine, programs=programs, expected=versions)
    with closing(_results(run, todo, jobs, dask)) as results:
        for key, record in results:
            done[key] = record
            ready += len(tasks[key].seeds)
            if directory and versioned:
                directory.keep_record(key, record)
            if progress:
                progress(ready, total)
    result = table.collected(scenario, asked, scenarios, [done[key] for key in keys], resumed)
    if directory:
        save(result, directory)
    return result


def _axes(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of each key as texts; one text may hold several, as on a command line."""
    return {
        key: grids.split(values, key)
        if isinstance(values, str)
        else [grids.texts({key: value})[key] for value in values]
        for key, values in vary.items()
    }


def _scenarios(base: Scenario, points: Sequence[Point], programs: Programs) -> list[Scenario]:
    """Return the scenario at each point; raise InputError for the first few things wrong."""
    found: list[Scenario] = []
    wrong: dict[str, None] = {}
    for point in points:
        overrides = [f"{key}={text}" for key, text in point.items()]
        try:
            found.append(
                parse(
                    base.table,
                    file=base.file,
                    folder=Path(base.file).parent,
                    overrides=overrides,
                    programs=programs,
                )
            )
        except InputError as error:
            said = str(error)
            for text in overrides:
                said = said.replace(f"--set {text}", text)
            wrong |= dict.fromkeys(said.splitlines())
    lines = [*wrong]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"{len(lines) - SHOWN} more, shown once these are corrected"]
    if lines:
        raise InputError("\n".join(lines))
    return found


def _results(
    work: Callable[[Sequence[Work]], list[Record]],
    tasks: Mapping[str, Work],
    jobs: int,
    dask: str | None,
) -> Generator[tuple[str, Record], None, None]:
    """Do the tasks, wherever that is; yield each result, with its task's key, when it is there."""
    todo = [*tasks]
    random.Random(0).shuffle(todo)  # so that the time left can be guessed early
    size = 1 if dask is None else BATCH
    with executors.start(max(1, min(jobs, len(todo))), dask if todo else None) as executor:
        while todo:
            batches = [todo[start : start + size] for start in range(0, len(todo), size)]
            given = {index: [tasks[key] for key in keys] for index, keys in enumerate(batches)}
            undone = []
            for index, records in executors.results(executor, work, given, _called):
                yield from zip(batches[index], records, strict=False)
                undone += batches[index][len(records) :]
            todo, size = undone, max(1, size // 4)


def _called(tasks: Sequence[Work]) -> str:
    """What a batch's first task is, for whoever reads that it failed."""
    first = tasks[0]
    point = ", ".join(f"{key}={value}" for key, value in first.point.items())
    return f"{first.algorithm.label} with {point} ({statistics.seeds(first.seeds)})"


def run_batch(
    tasks: Sequence[Work], *, engine: str, programs: Programs, expected: Mapping[str, str]
) -> list[Record]:
    """Run tasks until `SLICE` has passed, one at least; refuse versions other than `expected`."""
    store.demand_versions(expected)
    records: list[Record] = []
    end = time.monotonic() + SLICE
    for task in tasks:
        runs = run_seeds(
            task.scenario, task.algorithm, task.seeds, engine=engine, programs=programs
        )
        records.append(table.measured(task.scenario, runs))
        if time.monotonic() > end:
            break
    return records


def save(result: SweepResult, directory: store.SweepDirectory) -> None:
    """Write the tables, the figure and sweep.json."""
    files = {
        "sweep.csv": table.csv_table(result.rows),
        "sweep-seeds.csv": table.csv_table(result.seed_rows),
        **figure.files(result),
    }
    document = {
        "scenario": result.json()["scenario"] | {"table": result.scenario.table},
        "vary": result.vary,
        "points": result.points,
        "engine": result.engine,
        "versions": result.versions,
        "notes": result.notes,
    }
    directory.replace(files, document)
