"""From events of a probe's programs to the numbers that they measure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.simulator.programs.codecs.codec import CODECS
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Scenario

from ..calibration import overheads
from ..calibration.overheads import Term
from ..measurement import alpha_beta, evidence
from ..measurement.alpha_beta import AlphaBeta
from ..measurement.measure import MeasuredRun
from ..training import clock, records
from ..training.events import COLLECT, ISSUE, SERVE, STEP, TAKE, WAIT
from ..training.records import Account, Record
from ..training.task import TrainingTask

FIRST = 1  # repetitions of each kind that are warm-up
Array = np.ndarray


@dataclass(frozen=True)
class TeamMeasurement:
    """Measurements with one number of workers. Times in seconds.

    `stretched`: shortest and longest step drawn; `compute`: steps of all workers at once, `alone`:
    of the first one while the others slept; `collectives` by kind; `terms` of [[overhead]];
    `shortest`: step that can be held (inf: none); `hidden`: share of a mean's delay that steps hid;
    `cpu`: seconds of a core per worker and stretched step; `snapshot`: of taking one;
    `foreign`: share of the CPU that other processes used.
    """

    workers: int
    stretched: tuple[float, float]
    compute: Array
    alone: Array
    collectives: dict[str, AlphaBeta]
    terms: dict[str, Term]
    shortest: float
    hidden: float
    cpu: float
    snapshot: float
    foreign: float


@dataclass(frozen=True)
class CodecTime:
    """Seconds that a codec takes for a vector of `size` bytes, and for one message of it."""

    kind: str
    size: int
    compress: float
    decompress: float


def team(tasks: Sequence[TrainingTask], scenario: Scenario) -> TeamMeasurement:
    """Read the tasks "team" and "served" of one number of workers."""
    workers = scenario.cluster.workers
    own, served = ([*_read(task, workers + (task is not tasks[0]))] for task in tasks)
    events = np.concatenate([record.events for record in own])
    parameters = tasks[0].algorithm.parameters
    n, together = parameters["steps"], parameters["together"]
    within = [_steps(events, part * n, (part + 1) * n) for part in range(3)]
    after, last = 3 * n + together, int(events["step"][events["node"] == 1].max())
    runs = [
        overheads.RunEvents(scenario, tasks[0].algorithm, 0, np.concatenate(within)),
        overheads.RunEvents(
            scenario, tasks[1].algorithm, 0, np.concatenate([record.events for record in served])
        ),
    ]
    terms = overheads.fit(runs)
    computed = _computing(_steps(events, 3 * n, after))
    alone = _computing(_steps(events, last, np.inf))
    seen = [*map(_evidence, (own, served), (scenario, scenario))]
    accounts = [record.account or Account() for record in own]
    return TeamMeasurement(
        workers=workers,
        stretched=_stretched(runs[0].events),
        compute=computed,
        alone=alone,
        collectives=_collectives(_steps(events, -1, 0), parameters),
        terms=terms,
        shortest=_shortest(_steps(events, after, last), after, parameters["candidates"]),
        hidden=_hidden(within, terms),
        cpu=sum((record.account or Account()).busy for record in served) / (n * workers),
        snapshot=sum(account.observing for account in accounts)
        / max(1, sum(len(r.rows) for r in own)),
        foreign=max(observation["foreign_cpu"] for observation in seen),
    )


def messages(task: TrainingTask) -> AlphaBeta:
    """Read the times of messages from the task "pair"."""
    parameters = task.algorithm.parameters
    transits = []
    for record in _read(task, 2):
        taken = record.events[record.events["kind"] == TAKE]
        transits.append(taken["due"] - taken["joined"])
    shape = -1, parameters["repeats"]
    samples = np.concatenate([transit.reshape(shape)[1:, FIRST:] for transit in transits], axis=1)
    return alpha_beta.fit(parameters["sizes"], [*samples])


def codecs(task: TrainingTask) -> list[CodecTime]:
    """Read the times of codecs beyond the raw one from the task "pair"."""
    parameters = task.algorithm.parameters
    repeats = parameters["repeats"]
    costs = np.array([_blocks(record.events) for record in _read(task, 2)])
    shape = 2, len(parameters["compressed"]), len(CODECS.kinds), repeats, 2
    typical = np.median(costs.reshape(shape)[:, :, :, FIRST:], axis=(0, 3))
    found = []
    for size, rows in zip(parameters["compressed"], typical, strict=True):
        for (kind, make), (before, after) in zip(CODECS.kinds.items(), rows - rows[0], strict=True):
            if kind != "raw":
                arrived = 2 if getattr(make, "gathers", False) else 1
                found.append(CodecTime(kind, size, max(before, 0.0), max(after, 0.0) / arrived))
    return found


def _blocks(events: Array) -> list[tuple[float, float]]:
    """Return, between pauses, seconds until the all-reduce was issued, and after its result.

    Computing between the two rounds of a codec counts as after.
    """
    inside = events[np.isin(events["kind"], (SERVE, ISSUE, WAIT, COLLECT))]
    inside = np.sort(inside, order="start")
    pauses = np.flatnonzero(inside["kind"] == SERVE)
    found = []
    for first, last in pairwise(pauses):
        block = inside[first + 1 : last]
        waits, landed = block[block["kind"] == WAIT], block[block["kind"] == COLLECT]
        issued = block["start"][block["kind"] == ISSUE][0]
        after = inside["start"][last] - waits["end"][-1]
        if len(waits) > 1:
            after += max(0.0, waits["joined"][1] - landed["start"][0])
        found.append((issued - inside["end"][first], after))
    return found


def _read(task: TrainingTask, nodes: int) -> list[Record]:
    found = [records.read(task.folder, rank) for rank in range(nodes)]
    return [record for record in found if record is not None]


def _steps(events: Array, after: float, until: float) -> Array:
    return events[(events["step"] > after) & (events["step"] <= until)]


def _stretched(events: Array) -> tuple[float, float]:
    """Return the shortest and the longest step drawn (seconds)."""
    steps = events[events["kind"] == STEP]
    drawn = steps["due"] - steps["start"]
    return float(drawn.min()), float(drawn.max())


def _computing(events: Array) -> Array:
    """Return seconds of steps, without the first tenth."""
    rows = events[events["kind"] == STEP]
    lasted = rows["end"] - rows["start"]
    found: Array = lasted[rows["step"] > np.quantile(rows["step"], overheads.WARM_UP)]
    return found


def _collectives(events: Array, parameters: dict[str, Any]) -> dict[str, AlphaBeta]:
    """Fit the time from the last worker's joining to the result, averaged over workers."""
    sizes, repeats = parameters["sizes"], parameters["repeats"]
    some = [size for size in sizes if size <= parameters["gathered"]]
    lasted = []
    for node in np.unique(events["node"]):
        own = events[events["node"] == node]
        landed, waits = own[own["kind"] == COLLECT], own[own["kind"] == WAIT]
        lasted.append(landed["start"] - waits["joined"])
    mean = np.maximum(np.mean(lasted, axis=0), 1e-9).reshape(-1, repeats)[:, FIRST:]
    return {
        "mean": alpha_beta.fit(sizes, [*mean[1 : len(sizes) + 1]]),
        "gather": alpha_beta.fit(some, [*mean[len(sizes) + 2 :]]),
    }


