"""Convert payloads to flat buffers for sending, and back.

A payload's skeleton has a `Slot` in place of every tensor and number. Numbers (losses, clocks) must
be averaged exactly and in rank order, as in the simulator, or decisions based on them would differ.
So every rank writes its numbers into separate places, with zeros elsewhere, each as three parts
that stay exact in a sum of such buffers.

A message is a head, which all messages from one place in a program share, and a body. The head of a
message to one node is sent as a pickle (`messages`), which may run code where it is read. It comes
from a node of the same run, over a group that only processes with the run's store join. The
connection is loopback on one machine, else the launcher's network, which the user must trust
(docs/concepts/trust.md).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.simulator.engines import payloads
from paceline.simulator.programs.codecs.dense import BF16, BLOCK, FP8, Int4, Int8, Rounded, in_rows
from paceline.simulator.programs.effects import Encoded, Latest, Payload

from ..host.device import fetch, host, put

PARTS = 3  # of a number: 3 x 24 bits hold the 53 of a double
BYTE = 8  # bits
EXACT = (torch.float32, torch.float64)  # dtypes that hold the parts
PLACES = torch.int32  # dtype of places in messages, whose bytes codecs count so
NIBBLE = 4  # bits
GRIDS: dict[str, tuple[Rounded, torch.dtype]] = {
    "bf16": (BF16(), torch.bfloat16),
    "fp8": (FP8(), torch.float8_e4m3fn),
    "int8": (Int8(), torch.int8),
    "int4": (Int4(), torch.int8),
}  # codecs by `Encoded.grid`, and a dtype that holds their numbers


class Slot(NamedTuple):
    """The place of a tensor or number in a skeleton, by its kind.

    `bits`, `shape`, `width`: of a tensor of integers of `width` bytes, of which only the low bits
    of each entry are sent. `rounded`: of a vector that is sent in the bits of its grid.
    """

    kind: str
    place: int
    bits: int = BYTE
    shape: tuple[int, ...] = ()
    width: int = 1
    rounded: "Grid | None" = None


class Grid(NamedTuple):
    """Blocks of a vector as bytes: scales (none if all are bf16), then numbers."""

    kind: str
    dtype: torch.dtype

    @property
    def block(self) -> int:
        """Return the bytes of a block."""
        codec, _ = GRIDS[self.kind]
        return codec.bits * BLOCK // BYTE + (0 if codec.largest is None else self.dtype.itemsize)

    def encode(self, vector: Tensor) -> Tensor:
        """Return the bytes of a rounded vector, with the last block padded by zeros."""
        codec, narrow = GRIDS[self.kind]
        numbers, scales = in_rows(vector, BLOCK), []
        if codec.largest is not None:
            scale = codec.scales(numbers)
            numbers, scales = numbers / scale, [scale.view(torch.uint8)]
        codes = numbers.to(narrow).view(torch.uint8)
        if codec.bits == NIBBLE:
            codes = codes[:, ::2] << NIBBLE | codes[:, 1::2] & (1 << NIBBLE) - 1
        return torch.cat([*scales, codes], dim=1).reshape(-1)

    def decode(self, body: Tensor) -> Tensor:
        """Return the vector of whole blocks."""
        codec, narrow = GRIDS[self.kind]
        codes = body.reshape(-1, self.block)
        width = self.block - codec.bits * BLOCK // BYTE
        scale, codes = codes[:, :width].contiguous(), codes[:, width:].contiguous()
        if codec.bits == NIBBLE:
            signed = codes.view(torch.int8)
            codes = torch.stack([signed >> NIBBLE, signed << NIBBLE >> NIBBLE], dim=2).flatten(1)
        numbers = codes.view(narrow).to(self.dtype)
        return (numbers * scale.view(self.dtype) if width else numbers).reshape(-1)

    def mean(self, bodies: Tensor) -> Tensor:
        """Return the bytes of the rounded mean of vectors, a row of bytes each."""
        first, *others = map(self.decode, bodies)
        for other in others:  # in rank order, as in every engine
            first = first + other
        return self.encode(GRIDS[self.kind][0].rounded(first / len(bodies)))


class Packed(NamedTuple):
    """A payload taken apart; `places`: indices of sparse tensors' entries."""

    skeleton: Any
    tensors: list[Tensor]
    places: list[Tensor]
    numbers: list[float]

    @property
    def grid(self) -> Grid | None:
        """Return the grid on which a mean's vectors are rounded; all are, or none."""
        parts = self.skeleton if type(self.skeleton) is tuple else (self.skeleton,)
        first = next((part for part in parts if isinstance(part, Encoded)), None)
        return first.data[0].rounded if first is not None else None


