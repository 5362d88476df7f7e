"""A program's arithmetic on large vectors, in huge pages that are used again, and block by block.

Strategy. The kernel takes longer to give and clear memory than torch to compute with it: results
take the places of vectors that have gone. And memory is slower than arithmetic: operations are put
off until somebody looks at a result, and are then done together, a block of all vectors after the
other, so that one reads what the last has left in the caches. A result that has gone by then is
not written at all. Each entry sees the same operations in the same order: the bits are the same.

Invariants. What is put off holds the vectors that it reads, which nobody changes in place but
torch's other functions, before which it is done (`settle`); it is done, too, where a program is
suspended, and before another thread may look. A result that is put off has no view of a part of it,
so that it is known by its address.
"""

import mmap
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LEAST = 1 << 23  # bytes: four huge pages
ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux alone
INTO: dict[Any, Callable[..., Tensor]] = {
    Tensor.add: torch.add, Tensor.sub: torch.sub, Tensor.mul: torch.mul, Tensor.div: torch.div,
    Tensor.clone: lambda x, out: out.copy_(x), torch.cat: torch.cat,
}  # fmt: skip
"""Operations on vectors, as they are with a place for the result."""
LOOKS = {
    Tensor.__len__, Tensor.numel, Tensor.dim, Tensor.element_size, Tensor.is_floating_point,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}  # fmt: skip
"""Functions that need no entry of a vector."""
BLOCK = 1 << 17  # entries of a thread: some vectors' blocks are in a core's cache together
MOST = 32  # operations to put off, as each may keep a vector


class Later(int):
    """The number of an operation that is put off, in the place of its result."""


class Operation(NamedTuple):
    """An operation that is put off: `place()` is where its result lies; None: it has gone."""

    do: Callable[..., Tensor]
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
        self._places: list[tuple[mmap.mmap, Callable[[], object]]] = []  # with what lies there
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
            joins = function is torch.cat
            given = args[0] if joins else [each for each in args if getattr(each, "ndim", 0)]
            if given and (found := self._place(given, joins)) is not None:
                if not joins:
                    return self._put_off(INTO[function], args, *found)
                self._settle()
                return torch.cat(*args, out=found[0])
        if function not in LOOKS:
            self._settle()
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
        """Return vectors as one, also on another thread, and while not entered."""
        found = self._place(parts, True) if self._helps else None
        return torch.cat([*parts], out=found and found[0])

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
        size = BLOCK * torch.get_num_threads()
        count = -(-self._size // size)
        read = [[each for each in own if isinstance(each, Later)] for _, own, _ in todo]
        kept, last = [place() for *_, place in todo], dict[int, int]()  # who reads each one last
        for number in reversed(range(len(todo))):
            if kept[number] is not None or number in last:
                for each in read[number]:
                    last.setdefault(each, number)
        results: list[Sequence[Tensor]] = []
        spares, free, steps = dict[int, Tensor](), list[Tensor](), []
        for number, (do, operands, _) in enumerate(todo):
            if kept[number] is not None:
                results.append(torch.split(torch.frombuffer(kept[number], dtype=self._dtype), size))
            elif number in last:  # it is read by others of these alone
                spare = free.pop() if free else torch.empty(size, dtype=self._dtype, device="cpu")
                results.append([*[spare] * (count - 1), spare[: self._size - (count - 1) * size]])
                spares[number] = spare
            else:
                results.append([])
                continue
            own = [_blocks(each, results, size, count) for each in operands]
            steps.append((do, own, results[-1]))
            free += [spares.pop(each) for each in {*read[number]} & spares.keys()
                     if last[each] == number]  # fmt: skip
        for index in range(count):
            for do, own, result in steps:
                do(*[each[index] for each in own], out=result[index])

    def _put_off(
        self, do: Callable[..., Tensor], args: Sequence[Any], out: Tensor, place: Callable[[], Any]
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
        self, operands: Sequence[Tensor], joins: bool
    ) -> tuple[Tensor, Callable[[], Any]] | None:
        """Return a vector for what is computed from others, and a weak reference to its memory.

        None where torch's own is as good.
        """
        one, size = operands[0], sum(each.numel() for each in (operands if joins else operands[:1]))
        kinds = {(each.dtype, each.device, each.ndim, joins or each.numel()) for each in operands}
        plain = one.ndim == 1 and one.is_floating_point() and one.device.type == "cpu"
        if not plain or len(kinds) > 1 or (size := size * one.element_size()) < LEAST:
            return None
        with self._lock:
            old = [each for each in self._places if each[1]() is None and len(each[0]) == size]
            place = old[0][0] if old else mmap.mmap(-1, size)
            if old:
                self._places.remove(old[0])
            elif ADVICE is not None:
                place.madvise(ADVICE)
            used = memoryview(place)  # lives as long as the last tensor in it
            known = ref(used)
            self._places.append((place, known))
        found = torch.frombuffer(used, dtype=one.dtype)
        self._due.pop(found.data_ptr(), None)  # of a result that has gone
        return found, known


def _blocks(operand: Any, results: Sequence[Sequence[Tensor]], size: int, count: int) -> Any:
    """Return an operand's part in each block: of a number the number itself."""
    if isinstance(operand, Later):
        return results[operand]
    if getattr(operand, "ndim", 0):
        return operand.split(size)
    return [operand] * count
