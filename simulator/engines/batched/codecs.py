"""Run codecs on the vectors of all workers and seeds at once.

A codec compresses each row with the code that compresses one worker's vector (`Codec.rowwise`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...distributions import random_streams
from ...distributions.random_streams import Purpose
from ...programs.codecs.channel import Opens
from ...programs.effects import Encoded, Handle, Node, Payload
from .arrays import Stack, Unsupported


class RowGenerator:
    """Random numbers per worker and seed, or `shared` by all workers of a seed."""

    def __init__(
        self, seeds: Sequence[int], ranks: Sequence[int], number: int, shared: bool
    ) -> None:
        keys = [(Purpose.SHARED,) if shared else (Purpose.PROGRAM, rank) for rank in ranks]
        self._rows = [
            [random_streams.generator(seed, *key, number) for key in keys] for seed in seeds
        ]

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw uniform numbers of `shape`, whose first axes are seeds and workers."""
        return self._by_row("random", shape[2:])

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw an array of normal numbers for each row."""
        return self._by_row("standard_normal", shape)

    def choice(self, *among: Any, **how: Any) -> np.ndarray:
        """Draw a choice for each row."""
        return self._by_row("choice", *among, **how)

    def _by_row(self, name: str, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.array(
            [[getattr(row, name)(*args, **kwargs) for row in rows] for rows in self._rows]
        )


class RowNode:
    """The node of a codec's channel; its vectors have one row per worker."""

    resting = False

    def __init__(self, me: Any) -> None:
        self._me = me
        self.shape = me.seeds, me.workers
        self.start = np.broadcast_to(me.start.of, (me.seeds, 1, me.start.of.shape[-1]))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the node itself."""
        return getattr(self._me, name)

    def generator(self, *, shared: bool = False) -> Any:
        """Return a generator of numbers for each row."""
        return self._me.row_generator(shared=shared)


class RowCodec:
    """A codec for all workers of all seeds at once."""

    def __init__(self, codec: Opens) -> None:
        self._codec = codec

    def open(self, me: Node) -> "RowChannel":
        """Open a channel for all nodes."""
        return RowChannel(RowNode(me), self._codec)


class RowChannel:
    """A channel through which programs move a `Stack`."""

    def __init__(self, me: RowNode, codec: Opens) -> None:
        node: Any = me
        self._me, self._channel = me, codec.open(node)

    def start_mean(self, value: Payload) -> Handle:
        """Compress every row, and start the average."""
        return self._channel.start_mean(self._rows(value))

    async def wait(self, handle: Handle) -> Any:
        """Wait for an average, and decompress it."""
        result = await self._channel.wait(handle)
        return tuple(map(_stacked, result)) if isinstance(result, tuple) else _stacked(result)

    async def finished(self, handle: Handle) -> bool:
        """Return whether the average has finished on every worker."""
        return bool(await self._channel.finished(handle))

    async def mean(self, value: Payload) -> Any:
        """Average vectors, and wait for the result."""
        return await self.wait(self.start_mean(value))

    def _rows(self, value: Payload) -> Payload:
        if type(value) is Stack and value is not self._me.samples:
            return np.broadcast_to(value.of, (*self._me.shape, value.of.shape[-1]))
        if type(value) is tuple:
            return tuple(map(self._rows, value))
        if type(value) in (int, float):
            return value
        raise Unsupported("its program creates vectors itself")


def _stacked(value: Any) -> Any:
    return Stack(value) if isinstance(value, np.ndarray) else value


def by_worker(value: Payload, workers: int) -> tuple[Payload, ...]:
    """Return each worker's payload of a gather. Raises Unsupported for bare vectors."""
    if type(value) is tuple:
        return tuple(zip(*(by_worker(entry, workers) for entry in value), strict=True))
    if type(value) in (int, float):
        return (value,) * workers
    if type(value) is not Encoded:
        raise Unsupported("its vectors are gathered, not averaged")

    def part(rank: int, array: Any) -> Any:
        return array[:, rank : rank + 1]

    return tuple(
        replace(
            value,
            data=tuple(part(rank, array_) for array_ in value.data),
            places=None if value.places is None else part(rank, value.places),
        )
        for rank in range(workers)
    )


def mean(value: Encoded) -> Encoded:
    """Average the workers' messages, summed in rank order as in every engine."""

    def average(rows: np.ndarray) -> np.ndarray:
        total: np.ndarray = rows[:, :1]
        for rank in range(1, rows.shape[1]):
            total = total + rows[:, rank : rank + 1]
        return np.asarray(total / rows.shape[1])

    return replace(value, data=tuple(map(average, value.data)))
