"""What models of losses and of times may miss, beside what seeds tell: draws of a factor.

Draws of all algorithms are joint, so that what two of them share cancels in their ratio.
"""

import sys
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from .order import MARGIN
from .prediction_interval import TimeModel
from .run import Run
from .statistics import at, crossing


class LossModel(Protocol):
    """The model of one algorithm's loss."""

    def factors(self, steps: Any) -> np.ndarray:
        """Draw by what the loss after so many steps may be wrong, shape (draws, steps)."""

    def stretches(self, step: float, gain: float = 1.0) -> np.ndarray:
        """Draw how many times `step`, where the loss is known, it takes to `gain` times that."""

    def worth(self, step: float, share: float) -> float:
        """Return the share of the loss that such a `share` of the steps up to `step` is worth."""


class Errors(NamedTuple):
    """What may be wrong of an algorithm: its `loss`, and its times by draws of a factor.

    `links`: what those are drawn from. `stated`: 90 % intervals that tables have of one run, by
    measure.
    """

    loss: LossModel | None = None
    times: np.ndarray | None = None
    links: TimeModel | None = None
    stated: Mapping[str, Any] = MappingProxyType({})

    def of_loss(self, runs: Sequence[Run], time: float) -> np.ndarray:
        """Draw a factor of the loss at `time` (seconds), where late runs have done fewer steps."""
        result = np.ones(1) if self.loss is None else of_loss(self.loss, runs, time)
        if self.times is None:
            return result
        times = time / np.append(1.0, np.minimum(self.times, sys.float_info.max))
        losses = [np.interp(times, run.curve["time"], run.curve["loss"]) for run in runs]
        there = np.mean(losses, axis=0)
        moved: np.ndarray = result * there[1:] / there[0]
        return moved

    def to_target(self, runs: Sequence[Run], target: float) -> np.ndarray:
        """Draw a factor of the time that runs take to a loss."""
        factors = np.ones(1) if self.loss is None else to_target(self.loss, runs, target)
        moved: np.ndarray = factors if self.times is None else factors * self.times
        return moved

    def worth(self, runs: Sequence[Run], time: float) -> float:
        """Return the share of the loss at `time` (seconds) that `MARGIN` of the steps is worth."""
        return MARGIN if self.loss is None else self.loss.worth(step_at(runs, time), MARGIN)


NO_ERRORS = Errors()
Models = Mapping[str, Errors]
"""Of each algorithm by its label; empty where neither losses nor times have errors of their own."""
NO_MODELS: Models = {}


def of_loss(model: LossModel, runs: Sequence[Run], time: float = inf) -> np.ndarray:
    """Draw a factor of the loss at `time` (seconds; default: at the end)."""
    result: np.ndarray = model.factors(step_at(runs, time))[:, 0]
    return result


def step_at(runs: Sequence[Run], time: float) -> float:
    """Return the mean step of runs at `time` (seconds)."""
    return sum(at(run, time, "step") for run in runs) / len(runs)


def to_target(model: LossModel, runs: Sequence[Run], target: float) -> np.ndarray:
    """Draw a factor of what runs take to a loss, or, if none gets there, of what they took."""
    times = [crossing(run, target) for run in runs]
    steps = [at(run, time, "step") for run, time in zip(runs, times, strict=True) if isfinite(time)]
    if steps:
        step, gain = sum(steps) / len(steps), 1.0
    else:
        step, gain = runs[0].curve["step"][-1], target / runs[0].curve["loss"][-1]
    return model.stretches(step, gain) if step > 0 and isfinite(gain) else np.ones(1)
