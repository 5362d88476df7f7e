"""A user's model as one flat vector, of which its trained parameters are views."""

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from sys import getrefcount
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as Wrapper

from paceline.simulator.errors import InputError
from paceline.validate.torch_objective.flat import Flat

flatten: Callable[[Any], Tensor] = torch._utils._flatten_dense_tensors


class Silence:
    """A hook that keeps DistributedDataParallel, where it calls a model, from averaging.

    As in its `no_sync`; its forward pass asks only afterwards whether it is to.
    """

    def __init__(self) -> None:
        self.wrappers: set[Wrapper] = set()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let copies of the model have hooks of their own."""
        return Silence, ()

    def __call__(self, *_: Any) -> None:
        """Silence the wrapper whose forward pass this is in."""
        wrapper = Wrapper._active_ddp_module
        if wrapper is not None and wrapper.require_backward_grad_sync:
            wrapper.require_backward_grad_sync = False
            self.wrappers.add(wrapper)


class Gathered:
    """A vector of gradients, and the views of it that belong to the parameters."""

    def __init__(self, vector: Tensor, views: list[Tensor]) -> None:
        self.vector, self.views = vector, views
        self.alone = self.uses()

    def uses(self) -> tuple[int, int]:
        """Count what refers to the vector's memory, and to its views: `alone` if nobody else."""
        count: Any = torch._C._storage_Use_Count
        return count(self.vector.untyped_storage()._cdata), sum(map(getrefcount, self.views))


class LiveParameters(Flat):
    """The parameters that an optimizer trains, each once, in the model's order.

    `at`: the vector that they are views of. Either a program's own, which nothing may change, or
    `vector`, which the optimizer changes in place; None once it has been given to the program.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        trained = [each for group in optimizer.param_groups for each in group["params"]]
        _demand_plain(model, trained)
        super().__init__(model, trained)
        self.at = self.start
        self.vector: Tensor | None = None
        self.taken: Callable[[], Tensor | None] = lambda: None  # what `vector` is a copy of
        self._gathered: list[Gathered] = []
        inside = [each.module for each in model.modules() if isinstance(each, Wrapper)]
        self._silence = Silence()
        self._hooks = [each.register_forward_pre_hook(self._silence) for each in (model, *inside)]

    def leave(self) -> None:
        """Let the model alone."""
        for hook in self._hooks:
            hook.remove()
        for wrapper in self._silence.wrappers:
            wrapper.require_backward_grad_sync = True

    def begin(self) -> None:
        """Go to the start."""
        super().go_to(self.start)

    def go_to(self, x: Tensor) -> None:
        """Make the parameters views of `x`, unless they are."""
        if x.data_ptr() != self.at.data_ptr():
            super().go_to(x)
        self.at = x

    def enter(self, x: Tensor, free: bool = False) -> Tensor:
        """Go to a copy of `x`, or, `free`, to it, to be changed in place until it is given."""
        if not free:
            return self.copy(x)
        self.vector = x
        self.go_to(x)
        return x

    def copy(self, x: Tensor) -> Tensor:
        """Go to a new copy of `x`, to be changed in place."""
        self.vector, self.taken = x.clone(), ref(x)
        self.go_to(self.vector)
        return self.vector

    def take(self, x: Tensor) -> Tensor:
        """Go to `x` on the vector that is changed in place, which the program has no other use of.

        A program that steps one by one drops its last vector as it makes the next.
        """
        if self.vector is not None and (x is self.vector or x is self.taken()):
            return self.vector
        return self.copy(x)

    def give(self) -> Tensor:
        """Give the vector away: from now on it is the program's, and not changed."""
        assert self.vector is not None
        given, self.vector = self.vector, None
        return given

    def gradients(self) -> list[Tensor]:
        """Return what backward passes left in the parameters' gradients."""
        grads: list[Any] = [each.grad for each in self.parameters]
        if all(each is not None and each.layout is torch.strided for each in grads):
            return grads
        return [
            torch.zeros_like(own) if each is None else each.to_dense()
            for own, each in zip(self.parameters, grads, strict=True)
        ]

    def gradient(self) -> Tensor:
        """Return the gradients as one vector, a copy."""
        return flatten(self.gradients())

    def gather(self, scale: float) -> Tensor:
        """Multiply the gradients by `scale`, and make them views of one vector, which is returned.

        A loop that keeps their memory has them there already. Else they are copied, to where nobody
        else looks any more.
        """
        own, grads = self._gathered, [each.grad for each in self.parameters]
        for found in own:
            if all(map(is_, grads, found.views)):
                return found.vector if scale == 1.0 else found.vector.mul_(scale)
        unused = [each for each in own if each.uses() == each.alone]
        if not unused:
            vector = torch.empty_like(self.at)
            unused = [Gathered(vector, self.views(vector))]
            self._gathered = [*unused, *own[:1]]
        found = unused[0]
        torch._foreach_copy_(found.views, self.gradients())
        if scale != 1.0:
            found.vector.mul_(scale)
        self.write(found.views)
        return found.vector

    def write(self, gradient: Tensor | Sequence[Tensor]) -> None:
        """Make the parameters' gradients views of a vector, or the tensors given for them."""
        parts = self.views(gradient) if isinstance(gradient, Tensor) else gradient
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part


def _demand_plain(model: nn.Module, trained: Iterable[Tensor]) -> None:
    """Raise InputError for a model whose parameters cannot be views of one vector."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is no torch.nn.Module; give the model")
    sharded = any(
        "FullyShardedDataParallel" in {kind.__name__ for kind in type(each).__mro__}
        for each in model.modules()
    )
    known = {id(each): each for each in model.parameters() if each.requires_grad}
    if sharded or any(hasattr(each, "placements") for each in known.values()):
        raise InputError(
            "model: its parameters are sharded (FSDP, DTensor), so that no process has them as one "
            "vector to average; give a model whose parameters are whole on every process"
        )
    if any(each.requires_grad and id(each) not in known for each in trained):
        raise InputError(
            "optimizer: it trains parameters that are not the model's; make one module of all that "
            "is trained, and give that as the model"
        )
    alike = {(each.dtype, each.device) for each in trained if each.requires_grad}
    if len(alike) != 1:
        said = ", ".join(sorted(f"{dtype} on {where}" for dtype, where in alike)) or "none"
        raise InputError(
            f"model: trained parameters are to be of one dtype on one device, not {said}; convert "
            "them by model.to(...), and use torch.autocast for a lower precision"
        )
