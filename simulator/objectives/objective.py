"""What an objective is to an engine: gradients for workers, and an evaluation for the observer."""

from typing import Protocol

from paceline.simulator.objectives.evaluation import Evaluation
from paceline.simulator.programs.effects import Vector


class GradientSource(Protocol):
    """One worker's stream of stochastic gradients."""

    def gradient(self, x: Vector) -> Vector:
        """Gradient of the next mini-batch at `x`."""

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Loss and gradient of the next mini-batch at `x`."""


class Objective(Protocol):
    """What is minimised.

    `dimension`: entries of a vector; `start`: the initial parameters; `notes`: what a user of the
    results must know.
    """

    dimension: int
    start: Vector
    notes: tuple[str, ...]

    def source(self, rank: int) -> GradientSource:
        """The gradients of worker `rank`, from its first step on."""

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """What an observer sees of the parameters `x` after `step` local steps."""
