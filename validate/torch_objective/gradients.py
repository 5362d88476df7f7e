"""One worker's stochastic gradients of a model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.simulator.programs.effects import Vector

from .batches import DeviceData
from .determinism import one_thread, seeded
from .flat import Buffers, Flat, Freed


class TorchSource:
    """One worker's stream of mini-batches, `batches`; its gradients are exact at each of them.

    `flat` is the model, which all workers share, `buffers` the worker's own. `key(k)`: seed of the
    k-th step's random numbers; None if the model draws none.
    `weight_decay` times the parameters is added to every gradient, and not to the losses. A
    gradient is summed up over `accumulation` micro-batches.
    """

    def __init__(  # noqa: PLR0913 - shared and own parts
        self,
        flat: Flat,
        samples: DeviceData,
        batches: Iterator[np.ndarray],
        buffers: Buffers,
        *,
        weight_decay: float,
        key: Callable[[int], int] | None,
        accumulation: int = 1,
    ) -> None:
        self._flat, self._samples, self._batches = flat, samples, batches
        self._own, self._decay, self._key = buffers, weight_decay, key
        self._step, self._accumulation = 0, accumulation

    # For the simulator

    def gradient(self, x: Vector) -> np.ndarray:
        """Return the gradient of the next mini-batch at the array `x` (dimension,)."""
        return self._arrays(x)[1]

    def loss_and_gradient(self, x: Vector) -> tuple[float, np.ndarray]:
        """Return loss and gradient of the next mini-batch at the array `x` (dimension,)."""
        loss, gradient = self._arrays(x)
        return float(loss), gradient

    def _arrays(self, x: Vector) -> tuple[Tensor, np.ndarray]:
        at = self._flat.tensor(x)
        if at.device.type != "cpu":
            loss, gradient = self.tensors(at)
            return loss, gradient.cpu().numpy().copy()
        found = np.zeros(self._flat.dimension, dtype=x.dtype)  # torch writes into its memory
        with one_thread(at.device):
            return self._write(at, torch.from_numpy(found)), found

    # For real workers

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss (a scalar) and gradient (dimension,) of the next mini-batch at tensor `x`."""
        gradient = torch.zeros_like(x)
        return self._write(x, gradient), gradient

    def backward(self, x: Tensor, sizes: Sequence[int], freed: Freed) -> None:
        """Compute the gradient of the next mini-batch at `x`, piece by piece.

        `freed(i, piece)` is called from the backward pass, on its thread, for one piece after the
        other, once it and those before it are complete. Piece 0 is the end of the vector (the
        last layers); `sizes` are the pieces' lengths, in that order.
        """
        parameters = x.split_with_sizes(list(sizes[::-1]))[::-1]

        def decay(number: int, piece: Tensor) -> None:
            if self._decay:
                piece.add_(parameters[number], alpha=self._decay)
            freed(number, piece)

        gradient = torch.zeros_like(x)
        for number, loss in enumerate(self._losses(x), start=1):
            if number < self._accumulation:
                self._flat.backward(loss, gradient)
            else:
                self._flat.backward_in_pieces(loss, gradient, sizes, decay)

    def buffers(self) -> Tensor:
        """Return a copy of this worker's floating-point buffers as one vector, perhaps empty."""
        return self._own.flat.clone()

    def next_rows(self) -> np.ndarray:
        """Return the next mini-batch as indices of training samples (batch,)."""
        self._step += 1
        return next(self._batches)

    def _write(self, x: Tensor, gradient: Tensor) -> Tensor:
        losses = []
        for loss in self._losses(x):
            self._flat.backward(loss, gradient)
            losses.append(loss.detach())
        if self._decay:
            gradient.add_(x, alpha=self._decay)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _losses(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the losses of the next mini-batch's micro-batches; they sum up to its own."""
        batch = self._samples.train(self.next_rows())
        self._flat.go_to(x)
        self._own.use()
        key = self._key and self._key(self._step)
        parts = zip(*(each.tensor_split(self._accumulation) for each in batch), strict=True)
        for number, (inputs, labels) in enumerate(parts):
            with nullcontext() if key is None else seeded(key + number, x.device):
                loss = functional.cross_entropy(self._flat.module(inputs), labels)
            yield loss if self._accumulation == 1 else loss * (len(labels) / len(batch[1]))
