"""Define SparseLoCo: every chunk's largest entries in few bits, error feedback."""

from math import ceil, log2
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from array_api_compat import array_namespace, device
from pydantic import Field, model_validator

from ..effects import Vector
from ..pieces.piece import Number, piece
from .channel import Random
from .dense import BITS, in_rows
from .message_codec import Data, MessageCodec, State

SPREAD = 3.0  # standard deviations on either side of the mean within the bins


@piece
class SparseLoCo(MessageCodec):
    """The largest entries of every chunk, by place and one of a few values.

    Sarfi et al., arXiv 2508.15706: e = decay e + vector. The message is subtracted from e, so the
    other entries and the rounding errors are sent later. Values are divided into 2^bits equal bins
    over their mean +- 3 standard deviations, with open outermost bins, and replaced by the mean of
    their bin. A shorter last chunk sends in proportion.
    """

    kind: Literal["sparse-loco"] = "sparse-loco"
    chunk: Annotated[int, Field(ge=2, le=2**20, strict=True, description="entries per chunk")] = (
        4096
    )
    top: Annotated[int, Field(ge=1, strict=True, description="sent entries per chunk")] = 64
    bits: Annotated[int, Field(ge=1, le=8, strict=True, description="bits per value")] = 2
    decay: Annotated[
        Number, Field(ge=0, le=1, description="share of the residual that remains after a message")
    ] = 0.95
    gathers: ClassVar[bool] = True
    feeds_back: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.top > self.chunk:
            raise ValueError("`top` is above `chunk`; write a value up to `chunk`")
        return self

    def init(self, vector: Vector, random: Random) -> State:
        """Start with a zero residual."""
        return 0.0 * vector

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Send the largest entries' places and codes as words, and the value of each code."""
        xp = array_namespace(vector)
        residual = self.decay * state + vector
        sizes = abs(in_rows(residual, self.chunk))
        # padding zeros of the last chunk sort after its entries of equal size
        order = xp.argsort(sizes, axis=1, descending=True, stable=True)[:, : self.top]
        order = xp.reshape(order, (-1,))[: self.entries(len(vector))]
        values = residual[self._places(order)]
        mean, half = xp.mean(values), 2 ** (self.bits - 1)
        width = SPREAD / half * xp.sqrt(xp.mean((values - mean) ** 2))
        exact = (values - mean) / xp.where(width > 0, width, xp.ones_like(width))
        codes = xp.astype(xp.clip(xp.floor(exact) + half, 0, 2 * half - 1), xp.int32)
        inside = [xp.astype(codes == code, vector.dtype) for code in range(2 * half)]
        book = xp.stack([xp.sum(values * mask) / max(xp.sum(mask), 1) for mask in inside])
        words = xp.astype(order, xp.int32) * (2 * half) + codes
        return (words, book), None, self.add(residual, (words, -book), None)

    def _places(self, order: Vector) -> Any:
        """Convert entries' places within their chunks, `order`, to places in the vector."""
        xp = array_namespace(order)
        chunks = np.arange(len(order)) // self.top
        return order + xp.asarray(chunks * self.chunk, device=device(order))

    def add(self, total: Vector, data: Data, places: Any) -> Vector:
        """Add the values of the sent entries; the others are zero."""
        words, book = data
        words = words & (2 ** self.layout(0, 0)[1] - 1)  # the highest bit is not a sign
        total[self._places(words // 2**self.bits)] += book[words % 2**self.bits]
        return total

    def entries(self, size: int) -> int:
        """Return the number of sent entries: `top` per chunk."""
        chunks, rest = divmod(size, self.chunk)
        return chunks * self.top + ceil(self.top * rest / self.chunk)

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of the words, and of the value of each code."""
        words = self.entries(round(parameters)) * self.layout(0, 0)[1]
        return ceil(words / BITS) + 2.0**self.bits * width

    def layout(self, entries: int, number: int) -> tuple[int, int]:
        """Return the fixed number of sent entries, and the bits of a word."""
        return self.entries(entries), ceil(log2(self.chunk)) + self.bits
