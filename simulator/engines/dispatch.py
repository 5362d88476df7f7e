"""Choose a run's engine: `batched` where possible and worthwhile, else `virtual`."""

from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

from threadpoolctl import ThreadpoolController

from ..results.run import Run
from ..scenario.redraw import factor, redrawn
from ..scenario.scenario import Algorithm, Scenario, World
from ..scenario.tables import LearningCurve
from .batched import run as batched
from .batched.arrays import Unsupported
from .normalisation import normalised
from .virtual import run as virtual

ENGINES = ("auto", "batched", "virtual")
LONG = 10**6  # gradients of a run that takes the reference engine minutes, which a note mentions


def run_seeds(
    scenario: Scenario, algorithm: Algorithm, seeds: Sequence[int], **how: Any
) -> list[Run]:
    """Run one algorithm with each of `seeds`; `how` passes options to `run_world`."""
    return run_world(World(scenario, algorithm), seeds, **how)


def run_world(
    world: World, seeds: Sequence[int], *, engine: str = "auto", spans: int = 0
) -> list[Run]:
    """Run a world, as written, with each of `seeds` in this process.

    `spans`: how many spans of the first seed's run to store. The numbers do not depend on which
    seeds are run together. If `engine` cannot run the algorithm, `virtual` does; the reason is in
    the runs' `handed_over`.
    """
    world = with_tuned_rate(world.under())
    # Sums must not depend on how many cores a process may use.
    with _libraries().limit(limits=1):
        reason: str | None = ""
        if engine == "batched" or (engine == "auto" and world.program.server is None):
            reason = batched.supports(world)
            if reason is None:
                try:
                    return batched.run_world(world, seeds, spans=spans)
                except Unsupported as why:
                    reason = str(why)
                if len(seeds) > 1:  # a single seed may have stopped them all
                    run_one = partial(run_world, world, engine=engine)
                    first, *rest = [[seed] for seed in seeds]
                    return [*run_one(first, spans=spans), *chain.from_iterable(map(run_one, rest))]
        runs = [
            virtual.run_world(world, seed, spans=0 if number else spans)
            for number, seed in enumerate(seeds)
        ]
    for run in runs:
        run.handed_over = reason or ""
        long = reason and run.steps * world.scenario.cluster.workers > LONG
        if engine == "batched" or long:
            run.notes.append(f"run by the virtual engine, not the batched one, because {reason}")
    return runs


def with_tuned_rate(world: World) -> World:
    """Return the world that engines run: under a learning curve, at the tuned rate."""
    if not isinstance(world.scenario.objective, LearningCurve):
        return world

    def run(world: World, seeds: int) -> list[Run]:
        alone = world.algorithm.model_copy(update={"recovery": None})  # A probe has no failures.
        return Context().run(run_world, replace(world, algorithm=alone), range(seeds))

    return normalised(world, run)


def run_replicates(
    world: World, seeds: Sequence[int], replicates: Sequence[int], **how: Any
) -> list[Run]:
    """Run a world with each of `seeds` and the replicate of the same index.

    A parametric bootstrap: a replicate redraws every measured number within its standard error, and
    the speed of the whole run within the spread of equal runs. Draws are keyed only by the
    replicate, so that all algorithms get the same ones, and comparisons between them stay paired.

    `how`: the options of `run_world`.
    """
    assert world.scenario.calibration is not None
    spread = world.scenario.calibration.run_to_run
    runs = []
    world = with_tuned_rate(world)
    for seed, number in zip(seeds, replicates, strict=True):
        replicate = replace(world, scenario=redrawn(world.scenario, number))
        (run,) = run_world(replicate, [seed], **how)
        slower = factor(number, 0, spread)
        curve = run.curve | {"time": [time * slower for time in run.curve["time"]]}
        runs.append(replace(run, duration=run.duration * slower, curve=curve))
    return runs


def batches_seeds(world: World, engine: str) -> bool:
    """Return whether an engine's checks allow running several seeds at once."""
    return engine != "virtual" and batched.supports(world.under()) is None


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries of linear algebra, whose threads a run limits."""
    return ThreadpoolController()
