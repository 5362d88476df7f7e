"""Run every algorithm of a scenario with every seed, on one core, many, or a Dask cluster."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.cluster.workers import ideal_rate
from paceline.simulator.engines.dispatch import ENGINES, batches_seeds, run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import Programs, known_programs, load
from paceline.simulator.objectives import plugins
from paceline.simulator.programs import catalogue
from paceline.simulator.results import bottleneck, statistics, store, timeline, unsaturated, usage
from paceline.simulator.results.figures import curves
from paceline.simulator.results.pick import pick
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.scenario.tables import Prices
from paceline.simulator.studies import bootstrap, executors, size

DETERMINING = (  # folders whose code determines a run's numbers
    *("inputs", "distributions", "programs", "scenario", "cluster", "network"),
    *("objectives", "load", "engines"),
)
JOBS = 32  # processes for each core, at most: beyond that a machine only swaps
TOGETHER = 64  # seeds that are run at once, at most: what a killed command may lose
# What of a scenario's table cannot change the numbers of a task: its own algorithm is added back.
PRESENTATION = ("title", "algorithm", "tune", "theory", "validation")
FILES = ("file", "regions", "platform")  # keys whose values name files
LOSS = {
    "bound": "bound on the squared gradient norm",
    "softmax": "training loss",
    "torch": "training loss",
}

Progress = Callable[[int, int], None]
"""Called with the number of finished tasks and of all tasks."""


@dataclass(frozen=True)
class Task:
    """One algorithm with one seed, recording at most `spans` spans.

    `replicate`: with whose numbers, where a profile says how far its own may be off.
    """

    algorithm: Algorithm
    seed: int
    spans: int
    engine: str
    replicate: int | None = None

    def key(self, scenario: Scenario) -> str:
        """Hash of everything that determines the task's numbers."""
        table = {key: value for key, value in scenario.table.items() if key not in PRESENTATION}
        table["run"] = {key: value for key, value in table["run"].items() if key != "seeds"}
        algorithm = self.algorithm
        told = list(algorithm.notes)  # what other tables change
        task = [algorithm.table, algorithm.label, told, self.seed, self.spans, self.engine]
        task += [self.replicate]
        files = [hashlib.sha256(data).hexdigest() for data in _samples(table, scenario.file)]
        maker = plugins.other(scenario.objective)
        code = _code(
            catalogue()[self.algorithm.name].worker.__code__.co_filename,
            *(maker.sources(scenario.objective) if maker else ()),
        )
        versions, data = plugins.versions(scenario.objective), plugins.data(scenario.objective)
        text = store.dump([table, task, files, data, versions, code])
        return hashlib.sha256(text).hexdigest()[:32]


@cache
def _code(*others: str | Path) -> str:
    """Hash the sources that numbers depend on: they may change while the version does not.

    What only studies or shows runs is left out, so that a new figure forgets no run.
    """
    ours = Path(__file__).parents[1]
    sources = [path for room in DETERMINING for path in sorted((ours / room).rglob("*.py"))]
    sources += [ours / "results" / "run.py", ours / "studies" / "bootstrap.py"]
    contents = [path.read_bytes() for path in [*sources, *map(Path, others)]]
    return hashlib.sha256(b"".join(contents)).hexdigest()


def _samples(table: Any, file: str) -> Iterator[bytes]:
    """Contents of the files that a scenario names."""
    if isinstance(table, Mapping):
        for name in (table[key] for key in FILES if isinstance(table.get(key), str)):
            try:
                yield (Path(file).parent / name).read_bytes()
            except OSError:  # it lies elsewhere: no two keys may be equal
                yield os.urandom(16)
        table = list(table.values())
    if isinstance(table, list):
        for item in table:
            yield from _samples(item, file)


