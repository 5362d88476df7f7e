"""View a module's parameters and buffers as flat vectors, without copies."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from paceline.simulator.programs.effects import Vector

unflatten: Callable[..., Sequence[Tensor]] = torch._utils._unflatten_dense_tensors
Freed = Callable[[int, Tensor], None]
"""A function that receives a complete piece of a gradient: its number, and the piece."""


class Flat:
    """A module whose trainable parameters (those in `among`) are views of a vector.

    `parameters`: in the module's order; `dimension`: their number of entries; `start`: their
    values now (dimension,).
    """

    def __init__(self, module: nn.Module, among: Iterable[Tensor] | None = None) -> None:
        self.module = module
        wanted = None if among is None else {id(one) for one in among}
        self.parameters = [
            one
            for one in module.parameters()
            if one.requires_grad and (wanted is None or id(one) in wanted)
        ]
        memory = self.memory()
        self._sizes = [part.numel() for part in memory]
        self.dimension = sum(self._sizes)
        self.start = torch.cat([part.detach().reshape(-1) for part in memory])

    def memory(self) -> list[Tensor]:
        """Return the tensors with this process's entries of the parameters."""
        return [*self.parameters]

    def tensor(self, x: Vector) -> Tensor:
        """Return a vector as a tensor on the device; a CPU array shares memory."""
        return torch.as_tensor(x, dtype=self.start.dtype, device=self.start.device)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return every parameter's part of a vector (dimension,), in its shape."""
        return list(unflatten(vector, self.memory()))

    def go_to(self, x: Tensor) -> None:
        """Make the parameters views of `x`, which training reads and never changes."""
        for parameter, view in zip(self.parameters, self.views(x), strict=True):
            parameter.data = view

    def backward(self, loss: Tensor, gradient: Tensor) -> None:
        """Add the gradient of `loss` to `gradient`, which autograd writes into directly."""
        for parameter, view in zip(self.parameters, self.views(gradient), strict=True):
            parameter.grad = view
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for parameter in self.parameters:
                parameter.grad = None

    def backward_in_pieces(
        self, loss: Tensor, gradient: Tensor, sizes: Sequence[int], freed: Freed
    ) -> None:
        """Run `backward`, and call `freed` for each complete piece in order.

        A piece waits for all earlier pieces. `sizes`: lengths of the pieces, from the end of the
        vector on. `freed` is called on the thread of the backward pass.
        """
        pieces = gradient.split_with_sizes(list(sizes[::-1]))[::-1]
        inside = _overlaps(self._sizes, sizes)
        missing = [sum(place in places for places in inside) for place in range(len(pieces))]
        freed_count = 0

        def free() -> None:
            nonlocal freed_count
            while freed_count < len(pieces) and not missing[freed_count]:
                freed_count += 1
                freed(freed_count - 1, pieces[freed_count - 1])

        def arrived(places: Sequence[int], _: Tensor) -> None:
            for place in places:
                missing[place] -= 1
            free()

        hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(arrived, places)
            )
            for parameter, places in zip(self.parameters, inside, strict=True)
        ]
        try:
            self.backward(loss, gradient)
        finally:
            for handle in hooks:
                handle.remove()
        missing = [0] * len(pieces)  # parameters without influence on the loss never arrive
        free()


def _overlaps(parameters: Sequence[int], pieces: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the pieces that each parameter overlaps, given lengths."""
    lasts = np.cumsum(parameters)
    lows = lasts[-1] - np.cumsum(pieces)  # pieces begin at the end of the vector
    within = (lows < lasts[:, None]) & ((lasts - parameters)[:, None] < lows + pieces)
    return [np.flatnonzero(row).tolist() for row in within]


class Buffers:
    """One worker's buffers, such as BatchNorm's statistics, of a shared module.

    `flat`: the floating-point buffers as one vector, perhaps empty.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module_buffers = list(module.buffers())
        copies = [buffer.detach().clone() for buffer in self._module_buffers]
        floating = [place for place, copy in enumerate(copies) if copy.is_floating_point()]
        shapes = [copies[place].shape for place in floating]
        parts = [copies[place].reshape(-1) for place in floating]
        self.flat = torch.cat(parts) if parts else torch.empty(0)
        views = self.flat.split_with_sizes([len(part) for part in parts]) if parts else ()
        for place, shape, view in zip(floating, shapes, views, strict=True):
            copies[place] = view.view(shape)
        self._copies = copies

    def use(self) -> None:
        """Make the module read and update these buffers."""
        for buffer, copy in zip(self._module_buffers, self._copies, strict=True):
            buffer.data = copy
