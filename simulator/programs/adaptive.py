"""Define AdaComm: periodic averaging whose period follows the training loss."""

from collections.abc import Callable
from itertools import count
from math import ceil, inf, isfinite, sqrt
from typing import Annotated, Any, Literal, NamedTuple

from ..inputs.units import Seconds
from .codecs.codec import Raw
from .effects import Node
from .local import (
    ADACOMM,
    Codec,
    LearningRate,
    LocalMomentum,
    OuterTransform,
)
from .pieces.transform import Identity
from .program import Program, doc


class Shared(NamedTuple):
    """Values that all workers share after an average: means, and the latest clock.

    A mean of clocks would lag after an outage, and pass several boundaries within seconds.
    """

    first_loss: float  # at the first step of the round
    mean_loss: float  # over the steps of the round
    last_loss: float  # at the last step of the round
    clock: float  # seconds, when the last worker reached the average


class Gate:
    """A rate held until the period is 1, which then takes one change of its schedule.

    The next change waits until the rule has chosen a period of 1 again. A lower rate lengthens the
    period by the root of the ratio; all passed changes at once would raise it from 1 to hundreds.
    """

    def __init__(self, tau0: int, lr: Callable[[int], Any]) -> None:
        self.rate, self.step = lr(1), 1  # the rate, and a step at which the schedule has it
        self.is_open = tau0 == 1

    def at(self, k: int, lr: Callable[[int], Any]) -> Any:
        """Return the rate at step k; `lr` is the schedule."""
        if self.is_open and lr(k) != self.rate:
            while lr(self.step) == self.rate:
                self.step += 1
            self.rate, self.is_open = lr(self.step), False
        return self.rate

    def follow(self, tau: int, chosen: bool) -> None:
        """Open or close by a period; `chosen`: whether the rule has decided on it."""
        self.is_open = tau == 1 and (self.is_open or chosen)


class PaperRule:
    """The paper's rule: eq. 6 at every `interval`, with its refinement on a plateau.

    If several boundaries pass between two averages, as in an outage, it decides once. tau0 is
    outside the root, so the rule returns tau0 while loss and rate are unchanged. `at_boundary`:
    whether F is the loss of the last step before a boundary, or the mean over the steps since the
    previous one.
    """

    def __init__(
        self,
        tau0: int,
        interval: float,
        gamma: float,
        slack: int,
        lr_exponent: int,
        at_boundary: bool = False,
    ) -> None:
        self.tau0, self.interval, self.gamma, self.slack = tau0, interval, gamma, slack
        self.lr_exponent, self.at_boundary = lr_exponent, at_boundary
        self.level = 0.0  # number of the last boundary passed
        self.decides = False  # whether the last period was a decision
        self.first: tuple[float, float] | None = None  # loss and rate at t = 0
        self.rate = 0.0  # at the last boundary
        self.total, self.steps = 0.0, 0  # loss summed over the steps since the last boundary

    def __call__(self, tau: int, shared: Shared, rate: float) -> int:
        """Return the next period from the last one and the workers' shared values."""
        if self.first is None:
            self.rate = rate
        if self.first is None or not isfinite(self.first[0]):  # a step may overflow
            self.first = shared.first_loss, rate
        self.total += shared.mean_loss * tau
        self.steps += tau
        reached = shared.clock // self.interval
        self.decides = reached > self.level
        if not self.decides:
            return tau
        loss = shared.last_loss if self.at_boundary else self.total / self.steps
        last_rate = self.rate
        self.level, self.rate, self.total, self.steps = reached, rate, 0.0, 0
        first_loss, first_rate = self.first
        ratio = (first_rate / rate) ** self.lr_exponent * loss / first_loss if rate else inf
        if not 0 <= ratio < inf:
            return tau
        following = max(1, ceil(sqrt(ratio) * self.tau0))
        if rate == last_rate and following + self.slack >= tau:
            return max(1, ceil(self.gamma * tau))
        return following


class PaddleRule:
    """Paddle's rule (AdaptiveLocalSGD): at every average, tau0 in the root, 1 to 16."""

    decides = True

    def __init__(self, tau0: int) -> None:
        self.tau0 = tau0
        self.first: tuple[float, float] | None = None

    def __call__(self, tau: int, shared: Shared, rate: float) -> int:
        """Return the next period from the last one and the workers' shared values."""
        if self.first is None or not isfinite(self.first[0]):
            self.first = shared.first_loss, rate
        first_loss, first_rate = self.first
        ratio = first_rate / rate * shared.last_loss / first_loss * self.tau0 if rate else inf
        return min(16, max(1, ceil(sqrt(ratio)))) if 0 <= ratio < inf else tau


async def adacomm(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau0: Annotated[int, doc("first communication period", "steps", ge=1)],
    interval: Annotated[
        Seconds, doc("time between adaptations (T0)", "s", shown="60 s", gt=0)
    ] = 60.0,
    gamma: Annotated[float, doc("factor of the period on a plateau of the loss", gt=0, lt=1)] = 0.5,
    slack: Annotated[
        int, doc("smallest decrease of the period off a plateau (s)", "steps", ge=0)
    ] = 0,
    lr_exponent: Annotated[Literal[1, 3], doc("power of lr0/lr in the rule")] = 1,
    block_momentum: OuterTransform = Identity(),
    gate_lr_until_tau_is_1: Annotated[
        bool, doc("hold the learning rate while tau > 1, then take one change of it at a time")
    ] = False,
    loss_of: Annotated[
        Literal["interval", "boundary"],
        doc("F of the rule: mean since the last boundary, or the last step before this one"),
    ] = "interval",
    variant: Annotated[
        Literal["paper", "paddle"], doc("rule for the period: the paper's, or Paddle's")
    ] = "paper",
    codec: Codec = Raw(),
) -> None:
    """AdaComm: local SGD whose period shrinks as the training loss falls."""
    # F of eq. 6 is the loss at the boundary, of a single mini-batch. The mean over the
    # interval varies less and is the default, though it lags behind.
    rule: PaddleRule | PaperRule = (
        PaddleRule(tau0)
        if variant == "paddle"
        else PaperRule(tau0, interval, gamma, slack, lr_exponent, loss_of == "boundary")
    )
    channel = codec.open(me)
    x, losses = me.start, list[float]()
    x, anchor, u, v, tau, gate, losses, rule, first = me.resumed(
        x=x, anchor=x, u=momentum.init(x), v=block_momentum.init(x),
        tau=tau0, gate=Gate(tau0, lr), losses=losses, rule=rule, k=1,
    )  # fmt: skip
    for k in count(first):
        rate = gate.at(k, lr) if gate_lr_until_tau_is_1 else lr(k)
        loss, g = await me.loss_and_gradient(x)
        direction, u = momentum.update(g, u, x)
        x = x - rate * direction
        losses.append(loss)
        if len(losses) == tau:
            round_loss = sum(losses) / tau
            message = (anchor - x, losses[0], round_loss, loss, me.arrival())
            displacement, *shared = await channel.mean(message)
            step, v = block_momentum.update(displacement, v, anchor)
            x = anchor = anchor - step
            u, losses = momentum.init(x), []
            tau = rule(tau, Shared(*shared), rate)
            gate.follow(tau, rule.decides)
        me.mark(x)


PROGRAMS = (
    Program(
        "adacomm", adacomm, f"{ADACOMM}, eq. 6 to 8", needs_loss=True, linear=True, rounds=True
    ),
)
