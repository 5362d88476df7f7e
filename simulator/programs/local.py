"""Synchronous and periodic-averaging programs: every worker runs the same text."""

from itertools import count
from typing import Annotated

from simulator.effects import Node
from simulator.pieces.schedule import PeriodOfSteps, Rate
from simulator.pieces.transform import Average, Identity, MomentumOf, OuterOf
from simulator.programs.program import Program, doc

LearningRate = Annotated[Rate, doc("learning rate, or its schedule over local steps")]
LocalMomentum = Annotated[MomentumOf, doc("momentum of the local steps; 0 is plain SGD", shown=0)]
Tau = Annotated[PeriodOfSteps, doc("communication period", "steps")]

ADACOMM = "Wang & Joshi, arXiv 1810.08313"


async def psgd(me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity()) -> None:
    """No communication at all: the lower bound of time, one model per worker."""
    x = me.start
    u = momentum.init(x)
    for k in count(1):
        direction, u = momentum.update(await me.gradient(x), u)
        x = x - lr(k) * direction
        me.mark(x)


async def ssgd(me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity()) -> None:
    """Synchronous SGD: average every gradient before every step."""
    x = me.start
    u = momentum.init(x)
    for k in count(1):
        g = await me.mean(await me.gradient(x))
        direction, u = momentum.update(g, u)
        x = x - lr(k) * direction
        me.mark(x)


async def ssgd_bucketed(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    buckets: Annotated[int, doc("pieces the gradient is averaged in", ge=1)] = 4,
) -> None:
    """Synchronous SGD whose averages overlap the backward pass, bucket by bucket, in order."""
    x = me.start
    u = momentum.init(x)
    for k in count(1):
        backward = await me.start_backward(x, buckets)
        means = [me.start_mean(await me.wait(piece)) for piece in backward]
        g = me.join([await me.wait(mean) for mean in means])
        direction, u = momentum.update(g, u)
        x = x - lr(k) * direction
        me.mark(x)


async def local_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau: Tau,
    outer: Annotated[OuterOf, doc("what is done with each average")] = Average(),
) -> None:
    """Local SGD (PASGD): tau local steps, then average the parameters."""
    x = anchor = me.start
    u, v = momentum.init(x), outer.init(x)
    since = 0
    for k in count(1):
        direction, u = momentum.update(await me.gradient(x), u)
        x = x - lr(k) * direction
        since += 1
        if since >= tau(k):
            x, v = outer.update(anchor, await me.mean(x), v)
            anchor, u, since = x, momentum.init(x), 0
        me.mark(x)


async def post_local_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    switch_step: Annotated[int, doc("last synchronous step", "steps", ge=0)],
    tau: Tau,
) -> None:
    """Post-local SGD: exactly synchronous SGD up to a step, then local SGD with period tau."""
    x = me.start
    u = momentum.init(x)
    since = 0
    for k in count(1):
        g = await me.gradient(x)
        if k <= switch_step:
            g = await me.mean(g)
        direction, u = momentum.update(g, u)
        x = x - lr(k) * direction
        since += k > switch_step
        if since >= tau(k):
            x, since = await me.mean(x), 0
        me.mark(x)


PROGRAMS = (
    Program("psgd", psgd, "Zhou et al., arXiv 2009.02701, section 4 (offline)", averages=False),
    Program("ssgd", ssgd, f"{ADACOMM}, eq. 1", bound_covers=True),
    Program("ssgd-bucketed", ssgd_bucketed, "Li et al., arXiv 2006.15704", bound_covers=True),
    Program("local-sgd", local_sgd, f"{ADACOMM}, eq. 2 and 3", bound_covers=True),
    Program("post-local-sgd", post_local_sgd, "Lin et al., arXiv 1808.07217"),
)
