"""Define PowerSGD: a vector as the product of two thin matrices, averaged in turn."""

from collections.abc import Awaitable, Sequence
from math import ceil, sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn

from array_api_compat import array_namespace, device
from pydantic import Field

from ...errors import ProgramError
from ..effects import NOTHING, Encoded, Handle, Node, Payload, Vector
from ..pieces.piece import piece
from .channel import Channel, Codec, Random, share_of
from .dense import in_rows
from .message_codec import MessageChannel

LEAST = 2  # least size of a matrix over the size of its factors (min_compression_rate)


@piece
class PowerSGD(Codec):
    """A product P Q' of low rank: a power iteration per message, error feedback.

    Vogels et al., arXiv 1905.13727, algorithms 1 and 2, on the vector as one nearly square
    matrix M: P = mean(M Q), made orthonormal; Q = mean(M' P), from which the next message starts.
    Every worker receives the averaged product, and adds M minus the product to its next M.
    """

    kind: Literal["power-sgd"] = "power-sgd"
    rank: Annotated[int, Field(ge=1, strict=True, description="columns of P and Q")] = 2
    needs_collective: ClassVar[bool] = True
    feeds_back: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    def open(self, me: Node) -> Channel:
        """Open a channel of one node for averages only."""
        return PowerChannel(me, self)

    def generator(self, me: Node) -> Random:
        """Make the generator that all workers share, so they begin with the same Q."""
        return me.generator(shared=True)

    def size(self, tensors: Sequence[float], width: float) -> tuple[float, float]:
        """Return both rounds' bytes; `tensors`: entries by tensor; `width`: bytes of one.

        As in PyTorch's hook (powerSGD_hook.py) every tensor is a separate matrix, here a nearly
        square one. With several tensors, one whose factors exceed half of its size is sent whole,
        with P.
        """
        left = right = 0.0
        for entries in tensors:
            rows, columns = shape(entries)
            rank = min(self.rank, columns)
            if len(tensors) == 1 or LEAST * rank * (rows + columns) < entries:
                left, right = left + rank * rows, right + rank * columns
            else:
                left += entries
        return left * width, right * width


def shape(entries: float) -> tuple[int, int]:
    """Return rows and (at most as many) columns of the matrix for `entries`."""
    rows = ceil(sqrt(entries))
    return rows, ceil(entries / rows)


class PowerMatrix(NamedTuple):
    """A vector in flight: vector plus residual, also as a matrix, and its factor Q."""

    vector: Vector
    matrix: Vector
    basis: Vector
    share: float
    bytes: tuple[float, float]

    def left(self) -> Encoded:
        """Return the first message: P."""
        P = self.vector if self.is_nothing else self.matrix @ self.basis
        return Encoded((P,), None, self.share, self.bytes[0])

    def right(self, span: Vector) -> Encoded:
        """Return the second message, Q; `span`: orthonormal columns of the first mean."""
        Q = self.vector if self.is_nothing else self.matrix.mT @ span
        return Encoded((Q,), None, self.share, self.bytes[1])

    def product(self, span: Vector, right: Encoded) -> Vector:
        """Return the vector that the means of both messages represent."""
        if self.is_nothing:
            return self.vector
        product = span @ right.data[0].mT
        return product.reshape((*product.shape[:-2], -1))[..., : self.vector.shape[-1]]

    @property
    def is_nothing(self) -> bool:
        """Whether the run is time-only."""
        return isinstance(self.vector, complex)


def orthonormal(matrix: Vector) -> Vector:
    """Return orthonormal columns whose span includes the columns of a matrix."""
    return array_namespace(matrix).linalg.qr(matrix)[0]


class UnderWay(NamedTuple):
    """A payload in flight: its rounds (only one for scalars alone), and its entries."""

    first: Handle
    second: Handle
    entries: tuple[PowerMatrix | float, ...]
    is_tuple: bool

    @property
    def last(self) -> Handle:
        """The round that ends last."""
        return self.first if self.second is None else self.second


