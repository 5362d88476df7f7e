"""Predict a scenario, train for real, and compare: `paceline validate`."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.load.load import Programs, loaded
from paceline.simulator.programs.pieces.schedule import paced
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

from .comparison.compare import Comparison, ComparisonDirectory, compare
from .host import machine
from .host.device import find_device, used_by_others
from .launch import launch
from .launch.job import READING
from .measurement import evidence
from .measurement.measure import MeasuredRun, measure
from .training import events
from .training.task import Job, TrainingTask

SHORTEST = 0.001  # seconds of a stretched step
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
    require_runnable(scenario, joins)
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


def require_runnable(scenario: Scenario, launched: bool) -> None:
    """Raise InputError for settings that cannot run for real, one line per reason.

    `launched`: a launcher has started every process.
    """
    problems = [f"{scenario.file}: {key}: {why}" for key, why in _problems(scenario, launched)]
    if problems:
        raise InputError("\n".join(problems))


def _problems(scenario: Scenario, launched: bool) -> Iterator[tuple[str, str]]:
    network, cluster = scenario.network, scenario.cluster
    links = scenario.validation.network
    kernel = links == "kernel"
    jittered = network.jitter or any(link.jitter for link in network.link)
    stretched = scenario.validation.compute == "stretched"
    step = min(scenario.team.mean_compute)
    for key, why, holds in (
        ("algorithm", "nothing to run; add an [[algorithm]] table (paceline list algorithms)",
         not scenario.algorithm),
        (f'network.model = "{network.model}"',
         "only delays in closed form can be added to a real run; write "
         'network.model = "closed-form", or validation.network = "real" or "kernel"',
         links == "emulated" and not network.closed_form),
        ('network.collective = "given"',
         "the kernel's links have a latency and a bandwidth; write those, or "
         'validation.network = "emulated"',
         kernel and network.collective == "given"),
        ("cluster.drop", "real clients are not stopped during a round; remove it", cluster.drops),
        ("cluster.sampling",
         "means among selected clients are only simulated; remove it, or choose fedbuff",
         cluster.sampling and any(one.samples and not one.served for one in scenario.algorithm)),
        *((key, "crashes, absences and workers that means leave out are only simulated; remove "
           "them", True) for key in _troubled(scenario)),
        *((f"algorithm.{algorithm.label}",
           "different periods of workers are only simulated; write tau as a number of steps",
           paced(algorithm.parameters)) for algorithm in scenario.algorithm),
        ("cluster.compute",
         f"steps of {step * 1e3:.3g} ms cannot be held; write {SHORTEST * 1e3:g} ms or more, or "
         'validation.compute = "real" for real durations',
         stretched and step < SHORTEST),
        ('validation.network = "kernel"',
         "the kernel's links need processes that this command starts; run it without a launcher, "
         'or write "emulated" or "real"',
         kernel and launched),
        ("network.jitter",
         "the kernel's links delay all packets equally; remove it, or write "
         'validation.network = "emulated"',
         kernel and jittered),
    ):  # fmt: skip
        if holds:
            yield key, why


def _troubled(scenario: Scenario) -> list[str]:
    """Return the keys by which workers can be absent."""
    selected = scenario.cluster.model_copy(update={"sampling": None})
    whole = scenario.model_copy(update={"cluster": selected})
    rows = [
        f"algorithm[{index}].recovery"
        for index, algorithm in enumerate(scenario.algorithm)
        if whole.under(algorithm).troubled
    ]
    return ["cluster"] if whole.troubled and rows else rows
