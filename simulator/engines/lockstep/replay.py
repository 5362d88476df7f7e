"""Repeat a run that was measured: what depended on time is told, the rest follows.

Which message came first, whether a mean was there, what a clock said: a real run notes these
outcomes, and the same program, given them again, must come to the same parameters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.simulator.engines.collective import GradientPiece
from paceline.simulator.engines.lockstep.run import Lockstep, LockstepNode, pass_turn
from paceline.simulator.objectives.objective import Objective
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, Handle, Payload, Vector
from paceline.simulator.scenario.scenario import Algorithm, Scenario


class Told(NamedTuple):
    """What a node's run came to.

    `outcomes`: in order, what came of `receive` (who sent), `receive_before` (who sent, or None),
    `finished` and `clock`; `gradients` and `marks`: how many there were.
    """

    outcomes: Sequence[Any]
    gradients: int
    marks: int


def run(  # noqa: PLR0913, PLR0917 - what was run, and what is told of it
    program: Program,
    algorithm: Algorithm,
    scenario: Scenario,
    objective: Objective,
    seed: int,
    told: Sequence[Told],
) -> list[Vector]:
    """Repeat a run; return what each node marked last, by rank.

    `told`: by rank. Raises DeadlockError where no such run is possible.
    """
    endless = scenario.run.model_copy(update={"steps": None})  # each node ends where it did
    world = scenario.model_copy(update={"run": endless})
    repeated = Replay(program, algorithm.parameters, world, objective, seed)
    for node, each in zip(repeated.nodes, told, strict=True):
        assert isinstance(node, ReplayNode)
        node.listen(each)
    return repeated.run()


class ReplayNode(LockstepNode):
    """A node that is told what depended on time."""

    __slots__ = ("_gradients", "_marks", "_outcomes")

    def listen(self, told: Told) -> None:
        """Take in what is told."""
        self._outcomes = iter(told.outcomes)
        self._gradients, self._marks = told.gradients, told.marks

    async def _told(self) -> Any:
        """What came of this effect; after the last one nothing does."""
        for outcome in self._outcomes:
            return outcome
        self._run.over = True
        await pass_turn()  # for ever

    async def _go_or_stop(self) -> None:
        """As many gradients as were computed."""
        if self.step >= self._gradients:
            self._run.over = True
            await pass_turn()  # for ever
        self.step += 1

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """A gradient in pieces, which are there at once."""
        await self._go_or_stop()
        parts = self.cut(self._source.gradient(x), pieces)
        return [GradientPiece(part, self.now) for part in parts]

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """The next message of whoever was first."""
        sender = await self._told()
        return await super().receive(sender)

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """The next message of whoever was first, or nothing."""
        sender = await self._told()
        return None if sender is None else await super().receive(sender)

    async def request(self, to: int, value: Payload) -> Payload:
        """Send, and wait for the answer."""
        self.send(to, value)
        _, answer = await super().receive(to)
        return answer

    async def finished(self, handle: Handle) -> bool:
        """What all were told."""
        return bool(await self._told())

    def clock(self) -> float:
        """What the clock said."""
        return float(next(self._outcomes, self.now))

    def mark(self, x: Vector) -> None:
        """Up to where the run ended."""
        if self._marks:
            self._marks -= 1
            super().mark(x)


class Replay(Lockstep):
    """A run of such nodes."""

    node = ReplayNode
