"""A module's parameters and buffers as flat vectors: views, not copies."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paceline.simulator.programs.effects import Vector

Freed = Callable[[int, Tensor], None]
"""Told of a piece of a gradient: its number, and the piece."""


class Flat:
    """A module whose trainable parameters are made views of one flat vector.

    `dimension`: entries of all parameters, in the module's order; `start`: what they hold now.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._names, self._parameters = list(trained), list(trained.values())
        self._sizes = [each.numel() for each in self._parameters]
        self.dimension = sum(self._sizes)
        self.start = torch.cat([each.detach().reshape(-1) for each in self._parameters])

    def tensor(self, x: Vector) -> Tensor:
        """A vector where the parameters are; an array of the same numbers shares its memory."""
        return torch.as_tensor(x, dtype=self.start.dtype, device=self.start.device)

    def named(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters at `x`, shape (dimension,), for `torch.func.functional_call`."""
        return dict(zip(self._names, self._views(x), strict=True))

    def _views(self, vector: Tensor) -> list[Tensor]:
        # split, not slices: its derivative is one concatenation
        parts = vector.split_with_sizes(self._sizes)
        return [part.view(own.shape) for part, own in zip(parts, self._parameters, strict=True)]

    def go_to(self, x: Tensor) -> None:
        """Let the parameters be views of `x`, which training reads and never changes."""
        for parameter, view in zip(self._parameters, self._views(x), strict=True):
            parameter.data = view

    def backward(self, loss: Tensor, gradient: Tensor) -> None:
        """Add the gradient of `loss` to `gradient`, which autograd writes into directly."""
        for parameter, view in zip(self._parameters, self._views(gradient), strict=True):
            parameter.grad = view
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for parameter in self._parameters:
                parameter.grad = None

    def backward_in_pieces(
        self, loss: Tensor, gradient: Tensor, sizes: Sequence[int], freed: Freed
    ) -> None:
        """As `backward`; tell of each piece, in their order, once it and those before are complete.

        `sizes`: lengths of the pieces, which begin at the end of the vector. `freed` is called on
        the thread of the backward pass.
        """
        pieces = gradient.split_with_sizes(list(sizes[::-1]))[::-1]
        inside = _overlaps(self._sizes, sizes)
        missing = [0] * len(pieces)
        for places in inside:
            for place in places:
                missing[place] += 1
        told = 0

        def tell() -> None:
            nonlocal told
            while told < len(pieces) and not missing[told]:
                told += 1
                freed(told - 1, pieces[told - 1])

        def arrived(places: Sequence[int]) -> Callable[[Tensor], None]:
            def hook(_: Tensor) -> None:
                for place in places:
                    missing[place] -= 1
                tell()

            return hook

        hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                arrived(places)
            )
            for parameter, places in zip(self._parameters, inside, strict=True)
        ]
        try:
            self.backward(loss, gradient)
        finally:
            for each in hooks:
                each.remove()
        missing = [0] * len(pieces)  # parameters that the loss does not depend on never arrive
        tell()


def _overlaps(parameters: Sequence[int], pieces: Sequence[int]) -> list[list[int]]:
    """For each parameter, by its length, the numbers of the pieces that it lies in."""
    found, below = [], sum(parameters)
    edges = []
    for size in pieces:
        edges.append((below - size, below))
        below -= size
    first = 0
    for size in parameters:
        last = first + size
        found.append([i for i, (low, high) in enumerate(edges) if low < last and first < high])
        first = last
    return found


class Buffers:
    """One worker's buffers of a module that all workers share, such as BatchNorm's statistics.

    `flat`: those of floating point as one vector, perhaps empty.
    """

    def __init__(self, module: nn.Module) -> None:
        self._theirs = list(module.buffers())
        own = [each.detach().clone() for each in self._theirs]
        floating = [place for place, each in enumerate(own) if each.is_floating_point()]
        shapes = [own[place].shape for place in floating]
        parts = [own[place].reshape(-1) for place in floating]
        self.flat = torch.cat(parts) if parts else torch.empty(0)
        views = self.flat.split_with_sizes([len(part) for part in parts]) if parts else ()
        for place, shape, view in zip(floating, shapes, views, strict=True):
            own[place] = view.view(shape)
        self._own = own

    def use(self) -> None:
        """Let the module read and update these."""
        for theirs, own in zip(self._theirs, self._own, strict=True):
            theirs.data = own
