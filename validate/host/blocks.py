"""Arithmetic on vectors, block by block, by one compiled loop (imports numba).

Every operation writes its block to scratch, which stays in a core's caches; what is to be kept is
then streamed from there to memory past the caches, as a vector is far larger than they are, and a
plain store would first read what it overwrites. Entries see the operations one by one, each rounded
as IEEE 754 has it: nothing is fused or reordered.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from paceline.validate.host.huge_pages import ADD, MULTIPLY, STORE, SUBTRACT

LINE = 64  # bytes of a cache line


def _pointer(_: Any, address: Any) -> Any:
    """Return an address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


def _line(_: Any, to: Any, source: Any) -> Any:
    """Copy a line past the caches, to an address that is a multiple of its size."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), LINE // 4)
        to, source = (builder.inttoptr(each, line.as_pointer()) for each in arguments)
        store = builder.store(builder.load(source, align=4), to, align=LINE)
        once = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", once)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _fence(_: Any) -> Any:
    """Let other threads see what was streamed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_at, _stream, _publish = map(intrinsic, (_pointer, _line, _fence))


@njit(nogil=True, cache=True)
def _store(to, source, count, like):  # type: ignore[no-untyped-def]
    """Copy entries from one address to another, whole lines past the caches."""
    width = like.itemsize
    out, x = carray(_at(to), count, like.dtype), carray(_at(source), count, like.dtype)
    first = min(-to % LINE // width, count)
    last = first + (count - first) * width // LINE * LINE // width
    for i in range(first):
        out[i] = x[i]
    for at in range(first * width, last * width, LINE):
        _stream(to + at, source + at)
    for i in range(last, count):
        out[i] = x[i]


@njit(nogil=True, cache=True, error_model="numpy")
def run(codes, places, moves, sizes, scratch):  # type: ignore[no-untyped-def] # noqa: PLR0912
    """Run operations on stretches of vectors that have `sizes` entries.

    `places[stretch, operation]`: addresses of the result and of two operands, where the stretch
    begins; `moves[operation]`: bytes from one entry to the next, or 0 of what lies in `scratch`
    (blocks, entries of one), from whose beginning the address then counts.
    """
    at, block = np.empty(3, np.int64), scratch.shape[1]
    for stretch in range(len(sizes)):
        for low in range(0, sizes[stretch], block):
            count = min(block, sizes[stretch] - low)
            for k in range(len(codes)):
                for n in range(3):
                    move = moves[k, n]
                    at[n] = places[stretch, k, n] + (low * move if move else scratch.ctypes.data)
                code = codes[k]
                if code == STORE:
                    _store(at[0], at[1], count, scratch)
                    continue
                out = carray(_at(at[0]), count, scratch.dtype)
                x = carray(_at(at[1]), count, scratch.dtype)
                y = carray(_at(at[2]), count, scratch.dtype)
                if code == ADD:
                    for i in range(count):
                        out[i] = x[i] + y[i]
                elif code == SUBTRACT:
                    for i in range(count):
                        out[i] = x[i] - y[i]
                elif code == MULTIPLY:
                    for i in range(count):
                        out[i] = x[i] * y[i]
                else:
                    for i in range(count):
                        out[i] = x[i] / y[i]
    _publish()
