"""Channels and codecs: a channel is a node's connection on which a codec compresses vectors.

Programs open one with `codec.open(me)` and move their vectors through it; without compression it is
the node itself. Vectors are gradients or displacements, never whole models, so that a codec loses
little. The state of a codec (its residual, its momentum) belongs to a slot, the position in the
payload, so that each vector needs a separate channel or slot. The state changes only where the
program starts a mean, sends, or waits, never when a message arrives, so that it is the same in
every engine.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from ...inputs.units import Bytes, Seconds
from ..effects import ANY, Handle, Node, Payload, Vector
from ..pieces.piece import piece

Random = Any
"""A source of random numbers, as nodes make them (`Node.generator`)."""


class Channel(Protocol):
    """The part of a `Node` that moves vectors."""

    def start_mean(self, value: Payload) -> Handle:
        """Start an average."""

    def wait(self, handle: Handle) -> Awaitable[Any]:
        """Wait for a started average; return it decompressed."""

    def mean(self, value: Payload) -> Awaitable[Any]:
        """Average and wait."""
        return self.wait(self.start_mean(value))

    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Return whether the average has finished on every worker."""

    def send(self, to: int, value: Payload) -> None:
        """Send a message."""

    def request(self, to: int, value: Payload) -> Awaitable[Payload]:
        """Send, and wait for an answer, which is not compressed."""

    def receive(self, source: int = ANY) -> Awaitable[tuple[int, Payload]]:
        """Wait for a message that the sender put through its channel."""

    def receive_before(
        self, handle: Handle, source: int = ANY
    ) -> Awaitable[tuple[int, Payload] | None]:
        """Receive as `receive` does; None if the handle is done before a message comes."""


class Opens(Protocol):
    """The part of a codec that programs use."""

    def open(self, me: Node) -> Channel:
        """Open a channel of one node."""


_Time = Annotated[Seconds, Field(ge=0)]


@piece
class Codec:
    """Base of codecs: how vectors are compressed.

    `needs_collective`: it can average, but not send a message to one node. `carries_momentum`: its
    messages include momentum, so that the program's own must be off. `feeds_back`: what a message
    drops is added to the next. `rowwise`: its vectors may have further axes, for many workers; it
    compresses each row separately. `compress`, `decompress`: seconds for a vector of the whole
    model's size; if both are 0, a profile's measurements apply. `bytes`: of that vector's messages
    in one mean; None: by the codec's own rule.
    """

    rowwise: ClassVar[bool] = False
    needs_collective: ClassVar[bool] = False
    carries_momentum: ClassVar[bool] = False
    feeds_back: ClassVar[bool] = False
    compress: Annotated[_Time, Field(description="time to compress one model's size")] = 0.0
    decompress: Annotated[_Time, Field(description="time to decompress one message")] = 0.0
    bytes: Annotated[
        Annotated[Bytes, Field(gt=0)] | None,
        Field(description="bytes of one model's size, as a library sends it"),
    ] = None

    def open(self, me: Node) -> Channel:
        """Open a channel of one node on which vectors are compressed."""
        raise NotImplementedError

    def seconds(self, me: Node, share: float) -> tuple[float, float]:
        """Return seconds to compress a `share` of the model, and to decompress it."""
        if self.compress or self.decompress:
            return self.compress * share, self.decompress * share
        return me.coding(getattr(self, "kind", ""), share)

    def generator(self, me: Node) -> Random:
        """Make a channel's random generator, if it needs one, also in time-only runs.

        Later generators of the program are then the same with and without vectors.
        """
        return None


def share_of(vector: Vector, model: Vector) -> float:
    """Return a vector's share of the `whole` model; a time-only vector may carry it."""
    if isinstance(vector, complex):
        return float(getattr(vector, "share", 1.0))
    return float(vector.shape[-1] / model.shape[-1])
