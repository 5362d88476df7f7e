"""Build the objective of a scenario."""

from typing import Any

from paceline.simulator.objectives.bound import Nothing, TheoremTwo
from paceline.simulator.objectives.objective import Objective
from paceline.simulator.objectives.plugins import other
from paceline.simulator.objectives.quadratic import NoisyQuadratic, coordinates
from paceline.simulator.objectives.softmax import SoftmaxRegression, dimension
from paceline.simulator.programs.pieces.schedule import FixedPeriod
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.scenario.tables import Bound, Quadratic, Softmax
from paceline.simulator.theory import ErrorBound


def dimension_of(spec: Any) -> int | None:
    """Return the number of parameters that an objective's table asks for; None without vectors.

    Raises ObjectiveError.
    """
    if hasattr(spec, "make"):  # of one algorithm, from `engines.normalisation`
        known: int | None = spec.dimension
        return known
    if isinstance(spec, Quadratic):
        return coordinates(spec)
    if isinstance(spec, Softmax):
        return dimension(spec)
    found = other(spec)
    return found.dimension(spec) if found else None


def build(scenario: Scenario, algorithm: Algorithm, seed: int) -> Objective:
    """Build the objective of a scenario for one algorithm with one seed."""
    spec: Any = scenario.objective
    workers = scenario.cluster.workers
    if hasattr(spec, "make"):
        made: Objective = spec.make(workers, seed)
        return made
    if isinstance(spec, Bound):
        lr, tau = algorithm.parameters["lr"], algorithm.parameters.get("tau", FixedPeriod(1))
        bound = ErrorBound(
            workers, lr(1), spec.smoothness, spec.gradient_variance, spec.initial_gap
        )
        return TheoremTwo(bound, tau)
    if isinstance(spec, Quadratic):
        return NoisyQuadratic(spec, workers, seed)
    if isinstance(spec, Softmax):
        return SoftmaxRegression(spec, workers, seed)
    found = other(spec)
    return found.make(scenario, seed) if found else Nothing()
