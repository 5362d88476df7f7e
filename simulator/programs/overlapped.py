"""Define programs whose averages overlap training: workers continue during a mean."""

from collections import deque
from itertools import count
from typing import Annotated, Any, Literal

from .codecs.codec import Raw
from .effects import Node
from .local import Codec, LearningRate, LocalMomentum, Tau, descend
from .pieces import compensation as compensations
from .pieces.transform import Fraction, Identity, TransformOf
from .program import Program, doc

Delay = Annotated[int, doc("whole steps from a mean's start to its use", "steps", ge=0)]
Period = Annotated[int, doc("steps between means", "steps", ge=1)]


async def dts(
    me: Node,
    *,
    lr: LearningRate,
    momentum: Annotated[Fraction, doc("momentum of the local steps")] = 0.0,
    delay: Delay,
    period: Period = 1,
    compensation: Annotated[
        compensations.CompensationName,
        doc("correction that replaces the worker's own share by a late mean"),
    ] = "exact",
    inner: Annotated[
        TransformOf | None,
        doc("another transform of the local steps; a late mean replaces the worker's own steps"),
    ] = None,
    codec: Codec = Raw(),
) -> None:
    """DTS: start a mean every `period` steps; apply it `delay` steps later."""
    rule: compensations.Displacement = compensations.KINDS[compensation](lr, momentum, period)
    channel = codec.open(me)
    zero = 0.0 * me.start
    state = me.start, zero  # parameters, and momentum buffer
    if inner is not None:
        rule, state = compensations.Steps(lr, inner), (me.start, inner.init(me.start))
    nothing = zero, zero
    state, own, flying, first = me.resumed(
        state=state, own=nothing, flying=deque[tuple[int, Any, Any]](), n=0
    )
    for n in count(first):
        state, own = rule.local(state, own, await me.gradient(state[0]), n)
        due = (n + 1) % period == 0
        # before the next start: `delay` means are under way, or more if it was shortened meanwhile
        while flying and flying[0][0] <= n - delay:
            since, theirs, mean = flying.popleft()
            state = rule.late(state, theirs, await channel.wait(mean), since, n)
            del theirs, mean  # otherwise they would occupy memory until the next mean is due
        if due and not delay:
            state = rule.late(state, own, await channel.mean(rule.sent(own)), n, n)
        elif due:
            flying.append((n, own, channel.start_mean(rule.sent(own))))
        if due:
            own = nothing
        me.mark(state[0])


async def cocod_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau: Tau,
    codec: Codec = Raw(),
) -> None:
    """CoCoD-SGD: local SGD with averages one period late; later own steps remain."""
    channel = codec.open(me)
    x = me.start
    x, snapshot, u, mean, own, k = me.resumed(
        x=x, snapshot=x, u=momentum.init(x), mean=None, own=0.0 * x, k=0
    )
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, momentum, tau)
        displacement = snapshot - x
        if mean is not None:
            x = x + own - await channel.wait(mean)
        own, mean = displacement, channel.start_mean(displacement)
        snapshot = x
        me.mark(x)


async def overlap_local_sgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    tau: Tau,
    alpha: Annotated[float, doc("pull of the workers towards the anchor", gt=0, lt=1)] = 0.6,
    beta: Annotated[Fraction, doc("momentum of the anchor")] = 0.7,
    codec: Codec = Raw(),
) -> None:
    """Overlap-Local-SGD: every tau steps, a pull to an anchor averaged meanwhile."""
    channel = codec.open(me)
    x = me.start
    x, anchor, u, v, mean, k = me.resumed(
        x=x, anchor=x, u=momentum.init(x), v=0.0 * x, mean=None, k=0
    )
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, momentum, tau)
        if mean is not None:
            anchor = anchor - await channel.wait(mean)
        x = (1 - alpha) * x + alpha * anchor
        v = beta * v + (anchor - x)
        mean = channel.start_mean(v)
        me.mark(x)


async def hpsgd(
    me: Node,
    *,
    lr: LearningRate,
    decision: Annotated[
        Literal["each", "shared"],
        doc("who polls whether a mean has arrived: each worker for itself, or all in a step"),
    ] = "each",
    epoch: Annotated[
        int, doc("steps between flushes of pending gradients; 0: never", "steps", ge=0)
    ] = 0,
    epoch_flush: Annotated[
        Literal["exact", "paper"], doc("flush at the end of an epoch: exact, or as published")
    ] = "exact",
    shortest_window: Annotated[
        Literal[1, 2],
        doc("fewest steps between means, and before the first: 2 as published, 1 as algorithm 2"),
    ] = 2,
    local_sgd_sync_multiplier: Annotated[
        float, doc("cost of averaging a model in local-sgd tables, in gradients", gt=0)
    ] = 1.0,
    codec: Codec = Raw(),
) -> None:
    """HPSGD: train on a replica while the gradients of the last replica are averaged.

    If `each` worker decides (algorithm 2), no worker waits. Windows are paired by number, and
    may hold different numbers of gradients. The published code never polls a mean in the step after
    its start. Algorithm 2 does, and starts the first mean before there is a replica. The default
    follows the code, which produced the paper's results. The published flush loses gradients that
    arrive at an epoch's end, and applies the last mean twice.
    """
    channel = codec.open(me)
    has_arrived = channel.finished if decision == "shared" else channel.arrived
    x, nothing = me.start, 0.0
    # `fresh`: whether x is the model itself, from which the replica begins
    x, model, pending, mean, fresh, first = me.resumed(
        x=x, model=x, pending=nothing, mean=None, fresh=True, k=1
    )
    for k in count(first):
        step = lr(k) * await me.gradient(x)
        x, pending = x - step, pending + step
        del step  # otherwise it would occupy memory during the next gradient
        if epoch and k % epoch == 0:
            arrived = nothing if mean is None else await channel.wait(mean)
            mean = channel.start_mean(pending)
            model = model - await channel.wait(mean)
            if epoch_flush == "exact":
                model, mean = model - arrived, None
            x, pending, fresh = model, nothing, True
        elif fresh and shortest_window == 2:
            fresh = False
        elif mean is None:  # nothing can have arrived
            mean, pending = channel.start_mean(pending), nothing
            x = x if shortest_window == 2 else model  # continue, or begin a replica
        elif await has_arrived(mean):
            x = model = model - await channel.wait(mean)
            mean, pending, fresh = channel.start_mean(pending), nothing, True
        me.mark(x)


SPARSE = "Zhu et al., Distributed Training Across the World"
PROGRAMS = (
    Program(
        "dts", dts, f"{SPARSE}, eq. 3 and 4", linear=True, sends_gradients=True, overlaps=True
    ),
    Program(
        "cocod-sgd", cocod_sgd, "Shen et al., arXiv 1906.12043, algorithm 1",
        linear=True, overlaps=True,
    ),
    Program(
        "overlap-local-sgd", overlap_local_sgd, "Wang et al., arXiv 2002.09539, algorithm 1",
        overlaps=True,
    ),
    Program(
        "hpsgd", hpsgd, "Zhou et al., arXiv 2009.02701, algorithms 2 and 3",
        sends_gradients=True, overlaps=True, asks=True, pooled_with={"decision": "each"},
    ),
)  # fmt: skip
