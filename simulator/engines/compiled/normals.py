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
STATE = AHEAD + 4  # those; the key; the counter, whose upper words stay 0; integers used of `AHEAD`
CHECKED = 2**16  # numbers compared with NumPy's

_U = np.uint64
_KEY, _COUNTER, _USED = AHEAD, AHEAD + 2, AHEAD + 3
_KI, _WI, _FI = ziggurat.ki_double.astype(np.int64), ziggurat.wi_double, ziggurat.fi_double
_R, _INVERSE = ziggurat.ziggurat_nor_r, ziggurat.ziggurat_nor_inv_r
_LAYER, _SIGN, _BITS = _U(0xFF), _U(0x100), _U(0x000FFFFFFFFFFFFF)  # of an integer
_FIRST, _SECOND = _U(0xD2E7470EE14C6C93), _U(0xCA5A826395121157)
_WEYL = _U(0x9E3779B97F4A7C15), _U(0xBB67AE8584CAA73B)


def _halves(_: Any, a: Any, b: Any) -> Any:
    """Return the upper and the lower half of a product of two 64-bit integers."""
    pair: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half, wide = ir.IntType(64), ir.IntType(128)
        product = builder.mul(*(builder.zext(each, wide) for each in arguments))
        halves = builder.lshr(product, wide(64)), product
        return context.make_tuple(builder, pair, [builder.trunc(each, half) for each in halves])

    return pair(types.uint64, types.uint64), generate


_product: Any = intrinsic(_halves)


@njit(cache=True, nogil=True)
def _refill(states, own):  # type: ignore[no-untyped-def]
    """Compute the next `AHEAD` random integers."""
    counter, key, other_key = states[own, _COUNTER], states[own, _KEY], states[own, _KEY + 1]
    of_key, under = _product(_FIRST, key)  # the same in the second round of each block
    for place in range(0, AHEAD, 4):
        counter += _U(1)
        k, m = key + _WEYL[0], other_key + _WEYL[1]
        high, low = _product(_FIRST, counter)  # the first round: the counter's other words are 0
        other, least = _product(_SECOND, high ^ other_key)
        a, b, c, d = other ^ k, least, of_key ^ low ^ m, under
        for _ in range(8):
            k, m = k + _WEYL[0], m + _WEYL[1]
            (high, low), (other, least) = _product(_FIRST, a), _product(_SECOND, c)
            a, b, c, d = other ^ b ^ k, least, high ^ d ^ m, low
        states[own, place], states[own, place + 1] = a, b
        states[own, place + 2], states[own, place + 3] = c, d
    states[own, _COUNTER], states[own, _USED] = counter, _U(0)


@njit(cache=True, nogil=True)
def _integer(states, own):  # type: ignore[no-untyped-def]
    if states[own, _USED] == _U(AHEAD):
        _refill(states, own)
    found = states[own, states[own, _USED]]
    states[own, _USED] += _U(1)
    return found


@njit(cache=True, nogil=True)
def _uniform(integer):  # type: ignore[no-untyped-def]
    return np.int64(integer >> _U(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _in_wedge(layer, x, integer):  # type: ignore[no-untyped-def]
    """Whether a point of a layer at random height lies below the density."""
    below, above = _FI[layer], _FI[layer - _U(1)]
    return (above - below) * _uniform(integer) + below < np.exp(-0.5 * x * x)


@njit(cache=True, nogil=True)
def _rare(states, own):  # type: ignore[no-untyped-def]
    """Return the stream's next number, whichever way the ziggurat makes it."""
    while True:
        r = _integer(states, own)
        layer, bits = r & _LAYER, np.int64((r >> _U(9)) & _BITS)
        x = -bits * _WI[layer] if r & _SIGN else bits * _WI[layer]
        if bits < _KI[layer]:
            return x
        if layer == 0:
            while True:
                far = -_INVERSE * np.log1p(-_uniform(_integer(states, own)))
                height = -np.log1p(-_uniform(_integer(states, own)))
                if height + height > far * far:
                    return -(_R + far) if (bits >> 8) & 1 else _R + far
        elif _in_wedge(layer, x, _integer(states, own)):
            return x


@njit(cache=True, nogil=True)
def fill(states, own, out, row):  # type: ignore[no-untyped-def]
    """Draw the next numbers of stream `own` into a row: 98.8 % of them in the inner loop.

    Rows are not passed as arrays, whose reference counts would take as long as ten numbers.
    """
    place, size = np.int64(0), out.shape[1]
    while place < size:
        used = np.int64(states[own, _USED])
        if used == AHEAD:
            _refill(states, own)
            used = np.int64(0)
        end, shift, fits = used + min(size - place, AHEAD - used), place - used, True
        while fits and used < end:
            r = states[own, used]
            layer, bits = r & _LAYER, np.int64((r >> _U(9)) & _BITS)
            x = bits * _WI[layer]
            out[row, shift + used] = -x if r & _SIGN else x
            fits = bits < _KI[layer]
            used += 1
        place = shift + used
        states[own, _USED] = used
        if not fits and layer and used < AHEAD:  # in the layer's wedge, most of the time
            place -= not _in_wedge(layer, x, states[own, used])
            states[own, _USED] = used + 1
        elif not fits:
            states[own, _USED] = used - 1
            out[row, place - 1] = _rare(states, own)


def streams(seed: int, purpose: Purpose, keys: int) -> Any:
    """Return the states of the streams of `generator(seed, purpose, key)`, key by key."""
    states = np.zeros((keys, STATE), np.uint64)
    for key, state in enumerate(states):
        of_numpy = generator(seed, purpose, key).bit_generator.state["state"]
        state[_KEY : _KEY + 2] = of_numpy["key"]
        state[_COUNTER], state[_USED] = of_numpy["counter"][0], AHEAD
    return states


@cache
def check() -> bool:
    """Return whether the numbers are NumPy's."""
    found = np.empty((1, CHECKED))
    fill(streams(0, Purpose.BATCH, 1), 0, found, 0)
    return np.array_equal(found[0], generator(0, Purpose.BATCH, 0).standard_normal(CHECKED))
