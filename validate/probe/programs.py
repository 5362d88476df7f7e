"""Programs that a probe runs for real: phases in a known order, separated afterwards by step.

Unlike those of the catalogue they rely on torch.
"""

from statistics import median
from typing import Any

import torch

from paceline.simulator.programs import Program
from paceline.simulator.programs.codecs.codec import CODECS
from paceline.simulator.programs.effects import Node, Vector

from ..training import clock

PAUSE = 0.05  # seconds: as after a step, a core has other things in its caches by then


def vector(size: int, like: Vector) -> Vector:
    """Return a vector of `size` bytes with normal entries."""
    own = torch.Generator().manual_seed(0)
    return torch.randn(max(1, size // 4), generator=own).to(like.device)


async def team(  # noqa: PLR0913 - what is to be measured
    me: Node,
    *,
    sizes: list[int],
    gathered: int,
    repeats: int,
    steps: int,
    together: int,
    candidates: list[float],
    alone: float,
) -> None:
    """Run collectives of all sizes before step 1; blocking, overlapped and polled ones, `steps`
    each; then gradients as fast as they come: `together`, stretched to each of the `candidates`
    (seconds) until one is held, and `alone` on the first worker for so many seconds."""
    some = [size for size in sizes if size <= gathered]
    for start, chosen in ((me.start_mean, sizes), (me.start_gather, some)):
        for size in chosen[:1] + chosen:  # once more, as warm-up
            payload = vector(size, me.start)
            for _ in range(repeats):
                await me.wait(start(payload))
    x = me.start
    for _ in range(steps):
        x = await me.mean(x - 1e-3 * await me.gradient(x))
        me.mark(x)
    for step in range(2 * steps):
        mean = me.start_mean(x)
        g = await me.gradient(x)
        if step >= steps:
            await me.finished(mean)
        x = await me.wait(mean) - 1e-3 * g
        me.mark(x)
    for _ in range(together):
        await me.gradient(x)
    for duration in candidates:
        lasted = []
        for _ in range(clock.REPEATS):
            begin = me.clock()
            await me.gradient(x)
            me.work(max(0.0, begin + duration - me.clock()))
            lasted.append(me.clock() - begin)
        held = median(lasted) <= (1 + clock.HOLDS) * duration
        if await me.mean((float(held),)) == (1.0,):
            break
    end = me.clock() + alone
    if me.rank:
        me.work(alone)
    while not me.rank and me.clock() < end:
        await me.gradient(x)


async def server(me: Node, *, steps: int) -> None:
    """Answer every gradient with parameters."""
    x = me.start
    for _ in range(steps * me.workers):
        worker, g = await me.receive()
        me.work(me.apply_seconds)
        x = x - 1e-3 * g
        me.mark(x)
        me.send(worker, x)


async def client(me: Node, *, steps: int) -> None:
    """Send gradients to the server."""
    x = me.start
    for _ in range(steps):
        x = await me.request(me.server, await me.gradient(x))


async def pair(me: Node, *, sizes: list[int], compressed: list[int], repeats: int) -> None:
    """Exchange messages of all sizes between two workers; then time every codec on vectors of
    the sizes `compressed`, with a pause before each, and after the last."""
    other = 1 - me.rank
    for size in sizes[:1] + sizes:
        payload = vector(size, me.start)
        for _ in range(repeats):
            if me.rank == 0:
                await me.request(other, payload)
            else:
                await me.receive(other)
                me.send(other, payload)
    for size in compressed:
        payload = vector(size, me.start)
        for kind in CODECS.kinds.values():
            line: Any = kind().open(me)
            for _ in range(repeats):
                me.work(PAUSE)
                await line.mean(payload)
    me.work(PAUSE)


PROGRAMS = {
    each.name: each
    for each in (
        Program("team", team, "ours"),
        Program("served", client, "ours", server=server),
        Program("pair", pair, "ours", gossips=True),
    )
}
