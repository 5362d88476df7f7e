"""Compute the gradients of all workers and seeds, with each worker's draws."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...distributions.distribution import Array
from ...distributions.random_streams import Purpose, generator, quick
from ...objectives.objective import GradientSource, Nothing, Objective
from ...objectives.quadratic import NoisyQuadratic
from ...objectives.softmax import SoftmaxRegression
from ...programs.effects import Vector
from .arrays import PerWorker, Stack, Unsupported, array

NOISE = 2**22  # most random numbers in memory at once


class Normals:
    """Normal numbers of several streams, drawn ahead; `scale`: standard deviation."""

    def __init__(
        self, rngs: Sequence[np.random.Generator], shape: tuple[int, ...], scale: Any
    ) -> None:
        calls = max(1, min(64, NOISE // (len(rngs) * prod(shape))))
        self._rngs, self._scale = rngs, scale
        self._numbers = np.empty((len(rngs), calls, *shape))
        self._used = calls

    def next(self) -> Array:
        """Return the next numbers of each stream, (streams, ...), valid until the next call."""
        if self._used == self._numbers.shape[1]:
            for rng, numbers in zip(self._rngs, self._numbers, strict=True):
                rng.standard_normal(out=numbers)
            self._numbers *= self._scale
            self._used = 0
        self._used += 1
        following: Array = self._numbers[:, self._used - 1]
        return following


class QuadraticGradients:
    """Gradients of `NoisyQuadratic`."""

    def __init__(self, objectives: Sequence[NoisyQuadratic], workers: int) -> None:
        self._first, self._objectives = objectives[0], objectives
        self._optima = np.stack([goal.shifts for goal in objectives])
        coupled = [goal.couplings for goal in objectives if goal.couplings is not None]
        self._couplings = np.stack(coupled) if coupled else None
        self._shifts: Any = self._optima if coupled or self._optima.any() else 0.0
        rngs = [
            generator(goal.seed, Purpose.BATCH, rank)
            for goal in objectives
            for rank in range(workers)
        ]
        scale = self._first.noise / self._first.spread
        self._noise = Normals(rngs, (self._first.dimension,), scale)
        self._joint: Normals | None = None
        self._curvature = tuple(self._first.spectrum.tolist())

    def gradient(self, x: Vector) -> Vector:
        """Return curvature times distance, plus noise."""
        at = array(x)
        gradient = self._first.slope(at, self._shifts, self._couplings)
        noise = self._noise.next().reshape(self._optima.shape)
        if gradient.shape == noise.shape:
            gradient += noise
        else:
            gradient = gradient + noise
        return Stack(gradient)

    @property
    def jump(self) -> Any:
        """Function that draws several steps; None if coordinates are coupled."""
        return None if self._couplings is not None else self._draw_steps

    def _draw_steps(self, x: Vector, state: Any, transform: Any, rates: Sequence[float]) -> Any:
        """Return parameters and state after steps at these rates, from one draw."""
        from . import jumps  # noqa: PLC0415 - numba takes half a second

        P, root = jumps.law(transform, tuple(rates), self._curvature)
        if self._joint is None:
            rngs = [quick(g.seed, Purpose.AGGREGATE, Purpose.BATCH) for g in self._objectives]
            deviation = self._first.noise / self._first.spread
            shape = len(P), *self._optima.shape[1:]
            self._joint = Normals(rngs, shape, deviation)
        noise = self._joint.next()
        away = array(x) - self._shifts
        moved = P[0, 0] * away + root[0, 0] * noise[:, 0]
        if len(P) == 1:
            return Stack(moved + self._shifts), state
        u = array(state)
        moved += P[0, 1] * u
        buffer = root[1, 0] * noise[:, 0] + root[1, 1] * noise[:, 1] + P[1, 0] * away + P[1, 1] * u
        return Stack(moved + self._shifts), Stack(buffer)

    def loss_and_gradient(self, x: Vector) -> tuple[Any, Vector]:
        """Return each worker's loss, summed as in the reference engine, and the gradients."""
        at = np.broadcast_to(array(x), self._optima.shape)[0]
        coupled = [None] * len(at) if self._couplings is None else self._couplings[0]
        losses = [self._first.loss(*row) for row in zip(at, self._optima[0], coupled, strict=True)]
        return PerWorker(np.array(losses)), self.gradient(x)


class SoftmaxGradients:
    """Gradients of `SoftmaxRegression`."""

    def __init__(self, objectives: Sequence[SoftmaxRegression], workers: int) -> None:
        self._first, self._shape = objectives[0], (len(objectives), workers)
        self._batches = [goal.source(rank) for goal in objectives for rank in range(workers)]

    def gradient(self, x: Vector) -> Vector:
        """Return the gradients."""
        return self._next(x)[1]

    def loss_and_gradient(self, x: Vector) -> tuple[Any, Vector]:
        """Return losses and gradients."""
        losses, gradient = self._next(x)
        return PerWorker(losses[0]), gradient

    def _next(self, x: Vector) -> tuple[Array, Stack]:
        rows = np.stack([batch.next_rows() for batch in self._batches])
        dimension = self._first.dimension
        at = np.broadcast_to(array(x), (*self._shape, dimension)).reshape(-1, dimension)
        losses, gradients = self._first.at(at, rows)
        return losses.reshape(self._shape), Stack(gradients.reshape(*self._shape, dimension))


def of_all(objectives: Sequence[Objective], workers: int) -> GradientSource:
    """Return the gradients of objectives of one kind, one for each seed.

    Other kinds may offer a method `together(objectives, workers)`. Raises Unsupported without it.
    """
    first: Any = objectives[0]
    same: Any = objectives
    match first:
        case NoisyQuadratic():
            return QuadraticGradients(same, workers)
        case SoftmaxRegression():
            return SoftmaxGradients(same, workers)
        case Nothing():
            return first.source(0)  # the same for every worker
    if hasattr(first, "together"):
        source: GradientSource = first.together(objectives, workers)
        return source
    raise Unsupported("its objective works one worker at a time")
