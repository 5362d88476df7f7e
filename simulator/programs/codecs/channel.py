"""What a codec is for: a line between nodes through which vectors travel compressed.

Programs open one with `codec.open(me)` and move their vectors through it; without compression that
is the node itself. What travels is always a gradient or a displacement, never a whole model, so
that what a codec leaves out is little. What a codec keeps of a vector (its residual, its momentum)
is kept by the vector's place in the payload, so that each vector needs a line, or a place, of its
own. It changes only where the program starts a mean, sends, or waits, never when a message happens
to be there, so that it is the same in every interpreter.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from paceline.simulator.inputs.units import Seconds
from paceline.simulator.programs.effects import ANY, Handle, Node, Payload, Vector
from paceline.simulator.programs.pieces.piece import piece

Random = Any
"""A source of random numbers, as nodes make them (`Node.generator`)."""


class Channel(Protocol):
    """The part of a `Node` that moves vectors."""

    def start_mean(self, value: Payload) -> Handle:
        """Start an average."""

    def wait(self, handle: Handle) -> Awaitable[Any]:
        """Wait for it."""

    def mean(self, value: Payload) -> Awaitable[Any]:
        """Average and wait."""

    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Whether it is finished on every worker."""

    def send(self, to: int, value: Payload) -> None:
        """Send a message."""

    def request(self, to: int, value: Payload) -> Awaitable[Payload]:
        """Send, and wait for an answer, which is not compressed."""

    def receive(self, source: int = ANY) -> Awaitable[tuple[int, Payload]]:
        """Wait for a message that the other end sent through its line."""


class Opens(Protocol):
    """What programs know of a codec."""

    def open(self, me: Node) -> Channel:
        """One node's end of a line."""


_Time = Annotated[Seconds, Field(ge=0)]


@piece
class Codec:
    """How vectors are compressed.

    `needs_collective`: it can average, but not send a message to one node. `carries_momentum`: what
    it sends has momentum in it already, so that the program's own must be off. `compress`,
    `decompress`: seconds that a vector of the whole model's size takes.
    """

    needs_collective: ClassVar[bool] = False
    carries_momentum: ClassVar[bool] = False
    compress: Annotated[_Time, Field(description="time to compress one model's size")] = 0.0
    decompress: Annotated[_Time, Field(description="time to decompress one message")] = 0.0

    def open(self, me: Node) -> Channel:
        """One node's end of a line through which vectors travel compressed."""
        raise NotImplementedError

    def generator(self, me: Node) -> Random:
        """Random numbers of one line, if any: drawn once it opens, also where vectors are nothing.

        Programs are then given the same generators in a time-only run.
        """
        return None


def share_of(vector: Vector, whole: Vector) -> float:
    """Share of the `whole` model that a vector is; a time-only vector may carry its own."""
    if isinstance(vector, complex):
        return float(getattr(vector, "share", 1.0))
    return float(len(vector) / len(whole))
