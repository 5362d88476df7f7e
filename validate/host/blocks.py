"""Arithmetic on vectors, block by block, by one compiled loop (imports numba).

Every operation writes its block to scratch, which stays in a core's caches; what is to be kept is
then streamed from there to memory past the caches, as a vector is far larger than they are, and a
plain store would first read what it overwrites. Others see it once this thread has taken a lock, as
it does to go on in Python. Entries see the operations one by one, each rounded as IEEE 754 has it.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

ADD, SUBTRACT, MULTIPLY, DIVIDE, SCALE, STORE = range(6)
CODES = {
    "add": ADD, "subtract": SUBTRACT, "multiply": MULTIPLY, "divide": DIVIDE, "scale": SCALE,
    "store": STORE,
}  # fmt: skip
LINE = 64  # bytes of a cache line


def _pointer(_: Any, address: Any) -> Any:
    """Return an address as a pointer."""
    return types.voidptr(types.int64), lambda context, builder, signature, own: builder.inttoptr(
        own[0], ir.IntType(8).as_pointer()
    )


def _line(_: Any, to: Any, source: Any, factor: Any) -> Any:
    """Copy a line times a factor past the caches, to an address that is a multiple of its size."""

    def generate(context: Any, builder: Any, signature: Any, own: Any) -> Any:
        width = factor.bitwidth // 8
        line = ir.VectorType(own[2].type, LINE // width)
        to, source = (builder.inttoptr(each, line.as_pointer()) for each in own[:2])
        factors = ir.Constant(line, ir.Undefined)
        for n in range(line.count):
            factors = builder.insert_element(factors, own[2], ir.IntType(32)(n))
        product = builder.fmul(builder.load(source, align=width), factors)
        once = builder.module.add_metadata([ir.IntType(32)(1)])
        builder.store(product, to, align=LINE).set_metadata("nontemporal", once)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, factor), generate


_at: Any = intrinsic(_pointer)
_stream: Any = intrinsic(_line)


@njit(nogil=True, cache=True)
def _store(out, x, factor, to, source):  # type: ignore[no-untyped-def]
    """Write entries times a factor, whole lines past the caches, to an address from another."""
    count, width = len(out), out.itemsize
    first = min(-to % LINE // width, count)
    last = first + (count - first) * width // LINE * LINE // width
    for i in range(first):
        out[i] = x[i] * factor
    for at in range(first * width, last * width, LINE):
        _stream(to + at, source + at, factor)
    for i in range(last, count):
        out[i] = x[i] * factor


@njit(nogil=True, cache=True, error_model="numpy")
def run(codes, factors, places, moves, sizes, scratch):  # type: ignore[no-untyped-def] # noqa: PLR0912, PLR0913, PLR0917
    """Run operations on stretches of vectors that have `sizes` entries.

    `factors[operation]`: of the second operand where it is added or subtracted, rounded before; of
    the first, and the only one, where it is scaled or stored.

    `places[stretch, operation]`: addresses of the result and of two operands, where the stretch
    begins; `moves[operation]`: bytes from one entry to the next, or 0 of what lies in `scratch`
    (blocks, entries of one), from whose beginning the address then counts.
    """
    at, block = np.empty(3, np.int64), scratch.shape[1]
    for stretch in range(len(sizes)):
        # the first block is shorter, so that others begin with a line of the last result
        low, count = 0, block - places[stretch, -1, 0] % LINE // scratch.itemsize % block
        while low < sizes[stretch]:
            count = min(count, sizes[stretch] - low)
            for k in range(len(codes)):
                for n in range(3):
                    move = moves[k, n]
                    at[n] = places[stretch, k, n] + (low * move if move else scratch.ctypes.data)
                code, f = codes[k], factors[k]
                out = carray(_at(at[0]), count, scratch.dtype)
                x = carray(_at(at[1]), count, scratch.dtype)
                y = carray(_at(at[2]), count, scratch.dtype)
                if code == STORE:
                    _store(out, x, f, at[0], at[1])
                elif code == ADD:
                    for i in range(count):
                        out[i] = x[i] + y[i] * f
                elif code == SUBTRACT:
                    for i in range(count):
                        out[i] = x[i] - y[i] * f
                elif code == SCALE:
                    for i in range(count):
                        out[i] = x[i] * f
                elif code == MULTIPLY:
                    for i in range(count):
                        out[i] = x[i] * y[i]
                else:
                    for i in range(count):
                        out[i] = x[i] / y[i]
            low, count = low + count, block
