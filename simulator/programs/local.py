"""Define synchronous and periodic-averaging programs: one coroutine for all."""

from collections.abc import Callable
from functools import reduce
from itertools import count
from math import inf
from operator import add
from typing import Annotated, Any

from pydantic import Field, Strict

from .codecs.codec import CodecOf, Raw
from .effects import Node, Phase, Vector
from .pieces.schedule import OwnPeriod, PeriodOfSteps, Rate
from .pieces.transform import Fraction, Identity, TransformOf
from .program import Program, doc

LearningRate = Annotated[
    Rate, doc("learning rate, or its schedule over local steps", shown="[optimizer].lr")
]
LocalMomentum = Annotated[
    TransformOf,
    doc("momentum of the local steps, or another transform; 0: plain SGD", shown=0),
]
OuterTransform = Annotated[
    TransformOf,
    doc("momentum over averages, or another transform; 0: the plain average", shown=0),
]
OuterRate = Annotated[float, doc("learning rate of the outer step", gt=0)]
Tau = Annotated[PeriodOfSteps, doc("communication period", "steps")]
Until = Callable[[int], float] | OwnPeriod
Size = Annotated[int, Field(ge=1)]
Buckets = Annotated[
    Size | Annotated[tuple[Size, ...], Strict(False), Field(min_length=1)],
    doc(
        "pieces the gradient is averaged in: their number, or their sizes relative to each other; "
        "left out, where [model] has tensors or over NCCL: those of DistributedDataParallel"
    ),
]
Codec = Annotated[CodecOf, doc("compression of messages", shown="raw")]

ADACOMM = "Wang & Joshi, arXiv 1810.08313"


async def descend(
    me: Node, x: Vector, state: Any, k: int, lr: LearningRate, transform: LocalMomentum, tau: Until
) -> tuple[Vector, Any, int]:
    """Take `tau` local steps k, k + 1, ... from `x`.

    Return the parameters, the state of the `transform`, and the number of the last step. All steps
    but the last are marked. Nothing happens between steps, so an engine may take many at once.
    """
    if isinstance(tau, OwnPeriod):
        tau = tau.phase(me)
    if (leap := me.leap(transform)) is not None:
        result: tuple[Vector, Any, int] = await leap(x, state, k, Phase(lr, transform, tau))
        return result
    done = 0
    while True:
        direction, state = transform.update(await me.gradient(x), state, x)
        x = x - lr(k) * direction
        done += 1
        if done >= tau(k):
            return x, state, k
        me.mark(x)
        k += 1


async def psgd(me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity()) -> None:
    """No communication: the lower bound of time, with one model per worker."""
    await descend(me, me.start, momentum.init(me.start), 1, lr, momentum, lambda k: inf)


async def ssgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    codec: Codec = Raw(),
) -> None:
    """Synchronous SGD: average every gradient before every step."""
    channel = codec.open(me)
    x = me.start
    x, u, first = me.resumed(x=x, u=momentum.init(x), k=1)
    for k in count(first):
        direction, u = momentum.update(await channel.mean(await me.gradient(x)), u, x)
        x = x - lr(k) * direction
        me.mark(x)


async def ssgd_bucketed(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    buckets: Buckets = 4,
    overlap: Annotated[bool, doc("average a bucket while the next ones are computed")] = True,
    codec: Codec = Raw(),
) -> None:
    """Synchronous SGD whose averages overlap the backward pass, bucket by bucket."""
    pieces = range(buckets) if isinstance(buckets, int) else buckets
    channels = [codec.open(me) for _ in pieces]
    x = me.start
    x, u, first = me.resumed(x=x, u=momentum.init(x), k=1)
    for k in count(first):
        backward = zip(channels, await me.start_backward(x, buckets), strict=True)
        if overlap:
            means = [
                (channel, channel.start_mean(await me.wait(piece))) for channel, piece in backward
            ]
        else:
            ready = [(channel, await me.wait(piece)) for channel, piece in backward]
            means = [(channel, channel.start_mean(part)) for channel, part in ready]
        g = me.join([await channel.wait(mean) for channel, mean in means])
        direction, u = momentum.update(g, u, x)
        x = x - lr(k) * direction
        me.mark(x)


async def rounds(
    me: Node,
    lr: LearningRate,
    inner: LocalMomentum,
    tau: Tau,
    outer: OuterTransform,
    outer_lr: float,
    codec: Codec,
    restart: Callable[[Vector, Any], Any],
    samples: Any = None,
) -> None:
    """Run phases of tau local steps, with outer steps along the mean displacement.

    `restart` makes the inner transform's state for a phase from the new parameters and the state
    at the end of the last phase. `samples`: this worker's weight in the mean, sent with its
    displacement; None: equal weights.
    """
    channel = codec.open(me)
    x = me.start
    x, u, v, k = me.resumed(x=x, u=inner.init(x), v=outer.init(x), k=0)
    anchor = x
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, inner, tau)
        if samples is None:
            mean = await channel.mean(anchor - x)
        else:
            total, weight = await channel.mean((samples * (anchor - x), samples))
            mean = total / weight
        step, v = outer.update(mean, v, anchor)
        x = anchor = anchor - outer_lr * step
        u = restart(x, u)
        me.mark(x)


