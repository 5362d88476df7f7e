"""`paceline probe --check`: report on this machine, and run a smoke test."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from rich.table import Table

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.load.load import parse
from paceline.simulator.reports.terminal import STYLE
from paceline.simulator.results.statistics import human
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import execution
from paceline.simulator.studies.execution import Progress
from paceline.simulator.studies.simulate import simulate

from ..host import device as devices
from ..host import machine, namespaces
from ..launch import launch
from ..measurement import evidence, measure
from ..training.task import Job, TrainingTask

LISTENED = 1.0  # seconds of measuring how much of the cores others use
STEPS = 20  # steps of each part of the smoke test
EQUAL = 1e-3  # relative difference of losses, simulated and real, in float32
SHARED = 2**30  # bytes of shared memory, below which NCCL can fail
VISIBLE = "CUDA_VISIBLE_DEVICES"
PARTS = [
    {"name": "ssgd", "label": "mean"},
    {"name": "ssgd", "codec": {"kind": "top-k", "ratio": 0.1}, "label": "gather"},
    {"name": "hpsgd", "label": "question"},
    {"name": "ssgd", "label": "groups made again"},
]
UNTIMED = "question"  # its answers, and thus the losses, depend on timing


class Finding(NamedTuple):
    """One line of the report. `good`: whether it needs no action."""

    what: str
    found: str
    good: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """Findings on the machine, and on what was trained there."""

    device: str
    machine: list[Finding]
    smoke: list[Finding]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline probe --check --json`, and of its report."""
        lines = {
            name: [line._asdict() for line in part]
            for name, part in (("machine", self.machine), ("smoke", self.smoke))
        }
        return {"device": self.device, **lines, "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """Return a sentence on whether real runs work here, and what to fix."""
        failed = [line.what for line in self.smoke if not line.good]
        if failed:
            return f"Real runs do not work here yet: {', '.join(failed)} failed."
        wrong = [line.what for line in self.machine if not line.good]
        start = "Real runs work here." if self.smoke else "Nothing was run."
        return f"{start} Check the marked lines: {', '.join(wrong)}." if wrong else start


def diagnose(
    *, device: str = "auto", smoke: bool = True, progress: Progress | None = None
) -> Diagnosis:
    """Examine this machine, and train on it for some seconds unless `smoke` is false.

    Raises InputError for a device that this machine lacks.
    """
    device = devices.find_device(device)
    hardware = machine.hardware(device)
    lines = [*_here(device, hardware)]
    ran = [*_smoke(device, hardware.get("gpus", 0), progress)] if smoke else []
    return Diagnosis(device, lines, ran)


def tables(diagnosis: Diagnosis) -> Iterator[Table]:
    """Tabulate the findings; lines that need attention are marked and bold."""
    for part, title in ((diagnosis.machine, "this machine"), (diagnosis.smoke, "smoke test")):
        table = Table(title, "", "", **STYLE)
        for what, value, good in part:
            table.add_row(what, "" if good else "!", value, style=None if good else "bold")
        if table.rows:
            yield table


def _others() -> float:
    """Return the share of the cores in use while this process only waits."""
    begin, used = time.monotonic(), machine.machine_cpu_seconds()
    time.sleep(LISTENED)
    spent = machine.machine_cpu_seconds() - used
    return min(1.0, spent / (time.monotonic() - begin) / execution.cores())


def _here(device: str, hardware: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the machine, and on what `validate` would do here."""
    others = _others()
    yield Finding("processor", machine.describe({k: hardware[k] for k in ("processor", "cores")}))
    yield Finding("system", f"{hardware['system']}; torch {hardware['torch']}")
    if device == "cpu":
        chosen = "cuda" in devices.device_types()
        unused = "not used, by your choice" if chosen else devices.unseen()
        yield Finding("GPUs", unused, "nvidia-smi" not in unused)
        yield Finding("collectives", "gloo")
    else:
        about = {k: hardware[k] for k in hardware.keys() - {"processor", "cores"}}
        yield Finding("GPUs", machine.describe(about))
        native = "NCCL where each worker has a GPU, else gloo"
        no = "gloo, because this torch has no NCCL"
        yield Finding("collectives", native if "nccl" in hardware else no, "nccl" in hardware)
        with suppress(OSError):
            shared = shutil.disk_usage(Path("/dev", "shm")).total
            hint = f"{shared / 2**30:.3g} GiB; NCCL wants 1 GiB: in a container, --shm-size=8g"
            yield Finding("shared memory", hint, shared >= SHARED)
        others = max(others, devices.used_by_others() or 0.0)
    missing = namespaces.available()
    yield Finding('network = "kernel"', f"refused: {missing}" if missing else "works", not missing)
    limit = evidence.DISTURBED
    counts = "counts" if others <= limit else f"does not count, over {limit:.0%}"
    yield Finding("evidence", f"others use {others:.0%}: a run now {counts}", others <= limit)


def _smoke(device: str, gpus: int, progress: Progress | None) -> Iterator[Finding]:
    """Train for some seconds with every arrangement of processes possible here."""
    ways: list[tuple[str, int, dict[str, str]]] = [("2 processes on the CPU", 2, {})]
    if device != "cpu":
        first = os.environ.get(VISIBLE, "0").split(",")[0]
        ways = [("2 processes on one GPU", 2, {VISIBLE: first})]
        ways += [(f"{gpus} processes, a GPU each", gpus, {})] * (gpus > 1)
    for number, (name, workers, visible) in enumerate(ways):
        if progress:
            progress(number, len(ways))
        with (
            tempfile.TemporaryDirectory(prefix="paceline-") as folder,
            mock.patch.dict(os.environ, visible),
        ):
            for finding in _train(workers, device, Path(folder)):
                yield finding._replace(what=f"{finding.what}, {name}")


def _train(workers: int, device: str, folder: Path) -> Iterator[Finding]:
    """Run the parts of the test; losses must equal the simulated ones."""
    scenario, wrong = _scenario(workers), ""
    tasks = tuple(
        TrainingTask(algorithm, 0, folder / str(number))
        for number, algorithm in enumerate(scenario.algorithm)
    )
    try:
        launch.run(Job(scenario, tasks, folder, device))
    except (InputError, RunError) as error:
        wrong = str(error)
    expected = simulate(scenario, seeds=1).runs
    for task, run in zip(tasks, expected, strict=True):
        label = task.algorithm.label
        measured = measure.measure(task, scenario)
        if measured is None or not measured.whole:
            yield Finding(label, wrong or "did not end", good=False)
            return  # later parts did not run
        losses = [trained.curve["loss"][-1] for trained in (measured.run, run)]
        apart = abs(losses[0] / losses[1] - 1)
        pace = human(measured.run.duration / measured.run.steps)
        if label != UNTIMED and not apart <= EQUAL:
            yield Finding(label, f"losses differ by {apart:.1%} from simulated ones", good=False)
        else:
            yield Finding(label, f"works; {pace} per step")


def _scenario(workers: int) -> Scenario:
    table = {
        "title": "smoke test",
        "model": {"parameters": 2410},
        "objective": {"kind": "torch", "model": "mlp", "data": "digits", "batch": 8},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": workers, "compute": "5 ms"},
        "network": {"latency": "0 s"},
        "run": {"steps": STEPS, "evaluate_every": STEPS},
        "validation": {"compute": "real", "network": "real", "timeout": "20 s"},
        "algorithm": PARTS,
    }
    return parse(table, file="doctor")
