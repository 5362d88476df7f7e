"""Stochastic gradients of a model: one worker's stream of mini-batches."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.simulator.programs.effects import Vector

from ..host.device import generators
from .data import DeviceData
from .flat import Buffers, Flat, Freed

CPU = torch.device("cpu")
SEEDED = threading.RLock()  # guards the random numbers that all threads of the process share


@contextmanager
def seeded(key: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed torch on the CPU and on `device` with `key`, one thread at a time."""
    devices = [] if device.type == "cpu" else [device.index]
    kind = "cuda" if device.type == "cpu" else device.type
    with SEEDED, torch.random.fork_rng(devices=devices, device_type=kind):
        # torch.manual_seed would seed every device
        torch.default_generator.manual_seed(key)
        for index in devices:
            generators(device)[index].manual_seed(key)
        yield


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one core, so that sums do not depend on the number of cores."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(eq=False)
class TorchSource:
    """One worker's gradients on its stream of mini-batches, `batches`.

    `flat` is the model, which all workers share; `worker_buffers` are its own. A gradient is
    summed over `accumulation` micro-batches; `weight_decay` times the parameters is added to it,
    but not to the losses. `key(k)`: seed of the k-th step's random numbers; None if the model draws
    none.
    """

    flat: Flat
    samples: DeviceData
    batches: Iterator[np.ndarray]
    worker_buffers: Buffers
    weight_decay: float
    key: Callable[[int], int] | None
    accumulation: int = 1
    step: int = 0

    # For the simulator

    def gradient(self, x: Vector) -> np.ndarray:
        """Return the gradient of the next mini-batch at the array `x` (dimension,)."""
        return self.loss_and_gradient(x)[1]

    def loss_and_gradient(self, x: Vector) -> tuple[float, np.ndarray]:
        """Return loss and gradient of the next mini-batch at the array `x` (dimension,)."""
        at = self.flat.tensor(x)
        if at.device.type != "cpu":
            loss, gradient = self.tensors(at)
            return float(loss), gradient.cpu().numpy().copy()
        result = np.zeros(self.flat.dimension, dtype=x.dtype)  # torch writes into its memory
        with one_thread(at.device):
            return float(self._write(at, torch.from_numpy(result))), result

    # For real workers

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and gradient (dimension,) of the next mini-batch at tensor `x`."""
        gradient = torch.zeros_like(x)
        return self._write(x, gradient), gradient

    def backward(self, x: Tensor, sizes: Sequence[int], freed: Freed) -> None:
        """Compute the gradient of the next mini-batch at `x`, piece by piece.

        `freed(i, piece)` is called on the thread of the backward pass, for each piece in order,
        once it and all earlier ones are complete. Piece 0 is the end of the vector (the last
        layers); `sizes` are the pieces' lengths, in that order.
        """
        parameters = x.split_with_sizes(list(sizes[::-1]))[::-1]

        def decay(number: int, piece: Tensor) -> None:
            if self.weight_decay:
                piece.add_(parameters[number], alpha=self.weight_decay)
            freed(number, piece)

        gradient = torch.zeros_like(x)
        for number, loss in enumerate(self._losses(x), start=1):
            if number < self.accumulation:
                self.flat.backward(loss, gradient)
            else:
                self.flat.backward_in_pieces(loss, gradient, sizes, decay)

    def buffers(self) -> Tensor:
        """Return a copy of this worker's buffers as one vector, perhaps empty."""
        return self.worker_buffers.flat.clone()

    def next_rows(self) -> np.ndarray:
        """Return the next mini-batch as indices of training samples (batch,)."""
        self.step += 1
        return next(self.batches)

    def _write(self, x: Tensor, gradient: Tensor) -> Tensor:
        losses = []
        for loss in self._losses(x):
            self.flat.backward(loss, gradient)
            losses.append(loss.detach())
        if self.weight_decay:
            gradient.add_(x, alpha=self.weight_decay)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _losses(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the micro-batches' losses, which add up to the mini-batch's."""
        batch = self.samples.train(self.next_rows())
        self.flat.go_to(x)
        self.worker_buffers.use()
        key = self.key and self.key(self.step)
        parts = zip(*(tensor.tensor_split(self.accumulation) for tensor in batch), strict=True)
        for number, (inputs, labels) in enumerate(parts):
            with nullcontext() if key is None else seeded(key + number, x.device):
                loss = functional.cross_entropy(self.flat.module(inputs), labels)
            yield loss if self.accumulation == 1 else loss * (len(labels) / len(batch[1]))
