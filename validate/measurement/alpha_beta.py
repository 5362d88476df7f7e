"""Fit a latency and a bandwidth (the alpha-beta model) to times by size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class AlphaBeta:
    """A transfer of s bytes takes `alpha` + `beta` s seconds (Hockney, 1994).

    `error`: relative root mean square error at the measured `sizes` (bytes) and `times` (medians in
    seconds).
    """

    alpha: float
    beta: float
    error: float
    sizes: tuple[float, ...]
    times: tuple[float, ...]

    @property
    def bandwidth(self) -> float:
        """Return the asymptotic bytes per second; inf if time does not depend on size."""
        return 1 / self.beta if self.beta else inf


def fit(sizes: Sequence[float], samples: Sequence[Array]) -> AlphaBeta:
    """Fit the samples (seconds) of each size (bytes).

    Least squares of relative errors with non-negative numbers, over medians per size, since a busy
    machine delays some samples a lot.
    """
    from scipy.optimize import nnls  # noqa: PLC0415

    times = np.array([float(np.median(sample)) for sample in samples])
    columns = np.stack([np.ones(len(times)), np.asarray(sizes, float)], axis=1)
    scale = columns.max(axis=0)  # otherwise rounding hides the seconds per byte
    (alpha, beta), _ = nnls(columns / scale / times[:, None], np.ones(len(times)))
    alpha, beta = alpha / scale[0], beta / scale[1]
    missed = (alpha + beta * columns[:, 1]) / times - 1
    error = sqrt(float((missed**2).mean()))
    return AlphaBeta(float(alpha), float(beta), error, tuple(sizes), tuple(times.tolist()))
