"""Vectors of a server's program, as registers of the compiled loop.

The program computes with stand-ins: each holds the number of a register, and arithmetic with it
notes an operation. Multiplying by a number waits for the addition that usually follows, so that one
operation does both, rounding twice as NumPy does. A stand-in that is dropped frees its register.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.simulator.engines.unsupported import Unknown, Unsupported

RECEIVE, WORK, MARK, SEND, GATE, DISCARD, ADD, SCALE, DIVIDE = range(9)
"""Codes of operations. Never renumber them: compiled code that is cached would not notice."""

pack = struct.Struct("=iid").pack  # an operation
FIELD = 10  # bits of a register's number where three are packed into one integer
VECTOR = 16  # bits before a register's number where it is packed with a slot


class Registers:
    """The registers of a program. `count`: how many it has used at once, at most."""

    def __init__(self, note: Callable[[bytes], None]) -> None:
        self.note, self.free, self.count = note, list[int](), 0

    def new(self) -> "Register":
        """Return a register that nothing else uses."""
        if not self.free:
            if self.count == 1 << FIELD:
                raise Unsupported("its server keeps too many vectors")
            self.free.append(self.count)
            self.count += 1
        made = _new(Register)
        made.number, made.all = self.free.pop(), self
        return made

    def operate(self, code: int, a: int, b: int, factor: float) -> "Register":
        """Note an operation on registers `a` and `b`; return the register of its result."""
        made = self.new()
        self.note(pack(code, made.number | a << FIELD | b << 2 * FIELD, factor))
        return made


class Stand(Unknown):
    """Stand-in for a vector: a register, times a factor."""

    __slots__ = ()
    why = "its server looks into a vector"
    register: "Register"
    factor: float

    def plain(self) -> "Register":
        """Return a register with the vector."""
        raise NotImplementedError

    def __add__(self, other: Any) -> "Register":
        """Add a vector."""
        if type(self) is Scaled and type(other) is Register:
            return _sum(other, self, 1.0)
        return _sum(self.plain(), other, 1.0)

    def __sub__(self, other: Any) -> "Register":
        """Subtract a vector: exactly the same as adding its negative."""
        return _sum(self.plain(), other, -1.0)

    def __neg__(self) -> "Stand":
        """Change the sign."""
        return _scaled(self.register, -self.factor)

    def __mul__(self, factor: Any) -> "Stand":
        """Multiply by a number."""
        return _scaled(self.plain(), _number(factor, self))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "Register":
        """Divide by a number."""
        plain = self.plain()
        return plain.all.operate(DIVIDE, 0, plain.number, _number(divisor, self))


class Register(Stand):
    """Stand-in for a vector that is a register. `number`: its own; `all`: those that it is of."""

    __slots__ = ("all", "number")
    factor = 1.0
    all: Registers
    number: int

    @property
    def register(self) -> "Register":  # type: ignore[override]
        """Itself."""
        return self

    def plain(self) -> "Register":
        """Return itself."""
        return self

    def __del__(self) -> None:
        """Free it."""
        self.all.free.append(self.number)


class Scaled(Stand):
    """Stand-in for a register times a factor, not yet computed."""

    __slots__ = ("factor", "register")

    def plain(self) -> Register:
        """Compute it."""
        of = self.register
        return of.all.operate(SCALE, 0, of.number, self.factor)


_new = object.__new__


def _sum(left: Register, other: Any, sign: float) -> Register:
    if type(other) is not Scaled and type(other) is not Register:
        left._refuse()
    return left.all.operate(ADD, left.number, other.register.number, sign * other.factor)


def _scaled(register: Register, factor: float) -> Scaled:
    made = _new(Scaled)
    made.register, made.factor = register, factor
    return made


def _number(value: Any, stand: Stand) -> float:
    if type(value) is not float and not isinstance(value, int | float | np.floating | np.integer):
        stand._refuse()
    return float(value)
