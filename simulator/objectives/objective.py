"""Define objectives: gradients for workers, and evaluations for the observer.

Also define objectives without vectors: time only, and AdaComm's Theorem 2 as the loss.
"""

from collections.abc import Callable, Sequence
from math import isfinite, nan
from typing import NamedTuple, Protocol

from ..programs.effects import NOTHING, Vector
from ..programs.pieces.schedule import FixedPeriod
from ..theory import ErrorBound


class Evaluation(NamedTuple):
    """Training loss, and accuracy and loss on the test set; nan: unknown."""

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
    """Return each worker's samples over their mean; None if all are equal."""
    sizes: Sequence[int] | None = getattr(objective, "sizes", None)
    if sizes is None or min(sizes) == max(sizes):
        return None
    return [size * len(sizes) / sum(sizes) for size in sizes]


class Objective(Protocol):
    """A function to minimise.

    `dimension`: entries of a vector; `start`: the initial parameters; `notes`: caveats for readers
    of the results. An objective that distributes data also has `sizes`: samples of each worker.
    """

    dimension: int
    start: Vector
    notes: tuple[str, ...]

    def source(self, rank: int) -> GradientSource:
        """Return the gradient source of worker `rank`, at its first step."""

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Evaluate the parameters `x` after `step` local steps."""


class Nothing:
    """Time only: vectors are empty; the loss depends on steps alone, if there is one."""

    dimension = 1
    start = NOTHING
    notes: tuple[str, ...] = ()

    def __init__(self, loss: Callable[[float], float] = lambda step: nan) -> None:
        self._loss = loss

    def source(self, rank: int) -> GradientSource:
        """Return this object, whose gradients are all `NOTHING`."""
        return self

    def gradient(self, x: Vector) -> Vector:
        """Return `NOTHING`."""
        return NOTHING

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return nan for the loss."""
        return nan, NOTHING

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the loss after `step` local steps."""
        return Evaluation(self._loss(step), nan)


class TheoremTwo(Nothing):
    """Time only, with AdaComm's Theorem 2 as the loss: the bound after some steps.

    If the period changes, the bound uses the mean of tau - 1 over all steps so far. `ruled`:
    whether a rule that reads the loss sets the period; then `tau` is the first one, and the caller
    stores the steps of the latest average in `period`.
    """

    def __init__(
        self, bound: ErrorBound, tau: Callable[[int], int], *, ruled: bool = False
    ) -> None:
        self._bound, self._tau, self._ruled = bound, tau, ruled
        self._steps = self._drifted = 0.0  # local steps, and tau - 1 summed over them
        self.period = nan
        first = tau(1)
        if not bound.valid(first):
            self.notes = (
                f"tau = {first} is outside Theorem 2, which covers tau <= {bound.cap} at this "
                "learning rate: its loss is not a bound",
            )

    def source(self, rank: int) -> "BoundLoss":
        """Return a worker's view of the bound as its loss."""
        return BoundLoss(self._bound)

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the bound after `step` local steps; nan at step 0."""
        if not step:
            return Evaluation(nan, nan)
        if not self._ruled and isinstance(self._tau, FixedPeriod):
            tau = self._tau(1)
            return Evaluation(self._bound(duration=step, seconds_per_step=1, tau=tau), nan)
        if self._ruled:
            period = self.period if isfinite(self.period) else self._tau(1)
            self._drifted += (step - self._steps) * (period - 1)
        else:
            steps = range(int(self._steps) + 1, int(step) + 1)
            self._drifted += sum(self._tau(k) - 1 for k in steps)
        self._steps = step
        drift = self._bound.drift * self._drifted / step
        return Evaluation(self._bound(duration=step, seconds_per_step=1, tau=1) + drift, nan)


class BoundLoss(Nothing):
    """A worker's view of Theorem 2: the bound so far, without drift due to periods."""

    def __init__(self, bound: ErrorBound) -> None:
        self._bound, self._steps = bound, 0

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Return the bound after one more step."""
        self._steps += 1
        return self._bound(duration=self._steps, seconds_per_step=1, tau=1), NOTHING
