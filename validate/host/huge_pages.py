"""A program's arithmetic on large vectors, in huge pages that are used again, and in one pass.

Strategy. The kernel takes longer to give and clear memory than torch to compute with it: results
take the places of vectors that have gone. And memory is slower than arithmetic: operations are put
off until somebody looks at a result, and are then done together, a block of all vectors after the
other (`blocks`). A result that has gone by then is not written at all. Each entry sees the same
operations in the same order: the bits are the same.

Invariants. What is put off holds the vectors that it reads, which nobody changes in place but
torch's other functions, before which it is done (`settle`); it is done, too, where a program is
suspended, and before another thread may look. It writes to vectors of its own alone, so that it may
be done again. A result that is put off has no view of a part of it, so that it is known by its
address.
"""

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, NamedTuple, Self
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LEAST = 1 << 23  # bytes: four huge pages
ROOM = 1 << 16  # bytes before a vector, for what travels with it
ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux alone
INTO = {
    Tensor.add: "add", Tensor.sub: "subtract", Tensor.mul: "multiply", Tensor.div: "divide",
    Tensor.clone: "store", torch.cat: "store",
}  # fmt: skip
"""Operations on vectors, by the names of `blocks.CODES`."""
LOOKS = {
    Tensor.__len__, Tensor.numel, Tensor.dim, Tensor.element_size, Tensor.is_floating_point,
    Tensor.data_ptr,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}  # fmt: skip
"""Functions that need no entry of a vector."""
KINDS = torch.float32, torch.float64
BLOCK = 1 << 9  # entries: a dozen blocks are in a core's first cache together
MOST = 32  # operations to put off, as each may keep a vector


class Later(int):
    """The number of an operation that is put off, in the place of its result."""


class Operation(NamedTuple):
    """An operation that is put off; its result lies at an address, while `alive()`.

    An operand that is a tuple of vectors stands for all of them, one behind the other.
    """

    name: str
    operands: tuple[Any, ...]
    address: int
    alive: Callable[[], Any]


