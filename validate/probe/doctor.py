"""`paceline probe --check`: report on this machine, and run a smoke test."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.load.load import parse
from paceline.simulator.reports.terminal import STYLE
from paceline.simulator.results.statistics import human
from paceline.simulator.studies import execution

from ..comparison.quantities import EQUAL_STEPS, PACE
from ..host import device as devices
from ..host import machine, namespaces
from ..measurement import evidence
from ..validation import validate

LISTENED = 1.0  # seconds of measuring how much of the cores others use
STEPS = 20  # steps of each part of the smoke test
EQUAL = 1e-3  # relative difference of losses, simulated and real, in float32
SHARED = 2**30  # bytes of shared memory, below which NCCL can fail
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


def diagnose(*, device: str = "auto", smoke: bool = True) -> Diagnosis:
    """Examine this machine, and train on it for some seconds unless `smoke` is false.

    Raises InputError for a device that this machine lacks.
    """
    device = devices.find_device(device)
    hardware = machine.hardware(device)
    lines = [*_here(device, hardware)]
    ran = [*_smoke(device, max(2, hardware.get("gpus", 0)))] if smoke else []
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


def _smoke(device: str, workers: int) -> Iterator[Finding]:
    """Train for some seconds; losses must equal the simulated ones."""
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
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        try:
            result = validate(parse(table, file="doctor"), out=folder, device=device, seeds=1)
        except (InputError, RunError) as error:
            yield Finding(f"training with {workers} processes", str(error), good=False)
            return
    losses = result.comparison.of(EQUAL_STEPS, counted=False)
    for label, pace in result.comparison.of(PACE, counted=False).items():
        works = label == UNTIMED or abs(apart := losses[label]["error"]) <= EQUAL
        words = f"works; {human(pace['measured'])} per step"
        if not works:
            words = f"losses differ by {apart:.1%} from simulated ones"
        yield Finding(f"{label}, {workers} processes", words, works)
