"""The joint normal law of many local steps on a diagonal quadratic, so that one draw takes them all.

In each coordinate let y be the distance from the worker's optimum and u the buffer of a linear
transform (heavy ball, Nesterov). A step sees the gradient g = h y + xi of curvature h, where xi is
normal, and is linear: z becomes A z + b xi with z = (y, u). So n steps give P z and a normal vector,
where P is the product of their matrices and its covariance what the noise of all of them becomes.
Both are composed in pairs of steps, pairs of pairs and so on, for all coordinates at once.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from paceline.simulator.distributions.distribution import Array
from paceline.simulator.programs.pieces.transform import Identity, Momentum, Nesterov

LINEAR = Identity, Momentum, Nesterov
LONGEST = 1024  # steps of one draw, at most


@lru_cache(maxsize=64)
def law(transform: Any, rates: tuple[float, ...], curvature: tuple[float, ...]) -> Array:
    """Return P, and the Cholesky factor for noise of unit variance, shape (2, m, m, coordinates).

    `rates`: of the steps; m: 2, or 1 where the transform has no buffer.
    """
    size = 1 if type(transform) is Identity else 2
    one, zero = np.eye(2)  # what (g, u) become: the transform's rule is asked, not repeated
    (dg, du), (ug, uu) = transform.update(one, zero, 0.0)
    r, ones = np.array(rates)[:, None], np.ones((len(rates), 1))
    b = np.array([-dg * r, ug * ones])
    A = np.array([[ones, -du * r], [0 * ones, uu * ones]]) + np.zeros(len(curvature))
    A[:, 0] += b * curvature
    steps = np.stack([A, np.broadcast_to(b[:, None] * b, A.shape)])[:, :size, :size]
    rest = None
    while (count := steps.shape[3]) > 1:
        if count % 2:
            last = steps[..., -1:, :]
            rest = last if rest is None else _followed(last, rest)
        steps = _followed(steps[..., : count - 1 : 2, :], steps[..., 1:count:2, :])
    P, S = (steps if rest is None else _followed(steps, rest))[..., 0, :]
    root = np.zeros_like(S)
    root[0, 0] = np.sqrt(S[0, 0])
    if size == 2:
        np.divide(S[1, 0], root[0, 0], out=root[1, 0], where=root[0, 0] > 0)
        root[1, 1] = np.sqrt(np.maximum(S[1, 1] - root[1, 0] ** 2, 0.0))  # zero up to rounding
    return np.stack([P, root])


def _followed(first: Array, then: Array) -> Array:
    """Compose matrices and covariances, shape (2, m, m, steps, coordinates)."""
    (P, S), (Q, T) = first, then
    product = np.einsum("ij...,jk...->ik...", Q, P)
    return np.stack([product, np.einsum("ij...,jk...,lk...->il...", Q, S, Q) + T])
