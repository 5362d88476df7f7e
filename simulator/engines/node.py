"""What interpreters' nodes have in common: where no time passes, nothing differs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from paceline.simulator.distributions import random_streams
from paceline.simulator.distributions.random_streams import Purpose
from paceline.simulator.engines import payloads
from paceline.simulator.engines.collective import Collective
from paceline.simulator.programs.effects import Handle, Node, Payload, Vector


class Engine(Protocol):
    """What a node needs of its run for collectives."""

    def collective(self, index: int, kind: str) -> Collective:
        """The `index`-th collective of the run; the first worker to come opens it."""

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join at a time by its clock."""


class SeededNode(Node):
    """A node whose random numbers are keyed by its run's seed."""

    __slots__ = ("_generators", "_seed")

    def seed(self, seed: int) -> None:
        """Choose the random numbers that a program may ask for."""
        self._seed = seed
        self._generators = {True: 0, False: 0}

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Make the next generator, of this node's own or of all nodes'."""
        number = self._generators[shared]
        self._generators[shared] = number + 1
        if shared:
            return random_streams.generator(self._seed, Purpose.SHARED, number)
        return random_streams.generator(self._seed, Purpose.PROGRAM, self.rank, number)


class EngineNode(SeededNode):
    """A node whose collectives and pieces come from the simulator's modules."""

    __slots__ = ("_collectives", "_run", "now", "step")
    _run: Any
    _collectives: int
    now: float
    step: int

    def start_mean(self, value: Payload) -> Handle:
        """Join the next collective, a mean."""
        collective = self._next("mean")
        self._run.enter(collective, self.rank, self.step, value, self.now)
        return collective

    def start_gather(self, value: Payload) -> Handle:
        """Join the next collective, a gather."""
        collective = self._next("gather")
        self._run.enter(collective, self.rank, self.step, value, self.now)
        return collective

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Join the next collective as soon as `handle` is done, whatever this node does then."""
        following = self._next("mean")
        handle.chained = True
        if handle.done is None:
            handle.followers.append((self.rank, self.step, following, value))
        else:
            at = max(self.now, handle.done)
            self._run.enter(following, self.rank, self.step, value(handle.result), at)
        return following

    async def finished(self, handle: Handle) -> bool:
        """Ask as all others do; whoever asks last finds out, and tells the others at once."""
        question = handle.question(self.rank)
        question.join(self.rank, self.step, 0.0)
        question.come(self.rank, self.now)
        if not question.missing:
            handle.answer(question)
            self._run.release_at(question.done, question.waiting)
        return bool(await self.wait(question))

    def _next(self, kind: str) -> Collective:
        """This node's next collective."""
        self._collectives += 1
        collective: Collective = self._run.collective(self._collectives - 1, kind)
        collective.demand(kind, self.rank)
        return collective

    def cut(self, vector: Vector, pieces: int) -> Sequence[Vector]:
        """Cut into nearly equal pieces."""
        return payloads.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Undo the cut."""
        return payloads.join(pieces)
