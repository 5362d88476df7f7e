"""A user's model as one flat vector, of which its trained parameters are views."""

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel as Wrapper

from paceline.simulator.errors import InputError
from paceline.validate.torch_objective.flat import Flat

flatten: Callable[[Any], Tensor] = torch._utils._flatten_dense_tensors
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of mallopt(3)


def keep_freed_memory() -> None:
    """Have glibc reuse freed memory: the kernel takes long to clear new pages."""
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(MMAP_MAX, 0)


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


class LiveParameters(Flat):
    """The parameters that an optimizer trains, each once, in the model's order.

    `at`: the vector that they are views of. Either a program's own, which nothing may change, or
    `vector`, which the optimizer changes in place; None once it has been given to the program.
    `others`: the model's parameters that are not trained, such as frozen ones. `own_gradient`: of
    the last step, a reference.
    """

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        _demand_plain(model, trained)
        super().__init__(model, trained)
        self.at, self._optimizer = self.start, optimizer
        self._names = {id(one): name for name, one in model.named_parameters()}
        self._trained = {id(parameter) for parameter in self.parameters}
        self.others = [one for one in model.parameters() if id(one) not in self._trained]
        ends = accumulate(self._sizes, initial=0)
        self._places = [
            (parameter, end * parameter.element_size(), parameter.shape)
            for parameter, end in zip(self.parameters, ends, strict=False)
            if parameter.numel()
        ]
        self._registered = False  # whether a module has got another part since the last check
        self.own_gradient: Callable[[], Tensor | None] = lambda: None
        if self.start.device.type == "cpu":
            keep_freed_memory()
        self.vector: Tensor | None = None
        self.taken: Callable[[], Tensor | None] = lambda: None  # what `vector` is a copy of
        inside = [module.module for module in model.modules() if isinstance(module, Wrapper)]
        self._silence = Silence()
        self._hooks = [part.register_forward_pre_hook(self._silence) for part in (model, *inside)]
        self._hooks.append(register_module_parameter_registration_hook(self._note))
        self._hooks.append(register_module_module_registration_hook(self._note))

    def _note(self, *_: Any) -> None:
        self._registered = True

    def check(self, may_freeze: bool) -> None:
        """Raise InputError, by name, where what is trained is not what the session averages."""
        base = self.at.data_ptr()
        for one, offset, shape in self._places:
            if one.data_ptr() != base + offset or one.shape != shape:
                self._refuse(one, "no longer holds what is averaged, as after model.double()")
            if not (may_freeze or one.requires_grad):
                self._refuse(one, "was frozen, but the program goes on to step it")
        if self._registered or any(one.grad is None for one in self.parameters):
            present = {id(one) for one in self.module.parameters()}
            for gone in (one for one in self.parameters if id(one) not in present):
                self._refuse(gone, "has left the model, and what replaces it is not averaged")
            self._registered = False
        for group in self._optimizer.param_groups:
            for one in group["params"]:
                if id(one) not in self._trained and (one.requires_grad or one.grad is not None):
                    self._refuse(one, "begins to train, and is not averaged")

    def _refuse(self, parameter: Tensor, what: str) -> NoReturn:
        names = {id(one): name for name, one in self.module.named_parameters()} | self._names
        name = names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")
        raise InputError(
            f"model: {name} {what}; copy values into what is trained (.copy_), or close the "
            "session on all processes, change the model, and deploy another"
        )

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
        """Go to a copy of `x`, or if `free` to `x`, to be changed in place."""
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
        """Go to `x`, on the vector that the optimizer changes in place.

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
        grads: list[Any] = [parameter.grad for parameter in self.parameters]
        if all(grad is not None and grad.layout is torch.strided for grad in grads):
            return grads
        return [
            torch.zeros_like(parameter) if grad is None else grad.to_dense()
            for parameter, grad in zip(self.parameters, grads, strict=True)
        ]

    def gradient(self) -> Tensor:
        """Return the gradients as one vector, a copy."""
        gradient = flatten(self.gradients())
        self.own_gradient = ref(gradient)
        return gradient

    def write(self, gradient: Tensor) -> None:
        """Make the parameters' gradients views of a vector."""
        for parameter, part in zip(self.parameters, self.views(gradient), strict=True):
            parameter.grad = part if parameter.requires_grad else None


def _demand_plain(model: nn.Module, trained: Iterable[Tensor]) -> None:
    """Raise InputError for a model whose parameters cannot be views of one vector."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is no torch.nn.Module; give the model")
    sharded = any(
        "FullyShardedDataParallel" in {kind.__name__ for kind in type(module).__mro__}
        for module in model.modules()
    )
    if sharded or any(hasattr(parameter, "placements") for parameter in model.parameters()):
        raise InputError(
            "model: its parameters are sharded (FSDP, DTensor); give a model whose parameters are "
            "whole on every process"
        )
    wanted = [parameter for parameter in trained if parameter.requires_grad]
    if not {id(parameter) for parameter in wanted} <= {id(one) for one in model.parameters()}:
        raise InputError(
            "optimizer: it trains parameters that are not the model's; make one module of all that "
            "is trained, and give that as the model"
        )
    alike = {(parameter.dtype, parameter.device) for parameter in wanted}
    if len(alike) != 1:
        kinds = ", ".join(sorted(f"{dtype} on {where}" for dtype, where in alike)) or "none"
        raise InputError(
            f"model: trained parameters are to be of one dtype on one device, not {kinds}; convert "
            "them by model.to(...), and use torch.autocast for a lower precision"
        )
