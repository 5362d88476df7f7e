"""Parameter-server programs: one text for the workers, one for the server."""

from itertools import count

from simulator.effects import Node
from simulator.pieces.transform import Identity
from simulator.programs.local import LearningRate, LocalMomentum
from simulator.programs.program import Program


async def push_and_pull(me: Node) -> None:
    """Asynchronous SGD: a serial server applies each gradient as it arrives, however stale."""
    x = me.start
    while True:
        x = await me.request(me.server, await me.gradient(x))


async def asgd_server(me: Node, *, lr: LearningRate, momentum: LocalMomentum = Identity()) -> None:
    """Apply each gradient on arrival and answer with the new parameters."""
    x = me.start
    u = momentum.init(x)
    for update in count(me.workers):
        worker, g = await me.receive()
        me.work(me.apply_seconds)
        direction, u = momentum.update(g, u)
        x = x - lr(update // me.workers) * direction
        me.send(worker, x)
        me.mark(x)


PROGRAMS = (Program("asgd", push_and_pull, "Dean et al., NeurIPS 2012", server=asgd_server),)
