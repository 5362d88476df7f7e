"""Convert events of a probe's programs to the measured numbers, and to a profile."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.simulator.programs.codecs.codec import CODECS
from paceline.simulator.results import store
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Scenario

from ..calibration import overheads
from ..calibration import profile as profiles
from ..calibration.overheads import TERMS, Term
from ..calibration.profile import Profile, rounded, seconds
from ..host import machine
from ..measurement import evidence
from ..measurement.measure import MeasuredRun
from ..training import records
from ..training.events import COLLECT, ISSUE, SERVE, STEP, WAIT
from ..training.records import Record
from ..training.task import TrainingTask

FIRST = 1  # repetitions of each kind that are warm-up
HEAD = (
    'A machine as measured by `paceline probe`. A scenario uses it by extends = "THIS',
    'FILE"; docs/probe.md and docs/reference/scenario.md explain the keys.',
)
Array = np.ndarray


@dataclass(frozen=True)
class TeamMeasurement:
    """Measurements with one number of workers; times in seconds.

    `stretched`: shortest and longest drawn step; `compute`: steps of all workers at once; `alone`:
    steps of the first worker while the others slept; `terms`: of [[overhead]]; `foreign`: share of
    the CPU that other processes used.
    """

    workers: int
    stretched: tuple[float, float]
    compute: Array
    alone: Array
    terms: dict[str, Term]
    foreign: float


def team(tasks: Sequence[TrainingTask], scenario: Scenario) -> TeamMeasurement:
    """Read the tasks "team" and "served" of one number of workers."""
    workers = scenario.cluster.workers
    averaging, served = (_read(task, workers + (task is not tasks[0])) for task in tasks)
    events = np.concatenate([record.events for record in averaging])
    parameters = tasks[0].algorithm.parameters
    n, together = parameters["steps"], parameters["together"]
    together += 3 * n  # the last step that all workers take together
    stretched = _steps(events, 0, 3 * n)
    steps = stretched[stretched["kind"] == STEP]
    drawn = steps["due"] - steps["start"]
    of_server = np.concatenate([record.events for record in served])
    runs = [
        overheads.RunEvents(scenario, task.algorithm, 0, rows)
        for task, rows in zip(tasks, (stretched, of_server), strict=True)
    ]
    nothing = Run("", "", 0, "real", 0, 0.0, {}, {}, {})
    return TeamMeasurement(
        workers=workers,
        stretched=(float(drawn.min()), float(drawn.max())),
        compute=_computing(_steps(events, 3 * n, together)),
        alone=_computing(_steps(events, together, np.inf)),
        terms=overheads.fit(runs),
        foreign=max(
            evidence.evidence([MeasuredRun(nothing, team)], scenario)["foreign_cpu"]
            for team in (averaging, served)
        ),
    )


def codecs(task: TrainingTask) -> list[dict[str, str]]:
    """Return [[codec]] of the task "codecs": seconds beyond the raw codec, by size.

    `compress`: seconds per vector; `decompress`: seconds per message of it.
    """
    parameters = task.algorithm.parameters
    costs = np.array([_blocks(record.events) for record in _read(task, 2)])
    shape = 2, len(parameters["sizes"]), len(CODECS.kinds), parameters["repeats"], 2
    typical = np.median(costs.reshape(shape)[:, :, :, FIRST:], axis=(0, 3))
    tables = []
    for size, rows in zip(parameters["sizes"], typical, strict=True):
        beyond = np.maximum(rows - rows[0], 0.0)
        for (kind, make), (before, after) in zip(CODECS.kinds.items(), beyond, strict=True):
            if kind != "raw":
                arrived = 2 if getattr(make, "gathers", False) else 1
                times = {"compress": seconds(before), "decompress": seconds(after / arrived)}
                tables.append({"kind": kind, "size": profiles.size(size)} | times)
    return tables


def _blocks(events: Array) -> list[tuple[float, float]]:
    """Return the seconds before an all-reduce was issued, and those after its result.

    Computing between the two rounds of a codec counts as after.
    """
    inside = events[np.isin(events["kind"], (SERVE, ISSUE, WAIT, COLLECT))]
    inside = np.sort(inside, order="start")
    pauses = np.flatnonzero(inside["kind"] == SERVE)
    times = []
    for first, last in pairwise(pauses):
        block = inside[first + 1 : last]
        waits, landed = block[block["kind"] == WAIT], block[block["kind"] == COLLECT]
        issued = block["start"][block["kind"] == ISSUE][0]
        after = inside["start"][last] - waits["end"][-1]
        if len(waits) > 1:
            after += max(0.0, waits["joined"][1] - landed["start"][0])
        times.append((issued - inside["end"][first], after))
    return times


def _read(task: TrainingTask, nodes: int) -> list[Record]:
    of_nodes = (records.read(task.folder, rank) for rank in range(nodes))
    return [record for record in of_nodes if record is not None]


def _steps(events: Array, after: float, until: float) -> Array:
    return events[(events["step"] > after) & (events["step"] <= until)]


def _computing(events: Array) -> Array:
    """Return seconds of steps, without the first tenth."""
    rows = events[events["kind"] == STEP]
    lasted = rows["end"] - rows["start"]
    warm: Array = lasted[rows["step"] > np.quantile(rows["step"], overheads.WARM_UP)]
    return warm


def profile(
    about: dict[str, Any], teams: Sequence[TeamMeasurement], codecs: Sequence[dict[str, str]]
) -> Profile:
    """Return a profile; `about`: the probe's settings, `codecs`: tables [[codec]]."""
    busiest, notes = max(team.foreign for team in teams), list[str]()
    if busiest > evidence.FOREIGN:
        notes.append(
            f"other programs used up to {busiest:.0%} of the CPU (evidence: "
            f"{evidence.FOREIGN:.0%}); probe again when the machine is idle"
        )
    travels = 4.0 * about["parameters"]
    tables = {
        "calibration": {
            "date": profiles.today(),
            "hardware": machine.describe(machine.hardware(about["device"])),
            "notes": notes,
            "versions": store.versions("torch"),
            "sd": {
                f"overhead.{index}.{name}": rounded(term.se / term.mean)
                for index, team in enumerate(teams)
                for name, term in team.terms.items()
                if term.mean > 0 and term.se > 0
            },
            "model_error": profiles.model_error(about["network"]),
            "measured": {
                "workers": profiles.ends([team.workers for team in teams]),
                "step": profiles.between([step for team in teams for step in team.stretched]),
                "bytes": [travels, travels],
            },
        },
        "overhead": [_overhead(team) for team in teams],
        "codec": codecs,
        "probe": _probe(about, teams),
    }  # fmt: skip
    return Profile(tables, HEAD)


def _overhead(team: TeamMeasurement) -> dict[str, Any]:
    table: dict[str, Any] = {"workers": team.workers}
    if (step := team.terms.get("step")) is not None:
        table["step"] = profiles.law(step.mean, step.spread)
    measured = [name for name in TERMS if name in team.terms]
    return table | {name: seconds(max(0.0, team.terms[name].mean)) for name in measured}


def _probe(about: dict[str, Any], teams: Sequence[TeamMeasurement]) -> dict[str, Any]:
    """Return [probe]: measurements without keys in a scenario."""
    return about | {
        "threads": 1,
        "foreign_cpu": rounded(max(team.foreign for team in teams)),
        "compute": [
            {
                "workers": workers,
                "mean": seconds(float(samples.mean())),
                "sd": seconds(float(samples.std())),
                "median": seconds(float(np.median(samples))),
                "p95": seconds(float(np.quantile(samples, 0.95))),
                "samples": len(samples),
            }
            for workers, samples in (
                (1, teams[0].alone), *((team.workers, team.compute) for team in teams)
            )
        ],
    }  # fmt: skip
