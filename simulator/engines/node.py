"""Share behaviour among nodes: generators, collectives, cutting and joining vectors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from ..distributions import random_streams
from ..distributions.random_streams import Purpose
from ..errors import ProgramError
from ..objectives.objective import Objective, relative
from ..programs.effects import Handle, Node, Payload, Pieces, Vector
from ..programs.pieces.schedule import OfSlowest
from ..scenario.scenario import Scenario
from . import payloads
from .collective import Collective, Timer


def introduce(node: Node, scenario: Scenario, start: Vector) -> None:
    """Set the attributes of a node that follow from the scenario."""
    node.workers = node.server = scenario.cluster.workers
    node.participants = scenario.cluster.participants
    node.samples, node.pace = None, 1.0
    node.start, node.apply_seconds = start, scenario.server.apply
    node.parameters = scenario.model.parameters
    node.bytes_per_parameter = scenario.model.bytes_per_parameter
    node.tensors = scenario.model.sizes


def compare(
    nodes: Iterable[Node], scenario: Scenario, objective: Objective, parameters: Mapping[str, Any]
) -> None:
    """Set nodes' samples and speed relative to other workers, if a program uses them."""
    samples = relative(objective)
    uses = any(isinstance(parameter, OfSlowest) for parameter in parameters.values())
    pace = scenario.team.relative_speeds if uses else None
    for node in nodes:
        if node.rank < node.workers:
            node.samples = samples and samples[node.rank]
            node.pace = pace[node.rank] if pace else 1.0


class SeededNode(Node):
    """A node whose random numbers depend on the seed, never on the order of events."""

    __slots__ = ("_generators", "_seed")

    def seed(self, seed: int) -> None:
        """Set the seed of the program's random numbers."""
        self._seed = seed
        self._generators = {True: 0, False: 0}

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Return the node's next generator, or the next one that all nodes share."""
        number = self._generators[shared]
        self._generators[shared] = number + 1
        if shared:
            return random_streams.generator(self._seed, Purpose.SHARED, number)
        return random_streams.generator(self._seed, Purpose.PROGRAM, self.rank, number)


class EngineNode(SeededNode):
    """A node of a simulated run, which takes part in collectives and cuts vectors.

    `period`: steps between its last two collectives, nan before these. The run stores incomplete
    collectives by number (`open_collectives`), lets workers `enter` them, and answers polls.
    """

    __slots__ = ("_joined_step", "_run", "collectives", "now", "period", "step")

    def __init__(self, run: Any, rank: int, scenario: Scenario, start: Vector) -> None:
        introduce(self, scenario, start)
        self._run, self.rank = run, rank
        self.now, self.period = 0.0, nan
        self.step = self.collectives = self._joined_step = 0

    def start_mean(self, value: Payload) -> Handle:
        """Join the next collective, a mean."""
        return self._start("mean", value)

    def start_gather(self, value: Payload) -> Handle:
        """Join the next collective, a gather."""
        return self._start("gather", value)

    def _start(self, kind: str, value: Payload) -> Collective:
        collective = self._next(kind)
        self._run.enter(collective, self.rank, self.step, value, self.now)
        return collective

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Join the next mean with `value(result)`, as soon as `handle` is done."""
        following = self._next("mean")
        handle.chained = True
        if handle.done is None:
            handle.followers.append((self.rank, self.step, following, value))
        else:
            at = max(self.now, handle.reaches(self.rank))
            self._run.enter(following, self.rank, self.step, value(handle.result), at)
        return following

    async def finished(self, handle: Handle) -> bool:
        """Poll with all workers whether `handle` is done; the last worker's time decides."""
        question = handle.question()
        question.join(self.rank, self.step, self.now, self.now)
        if not question.missing:
            self._run.answer(handle, question)
        return bool(await self.wait(question))

    def timer(self, seconds: float) -> Handle:
        """Start a timer on this node's clock."""
        return Timer(None, self.now + seconds)

    def _next(self, kind: str) -> Collective:
        """Return this node's next collective; record the steps since its last one.

        Raises ProgramError if other workers start another kind.
        """
        step, index, run = self.step, self.collectives, self._run
        if self.rank == self.server:
            raise ProgramError("the server starts a collective; only workers may")
        if step > self._joined_step:
            self.period, self._joined_step = step - self._joined_step, step
        self.collectives = index + 1
        collective: Collective | None = run.open_collectives.get(index)
        if collective is None:
            collective = Collective(index, kind, self.workers)
            run.open_collectives[index] = collective
        elif kind != collective.kind:
            raise ProgramError(
                f"worker {self.rank} starts a {kind} where others started a {collective.kind}: "
                "every worker must start the same collectives in the same order"
            )
        return collective

    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into nearly equal pieces, the last entries first."""
        return payloads.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join pieces that `cut` made."""
        return payloads.join(pieces)
