"""Name the model whose loss a scenario has: seldom the one that users train."""

from ..programs import catalogue
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.tables import (
    Bound,
    LearningCurve,
    NoObjective,
    Quadratic,
    Softmax,
    Torch,
)
from ..scenario.world import World
from .build import dimension_of
from .learning_curve.objective import baseline, expect, size

FAR = 2.0  # times as many parameters as [model], or as few: then it is another model
STAND_IN = "a stand-in, not your model"


def bases(scenario: Scenario) -> dict[str, str | None]:
    """Return `loss_basis` of each algorithm, by label."""
    return {algorithm.label: loss_basis(scenario, algorithm) for algorithm in scenario.algorithm}


def loss_basis(scenario: Scenario, algorithm: Algorithm | None = None) -> str | None:
    """Return words on the model of the loss, to follow a value; None without a loss.

    `algorithm`: the one whose loss it is, where an objective knows some better than others.

    "on softmax over digits", with `STAND_IN` where [model] has another number of parameters.
    """
    spec = scenario.objective
    if isinstance(spec, NoObjective):
        return None
    if isinstance(spec, LearningCurve):
        return _of_curve(scenario, spec, algorithm)
    if isinstance(spec, Bound):
        return "by the bound of Theorem 2, not your model's loss"
    named = "a noisy quadratic"
    if not isinstance(spec, Quadratic):
        hidden = isinstance(spec, Softmax) and spec.hidden
        kind = f"a hidden layer of {hidden}" if hidden else spec.kind
        named = f"{spec.model if isinstance(spec, Torch) else kind} over {spec.data}"
    entries, model = dimension_of(spec) or 0, scenario.model.parameters
    return f"on {named}" if _alike(entries, model) else f"on {named}, {STAND_IN}"


def _of_curve(scenario: Scenario, spec: LearningCurve, algorithm: Algorithm | None) -> str:
    if algorithm is None or algorithm.name not in catalogue():
        return f"by {baseline(spec).basis}"
    phrase = expect(World(scenario, algorithm).under()).phrase
    meant, parameters = size(scenario), scenario.model.parameters
    if _alike(meant, parameters):
        return phrase
    return f"{phrase}, for {meant:.3g} parameters, not the {parameters:.3g} of [model]"


def _alike(own: float, model: float) -> bool:
    return own <= FAR * model and model <= FAR * own
