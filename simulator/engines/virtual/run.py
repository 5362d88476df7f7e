"""`run` of the reference engine: any scenario, one seed, in simulated time on SimPy."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from ...objectives.objective import Objective
from ...objectives.quadratic import NoisyQuadratic
from ...programs import Program, catalogue
from ...results import divergence
from ...results.run import Full, Run, Spans
from ...scenario.scenario import Algorithm, Scenario
from . import accounts, collective_slowdown
from .simulation import Simulation

RARELY = 100_000  # objects made before those kept are walked for garbage: the default is 700
SEED_DISTANCE = 10**9  # between seeds of a run and of its jobs, so that no streams coincide


def run(
    algorithm: Algorithm,
    scenario: Scenario,
    seed: int,
    *,
    spans: int = 0,
    programs: Mapping[str, Program] | None = None,
) -> Run:
    """Simulate one algorithm with one seed; keep up to `spans` spans.

    Raises ProgramError when the program breaks the rules of the effects, or deadlocks.
    """
    program = (programs or catalogue())[algorithm.name]
    kept, scenario = Spans(spans) if spans else None, scenario.under(algorithm)
    with np.errstate(over="ignore", invalid="ignore"), _rarely_collected():
        simulation = _made(
            program, algorithm, scenario, seed, kept
        ).run()  # may diverge: it is told
    simulation.observer.close(simulation.horizon, simulation.deserted)
    curve = simulation.observer.curve
    drawn = (None, None) if kept is None else accounts.timeline(simulation, kept, simulation.end)
    seconds = accounts.spent(simulation)
    mean = accounts.means(seconds)
    stalled = [f"the run did not finish: {simulation.stall}"] if simulation.stall else []
    return Run.of(
        algorithm,
        seed,
        "virtual",
        curve,
        seconds=mean,
        workers=seconds,
        links=simulation.traffic.links(),
        spans=drawn[0],
        arrows=drawn[1],
        notes=[
            *notes(program, algorithm, simulation.objective, curve, simulation.averages_begun()),
            *(stalled or simulation.recovery.notes()),
            *collective_slowdown.notes(simulation),
        ],
        spans_truncated=kept is not None and kept.truncated,
        updates=simulation.observer.updates,
        **accounts.rounds(simulation, seconds),
        staleness=simulation.staleness,
        staleness_unit=simulation.staleness_unit,
        inbox_bytes=simulation.inbox_bytes,
        failures=accounts.failures(simulation, mean),
        lines=simulation.usage(),
        phases=simulation.traffic.phases(),
        jobs=accounts.jobs(simulation),
        stall=simulation.stall,
        paid=simulation.observer.paid,
    )


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Look for cyclic garbage rarely in a run: it keeps nearly all that it makes.

    What earlier runs have left is collected at the end of a long one.
    """
    usual, before = gc.get_threshold(), gc.get_stats()[0]["collections"]
    if not usual[0]:
        yield
        return
    gc.set_threshold(max(RARELY, usual[0]), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
    if gc.get_stats()[0]["collections"] > before:
        gc.collect()


def _made(
    program: Program, algorithm: Algorithm, scenario: Scenario, seed: int, kept: Spans | None
) -> Simulation:
    """Return the simulation before its run, with its background jobs."""
    simulation = Simulation(program, algorithm, scenario, seed, kept)
    for number, job in enumerate(scenario.job, 1):  # endless, over the same lines
        theirs, job_seed = catalogue()[job.algorithm.name], seed + number * SEED_DISTANCE
        world = job.scenario.under(job.algorithm)
        beside = Simulation(theirs, job.algorithm, world, job_seed, host=simulation)
        simulation.background.append(beside)
    return simulation


def timeline(
    algorithm: Algorithm,
    scenario: Scenario,
    seed: int,
    spans: int,
    programs: Mapping[str, Program] | None = None,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return up to `spans` spans of a run, and its arrows; whether it was cut off at that many."""
    program = (programs or catalogue())[algorithm.name]
    found = Spans(spans, raises=True)
    simulation = _made(program, algorithm, scenario.under(algorithm), seed, found)
    try:
        simulation.run()
    except Full:
        return *accounts.timeline(simulation, found, simulation.deadline), True
    return *accounts.timeline(simulation, found, simulation.end), found.truncated


def notes(
    program: Program,
    algorithm: Algorithm,
    objective: Objective,
    curve: dict[str, list[float]],
    begun: bool = False,
) -> list[str]:
    """Return notes for readers of a run: of its algorithm, objective and curve.

    `begun`: whether an average has begun, or workers wait for one to begin.
    """
    moot = isinstance(objective, NoisyQuadratic) and not program.moves_alike(algorithm.parameters)
    return [
        *algorithm.notes,
        *(() if moot else objective.notes),
        *_warnings(curve, program, begun),
    ]


def _warnings(curve: dict[str, list[float]], program: Program, begun: bool) -> list[str]:
    """Return notes on a curve: that it is empty, was never averaged, or diverged."""
    if not curve["step"][-1]:
        return ["no step was evaluated before the end; run longer, or evaluate more often"]
    found = []
    averages = program.averages and not (program.server or program.gossips)
    if averages and not np.isfinite(curve["tau"]).any():
        found.append(
            "the first average was not done before the end of the run"
            if begun
            else "never averaged: the period is longer than the run"
        )
    lost = divergence.note(curve)
    return [*found, lost] if lost else found
