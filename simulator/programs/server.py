"""Define parameter-server programs: a coroutine for workers, one for the server.

A server's learning rate follows the mean number of steps per worker: used gradients over workers.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Annotated, Literal

from .codecs.codec import Raw
from .effects import Node
from .local import Codec, LearningRate, LocalMomentum
from .pieces.transform import Identity
from .program import Function, Program, doc

K = Annotated[int, doc("gradients per update, at most the number of workers", "gradients", ge=1)]


class Gate:
    """A gate that stops workers `lead` + 1 arrivals ahead of the slowest."""

    def __init__(self, workers: int, lead: int) -> None:
        self._lead, self._times = lead, [0] * workers
        self._waiting: list[int] = []

    def admit(self, worker: int) -> Iterable[int]:
        """Record an arrival; return the workers that may go on, in order of arrival."""
        self._times[worker] += 1
        arrived, most = [*self._waiting, worker], min(self._times) + self._lead
        self._waiting = [rank for rank in arrived if self._times[rank] > most]
        return [rank for rank in arrived if self._times[rank] <= most]


bounded_lead = Gate
"""The public name."""


async def push_and_pull(me: Node, *, codec: Codec = Raw()) -> None:
    """Send gradients to the server and continue from the parameters in its answers."""
    channel = codec.open(me)
    x = me.start
    while True:
        x = await channel.request(me.server, await me.gradient(x))


async def apply_each(
    me: Node,
    lr: LearningRate,
    momentum: LocalMomentum,
    codec: Codec,
    admit: Callable[[int], Iterable[int]],
) -> None:
    """Apply gradients as they arrive; answer the workers that `admit(worker)` names."""
    channel = codec.open(me)
    x = me.start
    u = momentum.init(x)
    for update in count(me.workers):
        worker, g = await channel.receive()
        me.work(me.apply_seconds)
        direction, u = momentum.update(g, u, x)
        x = x - lr(update // me.workers) * direction
        me.mark(x)
        for ready in admit(worker):
            me.send(ready, x)


async def asgd_server(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    codec: Codec = Raw(),
) -> None:
    """Asynchronous SGD: a server applies each gradient as it arrives, however stale."""
    await apply_each(me, lr, momentum, codec, lambda worker: [worker])


async def ssp_server(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    staleness: Annotated[
        int, doc("steps that a worker may be ahead of the slowest", "steps", ge=0)
    ],
    codec: Codec = Raw(),
) -> None:
    """SSP: asynchronous SGD in which workers too far ahead wait for the slowest."""
    await apply_each(me, lr, momentum, codec, bounded_lead(me.workers, staleness).admit)


async def collect(
    me: Node,
    lr: LearningRate,
    momentum: LocalMomentum,
    threshold: Callable[[int], int],
    codec: Codec,
    *,
    mean: bool,
    blocking: bool,
    by_updates: bool = False,
) -> None:
    """Update whenever `threshold(count)` gradients have arrived, count = 0, 1, ...

    `mean`: apply their mean, else their sum. `blocking`: workers wait for the update that includes
    their gradient; else the server answers at once. `by_updates`: count updates, not arrivals.
    """
    channel = codec.open(me)
    x = me.start
    u = momentum.init(x)
    total, waiting, updates = 0.0 * x, list[int](), 0
    gathered = 0
    for arrivals in count(1):
        worker, g = await channel.receive()
        total, gathered = total + g, gathered + 1
        waiting.append(worker)
        due = gathered >= min(me.workers, threshold(updates if by_updates else arrivals))
        if due:
            me.work(me.apply_seconds)
            direction, u = momentum.update(total / gathered if mean else total, u, x)
            x = x - lr(1 + (arrivals - 1) // me.workers) * direction
            total, gathered, updates = 0.0 * x, 0, updates + 1
            me.mark(x)
        if due or not blocking:
            for worker in waiting:
                me.send(worker, x)
            waiting = []


async def hybrid_server(
    me: Node,
    *,
    lr: LearningRate,
    momentum: LocalMomentum = Identity(),
    step_size: Annotated[
        int, doc("gradients after which the threshold rises by one (s)", ge=1)
    ] = 500,
    threshold: Annotated[
        int | None, doc("gradients per update, instead of step_size", "gradients", ge=1)
    ] = None,
    aggregate: Annotated[
        Literal["sum", "mean"], doc("apply the sum or the mean of the gradients")
    ] = "sum",
    wait: Annotated[bool, doc("workers wait for the update that includes their gradient")] = True,
    count: Annotated[Literal["arrivals", "updates"], doc("unit of the count")] = "arrivals",
    codec: Codec = Raw(),
) -> None:
    """Hybrid: each update sums more gradients, from asynchronous to synchronous SGD."""
    await collect(
        me, lr, momentum, lambda count: threshold or 1 + count // step_size, codec,
        mean=aggregate == "mean", blocking=wait, by_updates=count == "updates",
    )  # fmt: skip


async def k_async_server(
    me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity(), k: K, codec: Codec = Raw()
) -> None:
    """K-async SGD: update with the mean of K workers' gradients; only these wait."""
    await collect(me, lr, momentum, lambda _: k, codec, mean=True, blocking=True)


async def k_batch_async_server(
    me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity(), k: K, codec: Codec = Raw()
) -> None:
    """K-batch-async SGD: update with the mean of any K gradients; no worker waits."""
    await collect(me, lr, momentum, lambda _: k, codec, mean=True, blocking=False)


async def race(me: Node, *, codec: Codec = Raw()) -> None:
    """Compute a gradient until it is done or a new model makes it obsolete."""
    channel = codec.open(me)
    x, number = me.start, 0.0
    while True:
        (computing,) = await me.start_backward(x, 1)
        answer = await me.receive_before(computing, me.server)
        if answer is None:
            channel.send(me.server, (await me.wait(computing), number))
            answer = await me.receive(me.server)
        _, (x, number) = answer


async def k_sync_server(
    me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity(), k: K, codec: Codec = Raw()
) -> None:
    """K-sync SGD: apply the mean of a round's first K gradients; discard the others."""
    channel = codec.open(me)
    x = me.start
    u = momentum.init(x)
    for update in count(1):
        total, gathered = 0.0 * x, 0
        while gathered < k:
            _, (g, number) = await channel.receive()
            if number == update - 1:
                total, gathered = total + g, gathered + 1
            else:
                me.discard()  # the gradient was in flight when its round ended
        me.work(me.apply_seconds)
        direction, u = momentum.update(total / k, u, x)
        x = x - lr(1 + (k * update - 1) // me.workers) * direction
        me.mark(x)
        for worker in range(me.workers):
            me.send(worker, (x, float(update)))


def _served(name: str, server: Function, source: str, worker: Function = push_and_pull) -> Program:
    return Program(name, worker, source, server=server, sends_gradients=True)


DUTTA = "Dutta et al., arXiv 1803.01113, section 2"
PROGRAMS = (
    _served("asgd", asgd_server, "Dean et al., NeurIPS 2012"),
    _served("ssp", ssp_server, "Ho et al., NeurIPS 2013"),
    _served("k-sync", k_sync_server, DUTTA, worker=race),
    _served("k-async", k_async_server, DUTTA),
    _served("k-batch-async", k_batch_async_server, DUTTA),
    _served("hybrid", hybrid_server, "Vora et al., arXiv 2407.00101"),
)
