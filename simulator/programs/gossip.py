"""Define gossip programs: neighbours exchange models, without a centre."""

from collections.abc import Sequence
from itertools import count
from typing import Annotated

from .effects import Handle, Node, Vector
from .local import LearningRate, LocalMomentum
from .pieces.graph import GraphOf, Ring
from .pieces.transform import Identity
from .program import Program, doc

Neighbours = Annotated[GraphOf, doc("graph of the workers that exchange models", shown="ring")]
Row = Sequence[tuple[int, float]]
CODEC = {
    "codec": "neighbours exchange whole models, and a codec for gradients would drop most of their "
    "entries; leave it out"
}
MOMENTUM = {"momentum": "its correction cancels exactly one plain gradient step; leave it out"}


def tell(me: Node, x: Vector, row: Row) -> None:
    """Send `x` to the neighbours."""
    for other, _ in row:
        if other != me.rank:
            me.send(other, x)


async def hear(me: Node, x: Vector, row: Row) -> Vector:
    """Receive the neighbours' vectors; return their weighted average with `x`."""
    mixed = 0.0 * x
    for other, weight in row:
        model = x if other == me.rank else (await me.receive(other))[1]
        mixed = mixed + weight * model
    return mixed


async def d_psgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    graph: Neighbours = Ring(),
) -> None:
    """D-PSGD: average the models of neighbours while computing, then descend."""
    row = graph.weights(me.rank, me.workers)
    x = me.start
    x, u, first = me.resumed(x=x, u=momentum.init(x), k=1)
    for k in count(first):
        tell(me, x, row)
        direction, u = momentum.update(await me.gradient(x), u, x)
        x = await hear(me, x, row) - lr(k) * direction
        me.mark(x)


async def d2(me: Node, *, lr: LearningRate, graph: Neighbours = Ring()) -> None:
    """D^2: D-PSGD that subtracts its last step, so that differing data do no harm."""
    row = graph.weights(me.rank, me.workers)
    x = me.start
    x, before, last, first = me.resumed(x=x, before=x, last=0.0 * x, k=1)
    for k in count(first):
        step = lr(k) * await me.gradient(x)
        moved = x + (x - before) - (step - last)
        before, last = x, step
        tell(me, moved, row)
        x = (moved + await hear(me, moved, row)) / 2  # all eigenvalues of (I + W)/2 are >= 0
        me.mark(x)


async def ad_psgd(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    graph: Neighbours = Ring(),
) -> None:
    """AD-PSGD: average with a neighbour while computing; apply the stale gradient."""
    partners = graph.partners(me.rank, me.workers)
    asks = bool(partners) and graph.active(me.rank, me.workers)
    draw = me.generator()
    x = me.start
    u = momentum.init(x)
    for k in count(1):
        (computing,) = await me.start_backward(x, 1)
        if asks:
            x = await ask(me, x, computing, partners[int(draw.integers(len(partners)))])
        else:
            x = await answer(me, x, computing)
        direction, u = momentum.update(await me.wait(computing), u, x)
        x = x - lr(k) * direction
        me.mark(x)


async def ask(me: Node, x: Vector, computing: Handle, partner: int) -> Vector:
    """Average with a partner, who answers with its model before averaging."""
    me.send(partner, x)
    message = await me.receive_before(computing, partner)
    if message is None:
        await me.wait(computing)
        message = await me.receive(partner)
    else:
        await me.receive_before(computing, partner)  # no message comes: wait for the gradient
    return (x + message[1]) / 2


async def answer(me: Node, x: Vector, computing: Handle) -> Vector:
    """Average with every worker that asks while the gradient is computed."""
    while (message := await me.receive_before(computing)) is not None:
        other, model = message
        me.send(other, x)
        x = (x + model) / 2
    return x


PROGRAMS = (
    Program(
        "d-psgd", d_psgd, "Lian et al., arXiv 1705.09056, algorithm 1", gossips=True, refuses=CODEC
    ),
    Program(
        "d2", d2, "Tang et al., arXiv 1803.07068, algorithm 1",
        gossips=True, refuses=CODEC | MOMENTUM,
    ),
    Program(
        "ad-psgd", ad_psgd, "Lian et al., arXiv 1710.06952, algorithm 1",
        gossips=True, pooled=True, refuses=CODEC,
    ),
)  # fmt: skip