class HugePages(TorchFunctionMode):
    """While it is entered, large results of a program's arithmetic lie in huge pages of its own.

    Where a vector has gone, a later one takes its place; none is given back before this object is
    gone. `size`: bytes of a vector; of small ones none is that large, and entering has no effect.
    While entered, each use of a tensor takes microseconds more.
    """

    def __init__(self, size: int = LEAST) -> None:
        super().__init__()
        self._helps, self._inside = size >= LEAST, False
        # by address, with a weak reference to what lies there
        self._places: dict[int, tuple[mmap.mmap, Callable[[], Any]]] = {}
        self._todo: list[Operation] = []
        self._dtype, self._size = torch.float32, 0  # of their results
        self._due: dict[int, Later] = {}  # by address
        self._thread = 0  # whose operations those are

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Begin, unless it has begun."""
        if self._helps and not self._inside:
            self._inside, self._thread = True, get_ident()
            super().__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """End what `enter` began, if it has."""
        if self._inside:
            self._inside = False  # first, as what follows may be interrupted
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._settle()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch's."""
        joins = function is torch.cat and len(args) == 1
        if (joins or function in INTO) and not kwargs:
            given = args[0] if joins else [each for each in args if getattr(each, "ndim", 0)]
            if joins and any(each.data_ptr() in self._due for each in given):
                self._settle()  # of whose results a part may be read
            if given and (found := self.place(given, joins)) is not None:
                return self._put_off(INTO[function], (tuple(given),) if joins else args, *found)
        if function not in LOOKS:
            self._settle()
        return function(*args, **(kwargs or {}))

    def outside(self, do: Callable[..., Any], *args: Any) -> Any:
        """Call what is no arithmetic of the program's as if not entered; return its result."""
        self.settle()
        return self.beside(do, *args) if self._inside else do(*args)

    def beside(self, do: Callable[..., Any], *args: Any) -> Any:
        """As `outside`, but what was put off may stay so: `do` looks at no entry of it."""
        if not self._inside:
            return do(*args)
        self._inside = False
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            return do(*args)
        finally:
            self.enter()

    def pack(self, head: Tensor, parts: Sequence[Tensor], scale: float) -> Tensor:
        """As `pack`, in one pass with what was put off, and on another thread: then by torch."""
        if get_ident() != self._thread:
            return pack(head, parts, scale)
        if len(parts) != 1:
            self.settle()
        place = self.place(parts, True) if parts and head.nbytes <= ROOM else None
        if place is None:
            self.settle()
            return pack(head, parts, scale)
        self._put_off("multiply", (parts[0] if len(parts) == 1 else tuple(parts), scale), *place)
        self.settle()
        begin, count = ROOM - head.nbytes, len(head) + len(place[0])
        found = torch.frombuffer(place[1](), dtype=head.dtype, offset=begin, count=count)
        found[: len(head)] = head
        return found

    def fill(self, vector: Tensor, views: Sequence[Tensor], parts: Any, scale: float) -> None:
        """Write tensors times `scale` to the views of a vector, one behind the other."""
        alike, kind = self._helps and vector.dtype in KINDS, vector.dtype
        if alike and all(each.dtype is kind and each.is_contiguous() for each in parts):
            self.settle()
            self._put_off("multiply", (tuple(parts), scale), vector, lambda: vector)
            self.settle()
        else:
            torch._foreach_copy_([*views], parts)
            if scale != 1.0:
                vector.mul_(scale)

    def settle(self) -> None:
        """Do what was put off."""
        if self._todo:
            self.beside(self._settle)

    def _settle(self) -> None:
        """Do what was put off, all of it again if it is interrupted."""
        if not self._todo:
            return
        todo, due = self._todo, self._due
        self._todo, self._due = [], {}
        try:
            self._do(todo)
        except BaseException:
            self._todo, self._due = todo, due
            raise

    def _do(self, todo: Sequence[Operation]) -> None:
        from .blocks import CODES, run  # noqa: PLC0415 - imports numba

        size, width, threads = self._size, self._dtype.itemsize, torch.get_num_threads()
        kept, needed, read = [each.alive() for each in todo], set[int](), set[int]()
        for number in reversed(range(len(todo))):
            if kept[number] is not None or number in read:
                needed.add(number)
                read |= {own for own in todo[number].operands if type(own) is Later}
        joined = [own for each in todo for own in each.operands if isinstance(own, tuple)]
        shares = range(0, size, -(-size // threads))
        cuts = np.unique(np.concatenate([shares, *map(_starts, joined)]))
        begins, rows = cuts[:-1], list[float]()
        results, steps = dict[Any, tuple[Any, float]](), list[Any]()
        nowhere = 0, np.full(len(begins), -1)

        def place(operand: Any) -> Any:
            """Return bytes from an entry of an operand to the next, and where each stretch is."""
            if isinstance(operand, tuple):
                starts, at = _starts(operand), np.array([each.data_ptr() for each in operand])
                part = np.searchsorted(starts, begins, "right") - 1
                return width, at[part] + (begins - starts[part]) * width
            rows.append(float(operand))
            return 0, np.full(len(begins), (len(rows) - 1) * BLOCK * width)

        def computed(name: str, factor: float, *found: Any) -> Any:
            """Return where the result of an operation will be."""
            steps.append([name, factor, place(0.0), nowhere, *found])
            return steps[-1][2]

        def whole(found: tuple[Any, float]) -> Any:
            """Return where a result is, which may have to be multiplied first."""
            return found[0] if found[1] == 1.0 else computed("scale", found[1], *2 * found[:1])

        for number in sorted(needed):
            name, operands, address, _ = todo[number]
            # where they are, and by what they are to be multiplied: as they are read, for nothing
            found = [results[x] if type(x) is Later else (place(x), 1.0) for x in operands]
            if name == "multiply" and not isinstance(operands[1], Later | tuple):
                found = [(whole(found[0]), float(operands[1]))]
            elif name != "store":
                if name == "add" and found[0][1] != 1.0:
                    found.reverse()
                second = found[1] if name in {"add", "subtract"} else (whole(found[1]), 1.0)
                found = [(computed(name, second[1], whole(found[0]), second[0]), 1.0)]
            results[number] = at, factor = found[0]
            if kept[number] is not None:
                computes = [own[2] is at and own[3] is nowhere for own in steps[-1:]]
                if computes != [True] or factor != 1.0:
                    steps.append(["scale", factor, nowhere, nowhere, at, at])
                steps[-1][3] = width, address + begins * width
        if not steps:
            return
        codes = np.array([CODES[name] for name, *_ in steps])
        factors = np.array([factor for _, factor, *_ in steps], str(self._dtype).partition(".")[2])
        moves = np.array([[move for move, _ in own] for _, _, *own in steps])
        addresses = np.array([[at for _, at in own] for _, _, *own in steps])
        places = np.ascontiguousarray(np.moveaxis(addresses, 2, 0))

        def work(first: int) -> None:
            mine = slice(*np.searchsorted(begins, [first, first + shares.step]))
            # of what is only copied none is needed, and one block is all
            scratch = torch.tensor(rows, dtype=self._dtype)[:, None].repeat(
                1, BLOCK if rows else size
            )
            run(codes, factors, places[mine], moves, np.diff(cuts)[mine], scratch.numpy())

        with ThreadPoolExecutor(threads) as pool:
            [*(pool.map if threads > 1 else map)(work, shares)]

    def _put_off(
        self, name: str, args: Sequence[Any], out: Tensor, alive: Callable[[], Any]
    ) -> Tensor:
        """Put an operation off; return where its result will be."""
        if len(self._todo) == MOST or (len(out), out.dtype) != (self._size, self._dtype):
            self._settle()
            self._size, self._dtype = len(out), out.dtype
        operands = tuple(
            self._due.get(each.data_ptr(), (each,)) if getattr(each, "ndim", 0) else each
            for each in args
        )
        self._due[out.data_ptr()] = Later(len(self._todo))
        self._todo.append(Operation(name, operands, out.data_ptr(), alive))
        return out

    def place(
        self, operands: Sequence[Tensor], joins: bool = False
    ) -> tuple[Tensor, Callable[[], Any]] | None:
        """Return a vector for what is computed from others, and a weak reference to its memory.

        None where torch's own is as good.
        """
        one, count = operands[0], sum(each.numel() for each in operands[: None if joins else 1])
        size, plain = count * one.element_size(), (one.dtype, "cpu", 1, True, joins or count)
        found = {
            (each.dtype, each.device.type, each.ndim, each.is_contiguous(), joins or each.numel())
            for each in operands
        }
        if not self._helps or found != {plain} or one.dtype not in KINDS or size < LEAST:
            return None
        free = (at for at, (place, used) in self._places.items()
                if used() is None and len(place) == ROOM + size)  # fmt: skip
        place, _ = self._places.pop(next(free, 0), (None, None))
        if place is None:
            place = mmap.mmap(-1, ROOM + size)
            if ADVICE is not None:
                place.madvise(ADVICE)
        used = memoryview(place)  # lives as long as the last tensor in it
        vector, known = torch.frombuffer(used, dtype=one.dtype, offset=ROOM), ref(used)
        self._places[vector.data_ptr()] = place, known
        self._due.pop(vector.data_ptr(), None)  # of a result that has gone
        return vector, known


def pack(head: Tensor, parts: Sequence[Tensor], scale: float) -> Tensor:
    """Return a vector, and then others times `scale`, as one."""
    found = torch.cat([head, *parts])
    if scale != 1.0:
        found[len(head) :].mul_(scale)
    return found


def _starts(parts: Sequence[Tensor]) -> Any:
    """Return where each of some vectors, one behind the other, starts; last their end."""
    return np.cumsum([0, *(each.numel() for each in parts)])