async def local_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau: Tau,
    outer: OuterTransform = Identity(),
    outer_lr: OuterRate = 1.0,
    codec: Codec = Raw(),
) -> None:
    """Local SGD (PASGD): tau local steps, then average the workers' displacements."""
    await rounds(
        me, lr, momentum, tau, outer, outer_lr, codec, restart=lambda x, state: momentum.init(x)
    )


async def post_local_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    switch_step: Annotated[int, doc("number of the last synchronous step", "steps", ge=0)],
    tau: Tau,
    codec: Codec = Raw(),
) -> None:
    """Post-local SGD: synchronous SGD up to a step, then local SGD with period tau."""
    gradients, displacements = codec.open(me), codec.open(me)
    x = me.start
    x, u, k = me.resumed(x=x, u=momentum.init(x), k=0)
    while k < switch_step:
        direction, u = momentum.update(await gradients.mean(await me.gradient(x)), u, x)
        k += 1
        x = x - lr(k) * direction
        me.mark(x)
    anchor = x
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, momentum, tau)
        x = anchor = anchor - await displacements.mean(anchor - x)
        me.mark(x)


async def easgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau: Tau,
    alpha: Annotated[
        float | None, doc("elasticity; at most 1 / workers is stable", shown="0.9 / workers", gt=0)
    ] = None,
    codec: Codec = Raw(),
) -> None:
    """EASGD: every tau steps an elastic force pulls workers and centre together."""
    channel = codec.open(me)
    pull = 0.9 / me.workers if alpha is None else alpha
    x = me.start
    x, centre, u, k = me.resumed(x=x, centre=x, u=momentum.init(x), k=0)
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, momentum, tau)
        away = x - centre
        centre = centre + me.workers * pull * await channel.mean(away)
        x = x - pull * away
        me.mark(x)


async def bmuf(
    me: Node,
    *,
    lr: LearningRate,
    local_momentum: LocalMomentum = Identity(),
    tau: Tau,
    momentum: Annotated[Fraction, doc("momentum over averages (beta)")] = 0.5,
    step: Annotated[float, doc("learning rate over averages (alpha)", gt=0)] = 1.0,
    codec: Codec = Raw(),
) -> None:
    """BMUF, or SlowMo: local SGD with slow momentum over averages."""
    channel = codec.open(me)
    x = me.start
    x, u, slow, k = me.resumed(x=x, u=local_momentum.init(x), slow=0.0 * x, k=0)
    anchor = x
    while True:
        before = k
        x, u, k = await descend(me, x, u, k + 1, lr, local_momentum, tau)
        rates = reduce(add, map(lr, range(before + 1, k + 1)), 0.0)
        rate = rates / (k - before) or 1.0  # at a rate of zero the workers have not moved
        slow = momentum * slow + await channel.mean(anchor - x) / rate
        x = anchor = anchor - step * rate * slow
        u = local_momentum.init(x)
        me.mark(x)


PROGRAMS = (
    Program("psgd", psgd, "Zhou et al., arXiv 2009.02701, section 4 (offline)", averages=False),
    Program(
        "ssgd", ssgd, f"{ADACOMM}, eq. 1 with tau = 1",
        linear=True, bound_covers=True, sends_gradients=True, rounds=True, alike=True,
    ),
    Program(
        "ssgd-bucketed", ssgd_bucketed, "Li et al., arXiv 2006.15704",
        linear=True, bound_covers=True, sends_gradients=True, overlaps=True, alike=True,
    ),
    Program(
        "local-sgd", local_sgd, f"{ADACOMM}, eq. 1",
        linear=True, bound_covers=True, rounds=True,
    ),
    Program(
        "post-local-sgd", post_local_sgd, "Lin et al., arXiv 1808.07217", linear=True, rounds=True
    ),
    Program(
        "easgd", easgd, "Zhang et al., arXiv 1412.6651, eq. 5 and 6",
        needs_sgd="its elastic pull is part of SGD's gradient, whose scale no other rule has",
        sends_distances=True,
    ),
    Program(
        "bmuf", bmuf, "Chen & Huo, ICASSP 2016; Wang et al., arXiv 1910.00643, algorithm 1",
        local_momentum="local_momentum", rounds=True,
    ),
)  # fmt: skip
