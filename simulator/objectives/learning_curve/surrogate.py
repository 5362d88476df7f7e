"""A diagonal quadratic that has a given learning curve under synchronous SGD, and a probe.

Both are noisy quadratics whose noise does not grow, so that every engine runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...programs.effects import Vector
from ..objective import Evaluation
from ..quadratic import Array, NoisyQuadratic
from .curve import LARGEST

MODES = 48
SLOWEST, FASTEST = 3e-8, 1.0  # curvatures: share of a mode's distance that one step covers
LATEST = 1e7  # steps up to which the curve is fitted
FLAT = 1e-12  # curvature of a coordinate whose gradient is one everywhere
GROUPS = 16  # of workers that the probe tells apart
COUPLED = 0.05  # of the curvature: how much the coordinates of a pair have to do with each other
CURVATURES = 2.0 ** np.arange(-14, 1.5, 0.25)  # that the probe tries


@dataclass(frozen=True)
class Shape:
    """A spectrum, the start and the noise of each coordinate, and the loss at the optimum.

    `deviation`: of the mean of all gradients of a step.
    """

    curvature: Array
    start: Array
    deviation: Array
    floor: float


class Limits(NamedTuple):
    """Limits of a program: curvatures up to `limit`, at `slow` times the rate."""

    limit: float
    slow: float


def shape(
    excess: Callable[[Array], Array],
    floor: float,
    noise: float,
    *,
    copies: int,
    limits: Limits,
) -> Shape:
    """Return a quadratic whose loss above `floor` is `excess(steps)` under a rate of one.

    A power law is a mixture of exponentials, so that its modes have log-spaced curvatures, and
    weights by non-negative least squares. Noise is in proportion to the curvature (Zhu et al.,
    arXiv 1803.00195), of variance `noise` in all; the weights account for it. Each mode has
    `copies`, in an order by which every piece of the vector has all kinds of them.
    """
    modes = np.geomspace(SLOWEST, FASTEST, MODES)
    steps = np.unique(np.rint(np.append(np.arange(8), np.geomspace(8, LATEST, 200))))
    remaining = (1 - modes) ** (2 * steps[:, None])
    variance = noise * modes / modes.sum()
    settled = modes * variance / (2 * (1 - (1 - modes) ** 2))  # of the loss, by noise alone
    wanted = excess(steps) - (1 - remaining) @ settled
    loss = floor + excess(steps)
    still = np.append(remaining, np.ones((len(steps), 1)), axis=1)  # what falls too slowly to see
    *weight, rest = _weights(still / loss[:, None], wanted / loss)
    curvature = np.minimum(limits.slow * modes, limits.limit)
    start = np.sqrt(2 * np.array(weight) / curvature)
    order = np.argsort(np.arange(MODES * copies) * 0.6180339887498949 % 1, kind="stable")
    parts = [np.repeat(part, copies)[order] for part in (curvature, start, np.sqrt(variance))]
    return Shape(parts[0], parts[1] / np.sqrt(copies), parts[2] / np.sqrt(copies), floor + rest)


def _weights(modes: Array, wanted: Array) -> Array:
    from scipy.optimize import nnls  # noqa: PLC0415 - 0.2 s

    weights: Array = nnls(modes, wanted, maxiter=100 * MODES)[0]
    return weights


class Diagonal(NoisyQuadratic):
    """A noisy quadratic of these numbers: one row of optima for each worker."""

    def __init__(self, shape: Shape, shifts: Array, seed: int) -> None:
        self.spectrum, self.start, self.shifts = shape.curvature, shape.start, shifts
        self.dimension, self.floor, self.seed = len(shape.start), shape.floor, seed
        self.noise, self.couplings = 1.0, None
        with np.errstate(divide="ignore"):
            self.spread = 1 / np.asarray(shape.deviation)
        self.notes = ()
        self.start.flags.writeable = False


class Surrogate(Diagonal):
    """The loss of a `Shape`, times a ratio that evidence adds; `basis` and `loss_basis` say why."""

    def __init__(self, goal: Any, workers: int, seed: int) -> None:
        made: Shape = goal.shape
        still = np.zeros((workers, len(made.start)))
        deviation = made.deviation * np.sqrt(goal.averaged)
        super().__init__(replace(made, start=made.start.copy(), deviation=deviation), still, seed)
        self._ratio = goal.expected.ratio
        self.basis, self.loss_basis = goal.expected.basis, goal.expected.sentence

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the loss of the model that is trained, in its own units."""
        result = super().evaluate(x, step)
        return Evaluation(float(result.loss * self._ratio(step)), result.accuracy)


