"""Average, cut, join and weigh payloads, and protect them from changes.

Sums run in rank order in every engine, so that results are equal to the last bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ..programs.effects import NOTHING, Encoded, Latest, Payload, Pieces, Vector


class VectorShare(complex):
    """A piece of a time-only vector; `share`: its fraction of the whole vector."""

    share: float


def mean(values: Sequence[Payload]) -> Payload:
    """Average payloads of equal shape in rank order, and tuples entry by entry.

    The average of `Latest` clocks is the latest clock.
    """
    first = values[0]
    if isinstance(first, complex):
        return first
    if isinstance(first, tuple):
        return tuple(mean(entries) for entries in zip(*values, strict=True))
    if isinstance(first, Encoded):
        return replace(first, data=mean([value.data for value in values]))
    if isinstance(first, Latest):
        return max(values)
    total = first
    for value in values[1:]:
        total = total + value
    return total / len(values)


def progress(pieces: Pieces) -> tuple[list[int], int]:
    """Return how much of a vector is done after each piece, and the total."""
    if isinstance(pieces, int):
        return list(range(1, pieces + 1)), pieces
    return list(accumulate(pieces)), sum(pieces)


def splits(pieces: Pieces, entries: int) -> int | tuple[int, ...]:
    """Return the number of equal pieces, or the entries before which to cut.

    Pieces of given sizes get entries in proportion, and at least one.
    """
    if isinstance(pieces, int):
        return pieces
    done, total = progress(pieces)
    cuts, last = [], entries
    for index, part in enumerate(done[:-1]):
        last = max(min(entries - round(entries * part / total), last - 1), len(done) - 1 - index)
        cuts.append(last)
    return tuple(reversed(cuts))


def cut(vector: Vector, pieces: Pieces) -> list[Vector]:
    """Cut into contiguous pieces, equal or by size, the last entries first."""
    if isinstance(vector, complex):
        sizes, total = ([1] * pieces, pieces) if isinstance(pieces, int) else (pieces, sum(pieces))
        parts = [VectorShare() for _ in sizes]
        for part, size in zip(parts, sizes, strict=True):
            part.share = size / total
        return list(parts)
    return list(np.array_split(vector, splits(pieces, len(vector))))[::-1]


def join(pieces: Sequence[Vector]) -> Vector:
    """Join the pieces that `cut` made."""
    if isinstance(pieces[0], complex):
        return NOTHING
    return np.concatenate(pieces[::-1])


def protect(payload: Payload) -> None:
    """Make the arrays of a payload read-only."""
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


class Meter:
    """The size of payloads: vectors by their share of the model, scalars 8 bytes."""

    def __init__(self, model_bytes: float, dimension: int) -> None:
        self.model_bytes = model_bytes
        self._entry = model_bytes / dimension

    def __call__(self, payload: Payload) -> float:
        """Return the bytes of `payload` on the network."""
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
