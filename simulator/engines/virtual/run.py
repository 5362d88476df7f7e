"""Run any scenario with one seed on the reference engine, in SimPy's simulated time."""

import numpy as np

from ...results.run import Run, Spans
from ...scenario.scenario import Algorithm, Scenario
from ...scenario.world import World
from . import accounts, collective_slowdown
from .simulation import Simulation


def run(algorithm: Algorithm, scenario: Scenario, seed: int, *, spans: int = 0) -> Run:
    """Simulate one algorithm with one seed; options as in `run_world`."""
    return run_world(World(scenario, algorithm).under(), seed, spans=spans)


def run_world(world: World, seed: int, *, spans: int = 0) -> Run:
    """Simulate a world with one seed; store up to `spans` spans.

    Raises ProgramError if the program breaks the rules of the effects.
    """
    algorithm, stored = world.algorithm, Spans(spans) if spans else None
    with np.errstate(over="ignore", invalid="ignore"):
        simulation = Simulation(world, seed, stored).run()  # a note reports divergence
    simulation.observer.close(simulation.horizon, simulation.deserted)
    curve = simulation.observer.curve
    shown = None if stored is None else accounts.timeline(simulation, stored, simulation.end)
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
        spans=shown,
        notes=[
            *simulation.observer.notes(algorithm, begun=simulation.averages_begun()),
            *stalled,
            *collective_slowdown.notes(simulation),
        ],
        spans_truncated=stored is not None and stored.truncated,
        updates=simulation.observer.updates,
        **accounts.rounds(simulation, seconds),
        staleness=simulation.staleness,
        staleness_unit=simulation.staleness_unit,
        inbox_bytes=simulation.inbox_bytes,
        failures=accounts.failures(simulation, mean),
        lines=simulation.usage(),
        stall=simulation.stall,
        paid=simulation.observer.paid,
    )
