"""Gradients of all workers at once, by `torch.func.vmap`, for the batched engine."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from paceline.simulator.engines.batched.arrays import PerWorker, Stack, array
from paceline.simulator.engines.batched.node import SeedsDiffer
from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.programs.effects import Vector
from paceline.validate.torch_objective.determinism import one_thread
from paceline.validate.torch_objective.objective import TorchObjective


class TorchGradients:
    """The next mini-batch of every worker of one seed: the same samples as one by one."""

    def __init__(self, objective: TorchObjective, workers: int, decay: float) -> None:
        self._objective, self._decay = objective, decay
        self._sources = [objective.source(rank) for rank in range(workers)]
        flat = objective.flat

        def loss(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            scores = functional_call(flat.module, flat.named(x), (inputs,))
            return functional.cross_entropy(scores, labels)

        apart = grad_and_value(loss)
        self._at_own, self._at_one = vmap(apart), vmap(apart, in_dims=(None, 0, 0))

    def gradient(self, x: Vector) -> Vector:
        """Gradients at `x`, shape (1, workers or 1, dimension)."""
        return Stack(self._next(x)[1])

    def loss_and_gradient(self, x: Vector) -> tuple[PerWorker, Vector]:
        """Losses and gradients at `x`."""
        losses, gradients = self._next(x)
        return PerWorker(losses.double().cpu().numpy()), Stack(gradients)

    def _next(self, x: Vector) -> tuple[Tensor, np.ndarray]:
        goal = self._objective
        at = goal.flat.tensor(array(x)[0])
        inputs, labels = goal.samples.train(np.stack([each.next_rows() for each in self._sources]))
        with one_thread(goal.device):
            if len(at) == 1:
                gradients, losses = self._at_one(at[0], inputs, labels)
            else:
                gradients, losses = self._at_own(at, inputs, labels)
            if self._decay:
                gradients = gradients + self._decay * at
        return losses, gradients.cpu().numpy()[None]


def together(objectives: Sequence[TorchObjective], workers: int) -> TorchGradients:
    """Gradients of the objective of one seed.

    Raises Unsupported for models that `vmap` does not take as they are, and SeedsDiffer for several
    seeds: they start from different parameters.
    """
    first = objectives[0]
    if first.random:
        raise Unsupported("its model draws random numbers in training")
    if first.buffered:
        raise Unsupported("its model has buffers, which each worker's steps change")
    if len(objectives) > 1:
        raise SeedsDiffer
    return TorchGradients(first, workers, first.weight_decay)
