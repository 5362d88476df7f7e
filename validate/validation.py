"""Predict a scenario, train for real, and compare: `paceline validate`."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.load.load import Programs, loaded
from paceline.simulator.results import store
from paceline.simulator.results.store import Destination
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.studies import execution
from paceline.simulator.studies.execution import (
    Progress,
    Task,
    demand_algorithms,
    seed_range,
    settings,
)
from paceline.simulator.studies.result import Result, save
from paceline.simulator.studies.simulate import simulate

from . import checks
from .comparison.compare import Comparison, ComparisonDirectory, compare
from .host import machine
from .host.device import find_device, used_by_others
from .launch import launch
from .launch.job import READING
from .measurement import evidence
from .measurement.measure import MeasuredRun, measure
from .training import events
from .training.task import Job, TrainingTask

MEASURING = ("torch_objective", "training", "launch", "host", "measurement")  # folders of code


@dataclass(frozen=True)
class Validation:
    """A scenario predicted and measured with the same seeds, and their comparison.

    `evidence`: by label, whether its runs count; `machine`: the hardware of the measurement;
    `resumed`: number of real runs stored by an earlier call.
    """

    predicted: Result
    measured: Result
    comparison: Comparison
    evidence: dict[str, Any]
    machine: dict[str, Any]
    resumed: int

    @property
    def notes(self) -> list[str]:
        """Return warnings and omissions with reasons, in sentences."""
        notes = [*launch.exposure_warnings(), *self.measured.notes, *self.comparison.notes]
        return list(dict.fromkeys(notes))

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline validate --json`."""
        return {
            "scenario": self.predicted.json()["scenario"],
            "machine": self.machine,
            "evidence": self.evidence,
            "predicted": self.predicted.json(),
            "measured": self.measured.json(),
            "comparison": self.comparison.json(),
        }


def validate(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    *,
    out: Path | str | Destination,
    overwrite: bool = False,
    device: str = "auto",
    seed: int = 0,
    seeds: int | None = None,
    programs: Programs = None,
    progress: Progress | None = None,
) -> Validation:
    """Run a scenario's algorithms in simulation and for real, and compare.

    `seeds` seeds from `seed` on; `device`: "auto", "cpu" or "cuda". `programs`, by name, extend the
    catalogue, and are functions of a module, or of a script whose work is under `if __name__ ==
    "__main__":`. `out` gets two run directories, `predicted` and `measured`, and the comparison.
    Finished real runs are stored there immediately, so that the same call resumes after an
    interruption, except runs of `programs`. Measured runs, which cannot be repeated exactly, and
    results of other settings are replaced only if `overwrite`. Raises InputError for settings that
    cannot run. Raises RunError if a process dies; measurements so far stay in `measured`, marked as
    cut short.
    """
    if READING in os.environ:
        raise InputError(
            "processes of a real run import the script: start its work under "
            '`if __name__ == "__main__":`'
        )
    scenario = loaded(scenario, programs)
    joins = launch.launched()
    checks.require_runnable(scenario, joins)
    device = find_device(device)
    numbers = seed_range(scenario, scenario.validation.seeds if seeds is None else seeds, seed)
    demand_algorithms(scenario)
    if joins and os.environ["RANK"] != "0":  # rank 0 gathers and shows the results
        with tempfile.TemporaryDirectory() as folder:
            launch.join(_job(scenario, numbers, device, Path(folder)))
    options = settings("validate", scenario, seeds=list(numbers), device=device)
    with Destination.of(out, overwrite).open(ValidationDirectory, options) as whole:
        predict = partial(_predict, scenario, numbers, whole)
        if not joins:  # first, to find errors fast; under a launcher others would wait
            predicted = predict()
        directory = whole.measured
        job = _job(scenario, numbers, device, directory.scratch)
        about = machine.hardware(device)
        busy = (device != "cpu" and used_by_others()) or 0.0
        todo = job.tasks
        try:
            if joins:
                launch.join(job)
            elif todo := tuple(task for task in job.tasks if not _is_whole(task, job)):
                launch.run(replace(job, tasks=todo), progress)
        except RunError:
            if runs := _measured(job):
                _save(job, runs, directory, about, busy)
            raise
        if device != "cpu":
            busy = max(busy, used_by_others() or 0.0)  # when the processes have ended
        measured, judged = _save(job, _measured(job), directory, about, busy)
        if joins:
            predicted = predict()
        comparison = compare(whole.path / "predicted", directory.path)
        comparison.write(whole)
        directory.remove_parts()
    resumed = len(job.tasks) - len(todo)
    return Validation(predicted, measured, comparison, judged, about, resumed)


