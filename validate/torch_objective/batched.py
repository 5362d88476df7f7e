"""Gradients of all workers at once, by `torch.func.vmap`, for the batched engine."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from paceline.simulator.engines.batched.arrays import PerWorker, Stack, array
from paceline.simulator.programs.effects import Vector

from .batches import DeviceData
from .determinism import one_thread
from .flat import Flat
from .gradients import TorchSource


class TorchGradients:
    """Gradients of one seed's workers, of the mini-batches that `sources` would give one by one.

    `flat` is the model that they share; `decay` times the parameters is added to each gradient.
    """

    def __init__(
        self, flat: Flat, samples: DeviceData, sources: Sequence[TorchSource], decay: float
    ) -> None:
        self._flat, self._samples, self._sources, self._decay = flat, samples, sources, decay

        def loss(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            scores = functional_call(flat.module, flat.named(x), (inputs,))
            return functional.cross_entropy(scores, labels)

        gradient = grad_and_value(loss)
        self._at_own, self._at_one = vmap(gradient), vmap(gradient, in_dims=(None, 0, 0))

    def gradient(self, x: Vector) -> Vector:
        """Return gradients at `x`, shape (1, workers or 1, dimension)."""
        return Stack(self._next(x)[1])

    def loss_and_gradient(self, x: Vector) -> tuple[PerWorker, Vector]:
        """Return losses and gradients at `x`."""
        losses, gradients = self._next(x)
        return PerWorker(losses.double().cpu().numpy()), Stack(gradients)

    def _next(self, x: Vector) -> tuple[Tensor, np.ndarray]:
        at = self._flat.tensor(array(x)[0])
        inputs, labels = self._samples.train(np.stack([each.next_rows() for each in self._sources]))
        with one_thread(at.device):
            if len(at) == 1:
                gradients, losses = self._at_one(at[0], inputs, labels)
            else:
                gradients, losses = self._at_own(at, inputs, labels)
            if self._decay:
                gradients = gradients + self._decay * at
        return losses, gradients.cpu().numpy()[None]
