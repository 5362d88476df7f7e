"""A program's arithmetic on large vectors, in huge pages that are used again, and block by block.

Strategy. The kernel takes longer to give and clear memory than torch to compute with it: results
take the places of vectors that have gone. And memory is slower than arithmetic: operations are put
off until somebody looks at a result, and are then done together, a block of all vectors after the
other, so that one reads what the last has left in the caches. A result that has gone by then is
not written at all. Each entry sees the same operations in the same order: the bits are the same.
Before each vector there is room for what travels with it, so that one that is of no other use is
averaged where it is.

Invariants. What is put off holds the vectors that it reads, which nobody changes in place but
torch's other functions, before which it is done (`settle`); it is done, too, where a program is
suspended, and before another thread may look. It writes to vectors of its own alone, so that it may
be done again. A result that is put off has no view of a part of it, so that it is known by its
address.
"""

import mmap
from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LEAST = 1 << 23  # bytes: four huge pages
ROOM = 1 << 16  # bytes before a vector, for what travels with it
ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux alone
INTO: dict[Any, Any] = {
    Tensor.add: np.add, Tensor.sub: np.subtract, Tensor.mul: np.multiply, Tensor.div: np.divide,
    Tensor.clone: np.positive,
}  # fmt: skip
"""Operations on vectors, as NumPy has them for blocks: they round alike."""
LOOKS = {
    Tensor.__len__, Tensor.numel, Tensor.dim, Tensor.element_size, Tensor.is_floating_point,
    Tensor.data_ptr,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}  # fmt: skip
"""Functions that need no entry of a vector."""
KINDS = {torch.float32: np.float32, torch.float64: np.float64}
BLOCK = 1 << 17  # entries of a thread: some vectors' blocks are in a core's cache together
MOST = 32  # operations to put off, as each may keep a vector


class Later(int):
    """The number of an operation that is put off, in the place of its result."""


class Operation(NamedTuple):
    """An operation that is put off: `place()` is where its result lies; None: it has gone.

    An operand that is a tuple of vectors stands for all of them, one behind the other.
    """

    do: Any
    operands: tuple[Any, ...]
    place: Callable[[], Any]