class PowerChannel(MessageChannel):
    """The channel of one node that averages in two rounds."""

    def __init__(self, me: Node, codec: PowerSGD) -> None:
        super().__init__(me, codec)
        self._residuals: dict[int, Vector] = {}
        self._bases: dict[int, Vector] = {}
        self._spans: dict[int, tuple[Vector, Vector]] = {}  # the last P of a slot, orthonormal

    def start_mean(self, value: Payload) -> Handle:
        """Compress, and start both rounds, the second as soon as the first is done."""
        me, is_tuple = self._me, isinstance(value, tuple)
        entries = tuple(
            self._enter(slot, entry) for slot, entry in enumerate(value if is_tuple else (value,))
        )
        matrices = [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, PowerMatrix)]

        def following(lefts: Payload) -> Payload:
            return tuple(matrix.right(self._span(i, lefts[i])) for i, matrix in matrices)

        first = me.start_mean(tuple(e.left() if isinstance(e, PowerMatrix) else e for e in entries))
        second = me.start_mean_after(first, following) if matrices else None
        return UnderWay(first, second, entries, is_tuple)

    async def wait(self, handle: Handle) -> Any:
        """Wait for both rounds, decompress, and store the product's error as residual."""
        lefts = await self._me.wait(handle.first)
        rights = iter(() if handle.second is None else await self._me.wait(handle.second))
        results = tuple(
            self._leave(slot, entry, left, next(rights)) if isinstance(entry, PowerMatrix) else left
            for slot, (entry, left) in enumerate(zip(handle.entries, lefts, strict=True))
        )
        return results if handle.is_tuple else results[0]

    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Return whether both rounds have finished on every worker."""
        return self._me.finished(handle.last)

    def arrived(self, handle: Handle) -> Awaitable[bool]:
        """Return whether both rounds have finished on this worker."""
        return self._me.arrived(handle.last)

    def send(self, *_: object, **__: object) -> NoReturn:
        """Refuse: raise ProgramError."""
        raise ProgramError(
            "power-sgd compresses by two rounds of averaging, so it cannot send a message to one "
            "node; choose another codec, such as top-k"
        )

    request = receive = receive_before = send

    def _span(self, slot: int, left: Encoded) -> Vector:
        """Return orthonormal columns of the mean of P, computed once for both uses."""
        P = left.data[0]
        if isinstance(P, complex):
            return P
        if slot not in self._spans or self._spans[slot][0] is not P:
            self._spans[slot] = P, orthonormal(P)
        return self._spans[slot][1]

    def _enter(self, slot: int, value: Payload) -> PowerMatrix | float:
        if isinstance(value, int | float):
            return value
        me, codec = self._me, self._codec
        share = share_of(value, me.start)
        me.work(codec.seconds(me, share)[0])
        tensors, part = (me.tensors, share) if me.tensors else ([share * me.parameters], 1.0)
        left, right = codec.size(tensors, me.bytes_per_parameter)
        size = part * left, part * right
        if codec.bytes is not None:
            left, right = (codec.bytes * share * part / sum(size) for part in size)
            size = left, right
        if isinstance(value, complex):
            return PowerMatrix(value, NOTHING, NOTHING, share, size)
        columns = shape(value.shape[-1])[1]
        if slot not in self._bases:
            normal = self._random.standard_normal((columns, min(codec.rank, columns)))
            xp = array_namespace(value)
            self._bases[slot] = xp.asarray(normal, dtype=value.dtype, device=device(value))
        value = value + self._residuals.get(slot, 0.0)
        self._residuals[slot] = 0.0
        return PowerMatrix(value, in_rows(value, columns), self._bases[slot], share, size)

    def _leave(self, slot: int, entry: PowerMatrix, left: Encoded, right: Encoded) -> Vector:
        self._me.work(self._codec.seconds(self._me, entry.share)[1])
        product = entry.product(self._span(slot, left), right)
        if not entry.is_nothing:
            self._residuals[slot] = self._residuals[slot] + (entry.vector - product)
            self._bases[slot] = right.data[0]
        return product
