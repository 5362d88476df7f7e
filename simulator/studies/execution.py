"""Execute runs: engine and processes, tasks and their keys, and checks before any run.

A key is a hash of all that determines a task's numbers.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..engines.dispatch import ENGINES, run_replicates, run_world
from ..errors import InputError
from ..inputs import paths, untrusted
from ..objectives import plugins
from ..results import store
from ..results.run import Run
from ..scenario.scenario import Algorithm, Scenario, World

JOBS_PER_CORE = 32  # most processes: with more, a machine only swaps memory

# Tables of a scenario that cannot change a task's numbers; the key adds the task's own algorithm.
PRESENTATION = ("title", "algorithm", "tune", "theory", "validation")
FILES = ("file", "membership", "regions", "platform")  # keys whose values name files

Progress = Callable[[float, int], None]
"""A function called with the number of finished tasks, fractions included, and of all."""


@dataclass(frozen=True)
class Execution:
    """Engine and processes that execute runs; only the engine affects the numbers.

    `jobs` processes on this machine share the tasks, or the Dask cluster whose scheduler listens at
    the address `dask`. Raises InputError for impossible values.
    """

    engine: str = "auto"
    jobs: int = 1
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            engines = ", ".join(ENGINES)
            raise InputError(f"engine {self.engine!r}: unknown; choose one of: {engines}")
        _demand_at_least("jobs", self.jobs, 1)
        if self.jobs > (most := JOBS_PER_CORE * cores()):
            raise InputError(
                f"jobs {self.jobs}: too many for this machine; ask for {most} or fewer"
            )

    def run(
        self,
        scenario: Scenario,
        algorithm: Algorithm,
        seeds: Sequence[int],
        *,
        spans: int = 0,
        replicates: Sequence[int] | None = None,
    ) -> list[Run]:
        """Run an algorithm with seeds, or their bootstrap `replicates`; store the first's spans."""
        world = World(scenario, algorithm)
        if replicates is not None:
            return run_replicates(world, seeds, replicates, engine=self.engine)
        return run_world(world, seeds, engine=self.engine, spans=spans)

    def key(self, scenario: Scenario, seeds: range, *more: Any) -> str:
        """Hash all that determines the numbers of a scenario's algorithms, and `more`."""
        tasks = [Task(one, seeds.start, 0, self.engine) for one in scenario.algorithm]
        keys = [task.key(scenario) for task in tasks]
        return hashlib.sha256(store.dump([*keys, len(seeds), *more])).hexdigest()[:32]


def seed_range(scenario: Scenario, count: int | None, first: int) -> range:
    """Return `count` seeds from `first` on; None means run.seeds. Raises InputError."""
    count = scenario.run.seeds if count is None else count
    _demand_at_least("seeds", count, 1)
    _demand_at_least("seed", first, 0)
    return range(first, first + count)


def demand_algorithms(scenario: Scenario) -> None:
    """Raise InputError unless `scenario` has algorithms."""
    if not scenario.algorithm:
        raise InputError(
            f"{scenario.file}: nothing to simulate; add an [[algorithm]] table with a name "
            "(paceline list algorithms)"
        )


def _demand_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} {value}: must be at least {least}")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Task:
    """One algorithm with one seed (and bootstrap `replicate`), recording at most `spans` spans."""

    algorithm: Algorithm
    seed: int
    spans: int
    engine: str
    replicate: int | None = None

    def key(self, scenario: Scenario) -> str:
        """Hash everything that determines the task's numbers."""
        table = {key: value for key, value in scenario.table.items() if key not in PRESENTATION}
        table["run"] = {key: value for key, value in table["run"].items() if key != "seeds"}
        algorithm, program = self.algorithm, scenario.programs[self.algorithm.name]
        notes = list(algorithm.notes)  # lists of changes by other tables
        task = [algorithm.table, algorithm.label, notes, self.seed, self.spans, self.engine]
        task += [self.replicate]
        files = [*_hashes(table, scenario.file).values()]
        plugin = plugins.plugin_of(scenario.objective)
        code = code_hash(
            program.worker.__code__.co_filename,
            *(plugin.sources(scenario.objective) if plugin else ()),
        )
        versions, data = plugins.versions(scenario.objective), plugins.data(scenario.objective)
        text = store.dump([table, task, files, data, versions, code])
        return hashlib.sha256(text).hexdigest()[:32]


@cache
def code_hash(*others: str | Path) -> str:
    """Hash the sources of the simulator, and `others`, which may change within one version."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    contents = [path.read_bytes() for path in [*sources, *map(Path, others)]]
    return hashlib.sha256(b"".join(contents)).hexdigest()


def settings(command: str, scenario: Scenario, **more: Any) -> dict[str, Any]:
    """Return all settings that determine a command's results; `more` adds its options."""
    table, objective = scenario.table, scenario.objective
    return {
        "command": command,
        "scenario": table,
        "files": _hashes(table, scenario.file),
        "data": hashlib.sha256(store.dump(plugins.data(objective))).hexdigest(),
        "versions": plugins.versions(objective),
        "programs": sorted(scenario.added),
        **more,
    }


def _hashes(table: Any, file: str) -> dict[str, str]:
    """Return the hashes of the files that a scenario's table names, by name."""
    found = {}
    for name in (name for path, name in paths.named(table) if path[-1] in FILES):
        try:
            data = untrusted.data(Path(file).parent / name, untrusted.LARGEST_WRITTEN)
        except (OSError, ValueError):  # it lies elsewhere: keys must differ
            data = os.urandom(16)
        found[name] = hashlib.sha256(data).hexdigest()
    return found
