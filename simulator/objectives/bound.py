"""Objectives without vectors: time only, and AdaComm's Theorem 2 as the loss."""

from collections.abc import Callable
from math import nan

from ..programs.effects import NOTHING, Vector
from ..programs.pieces.schedule import FixedPeriod
from ..theory import ErrorBound
from .objective import Evaluation


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
    """Time only, with AdaComm's Theorem 2 as the loss: the bound that holds after so many steps.

    Where the period changes, the bound has the mean of tau - 1 over all steps so far.
    """

    def __init__(self, bound: ErrorBound, tau: Callable[[int], int]) -> None:
        self._bound, self._tau = bound, tau
        self._steps = self._drifted = 0  # local steps, and tau - 1 summed over them
        first = tau(1)
        if not bound.valid(first):
            self.notes = (
                f"tau = {first} is outside Theorem 2, which ends at tau = {bound.cap} with this "
                "learning rate: its loss is not a bound",
            )

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the bound after `step` local steps; nan at step 0."""
        if not step:
            return Evaluation(nan, nan)
        if isinstance(self._tau, FixedPeriod):
            tau = self._tau(1)
            return Evaluation(self._bound(duration=step, seconds_per_step=1, tau=tau), nan)
        self._drifted += sum(self._tau(k) - 1 for k in range(self._steps + 1, int(step) + 1))
        self._steps = int(step)
        drift = self._bound.drift * self._drifted / self._steps
        return Evaluation(self._bound(duration=step, seconds_per_step=1, tau=1) + drift, nan)
