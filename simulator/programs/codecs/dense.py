"""Codecs that send every entry, in fewer bits."""

from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from array_api_compat import array_namespace, device
from pydantic import Field

from ..effects import Node, Vector
from ..pieces.piece import piece
from .channel import Random
from .message_codec import Data, MessageCodec, State

BITS = 8  # of a byte


@piece
class FP16(MessageCodec):
    """Halves (IEEE 754 binary16), added up as halves.

    Entries above 65504 become infinite, also in the sum.
    """

    kind: Literal["fp16"] = "fp16"
    rowwise: ClassVar[bool] = True

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Round every entry to the nearest half."""
        xp = array_namespace(vector)
        return (xp.astype(vector, xp.float16),), None, state

    def bytes(self, parameters: float, width: float, number: int, kept: float | None) -> float:
        """Return two bytes per entry."""
        return 2.0 * parameters


@piece
class QSGD(MessageCodec):
    """Each entry rounded at random to one of a few levels, so that the mean is right.

    Alistarh et al., arXiv 1610.02132, section 3.1 and its buckets: an entry v of a bucket becomes
    |bucket| sign(v) l / s, with l one of the two whole numbers around s |v| / |bucket|, |.| being
    the 2-norm. Of an entry's bits one is its sign and the others hold l = 0 ... s. Levels of
    different norms do not add up, so messages are gathered.
    """

    kind: Literal["qsgd"] = "qsgd"
    bits: Annotated[int, Field(ge=2, le=8, strict=True, description="bits of an entry")] = 4
    bucket: Annotated[int, Field(ge=1, strict=True, description="entries that share a norm")] = 512
    gathers: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    @property
    def levels(self) -> int:
        """Number of levels above zero (s)."""
        return int(2 ** (self.bits - 1) - 1)

    def generator(self, me: Node) -> Random:
        """Make a generator of this node: workers round independently."""
        return me.generator()

    def init(self, vector: Vector, random: Random) -> State:
        """Store only the generator: rounding is unbiased and leaves no residual."""
        return random

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Send each bucket's norm and the signed levels of its entries."""
        xp = array_namespace(vector)
        buckets = in_rows(vector, min(self.bucket, vector.shape[-1]))
        norms = xp.linalg.vector_norm(buckets, axis=-1, keepdims=True)
        exact = abs(buckets) / xp.where(norms == 0, xp.ones_like(norms), norms) * self.levels
        chance = xp.asarray(state.random(buckets.shape), dtype=vector.dtype, device=device(vector))
        floor = xp.floor(exact)
        levels = xp.clip(floor + xp.astype(chance < exact - floor, vector.dtype), 0, self.levels)
        return (norms, xp.astype(xp.sign(buckets) * levels, xp.int8)), None, state

    def add(self, total: Vector, data: Data, places: Any) -> Vector:
        """Add the rounded entries."""
        norms, levels = data
        rounded = norms * levels / self.levels
        return total + rounded.reshape((*rounded.shape[:-2], -1))[..., : total.shape[-1]]

    def bytes(self, parameters: float, width: float, number: int, kept: float | None) -> float:
        """Return the bytes of all entries' bits, and of a norm per bucket."""
        return self.bits / BITS * parameters + width * ceil(parameters / self.bucket)

    def layout(self, entries: int, number: int) -> tuple[int, int]:
        """Return the number of entries, all of them, and the bits of a signed level."""
        return entries, self.bits


def in_rows(vector: Vector, length: int) -> Vector:
    """Reshape a vector to rows of `length` entries, the last one padded with zeros."""
    xp, lead = array_namespace(vector), vector.shape[:-1]
    missing = -vector.shape[-1] % length
    if missing:
        zeros = xp.zeros((*lead, missing), dtype=vector.dtype, device=device(vector))
        vector = xp.concat([vector, zeros], axis=-1)
    return xp.reshape(vector, (*lead, -1, length))
