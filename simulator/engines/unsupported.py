"""Refuse programs that a fast engine cannot run, and values that would reveal it.

An engine's `supports` checks a program and a scenario beforehand, and returns a reason or None.
Other obstacles appear only while the engine runs or traces the program.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Unsupported(BaseException):
    """Raised when an engine cannot run a program; the message completes "because ...".

    Not an `Exception`, so that no program catches it.
    """


def attempt(run: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of a fast engine's `run`, or None and why it cannot."""
    try:
        return run(), ""
    except Unsupported as why:
        return None, str(why)


class Unknown:
    """A value that a program may pass on but not use: every operation raises Unsupported.

    Only `is` cannot be refused. `why`: the reason, which completes "because ...".
    """

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def _refuse(self, *_: Any) -> Any:
        raise Unsupported(self.why)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __bool__ = __index__ = __int__ = __float__ = __complex__ = __call__ = __getattr__ = _refuse
    __len__ = __iter__ = __getitem__ = __setitem__ = __contains__ = __reversed__ = _refuse
    __abs__ = __round__ = __neg__ = __invert__ = __array__ = __str__ = __repr__ = _refuse
    __format__ = _refuse


ARITHMETIC = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift"
for _name in ARITHMETIC.split():
    for _kind in ("", "r", "i"):
        setattr(Unknown, f"__{_kind}{_name}__", Unknown._refuse)
