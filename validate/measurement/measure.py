"""Make a `Run` from the files of a real run's nodes, and compute its losses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from paceline.simulator.engines import payloads
from paceline.simulator.engines.observer import Observer
from paceline.simulator.objectives import build
from paceline.simulator.objectives.objective import Evaluation, Objective
from paceline.simulator.programs import Program
from paceline.simulator.results.run import TIMES, Run
from paceline.simulator.scenario.scenario import Scenario

from ..torch_objective.objective import TorchObjective
from ..training import records
from ..training.records import Record
from ..training.task import TrainingTask


@dataclass
class MeasuredRun:
    """One measured task. `whole`: whether all nodes finished."""

    run: Run
    records: list[Record] = field(repr=False)
    whole: bool = True

    @property
    def events(self) -> np.ndarray:
        """Return the events of all nodes, of dtype `training.events.EVENT`."""
        return np.concatenate([record.events for record in self.records])


def measure(task: TrainingTask, scenario: Scenario) -> MeasuredRun | None:
    """Read a task's records and compute its losses; None if any record is missing.

    A task that was cut short is measured up to that point, with a note.
    """
    program = scenario.programs[task.algorithm.name].under(task.algorithm.parameters)
    workers = scenario.cluster.workers
    expected = [records.read(task.folder, rank) for rank in range(workers + bool(program.server))]
    nodes = [record for record in expected if record is not None]
    if len(nodes) < len(expected):
        return None
    goal = build.build(scenario, task.algorithm, task.seed)
    points = _points(program, nodes, scenario)
    curve = _curve(points, goal, scenario, program)
    accounts = [record.account for record in nodes]
    complete = None not in accounts
    spent = [account.seconds for account in filter(None, accounts[:workers])]
    seconds = {
        kind: [times.get(kind, 0.0) for times in spent]
        for kind in TIMES
        if kind in ("compute", "wait", "communicate") or any(kind in times for times in spent)
    }
    staleness: Counter[int] = Counter()
    links: Counter[str] = Counter()
    for account in filter(None, accounts):
        staleness.update(account.staleness)
        links.update(account.links)
    gossips = program.gossips and program.pooled
    unit = "updates" if program.server else "averagings" if gossips else "steps"
    run = Run.of(
        task.algorithm,
        task.seed,
        "real",
        curve,
        seconds={kind: sum(spent) / max(len(spent), 1) for kind, spent in seconds.items()},
        workers=seconds,
        links=dict(sorted(links.items())),
        spans=np.concatenate([record.spans for record in nodes]),
        notes=list(task.algorithm.notes),
        updates=int(points[-1].rows[0]["updates"]) if points else 0,
        staleness=staleness,
        staleness_unit=unit,
    )
    if not complete:
        run.notes.append("cut short: measured up to its end")
    return MeasuredRun(run, nodes, complete)


@dataclass(frozen=True)
class CurvePoint:
    """Rows of watched nodes at one step; `beside`: of other nodes with buffers."""

    step: float
    time: float
    rows: Sequence[Any]
    beside: Sequence[Any] = ()


def _points(program: Program, nodes: Sequence[Record], scenario: Scenario) -> list[CurvePoint]:
    watched = [nodes[-1]] if program.server else list(nodes)
    if not program.averages:
        watched = watched[:1]
    scale = program.counted(scenario.cluster.workers, scenario.cluster.participants)
    last = (scenario.run.steps or inf) * scale
    if program.pooled:
        return _pooled(watched, scale, (scenario.run.evaluate_every or 1) * scale, last)
    interval = max(record.every for record in watched)
    rows = [{row["step"]: row for row in record.rows} for record in watched]
    common = sorted(set.intersection(*(set(record) for record in rows)))
    points = []
    for step in common:
        if step % interval == 0 or step == last or program.server:
            same = [record[step] for record in rows]
            time = max(float(row["time"]) for row in same)
            # the last rows before it of nodes that record only buffers
            rest = [node.rows[node.rows["time"] <= time] for node in nodes if node not in watched]
            beside = [rows[-1] for rows in rest if len(rows)]
            points.append(CurvePoint(step / scale, time, same, beside))
    return points


def _pooled(watched: Sequence[Record], scale: int, interval: int, last: float) -> list[CurvePoint]:
    """Return points at every `interval`-th mark, counted over all workers."""
    marks = sorted(
        ((row["time"], rank, index) for rank, record in enumerate(watched)
         for index, row in enumerate(record.rows)),
    )  # fmt: skip
    latest: dict[int, Any] = {}
    points = []
    for number, (time, rank, index) in enumerate(marks, 1):
        latest[rank] = watched[rank].rows[index]
        wanted = number % interval == 0 or number == last
        if wanted and len(latest) == len(watched):
            rows = [latest[rank] for rank in range(len(watched))]
            points.append(CurvePoint(number / scale, float(time), rows))
        if number == last:
            break
    return points


def _curve(
    points: Sequence[CurvePoint], goal: Objective, scenario: Scenario, program: Program
) -> dict[str, list[float]]:
    observer = Observer(program, scenario, goal, lambda: (0.0, 0.0), scenario.run.duration or inf)
    for point in points:
        if point.time <= observer.deadline:
            sent, paid = (
                float(sum(row[key] for row in point.rows)) for key in ("bytes", "charged")
            )
            period = float(point.rows[0]["period"])
            observer.add(point.time, point.step, _evaluate(goal, point), period, (sent, paid))
    return observer.curve


def _evaluate(goal: Objective, point: CurvePoint) -> Evaluation:
    """Evaluate a point, with the workers' buffers if their models have any."""
    if isinstance(goal.start, complex):
        return goal.evaluate(goal.start, point.step)
    x = payloads.mean([np.array(row["x"]) for row in point.rows])
    buffers = payloads.mean([np.array(row["buffers"]) for row in point.beside or point.rows])
    if len(buffers):
        assert isinstance(goal, TorchObjective)
        return goal.evaluate(x, point.step, buffers)
    return goal.evaluate(x, point.step)
