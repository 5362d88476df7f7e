"""Let the user's optimizer and learning rate replace a program's local steps."""

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import SGD
from torch.utils._pytree import tree_map_only

from paceline.simulator.errors import InputError, ProgramError

from .live import LiveParameters

REMEDY = "a program, codec or inner that takes any optimizer (docs/how-to/deploy.md)"
ODD = "nesterov", "dampening", "maximize"
ALIKE = "lr", "momentum", "weight_decay"
EMPTY = torch.empty(0)
Step = Callable[[], object]


class Shift(Tensor):
    """The vector `base - end`, computed only if needed.

    `base` minus it is exactly `end`. It is an (empty) tensor, so that Python calls its method first
    in a subtraction.
    """

    KEPT = "base", "end"  # name in a checkpoint
    base: Tensor
    end: Tensor

    def __new__(cls, base: Tensor, end: Tensor) -> Self:
        """Make an empty tensor like torch's parameters, whatever the loop's mode."""
        shift = Tensor._make_subclass(cls, EMPTY)
        shift.base, shift.end = base, end
        return shift

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run any other torch operation on the vector itself."""
        plain = tree_map_only(Shift, lambda shift: shift.vector, (args, kwargs or {}))
        return function(*plain[0], **plain[1])

    @property
    def vector(self) -> Tensor:
        """Return the vector itself."""
        if self.base.data_ptr() == self.end.data_ptr():
            raise ProgramError("a program asks for a step whose start it no longer has")
        return self.base - self.end

    def __rmul__(self, rate: Any) -> Any:
        return self if rate == 1.0 else rate * self.vector

    def __rsub__(self, other: Any) -> Any:
        if other is not self.base:
            return other - self.vector
        self.base = self.end  # frees the second vector, even if the program keeps this
        return self.end


class Moved(Shift):
    """A step of the user's optimizer as a direction of descent that includes the rate."""

    def __rmul__(self, rate: Any) -> Self:
        return self

    def __rsub__(self, other: Any) -> Any:
        return self.end if other is self.base else other - self.vector


class Reached(Tensor):
    """The parameters at the end of a local phase.

    Another vector minus them is a `Shift`. So a mean of displacements from one anchor becomes a
    mean of parameters, which rounds like torch's PeriodicModelAverager.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __rsub__(self, other: Any) -> Any:
        return Shift(other, self.as_subclass(Tensor))


class UserRate:
    """The learning rate of a step, read from the user's optimizer when the step is noted.

    It is the rate of the first parameter group; earlier steps keep their rates. A rate that is a
    tensor is copied, and becomes a number only if a program asks, because that waits for a device.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.last = 0
        self._latest: tuple[Any, Any] = (None, None)  # the last rate: its tensor, value or version
        self.steps, self.rates = list[int](), list[Any]()  # steps at which the rate changed

    def note(self, step: int) -> None:
        """Note the rate of a step, once."""
        if step > self.last:
            self.last, rate = step, self._optimizer.param_groups[0]["lr"]
            tensor = isinstance(rate, Tensor)
            latest = (rate, rate._version) if tensor else (None, rate)
            if latest[0] is not self._latest[0] or latest[1] != self._latest[1]:
                self._latest = latest
                self.steps.append(step)
                self.rates.append(rate.clone() if tensor else rate)

    def __call__(self, step: int) -> float:
        """Return the rate of `step`."""
        self.note(step)
        return float(self.rates[max(bisect_right(self.steps, step) - 1, 0)])


