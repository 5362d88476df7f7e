"""A worker's gradients as tensors on its device, for every kind of objective.

A learner is one worker's stream of mini-batches: `torch_objective.gradients.TorchSource`, or one of
the classes here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.simulator.objectives.objective import Objective

from ..host.device import host, put

Freed = Callable[[int, Tensor], None]


class OnHost:
    """The NumPy gradients of the simulator's objectives."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and gradient, equal to the simulator's to the last bit."""
        loss, gradient = self._source.loss_and_gradient(host(x).numpy())
        return torch.tensor(loss), put(torch.from_numpy(gradient), x.device)

    def backward(self, x: Tensor, sizes: Sequence[int], freed: Freed) -> None:
        """Compute the gradient, then free all pieces at once."""
        _, gradient = self.tensors(x)
        end = len(gradient)
        for number, size in enumerate(sizes):
            freed(number, gradient[end - size : end])
            end -= size

    def buffers(self) -> Tensor:
        """Return an empty vector."""
        return torch.empty(0)


class NoGradient(OnHost):
    """Zero gradients for time-only runs, as long as the model in messages."""

    def __init__(self) -> None:
        super().__init__(None)

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return nan and zeros."""
        return torch.tensor(torch.nan), torch.zeros_like(x)


def start(objective: Objective, parameters: int, device: torch.device) -> Tensor:
    """Return the initial parameters, which are zeros in time-only runs."""
    if isinstance(objective.start, complex):
        return torch.zeros(parameters, dtype=torch.float32, device=device)
    return put(torch.from_numpy(np.array(objective.start)), device)


def learner(objective: Objective, rank: int) -> Any:
    """Return the learner of worker `rank`."""
    if isinstance(objective.start, complex):
        return NoGradient()
    source: Any = objective.source(rank)
    return source if hasattr(source, "tensors") else OnHost(source)
