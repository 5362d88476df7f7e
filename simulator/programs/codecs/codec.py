"""List the codecs by name. To add a codec, write its class and add it to `CODECS`.

A message has the bytes of its codec's `size` (`MessageCodec.message_bytes`).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..effects import Node, Vector
from ..pieces.piece import Kinds, Number, piece
from .channel import Channel, Opens
from .dense import BF16, FP8, FP16, QSGD, Int4, Int8
from .dgc import DGC
from .message_codec import (
    Data,
    MessageChannel,
    MessageCodec,
    State,
)
from .power import PowerSGD
from .sparse import RandomK, TopK
from .sparse_loco import SparseLoCo


@piece
class Raw(MessageCodec):
    """No compression: all entries in full, averaged by an all-reduce.

    `times`: size of a message in vectors; above 1 if messages contain more than the program's
    vectors, such as an optimizer's state.
    """

    kind: Literal["raw"] = "raw"
    rowwise: ClassVar[bool] = True
    times: Annotated[Number, Field(gt=0, description="size of a message, in vectors")] = 1.0

    def open(self, me: Node) -> Channel:
        """Return the node itself if `times` is 1."""
        return me if self == Raw() else MessageChannel(me, self)

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Return the vector unchanged."""
        return (vector,), None, state

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return `times` the bytes of all entries."""
        return self.times * parameters * width


CODECS = Kinds(Raw, TopK, RandomK, DGC, QSGD, FP16, BF16, FP8, Int8, Int4, PowerSGD, SparseLoCo)


_ABOUT = "compression of messages: a codec's name, or its table"
_read, _schema = CODECS.field("codec", "open", _ABOUT, '{ kind = "top-k", ratio = 0.01 }')
CodecOf = Annotated[Opens, _read, _schema]
"""A codec in a scenario: `"fp16"` or `{ kind = "top-k", ratio = 0.03 }`."""
