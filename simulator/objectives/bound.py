"""Objectives without vectors: time only, and AdaComm's Theorem 2 as the loss."""

from math import nan

from paceline.simulator.objectives.evaluation import Evaluation
from paceline.simulator.programs.effects import NOTHING, Vector
from paceline.simulator.theory import ErrorBound


class Nothing:
    """Time only: vectors hold nothing and there is no loss."""

    dimension = 1
    start = NOTHING
    notes: tuple[str, ...] = ()

    def source(self, rank: int) -> "Nothing":
        """Return itself: every gradient is `NOTHING`."""
        return self

    def gradient(self, x: Vector) -> Vector:
        """Return `NOTHING`."""
        return NOTHING

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return nan for the loss."""
        return nan, NOTHING

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return nan for the loss."""
        return Evaluation(nan, nan)


class TheoremTwo(Nothing):
    """Time only, with AdaComm's Theorem 2 as the loss: the bound that holds after so many steps."""

    def __init__(self, bound: ErrorBound, tau: int) -> None:
        self._bound, self._tau = bound, tau
        if not bound.valid(tau):
            self.notes = (
                f"tau = {tau} is outside Theorem 2, which ends at tau = {bound.cap} with this "
                "learning rate: its loss is not a bound",
            )

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the bound after `step` local steps; nan at step 0."""
        if not step:
            return Evaluation(nan, nan)
        return Evaluation(self._bound(duration=step, seconds_per_step=1, tau=self._tau), nan)
