"""Background jobs: runs that never end beside the run that is measured, over the same lines."""

from paceline.simulator.engines.virtual.simulation import Simulation
from paceline.simulator.programs import catalogue

SEED_DISTANCE = 10**9  # between seeds of a run and of its jobs, so that no streams coincide


def add(run: Simulation) -> None:
    """Add the jobs of a run's scenario, with nodes and network cards of their own."""
    for number, job in enumerate(run.scenario.job, 1):
        program, seed = catalogue()[job.algorithm.name], run.seed + number * SEED_DISTANCE
        run.background.append(Simulation(program, job.algorithm, job.scenario, seed, host=run))