# the skeleton; the numbers of tensors without places, and of numbers; each tensor's dtype and axes
Head = tuple[Any, int, int, list[tuple[torch.dtype, int]]]


def take_apart(payload: Payload) -> Packed:
    """Return the skeleton, tensors and numbers of a payload."""
    packed = Packed(None, [], [], [])
    return packed._replace(skeleton=_strip(payload, packed))


def _strip(payload: Payload, packed: Packed) -> Any:
    if isinstance(payload, Tensor):
        packed.tensors.append(payload)
        return Slot("tensor", len(packed.tensors) - 1)
    if isinstance(payload, Encoded):
        data = tuple(_strip_entry(part, payload, packed) for part in payload.data)
        size = _strip(payload.bytes, packed)
        places = payload.places
        if places is not None:
            packed.places.append(torch.as_tensor(places).to(PLACES))
            places = Slot("places", len(packed.places) - 1)
        return replace(payload, data=data, places=places, bytes=size)
    if isinstance(payload, tuple):
        return tuple(_strip(part, packed) for part in payload)
    latest = isinstance(payload, Latest)
    packed.numbers.append(payload if latest else float(payload))
    return Slot("latest" if latest else "number", len(packed.numbers) - 1)


def _strip_entry(entry: Tensor, message: Encoded, packed: Packed) -> Any:
    width, bits = entry.element_size(), message.bits
    if message.grid:
        grid = Grid(message.grid, entry.dtype)
        packed.tensors.append(grid.encode(entry))
        return Slot("rounded", len(packed.tensors) - 1, shape=tuple(entry.shape), rounded=grid)
    if entry.is_floating_point() or bits == BYTE * width:
        return _strip(entry, packed)
    codes = host(entry).numpy().astype(f">i{width}").view(np.uint8).reshape(-1, width)
    low = np.unpackbits(codes, axis=1)[:, -bits:]
    packed.tensors.append(torch.from_numpy(np.packbits(low)))
    return Slot("levels", len(packed.tensors) - 1, bits, tuple(entry.shape), width)


def _widen(levels: Slot, squeezed: Tensor) -> Tensor:
    """Undo `_strip_entry`; the highest bit is the sign."""
    if levels.rounded is not None:
        return levels.rounded.decode(squeezed)[: levels.shape[0]]
    entries, width = prod(levels.shape), levels.width
    low = np.unpackbits(host(squeezed).numpy(), count=entries * levels.bits)
    high = np.zeros((entries, BYTE * width), np.uint8)
    high[:, : levels.bits] = low.reshape(entries, levels.bits)
    codes = np.packbits(high, axis=1).view(f">i{width}").astype(f"=i{width}")
    wide = codes.reshape(levels.shape) >> (BYTE * width - levels.bits)
    return put(torch.from_numpy(wide), squeezed.device)


def put_together(packed: Packed) -> Payload:
    """Undo `take_apart`; numbers come back as floats, places as int64 tensors."""
    return _fill(packed.skeleton, packed)


