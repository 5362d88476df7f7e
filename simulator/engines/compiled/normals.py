"""NumPy's normal numbers, to the last bit, inside compiled code: several times as fast.

NumPy's generator takes longer for the numbers of a gradient than the loop for everything else. Half
of that goes into its Philox (Salmon et al., SC 2011), which computes one block of four after the
other. Here the blocks of many counters overlap. From them numbers are made by the same ziggurat
(Marsaglia and Tsang, JSS 2000), in passes: only the last one branches, on what has long been
computed. A branch that waits for Philox is guessed wrong for one number in 80, which costs nearly
as much as Philox itself.

NumPy does not promise that its streams stay as they are between versions. So `check` compares.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.random import _constants as ziggurat

from ...distributions.random_streams import Purpose, generator

AHEAD = 512  # random integers computed at once: 128 blocks of Philox
WORD = 64  # of them are judged at once
ROOM = AHEAD + WORD  # of a stream's numbers, beside those that are asked for at once
CHECKED = 2**16  # numbers compared with NumPy's

_U = np.uint64
_KEY, _AT, TAKEN, END, STATE = 0, 2, 3, 4, 5
"""A stream's key, integers used so far; the row of its numbers: those taken, its end."""
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


def _zeros(_: Any, a: Any) -> Any:
    """Return the number of zeros below an integer's lowest one."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(*arguments, ir.IntType(1)(0))

    return types.uint64(types.uint64), generate


_product: Any = intrinsic(_halves)
_below: Any = intrinsic(_zeros)


@njit(cache=True, nogil=True)
def _compute(states, own, scratch):  # type: ignore[no-untyped-def]
    """Compute the next random integers, from the block of the first one on."""
    counter, key, other_key = states[own, _AT] >> _U(2), states[own, _KEY], states[own, _KEY + 1]
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
        scratch[0, place], scratch[0, place + 1] = a, b
        scratch[0, place + 2], scratch[0, place + 3] = c, d


@njit(cache=True, nogil=True)
def _judge(scratch, numbers):  # type: ignore[no-untyped-def]
    """Make a number of every integer; note, by bits, which 1.2 % of them may not be one."""
    for word in range(AHEAD // WORD):
        found = _U(0)
        for i in range(WORD):
            r = scratch[0, word * WORD + i]
            layer, bits = r & _LAYER, np.int64((r >> _U(9)) & _BITS)
            x = bits * _WI[layer]
            numbers[-1, word * WORD + i] = -x if r & _SIGN else x
            found |= _U(bits >= _KI[layer]) << _U(i)
        scratch[1, word] = found


@njit(cache=True, nogil=True)
def _uniform(integer):  # type: ignore[no-untyped-def]
    return np.int64(integer >> _U(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _in_wedge(layer, x, integer):  # type: ignore[no-untyped-def]
    """Whether a point of a layer at random height lies below the density."""
    below, above = _FI[layer], _FI[layer - _U(1)]
    return (above - below) * _uniform(integer) + below < np.exp(-0.5 * x * x)


@njit(cache=True, nogil=True)
def _tail(scratch, used):  # type: ignore[no-untyped-def]
    """Return a number beyond all layers, and the integers used, too many if they do not suffice."""
    bits, used = scratch[0, used] >> _U(9), used + _U(1)
    while used + _U(2) <= _U(AHEAD):
        far = -_INVERSE * np.log1p(-_uniform(scratch[0, used]))
        height = -np.log1p(-_uniform(scratch[0, used + _U(1)]))
        used += _U(2)
        if height + height > far * far:
            return -(_R + far) if (bits >> _U(8)) & _U(1) else _R + far, used
    return 0.0, _U(AHEAD + 1)


@njit(cache=True, nogil=True)
def _draw(states, own, numbers, scratch, end):  # type: ignore[no-untyped-def]
    """Write more numbers of a stream to its row, from `end` on; return where they end."""
    _compute(states, own, scratch)
    _judge(scratch, numbers)
    used, word = states[own, _AT] & _U(3), _U(WORD)
    states[own, _AT] -= used
    while used < _U(AHEAD):
        for i in range(word):  # always as many, which is sooner done than only those that fit
            numbers[own, end + i] = numbers[-1, used + i]
        rest = scratch[1, used // word] >> used % word
        fit = _below(rest) if rest else word - used % word
        end, used = end + fit, used + fit
        if rest:
            layer, behind, found = scratch[0, used] & _LAYER, used + _U(2), True
            if layer == 0:
                numbers[own, end], behind = _tail(scratch, used)
            elif behind <= _U(AHEAD):
                found = _in_wedge(layer, numbers[-1, used], scratch[0, used + _U(1)])
            if behind > _U(AHEAD):
                break
            end, used = end + _U(found), behind
    states[own, _AT] += used
    return end


@njit(cache=True, nogil=True)
def refill(states, own, numbers, scratch, count):  # type: ignore[no-untyped-def]
    """Draw numbers of a stream until its row holds `count`; it then begins with those not taken."""
    first = states[own, TAKEN]
    end = states[own, END] - first
    for i in range(end):
        numbers[own, i] = numbers[own, first + i]
    while end < count:
        end = _draw(states, own, numbers, scratch, end)
    states[own, TAKEN], states[own, END] = 0, end


def streams(seed: int, purpose: Purpose, keys: int, count: int) -> tuple[Any, Any, Any]:
    """Return the states of the streams of `generator(seed, purpose, key)`, and rows for numbers.

    `count`: of numbers that are taken at once, at most.
    """
    states = np.zeros((keys, STATE), np.uint64)
    for key, state in enumerate(states):
        state[_KEY:_AT] = generator(seed, purpose, key).bit_generator.state["state"]["key"]
    return states, np.empty((keys + 1, count + ROOM)), np.empty((2, AHEAD), np.uint64)


@cache
def check() -> bool:
    """Return whether the numbers are NumPy's."""
    states, numbers, scratch = streams(0, Purpose.BATCH, 1, CHECKED)
    refill(states, 0, numbers, scratch, np.uint64(CHECKED))
    theirs = generator(0, Purpose.BATCH, 0).standard_normal(CHECKED)
    return np.array_equal(numbers[0, :CHECKED], theirs)