@dataclass
class Gains:
    """Effect of a program on gradients, measured by a `Probe`.

    `signal`: steps that it goes in a constant gradient of one, per local step, at a rate of one;
    `averaged`: gradients whose mean has as much noise; `limit`: curvature times rate up to which it
    is stable (2: synchronous SGD); `apart`: local steps that workers take on their own.
    """

    signal: float
    averaged: float
    limit: float
    apart: float


@dataclass(frozen=True)
class Probe:
    """An objective that shows what a program does with gradients: `seen` are models by step.

    For each group of workers there is a coordinate whose gradient is one for them and zero for the
    others; the rest are free of noise, each of another curvature. A program that reads its
    training loss gets that of data-parallel training (`parallel`) after as many steps as it has
    gone. Where workers never all agree (`gossips`), each coordinate has a second one, by which the
    mean of their models feels that they part.
    """

    workers: int
    parallel: Callable[[float], float]
    gossips: bool = False
    seen: list[tuple[float, Array]] = field(default_factory=list)
    kind: str = "learning-curve"

    @property
    def groups(self) -> list[Any]:
        """The ranks of each group: the first worker alone."""
        others = np.arange(1, self.workers)
        return [np.arange(1), *np.array_split(others, min(len(others), GROUPS - 1) or 1)][
            : self.workers
        ]

    @property
    def dimension(self) -> int:
        """Entries of a vector."""
        return (len(self.groups) + len(CURVATURES)) * (1 + self.gossips)

    def make(self, workers: int, seed: int) -> "ProbeQuadratic":
        """Make the objective of a run."""
        return ProbeQuadratic(self, seed)

    def gains(self, together: bool, apart: float) -> Gains:
        """Return the gains by the models `seen`; `together`: all gradients count equally."""
        (first, before), (last, after) = self.seen[len(self.seen) // 2], self.seen[-1]
        count = len(self.groups)
        gain = (before - after)[:count] / max(last - first, 1)
        sizes = np.array([len(ranks) for ranks in self.groups])
        signal = float(gain.sum())
        if not 0 < signal < LARGEST:  # it has diverged
            return Gains(1.0, float(self.workers), 2.0, apart)
        averaged = self.workers if together else signal**2 / float((gain**2 / sizes).sum())
        stable = np.abs(after[count : count + len(CURVATURES)]) < 1
        count_stable = len(stable) if stable.all() else int(np.argmin(stable))
        limit = float(CURVATURES[max(count_stable - 1, 0)]) * signal
        return Gains(signal, averaged, limit, apart)


class ProbeQuadratic(Diagonal):
    """The quadratic of a `Probe`, which shows it every model that is evaluated."""

    def __init__(self, probe: Probe, seed: int) -> None:
        count = len(probe.groups)
        shifts = np.zeros((probe.workers, count + len(CURVATURES)))
        for place, ranks in enumerate(probe.groups):
            shifts[ranks, place] = -1 / FLAT
        curvature = np.append(np.full(count, FLAT), CURVATURES)
        start = np.append(np.zeros(count), np.ones(len(CURVATURES)))
        apart = None
        if probe.gossips:
            signs = np.random.default_rng(0).standard_normal((probe.workers, 1))
            apart = COUPLED * (signs - signs.mean()) * np.append(np.zeros(count), CURVATURES)
            curvature, start = np.tile(curvature, 2), np.append(start, np.zeros(len(start)))
            shifts = np.pad(shifts, ((0, 0), (0, shifts.shape[1])))
        super().__init__(Shape(curvature, start, np.zeros(len(start)), 0.0), shifts, seed)
        self.couplings = apart
        self._seen, self._parallel, self._count = probe.seen, probe.parallel, count

    def loss(self, x: Array, shifts: Array, couplings: Array | None) -> float:
        """Return the loss of data-parallel training after as much progress."""
        return self._parallel(max(0.0, -float(x[: self._count].sum())))

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Store the model."""
        self._seen.append((step, np.array(x, copy=True)))
        return Evaluation(0.0, 0.0)
