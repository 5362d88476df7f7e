"""Define DTS's compensations: a worker's message, and the use of a late mean.

`state`: a worker's parameters and momentum buffer, (x, u); `own`: its contribution since it
last sent, a pair of vectors (A, B). With constant momentum mu a gradient g changes u by mu^j g and
x by lr (1 + mu + ... + mu^j) g, j steps later: A and B are both effects of a period's gradients at
its end. D is the delay in steps.
"""

from typing import TYPE_CHECKING, Literal

from ..effects import Payload, Vector
from .schedule import Schedule
from .transform import Transform

Pair = tuple[Vector, Vector]


class Displacement:
    """Replace the worker's displacement B by the mean; its momentum stays (B only).

    `n` is a worker's step, counted from 0; `since` is the step at which the mean was started.
    """

    def __init__(self, lr: Schedule, mu: float, period: int = 1) -> None:
        self.lr, self.mu, self.single = lr, mu, period == 1

    def local(self, state: Pair, own: Pair, g: Vector, n: int) -> tuple[Pair, Pair]:
        """Step by u = mu u + g, x = x - lr u; A = mu A + g, B = B + lr A."""
        rate, mu = self.lr(n + 1), self.mu
        (x, u), (A, B) = state, own
        u = mu * u + g
        A = mu * A + g
        return (x - rate * u, u), (A, B + rate * A)

    def sent(self, own: Pair) -> Payload:
        """Return the averaged part of `own`: the displacement."""
        return own[1]

    def late(self, state: Pair, own: Pair, mean: Payload, since: int, n: int) -> Pair:
        """Apply at step `n` the mean that started at `since`: x = x - (mean(B) - B)."""
        x, u = state
        return x - (mean - own[1]), u


class Exact(Displacement):
    """Compensate exactly, as if all gradients had been averaged, for any D and mu.

    Without momentum this is the paper's eq. 3 and 4. With a constant lr and momentum,
    x = x - lr (dB + mu (1 - mu^D) / (1 - mu) dA), u = u + mu^D dA.
    """

    def sent(self, own: Pair) -> Payload:
        """Return both effects, A and B, or A alone: of one step B is its rate times A."""
        if not self.mu:
            return own[1]
        return own[0] if self.single else own

    def late(self, state: Pair, own: Pair, mean: Payload, since: int, n: int) -> Pair:
        """Replace both effects by the means, including the effect of momentum."""
        if not self.mu:
            return super().late(state, own, mean, since, n)
        (x, u), (A, B) = state, own
        if self.single:
            dA = mean - A
            dB = self.lr(since + 1) * dA
        else:
            dA, dB = mean[0] - A, mean[1] - B
        share, tail = 1.0, 0.0
        for step in range(since + 1, n + 1):
            share *= self.mu
            tail += self.lr(step + 1) * share
        return x - dB - tail * dA, u + share * dA


class Lecture(Displacement):
    """Add (mean - own gradient) before momentum, as in lecture notes on DGA."""

    def local(self, state: Pair, own: Pair, g: Vector, n: int) -> tuple[Pair, Pair]:
        """Take a step of momentum SGD; sum the gradients."""
        x, u = state
        u = self.mu * u + g
        return (x - self.lr(n + 1) * u, u), (own[0], own[1] + g)

    def late(self, state: Pair, own: Pair, mean: Payload, since: int, n: int) -> Pair:
        """Redo the last step with mean - own added to its gradient."""
        (x, u), difference = state, mean - own[1]
        return x - self.lr(n + 1) * difference, u + difference


class Uncompensated(Lecture):
    """Take no local steps: x = x - lr mean, however stale (the paper's ablation)."""

    def local(self, state: Pair, own: Pair, g: Vector, n: int) -> tuple[Pair, Pair]:
        """Sum the gradient and stay."""
        return state, (own[0], own[1] + g)

    def late(self, state: Pair, own: Pair, mean: Payload, since: int, n: int) -> Pair:
        """Take a step of momentum SGD with the stale mean."""
        x, u = state
        u = self.mu * u + mean
        return x - self.lr(n + 1) * u, u


class Steps(Displacement):
    """Replace the steps of a period, by any transform, by their mean over the workers.

    The state of the transform (`u` here) stays local to the worker, as in Local AdamW.
    """

    def __init__(self, lr: Schedule, inner: Transform) -> None:
        self.lr, self.inner = lr, inner

    def local(self, state: Pair, own: Pair, g: Vector, n: int) -> tuple[Pair, Pair]:
        """Take a step of the transform; add it to the displacement."""
        x, u = state
        direction, u = self.inner.update(g, u, x)
        step = self.lr(n + 1) * direction
        return (x - step, u), (own[0], own[1] + step)


KINDS: dict[str, type[Displacement]] = {
    "exact": Exact, "lecture": Lecture, "displacement": Displacement, "none": Uncompensated,
}  # fmt: skip
"""Compensations by name; their arguments: a learning rate, a plain momentum, the period."""
if TYPE_CHECKING:
    CompensationName = str
else:
    CompensationName = Literal[tuple(KINDS)]
