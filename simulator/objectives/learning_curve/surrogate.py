"""Build a surrogate with the learning curve of synchronous SGD, and a probe.

Both are noisy quadratics with constant noise, so every engine can run them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...programs.effects import Vector
from ..objective import Evaluation
from ..quadratic import Array, NoisyQuadratic
from .curve import LARGEST

MODES = 48
SLOWEST, FASTEST = 3e-8, 1.0  # curvatures: share of a mode's distance per step
LATEST = 1e7  # largest step of the fitted curve
FLAT = 1e-12  # curvature of a coordinate with a constant gradient of one
GROUPS = 16  # most groups of workers that the probe distinguishes
COUPLED = 0.05  # coupling of a pair of coordinates, as a share of the curvature
CURVATURES = 2.0 ** np.arange(-14, 1.5, 0.25)  # of the probe's test modes


@dataclass(frozen=True)
class Shape:
    """A spectrum, the start and noise of each coordinate, and the loss at the optimum.

    `deviation`: standard deviation of the mean gradient of a step.
    """

    curvature: Array
    start: Array
    deviation: Array
    floor: float


def shape(
    excess: Callable[[Array], Array],
    floor: float,
    noise: float,
    copies: int,
    limits: tuple[float, float],
) -> Shape:
    """Return a quadratic whose loss above `floor` is `excess(steps)` at a rate of one.

    A power law is a mixture of exponentials: modes have log-spaced curvatures, and weights by
    non-negative least squares. Noise is proportional to the curvature (Zhu et al., arXiv
    1803.00195), with total variance `noise`; the weights account for it. Every mode has `copies`,
    in an order that spreads all modes over all pieces of the vector. `limits`: largest
    curvature, and factor of the rate.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - 0.2 s

    modes = np.geomspace(SLOWEST, FASTEST, MODES)
    steps = np.unique(np.rint(np.append(np.arange(8), np.geomspace(8, LATEST, 200))))
    remaining = (1 - modes) ** (2 * steps[:, None])
    variance = noise * modes / modes.sum()
    settled = modes * variance / (2 * (1 - (1 - modes) ** 2))  # part of the loss due to noise
    target = excess(steps) - (1 - remaining) @ settled
    loss = floor + excess(steps)
    still = np.append(remaining, np.ones((len(steps), 1)), axis=1)  # the last column: a constant
    *weight, rest = nnls(still / loss[:, None], target / loss, maxiter=100 * MODES)[0]
    curvature = np.minimum(limits[1] * modes, limits[0])
    start = np.sqrt(2 * np.array(weight) / curvature)
    order = np.argsort(np.arange(MODES * copies) * 0.6180339887498949 % 1, kind="stable")
    parts = [np.repeat(part, copies)[order] for part in (curvature, start, np.sqrt(variance))]
    return Shape(parts[0], parts[1] / np.sqrt(copies), parts[2] / np.sqrt(copies), floor + rest)


class Diagonal(NoisyQuadratic):
    """A noisy quadratic of a `Shape`, times a `ratio` by steps; `shifts`: the workers' optima."""

    def __init__(
        self, shape: Shape, shifts: Array, seed: int, ratio: Callable[[float], Any] | None = None
    ) -> None:
        self._ratio = ratio or (lambda step: 1.0)
        self.spectrum, self.start, self.shifts = shape.curvature, shape.start, shifts
        self.dimension, self.floor, self.seed = len(shape.start), shape.floor, seed
        self.noise, self.couplings = 1.0, None
        with np.errstate(divide="ignore"):
            self.spread = 1 / np.asarray(shape.deviation)
        self.notes = ()
        self.start.flags.writeable = False

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the loss, times the ratio."""
        loss, accuracy, _ = super().evaluate(x, step)
        return Evaluation(float(loss * self._ratio(step)), accuracy)


@dataclass
class Gains:
    """Effect of a program on gradients, measured by a `Probe`.

    `signal`: distance per local step in a constant gradient of one, at a rate of one; `averaged`:
    number of gradients whose mean has equal noise; `limit`: largest stable curvature times rate
    (2: synchronous SGD); `apart`: number of local steps between agreements.
    """

    signal: float
    averaged: float
    limit: float
    apart: float


@dataclass(frozen=True)
class Probe:
    """An objective that measures a program's use of gradients; `seen`: models by step.

    Every group of workers has a coordinate with gradient one for the group and zero for others.
    The other coordinates have no noise, and different curvatures. The training loss is that of
    data-parallel training (`parallel`) after equal progress. If workers never all agree
    (`gossips`), every coordinate has a second one, through which differences between the workers'
    models affect their mean.
    """

    workers: int
    parallel: Callable[[float], float]
    gossips: bool = False
    seen: list[tuple[float, Array]] = field(default_factory=list)
    kind: str = "learning-curve"

    @property
    def groups(self) -> list[Any]:
        """The ranks of each group; the first worker is a group by itself."""
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
        """Compute the gains from models `seen`; `together`: all gradients count equally."""
        (first, before), (last, after) = self.seen[len(self.seen) // 2], self.seen[-1]
        count = len(self.groups)
        gain = (before - after)[:count] / max(last - first, 1)
        sizes = np.array([len(ranks) for ranks in self.groups])
        signal = float(gain.sum())
        if not 0 < signal < LARGEST:  # the run has diverged
            return Gains(1.0, float(self.workers), 2.0, apart)
        averaged = self.workers if together else signal**2 / float((gain**2 / sizes).sum())
        stable = np.abs(after[count : count + len(CURVATURES)]) < 1
        count_stable = len(stable) if stable.all() else int(np.argmin(stable))
        limit = float(CURVATURES[max(count_stable - 1, 0)]) * signal
        return Gains(signal, averaged, limit, apart)


class ProbeQuadratic(Diagonal):
    """The quadratic of a `Probe`; it stores all evaluated models there."""

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
        """Return the loss of data-parallel training after equal progress."""
        return self._parallel(max(0.0, -float(x[: self._count].sum())))

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Store the model."""
        self._seen.append((step, np.array(x, copy=True)))
        return Evaluation(0.0, 0.0)