@dataclass(frozen=True)
class Result:
    """What `simulate` returns: the runs, algorithm by algorithm and seed by seed.

    `replicates`: where numbers come from a profile, runs with others that may as well be true.
    `paired`: what is predicted will meet the very delays of `runs`.
    """

    scenario: Scenario
    seeds: list[int]
    runs: list[Run]
    resumed: int = 0
    replicates: list[Run] = field(default_factory=list)
    paired: bool = False

    @property
    def engine(self) -> str:
        """The engines that ran."""
        return ", ".join(sorted({run.engine for run in self.runs}))

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """The runs by label."""
        return statistics.group(self.runs)

    @cached_property
    def algorithms(self) -> list[dict[str, Any]]:
        """One summary per algorithm, as in the JSON document."""
        return [self._summary(algorithm) for algorithm in self.scenario.algorithm]

    def _summary(self, algorithm: Algorithm) -> dict[str, Any]:
        scenario, runs = self.scenario, self.groups[algorithm.label]
        summary = statistics.summarise(
            runs,
            target=scenario.run.target_loss,
            workers=scenario.cluster.workers,
            ideal_rate=ideal_rate(scenario),
        )
        if scenario.cost == Prices():  # no prices, no cost: that is not a cost of zero
            summary["cost"] = None
        named = {
            "label": algorithm.label,
            "name": algorithm.name,
            "parameters": algorithm.written,
        }
        found = {
            "failures": usage.failures(runs),
            "network": usage.network(runs),
            "jobs": usage.jobs(runs),
            "workers": usage.workers(runs),
            "bottleneck": bottleneck.sentence(scenario, algorithm, runs),
        }
        if self.replicates:
            found["interval90"] = bootstrap.intervals(
                runs,
                statistics.group(self.replicates)[algorithm.label],
                target=scenario.run.target_loss,
                paired=self.paired,
            )
        return named | dict(statistics.jsonable(summary | found))

    @property
    def failures(self) -> list[str]:
        """A line for each algorithm whose nodes crashed, or that left some out."""
        return [
            usage.of_failures(row["label"], row["failures"], row["breakdown"])
            for row in self.algorithms
            if row["failures"] is not None
        ]

    @property
    def jobs(self) -> list[str]:
        """A line for each algorithm and other job on the network: how the job fared beside it."""
        return [
            usage.of_job(job, self.scenario.job[job["job"]].file, row["label"])
            for row in self.algorithms
            for job in row["jobs"]
        ]

    @cached_property
    def pick(self) -> dict[str, Any]:
        """Which algorithm to use, as `results.pick` says it."""
        return dict(statistics.jsonable(pick(self.groups, self.scenario.run.target_loss)))

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of the numbers should know."""
        return [
            *statistics.notes(self.groups),
            *unsaturated.notes(self.scenario, self.runs),
            *bootstrap.notes(self.scenario, self.groups),
        ]

    def curves(self) -> dict[str, dict[str, np.ndarray]]:
        """Each label's columns (`trace.COLUMNS`) as arrays of shape (seeds, points).

        The points are those at the steps that every seed has evaluated.
        """
        return {label: statistics.aligned(runs) for label, runs in self.groups.items()}

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per evaluation (label, seed and `trace.COLUMNS`): rows of a data frame."""
        return statistics.records(self.runs)

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline simulate --json`."""
        scenario = self.scenario
        return {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "engine": self.engine,
            "seeds": self.seeds,
            "versions": plugins.versions(scenario.objective),
            "algorithms": self.algorithms,
            "pick": self.pick,
            "notes": self.notes,
        }


def simulate(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    *,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | None = None,
    kept: store.Directory | None = None,
    programs: Programs = None,
    progress: Progress | None = None,
    paired: bool = False,
    force: bool = False,
) -> Result:
    """Simulate every algorithm of `scenario` (or of such a file) with `seeds` seeds from `seed` on.

    `jobs` processes, or the Dask cluster at address `dask`, share the tasks; the numbers are the
    same. With `out`, finished tasks are kept there at once, so that the same call resumes after an
    interruption, and the whole run directory is written in the end; with `kept`, finished tasks
    stay there, for other calls that need them. `programs`, by name, join the
    catalogue's (a scenario must have been loaded with them); as their code has no version, such
    runs are not resumed. `paired`: what is predicted will meet the very delays of these seeds, so
    that intervals, if the scenario extends a profile, are of nothing else. `force`: even what seems
    too much for a week, or this machine's memory. Raises InputError.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario, programs=programs)
    seeds = scenario.run.seeds if seeds is None else seeds
    check(scenario, seeds, seed, engine, jobs, programs)
    if not force:
        size.demand([(scenario, seeds)], engine, jobs)
    numbers = range(seed, seed + seeds)
    tasks = [
        Task(algorithm, number, scenario.run.timeline_spans if number == seed else 0, engine)
        for algorithm in scenario.algorithm
        for number in numbers
    ]
    tasks += _replicates(scenario, numbers, engine, paired)
    directory = store.Directory(Path(out)) if out is not None else None
    parts = (kept or directory) if programs is None else None
    keys = [task.key(scenario) for task in tasks] if parts else []
    found = [parts.part(key) for key in keys] if parts else []
    done = {index: run for index, run in enumerate(found) if run}
    resumed = len(done)
    blocks = _blocks(scenario, tasks, done, jobs, programs)
    alone = jobs == 1 and dask is None
    work = partial(
        run_block,
        scenario,
        threads=executors.cores() if alone else 1,
        programs=programs,
        expected=plugins.versions(scenario.objective),
    )
    with executors.start(jobs, dask) as executor:
        if progress:
            progress(len(done), len(tasks))
        todo = {number: [tasks[index] for index in block] for number, block in enumerate(blocks)}
        for number, fresh in executors.results(executor, work, todo, _called):
            for index, run in zip(blocks[number], fresh, strict=True):
                done[index] = run
                if parts:
                    parts.keep(keys[index], run)
            if progress:
                progress(len(done), len(tasks))
    runs = [done[index] for index in range(len(tasks))]
    count = len(scenario.algorithm) * seeds
    result = Result(scenario, list(numbers), runs[:count], resumed, runs[count:], paired)
    if directory:
        save(result, directory)
    return result


def _replicates(scenario: Scenario, seeds: Sequence[int], engine: str, paired: bool) -> list[Task]:
    """Tasks that tell how far the others may be off; each has a seed of its own, if not paired."""
    if scenario.calibration is None:
        return []
    return [
        Task(
            algorithm,
            seeds[number % len(seeds)] if paired else seeds[0] + number,
            0,
            engine,
            number,
        )
        for algorithm in scenario.algorithm
        for number in range(scenario.calibration.replicates)
    ]


def _blocks(
    scenario: Scenario,
    tasks: Sequence[Task],
    done: Mapping[int, Run],
    jobs: int,
    programs: Programs,
) -> list[list[int]]:
    """Numbers of the tasks to do, those together that one call does: seeds of one algorithm.

    In the order of their seeds, so that the time left can be guessed early.
    """
    groups: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        if index not in done:
            kind = "" if task.replicate is None else "replicates of "
            groups.setdefault(f"{kind}{task.algorithm.label}", []).append(index)
    found = []
    for group in groups.values():
        first = tasks[group[0]]
        many = first.replicate is None and batches_seeds(
            scenario, first.algorithm, first.engine, programs
        )
        size = min(TOGETHER, -(-len(group) // jobs)) if many else 1
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(found, key=lambda block: tasks[block[0]].seed)


def save(
    result: Result,
    directory: store.Directory,
    *,
    summary: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    whole: bool = True,
) -> None:
    """Write the run directory of `result`, with what else the summary and it are to hold.

    `whole`: nothing of it is left to do, so that what was kept for that is forgotten.
    """
    scenario, groups = result.scenario, result.groups
    written = {
        "curves.csv": statistics.csv_table(result.runs).encode(),
        "timeline.json": store.dump(timeline.events(groups), indent=None),
        **curves.figures(
            groups,
            title=scenario.title,
            target=scenario.run.target_loss,
            loss=LOSS.get(scenario.objective.kind, "loss"),
        ),
    }
    document = {
        "scenario": {"title": scenario.title, "file": scenario.file, "table": scenario.table},
        "seeds": result.seeds,
        "versions": plugins.versions(scenario.objective),
        "summary": result.json() | dict(summary or {}),
    }
    finish = directory.finish if whole else directory.replace
    finish(written | dict(files or {}), document)


def check_options(seeds: int, seed: int, engine: str, jobs: int) -> None:
    """Refuse options that every command has and that make no sense. Raises InputError."""
    if engine not in ENGINES:
        raise InputError(f"engine {engine!r}: unknown; choose one of: {', '.join(ENGINES)}")
    for name, value, least in (("seeds", seeds, 1), ("seed", seed, 0), ("jobs", jobs, 1)):
        if value < least:
            raise InputError(f"{name} {value}: must be at least {least}")
    if jobs > (most := JOBS * executors.cores()):
        raise InputError(f"jobs {jobs}: too many for this machine; ask for {most} or fewer")


def check(  # noqa: PLR0913, PLR0917 - what was asked for
    scenario: Scenario, seeds: int, seed: int, engine: str, jobs: int, programs: Programs
) -> None:
    """Refuse what cannot be run."""
    check_options(seeds, seed, engine, jobs)
    if not scenario.algorithm:
        raise InputError(
            f"{scenario.file}: nothing to simulate; add an [[algorithm]] table with a name "
            "(paceline list programs)"
        )
    known = known_programs(programs)
    for name in (each.name for each in scenario.algorithm if each.name not in known):
        raise InputError(
            f"{scenario.file}: {name}: unknown here; give simulate the programs that load had"
        )


def _called(tasks: Sequence[Task]) -> str:
    """What tasks of one algorithm are, for whoever reads that they failed."""
    return f"{tasks[0].algorithm.label} ({statistics.seeds(task.seed for task in tasks)})"


def run_block(
    scenario: Scenario,
    tasks: Sequence[Task],
    *,
    threads: int,
    programs: Programs,
    expected: Mapping[str, str],
) -> list[Run]:
    """Run tasks of one algorithm, wherever that is; refuse versions other than those `expected`."""
    store.demand_versions(expected)
    first = tasks[0]
    if first.replicate is not None:
        return bootstrap.run_replicates(
            scenario,
            first.algorithm,
            [task.seed for task in tasks],
            [task.replicate or 0 for task in tasks],
            engine=first.engine,
            threads=threads,
            programs=programs,
        )
    return run_seeds(
        scenario,
        first.algorithm,
        [task.seed for task in tasks],
        engine=first.engine,
        spans=first.spans,
        threads=threads,
        programs=programs,
    )
