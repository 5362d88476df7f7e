"""The engine for tests: values, and the order of collectives and messages, without times.

Every gradient takes one tick and everything else takes none. Nodes run in turn, each until it must
wait, the first released going first: the order that equal, constant compute times and a free
network give. A node that computes while others may act on it resumes when no other node is ready.
"""

import sys
import types
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, ClassVar

from ...errors import DeadlockError
from ...objectives.objective import Objective
from ...programs import Program
from ...programs.effects import ANY, Handle, Payload, Pieces, Vector
from ...programs.pieces.schedule import paced
from ...scenario.scenario import Algorithm, Scenario
from .. import payloads
from ..collective import Collective, GradientPiece
from ..node import EngineNode, compare


def run(
    program: Program, algorithm: Algorithm, scenario: Scenario, objective: Objective, seed: int
) -> list[Vector]:
    """Run every worker for `run.steps` local steps; return each node's last mark, by rank.

    The server's last update is the first one after as many gradients as all workers have steps.
    Raises DeadlockError when nodes wait for each other.
    """
    return Lockstep(program, algorithm.parameters, scenario, objective, seed).run()


Message = tuple[float, int, Payload]
"""The tick at which it was sent, its sender, its payload."""


@types.coroutine
def pass_turn() -> Generator[None, Any, Any]:
    """Let other nodes run until this one is released; return the value that releases it."""
    return (yield)


