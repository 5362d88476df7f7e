"""Large vectors in huge pages that are used again: the kernel takes longer to give and clear memory
than torch to compute with it.
"""

import mmap
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
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

    def __enter__(self) -> Any:
        self._inside = self._helps
        return super().__enter__() if self._helps else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if self._inside:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._inside = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch's."""
        if function in INTO and not kwargs:
            joins = function is torch.cat
            given = args[0] if joins else [each for each in args if getattr(each, "ndim", 0)]
            if given and (out := self._place(given, joins)) is not None:
                return INTO[function](*args, out=out)
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
        place = self._place(parts, True) if self._helps else None
        return torch.cat([*parts], out=place)

    def _place(self, operands: Sequence[Tensor], joins: bool) -> Tensor | None:
        """Return a place for what is computed from vectors; None where torch's own is as good."""
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
            self._places.append((place, ref(used)))
        return torch.frombuffer(used, dtype=one.dtype)
