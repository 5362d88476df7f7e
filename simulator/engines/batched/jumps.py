"""Joint normal law of many local steps on a diagonal quadratic, taken in one draw.

In each coordinate let y be the distance from the worker's optimum and u the buffer of a linear
transform (heavy ball, Nesterov). With the gradient g = h y + xi, curvature h and normal noise xi, a
step is linear: z becomes A z + b xi with z = (y, u). So n steps give P z, where P is the product
of their matrices, plus a normal vector, whose covariance S each step turns into A S A' + b b'.
Compiled, since with a schedule of rates every period has another law.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit, types

from ...distributions.distribution import Array
from ...programs.pieces.transform import Identity

_vector, _arrays = types.float64[::1], types.float64[:, ::1]


@lru_cache(maxsize=64)
def law(transform: Any, rates: tuple[float, ...], curvature: tuple[float, ...]) -> Array:
    """Return P, and the noise's Cholesky factor, shape (2, m, m, coordinates).

    `rates`: one for each step; m: 2, or 1 if the transform has no buffer.
    """
    size = 1 if type(transform) is Identity else 2
    unit = np.eye(2)  # of (g, u): the transform gives its coefficients
    (dg, du), (ug, uu) = transform.update(unit[0], unit[1], 0.0)
    rows = np.zeros((7, len(curvature)))
    _follow(np.array(rates), np.array(curvature), dg, du, ug, uu, rows)
    P, (S, covariance, of_buffer) = rows[:4].reshape(2, 2, -1), rows[4:]
    root = np.zeros_like(P)
    root[0, 0] = np.sqrt(S)
    np.divide(covariance, root[0, 0], out=root[1, 0], where=root[0, 0] > 0)
    root[1, 1] = np.sqrt(np.maximum(of_buffer - root[1, 0] ** 2, 0.0))  # zero up to rounding
    return np.stack([P, root])[:, :size, :size]


@njit(
    types.void(_vector, _vector, *[types.float64] * 4, _arrays), cache=True, nogil=True,
    error_model="numpy",
)  # fmt: skip
def _follow(rates, curvature, dg, du, ug, uu, out):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    """Compute P by rows, and variance of y, covariance, variance of u, in `out`.

    The direction is dg g + du u, and the next buffer ug g + uu u.
    """
    out[0], out[3] = 1.0, 1.0
    for r in rates:
        for i in range(len(curvature)):
            h = curvature[i]
            a, b, c, d = 1 - r * dg * h, -r * du, ug * h, uu
            for j in range(2):
                y, u = out[j, i], out[2 + j, i]
                out[j, i], out[2 + j, i] = a * y + b * u, c * y + d * u
            s, t, v = out[4, i], out[5, i], out[6, i]
            out[4, i] = a * a * s + 2 * a * b * t + b * b * v + r * r * dg * dg
            out[5, i] = a * c * s + (a * d + b * c) * t + b * d * v - r * dg * ug
            out[6, i] = c * c * s + 2 * c * d * t + d * d * v + ug * ug
