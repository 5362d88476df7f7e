"""Vectors of a server's program, as registers of the compiled loop.

The program computes with stand-ins: each has the number of a register, and arithmetic with it notes
an operation. Multiplying by a number waits for the addition that usually follows, so that one
operation does both, rounding twice as NumPy does. A stand-in that only the pool of all still refers
to is taken again: its register is free.

Tracing a gradient takes as long as the loop needs for several, so this file is written for speed:
stand-ins are not made anew, nor are operations packed anew that have been packed before.
"""

import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from math import nan
from typing import Any

import numpy as np

from ..unsupported import Unknown, Unsupported


class Code(IntEnum):
    """Operations. Never renumber them: compiled code that is cached would not notice."""

    RECEIVE = 0
    WORK = 1
    MARK = 2
    SEND = 3
    GATE = 4
    DISCARD = 5
    ADD = 6
    SCALE = 7
    DIVIDE = 8


pack = struct.Struct("=iid").pack  # an operation
FIELD = 10  # bits of a register's number where three are packed into one integer
LOOKS = "its server looks into a vector"
VECTOR = 16  # bits before a register's number where it is packed with a slot


class Registers:
    """The registers of a program. `all`: the stand-ins of as many as it has used at once, or more.

    `plain`: the class of stand-ins, each with its `number` and the operations that it may be in:
    `mark`, and by slot `sends`, `receives` and `asks` (a gate). `new`: returns a stand-in that
    nothing else uses. `kinds`: the classes of all that has a stand-in, which `plain()` returns.
    """

    def __init__(self, note: Callable[[bytes], None], slots: int) -> None:
        self.all = list[Any]()
        self.plain, *others, self.new = self._stand_ins(note, slots)
        self.kinds = self.plain, *others

    def _stand_ins(self, note: Callable[[bytes], None], slots: int) -> tuple[Any, Any, Any]:
        """Make the classes of stand-ins: closures, which CPython reads faster than attributes."""
        pool, around, references = self.all, iter(self.all), sys.getrefcount
        idle = next(references(made) for made in [Unknown("")])  # as counted below

        def new() -> Any:
            nonlocal around
            for _ in (1, 2):  # what is left of a circle, then a whole one
                for made in around:
                    if references(made) == idle:
                        return made
                around = iter(pool)
            pool.append(Register(len(pool)))
            return pool[-1]

        def operate(code: int, x: Any, factor: float) -> Any:
            made = new()
            note(pack(code, made.number + x.third, factor))
            return made

        def real(x: Any, value: Any) -> float:
            if not isinstance(value, int | float | np.floating | np.integer):
                x._refuse()
            return float(value)

        def combining(sign: float) -> Any:
            """Make the method of `+`, or that of `-`, exactly the same as adding the negative."""
            plain, scaled, last = dict[int, bytes](), dict[int, bytes](), nan

            def combine(self: Any, other: Any) -> Any:
                nonlocal last
                if type(other) is Register:
                    packed, factor = plain, 1.0
                elif type(other) is Scaled:
                    packed, factor, other = scaled, other.factor, other.register
                    if factor is not last and (factor != last or not factor):  # zeros have signs
                        packed.clear()
                        last = factor
                else:
                    self._refuse()
                made = new()
                registers = made.number + self.second + other.third
                if registers not in packed:
                    packed[registers] = pack(Code.ADD, registers, sign * factor)
                note(packed[registers])
                return made

            return combine

        class Register(Unknown):
            """Stand-in for a vector."""

            __slots__ = ("asks", "mark", "number", "receives", "second", "sends", "third")
            why = LOOKS

            def __init__(self, number: int) -> None:
                if number == 1 << FIELD:
                    raise Unsupported("its server keeps too many vectors")
                self.number, self.second, self.third = (number << FIELD * i for i in range(3))
                self.mark = pack(Code.MARK, number << VECTOR, 0.0)
                self.sends, self.receives, self.asks = (
                    [pack(code, number << VECTOR | slot, 0.0) for slot in range(slots)]
                    for code in (Code.SEND, Code.RECEIVE, Code.GATE)
                )

            def plain(self) -> Any:
                return self

            def __mul__(self, factor: Any) -> Any:
                made: Any = Scaled()
                made.register = self
                made.factor = factor if type(factor) is float else real(self, factor)
                return made

            __rmul__ = __mul__
            __add__, __sub__ = combining(1.0), combining(-1.0)

            def __truediv__(self, divisor: Any) -> Any:
                return operate(Code.DIVIDE, self, real(self, divisor))

        class Scaled(Unknown):
            """Stand-in for a vector times a factor, not yet computed."""

            __slots__ = ("factor", "register")
            __init__ = object.__init__
            why = LOOKS
            factor: float
            register: Any

            def plain(self) -> Any:
                return operate(Code.SCALE, self.register, self.factor)

            def __add__(self, other: Any) -> Any:
                return other + self if type(other) is Register else self.plain() + other

            def __sub__(self, other: Any) -> Any:
                return self.plain() - other

            def __mul__(self, factor: Any) -> Any:
                return self.plain() * factor

            __rmul__ = __mul__

        self.all.extend(map(Register, range(12)))  # of so many, the next one is mostly free
        return Register, Scaled, new
