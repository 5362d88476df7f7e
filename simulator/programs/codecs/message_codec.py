"""Define the base of codecs with one message per vector, and their channel."""

from collections import Counter
from collections.abc import Awaitable
from typing import Any, ClassVar

from array_api_compat import array_namespace, device

from ..effects import ANY, Encoded, Handle, Latest, Node, Payload, Vector
from ..pieces.piece import piece
from .channel import Channel, Codec, Random, share_of

State = Any
Data = tuple[Vector, ...]


@piece
class MessageCodec(Codec):
    """Base of codecs that encode a vector as one message; only the state changes.

    `gathers`: messages cannot be summed in transit, so an average is an all-gather of them.
    `on_grid`: real messages contain its rounded numbers in fewer bits, by `Encoded.grid`.
    Messages are numbered 0, 1, ... per slot, the vector's position in the payload. A node outside
    the round sends nothing, and its state does not change.
    """

    gathers: ClassVar[bool] = False
    on_grid: ClassVar[bool] = False

    def open(self, me: Node) -> Channel:
        """Open a channel of one node."""
        return MessageChannel(me, self)

    def init(self, vector: Vector, random: Random) -> State:
        """Make the initial state of a slot; `random`: a source from `generator`."""
        return None

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Return arrays to send, indices of their entries (None: all), and the state."""
        raise NotImplementedError

    def add(self, total: Vector, data: Data, places: Any) -> Vector:
        """Add a message's vector to `total`, perhaps in place; return the sum."""
        return total + data[0]

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of message `number`, for a vector of `parameters` entries.

        `width`: bytes of an entry; `share`: the share of entries in the message, None if unknown.
        """
        raise NotImplementedError

    def message_bytes(self, me: Node, share: float, number: int, sent: float | None) -> float:
        """Return the bytes of a message for a `share` of the model: by `bytes`, or by `size`."""
        if self.bytes is not None:
            return self.bytes * share
        return self.size(share * me.parameters, me.bytes_per_parameter, number, sent)

    def layout(self, entries: int, number: int) -> tuple[int | None, int]:
        """Return a message's most entries (None: unknown), and an int8's bits."""
        return None, 8


class MessageChannel:
    """The channel of one node, where each vector is one message."""

    def __init__(self, me: Node, codec: Any) -> None:
        self._me, self._codec = me, codec
        self._random = codec.generator(me)
        self._states: dict[int, State] = {}
        self._numbers: Counter[int] = Counter()
        # looked up once, because the lookup takes longer than most decompressions
        self._xp: Any = None if isinstance(me.start, complex) else array_namespace(me.start)

    def start_mean(self, value: Payload) -> Handle:
        """Compress, and start the average, or the gather that replaces it."""
        start = self._me.start_gather if self._codec.gathers else self._me.start_mean
        return start(self._pack(value))

    def mean(self, value: Payload) -> Awaitable[Any]:
        """Average and wait."""
        return self.wait(self.start_mean(value))

    async def wait(self, handle: Handle) -> Any:
        """Wait, and decompress."""
        arrived = await self._me.wait(handle)
        return self._average(arrived) if self._codec.gathers else self._unpack(arrived)

    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Return whether the average has finished on every worker."""
        return self._me.finished(handle)

    def arrived(self, handle: Handle) -> Awaitable[bool]:
        """Return whether the average has finished on this worker."""
        return self._me.arrived(handle)

    def send(self, to: int, value: Payload) -> None:
        """Compress and send."""
        self._me.send(to, self._pack(value))

    def request(self, to: int, value: Payload) -> Awaitable[Payload]:
        """Compress, send, and wait for the answer, which is not compressed."""
        return self._me.request(to, self._pack(value))

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Receive and decompress."""
        sender, value = await self._me.receive(source)
        return sender, self._unpack(value)

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """Receive and decompress, if a message arrives before the handle is done."""
        message = await self._me.receive_before(handle, source)
        return None if message is None else (message[0], self._unpack(message[1]))

    def _pack(self, value: Payload) -> Payload:
        if isinstance(value, tuple):
            return tuple(self._encode(slot, entry) for slot, entry in enumerate(value))
        return self._encode(0, value)

    def _encode(self, slot: int, value: Payload) -> Payload:
        if isinstance(value, int | float):
            return value
        me, codec = self._me, self._codec
        share = share_of(value, me.start)
        me.work(codec.seconds(me, share)[0])
        number = self._numbers[slot]
        self._numbers[slot] += 1
        if isinstance(value, complex):
            data, places, sent_share = (value,), None, None
            layout: tuple[int | None, int] = None, 8
        else:
            if not number:
                self._states[slot] = codec.init(value, self._random)
            data, places, state = codec.encode(value, self._states[slot], number)
            if not me.resting:
                self._states[slot] = state
            entries = value.shape[-1]
            sent_share = None if places is None else places.shape[-1] / entries
            layout = codec.layout(entries, number)
        size = codec.message_bytes(me, share, number, sent_share)
        grid = getattr(codec, "kind", "") if codec.on_grid else ""
        return Encoded(data, places, share, size, *layout, grid)

    def _unpack(self, value: Payload) -> Payload:
        if isinstance(value, tuple):
            return tuple(map(self._unpack, value))
        return self._sum((value,)) if isinstance(value, Encoded) else value

    def _average(self, values: tuple[Payload, ...]) -> Payload:
        if isinstance(values[0], tuple):
            return tuple(map(self._average, zip(*values, strict=True)))
        if isinstance(values[0], Encoded):
            total = self._sum(values)
            return total if isinstance(total, complex) else total / len(values)
        if isinstance(values[0], Latest):
            return max(values)
        return sum(values[1:], values[0]) / len(values)

    def _sum(self, messages: tuple[Encoded, ...]) -> Vector:
        """Add the vectors of messages in rank order, as every engine does."""
        first = messages[0]
        seconds = self._codec.seconds(self._me, first.share)[1]
        for _ in messages:
            self._me.work(seconds)
        if isinstance(first.data[0], complex):
            return first.data[0]
        start = self._me.start
        size = round(first.share * start.shape[-1])
        total = self._xp.zeros((*start.shape[:-1], size), dtype=start.dtype, device=device(start))
        for message in messages:
            total = self._codec.add(total, message.data, message.places)
        return total
