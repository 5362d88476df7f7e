"""Vectors of a server's program, as registers of the compiled loop.

The program computes with stand-ins: each has the number of a register, and arithmetic with it notes
an operation. Multiplying by a number waits for the addition that usually follows, so that one
operation does both, rounding twice as NumPy does. A stand-in that is dropped frees its register.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from paceline.simulator.engines.unsupported import Unknown, Unsupported


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
    """The registers of a program. `count`: how many it has used at once, at most.

    `plain`: the class of stand-ins; `new`: takes a register that nothing else uses, and returns its
    stand-in. `marks`, by register, `sends` and `receives`, by register and slot: operations.
    """

    def __init__(self, note: Callable[[bytes], None], slots: int) -> None:
        self.count, self._slots, self._free = 0, slots, list[int]()
        self.marks: list[bytes] = []
        self.sends: list[list[bytes]] = []
        self.receives: list[list[bytes]] = []
        self.plain, self._scaled, self.new = self._stand_ins(note)

    def _more(self) -> int:
        number = self.count
        if number == 1 << FIELD:
            raise Unsupported("its server keeps too many vectors")
        self.count = number + 1
        self.marks.append(pack(Code.MARK, number << VECTOR, 0.0))
        for table, code in ((self.sends, Code.SEND), (self.receives, Code.RECEIVE)):
            of_slots = range(number << VECTOR, (number << VECTOR) + self._slots)
            table.append([pack(code, slot, 0.0) for slot in of_slots])
        return number

    def number(self, x: Any) -> int:
        """Return the number of the register with a vector, computed if need be; -1 for others."""
        if type(x) is self._scaled:
            x = x.plain()
        return x.number if type(x) is self.plain else -1

    def _stand_ins(self, note: Callable[[bytes], None]) -> tuple[Any, Any, Callable[[], Any]]:
        """Make the classes of stand-ins.

        Closures, which CPython reads faster than attributes: tracing a gradient takes as long as
        the loop needs for several.
        """
        free, create, adds = self._free, object.__new__, int(Code.ADD)
        take, give = free.pop, free.append

        def new() -> Any:
            made = create(Register)
            made.number = take() if free else self._more()
            return made

        def operate(code: int, a: int, b: int, factor: float) -> Any:
            made = create(Register)
            made.number = number = take() if free else self._more()
            note(pack(code, number | a << FIELD | b << 2 * FIELD, factor))
            return made

        def scaled(x: Any, factor: Any) -> Any:
            made = create(Scaled)
            made.register, made.factor = x, factor if type(factor) is float else real(x, factor)
            return made

        def real(x: Any, value: Any) -> float:
            if not isinstance(value, int | float | np.floating | np.integer):
                x._refuse()
            return float(value)

        class Register(Unknown):
            """Stand-in for a vector."""

            __slots__ = ("number",)
            why = LOOKS
            number: int

            def __del__(self) -> None:
                give(self.number)

            def __add__(self, other: Any) -> Any:
                if type(other) is Scaled:
                    return operate(adds, self.number, other.register.number, other.factor)
                if type(other) is not Register:
                    self._refuse()
                return operate(adds, self.number, other.number, 1.0)

            def __sub__(self, other: Any) -> Any:  # exactly the same as adding the negative
                if type(other) is Scaled:
                    return operate(adds, self.number, other.register.number, -other.factor)
                if type(other) is not Register:
                    self._refuse()
                return operate(adds, self.number, other.number, -1.0)

            def __mul__(self, factor: Any) -> Any:
                return scaled(self, factor)

            __rmul__ = __mul__

            def __truediv__(self, divisor: Any) -> Any:
                return operate(Code.DIVIDE, 0, self.number, real(self, divisor))

        class Scaled(Unknown):
            """Stand-in for a vector times a factor, not yet computed."""

            __slots__ = ("factor", "register")
            why = LOOKS
            factor: float
            register: Any

            def plain(self) -> Any:
                return operate(Code.SCALE, 0, self.register.number, self.factor)

            def __add__(self, other: Any) -> Any:
                return other + self if type(other) is Register else self.plain() + other

            def __sub__(self, other: Any) -> Any:
                return self.plain() - other

            def __mul__(self, factor: Any) -> Any:
                return scaled(self.plain(), factor)

            __rmul__ = __mul__

        return Register, Scaled, new
