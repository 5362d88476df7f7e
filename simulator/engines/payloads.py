"""Operations on payloads: average, cut, join, weigh, and protect them from changes.

Sums run in rank order in every engine, so that results are equal to the last bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.simulator.programs.effects import NOTHING, Encoded, Payload, Vector


class VectorShare(complex):
    """A piece of a time-only vector; `share`: its fraction of the whole vector."""

    share: float


def mean(values: Sequence[Payload]) -> Payload:
    """Return the average of equal-shaped payloads, summed in rank order; tuples by entry."""
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
    """Return a payload's arrays; the base of a view comes before the view."""
    if isinstance(payload, tuple):
        return [array for entry in payload for array in arrays(entry)]
    if isinstance(payload, Encoded):
        return arrays((*payload.data, payload.places))
    if not isinstance(payload, np.ndarray):
        return []
    return [payload] if payload.base is None else [*arrays(payload.base), payload]


class Guard:
    """Keeps arrays read-only while any collective needs them, by counting its holds."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}  # holds by id; the holder keeps the array alive

    def hold(self, payload: Payload) -> list[np.ndarray[Any, Any]]:
        """Make a payload's arrays read-only; return those to `release`, not read-only for good."""
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
        """Give up holds; an array without any may be changed again."""
        for array in held:
            self._held[id(array)] -= 1
            if not self._held[id(array)]:
                del self._held[id(array)]
                if array.base is None or array.base.flags.writeable:
                    array.flags.writeable = True


class Meter:
    """Bytes of a payload: vectors in proportion to the model, scalars eight bytes each."""

    def __init__(self, model_bytes: float, dimension: int) -> None:
        self.model_bytes = model_bytes
        self._entry = model_bytes / dimension

    def __call__(self, payload: Payload) -> float:
        """Return the bytes that `payload` stands for."""
        if isinstance(payload, np.ndarray):
            return payload.size * self._entry
        if isinstance(payload, VectorShare):
            return payload.share * self.model_bytes
        if isinstance(payload, complex):
            return self.model_bytes
        if isinstance(payload, tuple):
            return sum(map(self, payload))
        if isinstance(payload, Encoded):
            return payload.bytes
        return 8.0
