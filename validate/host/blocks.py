"""Arithmetic on vectors, block by block, by one compiled loop (imports numba).

What a later operation reads is written to scratch, which stays in a core's caches. What is to be
kept is streamed to memory past the caches, line by line as it is computed, so that reading goes on:
a vector is far larger than they are, and a plain store would first read what it overwrites. Others
see it once this thread has taken a lock, as it does to go on in Python. Entries see the operations
one by one, each rounded as IEEE 754 has it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

ADD, SUBTRACT, MULTIPLY, DIVIDE, SCALE = range(5)
CODES = {
    "add": ADD, "subtract": SUBTRACT, "multiply": MULTIPLY, "divide": DIVIDE, "scale": SCALE,
}  # fmt: skip
LINE = 64  # bytes of a cache line


def _step(compute: Callable[..., Any], size: int) -> Any:
    """Return a function that computes a line of `size` bytes, or an entry if that is 0.

    From what is `at` bytes from `x` and `y`, and a factor; to as far from `to` and, a line past the
    caches, from `past`, where these are not 0.
    """

    def step(_: Any, to: Any, past: Any, x: Any, y: Any, factor: Any, at: Any) -> Any:  # noqa: PLR0913, PLR0917
        width = factor.bitwidth // 8

        def generate(context: Any, builder: Any, signature: Any, own: Any) -> Any:
            *begins, factor, at = own
            kind = ir.VectorType(factor.type, size // width or 1)
            to, past, x, y = (
                builder.inttoptr(builder.add(each, at), kind.as_pointer()) for each in begins
            )
            factors = ir.Constant(kind, ir.Undefined)
            for n in range(kind.count):
                factors = builder.insert_element(factors, factor, ir.IntType(32)(n))
            operands = (builder.load(each, align=width) for each in (x, y))
            found = compute(builder, *operands, factors)
            with builder.if_then(builder.icmp_signed("!=", begins[0], begins[0].type(0))):
                builder.store(found, to, align=width)
            with builder.if_then(builder.icmp_signed("!=", begins[1], begins[1].type(0))):
                stored = builder.store(found, past, align=size or width)
                if size:
                    once = builder.module.add_metadata([ir.IntType(32)(1)])
                    stored.set_metadata("nontemporal", once)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, factor, types.int64), generate

    return intrinsic(step)


def _loop(compute: Callable[..., Any]) -> Any:
    line, entry = _step(compute, LINE), _step(compute, 0)

    @njit
    def loop(to, past, x, y, factor, size, width):  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
        whole = 0 if past % LINE else size // LINE * LINE
        for at in range(0, whole, LINE):
            line(to, past, x, y, factor, at)
        for at in range(whole, size, width):
            entry(to, past, x, y, factor, at)

    return loop


_add = _loop(lambda builder, x, y, factor: builder.fadd(x, builder.fmul(y, factor)))
_subtract = _loop(lambda builder, x, y, factor: builder.fsub(x, builder.fmul(y, factor)))
_multiply = _loop(lambda builder, x, y, factor: builder.fmul(x, y))
_divide = _loop(lambda builder, x, y, factor: builder.fdiv(x, y))
_scale = _loop(lambda builder, x, y, factor: builder.fmul(x, factor))


@njit(nogil=True, cache=True)
def run(codes, factors, places, moves, sizes, scratch):  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917
    """Run operations on stretches of vectors that have `sizes` entries.

    `factors[operation]`: of the second operand where it is added or subtracted, rounded before; of
    the first, and the only one, where it is scaled.

    `places[stretch, operation]`: addresses of the result in `scratch` (blocks, entries of one) and
    past the caches, or -1, and of two operands, where the stretch begins; `moves[operation]`: bytes
    from one entry of each to the next, or 0 of what lies in scratch, from whose beginning the
    address then counts.
    """
    at, block, width = np.empty(4, np.int64), scratch.shape[1], scratch.itemsize
    for stretch in range(len(sizes)):
        low = 0
        while low < sizes[stretch]:
            # the first block is shorter, so that others begin with a line of the last result
            begin = -(places[stretch, -1, 1] + low * width) % LINE // width
            count = min(begin or block, sizes[stretch] - low)
            for k in range(len(codes)):
                for n in range(4):
                    own, move = places[stretch, k, n], moves[k, n]
                    at[n] = own + (low * move if move else scratch.ctypes.data) if own >= 0 else 0
                to, past, x, y = at
                code, factor, size = codes[k], factors[k], count * width
                if code == ADD:
                    _add(to, past, x, y, factor, size, width)
                elif code == SUBTRACT:
                    _subtract(to, past, x, y, factor, size, width)
                elif code == SCALE:
                    _scale(to, past, x, y, factor, size, width)
                elif code == MULTIPLY:
                    _multiply(to, past, x, y, factor, size, width)
                else:
                    _divide(to, past, x, y, factor, size, width)
            low += count
