"""Define Decoupled DiLoCo: islands train alone, and a syncer merges fragments."""

from functools import reduce
from itertools import count
from operator import add
from typing import Annotated, Any

from ..inputs.units import Seconds
from .codecs.codec import Raw
from .diloco import Inner, OuterMomentum
from .effects import Node
from .local import Codec, LearningRate, OuterRate
from .pieces.transform import AdamW, Nesterov
from .program import Program, doc

Fragments = Annotated[int, doc("number of fragments that take turns", ge=1)]


async def learner(
    me: Node,
    *,
    lr: LearningRate,
    inner: Inner = AdamW(),
    tau: Annotated[int, doc("steps between two displacements of a fragment", "steps", ge=1)],
    fragments: Fragments = 4,
    overlap: Annotated[
        int, doc("steps before a merged fragment is applied, below tau", "steps", ge=0)
    ] = 1,
    alpha: Annotated[float, doc("weight of a learner's own progress in a merge", ge=0, le=1)] = 0.5,
    codec: Codec = Raw(),
) -> None:
    """Train, send fragments in turn, and apply the fragments that the syncer merged."""
    channels = [codec.open(me) for _ in range(fragments)]
    # `anchor`: fragments as last applied. A learner has already sent the progress that it keeps. If
    # it sent this again, it would pull the common model back, and late merges would oscillate.
    x = anchor = me.start
    u, last, merged, sent = inner.init(x), 0, [0] * fragments, dict[int, int]()
    arrived = dict[int, Any]()  # merged fragments, perhaps before they are due

    def apply(f: int, shared: Any) -> None:
        nonlocal x, anchor
        own, before = list(me.cut(x, fragments)), list(me.cut(anchor, fragments))
        own[f] = before[f] = shared + alpha * (own[f] - shared)
        x, anchor, merged[f] = me.join(own), me.join(before), k
        del sent[f]

    for k in count(1):
        direction, u = inner.update(await me.gradient(x), u, x)
        x = x - lr(k) * direction
        for f in (f for f in range(fragments) if (k - tau * (f + 1) // fragments) % tau == 0):
            if f not in sent:  # otherwise its merge is pending: train on, and send more steps later
                part = me.cut(anchor - x, fragments)[f]
                channels[f].send(me.server, (part, float(f), float(k - merged[f]), float(k - last)))
                sent[f] = last = k
        due = [f for f, since in sent.items() if since <= k - overlap]
        while any(f not in arrived for f in due):
            answer = await me.receive_before(me.timer(0.0), me.server)
            if answer is None:
                break
            _, (shared, number) = answer
            arrived[int(number)] = shared
        for f in (f for f in due if f in arrived):
            apply(f, arrived.pop(f))


async def syncer(
    me: Node,
    *,
    fragments: Fragments = 4,
    quorum: Annotated[
        int, doc("number of learners that a merge needs, at most all", "learners", ge=1)
    ] = 1,
    grace: Annotated[
        Seconds,
        doc("time that a merge waits for more learners after its quorum", "s", shown="0 s", ge=0),
    ] = 0.0,
    outer_lr: OuterRate = 0.7,
    outer_momentum: OuterMomentum = 0.9,
    codec: Codec = Raw(),
) -> None:
    """Decoupled DiLoCo: islands train on; a syncer merges fragments of a quorum."""
    channel, outer, x = codec.open(me), Nesterov(outer_momentum), me.start
    v = [outer.init(part) for part in me.cut(x, fragments)]
    parts_of: list[dict[int, Any]] = [{} for _ in v]

    def store(message: Any) -> None:
        worker, (part, f, steps, new) = message
        me.count(int(new))
        parts_of[int(f)][worker] = steps, part

    while True:
        f = max(range(fragments), key=lambda fragment: len(parts_of[fragment]))
        if len(parts_of[f]) < min(quorum, me.workers):
            store(await channel.receive())
            continue
        window, parts = me.timer(grace), list(me.cut(x, fragments))
        while len(parts_of[f]) < me.workers:
            if (message := await channel.receive_before(window)) is None:
                await me.wait(window)
                break
            store(message)
        me.work(me.apply_seconds)
        tokens = sum(steps for steps, _ in parts_of[f].values())
        # scaled so that a period moves the model as far as a mean of all workers
        reporting = len(parts_of[f]) / me.workers
        mean = reduce(
            add, (reporting * steps / tokens * part for steps, part in parts_of[f].values())
        )
        step, v[f] = outer.update(mean, v[f], parts[f])
        parts[f] = parts[f] - outer_lr * step
        x = me.join(parts)
        me.mark(x)
        for worker in parts_of[f]:
            me.send(worker, (me.cut(x, fragments)[f], float(f)))
        parts_of[f] = {}


PROGRAMS = (
    Program(
        "decoupled-diloco", learner, "Douillard et al., arXiv 2604.21428 (as publicly described)",
        server=syncer,
    ),
)  # fmt: skip
