"""Replay a measured run from its log: outcomes that depended on time are read, the rest follows.

A real run logs which message came first, whether a mean was ready, what a clock said. The same
program, given these outcomes again, must compute the same parameters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...objectives.objective import Objective
from ...programs import Program
from ...programs.effects import ANY, Handle, Payload, Vector
from ...scenario.scenario import Algorithm, Scenario
from .run import Lockstep, LockstepNode, pass_turn


class ReplayLog(NamedTuple):
    """One node's log of all that depended on time.

    `outcomes`: in order, those of `receive` (the sender's rank), `receive_before` (the same, or
    None), `finished` and `clock`. `gradients`, `marks`: their numbers.
    """

    outcomes: Sequence[Any]
    gradients: int
    marks: int


def run(  # noqa: PLR0913, PLR0917 - the run, and its logs
    program: Program,
    algorithm: Algorithm,
    scenario: Scenario,
    objective: Objective,
    seed: int,
    logs: Sequence[ReplayLog],
) -> list[Vector]:
    """Replay a run; return each node's last mark, by rank.

    `logs`: by rank. Raises DeadlockError where no run can have these outcomes.
    """
    endless = scenario.run.model_copy(update={"steps": None})  # each node ends where it did
    unbounded = scenario.model_copy(update={"run": endless})
    repeated = Replay(program, algorithm.parameters, unbounded, objective, seed)
    for node, log in zip(repeated.nodes, logs, strict=True):
        assert isinstance(node, ReplayNode)
        node.load(log)
    return repeated.run()


class ReplayNode(LockstepNode):
    """A node that reads from its log what depended on time."""

    __slots__ = ("_marks", "_outcomes")

    def load(self, log: ReplayLog) -> None:
        """Set the log to follow."""
        self._outcomes = iter(log.outcomes)
        self._limit, self._marks = log.gradients, log.marks

    async def _outcome(self) -> Any:
        """Return the logged outcome of this effect; after the last one, wait for ever."""
        for outcome in self._outcomes:
            return outcome
        self._run.over = True
        await pass_turn()  # for ever

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Receive the next message of the sender that was first in the log."""
        sender = await self._outcome()
        return await super().receive(sender)

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """Receive the next message of the logged sender, or return None."""
        sender = await self._outcome()
        return None if sender is None else await super().receive(sender)

    async def finished(self, handle: Handle) -> bool:
        """Return the logged answer, the same for all workers."""
        return bool(await self._outcome())

    def clock(self) -> float:
        """Return the logged time."""
        return float(next(self._outcomes, self.now))

    def mark(self, x: Vector) -> None:
        """Keep the parameters, up to the last mark of the log."""
        if self._marks:
            self._marks -= 1
            super().mark(x)


class Replay(Lockstep):
    """A run whose nodes follow their logs."""

    node = ReplayNode
