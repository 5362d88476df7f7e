"""Mini-batches: the choice of samples, and the samples as tensors on a device."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from paceline.simulator.distributions.random_streams import Purpose, generator

from ..host.device import put
from .data import Data

CHUNK = 1000  # samples evaluated at a time

Pairs = tuple[Tensor, Tensor]
"""Samples and their labels."""


class Epochs:
    """The order in which each worker goes through the `samples` training samples.

    Without `shares` all workers share one order per epoch, of which worker r of m takes every m-th
    sample from r on, as torch's DistributedSampler does, but without padding: an epoch has every
    sample once. With `shares`, a worker goes through its own, in an order of its own.
    """

    def __init__(
        self, samples: int, workers: int, seed: int, shares: Sequence[np.ndarray] | None
    ) -> None:
        self._samples, self._workers, self._seed, self._shares = samples, workers, seed, shares
        self._common = lru_cache(4)(self._order)  # workers are in about the same epoch

    def epoch(self, rank: int, number: int) -> np.ndarray:
        """Return the indices of the samples of worker `rank` in an epoch, in order."""
        if self._shares is None:
            return self._common(number)[rank :: self._workers]
        own = generator(self._seed, Purpose.BATCH, rank, number)
        return own.permutation(self._shares[rank])

    def _order(self, number: int) -> np.ndarray:
        shared = generator(self._seed, Purpose.BATCH, self._workers, number)  # no worker's rank
        return shared.permutation(self._samples)

    def batches(self, rank: int, size: int) -> Iterator[np.ndarray]:
        """Yield mini-batches of worker `rank`, all of `size`: one can end in the next epoch."""
        number, rows = 0, self.epoch(rank, 0)
        while True:
            while len(rows) < size:
                number += 1
                rows = np.concatenate([rows, self.epoch(rank, number)])
            yield rows[:size]
            rows = rows[size:]


class DeviceData:
    """A data set on a device: stored unchanged, standardised batch by batch."""

    def __init__(self, data: Data, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._train, self._test = (
            (self._put(x), self._put(y))
            for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y))
        )
        self._centre, self._spread = (
            self._put(each).to(dtype) for each in (data.centre, data.spread)
        )

    def train(self, rows: np.ndarray) -> Pairs:
        """Return training samples (..., *shape) and labels (...) with indices `rows` (...)."""
        return self._pick(self._train, self._put(rows))

    def train_chunks(self, rows: np.ndarray) -> Iterator[Pairs]:
        """Yield the training samples with indices `rows`, `CHUNK` at a time."""
        return self._chunks(self._train, rows)

    def test_chunks(self) -> Iterator[Pairs]:
        """Yield all samples of the test set, `CHUNK` at a time."""
        return self._chunks(self._test, np.arange(len(self._test[1])))

    def _chunks(self, samples: Pairs, rows: np.ndarray) -> Iterator[Pairs]:
        for first in range(0, len(rows), CHUNK):
            yield self._pick(samples, self._put(rows[first : first + CHUNK]))

    def _pick(self, samples: Pairs, rows: Tensor) -> Pairs:
        x, y = samples
        return (x[rows].to(self._dtype) - self._centre) / self._spread, y[rows]

    def _put(self, array: np.ndarray) -> Tensor:
        return put(torch.from_numpy(array), self._device)