def _shortest(events: Array, before: int, candidates: Sequence[float]) -> float:
    """Return the first candidate that all workers held, at which the program stops."""
    rows = events[events["kind"] == STEP]
    tried = -(-(int(rows["step"].max()) - before) // clock.REPEATS)
    for number, duration in enumerate(candidates[:tried]):
        part = _steps(rows, *(before + count * clock.REPEATS for count in (number, number + 1)))
        lasted = [np.diff(part["start"][part["node"] == n]) for n in np.unique(part["node"])]
        slowest = max(float(np.median(times)) for times in lasted)
        stopped = number == tried - 1 < len(candidates) - 1
        if stopped or slowest <= (1 + clock.HOLDS) * duration:
            return duration
    return np.inf


def _hidden(within: Sequence[Array], terms: dict[str, Term]) -> float:
    """Return how much shorter steps that overlap an all-reduce are than those that wait for it, as
    a share of the most possible."""
    blocking, overlapped = (_pace(phase) for phase in within[:2])
    rows = within[1][within[1]["kind"] == STEP]
    bare = float(np.mean(rows["due"] - rows["start"])) + terms["step"].mean
    return float(np.clip((blocking - overlapped) / max(blocking - bare, 1e-9), 0, 1))


def _pace(events: Array) -> float:
    rows = events[(events["kind"] == STEP) & (events["node"] == 0)]
    return float(np.diff(rows["start"]).mean())


def _evidence(own: Sequence[Record], scenario: Scenario) -> dict[str, Any]:
    run = Run("", "", 0, "real", 0, 0.0, {}, {}, {})
    return evidence.evidence([MeasuredRun(run, [*own])], scenario)
