"""NumPy's normal numbers, to the last bit, inside compiled code: several times as fast.

A gradient of 48 coordinates takes 48 normal numbers, which NumPy's generator draws in half a
microsecond: longer than everything else that the loop does for a gradient. Half of that goes into
its Philox (Salmon et al., SC 2011), which computes one block of four after the other, and is called
for each number. Here the blocks of several counters are computed together, so that the processor
overlaps them. From them numbers are made by the same ziggurat (Marsaglia and Tsang, JSS 2000).

NumPy does not promise that its streams stay as they are between versions. So `check` compares.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.random import _constants as ziggurat

from paceline.simulator.distributions.random_streams import Purpose, generator

AHEAD = 64  # random integers computed at once: 16 blocks of Philox
STATE = AHEAD + 5  # those; the key; the counter's lowest two words; integers used of `AHEAD`
CHECKED = 2**16  # numbers compared with NumPy's

_U = np.uint64
_KEY, _COUNTER, _USED = AHEAD, AHEAD + 2, AHEAD + 4
_KI, _WI, _FI = ziggurat.ki_double, ziggurat.wi_double, ziggurat.fi_double
_R, _INVERSE = ziggurat.ziggurat_nor_r, ziggurat.ziggurat_nor_inv_r
_MULTIPLIERS = _U(0xD2E7470EE14C6C93), _U(0xCA5A826395121157)
_WEYL = _U(0x9E3779B97F4A7C15), _U(0xBB67AE8584CAA73B)


@intrinsic
def _high(_: Any, a: Any, b: Any) -> Any:
    """Return the upper half of a product of two 64-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(each, wide) for each in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@njit(cache=True, nogil=True)
def _refill(state):  # type: ignore[no-untyped-def]
    """Compute the next `AHEAD` random integers."""
    for block in range(AHEAD // 4):
        state[_COUNTER] += _U(1)
        state[_COUNTER + 1] += _U(state[_COUNTER] == _U(0))
        a, b, c, d = state[_COUNTER], state[_COUNTER + 1], _U(0), _U(0)
        k, m = state[_KEY], state[_KEY + 1]
        for _ in range(10):
            high, other = _high(_MULTIPLIERS[0], a), _high(_MULTIPLIERS[1], c)
            a, b, c, d = other ^ b ^ k, _MULTIPLIERS[1] * c, high ^ d ^ m, _MULTIPLIERS[0] * a
            k, m = k + _WEYL[0], m + _WEYL[1]
        state[4 * block], state[4 * block + 1] = a, b
        state[4 * block + 2], state[4 * block + 3] = c, d
    state[_USED] = _U(0)


@njit(cache=True, nogil=True)
def _integer(state):  # type: ignore[no-untyped-def]
    """Return the stream's next random integer."""
    if state[_USED] == _U(AHEAD):
        _refill(state)
    found = state[state[_USED]]
    state[_USED] += _U(1)
    return found


@njit(cache=True, nogil=True)
def _uniform(state):  # type: ignore[no-untyped-def]
    return (_integer(state) >> _U(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def normal(state):  # type: ignore[no-untyped-def]
    """Return the stream's next standard normal number."""
    while True:
        r = _integer(state)
        layer = r & _U(0xFF)
        bits = (r >> _U(9)) & _U(0x000FFFFFFFFFFFFF)
        x = bits * _WI[layer]
        if (r >> _U(8)) & _U(1):
            x = -x
        if bits < _KI[layer]:
            return x
        if layer == 0:
            while True:
                far = -_INVERSE * np.log1p(-_uniform(state))
                height = -np.log1p(-_uniform(state))
                if height + height > far * far:
                    return -(_R + far) if (bits >> _U(8)) & _U(1) else _R + far
        elif (_FI[layer - _U(1)] - _FI[layer]) * _uniform(state) + _FI[layer] < np.exp(
            -0.5 * x * x
        ):
            return x


@njit(cache=True, nogil=True)
def fill(state, out):  # type: ignore[no-untyped-def]
    """Draw the next numbers of a stream."""
    for place in range(len(out)):
        out[place] = normal(state)


def streams(seed: int, purpose: Purpose, keys: int) -> Any:
    """Return the states of the streams of `generator(seed, purpose, key)`, key by key."""
    states = np.zeros((keys, STATE), np.uint64)
    for key, state in enumerate(states):
        of_numpy = generator(seed, purpose, key).bit_generator.state["state"]
        state[_KEY : _KEY + 2] = of_numpy["key"]
        state[_COUNTER : _COUNTER + 2] = of_numpy["counter"][:2]
        state[_USED] = AHEAD
    return states


@cache
def check() -> bool:
    """Return whether the numbers are NumPy's."""
    found = np.empty(CHECKED)
    fill(streams(0, Purpose.BATCH, 1)[0], found)
    return np.array_equal(found, generator(0, Purpose.BATCH, 0).standard_normal(CHECKED))
