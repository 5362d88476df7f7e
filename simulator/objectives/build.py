"""Build a scenario's objective, and name the model whose loss it is."""

from typing import Any

from ..programs import catalogue
from ..programs.pieces.schedule import FixedPeriod
from ..scenario.scenario import Algorithm, Scenario, World
from ..scenario.tables import Bound, LearningCurve, NoObjective, Quadratic, Softmax, Torch
from ..theory import ErrorBound
from .learning_curve.objective import baseline, expect, size
from .objective import Nothing, Objective, TheoremTwo
from .plugins import plugin_of
from .quadratic import NoisyQuadratic, coordinates
from .softmax import SoftmaxRegression, dimension

FAR = 2.0  # largest ratio of parameters, either way, at which the loss still stands for [model]
STAND_IN = "a stand-in, not your model"


def dimension_of(spec: Any) -> int | None:
    """Return the number of parameters in an objective's table; None without vectors.

    Raises ObjectiveError.
    """
    if hasattr(spec, "make"):  # for one algorithm, from `engines.normalisation`
        entries: int | None = spec.dimension
        return entries
    if isinstance(spec, Quadratic):
        return coordinates(spec)
    if isinstance(spec, Softmax):
        return dimension(spec)
    plugin = plugin_of(spec)
    return plugin.dimension(spec) if plugin else None


def build(scenario: Scenario, algorithm: Algorithm, seed: int) -> Objective:
    """Build the objective of a scenario for one algorithm and one seed."""
    spec: Any = scenario.objective
    workers = scenario.cluster.workers
    if hasattr(spec, "make"):
        objective: Objective = spec.make(workers, seed)
        return objective
    if isinstance(spec, Bound):
        lr, first = algorithm.parameters["lr"], algorithm.parameters.get("tau0")
        tau = algorithm.parameters.get("tau", FixedPeriod(first or 1))
        return TheoremTwo(ErrorBound.of(spec, workers, lr(1)), tau, ruled=first is not None)
    if isinstance(spec, Quadratic):
        return NoisyQuadratic(spec, workers, seed)
    if isinstance(spec, Softmax):
        return SoftmaxRegression(spec, workers, seed, scenario.cluster.samples_of_workers)
    plugin = plugin_of(spec)
    return plugin.make(scenario, seed) if plugin else Nothing()


def bases(scenario: Scenario) -> dict[str, str | None]:
    """Return `loss_basis` of every algorithm, by label."""
    return {algorithm.label: loss_basis(scenario, algorithm) for algorithm in scenario.algorithm}


def loss_basis(scenario: Scenario, algorithm: Algorithm | None = None) -> str | None:
    """Return a phrase on the loss's model, to follow a value; None without a loss.

    `algorithm`: used by objectives whose basis differs between algorithms.

    An example: "on softmax over digits", with `STAND_IN` if [model] has another size.
    """
    spec = scenario.objective
    if isinstance(spec, NoObjective):
        return None
    if isinstance(spec, LearningCurve):
        return _of_curve(scenario, spec, algorithm)
    if isinstance(spec, Bound):
        return "by the bound of Theorem 2, not the loss of your model"
    name = "a noisy quadratic"
    if not isinstance(spec, Quadratic):
        hidden = isinstance(spec, Softmax) and spec.hidden
        kind = f"a hidden layer of {hidden}" if hidden else spec.kind
        name = f"{spec.model if isinstance(spec, Torch) else kind} over {spec.data}"
    entries, model = dimension_of(spec) or 0, scenario.model.parameters
    return f"on {name}" if _alike(entries, model) else f"on {name}, {STAND_IN}"


def _of_curve(scenario: Scenario, spec: LearningCurve, algorithm: Algorithm | None) -> str:
    if algorithm is None or algorithm.name not in catalogue():
        return f"by {baseline(spec).basis}"
    phrase = expect(World(scenario, algorithm).under()).phrase
    of_loss, parameters = size(scenario), scenario.model.parameters
    if _alike(of_loss, parameters):
        return phrase
    return f"{phrase}, for {of_loss:.3g} parameters, not the {parameters:.3g} of [model]"


def _alike(own: float, model: float) -> bool:
    return own <= FAR * model and model <= FAR * own