class LockstepNode(EngineNode):
    """One node. `x`: its last mark; `step`: gradients computed, by the server: received."""

    __slots__ = ("_box", "_limit", "_served", "_sought", "_source", "computing", "x")

    def __init__(
        self, run: "Lockstep", rank: int, scenario: Scenario, objective: Objective
    ) -> None:
        super().__init__(run, rank, scenario, objective.start)
        self.apply_seconds = 0.0
        self.x = self.start
        self._limit = run.limit  # of its gradients
        self._served = False  # whether the server has made its last update
        self._box: deque[Message] = deque()
        self._sought: int | None = None
        self.computing: Handle = None  # its gradient in `receive_before`
        if rank < run.workers:
            self._source = objective.source(rank)

    async def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Take one tick; return the loss and the gradient."""
        await self._go_or_stop()
        return self._source.loss_and_gradient(x)

    async def gradient(self, x: Vector) -> Vector:
        """Take one tick; return the gradient."""
        await self._go_or_stop()
        return self._source.gradient(x)

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Begin one tick and a gradient in pieces; after the last step, one that never ends."""
        if self.step >= self._limit:
            self._run.over = True
            return [GradientPiece(None, inf)] * len(payloads.progress(pieces)[0])
        self.step += 1
        parts = payloads.cut(self._source.gradient(x), pieces)
        return [GradientPiece(part, self.now + 1.0) for part in parts]

    async def _go_or_stop(self) -> None:
        if self.step >= self._limit:
            self._run.over = True
            await pass_turn()  # for ever
        self.step += 1
        self.now += 1.0
        if self._run.served:  # which message is first must not depend on whose turn it was
            self._run.resume_at(self.now, self)
            await pass_turn()

    async def wait(self, handle: Handle) -> Any:
        """Wait until all have joined, or until the gradient is computed."""
        if handle.done is None:
            handle.waiting.append(self)
            await pass_turn()
        if handle.done > self.now:
            if isinstance(handle, GradientPiece):
                self._run.resume_at(handle.done, self)
                await pass_turn()  # in step with the others; after the last step, for ever
            self.now = handle.done
        return handle.collect(self.rank)

    def send(self, to: int, value: Payload) -> None:
        """Deliver a message at once."""
        node = self._run.nodes[to]
        message = self.now, self.rank, value
        if node._sought in (ANY, self.rank):
            node._sought = node.computing = None
            self._run.ready.append((node, message))
        else:
            node._box.append(message)

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Take the first message of `source`, or wait for it."""
        serves = self.rank == self.server
        if serves and self._served:
            self._run.over = True
            await pass_turn()  # for ever
        message = self._pick(source)
        if message is None:
            self._sought = source
            message = await pass_turn()
        at, sender, value = message
        self.now = max(self.now, at)
        self.step += serves
        return sender, value

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """Take a message that is sent before `handle` is done, or return None."""
        if self._served and self.rank == self.server:
            return await self.receive(source)  # for ever
        message = self._pick(source)
        if message is None:
            self._sought, self.computing = source, handle
            self._run.resume_at(handle.done, self)
            message = await pass_turn()
            self._sought = self.computing = None
        if message is not None and message[0] < handle.done:
            at, sender, value = message
            self.now = max(self.now, at)
            self.step += self.rank == self.server
            return sender, value
        if message is not None:
            self._box.appendleft(message)
        return None

    def _pick(self, source: int) -> Message | None:
        for message in self._box:
            if source in (ANY, message[1]):
                self._box.remove(message)
                return message
        return None

    async def request(self, to: int, value: Payload) -> Payload:
        """Send, and wait for the answer."""
        self.send(to, value)
        _, answer = await LockstepNode.receive(self, to)
        return answer

    def count(self, gradients: int) -> None:
        """Count the gradients of the message received last."""
        self.step += gradients - 1

    def work(self, seconds: float) -> None:
        """Do nothing: no time passes."""

    def clock(self) -> float:
        """Return the tick."""
        return self.now

    def mark(self, x: Vector) -> None:
        """Keep the parameters."""
        self.x = x
        self._served = self.step >= self._run.limit
        self._run.marks += 1
        if self._run.pooled and self._run.marks >= self._run.limit:
            self._run.complete = True


class Lockstep:
    """One run: its nodes, and the queue of those ready to go on."""

    node: ClassVar[type[LockstepNode]] = LockstepNode

    def __init__(
        self,
        program: Program,
        parameters: Mapping[str, Any],
        scenario: Scenario,
        objective: Objective,
        seed: int,
    ) -> None:
        workers = scenario.cluster.workers
        self.workers, self.over = workers, False
        self.pooled, self.marks, self.complete = program.pooled, 0, False
        self.served = program.server is not None
        counted = program.counted(workers, scenario.cluster.participants)
        self.limit = (scenario.run.steps or sys.maxsize) * counted
        ranks = range(workers + self.served)
        self.nodes = [self.node(self, rank, scenario, objective) for rank in ranks]
        for node in self.nodes:
            node.seed(seed)
        compare(self.nodes, scenario, objective, parameters)
        self._paced = paced(parameters)
        self.ready: deque[tuple[LockstepNode, Any]] = deque((node, None) for node in self.nodes)
        self._later: list[tuple[float, int, LockstepNode, Handle]] = []
        self._delayed = 0
        self.open_collectives: dict[int, Collective] = {}
        self.guard = payloads.Guard()
        self._ended: set[int] = set()
        self._coroutines = [
            program.start(program.worker, node, parameters) for node in self.nodes[:workers]
        ]
        if program.server:
            self._coroutines.append(program.start(program.server, self.nodes[-1], parameters))

    def run(self) -> list[Vector]:
        """Run to the end of the steps; return each node's last mark, by rank."""
        try:
            while (self.ready or self._later) and not self.complete:
                if not self.ready:
                    _, _, node, gradient = heappop(self._later)
                    if node.computing is not gradient:
                        continue  # a message came first
                    self.ready.append((node, None))
                node, value = self.ready.popleft()
                try:
                    self._coroutines[node.rank].send(value)
                except StopIteration:
                    self._ended.add(node.rank)
        finally:
            for coroutine in self._coroutines:
                coroutine.close()
        waiting = any(collective.waiting for collective in self.open_collectives.values())
        if (waiting and not self._paced) or not (
            self.over or self.complete or len(self._ended) == len(self.nodes)
        ):
            raise DeadlockError("deadlock: nodes wait for each other")
        return [node.x for node in self.nodes]

    def answer(self, handle: Collective, question: Collective) -> None:
        """Answer at once: when a collective is done is known as soon as all have joined."""
        handle.answer(question)
        self.release_at(question.begins, question.waiting)

    def release_at(self, tick: float, nodes: Sequence[LockstepNode]) -> None:
        """Release nodes that have waited for others until now, `tick`."""
        self.ready.extend((node, None) for node in nodes)

    def resume_at(self, tick: float, node: LockstepNode) -> None:
        """Release a node at `tick`, once no node is ready before it; inf: never.

        If it computes in `receive_before`, a message may release it before.
        """
        if tick < inf:
            self._delayed += 1
            heappush(self._later, (tick, self._delayed, node, node.computing))

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join; the last one completes the collective."""
        collective.join(rank, step, value, at)
        if not collective.missing:
            del self.open_collectives[collective.index]
            collective.done = done = collective.begins
            self.release_at(done, collective.waiting)
            for who, when, following, function in collective.followers:
                self.enter(following, who, when, function(collective.result), done)