class MeasuredDirectory(store.Directory):
    """A directory for real runs; see `store.Directory`."""

    repeatable = False


class ValidationDirectory(ComparisonDirectory):
    """The directory of a comparison, whose folder `measured` has its real runs."""

    measured: MeasuredDirectory

    def _begin(self) -> None:
        path, wanted = self.path / "measured", self.settings
        self.measured = MeasuredDirectory(path, wanted, overwrite=self.overwrite)

    def close(self) -> None:
        """Release both directories for other commands."""
        if hasattr(self, "measured"):
            self.measured.close()
        super().close()


def _predict(scenario: Scenario, numbers: range, whole: store.Directory) -> Result:
    """Simulate with the real runs' seeds."""
    count, first = len(numbers), numbers.start
    with store.Directory(whole.path / "predicted", whole.settings, overwrite=True) as directory:
        result = simulate(scenario, seeds=count, seed=first, paired=True, kept=directory)
        save(result, directory)
    return result


def _job(scenario: Scenario, seeds: Sequence[int], device: str, folder: Path) -> Job:
    """Return the job of every algorithm and seed; equal runs share a folder."""
    pairs = [(algorithm, seed) for algorithm in scenario.algorithm for seed in seeds]
    if launch.launched():
        names = [f"task-{number}" for number in range(len(pairs))]
    elif scenario.added:
        names = [secrets.token_hex(16) for _ in pairs]
    else:
        names = [_key(scenario, *pair, device) for pair in pairs]
    tasks = (TrainingTask(*pair, folder / name) for pair, name in zip(pairs, names, strict=True))
    return Job(scenario, tuple(tasks), folder, device)


def _key(scenario: Scenario, algorithm: Algorithm, seed: int, device: str) -> str:
    """Hash everything that determines a real run, except chance."""
    simulated = Task(algorithm, seed, 0, "real").key(scenario.nominal)
    stated = scenario.table.get("validation")
    where = [stated, device, machine.boot_id(), execution.cores(), _code()]
    text = store.dump([simulated, where, str(torch.__version__)])
    return hashlib.sha256(text).hexdigest()[:32]


@cache
def _code() -> str:
    """Hash the sources on which real runs depend."""
    here = Path(__file__).parent
    ours = (path for room in MEASURING for path in sorted((here / room).glob("*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in ours)).hexdigest()


def _is_whole(task: TrainingTask, job: Job) -> bool:
    """Return whether an earlier call has finished all nodes of a task."""
    nodes = launch.process_count(job.scenario, [task])
    return all((task.folder / f"rank-{rank}.json").is_file() for rank in range(nodes))


def _measured(job: Job) -> list[MeasuredRun]:
    runs = (measure(task, job.scenario) for task in job.tasks)
    return [run for run in runs if run is not None]


def _save(
    job: Job,
    runs: Sequence[MeasuredRun],
    directory: store.Directory,
    about: dict[str, Any],
    busy: float,
) -> tuple[Result, dict[str, Any]]:
    """Write the measured run directory; return its result, and by label the evidence."""
    scenario = job.scenario
    of = [record.account for run in runs for record in run.records if record.account is not None]
    by = {account.machine["collectives"] for account in of if "collectives" in account.machine}
    about = about | ({"collectives": "; ".join(sorted(by))} if by else {})
    groups: dict[str, list[MeasuredRun]] = {}
    for one in runs:
        groups.setdefault(one.run.label, []).append(one)
    judged = {label: evidence.evidence(group, scenario, busy) for label, group in groups.items()}
    there = tuple(algorithm for algorithm in scenario.algorithm if algorithm.label in groups)
    for one in runs:
        if one.run.seed != runs[0].run.seed:
            one.run.spans = None  # a timeline shows one seed
    result = Result(
        scenario.model_copy(update={"algorithm": there}),
        sorted({one.run.seed for one in runs}),
        [one.run for one in runs],
    )
    did = {(one.run.label, one.run.seed): one.events for one in runs}
    files = {"events.csv": events.write(did)}
    # the runs' files stay until they are compared, so that a killed command can repeat that
    more = {"evidence": judged, "machine": about}
    save(result, directory, summary=more, files=files, whole=False)
    return result, judged
