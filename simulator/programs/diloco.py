"""Define the DiLoCo family: local phases of AdamW, then outer Nesterov steps."""

from collections.abc import Callable
from typing import Annotated, Any

from .codecs.codec import Raw
from .effects import Node, Vector
from .local import Codec, LearningRate, OuterRate, Tau, descend, rounds
from .pieces.schedule import FixedPeriod
from .pieces.transform import AdamW, Fraction, Nesterov, TransformOf
from .program import Program, doc

Inner = Annotated[TransformOf, doc("transform of the local steps", shown={"kind": "adamw"})]
OuterMomentum = Annotated[Fraction, doc("Nesterov momentum of the outer step")]
Late = Callable[[Vector, Vector, Vector | None], Vector | None]


async def diloco(
    me: Node,
    *,
    lr: LearningRate,
    inner: Inner = AdamW(),
    tau: Tau,
    outer_lr: OuterRate = 0.7,
    outer_momentum: OuterMomentum = 0.9,
    codec: Codec = Raw(),
) -> None:
    """DiLoCo: tau steps of AdamW, then a Nesterov step along the mean displacement."""
    await rounds(
        me, lr, inner, tau, outer=Nesterov(outer_momentum), outer_lr=outer_lr, codec=codec,
        restart=lambda x, state: state,
    )  # fmt: skip


async def streaming_diloco(
    me: Node,
    *,
    lr: LearningRate,
    inner: Inner = AdamW(),
    tau: Annotated[int, doc("steps between two means of a fragment", "steps", ge=1)],
    fragments: Annotated[int, doc("number of fragments that take turns", ge=1)] = 4,
    overlap: Annotated[
        int, doc("steps from starting a mean to applying it, below tau", "steps", ge=0)
    ] = 1,
    alpha: Annotated[float, doc("weight of a worker's own progress in a merge", ge=0, le=1)] = 0.5,
    outer_lr: OuterRate = 0.7,
    outer_momentum: OuterMomentum = 0.9,
    codec: Codec = Raw(),
) -> None:
    """Streaming DiLoCo: fragments take turns, and training continues during means."""
    channels = [codec.open(me) for _ in range(fragments)]
    outer = Nesterov(outer_momentum)
    x = me.start
    # In a cycle of `span` steps from `begun`, each fragment starts a mean, and applies it `late`
    # steps later. `means`: by fragment, the step at which to apply its mean, and the handle.
    x, anchor, u, v, means, begun, span, late, k = me.resumed(
        x=x, anchor=x, u=inner.init(x), v=[outer.init(part) for part in me.cut(x, fragments)],
        means=dict[int, tuple[int, Any]](), begun=0, span=tau, late=overlap, k=0,
    )  # fmt: skip
    while True:
        starts = [begun + (span * (f + 1) // fragments or span) for f in range(fragments)]
        ends = [at for at, _ in means.values()]
        ahead = min(step for step in (*starts, *ends) if step > k) - k
        x, u, k = await descend(me, x, u, k + 1, lr, inner, FixedPeriod(ahead))
        for f in (f for f in range(fragments) if starts[f] == k):
            mean = channels[f].start_mean(me.cut(anchor - x, fragments)[f])
            means[f] = k + late, mean
        for f in [f for f, (at, _) in means.items() if at == k]:
            shared, own = list(me.cut(anchor, fragments)), list(me.cut(x, fragments))
            step, v[f] = outer.update(await channels[f].wait(means.pop(f)[1]), v[f], shared[f])
            shared[f] = shared[f] - outer_lr * step
            own[f] = shared[f] + alpha * (own[f] - shared[f])
            anchor, x = me.join(shared), me.join(own)
        if k == starts[-1]:  # the last mean is applied before its fragment starts the next
            begun, span, late = k, max(tau, late + 1), overlap
        me.mark(x)


async def late_rounds(
    me: Node,
    lr: LearningRate,
    inner: Inner,
    tau: Tau,
    outer_lr: float,
    outer_momentum: float,
    codec: Codec,
    combine: Late,
) -> None:
    """Run rounds whose outer step uses a mean that started one round earlier.

    `combine` makes the outer gradient from a worker's displacements in this round and the last, and
    the mean of the last ones (None in the first round); None means no outer step.
    """
    channel, outer = codec.open(me), Nesterov(outer_momentum)
    x = me.start
    x, u, v, before, mean, k = me.resumed(
        x=x, u=inner.init(x), v=outer.init(x), before=0.0 * x, mean=None, k=0
    )
    anchor = x
    while True:
        x, u, k = await descend(me, x, u, k + 1, lr, inner, tau)
        own = anchor - x
        gradient = combine(own, before, None if mean is None else await channel.wait(mean))
        before, mean = own, channel.start_mean(own)
        if gradient is not None:
            step, v = outer.update(gradient, v, anchor)
            anchor = anchor - outer_lr * step
        x = anchor
        me.mark(x)


async def delayed_diloco(
    me: Node,
    *,
    lr: LearningRate,
    inner: Inner = AdamW(),
    tau: Tau,
    outer_lr: OuterRate = 0.7,
    outer_momentum: OuterMomentum = 0.9,
    codec: Codec = Raw(),
) -> None:
    """Delayed DiLoCo: outer steps use the mean displacement of the previous round."""
    await late_rounds(
        me, lr, inner, tau, outer_lr, outer_momentum, codec, lambda own, before, mean: mean
    )


async def eager_diloco(
    me: Node,
    *,
    lr: LearningRate,
    inner: Inner = AdamW(),
    tau: Tau,
    outer_lr: OuterRate = 0.7,
    outer_momentum: OuterMomentum = 0.9,
    codec: Codec = Raw(),
) -> None:
    """Eager DiLoCo: a worker's fresh displacement with the others' previous ones."""

    def combine(own: Vector, before: Vector, mean: Vector | None) -> Vector:
        fresh = (own - before) / me.workers
        return fresh if mean is None else mean + fresh

    await late_rounds(me, lr, inner, tau, outer_lr, outer_momentum, codec, combine)


EAGER = "Kale et al., arXiv 2502.12996"
PROGRAMS = (
    Program("diloco", diloco, "Douillard et al., arXiv 2311.08105, algorithm 1", rounds=True),
    Program(
        "streaming-diloco", streaming_diloco, "Douillard et al., arXiv 2501.18512", overlaps=True
    ),
    Program("delayed-diloco", delayed_diloco, f"{EAGER}, delayed outer gradients", overlaps=True),
    Program("eager-diloco", eager_diloco, f"{EAGER}, eager outer gradients", overlaps=True),
)
