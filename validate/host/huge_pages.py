"""Large vectors in huge pages: the kernel clears small ones slower than torch computes with them.

torch does it by itself if THP_MEM_ALLOC_ENABLE=1 is set before it begins.
"""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PAGE = 1 << 21  # bytes
LEAST = 4 * PAGE
ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # of Linux alone
INTO: dict[Any, Callable[..., Tensor]] = {
    Tensor.add: torch.add, Tensor.sub: torch.sub, Tensor.mul: torch.mul, Tensor.div: torch.div,
    Tensor.clone: lambda x, out: out.copy_(x), torch.cat: torch.cat,
}  # fmt: skip
"""Operations on vectors, as they are with a place for the result."""


class HugePages(TorchFunctionMode):
    """While it is entered, large results of a program's arithmetic lie in huge pages.

    `size`: bytes of a vector; of small ones none is that large, and entering has no effect.
    """

    def __init__(self, size: int = LEAST) -> None:
        super().__init__()
        self._helps = ADVICE is not None and size >= LEAST

    def __enter__(self) -> Any:
        return super().__enter__() if self._helps else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if self._helps:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch's."""
        if function in INTO and not kwargs:
            joins = function is torch.cat
            given = args[0] if joins else [each for each in args if getattr(each, "ndim", 0)]
            if given and (out := _place(given, joins)) is not None:
                return INTO[function](*args, out=out)
        return function(*args, **(kwargs or {}))

    def outside(self, steps: Sequence[Callable[[], object]]) -> None:
        """Call what is not the program's, an optimizer's steps, as if not entered."""
        self.__exit__(None, None, None)
        try:
            for step in steps:
                step()
        finally:
            self.__enter__()


def _place(operands: Sequence[Tensor], joins: bool) -> Tensor | None:
    """Return a place for what is computed from vectors; None where torch's own is as good."""
    one, size = operands[0], sum(each.numel() for each in (operands if joins else operands[:1]))
    kinds = {(each.dtype, each.device, each.ndim, joins or each.numel()) for each in operands}
    plain = one.ndim == 1 and one.is_floating_point() and one.device.type == "cpu"
    if ADVICE is None or not plain or len(kinds) > 1 or size * one.element_size() < LEAST:
        return None
    place = torch.empty(size, dtype=one.dtype)
    begin = -(-place.data_ptr() // PAGE) * PAGE
    length = (place.data_ptr() + place.nbytes - begin) // PAGE * PAGE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ADVICE)
    return place
