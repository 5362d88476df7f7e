"""`paceline probe --check`: report on this machine, and run a smoke test.

It describes hardware, software, and the choices of `validate`. The report can be attached to a
question, because it names no user, host or path.
"""

import getpass
import os
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psutil
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
STEPS = 20  # seconds of each part of the smoke test
EQUAL = 1e-3  # relative difference of losses, simulated and real, in float32
FILES, SHARED = 1024, 2**30  # open files, and bytes of shared memory, below which NCCL can fail
VISIBLE = "CUDA_VISIBLE_DEVICES"
PARTS = [
    {"name": "ssgd", "label": "mean"},
    {"name": "ssgd", "codec": {"kind": "top-k", "ratio": 0.1}, "label": "gather"},
    {"name": "hpsgd", "label": "question"},
    {"name": "ssgd", "label": "groups made again"},
]
UNTIMED = "question"  # its answers, and thus the losses, depend on timing
PRIVATE = re.compile(r"(?<![\w/])/[\w.+~-]+(/[\w.+~-]+)*/?")  # a path


class Finding(NamedTuple):
    """One line of the report. `good`: whether it needs no action."""

    what: str
    found: str
    good: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """Findings on the machine, `validate`'s settings there, and the smoke test."""

    device: str
    machine: list[Finding]
    settings: list[Finding]
    smoke: list[Finding]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline probe --check --json`, and of its report."""
        parts = {"machine": self.machine, "settings": self.settings, "smoke": self.smoke}
        lines = {name: [line._asdict() for line in part] for name, part in parts.items()}
        return {"device": self.device, **lines, "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """Return a sentence on whether real runs work here, and what to fix."""
        failed = [line.what for line in self.smoke if not line.good]
        if failed:
            return f"Real runs do not work here yet: {', '.join(failed)} failed."
        wrong = [line.what for line in (*self.machine, *self.settings) if not line.good]
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
    others = _others()
    busy = (device != "cpu" and devices.used_by_others()) or 0.0
    settings = [*_settings(device, hardware, max(others, busy))]
    ran = [*_smoke(device, hardware.get("gpus", 0), progress)] if smoke else []
    lines = ([*_here(device, hardware, others)], settings, ran)
    return Diagnosis(device, *([_anonymous(line) for line in part] for part in lines))


def tables(diagnosis: Diagnosis) -> Iterator[Table]:
    """Tabulate the findings; lines that need attention are marked and bold."""
    heads = {"machine": "this machine", "settings": "validate", "smoke": "smoke test"}
    for part, title in heads.items():
        table = Table(title, "", "", **STYLE)
        for what, value, good in getattr(diagnosis, part):
            table.add_row(what, "" if good else "!", value, style=None if good else "bold")
        if table.rows:
            yield table


def _others() -> float:
    """Return the share of the cores in use while this process only waits."""
    begin, used = time.monotonic(), machine.machine_cpu_seconds()
    time.sleep(LISTENED)
    spent = machine.machine_cpu_seconds() - used
    return min(1.0, spent / (time.monotonic() - begin) / execution.cores())


def _here(device: str, hardware: dict[str, Any], others: float) -> Iterator[Finding]:
    yield Finding("processor", machine.describe({k: hardware[k] for k in ("processor", "cores")}))
    free = f"{_size(psutil.virtual_memory().available)} free"
    yield Finding("memory", f"{_size(psutil.virtual_memory().total)}, {free}")
    yield Finding("system", f"{hardware['system']}; torch {hardware['torch']}")
    yield Finding("used by others", f"{others:.0%} of the cores")
    if device == "cpu":
        yield Finding("GPUs", _unused(), "nvidia-smi" not in _unused())
        return
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding("open files", f"{files:,}; NCCL wants {FILES:,}: ulimit -n", files >= FILES)
    with suppress(OSError):
        shared = shutil.disk_usage(Path("/dev", "shm")).total
        hint = f"{_size(shared)}; NCCL wants {_size(SHARED)}: in a container, --shm-size=8g"
        yield Finding("shared memory", hint, shared >= SHARED)
    about = {k: hardware[k] for k in hardware.keys() - {"processor", "cores"}}
    yield Finding("GPUs", machine.describe(about))
    busy = devices.used_by_others()
    share = "unknown" if busy is None else f"{busy:.0%} of the time"
    yield Finding("GPUs used by others", share, (busy or 0.0) <= evidence.FOREIGN)
    yield Finding(VISIBLE, "set" if VISIBLE in os.environ else "not set")


def _unused() -> str:
    """Return why no GPU is used."""
    return "not used, by your choice" if "cuda" in devices.device_types() else devices.unseen()


def _settings(device: str, hardware: dict[str, Any], others: float) -> Iterator[Finding]:
    """Yield findings on what `validate` would do here."""
    if device == "cpu":
        yield Finding("--device auto", "cpu; collectives by gloo")
    else:
        gpus, native = hardware["gpus"], "nccl" in hardware
        by = "NCCL" if native else "gloo, because this torch has no NCCL"
        yield Finding("--device auto", f"cuda: torch sees {gpus} x {hardware['gpu']}")
        yield Finding(f"up to {gpus} workers", f"a GPU for each; collectives by {by}", native)
        yield Finding("more workers, servers", "share GPUs; gloo, through the host's memory")
    missing = namespaces.available()
    yield Finding('network = "kernel"', f"refused: {missing}" if missing else "works", not missing)
    limit, run = evidence.DISTURBED, "a run now would count"
    if others > limit:
        run = f"a run now would not count: others use {others:.0%}, over {limit:.0%}"
    elif others > evidence.FOREIGN:
        run += f" with intervals {others:.0%} wider"
    yield Finding("evidence", run, others <= limit)


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


def _size(number: float) -> str:
    return f"{number / 2**30:.3g} GiB"


def _anonymous(finding: Finding) -> Finding:
    """Replace names of users and hosts, and paths."""
    text = PRIVATE.sub("PATH", finding.found)
    names = {socket.gethostname(): "HOST", socket.gethostname().split(".")[0]: "HOST"}
    with suppress(OSError, KeyError, ImportError):
        names[getpass.getuser()] = "USER"
    for name, instead in names.items():
        text = re.sub(rf"\b{re.escape(name)}\b", instead, text) if len(name) > 1 else text
    return finding._replace(found=text)
