"""Predict the rest of a run under every setting, by simulated losses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.scenario import Algorithm, Scenario

from .inputs import Inputs
from .telemetry import Settings, Telemetry

SEEDS = 8  # seeds in the mean of a curve
POINTS = 250
FOLLOW = 0.5  # weight of a round's loss against the one that the curves predict


def configured(algorithm: Algorithm, settings: Settings) -> Algorithm:
    """Return an algorithm with some parameters set, written as in a scenario."""
    written = {**algorithm.written, **settings}
    rate = {"lr": 1.0} if "lr" in algorithm.parameters else {}  # a law needs none
    parsed = catalogue()[algorithm.name].parse(rate | written)
    parameters = algorithm.parameters | {key: parsed[key] for key in settings}
    table = {**algorithm.table, **settings}
    changed = {"table": table, "written": written, "parameters": parameters}
    return algorithm.model_copy(update=changed)


@dataclass(frozen=True)
class Curve:
    """The loss of one setting over its steps: the lowest mean over seeds so far.

    Settings are compared by the steps between two losses, so that a run may change from one
    setting's curve to another's at its current loss.
    """

    steps: np.ndarray
    falls: np.ndarray  # minus the logarithm of the loss, ascending

    def at(self, loss: float) -> float:
        """Return the step at which the loss is reached; infinite if never."""
        fall = -math.log(max(loss, 1e-300))
        if fall > self.falls[-1]:
            return math.inf
        return float(np.interp(fall, self.falls, self.steps))

    def after(self, loss: float, steps: float) -> float:
        """Return the loss `steps` steps after `loss`; beyond the curve it stays constant."""
        begin = min(self.at(loss), float(self.steps[-1]))
        fall = float(np.interp(begin + steps, self.steps, self.falls))
        return min(loss, math.exp(-fall))


def simulated(scenario: Scenario, algorithm: Algorithm, steps: int) -> Curve:
    """Simulate the loss over `steps` steps."""
    evaluated = {"steps": steps, "duration": None, "evaluate_every": max(1, steps // POINTS)}
    length = scenario.run.model_copy(update=evaluated)
    free = Network.model_validate({"latency": "0 s"})  # no effect on the loss by steps
    world = scenario.model_copy(update={"run": length, "network": free})
    runs = run_seeds(world, algorithm, range(SEEDS))
    points = min(len(run.curve["loss"]) for run in runs)
    losses = np.mean([run.curve["loss"][:points] for run in runs], axis=0)
    falls = np.maximum.accumulate(-np.log(np.maximum(losses, 1e-300)))
    fresh = np.append(True, np.diff(falls) > 0)
    return Curve(np.array(runs[0].curve["step"][:points])[fresh], falls[fresh])


class Outlook:
    """The predicted rest of a run under every candidate; the first is the pick's.

    It simulates their `curves` over `steps` at once. `loss`: the run's current loss.
    """

    def __init__(
        self, scenario: Scenario, algorithm: Algorithm, candidates: Sequence[Settings], steps: int
    ) -> None:
        self.candidates, self.loss = list(candidates), math.nan
        self._run, self._steps = scenario.run, steps
        self._family = catalogue()[algorithm.name].family
        algorithms = [configured(algorithm, settings) for settings in candidates]
        self._parameters = [one.parameters for one in algorithms]
        self.curves = [simulated(scenario, one, steps) for one in algorithms]

    def follow(self, index: int, record: Telemetry) -> None:
        """Add a round under candidate `index`."""
        curve, loss = self.curves[index], record.loss  # loss of the common initial model
        valid = math.isfinite(loss) and loss > 0
        if math.isnan(self.loss) and not valid:
            self.loss = curve.after(math.exp(-curve.falls[0]), record.step - record.steps)
        if not valid:
            loss = self.loss  # the curves' prediction
        elif math.isfinite(self.loss):
            loss = self.loss ** (1 - FOLLOW) * loss**FOLLOW
        self.loss = curve.after(loss, record.steps)  # the loss at the end of the round

    def to_go(self, index: int, record: Telemetry, inputs: Inputs, **scale: float) -> float:
        """Return a candidate's seconds to the target, or else its final loss.

        If only steps end the run, the target is the pick's loss at the end. `scale`: see
        `Inputs.step_time`.
        """
        curve, settings = self.curves[index], self._parameters[index] | self.candidates[index]
        step_time = inputs.step_time(self._family, settings, record.bytes, **scale)
        run, target = self._run, self._run.target_loss
        if target is None and run.duration is None:
            target = self.curves[0].after(math.inf, run.steps or 0)
        if target is not None:
            end = curve.at(target)
            return (end - min(end, curve.at(self.loss))) * step_time if math.isfinite(end) else end
        left = (run.duration or math.inf) - record.clock
        return curve.after(self.loss, min(left / step_time, self._steps))
