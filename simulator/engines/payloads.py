"""What engines do to payloads: average, gather, cut, join and protect them.

Sums run in rank order in every engine, so that their results are equal to the last bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.simulator.programs.effects import NOTHING, Encoded, Payload, Vector


class VectorShare(complex):
    """A piece of a time-only vector, which still knows its share of the whole."""

    share: float


def mean(values: Sequence[Payload]) -> Payload:
    """Average of equal-shaped payloads, added up in rank order; tuples entry by entry."""
    first = values[0]
    if isinstance(first, complex):
        return first
    if isinstance(first, tuple):
        return tuple(mean(entries) for entries in zip(*values, strict=True))
    if isinstance(first, Encoded):
        return replace(first, data=mean([value.data for value in values]))
    total = first
    for value in values[1:]:
        total = total + value
    return total / len(values)


def cut(vector: Vector, pieces: int) -> list[Vector]:
    """Cut into contiguous pieces of nearly equal size, the last entries first."""
    if isinstance(vector, complex):
        parts = [VectorShare() for _ in range(pieces)]
        for part in parts:
            part.share = 1 / pieces
        return list(parts)
    return list(np.array_split(vector, pieces))[::-1]


def join(pieces: Sequence[Vector]) -> Vector:
    """Undo `cut`."""
    if isinstance(pieces[0], complex):
        return NOTHING
    return np.concatenate(pieces[::-1])


def protect(payload: Payload) -> None:
    """Make the arrays of a payload read-only for good."""
    for array in arrays(payload):
        array.flags.writeable = False


def arrays(payload: Payload) -> list[np.ndarray[Any, Any]]:
    """The arrays of a payload, those first whose memory others are views of."""
    if isinstance(payload, tuple):
        return [array for entry in payload for array in arrays(entry)]
    if isinstance(payload, Encoded):
        return arrays((*payload.data, payload.places))
    if not isinstance(payload, np.ndarray):
        return []
    return [payload] if payload.base is None else [*arrays(payload.base), payload]


class Guard:
    """Keeps arrays read-only while any collective needs them."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}  # holds by id; who holds an array keeps it alive

    def hold(self, payload: Payload) -> list[np.ndarray[Any, Any]]:
        """Make a payload's arrays read-only; return those to `release`, the ones ours to change."""
        held = []
        for array in arrays(payload):
            if array.flags.writeable or id(array) in self._held:
                array.flags.writeable = False
                self._held[id(array)] = self._held.get(id(array), 0) + 1
                held.append(array)
        return held

    def keep(self, payload: Payload) -> None:
        """Make a payload's arrays read-only for good."""
        for array in arrays(payload):
            array.flags.writeable = False
            if id(array) in self._held:
                self._held[id(array)] += 1

    def release(self, held: Sequence[np.ndarray[Any, Any]]) -> None:
        """Give up holds; what nobody holds any more may be changed again."""
        for array in held:
            self._held[id(array)] -= 1
            if not self._held[id(array)]:
                del self._held[id(array)]
                if array.base is None or array.base.flags.writeable:
                    array.flags.writeable = True


class Meter:
    """Bytes of a payload: vectors in proportion to the model, scalars eight bytes each."""

    def __init__(self, model_bytes: float, dimension: int) -> None:
        self.whole = model_bytes
        self._entry = model_bytes / dimension

    def __call__(self, payload: Payload) -> float:
        """Bytes that `payload` stands for."""
        if isinstance(payload, np.ndarray):
            return payload.size * self._entry
        if isinstance(payload, VectorShare):
            return payload.share * self.whole
        if isinstance(payload, complex):
            return self.whole
        if isinstance(payload, tuple):
            return sum(map(self, payload))
        if isinstance(payload, Encoded):
            return payload.bytes
        return 8.0