class HugePages(TorchFunctionMode):
    """While it is entered, large results of a program's arithmetic lie in huge pages of its own.

    Where a vector has gone, a later one takes its place; none is given back before this object is
    gone. `size`: bytes of a vector; of small ones none is that large, and entering has no effect.
    While entered, each use of a tensor takes microseconds more.
    """

    def __init__(self, size: int = LEAST) -> None:
        super().__init__()
        self._helps, self._inside, self._lock = size >= LEAST, False, Lock()
        # by address, with a weak reference to what lies there
        self._places: dict[int, tuple[mmap.mmap, Callable[[], Any]]] = {}
        self._given = set[int]()  # addresses of vectors that may be overwritten where they are
        self._todo: list[Operation] = []
        self._dtype, self._size = torch.float32, 0  # of their results
        self._due: dict[int, Later] = {}  # by address

    def __enter__(self) -> Any:
        self._inside = self._helps
        return super().__enter__() if self._helps else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if self._inside:
            self._inside = False  # first, as what follows may be interrupted
            super().__exit__(*error)  # type: ignore[no-untyped-call]
            self._settle()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch's."""
        if function in INTO and not kwargs:
            given = [each for each in args if getattr(each, "ndim", 0)]
            if given and (found := self._place(given)) is not None:
                return self._put_off(INTO[function], args, *found)
        if function not in LOOKS:
            self._settle()
        if function is torch.cat and not kwargs:
            return self.join(*args)
        return function(*args, **(kwargs or {}))

    def outside(self, do: Callable[..., Any], *args: Any) -> Any:
        """Call what is no arithmetic of the program's as if not entered; return its result."""
        if not self._inside:
            return do(*args)
        self.__exit__(None, None, None)
        try:
            return do(*args)
        finally:
            self.__enter__()

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return vectors as one, also on another thread, and while not entered.

        A short first one goes before the others; these stay where they are if they were given.
        """
        one, count = parts[0], sum(each.numel() for each in parts)
        before = one.nbytes if one.nbytes <= ROOM and len(parts) > 1 else 0
        others = parts[1:] if before else parts
        where = others[0].data_ptr()
        given = where in self._given
        self._given.discard(where)
        if not given:
            found = self._place(others, joins=True) if self._helps else None
            if found is None:
                return torch.cat([*parts])
            where = found[0].data_ptr()
        memory, at = self._places[where][1](), ROOM - before
        joined = torch.frombuffer(memory, dtype=one.dtype, offset=at, count=count)
        return joined if given else torch.cat([*parts], out=joined)

    def give(self, parts: Sequence[Tensor]) -> None:
        """Let vectors of no other use be joined where they are, if one lies behind the other."""
        sizes = [each.nbytes for each in parts]
        *starts, end = accumulate(sizes, initial=parts[0].data_ptr())
        place, _ = self._places.get(starts[0], ((), None))
        lie = [each.data_ptr() for each in parts if each.is_contiguous()]
        if lie == starts and len(place) == ROOM + end - starts[0]:
            self._given.add(starts[0])

    def lend(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return copies of vectors, given away; the vectors where torch's are as good."""
        found = self._place(parts, joins=True) if self._inside else None
        if found is None or not self._todo or len({*map(len, parts)}) > 1:
            return parts
        copies: Any = torch.split(found[0], len(parts[0]))
        for part, copy in zip(parts, copies, strict=True):
            self._put_off(np.positive, (part,), copy, partial(Tensor.view_as, copy, copy))
        self.give(copies)
        return tuple(copies)

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """Return vectors, which stay unchanged until the program is suspended, as one."""
        found = self._place(parts, joins=True) if self._inside else None
        return (
            self.join(parts)
            if found is None
            else self._put_off(np.positive, (tuple(parts),), *found)
        )

    def settle(self) -> None:
        """Do what was put off."""
        if self._todo:
            self.outside(self._settle)

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
        threads, kind = torch.get_num_threads(), KINDS[self._dtype]
        kept = {
            n: found.numpy() for n, each in enumerate(todo) if (found := each.place()) is not None
        }
        needed = {*kept}
        for number in reversed(range(len(todo))):
            if number in needed:
                needed |= {each for each in todo[number].operands if isinstance(each, Later)}
        steps = [
            (number, todo[number].do, [_read(each, kind) for each in todo[number].operands])
            for number in sorted(needed)
        ]
        read = [each for *_, operands in steps for each in operands if isinstance(each, Vectors)]
        last = {
            each: n for n, _, operands in steps for each in operands if isinstance(each, Later)
        }  # who reads each one last
        places, free = dict[int, int](), list[int]()  # of results that these alone read
        for number, *_ in steps:
            free += [places[each] for each, n in last.items() if n == number and each in places]
            if number not in kept:
                places[number] = free.pop() if free else number
        cuts = {*range(0, self._size, BLOCK), self._size}
        blocks = [*pairwise(sorted(cuts.union(*(each.starts for each in read))))]

        def work(blocks: Sequence[tuple[int, int]]) -> None:
            spares = {place: np.empty(BLOCK, kind) for place in places.values()}
            done = dict[int, Any]()

            def part(operand: Any, low: int, high: int) -> Any:
                if isinstance(operand, Later):
                    return done[operand]
                return operand.part(low, high) if isinstance(operand, Vectors) else operand

            with np.errstate(all="ignore"):  # as torch does
                for low, high in blocks:
                    for number, do, operands in steps:
                        spare = number not in kept
                        out = spares[places[number]] if spare else kept[number][low:high]
                        out = out[: high - low]
                        done[number] = do(*(part(each, low, high) for each in operands), out=out)

        if threads == 1:
            work(blocks)
            return
        with ThreadPoolExecutor(threads) as pool:
            [*pool.map(work, (blocks[n::threads] for n in range(threads)))]

    def _put_off(
        self, do: Any, args: Sequence[Any], out: Tensor, place: Callable[[], Any]
    ) -> Tensor:
        """Put an operation off; return where its result will be."""
        if len(self._todo) == MOST or (len(out), out.dtype) != (self._size, self._dtype):
            self._settle()
            self._size, self._dtype = len(out), out.dtype
        operands = tuple(
            self._due.get(each.data_ptr(), each) if getattr(each, "ndim", 0) else each
            for each in args
        )
        self._due[out.data_ptr()] = Later(len(self._todo))
        self._todo.append(Operation(do, operands, place))
        return out

    def _place(
        self, operands: Sequence[Tensor], joins: bool = False
    ) -> tuple[Tensor, Callable[[], Any]] | None:
        """Return a vector for what is computed from others, and a function that finds it again.

        None where torch's own is as good; the function returns None once the vector has gone.
        """
        one, size = operands[0], sum(each.numel() for each in (operands if joins else operands[:1]))
        kinds = {(each.dtype, each.device, joins or each.shape) for each in operands}
        plain = one.dtype in KINDS and one.device.type == "cpu" and one.ndim == 1
        if not plain or len(kinds) > 1 or size * one.element_size() < LEAST:
            return None
        with self._lock:
            length = ROOM + size * one.element_size()
            free = (at for at, (place, used) in self._places.items()
                    if used() is None and len(place) == length)  # fmt: skip
            where = next(free, 0)
            place = self._places[where][0] if where else mmap.mmap(-1, length)
            if not where and ADVICE is not None:
                place.madvise(ADVICE)
            used = memoryview(place)  # lives as long as the last tensor in it
            found = torch.frombuffer(used, dtype=one.dtype, offset=ROOM)
            self._places[found.data_ptr()] = place, (known := ref(used))
        self._due.pop(found.data_ptr(), None)  # of a result that has gone

        def again(kind: Any = one.dtype) -> Tensor | None:
            memory = known()
            return None if memory is None else torch.frombuffer(memory, dtype=kind, offset=ROOM)

        return found, again


class Vectors(NamedTuple):
    """Vectors, one behind the other: `starts` of each."""

    starts: list[int]
    arrays: list[Any]

    def part(self, low: int, high: int) -> Any:
        """Return the entries between two places, which lie in one of them."""
        at = bisect(self.starts, low) - 1
        return self.arrays[at][low - self.starts[at] : high - self.starts[at]]


def _read(operand: Any, kind: Any) -> Any:
    """Return an operand as blocks are computed with it: a result, a number or `Vectors`."""
    if isinstance(operand, Later):
        return operand
    if not isinstance(operand, tuple) and not getattr(operand, "ndim", 0):
        return kind(float(operand))
    parts = operand if isinstance(operand, tuple) else (operand,)
    arrays = [each.detach().numpy() for each in parts]
    return Vectors([0, *accumulate(map(len, arrays[:-1]))], arrays)
