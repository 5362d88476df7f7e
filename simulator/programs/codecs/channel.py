"""Define channels, a node's connections with compressed vectors, and codecs.

Programs open one with `codec.open(me)` and move their vectors through it; without compression it is
the node itself. Vectors are gradients or displacements, never whole models, so a codec loses
little. A codec's state (its residual, its momentum) belongs to a slot, the position in the
payload, so each vector needs its own channel or slot. The state changes only when the program
starts a mean, sends, or waits, never when a message arrives, so it is the same in every engine.
"""

from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from ...inputs.units import Bytes, Seconds
from ..effects import Node, Vector
from ..pieces.piece import piece

Random = Any
"""A source of random numbers, made by `Node.generator`."""


Channel = Any
"""The effects of a `Node` that move vectors: the node itself, or a `MessageChannel`.

These are `start_mean`, `mean`, `wait`, `finished`, `arrived`, `send`, `receive`, `receive_before`
and `request`, whose answer is not compressed."""


class Opens(Protocol):
    """The part of a codec that programs use."""

    def open(self, me: Node) -> Channel:
        """Open a channel of one node."""


_Time = Annotated[Seconds, Field(ge=0)]


@piece
class Codec:
    """Base of codecs, which compress vectors.

    `needs_collective`: it can average, but not send to one node. `carries_momentum`: its messages
    include momentum, so the program's momentum must be off. `feeds_back`: it adds dropped entries
    to the next message. `rowwise`: vectors may have further axes, for many workers, and it
    compresses each row separately. `compress`, `decompress`: seconds for a vector of the whole
    model's size; if both are 0, a profile's measurements apply. `bytes`: size of such a vector's
    messages in one mean; None: by the codec's rule.
    """

    rowwise: ClassVar[bool] = False
    needs_collective: ClassVar[bool] = False
    carries_momentum: ClassVar[bool] = False
    feeds_back: ClassVar[bool] = False
    compress: Annotated[_Time, Field(description="time to compress the whole model")] = 0.0
    decompress: Annotated[_Time, Field(description="time to decompress one message")] = 0.0
    bytes: Annotated[
        Annotated[Bytes, Field(gt=0)] | None,
        Field(description="bytes that a library sends for the whole model"),
    ] = None

    def open(self, me: Node) -> Channel:
        """Open a channel through which a node sends compressed vectors."""
        raise NotImplementedError

    def seconds(self, me: Node, share: float) -> tuple[float, float]:
        """Return the seconds to compress, and to decompress, a `share` of the model."""
        if self.compress or self.decompress:
            return self.compress * share, self.decompress * share
        return me.coding(getattr(self, "kind", ""), share)

    def generator(self, me: Node) -> Random:
        """Make a channel's random generator if it needs one, even in time-only runs.

        The program's later generators are then the same with and without vectors.
        """
        return None


def share_of(vector: Vector, model: Vector) -> float:
    """Return a vector's share of the whole model; a time-only vector may state it."""
    if isinstance(vector, complex):
        return float(getattr(vector, "share", 1.0))
    return float(vector.shape[-1] / model.shape[-1])
