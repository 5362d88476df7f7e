"""Define federated learning: clients train on their data; rounds combine models."""

from collections.abc import Sequence, Set
from itertools import islice
from typing import Annotated, Any, Literal

from .codecs.codec import Raw
from .effects import Node, Payload, Vector
from .local import (
    Codec,
    LearningRate,
    LocalMomentum,
    OuterRate,
    OuterTransform,
    Tau,
    descend,
    rounds,
)
from .pieces.transform import Identity, Proximal, Transform
from .program import Program, doc

Mu = Annotated[float, doc("FedProx's pull towards the round's initial model; 0: none", ge=0)]


def proximal(mu: float, momentum: LocalMomentum) -> Transform:
    """Return the transform of local steps, with FedProx's term if `mu` > 0."""
    return Proximal(mu, momentum) if mu else momentum


async def fedavg(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    mu: Mu = 0.0,
    tau: Tau,
    outer: OuterTransform = Identity(),
    outer_lr: OuterRate = 1.0,
    codec: Codec = Raw(),
) -> None:
    """FedAvg: tau local steps, then the mean displacement, weighted by samples."""
    inner = proximal(mu, momentum)
    await rounds(
        me, lr, inner, tau, outer, outer_lr, codec,
        restart=lambda x, state: inner.init(x), samples=me.samples,
    )  # fmt: skip


def chosen(me: Node, rng: Any, idle: Sequence[int], busy: Set[int]) -> Sequence[int]:
    """Choose the idle clients to train: all, or as many as [cluster.sampling] allows.

    A client that leaves during training frees its place, but does not lose its work.
    """
    if rng is None:
        return idle
    away = me.absentees()
    free = me.participants - len(busy - away)
    order = (idle[index] for index in rng.permutation(len(idle)).tolist())
    available = [*islice((client for client in order if client not in away), max(free, 0))]
    return available or ([] if busy else idle[:1])  # at least one, so that the run continues


def first(me: Node) -> tuple[Any, Sequence[int]]:
    """Return the generator that chooses clients (None: all), and the first clients."""
    rng = me.generator(shared=True) if me.participants < me.workers else None
    return rng, chosen(me, rng, range(me.workers), set())


async def report(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    mu: Mu = 0.0,
    tau: Tau,
    codec: Codec = Raw(),
) -> None:
    """Train for tau steps, send the displacement, and go on from the server's answer."""
    sampled, selected = first(me)
    channel, inner = codec.open(me), proximal(mu, momentum)
    x, k, weight = me.start, 0, me.samples
    if sampled is not None and me.rank not in selected:
        _, x = await me.receive(me.server)
    while True:
        anchor, before = x, k
        x, _, k = await descend(me, x, inner.init(x), k + 1, lr, inner, tau)
        away, steps = anchor - x, float(k - before)
        message = (away, steps) if weight is None else (weight * away, steps, weight)
        x = await channel.request(me.server, message)


async def fedbuff_server(
    me: Node,
    *,
    buffer: Annotated[int, doc("displacements per update (K)", ge=1)],
    staleness: Annotated[
        Literal["root", "none"],
        doc("weight of a displacement s updates late: 1 / sqrt(1 + s), or 1 for all"),
    ] = "root",
    max_staleness: Annotated[
        int | None, doc("largest delay in updates; later displacements are dropped", ge=0)
    ] = None,
    outer: OuterTransform = Identity(),
    outer_lr: OuterRate = 1.0,
    codec: Codec = Raw(),
) -> None:
    """FedBuff: the server updates after every K displacements, however late they are."""
    rng, selected = first(me)
    channel, x, busy = codec.open(me), me.start, {*selected}
    v, updates, reports = outer.init(x), 0, list[tuple[int, Payload]]()
    idle = [rank for rank in range(me.workers) if rank not in busy]
    trained_from = [0 if rank in busy else -1 for rank in range(me.workers)]  # each client's update
    while True:
        client, message = await channel.receive()
        late = updates - trained_from[client]
        away, steps, *weight = message or (x, 0)  # an empty one means that the client dropped out
        dropped = not message or (max_staleness is not None and late > max_staleness)
        me.count(0 if dropped else int(steps))
        if not message:
            trained_from[client] = -1  # the client has not reported for this model
        if not dropped:
            factor = (1 + late) ** -0.5 if staleness == "root" else 1.0
            reports.append((client, (factor * away, *weight)))
        idle.append(client)
        busy.discard(client)
        due = len(reports) >= min(buffer, me.workers)
        if due:
            me.work(me.apply_seconds)
            step, v = outer.update(_mean(reports), v, x)
            x = x - outer_lr * step
            reports, updates = [], updates + 1
            me.mark(x)
        fresh = [client for client in idle if trained_from[client] < updates]  # before this model
        for client in chosen(me, rng, fresh, busy):
            idle.remove(client)
            busy.add(client)
            trained_from[client] = updates
            me.send(client, x)


def _mean(reports: list[tuple[int, Payload]]) -> Vector:
    """Return the weighted mean of displacements, summed in rank order."""
    first, *rest = [values for _, values in sorted(reports, key=lambda reply: reply[0])]
    for other in rest:
        first = tuple(total + part for total, part in zip(first, other, strict=True))
    total, *weight = (part / len(reports) for part in first)
    return total / weight[0] if weight else total


PROGRAMS = (
    Program(
        "fedavg", fedavg, "McMahan et al., arXiv 1602.05629, algorithm 1", linear=True, rounds=True
    ),
    Program(
        "fedbuff",
        report,
        "Nguyen et al., arXiv 2106.06639, algorithm 1",
        server=fedbuff_server,
        selects=True,
    ),
)