class UserSteps:
    """The user's optimizer, with its own state, as a transform (`pieces.transform`).

    `init` after the first step clears the momentum of SGD, for programs whose rounds begin without
    it; adaptive optimizers keep their estimates of gradient sizes. `step`: the optimizer's step;
    `keeps`: whether the program uses a step twice, so that the parameters before it must stay;
    `coded`: whether messages are compressed. `scaler`: the GradScaler of the current step.
    """

    def __init__(
        self, live: LiveParameters, optimizer: Any, step: Step, *, keeps: bool, coded: bool
    ) -> None:
        self._live, self._optimizer, self._step = live, optimizer, step
        self._keeps, self._coded = keeps, coded
        self.begun = False
        self.scaler: Any = None

    def apply(self) -> None:
        """Make a step with the optimizer, or with the scaler."""
        if self.scaler is None:
            self._step()
        else:
            for optimizer in parts(self._optimizer):
                self.scaler.step(optimizer)

    @property
    def scale(self) -> float:
        """Return the scale of this step's gradients."""
        scalers = [scaler for scaler, unscaled in self._scalers() if not unscaled]
        return float(scalers[0].get_scale()) if scalers else 1.0

    def _scalers(self) -> Iterator[tuple[Any, bool]]:
        """Yield every optimizer's scaler, and whether it has unscaled the gradients."""
        for optimizer in parts(self._optimizer):
            scaler = scaler_of(optimizer) if self.scaler is None else self.scaler
            if scaler is not None:
                states, keys = scaler._per_optimizer_states, (id(optimizer), id(bare(optimizer)))
                stages = [states[key]["stage"].name for key in keys if key in states]
                yield scaler, "UNSCALED" in stages

    def init(self, x: Tensor) -> None:
        """Clear SGD's momentum, once it has taken steps."""
        for optimizer in parts(self._optimizer) if self.begun else ():
            for state in optimizer.state.values() if isinstance(bare(optimizer), SGD) else ():
                state.pop("momentum_buffer", None)

    def update(self, gradient: Any, state: None, x: Tensor) -> tuple[Moved, None]:
        """Let the optimizer step from `x` along a gradient; return the step."""
        if gradient is not None and gradient is not self._live.own_gradient():
            for _, unscaled in self._scalers():
                if unscaled or self._coded:
                    what = "has unscaled the gradients" if unscaled else "does not work with codecs"
                    raise InputError(
                        f"scaler: it {what}, because one process's overflow would reach all; "
                        f"{'leave out unscale_' if unscaled else 'use torch.bfloat16'}"
                    )
        to = self._live.copy(x) if self._keeps else self._live.take(x)
        if gradient is not None:
            self._live.write(gradient)
        self.begun, self._live.taken = True, lambda: None
        self.apply()
        self._live.now()
        return Moved(x, to), None


class SeveralOptimizers:
    """Several optimizers, for parts of a model, that act as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.parts = optimizers

    @property
    def param_groups(self) -> list[Any]:
        """Return the parameter groups of all optimizers."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Make a step with every optimizer."""
        for part in self.parts:
            part.step()


def parts(optimizer: Any) -> Sequence[Any]:
    """Return the optimizers inside one."""
    return optimizer.parts if isinstance(optimizer, SeveralOptimizers) else [optimizer]


def scaler_of(optimizer: Any) -> Any:
    """Return the gradient scaler of an optimizer from accelerate, or None."""
    scaler = getattr(optimizer, "scaler", None)
    return scaler if hasattr(scaler, "_per_optimizer_states") else None


def demand_plain(optimizer: Any) -> None:
    """Raise InputError for an optimizer that computes gradients itself."""
    for kind in (type(bare(part)) for part in parts(optimizer)):
        if not hasattr(kind, "step"):
            raise InputError(
                f"optimizer: {kind.__name__} is not a torch optimizer; give one, or a list"
            )
        closure = inspect.signature(kind.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise InputError(
                f"optimizer: {kind.__name__} computes several gradients per step with a closure; "
                "use one that steps from the current gradients"
            )


def bare(optimizer: Any) -> Any:
    """Return the optimizer inside wrappers such as accelerate's."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def plain_sgd(optimizer: Any, program: str, why: str, *, strict: bool) -> tuple[float, float]:
    """Return the momentum and weight decay of an optimizer that must be SGD.

    `strict`: only with these options, equal for all parameters. Raises InputError.
    """
    inside = bare(optimizer)
    if not isinstance(inside, SGD):
        raise InputError(
            f"optimizer: {type(inside).__name__} cannot run {program}: {why}; use "
            f"torch.optim.SGD, or {REMEDY}"
        )
    groups = inside.param_groups
    odd = [f"with {key}" for key in ODD if any(group.get(key) for group in groups)]
    if len({tuple(group[key] for key in ALIKE) for group in groups}) > 1:
        odd.append("whose parameter groups differ")
    if strict and odd:
        raise InputError(
            f"optimizer: SGD {odd[0]} cannot run {program}: {why}; use torch.optim.SGD with only "
            f"lr, momentum and weight_decay, equal for all parameters, or {REMEDY}"
        )
    return float(groups[0]["momentum"]), float(groups[0]["weight_decay"])