def _fill(skeleton: Any, packed: Packed) -> Payload:
    if isinstance(skeleton, Slot):
        if skeleton.kind in ("number", "latest"):
            number = packed.numbers[skeleton.place]
            return Latest(number) if skeleton.kind == "latest" else number
        if skeleton.kind == "places":
            return packed.places[skeleton.place].long()
        tensor = packed.tensors[skeleton.place]
        return tensor if skeleton.kind == "tensor" else _widen(skeleton, tensor)
    if isinstance(skeleton, Encoded):
        places = skeleton.places
        return replace(
            skeleton,
            data=tuple(_fill(part, packed) for part in skeleton.data),
            places=None if places is None else _fill(places, packed),
            bytes=_fill(skeleton.bytes, packed),
        )
    if isinstance(skeleton, tuple):
        return tuple(_fill(part, packed) for part in skeleton)
    return skeleton


def split(number: float, dtype: torch.dtype) -> list[float]:
    """Split a number into `PARTS` numbers of `dtype` whose sum is exact."""
    if dtype == torch.float64 or not np.isfinite(np.float32(number)):
        return [number, 0.0, 0.0]
    parts = []
    for _ in range(PARTS):
        part = float(np.float32(number))
        parts.append(part)
        number -= part
    return parts


def write_numbers(
    exact: Sequence[float], numbers: Sequence[float], rank: int, ranks: int, like: Tensor
) -> Tensor:
    """Write one rank's numbers to its places in a buffer that is summed.

    `exact`: numbers that every dtype holds exactly, in one part.
    """
    parts = [*exact, *(part for number in numbers for part in split(number, like.dtype))]
    before, after = [0.0] * (rank * len(parts)), [0.0] * ((ranks - 1 - rank) * len(parts))
    return torch.tensor(before + parts + after, dtype=like.dtype)


def read_numbers(buffer: Tensor, ranks: int, exact: int) -> list[list[float]]:
    """Read each rank's numbers from the sum of buffers; `exact`: in one part."""
    parts = host(buffer).to(torch.float64).reshape(ranks, -1).tolist()
    return [
        row[:exact] + [sum(row[at : at + PARTS]) for at in range(exact, len(row), PARTS)]
        for row in parts
    ]


def head(packed: Packed) -> Head:
    """Describe the body of a payload, except the lengths of its tensors."""
    about = [(tensor.dtype, tensor.dim()) for tensor in (*packed.tensors, *packed.places)]
    return packed.skeleton, len(packed.tensors), len(packed.numbers), about


def body(packed: Packed) -> Tensor:
    """Encode numbers and tensors as a tensor of bytes on the host."""
    coming = [fetch(tensor) for tensor in (*packed.tensors, *packed.places)]
    tensors = [wait().contiguous() for wait in coming]
    lengths = [float(length) for tensor in tensors for length in tensor.shape]
    plain = torch.tensor([*packed.numbers, *lengths], dtype=torch.float64)
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in (plain, *tensors)])


def read(head: Head, body: Tensor, device: torch.device) -> Packed:
    """Undo `head` and `body`; the result shares no memory with the body."""
    skeleton, count, numbers, about = head
    start = 8 * (numbers + sum(dims for _, dims in about))
    plain = body[:start].clone().view(torch.float64).tolist()
    lengths = map(int, plain[numbers:])
    parts = []
    for dtype, dims in about:
        tensor = torch.empty(tuple(islice(lengths, dims)), dtype=dtype)
        flat = tensor.view(-1).view(torch.uint8)
        flat.copy_(body[start : start + len(flat)])
        start += len(flat)
        parts.append(put(tensor, device))
    return Packed(skeleton, parts[:count], parts[count:], plain[:numbers])


class TensorMeter(payloads.Meter):
    """A meter of the bytes of payloads with tensors, by the scenario's model size."""

    def __call__(self, payload: Payload) -> float:
        """Return the same bytes as the simulator's meter."""
        if isinstance(payload, Tensor):
            return payload.numel() * self._entry
        return super().__call__(payload)
