"""The interpreter without time: values, and the order of collectives and messages.

Every gradient takes one tick of a node's clock and everything else takes none. Nodes run in turn,
each until it must wait, the first released going first: the order that equal, constant compute
times and a free network give.
"""

import types
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from simulator.effects import ANY, Handle, Node, Payload, Vector
from simulator.engines import values
from simulator.engines.collective import Collective, Piece
from simulator.errors import DeadlockError
from simulator.objective import Objective
from simulator.programs import Program


def run(
    program: Program, parameters: Mapping[str, Any], objective: Objective, workers: int, steps: int
) -> list[Vector]:
    """Run every worker for `steps` local steps; return what each node marked last, by rank.

    A server's run ends when it has received as many gradients as all workers' steps. Raises
    DeadlockError when nodes wait for each other.
    """
    return Lockstep(program, parameters, objective, workers, steps).run()


@types.coroutine
def _pass_turn() -> Generator[None, Any, Any]:
    """Let other nodes run until this one is released; return what it is released with."""
    return (yield)


class LockstepNode(Node):
    """One node. `x`: what it marked last; `step`: gradients computed (by the server: received)."""

    __slots__ = ("_box", "_collectives", "_run", "_sought", "_source", "step", "x")

    def __init__(self, run: "Lockstep", rank: int, objective: Objective) -> None:
        self._run, self.rank = run, rank
        self.workers = self.server = run.workers
        self.start = self.x = objective.start
        self.apply_seconds = 0.0
        self.step = self._collectives = 0
        self._box: deque[tuple[int, Payload]] = deque()
        self._sought: int | None = None
        if rank < run.workers:
            self._source = objective.source(rank)

    async def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """One tick, the loss and the gradient."""
        await self._go_or_stop()
        return self._source.loss_and_gradient(x)

    async def gradient(self, x: Vector) -> Vector:
        """One tick, and the gradient."""
        await self._go_or_stop()
        return self._source.gradient(x)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """One tick, and the gradient in pieces."""
        await self._go_or_stop()
        return [Piece(part, 0.0) for part in values.cut(self._source.gradient(x), pieces)]

    async def _go_or_stop(self) -> None:
        if self.step >= self._run.limit:
            self._run.over = True
            await _pass_turn()  # for ever
        self.step += 1

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Undo the cut into pieces."""
        return values.join(pieces)

    def start_mean(self, value: Payload) -> Handle:
        """Join the next collective, a mean."""
        return self._join("mean", value)

    def start_gather(self, value: Payload) -> Handle:
        """Join the next collective, a gather."""
        return self._join("gather", value)

    def _join(self, kind: str, value: Payload) -> Collective:
        collective = self._run.collective(self._collectives, kind)
        self._collectives += 1
        collective.join(self.rank, kind, value)
        if not collective.missing:
            collective.done = 0.0
            self._run.ready.extend((node, None) for node in collective.waiting)
        return collective

    async def wait(self, handle: Handle) -> Any:
        """Wait until all have joined."""
        if handle.done is None:
            handle.waiting.append(self)
            await _pass_turn()
        return handle.collect(self.rank)

    async def finished(self, handle: Handle) -> bool:
        """Whether all have joined."""
        return handle.done is not None

    def send(self, to: int, value: Payload) -> None:
        """Hand a message over."""
        node = self._run.nodes[to]
        message = self.rank, value
        if node._sought in (ANY, self.rank):
            node._sought = None
            self._run.ready.append((node, message))
        else:
            node._box.append(message)

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Take the first message of `source`, or wait for it."""
        serves = self.rank == self.server
        if serves and self.step >= self._run.limit * self.workers:
            self._run.over = True
            await _pass_turn()  # for ever
        for message in self._box:
            if source in (ANY, message[0]):
                self._box.remove(message)
                break
        else:
            self._sought = source
            message = await _pass_turn()
        self.step += serves
        return message

    async def request(self, to: int, value: Payload) -> Payload:
        """Send, and wait for the answer."""
        self.send(to, value)
        _, answer = await self.receive(to)
        return answer

    def work(self, seconds: float) -> None:
        """Nothing: no time passes."""

    def clock(self) -> float:
        """Gradients this node has computed."""
        return float(self.step)

    def mark(self, x: Vector) -> None:
        """Note the parameters."""
        self.x = x


class Lockstep:
    """One run: its nodes, and who is ready to go on."""

    def __init__(
        self,
        program: Program,
        parameters: Mapping[str, Any],
        objective: Objective,
        workers: int,
        steps: int,
    ) -> None:
        self.workers, self.limit, self.over = workers, steps, False
        ranks = range(workers + (program.server is not None))
        self.nodes = [LockstepNode(self, rank, objective) for rank in ranks]
        self.ready: deque[tuple[LockstepNode, Any]] = deque((node, None) for node in self.nodes)
        self._open: dict[int, Collective] = {}
        self._guard = values.Guard()
        self._ended: set[int] = set()
        self._coroutines = [
            program.start(program.worker, node, parameters) for node in self.nodes[:workers]
        ]
        if program.server:
            self._coroutines.append(program.start(program.server, self.nodes[-1], parameters))

    def run(self) -> list[Vector]:
        """Run to the end of the steps; return what each node marked last."""
        try:
            while self.ready:
                node, value = self.ready.popleft()
                try:
                    self._coroutines[node.rank].send(value)
                except StopIteration:
                    self._ended.add(node.rank)
        finally:
            for coroutine in self._coroutines:
                coroutine.close()
        waiting = any(collective.waiting for collective in self._open.values())
        if waiting or not (self.over or len(self._ended) == len(self.nodes)):
            raise DeadlockError("deadlock: nodes wait for each other")
        return [node.x for node in self.nodes]

    def collective(self, index: int, kind: str) -> Collective:
        """The `index`-th collective of the run; the first worker to come opens it."""
        if index not in self._open:
            self._open[index] = Collective(kind, self.workers, self._guard)
        collective = self._open[index]
        if collective.missing == 1:
            del self._open[index]
        return collective
