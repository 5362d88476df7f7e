"""Dynamics of the mean model along a quadratic's modes, in expectation and without noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.simulator.programs.pieces.transform import Momentum, Nesterov, Transform

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Observation:
    """Loss curves of ssgd (`tau` None) or local-sgd: `losses` (seeds, points) at `steps` (points,).

    `lr` and `tau` are functions of the local step.
    """

    label: str
    workers: int
    steps: Array
    losses: Array
    lr: Callable[[int], float]
    momentum: Transform
    tau: Callable[[int], float] | None = None

    @property
    def mean(self) -> Array:
        """Return the geometric mean of the losses over seeds (points,)."""
        found: Array = np.exp(np.log(self.losses).mean(axis=0))
        return found

    @property
    def rates(self) -> Array:
        """Return the effective learning rates lr / (1 - mu) at the points (points,)."""
        kept = self.momentum.mu if isinstance(self.momentum, Momentum | Nesterov) else 0.0
        found: Array = np.array([self.lr(max(1, int(step))) for step in self.steps]) / (1 - kept)
        return found

    def take(self, most: int) -> "Observation":
        """Return the observation at no more than `most` points, evenly spread."""
        kept = np.unique(np.linspace(0, len(self.steps) - 1, most).astype(int))
        return Observation(
            self.label, self.workers, self.steps[kept], self.losses[:, kept],
            self.lr, self.momentum, self.tau,
        )  # fmt: skip


def squared_distances(
    seen: Observation, curvature: Array, share: Any = 0.0, apart: Any = 1.0
) -> Array:
    """Return squared distances from the optimum, relative to the first, at an observation's steps.

    Along modes of `curvature`, for workers whose curvatures differ by `share` at `apart`, as in
    `objectives.quadratic`; all are broadcast. Shape (points, *modes). Half of the workers move one
    way along the second coordinate of a mode, half the other, so simulating one is enough.
    """
    h, s, k = np.broadcast_arrays(*(np.asarray(each, float) for each in (curvature, share, apart)))
    coupling = np.sqrt(s * h * k) * (seen.tau is not None)
    x: Array = np.stack([np.ones(h.shape), np.zeros(h.shape)])
    u = seen.momentum.init(x)
    found = np.empty((len(seen.steps), *h.shape))
    wanted = {int(step): index for index, step in enumerate(seen.steps)}
    since = 0
    with np.errstate(over="ignore", invalid="ignore"):  # a mode that diverges is not chosen
        for step in range(int(seen.steps[-1]) + 1):
            if step:
                slope = np.stack([h * x[0] + coupling * x[1], k * x[1] + coupling * x[0]])
                direction, u = seen.momentum.update(slope, u, x)
                x = x - seen.lr(step) * direction
                since += 1
                if seen.tau is not None and since >= seen.tau(step):
                    x[1], u, since = 0, seen.momentum.init(x), 0
            if step in wanted:
                found[wanted[step]] = x[0] ** 2
    return found
