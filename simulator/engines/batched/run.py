"""Run all seeds and workers at once on arrays: the reference engine's numbers.

It takes programs whose workers always do the same. For others `run` raises Unsupported, and
`engines.virtual` runs them.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any

import numpy as np

from ...network.closed_form import ClosedForm, Traffic
from ...objectives import build
from ...objectives.objective import TheoremTwo, relative
from ...programs.codecs.codec import Raw
from ...programs.effects import Vector
from ...programs.pieces.schedule import paced
from ...results.run import Run, Spans
from ...scenario.scenario import World
from ..observer import POINTS, Observer, next_shown
from ..overheads import EffectCosts
from . import gradients
from .arrays import Stack, Unsupported, array
from .clocks import Clocks
from .codecs import RowCodec
from .compute_times import Draws, SumDraws
from .node import BatchedNode, SeedsDiffer
from .repeats import Repeats

VECTORS = 2**21  # most entries of all workers' vectors in memory at once
CLOCKS = 2**16  # most workers of all seeds at once


def run_world(world: World, seeds: Sequence[int], *, spans: int = 0) -> list[Run]:
    """Simulate a world with all seeds; store up to `spans` spans of the first.

    `supports(world)` must be None. Raises Unsupported if the program turns out to need another
    engine.
    """
    scenario = world.scenario
    dimension = build.dimension_of(scenario.objective)
    workers = scenario.cluster.workers
    room = max(1, VECTORS // (workers * dimension) if dimension else CLOCKS // workers)
    runs: list[Run] = []
    while len(runs) < len(seeds):
        part = seeds[len(runs) : len(runs) + room]
        try:
            batch = Batch(world, part, spans=0 if runs else spans)
            runs += batch.run()
        except SeedsDiffer:
            room = 1
    return runs


def supports(world: World) -> str | None:
    """Return why the engine cannot run a world; None without a visible reason."""
    program, algorithm, scenario = world.program, world.algorithm, world.scenario
    moves = build.dimension_of(scenario.objective) is not None
    codec = algorithm.parameters.get("codec", Raw())
    obstacles = {
        "its server answers messages in their order of arrival": program.server is not None,
        "nodes may crash, or averages may leave workers out": scenario.troubled,
        "transfers share links": not scenario.network.closed_form,
        "compute times vary over time": scenario.team.varies,
        "its workers send each other messages": program.gossips,
        "its workers do not wait for each other": program.pooled,
        "workers have different periods": paced(algorithm.parameters),
        "its codec compresses one vector at a time": moves and not getattr(codec, "rowwise", False),
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


class Batch:
    """One algorithm, run with several seeds together."""

    def __init__(self, world: World, seeds: Sequence[int], *, spans: int) -> None:
        self.program, self.algorithm = program, algorithm = world.program, world.algorithm
        scenario = world.scenario
        self.scenario, self.seeds = scenario, seeds
        self.objectives = [build.build(scenario, algorithm, seed) for seed in seeds]
        network = ClosedForm(scenario)
        self.traffic = [Traffic(network, seed) for seed in seeds]
        self.spans = Spans(spans) if spans else None
        self.notes: list[str] = []
        start, *rest = (goal.start for goal in self.objectives)
        times, timeless = self._step_times(), isinstance(start, complex)
        if not timeless and not all(np.array_equal(start, other) for other in rest):
            start = np.stack([start, *rest])
        codec = algorithm.parameters.get("codec", Raw())
        constant = not getattr(codec, "warmup", 0)  # all its messages have one size
        repeats = program.alike and constant and scenario.run.sampling == "aggregate"
        self.parameters = algorithm.parameters
        if not timeless and codec != Raw():
            self.parameters = self.parameters | {"codec": RowCodec(codec)}
        clocks = Repeats if timeless and repeats else Clocks
        self.clocks = clocks(times, self.traffic, scenario, self.spans, merge=timeless)
        self.observers = [
            Observer(program, scenario, goal, traffic.totals, self.clocks.deadline)
            for goal, traffic in zip(self.objectives, self.traffic, strict=True)
        ]
        self.every = self.observers[0].every
        self._points = 1
        compute = gradients.of_all(self.objectives, scenario.cluster.workers)
        self.node = BatchedNode(self, start, compute)
        weights = [relative(goal) for goal in self.objectives]
        if any(weights):
            if not all(weights):
                raise SeedsDiffer
            self.node.samples = Stack(np.array(weights)[..., None])

    def _step_times(self) -> Draws | SumDraws:
        if self.scenario.run.sampling == "aggregate":
            self.notes.append(
                'run.sampling = "aggregate": times and local steps are drawn as sums where the law '
                "of a sum is known; same distribution, other numbers"
            )
            with suppress(ValueError):
                return SumDraws(self.scenario, self.seeds)
        return Draws(self.scenario, self.seeds)

    def run(self) -> list[Run]:
        """Run to the last step or to the deadline."""
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported, not a warning
            coroutine = self.program.start(
                self.program.worker,
                EffectCosts(self.scenario).on(self.node),
                self.parameters,
            )
            try:
                coroutine.send(None)
            except StopIteration:
                self.clocks.flush(self.node.step)
            except Exception as error:  # the reference engine reports a mistake
                raise Unsupported("its program cannot run for all workers at once") from error
            finally:
                coroutine.close()
            ends = np.array([self._end(observer.curve) for observer in self.observers])
            self.clocks.finish(ends, self.node.step)
        return [self._run(index) for index in range(len(self.seeds))]

    def _end(self, curve: dict[str, list[float]]) -> float:
        """Return the end of a seed's run: the end of its last step, or the deadline."""
        if curve["step"][-1] == self.clocks.limit:
            return curve["time"][-1]
        return self.scenario.run.duration or inf

    def evaluate(self, node: BatchedNode, x: Vector) -> int:
        """Evaluate the parameters at a mark; return the step of the next evaluation."""
        step = node.step
        evaluated: list[Any] = []
        if isinstance(first := self.objectives[0], TheoremTwo):
            first.period = node.period
            evaluated = [first.evaluate(x, step)] * node.seeds
        elif type(x) is not complex:
            vectors = array(x)
            everyone = np.broadcast_to(vectors, (node.seeds, node.workers, vectors.shape[-1]))
            models = node.mean_of(vectors) if self.program.averages else everyone
            pairs = zip(self.objectives, models[:, 0], strict=True)
            evaluated = [goal.evaluate(model, step) for goal, model in pairs]
        self._points += 1
        thin = self.observers[0].adaptive and self._points > 2 * POINTS
        if thin:
            self._points, self.every = (self._points + 1) // 2, 2 * self.every
        self.clocks.record(step, self._point, step, evaluated, node.period, node.updates, thin)
        return next_shown(step, self.every, self.observers[0].limit)

    def _point(
        self, step: int, evaluated: list[Any], period: float, updates: int, thin: bool
    ) -> None:
        """Add a point to the curves; its time is the last worker's, set during replay."""
        times = self.clocks.latest().tolist()
        sent = zip(*(total.tolist() for total in self.clocks.totals()), strict=True)
        if not evaluated:  # time only: equal for every seed, and undefined past the deadline
            in_time = min(times) <= self.clocks.deadline
            evaluated = [in_time and self.objectives[0].evaluate(0j, step)] * len(times)
        seeds = zip(self.observers, times, evaluated, sent, strict=True)
        for observer, time, evaluation, moved in seeds:
            if time <= observer.deadline:
                observer.add(time, float(step), evaluation, period, moved)
                observer.updates = updates
                if thin:
                    observer.thin()

    def _run(self, index: int) -> Run:
        """Return the results of one seed."""
        algorithm, clocks = self.algorithm, self.clocks
        observer, traffic = self.observers[index], self.traffic[index]
        curve = observer.curve
        end = self._end(curve)
        observer.close(end)
        waited, communicated = clocks.waited[index], clocks.communicated[index]
        activities = {
            "compute": clocks.now[index] - waited - communicated,
            "wait": waited,
            "communicate": communicated,
        }
        spans = self.spans if index == 0 else None
        return Run.of(
            algorithm,
            self.seeds[index],
            "batched",
            curve,
            seconds={kind: float(seconds_.mean()) for kind, seconds_ in activities.items()},
            workers={kind: seconds_.tolist() for kind, seconds_ in activities.items()},
            links=traffic.links(),
            spans=None if spans is None else spans.array(end),
            notes=[
                *self.notes,
                *observer.notes(algorithm, begun=traffic.begun),
            ],
            spans_truncated=spans is not None and spans.truncated,
            updates=observer.updates,
            staleness={age: int(counts[index]) for age, counts in clocks.staleness.items()},
            staleness_unit="steps",
        )
