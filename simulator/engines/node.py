"""Behaviour shared by all nodes: random generators, collectives, cutting and joining vectors."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from paceline.simulator.distributions import random_streams
from paceline.simulator.distributions.random_streams import Purpose
from paceline.simulator.engines import payloads
from paceline.simulator.engines.collective import Collective
from paceline.simulator.programs.effects import Handle, Node, Payload, Vector


class Engine(Protocol):
    """The part of an engine that a node needs for collectives."""

    def answer(self, handle: Collective, question: Collective) -> None:
        """Answer a question that all workers have asked: whether a collective is done."""

    def collective(self, index: int, kind: str) -> Collective:
        """Return the `index`-th collective of the run; the first worker to ask opens it."""

    def enter(
        self, collective: Collective, rank: int, step: int, value: Payload, at: float
    ) -> None:
        """Let a worker join a collective at `at`, in seconds by its clock."""


class SeededNode(Node):
    """A node whose random numbers depend on its run's seed, never on the order of events."""

    __slots__ = ("_generators", "_seed")

    def seed(self, seed: int) -> None:
        """Set the seed of the random numbers that the program may ask for."""
        self._seed = seed
        self._generators = {True: 0, False: 0}

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Return the node's next generator: its own, or one that draws the same on all nodes."""
        number = self._generators[shared]
        self._generators[shared] = number + 1
        if shared:
            return random_streams.generator(self._seed, Purpose.SHARED, number)
        return random_streams.generator(self._seed, Purpose.PROGRAM, self.rank, number)


class EngineNode(SeededNode):
    """A node of a simulated run, with the simulator's collectives and pieces."""

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
        """Join the next collective, a mean, as soon as `handle` is done, with `value(result)`."""
        following = self._next("mean")
        handle.chained = True
        if handle.done is None:
            handle.followers.append((self.rank, self.step, following, value))
        else:
            at = max(self.now, handle.done)
            self._run.enter(following, self.rank, self.step, value(handle.result), at)
        return following

    async def finished(self, handle: Handle) -> bool:
        """Ask whether `handle` is done, as all workers do; the last one's time decides."""
        question = handle.question(self.rank)
        question.join(self.rank, self.step, 0.0)
        question.arrive(self.rank, self.now)
        if not question.missing:
            self._run.answer(handle, question)
        return bool(await self.wait(question))

    def _next(self, kind: str) -> Collective:
        """Return this node's next collective. Raises ProgramError if others start another kind."""
        self._collectives += 1
        collective: Collective = self._run.collective(self._collectives - 1, kind)
        collective.check_kind(kind, self.rank)
        return collective

    def cut(self, vector: Vector, pieces: int) -> Sequence[Vector]:
        """Cut a vector into nearly equal pieces, the last entries first."""
        return payloads.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join pieces that `cut` made."""
        return payloads.join(pieces)
