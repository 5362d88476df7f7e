"""Payloads as flat buffers: taking them apart to travel, and putting them together again.

A payload's skeleton has a `Slot` in the place of each tensor and number. Numbers (losses, clocks)
must be averaged exactly and in rank order, as the simulator does, or decisions based on them would
differ: every rank writes its own into places of its own, zeros elsewhere, each number as three
parts that a sum of such buffers leaves exact.

A message's head is a pickle, which may run code where it is read. It comes from a rank of the same
run, over a group that only the processes with the run's own store have joined: on one machine by
loopback, on several as a launcher says, over a network that the user must trust
(docs/concepts/trust.md).
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.simulator.engines import payloads
from paceline.simulator.programs.effects import Encoded, Payload

PARTS = 3  # of a number: 3 x 24 bits hold the 53 of a double
EXACT = (torch.float32, torch.float64)  # dtypes that hold the parts
PLACES = torch.int32  # dtype of places in messages, as codecs count their bytes


class Slot(NamedTuple):
    """Stands for the `place`-th tensor ("tensor", "places") or number ("number") of a payload."""

    kind: str
    place: int


class Packed(NamedTuple):
    """A payload taken apart. `places`: indices of sparse tensors' entries in the model."""

    skeleton: Any
    tensors: list[Tensor]
    places: list[Tensor]
    numbers: list[float]


def take_apart(payload: Payload) -> Packed:
    """Return the skeleton, tensors and numbers of a payload."""
    packed = Packed(None, [], [], [])
    return packed._replace(skeleton=_strip(payload, packed))


def _strip(payload: Payload, packed: Packed) -> Any:
    if isinstance(payload, Tensor):
        packed.tensors.append(payload)
        return Slot("tensor", len(packed.tensors) - 1)
    if isinstance(payload, Encoded):
        data = tuple(_strip(each, packed) for each in payload.data)
        size = _strip(payload.bytes, packed)
        places = payload.places
        if places is not None:
            packed.places.append(torch.as_tensor(places).to(PLACES))
            places = Slot("places", len(packed.places) - 1)
        return replace(payload, data=data, places=places, bytes=size)
    if isinstance(payload, tuple):
        return tuple(_strip(each, packed) for each in payload)
    packed.numbers.append(float(payload))
    return Slot("number", len(packed.numbers) - 1)


def put_together(packed: Packed) -> Payload:
    """Undo `take_apart`; numbers come back as floats, places as int64 tensors."""
    return _fill(packed.skeleton, packed)


def _fill(skeleton: Any, packed: Packed) -> Payload:
    if isinstance(skeleton, Slot):
        if skeleton.kind == "tensor":
            return packed.tensors[skeleton.place]
        if skeleton.kind == "places":
            return packed.places[skeleton.place].long()
        return packed.numbers[skeleton.place]
    if isinstance(skeleton, Encoded):
        places = skeleton.places
        return replace(
            skeleton,
            data=tuple(_fill(each, packed) for each in skeleton.data),
            places=None if places is None else _fill(places, packed),
            bytes=_fill(skeleton.bytes, packed),
        )
    if isinstance(skeleton, tuple):
        return tuple(_fill(each, packed) for each in skeleton)
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


def write_numbers(numbers: Sequence[float], rank: int, ranks: int, like: Tensor) -> Tensor:
    """Write one rank's numbers to its places of a buffer, to be summed over the ranks."""
    parts = [part for number in numbers for part in split(number, like.dtype)]
    buffer = torch.zeros((ranks, len(parts)), dtype=like.dtype)
    buffer[rank] = torch.tensor(parts, dtype=like.dtype)
    return buffer.flatten()


def read_numbers(buffer: Tensor, ranks: int) -> list[list[float]]:
    """Read the numbers of each rank from the sum of the buffers of `write_numbers`."""
    parts = buffer.to("cpu", torch.float64).reshape(ranks, -1, PARTS)
    return [[_sum(each) for each in own] for own in parts.tolist()]


def _sum(parts: Sequence[float]) -> float:
    return parts[0] + parts[1] + parts[2]


def to_bytes(packed: Packed) -> Tensor:
    """Encode a payload as a tensor of bytes on the host: its skeleton, then its tensors."""
    tensors = [each.detach().cpu().contiguous() for each in (*packed.tensors, *packed.places)]
    about = [(each.dtype, tuple(each.shape)) for each in tensors]
    head = pickle.dumps((packed.skeleton, len(packed.tensors), packed.numbers, about))
    parts = [torch.tensor([len(head)], dtype=torch.int64).view(torch.uint8), _bytes(head)]
    return torch.cat([*parts, *(each.view(-1).view(torch.uint8) for each in tensors)])


def from_bytes(message: Tensor, device: torch.device) -> Packed:
    """Undo `to_bytes`; nothing of the result shares memory with the message."""
    length = int.from_bytes(message[:8].numpy().tobytes(), "little")
    skeleton, count, numbers, about = pickle.loads(message[8 : 8 + length].numpy().tobytes())
    found, start = [], 8 + length
    for dtype, shape in about:
        tensor = torch.empty(shape, dtype=dtype)
        flat = tensor.view(-1).view(torch.uint8)
        flat.copy_(message[start : start + len(flat)])
        start += len(flat)
        found.append(tensor.to(device))
    return Packed(skeleton, found[:count], found[count:], numbers)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class TensorMeter(payloads.Meter):
    """Counts the bytes that a payload of tensors stands for, by the scenario's model size."""

    def __call__(self, payload: Payload) -> float:
        """Return bytes as the simulator's meter does."""
        if isinstance(payload, Tensor):
            return payload.numel() * self._entry
        return super().__call__(payload)
