"""How runs are executed, and checks of a command's options before any run starts."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..engines.dispatch import ENGINES, batches_seeds, run_replicates, run_world
from ..errors import InputError
from ..results.run import Run
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.world import World

TOGETHER = 64  # seeds that are run at once, at most: what a killed command may lose
JOBS_PER_CORE = 32  # processes, at most: beyond that a machine only swaps

Progress = Callable[[float, int], None]
"""Called with the number of finished tasks, and shares of one, and that of all tasks."""


@dataclass(frozen=True)
class Execution:
    """Engine and processes that execute runs; numbers depend on none but the engine.

    `jobs` processes on this machine share the tasks, or the Dask cluster whose scheduler listens at
    the address `dask`. Raises InputError for impossible values.
    """

    engine: str = "auto"
    jobs: int = 1
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            known = ", ".join(ENGINES)
            raise InputError(f"engine {self.engine!r}: unknown; choose one of: {known}")
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
        """Run an algorithm with each of `seeds` in this process, `spans` spans of the first.

        `replicates`: the bootstrap replicate of each seed; None: numbers as written.
        """
        world = World(scenario, algorithm)
        if replicates is not None:
            return run_replicates(world, seeds, replicates, engine=self.engine)
        return run_world(world, seeds, engine=self.engine, spans=spans)

    def together(self, scenario: Scenario, algorithm: Algorithm, seeds: int) -> int:
        """Return how many of an algorithm's `seeds` seeds one call runs."""
        many = batches_seeds(World(scenario, algorithm), self.engine)
        return min(TOGETHER, -(-seeds // self.jobs)) if many else 1


def seed_range(scenario: Scenario, count: int | None, first: int) -> range:
    """Return `count` seeds from `first` on; None stands for run.seeds. Raises InputError."""
    count = scenario.run.seeds if count is None else count
    _demand_at_least("seeds", count, 1)
    _demand_at_least("seed", first, 0)
    return range(first, first + count)


def demand_algorithms(scenario: Scenario) -> None:
    """Raise InputError unless `scenario` has algorithms."""
    if not scenario.algorithm:
        raise InputError(
            f"{scenario.file}: nothing to simulate; add an [[algorithm]] table with a name "
            "(paceline list programs)"
        )


def _demand_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} {value}: must be at least {least}")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
