"""Build the objective of a scenario."""

from typing import Any

from ..programs.pieces.schedule import FixedPeriod
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.tables import Bound, Quadratic, Softmax
from ..theory import ErrorBound
from .objective import Nothing, Objective, TheoremTwo
from .plugins import other
from .quadratic import NoisyQuadratic, coordinates
from .softmax import SoftmaxRegression, dimension


def dimension_of(spec: Any) -> int | None:
    """Return the number of parameters that an objective's table asks for; None without vectors.

    Raises ObjectiveError.
    """
    if hasattr(spec, "make"):  # of one algorithm, from `engines.normalisation`
        entries: int | None = spec.dimension
        return entries
    if isinstance(spec, Quadratic):
        return coordinates(spec)
    if isinstance(spec, Softmax):
        return dimension(spec)
    plugin = other(spec)
    return plugin.dimension(spec) if plugin else None


def build(scenario: Scenario, algorithm: Algorithm, seed: int) -> Objective:
    """Build the objective of a scenario for one algorithm with one seed."""
    spec: Any = scenario.objective
    workers = scenario.cluster.workers
    if hasattr(spec, "make"):
        made: Objective = spec.make(workers, seed)
        return made
    if isinstance(spec, Bound):
        lr, first = algorithm.parameters["lr"], algorithm.parameters.get("tau0")
        tau = algorithm.parameters.get("tau", FixedPeriod(first or 1))
        bound = ErrorBound(
            workers, lr(1), spec.smoothness, spec.gradient_variance, spec.initial_gap
        )
        return TheoremTwo(bound, tau, ruled=first is not None)
    if isinstance(spec, Quadratic):
        return NoisyQuadratic(spec, workers, seed)
    if isinstance(spec, Softmax):
        return SoftmaxRegression(spec, workers, seed)
    plugin = other(spec)
    return plugin.make(scenario, seed) if plugin else Nothing()
