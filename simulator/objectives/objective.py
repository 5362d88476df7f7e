"""The protocol of objectives: gradients for workers, and an evaluation for the observer."""

from typing import Protocol

from paceline.simulator.objectives.evaluation import Evaluation
from paceline.simulator.programs.effects import Vector


class GradientSource(Protocol):
    """One worker's stream of stochastic gradients."""

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of the next mini-batch at `x`, shape (dimension,)."""

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return the loss and gradient of the next mini-batch at `x`, shape (dimension,)."""


class Objective(Protocol):
    """A function to minimise.

    `dimension`: entries of a vector; `start`: the initial parameters; `notes`: caveats for the
    reader of the results.
    """

    dimension: int
    start: Vector
    notes: tuple[str, ...]

    def source(self, rank: int) -> GradientSource:
        """Return the gradient source of worker `rank`, at its first step."""

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Evaluate the parameters `x` after `step` local steps."""
