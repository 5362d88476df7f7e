"""Run programs on the reference engine only for values, and replay logs of real runs.

A real run logs which message came first, whether a mean was ready, and clock readings. The same
program must compute the same parameters from these outcomes.
"""

from collections.abc import Sequence
from math import inf, nan
from types import coroutine
from typing import Any, NamedTuple
from unittest.mock import patch

from paceline.simulator.engines.collective import GradientPiece
from paceline.simulator.engines.payloads import progress
from paceline.simulator.engines.virtual import simulation
from paceline.simulator.engines.virtual.node import VirtualNode
from paceline.simulator.objectives import build
from paceline.simulator.objectives.objective import Evaluation
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, Vector
from paceline.simulator.scenario.scenario import Algorithm, Scenario, World
from paceline.validate.training.records import Record


class ReplayLog(NamedTuple):
    """One node's log of all outcomes that depended on time, for repeating a run.

    `outcomes`: in order, results of `receive` (the sender's rank), `receive_before` (the same, or
    None), `finished` and `clock`. `gradients`, `marks`: their numbers up to the last snapshot.
    """

    outcomes: Sequence[Any]
    gradients: int
    marks: int

    @classmethod
    def of(cls, record: Record) -> "ReplayLog":
        account, marks = record.account, record.rows["updates"][-1:]
        last = int(marks[0]) if len(marks) else account.marks
        return cls(account.outcomes, account.gradients, last)


def run(
    program: Program,
    algorithm: Algorithm,
    scenario: Scenario,
    objective: Any,
    seed: int,
    logs: Sequence[ReplayLog] | None = None,
) -> list[Vector]:
    """Return every node's last mark, by rank; `logs`, by rank, of a run to replay."""
    if logs is not None:  # every node ends where it ended
        endless = scenario.run.model_copy(update={"steps": None})
        scenario = scenario.model_copy(update={"run": endless})
    nodes = VirtualNode if logs is None else lambda run, rank: ReplayNode(run, rank, logs[rank])
    values = Unevaluated(objective)
    with (
        patch.object(simulation, "VirtualNode", nodes),
        patch.object(build, "build", lambda *_: values),
    ):
        made = simulation.Simulation(World(scenario, algorithm).under(), seed)
    return [node.x for node in made.run().nodes]


class Unevaluated:
    """An objective whose loss is never evaluated."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        return Evaluation(nan, nan, nan)


@coroutine
def for_ever(node: VirtualNode) -> Any:
    """Wait forever, because the log has ended."""
    node._run.over = True
    yield


class ReplayNode(VirtualNode):
    """A node that reads outcomes that depended on time from its log."""

    def __init__(self, run: Any, rank: int, log: ReplayLog) -> None:
        super().__init__(run, rank)
        self._outcomes = iter(log.outcomes)
        self._gradients, self._marks = log.gradients, log.marks

    async def _outcome(self) -> Any:
        for outcome in self._outcomes:
            return outcome
        await for_ever(self)

    async def gradient(self, x):
        if self.step >= self._gradients:
            await for_ever(self)
        return await super().gradient(x)

    async def loss_and_gradient(self, x):
        if self.step >= self._gradients:
            await for_ever(self)
        return await super().loss_and_gradient(x)

    async def start_backward(self, x, pieces):
        if self.step < self._gradients:
            return await super().start_backward(x, pieces)
        self._run.over = True
        return [GradientPiece(None, inf)] * len(progress(pieces)[0])

    async def receive(self, source=ANY):
        return await super().receive(await self._outcome())

    async def receive_before(self, handle, source=ANY):
        sender = await self._outcome()
        return None if sender is None else await super().receive(sender)

    async def finished(self, handle):
        return bool(await self._outcome())

    arrived = finished

    def clock(self):
        return float(next(self._outcomes, self.now))

    def mark(self, x):
        self.updates += 1
        if self._marks:
            self._marks -= 1
            self.x = x
