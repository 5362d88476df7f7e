"""View a user's trained parameters as one flat vector."""

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NoReturn
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
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
    """Let glibc reuse freed memory, because the kernel takes long to clear new pages."""
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(MMAP_MAX, 0)


class LiveParameters(Flat):
    """The parameters that an optimizer trains, without repeats, in the model's order.

    `at`: the vector behind their views. It is either the program's vector, which nothing may
    change, or `vector`, which the optimizer changes in place (None once it belongs to the program).
    `others`: the model's untrained parameters, such as frozen ones. `own_gradient`: a reference to
    the last step's gradient. `island`: the processes that share one model; if empty, none do.
    """

    def __init__(self, model: nn.Module, optimizer: Any, island: frozenset[int]) -> None:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        _demand_whole(model, trained, island)
        super().__init__(model, trained)
        self.at, self._optimizer = self.start, optimizer
        self._names = {id(one): name for name, one in model.named_parameters()}
        self._trained = {id(parameter) for parameter in self.parameters}
        self.others = local([one for one in model.parameters() if id(one) not in self._trained])
        ends = accumulate(self._sizes, initial=0)
        self._places = [
            (parameter, end * parameter.element_size(), parameter.shape)
            for parameter, end in zip(self.parameters, ends, strict=False)
            if parameter.numel()
        ]
        self._registered = False  # whether a module has a new part since the last check
        self.own_gradient: Callable[[], Tensor | None] = lambda: None
        if self.start.device.type == "cpu":
            keep_freed_memory()
        self.vector: Tensor | None = None
        self.taken: Callable[[], Tensor | None] = lambda: None  # the source of the copy `vector`
        self._hooks: list[Any] = [
            register_module_parameter_registration_hook(self._note),
            register_module_module_registration_hook(self._note),
        ]

    def _note(self, *_: Any) -> None:
        self._registered = True

    def check(self, may_freeze: bool) -> None:
        """Raise InputError for a trained parameter that the session does not average."""
        for one in self._moved():
            self._refuse(one, "has new storage, which is not averaged (after model.double()?)")
        for one in self.parameters if not may_freeze else ():
            if not one.requires_grad:
                self._refuse(one, "was frozen, but the program still changes it")
        if self._registered or any(one.grad is None for one in self.parameters):
            self._check_members()
        for group in self._optimizer.param_groups:
            for one in group["params"]:
                if id(one) not in self._trained and (one.requires_grad or one.grad is not None):
                    self._refuse(one, "now trains, but is not averaged")

    def _moved(self) -> Iterable[Tensor]:
        base = self.at.data_ptr()
        for one, offset, shape in self._places:
            if one.data_ptr() != base + offset or one.shape != shape:
                yield one

    def _check_members(self) -> None:
        present = {id(one): one for one in self.module.parameters()}
        for one in self.parameters:
            if id(one) not in present:
                self._refuse(one, "was removed, and its replacement is not averaged")
        for identity, one in present.items():
            if identity not in self._names:
                self._refuse(one, "was added, and may differ between processes")
        self._registered = False

    def _refuse(self, parameter: Tensor, what: str) -> NoReturn:
        names = {id(one): name for name, one in self.module.named_parameters()} | self._names
        name = names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")
        raise InputError(
            f"model: {name} {what}; copy values into trained parameters (.copy_), or close the "
            "session on all processes, change the model, and deploy again"
        )

    def leave(self) -> None:
        """Detach from the model."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Move the parameters to the start."""
        self.move(self.start)

    def move(self, x: Tensor) -> None:
        """Make the parameters views of `x`."""
        super().go_to(x)

    def go_to(self, x: Tensor) -> None:
        """Move to `x`, unless the parameters are there."""
        if x.data_ptr() != self.at.data_ptr():
            self.move(x)
        self.at = x

    def now(self) -> Tensor:
        """Return the vector with the parameters' values."""
        return self.at

    def enter(self, x: Tensor, free: bool = False) -> Tensor:
        """Move to a copy of `x`, or if `free` to `x` itself, for changes in place."""
        if not free:
            return self.copy(x)
        self.vector = x
        self.go_to(x)
        return x

    def copy(self, x: Tensor) -> Tensor:
        """Move to a new copy of `x`, for changes in place."""
        self.vector, self.taken = x.clone(), ref(x)
        self.go_to(self.vector)
        return self.vector

    def take(self, x: Tensor) -> Tensor:
        """Move to `x`, on the vector that the optimizer changes in place.

        A program that takes single steps drops its last vector when it makes the next.
        """
        if self.vector is not None and (x is self.vector or x is self.taken()):
            return self.vector
        return self.copy(x)

    def give(self) -> Tensor:
        """Give the vector to the program; from now on it must not change."""
        given, self.vector = self.now(), None
        return given

    def gradients(self) -> list[Tensor]:
        """Return the parameters' gradients, as backward passes left them."""
        grads: list[Any] = [parameter.grad for parameter in self.parameters]
        if all(grad is not None and grad.layout is torch.strided for grad in grads):
            return grads
        return [
            torch.zeros_like(parameter) if grad is None else grad.to_dense()
            for parameter, grad in zip(self.parameters, grads, strict=True)
        ]

    def gradient(self) -> Tensor:
        """Return a copy of the gradients as one vector."""
        gradient = flatten(self.gradients())
        self.own_gradient = ref(gradient)
        return gradient

    def write(self, gradient: Tensor) -> None:
        """Give the parameters' gradients the values of a vector."""
        kept, parts = self._gradient
        kept.copy_(gradient)
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part if parameter.requires_grad else None

    @cached_property
    def _gradient(self) -> tuple[Tensor, list[Tensor]]:
        """A vector for gradients that every step reuses, as new views take long; its parts."""
        kept = torch.empty_like(self.start)
        return kept, self.views(kept)


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the memory that this process has of tensors."""
    with torch.no_grad():
        return [one.to_local() if isinstance(one, DTensor) else one for one in tensors]


class ShardedParameters(LiveParameters):
    """An island's parameters, of which this process has shards, in memory that FSDP manages.

    So they are not views of a vector: going to a vector copies its entries.
    """

    def memory(self) -> list[Tensor]:
        """Return this process's parts of the parameters."""
        return local(self.parameters)

    def move(self, x: Tensor) -> None:
        """Copy `x` into the parameters."""
        with torch.no_grad():
            torch._foreach_copy_(self.memory(), self.views(x))

    def _moved(self) -> Iterable[Tensor]:
        dtype = self.start.dtype
        return (one for one, _, shape in self._places if one.shape != shape or one.dtype != dtype)

    def now(self) -> Tensor:
        """Return the vector with the parameters' values, which the optimizer may have changed."""
        if self.vector is self.at:
            with torch.no_grad():
                torch._foreach_copy_(self.views(self.at), self.memory())
        return self.at

    def gradients(self) -> list[Tensor]:
        """Return this process's parts of the gradients."""
        return local(super().gradients())

    def write(self, gradient: Tensor) -> None:
        """Make the gradients' parts views of a vector."""
        for one, part in zip(self.parameters, self.views(gradient), strict=True):
            one.grad = _joined(part, one) if one.requires_grad else None

    def ends(self, pieces: Any) -> list[int]:
        """Return where to cut this process's vector so that the whole one is cut into pieces.

        `pieces`: an argument of torch.tensor_split for the whole vector. Exact for shards of rows,
        FSDP's default: their entries lie side by side in the whole vector. Shards of another
        dimension are cut in proportion.
        """
        whole = torch.empty(sum(one.numel() for one in self.parameters), device="meta")
        cuts = list(accumulate(map(len, whole.tensor_split(pieces))))[:-1]
        ends, begin = [0] * len(cuts), 0
        for one, size in zip(self.parameters, self._sizes, strict=True):
            first, span = _rows(one, size)
            for i, cut in enumerate(cuts):
                ends[i] += min(max((cut - begin - first) * size // max(span, 1), 0), size)
            begin += one.numel()
        return ends


def _joined(part: Tensor, like: Tensor) -> Tensor:
    """Return a tensor of which this process has a part, split up as another one is."""
    if not isinstance(like, DTensor):
        return part
    mesh, shape, stride = like.device_mesh, like.shape, like.stride()
    return DTensor.from_local(
        part, mesh, like.placements, run_check=False, shape=shape, stride=stride
    )


def _rows(whole: Tensor, size: int) -> tuple[int, int]:
    """Return the first entry of this process's part, and how many of the whole it spans."""
    if isinstance(whole, DTensor) and set(whole.placements) <= {Shard(0), Replicate()}:
        layout = whole.shape, whole.device_mesh, whole.placements
        row = compute_local_shape_and_global_offset(*layout)[1][0]
        return row * prod(whole.shape[1:]), size
    return 0, whole.numel()


def live_parameters(model: nn.Module, optimizer: Any, island: frozenset[int]) -> LiveParameters:
    """Return the parameters that an optimizer trains, of a process's or an `island`'s model."""
    trained = (one for group in optimizer.param_groups for one in group["params"])
    sharded = island and any(isinstance(one, DTensor) for one in trained)
    return (ShardedParameters if sharded else LiveParameters)(model, optimizer, island)


def _demand_whole(model: nn.Module, trained: Iterable[Tensor], island: frozenset[int]) -> None:
    """Raise InputError unless every worker, a process or an `island`, has a whole model."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is not a torch.nn.Module; give the model")
    _demand_island(model, island)
    wanted = [parameter for parameter in trained if parameter.requires_grad]
    if not {id(parameter) for parameter in wanted} <= {id(one) for one in model.parameters()}:
        raise InputError(
            "optimizer: it trains parameters outside the model; combine all trained parts in one "
            "module, and give that as the model"
        )
    alike = {(parameter.dtype, parameter.device) for parameter in wanted}
    if len(alike) != 1:
        kinds = ", ".join(sorted(f"{dtype} on {where}" for dtype, where in alike)) or "none"
        raise InputError(
            f"model: trained parameters need one dtype and one device, not {kinds}; convert "
            "them with model.to(...), and use torch.autocast for a lower precision"
        )


def _demand_island(model: nn.Module, island: frozenset[int]) -> None:
    """Raise InputError for a model that is split up, unless exactly over an `island`."""
    modules = list(model.modules())
    if any(
        "FullyShardedDataParallel" in {kind.__name__ for kind in type(module).__mro__}
        for module in modules
    ):
        raise InputError(
            "model: FullyShardedDataParallel (FSDP1) hides its parameters; use fully_shard (FSDP2)"
        )
    shards = [one for one in model.parameters() if isinstance(one, DTensor)]
    if shards and not island:
        raise InputError(
            "model: its parameters are sharded (FSDP, DTensor); give deploy(..., mesh=mesh), whose "
            "first dimension is the islands that each hold a whole model"
        )
    wrappers = [module for module in modules if isinstance(module, Wrapper)]
    if wrappers and not island:
        raise InputError(
            "model: DistributedDataParallel averages every gradient; give and call its .module, "
            "or give deploy(..., mesh=mesh) for islands"
        )
    spans = [set(one.device_mesh.mesh.flatten().tolist()) for one in shards] + [
        set(dist.get_process_group_ranks(module.process_group)) for module in wrappers
    ]
    if any(not span <= island for span in spans):
        raise InputError(
            "model: FSDP or DistributedDataParallel joins processes of several islands; give it "
            "the mesh's other dimensions, such as mesh=mesh[mesh.mesh_dim_names[1:]]"
        )
    if len(island) > 1 and not spans:
        raise InputError(
            "model: nothing averages it inside an island; wrap it by fully_shard or "
            "DistributedDataParallel on the mesh's other dimensions, and give the wrapped model"
        )
