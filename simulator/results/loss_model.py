"""What a model of the loss may miss, beside what seeds tell: draws of a factor of each value.

Draws of all algorithms are joint, so that what two of them share cancels in their ratio.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np

from paceline.simulator.results.order import MARGIN
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import at, crossing


class LossModel(Protocol):
    """The model of one algorithm's loss."""

    def factors(self, steps: Any) -> np.ndarray:
        """Draw by what the loss after so many steps may be wrong, shape (draws, steps)."""

    def stretches(self, step: float, gain: float = 1.0) -> np.ndarray:
        """Draw how many times `step`, where the loss is known, it takes to `gain` times that."""

    def worth(self, step: float, share: float) -> float:
        """Return the share of the loss that such a `share` of the steps up to `step` is worth."""


Models = Mapping[str, LossModel]
"""Of each algorithm by its label; empty where the loss has no error of its own."""
NO_MODELS: Models = {}


def of_loss(model: LossModel, runs: Sequence[Run], time: float = inf) -> np.ndarray:
    """Draw a factor of the loss at `time` (seconds; default: at the end)."""
    found: np.ndarray = model.factors(step_at(runs, time))[:, 0]
    return found


def step_at(runs: Sequence[Run], time: float) -> float:
    """Return the mean step of runs at `time` (seconds)."""
    return sum(at(run, time, "step") for run in runs) / len(runs)


def worth(model: LossModel, runs: Sequence[Run], time: float) -> float:
    """Return the share of the loss at `time` (seconds) that `MARGIN` of the steps is worth.

    Losses that differ by less are equivalent, as times and prices are that differ by `MARGIN`.
    """
    return model.worth(step_at(runs, time), MARGIN)


def to_target(model: LossModel, runs: Sequence[Run], target: float) -> np.ndarray:
    """Draw a factor of what runs take to a loss, or, if none gets there, of what they took."""
    times = [crossing(run, target) for run in runs]
    steps = [at(run, time, "step") for run, time in zip(runs, times, strict=True) if isfinite(time)]
    if steps:
        step, gain = sum(steps) / len(steps), 1.0
    else:
        step, gain = runs[0].curve["step"][-1], target / runs[0].curve["loss"][-1]
    return model.stretches(step, gain) if step > 0 and isfinite(gain) else np.ones(1)
