"""Evaluate the parameters that nodes mark, as points of a curve.

It takes no simulated time. A *mark* is a node's report of its parameters after an update.
"""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise
from typing import Any

from ..cluster.membership import working
from ..cluster.prices import devices, price_per_byte, price_per_second
from ..objectives.objective import Evaluation, Objective, TheoremTwo
from ..objectives.quadratic import NoisyQuadratic
from ..programs.effects import Vector
from ..programs.program import Program
from ..results.run import CURVE, PAID, ROUNDING, divergence_note
from ..scenario.scenario import Algorithm, Scenario
from . import payloads

NEVER = sys.maxsize  # a step, or a count, that no run reaches
POINTS = 200  # points of a curve, if the scenario sets no interval
DEADLINE_TOLERANCE = 1 + 1e-9
"""A step that ends by `run.duration` times this still counts, as a million additions round."""


def deadline(scenario: Scenario) -> float:
    """Return the last time that counts (s): the duration, with a tolerance."""
    return (scenario.run.duration or math.inf) * DEADLINE_TOLERANCE


def evaluation_interval(scenario: Scenario) -> tuple[int, bool]:
    """Return the local steps between evaluations, and whether they adapt."""
    settings = scenario.run
    if settings.evaluate_every:
        return settings.evaluate_every, False
    if settings.steps and not settings.duration:
        return max(1, settings.steps // POINTS), False
    return 1, True


TELL: ContextVar[Callable[[float], None]] = ContextVar("TELL")
"""A function to call with the share of a run that is done, as its curve grows."""

Bytes = tuple[float, float]
"""Bytes over all links, and over those charged as egress."""

Discount = Callable[[float], tuple[float, float]]
"""Money and device-seconds that absent workers have saved up to a time (s)."""


View = tuple[int, float, float, int, Vector | None]
"""A node at a mark: its rank, clock (s), period (steps), updates and parameters."""


def next_shown(step: int, every: int, limit: int) -> int:
    """Return the step of the next mark to report after one at `step`."""
    following = (step // every + 1) * every
    return min(following, limit) if step < limit else following


class Observer:
    """Evaluator of the watched nodes' mean every `every` steps, and at `limit`.

    With `adaptive`, for runs whose number of steps is unknown, it starts with every step; whenever
    the curve has twice `POINTS` points, it drops every second point and evaluates half as often.

    If the workers never average, it evaluates the first node's parameters instead. A point's time
    is `completion_time` of the nodes' clocks, `totals` the bytes sent up to it; there are no points
    after `deadline`. `discount`: the seconds that absent workers save; without it `paid` stays
    empty (see `Run`). Nodes that are down mark None, and are left out. `limit`: the step at which a
    node stops (`NEVER` if the run ends by time); `first`: the step of its first mark to report. A
    server counts all gradients that it receives, pooled workers count those of all workers:
    `_scale` counts per local step. `by_rounds`: nodes report only marks that follow an average.
    """

    by_rounds = False

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per property
        self,
        program: Program,
        scenario: Scenario,
        objective: Objective,
        totals: Callable[[], Bytes],
        deadline: float,
        completion_time: Callable[[Sequence[float]], float] = max,
        discount: Discount | None = None,
    ) -> None:
        workers, served = scenario.cluster.workers, program.server is not None
        self._completion_time = completion_time
        self._discount = discount or (lambda time: (0.0, 0.0))
        self.paid: dict[str, list[float]] = {name: [] for name in PAID} if discount else {}
        self._devices, self._cluster = devices(scenario), scenario.cluster
        self._program = program
        self._watched, self._ends_all = 1 if served else workers, served or program.pooled
        self._scale = program.counted(workers, scenario.cluster.participants)
        self.limit = self._scale * scenario.run.steps if scenario.run.steps else NEVER
        self._last = self.limit  # last step to evaluate
        interval, self.adaptive = evaluation_interval(scenario)
        self.every, self._interval = self._scale * interval, scenario.run.evaluate_every
        self.first = 0 if program.pooled else min(self.every, self.limit)
        self._from = 0  # marks before this step no longer count
        self._objective, self._totals = objective, totals
        self._averages, self.deadline = program.averages, deadline
        self._node_second = price_per_second(scenario, served=served)
        self._egress_byte = price_per_byte(scenario.cost)
        self._pool: dict[int, View] | None = {} if program.pooled else None
        self._total = self.updates = 0
        self.complete = False
        self._views: dict[int, list[View]] = {}
        self.curve: dict[str, list[float]] = {name: [] for name in CURVE}
        self._x = objective.start  # the parameters evaluated last
        self._point(0, 0.0, math.nan, self._x)

    def evaluate_whole_rounds(self, steps: int) -> None:
        """Evaluate after whole rounds of `steps`, unless the scenario sets the interval."""
        if not self._interval:
            self.every = -(-self.every // steps) * steps
            self.first = min(self.every, self.limit)

    def watch(self, nodes: int) -> None:
        """Expect marks of `nodes` nodes from now on."""
        self._watched = nodes

    def close(self, end: float, deserted: Callable[[float], float] = lambda time: 0.0) -> None:
        """End the curve at `end` (s), if the run has made no progress up to then.

        No progress means a gap longer than any between two points, or no worker (`deserted` returns
        the seconds without workers up to a time). An infinite `end` adds nothing.
        """
        times = self.curve["time"]
        longest = max((later - time for time, later in pairwise(times)), default=0.0)
        if end < math.inf and deserted(end) > deserted(times[-1]):
            longest = 0.0
        if math.inf > end - times[-1] > longest * ROUNDING:
            last = {name: column[-1] for name, column in self.curve.items()}
            evaluation = Evaluation(last["loss"], last["accuracy"], last["test_loss"])
            self.add(end, last["step"], evaluation, last["tau"], self._totals())

    def see(self, step: int, view: View) -> int:
        """Take one node's mark at `step`; return the step of its next mark to report."""
        if self._pool is not None:
            return self._see_all(view)
        if step >= self._from:
            views = self._views.setdefault(step, [])
            views.append(view)
            if len(views) == self._watched:
                self._complete(step, self._views.pop(step))
        return next_shown(step, self.every, self.limit)

    def _see_all(self, view: View) -> int:
        """Take a mark of a worker whose steps are pooled; marks come in order of time."""
        assert self._pool is not None
        if self.complete:
            return 0
        start = (0.0, math.nan, 0, self._objective.start)
        pool = self._pool or {rank: (rank, *start) for rank in range(self._watched)}
        pool[view[0]] = view
        self._pool = pool
        self._total += 1
        if self._total >= min(self._from or self.every, self.limit):
            self._complete(self._total, list(pool.values()))
        return 0

    def _complete(self, step: float, views: list[View]) -> None:
        present = [view for view in views if view[-1] is not None]
        if not present and step >= self._last:  # the run ends here, despite absences
            present = [(*view[:-1], self._x) for view in views]
        if present:
            self._evaluate(step, sorted(present, key=lambda view: view[0]))
        if self.adaptive and len(self.curve["step"]) > 2 * POINTS:
            self.thin()
        self._from = min((int(step) // self.every + 1) * self.every, self._last)
        self.complete = self._ends_all and step >= self._last
        for early in [step for step in self._views if step < self._from]:
            del self._views[early]

    def _evaluate(self, step: float, views: list[View]) -> None:
        _, times, periods, updates, vectors = zip(*views, strict=True)
        x = self._x = payloads.mean(vectors) if self._averages else vectors[0]
        time = self._completion_time(times)
        if time <= self.deadline:
            self.updates = updates[0] if self._pool is None else int(step)
        self._point(step / self._scale, time, periods[0], x)

    def _point(self, step: float, time: float, period: float, x: Vector) -> None:
        if time > self.deadline or time == math.inf:
            return
        if isinstance(self._objective, TheoremTwo):
            self._objective.period = period
        evaluation = self._objective.evaluate(x, step)
        self.add(time, step, evaluation, period, self._totals())

    def add(self, time: float, step: float, point: Evaluation, period: float, sent: Bytes) -> None:
        """Add a point to the curve: the evaluation there, and the bytes `sent` so far."""
        moved, charged = sent
        saved, unused = self._discount(time)
        cost = time * self._node_second - saved + charged * self._egress_byte
        row = (time, step, point.loss, point.accuracy, period, moved, cost, point.test_loss)
        for name, value in zip(CURVE, row, strict=True):
            self.curve[name].append(value)
        paid = (charged, time * self._devices - unused)
        for column, value in zip(self.paid.values(), paid, strict=False):
            column.append(value)
        if report := TELL.get(None):
            over = self._days(time) / self._days(self.deadline) if self.deadline < math.inf else 0.0
            report(min(1.0, max(step * self._scale / self.limit, over)))

    @cached_property
    def _days(self) -> Callable[[float], float]:
        return working(self._cluster)  # hours without workers do not count

    def thin(self) -> None:
        """Drop every second point, and evaluate half as often."""
        self.every *= 2
        for column in (*self.curve.values(), *self.paid.values()):
            del column[1::2]

    def notes(self, algorithm: Algorithm, *, begun: bool) -> list[str]:
        """Return notes for readers of the run, on its algorithm, objective and curve.

        `begun`: whether an average has begun, or workers wait for one to begin.
        """
        program, curve, objective = self._program, self.curve, self._objective
        quadratic = isinstance(objective, NoisyQuadratic)
        moot = quadratic and not program.moves_alike(algorithm.parameters)
        notes = [*algorithm.notes, *(() if moot else objective.notes)]
        if not curve["step"][-1]:
            note = "no step was evaluated before the end; run longer, or evaluate more often"
            return [*notes, note]
        averages = program.averages and not (program.server or program.gossips)
        if averages and not any(map(math.isfinite, curve["tau"])):
            notes.append(
                "the first average did not finish before the end of the run"
                if begun
                else "never averaged: the period is longer than the run"
            )
        return [*notes, *filter(None, [divergence_note(curve)])]


class RoundObserver(Observer):
    """An observer of whole rounds, for workers with different periods.

    Steps and periods of a round are means over the participants. The first worker at `limit` ends
    the run; with sampled clients the sum of steps ends it, because no client is in every round.
    """

    by_rounds = True

    def __init__(self, program: Program, scenario: Scenario, *arguments: Any) -> None:
        super().__init__(program, scenario, *arguments)
        self.first = 1
        self._rounds: Counter[int] = Counter()  # rounds that each worker has ended
        self._steps: Counter[int] = Counter()  # step of each worker at its last mark
        self._total_steps = 0.0  # of the rounds so far, summed over the workers
        self._open: defaultdict[int, list[tuple[int, View]]] = defaultdict(list)
        if program.rounds and scenario.cluster.sampling:
            self._ends_all, self.limit = True, NEVER

    def see(self, step: int, view: View) -> int:
        """Take one worker's mark after its next round."""
        rank, workers = view[0], self._watched
        number = self._rounds[rank]
        self._rounds[rank] += 1
        marks = self._open[number]
        marks.append((step - self._steps[rank], view))
        self._steps[rank] = step
        if len(marks) == workers:
            del self._open[number]
            present = [mark for mark in marks if mark[1][-1] is not None] or marks
            self._total_steps += sum(steps for steps, _ in present) * workers / len(present)
            period = sum(mark[2] for _, mark in present) / len(present)
            mean_step = self._total_steps / workers
            if mean_step >= self._from:
                self._complete(mean_step, [(*mark[:2], period, *mark[3:]) for _, mark in marks])
        return 0
