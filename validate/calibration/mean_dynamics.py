"""What the mean model does along a quadratic's modes, in expectation and without noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.simulator.programs.pieces.transform import Momentum, Nesterov, Transform

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Observation:
    """Losses (seeds, points), after `steps` (points,), of ssgd (`tau` None) or local-sgd.

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
        """Losses (points,), the geometric mean over seeds."""
        found: Array = np.exp(np.log(self.losses).mean(axis=0))
        return found

    @property
    def rates(self) -> Array:
        """How far the gradients of the steps to each point move the model in the end (points,)."""
        kept = self.momentum.mu if isinstance(self.momentum, Momentum | Nesterov) else 0.0
        found: Array = np.array([self.lr(max(1, int(step))) for step in self.steps]) / (1 - kept)
        return found

    def take(self, most: int) -> "Observation":
        """As many of the points, at most, evenly spread."""
        kept = np.unique(np.linspace(0, len(self.steps) - 1, most).astype(int))
        return Observation(
            self.label, self.workers, self.steps[kept], self.losses[:, kept],
            self.lr, self.momentum, self.tau,
        )  # fmt: skip


def responses(seen: Observation, curvature: Array, share: Any = 0.0, apart: Any = 1.0) -> Array:
    """Squared distance from the optimum, of the first one, at the steps of an observation.

    Along modes of `curvature`, for workers whose curvatures differ by `share` at `apart`, as
    `objectives.quadratic` has them; all are broadcast. Shape (points, *modes). Half of the workers
    go one way along the second coordinate of a mode, half the other, so that one of them tells all.
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
