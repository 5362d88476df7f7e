"""A program's arithmetic on large vectors, in huge pages that are used again, and in one pass.

Strategy. The kernel takes longer to give and clear memory than torch to compute with it: results
take the places of vectors that have gone. And memory is slower than arithmetic: operations are put
off until somebody looks at a result, and then done together by one loop over the entries, compiled
by numba. A result that has gone by then is not written at all. Each entry sees the same operations
in the same order: the bits are the same. Before each vector there is room for what travels with it,
so that one that is of no other use is averaged where it is.

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
from functools import cache, partial
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
INTO: dict[Any, str] = {
    Tensor.add: "{} + {}", Tensor.sub: "{} - {}", Tensor.mul: "{} * {}", Tensor.div: "{} / {}",
    Tensor.clone: "{}",
}  # fmt: skip
"""Operations on vectors, as they are written for one entry of each."""
LOOKS = {
    Tensor.__len__, Tensor.numel, Tensor.dim, Tensor.element_size, Tensor.is_floating_point,
    Tensor.data_ptr,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")),
}  # fmt: skip
"""Functions that need no entry of a vector."""
KINDS = {torch.float32: np.float32, torch.float64: np.float64}
BLOCK = 1 << 20  # entries that a thread takes at once
MOST = 32  # operations to put off, as each may keep a vector


class Later(int):
    """The number of an operation that is put off, in the place of its result."""


class Operation(NamedTuple):
    """An operation that is put off: `place()` is where its result lies; None: it has gone.

    An operand that is a tuple of vectors stands for all of them, one behind the other.
    """

    form: str
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
            self._put_off("{}", (part,), copy, partial(Tensor.view_as, copy, copy))
        self.give(copies)
        return tuple(copies)

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """Return vectors, which stay unchanged until the program is suspended, as one."""
        found = self._place(parts, joins=True) if self._inside else None
        return self.join(parts) if found is None else self._put_off("{}", (tuple(parts),), *found)

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
        kind, size, threads = KINDS[self._dtype], self._size, torch.get_num_threads()
        vectors, names = list[list[Any]](), dict[int, str]()  # read or written; those read, by id
        numbers, loads, lines, stores = list[Any](), list[str](), list[str](), list[str]()

        def array(parts: Sequence[Tensor]) -> str:
            vectors.append([each.detach().numpy() for each in parts])
            return f"a{len(vectors) - 1}[i]"

        def name(operand: Any) -> str:
            if isinstance(operand, Later):
                return f"r{operand}"
            if not isinstance(operand, tuple) and not getattr(operand, "ndim", 0):
                numbers.append(kind(float(operand)))
                return f"s{len(numbers) - 1}"
            if id(operand) not in names:
                names[id(operand)] = f"x{len(names)}"
                parts = operand if isinstance(operand, tuple) else (operand,)
                loads.append(f"{names[id(operand)]} = {array(parts)}")
            return names[id(operand)]

        for number, (form, operands, place) in enumerate(todo):
            lines.append(f"r{number} = {form.format(*map(name, operands))}")
            if (result := place()) is not None:
                stores.append(f"{array([result])} = r{number}")
        if not stores:
            return
        step = min(BLOCK, -(-size // threads))
        cuts = sorted({*range(0, size, step), *(
            end for parts in vectors for end in accumulate(map(len, parts))
        )})  # fmt: skip
        given = [f"a{n}" for n in range(len(vectors))] + [f"s{n}" for n in range(len(numbers))]
        body = "\n  ".join([*loads, *lines, *stores])
        text = f"def run({', '.join(given)}):\n for i in range(len(a0)):\n  {body}"
        run = _compiled(text, len(vectors), len(numbers), kind.__name__)
        blocks = zip(*(_blocks(parts, cuts) for parts in vectors), strict=True)
        if threads == 1:
            for block in blocks:
                run(*block, *numbers)
        else:
            with ThreadPoolExecutor(threads) as pool:
                [*pool.map(lambda block: run(*block, *numbers), blocks)]

    def _put_off(
        self, form: str, args: Sequence[Any], out: Tensor, place: Callable[[], Any]
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
        self._todo.append(Operation(form, operands, place))
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


def _blocks(parts: Sequence[Any], cuts: Sequence[int]) -> list[Any]:
    """Return the part of some vectors, one behind the other, that lies between two cuts each."""
    *starts, _ = accumulate(map(len, parts), initial=0)
    found = ((parts[at := bisect(starts, low) - 1], low - starts[at], high - starts[at])
             for low, high in pairwise(cuts))  # fmt: skip
    return [part[low:high] for part, low, high in found]


@cache
def _compiled(text: str, vectors: int, numbers: int, kind: str) -> Any:
    """Compile a loop over the entries of vectors."""
    from numba import njit, types  # noqa: PLC0415 - which takes half a second

    made: dict[str, Any] = {}
    exec(text, made)
    one = getattr(types, kind)
    shapes = types.void(*[one[::1]] * vectors, *[one] * numbers)
    compiled = njit([shapes], nogil=True, error_model="numpy")(made["run"])
    return compiled.get_overload(shapes.args)  # without numba's dispatch
