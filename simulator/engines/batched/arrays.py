"""Arrays that hold a vector or a number for every worker of every seed.

A program may add, subtract, multiply and divide them like one worker's values. Any other use (the
length of a vector, an entry, a norm) would mix workers, so it raises Unsupported and another engine
runs.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Operator = Callable[[Any, Any], Any]


class Unsupported(BaseException):
    """Raised when an engine cannot run a program; the message completes "because ...".

    Not an `Exception`, so that no program catches it.
    """


class Many:
    """An array (`of`) with a number or a vector for each worker, and its arithmetic.

    Only `is` and arithmetic with its kind or with numbers work: all else raises Unsupported.
    """

    __slots__ = ("of",)
    __array_ufunc__ = None  # NumPy leaves arithmetic with it to the methods below
    why = "its program reads the value of a vector or a loss"

    def __init__(self, of: np.ndarray) -> None:
        self.of = of

    def _refuse(self, *_: Any) -> Any:
        raise Unsupported(self.why)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __bool__ = __index__ = __int__ = __float__ = __complex__ = __call__ = __getattr__ = _refuse
    __len__ = __iter__ = __getitem__ = __setitem__ = __contains__ = __reversed__ = _refuse
    __abs__ = __round__ = __invert__ = __array__ = __str__ = __repr__ = __format__ = _refuse
    __class__ = property(_refuse)  # isinstance reads it

    def _other(self, other: Any) -> Any:
        """Convert `other` to an array or a number, or raise Unsupported."""
        if type(other) is type(self):
            return other.of
        if type(other) in (int, float) or isinstance(other, np.floating | np.integer):
            return other
        return self._refuse()

    def __neg__(self) -> Any:
        return type(self)(-self.of)

    def __pos__(self) -> Any:
        return self


def _method(operation: Operator, reflected: bool = False) -> Any:
    if reflected:
        return lambda self, other: type(self)(operation(self._other(other), self.of))
    return lambda self, other: type(self)(operation(self.of, self._other(other)))


for _name in ["floordiv", "mod", "divmod", "matmul", "and", "or", "xor", "lshift", "rshift"]:
    for _kind in ("", "r", "i"):
        setattr(Many, f"__{_kind}{_name}__", Many._refuse)
for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Many, f"__{_name}__", _method(getattr(operator, _name)))
    setattr(Many, f"__r{_name}__", _method(getattr(operator, _name), reflected=True))
    setattr(Many, f"__i{_name}__", Many._refuse)


class Stack(Many):
    """Vectors (seeds, workers, dimension); an axis of length 1 means equal values."""

    __slots__ = ()

    def _other(self, other: Any) -> Any:
        if type(other) is np.ndarray and other.ndim <= 1:  # the program's own vector
            return other
        return super()._other(other)


def array(x: Any) -> np.ndarray:
    """Return the array behind a program's vector; refuse any other object."""
    if type(x) is not Stack:
        raise Unsupported("its program creates vectors itself")
    return x.of


class PerWorker(Many):
    """A number for each worker of one seed, such as a loss or a clock, (workers,).

    `latest`: its average is the largest number.
    """

    __slots__ = ("latest",)

    def __init__(self, of: np.ndarray, latest: bool = False) -> None:
        super().__init__(of)
        self.latest = latest
