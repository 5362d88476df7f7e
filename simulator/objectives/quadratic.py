"""Define the noisy quadratic, an objective with closed-form behaviour."""

from itertools import chain, count
from math import nan
from typing import Any

import numpy as np

from ..distributions.random_streams import Purpose, generator
from ..programs.effects import Vector
from ..scenario.tables import Quadratic
from .objective import Evaluation

Array = np.ndarray[Any, np.dtype[np.float64]]

DRAWN = 1024  # most normal numbers per draw; the stream does not depend on it
SIGNS = 1  # stream of Purpose.OBJECTIVE for couplings; stream 0 draws the shifts
ONE_CURVATURE = (
    "a quadratic with one curvature for all workers does not show the cost of rare averages: "
    "compare only times, or use softmax or objective.heterogeneity"
)


class NoisyQuadratic:
    """F_w(x) = floor + (x - s_w)' D (x - s_w) / 2 + x' C_w x / 2, noisy gradients.

    The mean over workers is F(x) = floor + x' D x / 2, up to a constant: the shifts s_w of the
    workers' optima, of norm `shift` before centring, and the C_w sum to zero.

    D is diagonal, with entries `spectrum` of i ** -exponent. Noise is Gaussian and equal in all
    coordinates: E||g - grad F_w||^2 = noise^2, Theorem 2's sigma^2.

    With `heterogeneity` every coordinate has a partner with the `curvature` k that starts at its
    optimum. C_w couples the two by plus or minus sqrt(share h k), where h is the first coordinate's
    curvature: half of the workers pull the partner up and half down, so the mean gradient does not
    move it. A worker that trains alone does move it, and its gradient along the first coordinate
    falls by up to `share` within about 1 / (lr k) steps: a long tau slows training down.
    """

    def __init__(self, spec: Quadratic, workers: int, seed: int) -> None:
        d = spec.dimension
        self.dimension, self.floor, self.seed = coordinates(spec), spec.floor, seed
        self.noise = spec.noise
        directions = generator(seed, Purpose.OBJECTIVE).standard_normal((workers, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        self.shifts = spec.shift * (directions - directions.mean(axis=0))
        self.notes: tuple[str, ...] = (ONE_CURVATURE,)
        self.couplings: Array | None = None
        self.spectrum = own = np.arange(1, d + 1, dtype=float) ** -spec.spectrum.exponent
        self.start = np.full(d, np.sqrt(2 * spec.initial_gap / own.sum()))
        if spec.heterogeneity is not None:
            share, k = spec.heterogeneity.share, spec.heterogeneity.curvature
            self.spectrum = np.append(own, np.full(d, k))
            self.start = np.append(self.start, np.zeros(d))
            self.shifts = np.pad(self.shifts, ((0, 0), (0, d)))
            self.couplings = _signs(workers, d, seed, share) * np.sqrt(own * k)
            self.notes = ()
        # noise over the standard deviation of a coordinate's noise
        self.spread: Any = np.sqrt(self.dimension)
        self.start.flags.writeable = False

    def source(self, rank: int) -> "_QuadraticSource":
        """Return the gradient source of worker `rank`."""
        return _QuadraticSource(self, rank)

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return F(x), the mean over workers without the constant."""
        return Evaluation(self.floor + float(self.spectrum @ (x * x)) / 2, nan)

    def slope(self, x: Array, shifts: Array, couplings: Array | None) -> Array:
        """Return the gradient at `x` (..., dimension) for these shifts and couplings."""
        slope: Array = (x - shifts) * self.spectrum
        if couplings is not None:
            half = self.dimension // 2
            slope[..., :half] += couplings * x[..., half:]
            slope[..., half:] += couplings * x[..., :half]
        return slope

    def loss(self, x: Array, shifts: Array, couplings: Array | None) -> float:
        """Return the loss of one worker at `x` (dimension,)."""
        away = x - shifts
        loss = self.floor + float(self.spectrum @ (away * away)) / 2
        if couplings is not None:
            half = self.dimension // 2
            loss += float(couplings @ (x[:half] * x[half:]))
        return loss


class _QuadraticSource:
    def __init__(self, objective: NoisyQuadratic, rank: int) -> None:
        self._objective = objective
        couplings = objective.couplings
        self._own = objective.shifts[rank], None if couplings is None else couplings[rank]
        scale = objective.noise / objective.spread
        normal = generator(objective.seed, Purpose.BATCH, rank).standard_normal
        shape = max(1, DRAWN // objective.dimension), objective.dimension
        self._noise = chain.from_iterable(scale * normal(shape) for _ in count())

    def gradient(self, x: Vector) -> Vector:
        return self._objective.slope(x, *self._own) + next(self._noise)

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        return self._objective.loss(x, *self._own), self.gradient(x)


def coordinates(spec: Quadratic) -> int:
    """Return the number of parameters."""
    return spec.dimension * (1 if spec.heterogeneity is None else 2)


def _signs(workers: int, dimension: int, seed: int, share: float) -> Array:
    """Return +-sqrt(share) or 0 per worker and coordinate, (workers, dimension)."""
    pairs = workers // 2
    if not pairs:
        return np.zeros((workers, dimension))
    signs = np.repeat([1.0, -1.0, 0.0], [pairs, pairs, workers - 2 * pairs])
    columns = np.tile(signs, (dimension, 1))
    rng = generator(seed, Purpose.OBJECTIVE, SIGNS)
    signs = rng.permuted(columns, axis=1).T
    # of an odd number one worker has 0; the others make up for it while curvatures stay positive
    scaled: Array = signs * np.sqrt(min(1.0, share * workers / (2 * pairs)))
    return scaled
