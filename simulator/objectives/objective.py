"""The protocol of objectives: gradients for workers, and an evaluation for the observer."""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple, Protocol

from ..programs.effects import Vector


class Evaluation(NamedTuple):
    """Training loss, accuracy and loss on the test set; nan if the objective has none."""

    loss: float
    accuracy: float
    test_loss: float = nan


class GradientSource(Protocol):
    """One worker's stream of stochastic gradients."""

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of the next mini-batch at `x`, shape (dimension,)."""

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return the loss and gradient of the next mini-batch at `x`, shape (dimension,)."""


def relative(objective: "Objective") -> list[float] | None:
    """Return each worker's number of samples over their mean; None where all have as many."""
    sizes: Sequence[int] | None = getattr(objective, "sizes", None)
    if sizes is None or min(sizes) == max(sizes):
        return None
    return [size * len(sizes) / sum(sizes) for size in sizes]


class Objective(Protocol):
    """A function to minimise.

    `dimension`: entries of a vector; `start`: the initial parameters; `notes`: caveats for the
    reader of the results. One that deals out data has `sizes`, too: samples of each worker.
    """

    dimension: int
    start: Vector
    notes: tuple[str, ...]

    def source(self, rank: int) -> GradientSource:
        """Return the gradient source of worker `rank`, at its first step."""

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Evaluate the parameters `x` after `step` local steps."""
