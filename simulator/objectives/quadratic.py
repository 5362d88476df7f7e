"""A noisy quadratic: the objective whose behaviour has a closed form."""

from itertools import chain, count
from math import nan
from typing import Any

import numpy as np

from ..distributions.random_streams import Purpose, generator
from ..programs.effects import Vector
from ..scenario.tables import Modes, Quadratic
from .objective import Evaluation

Array = np.ndarray[Any, np.dtype[np.float64]]

DRAWN = 1024  # normal numbers at once, at most; their stream is the same however many
SIGNS = 1  # key of the stream of Purpose.OBJECTIVE for couplings; stream 0 shifts the optima
ONE_CURVATURE = (
    "on a quadratic with one curvature for all workers the mean of their models moves alike "
    "however seldom they average: compare times, and use softmax, or objective.heterogeneity, to "
    "see what tau costs"
)


class NoisyQuadratic:
    """F_w(x) = floor + (x - s_w)' D (x - s_w) / 2 + x' C_w x / 2, its gradient seen through noise.

    The mean over workers is F(x) = floor + x' D x / 2, up to a constant: the shifts s_w of the
    workers' optima, of norm `shift` before centring, and the C_w sum to zero.

    D is diagonal. Its entries `spectrum` are i ** -exponent, or those of a few modes, each of a
    block of coordinates. Noise is Gaussian, E||g - grad F_w||^2 = noise^2 + noise_growth x' D x
    (Theorem 2's sigma^2 where that does not grow), the same in every coordinate of a power
    spectrum, and of variances in proportion to the curvature with modes, as the noise of
    mini-batches has them (Zhu et al., arXiv 1803.00195).

    With `heterogeneity` there is a second coordinate to every one, of that `curvature` k, which
    starts at its optimum. C_w couples the two by plus or minus sqrt(share h k), h being the first
    one's curvature: half of the workers pull the second one up and half down, so that the mean
    of their gradients leaves it alone. A worker that trains alone follows, and its gradient along
    the first falls by up to `share` of it, within about 1 / (lr k) steps: tau slows down.
    """

    def __init__(self, spec: Quadratic, workers: int, seed: int) -> None:
        d = spec.dimension
        self.dimension, self.floor, self.seed = coordinates(spec), spec.floor, seed
        self.noise, self.growth = spec.noise, spec.noise_growth
        directions = generator(seed, Purpose.OBJECTIVE).standard_normal((workers, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        self.shifts = spec.shift * (directions - directions.mean(axis=0))
        self.notes: tuple[str, ...] = (ONE_CURVATURE,)
        self.couplings: Array | None = None
        if isinstance(spec.spectrum, Modes):
            own, self.start = _modes(spec.spectrum, d, spec.initial_gap)
        else:
            own = np.arange(1, d + 1, dtype=float) ** -spec.spectrum.exponent
            self.start = np.full(d, np.sqrt(2 * spec.initial_gap / own.sum()))
        self.spectrum = own
        if spec.heterogeneity is not None:
            share, k = spec.heterogeneity.share, spec.heterogeneity.curvature
            self.spectrum = np.append(own, np.full(d, k))
            self.start = np.append(self.start, np.zeros(d))
            self.shifts = np.pad(self.shifts, ((0, 0), (0, d)))
            self.couplings = _signs(workers, d, seed, share) * np.sqrt(own * k)
            self.notes = ()
        self.spread: Any = np.sqrt(d)  # noise by the standard deviation of a coordinate's
        if isinstance(spec.spectrum, Modes):
            self.spread = np.sqrt(self.spectrum.sum() / self.spectrum)
        elif spec.heterogeneity is not None:
            self.spread = np.sqrt(2 * d)
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

    def deviation(self, x: Array) -> Any:
        """Return the standard deviation of a coordinate's noise at `x` (..., dimension)."""
        if not self.growth:
            return self.noise / self.spread
        grown = self.growth * (self.spectrum * x * x).sum(axis=-1, keepdims=True)
        return np.sqrt(self.noise**2 + grown) / self.spread


class _QuadraticSource:
    def __init__(self, objective: NoisyQuadratic, rank: int) -> None:
        self._objective = objective
        couplings = objective.couplings
        self._own = objective.shifts[rank], None if couplings is None else couplings[rank]
        scale = 1.0 if objective.growth else objective.deviation(objective.start)
        normal = generator(objective.seed, Purpose.BATCH, rank).standard_normal
        shape = max(1, DRAWN // objective.dimension), objective.dimension
        self._noise = chain.from_iterable(scale * normal(shape) for _ in count())

    def gradient(self, x: Vector) -> Vector:
        goal, noise = self._objective, next(self._noise)
        if goal.growth:
            noise = goal.deviation(x) * noise
        return goal.slope(x, *self._own) + noise

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        return self._objective.loss(x, *self._own), self.gradient(x)


def coordinates(spec: Quadratic) -> int:
    """Return the number of parameters."""
    return spec.dimension * (1 if spec.heterogeneity is None else 2)


def _modes(spectrum: Modes, dimension: int, initial_gap: float) -> tuple[Array, Array]:
    """Return curvature and start of each coordinate, shape (dimension,) each."""
    blocks = np.array_split(np.arange(dimension), len(spectrum.curvature))
    sizes = [len(block) for block in blocks]
    curvature = np.repeat(spectrum.curvature, sizes)
    gaps = initial_gap * np.array(spectrum.gap) / sum(spectrum.gap)
    return curvature, np.sqrt(2 * np.repeat(gaps / sizes, sizes) / curvature)


def _signs(workers: int, dimension: int, seed: int, share: float) -> Array:
    """Return +1, -1 or 0 per worker and coordinate, times sqrt(share), shape (workers, dimension).

    With an odd number of workers one has 0; the others are scaled up to make up for it, as far as
    all curvatures stay positive.
    """
    pairs = workers // 2
    if not pairs:
        return np.zeros((workers, dimension))
    signs = np.repeat([1.0, -1.0, 0.0], [pairs, pairs, workers - 2 * pairs])
    columns = np.tile(signs, (dimension, 1))
    rng = generator(seed, Purpose.OBJECTIVE, SIGNS)
    signs = rng.permuted(columns, axis=1).T
    scaled: Array = signs * np.sqrt(min(1.0, share * workers / (2 * pairs)))
    return scaled
