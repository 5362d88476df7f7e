"""Define codecs that send all entries in fewer bits."""

from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from array_api_compat import array_namespace, device
from pydantic import Field

from ..effects import Handle, Node, Vector
from ..pieces.piece import piece
from .channel import Channel, Random
from .message_codec import Data, MessageChannel, MessageCodec, State

BITS = 8  # of a byte
BLOCK = 512  # entries that share a scale
SCALE_BITS = 16  # of a scale; with the 8 of a number they fit a float32
TINY = 1e-35  # smaller scales become 1, so that their entries round to zero


@piece
class FP16(MessageCodec):
    """Half precision (IEEE 754 binary16), also for sums.

    Entries and sums above 65504 become infinite.
    """

    kind: Literal["fp16"] = "fp16"
    rowwise: ClassVar[bool] = True

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Round all entries to half precision."""
        xp = array_namespace(vector)
        return (xp.astype(vector, xp.float16),), None, state

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return two bytes per entry."""
        return 2.0 * parameters


@piece
class Rounded(MessageCodec):
    """Entries rounded to few bits, averaged by a reduce-scatter and an all-gather.

    Each worker sums one part of the vector without rounding, and rounds the mean before the
    all-gather, as in PyTorch's and DeepSpeed's quantised collectives. Entries of a block share a
    scale, the least with 16 significant bits that fits the largest entry: a rounded vector then
    rounds to itself, so real messages hold it exactly. `feedback` adds rounding errors to the next
    vector.

    `largest`: number of the grid, None without scales; `mantissa`: bits after the leading bit,
    down to the exponent `least`; None: whole numbers.
    """

    feedback: Annotated[bool, Field(strict=True, description="resend rounding errors")] = True
    rowwise: ClassVar[bool] = True
    feeds_back: ClassVar[bool] = True
    on_grid: ClassVar[bool] = True
    bits: ClassVar[int] = 8
    largest: ClassVar[float | None] = None
    mantissa: ClassVar[int | None] = None
    least: ClassVar[int] = -126

    def open(self, me: Node) -> Channel:
        """Open a channel that also rounds means."""
        return RoundedChannel(me, self)

    def init(self, vector: Vector, random: Random) -> State:
        """Start with a zero residual."""
        return 0.0 * vector

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Round vector plus residual; keep the difference as the next residual."""
        total = vector + state
        rounded = self.rounded(total)
        return (rounded,), None, total - rounded if self.feedback else state

    def scales(self, blocks: Vector) -> Vector:
        """Return a scale for each row of `blocks`; shape (..., rows, 1)."""
        xp = array_namespace(blocks)
        scale = xp.max(abs(blocks), axis=-1, keepdims=True) / self.largest
        scale = xp.where(scale < TINY, xp.ones_like(scale), scale)
        step = 2.0 ** (xp.floor(xp.log2(scale)) - SCALE_BITS + 1)
        return xp.ceil(scale / step) * step

    def rounded(self, vector: Vector) -> Vector:
        """Round all entries to the nearest number on the grid of their block."""
        xp = array_namespace(vector)
        if self.largest is None:
            return self._nearest(vector)
        blocks = in_rows(vector, min(BLOCK, vector.shape[-1]))
        scale = self.scales(blocks)
        whole = self._nearest(blocks / scale) * scale
        return xp.reshape(whole, (*vector.shape[:-1], -1))[..., : vector.shape[-1]]

    def _nearest(self, numbers: Vector) -> Vector:
        xp = array_namespace(numbers)
        if self.mantissa is None:
            return xp.round(numbers)
        size = abs(numbers)
        exponent = xp.floor(xp.log2(xp.where(size == 0, xp.ones_like(size), size)))
        step = 2.0 ** (xp.clip(exponent, self.least, None) - self.mantissa)
        return xp.round(numbers / step) * step

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of all entries, and of a scale per block."""
        scales = 0 if self.largest is None else width * ceil(parameters / BLOCK)
        return self.bits / BITS * parameters + scales


class RoundedChannel(MessageChannel):
    """The channel of one node; it rounds means again before the all-gather."""

    async def wait(self, handle: Handle) -> Any:
        """Wait, and round."""
        mean = await super().wait(handle)
        return tuple(map(self._round, mean)) if isinstance(mean, tuple) else self._round(mean)

    def _round(self, value: Any) -> Any:
        codec: Any = self._codec
        return value if isinstance(value, int | float | complex) else codec.rounded(value)


@piece
class Int8(Rounded):
    """Whole numbers from -127 to 127, and a scale per block."""

    kind: Literal["int8"] = "int8"
    largest: ClassVar[float | None] = 127.0


@piece
class Int4(Rounded):
    """Whole numbers from -7 to 7, and a scale per block."""

    kind: Literal["int4"] = "int4"
    bits: ClassVar[int] = 4
    largest: ClassVar[float | None] = 7.0


@piece
class FP8(Rounded):
    """Numbers of 8 bits with 3 of mantissa (E4M3), and a scale per block."""

    kind: Literal["fp8"] = "fp8"
    largest: ClassVar[float | None] = 448.0
    mantissa: ClassVar[int | None] = 3
    least: ClassVar[int] = -6


@piece
class BF16(Rounded):
    """Numbers of 16 bits with 7 of mantissa."""

    kind: Literal["bf16"] = "bf16"
    bits: ClassVar[int] = 16
    mantissa: ClassVar[int | None] = 7


@piece
class QSGD(MessageCodec):
    """Entries rounded at random to one of a few levels, without bias.

    Alistarh et al., arXiv 1610.02132, section 3.1 and its buckets: an entry v of a bucket becomes
    |bucket| sign(v) l / s, where l is one of the two whole numbers around s |v| / |bucket|, and |.|
    is the 2-norm. One bit of an entry is its sign, the others hold l = 0 ... s. Levels with
    different norms cannot be summed, so messages are gathered.
    """

    kind: Literal["qsgd"] = "qsgd"
    bits: Annotated[int, Field(ge=2, le=8, strict=True, description="bits per entry")] = 4
    bucket: Annotated[int, Field(ge=1, strict=True, description="entries that share a norm")] = 512
    gathers: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    @property
    def levels(self) -> int:
        """Number of levels above zero (s)."""
        return int(2 ** (self.bits - 1) - 1)

    def generator(self, me: Node) -> Random:
        """Make a generator for this node: workers round independently."""
        return me.generator()

    def init(self, vector: Vector, random: Random) -> State:
        """Store only the generator: unbiased rounding needs no residual."""
        return random

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Send the norm of each bucket and the signed levels of its entries."""
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

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of all entries, and of a norm per bucket."""
        return self.bits / BITS * parameters + width * ceil(parameters / self.bucket)

    def layout(self, entries: int, number: int) -> tuple[int, int]:
        """Return the number of entries, and the bits of a signed level."""
        return entries, self.bits


def in_rows(vector: Vector, length: int) -> Vector:
    """Reshape a vector to rows of `length` entries, padded with zeros."""
    xp, lead = array_namespace(vector), vector.shape[:-1]
    missing = -vector.shape[-1] % length
    if missing:
        zeros = xp.zeros((*lead, missing), dtype=vector.dtype, device=device(vector))
        vector = xp.concat([vector, zeros], axis=-1)
    return xp.reshape(vector, (*lead, -1, length))
