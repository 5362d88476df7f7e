"""The five tables of Hybrid (arXiv 2407.00101), and how their numbers are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.simulator.results.run import Run
from paceline.simulator.studies.papers.lab import Lab

FIXED, PER_SAMPLE = 400, 3  # ms of a gradient: an assumption, as the scenarios say
POINTS = 1000  # times that accuracy is averaged over


@dataclass(frozen=True)
class TableEntry:
    """One number of a table: the `paper`'s, and the scenario and settings for ours."""

    name: str
    paper: float
    scenario: str
    step_size: int
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperTable:
    """Cells in the order of the key by which they differ."""

    name: str
    key: str
    cells: tuple[TableEntry, ...]

    def at(self, name: str) -> TableEntry:
        """The cell of that name."""
        return next(each for each in self.cells if each.name == name)


def _batch(size: int) -> tuple[str, ...]:
    """Overrides for a batch size and its compute time; none for the scenarios' own."""
    compute = f'cluster.compute="{FIXED + PER_SAMPLE * size} ms"'
    return () if size == 32 else (f"objective.batch={size}", compute)


def _delay(sd: str) -> tuple[str, ...]:
    return () if sd == "0.25 s" else (f'cluster.extra.sd="{sd}"',)


def _image(name: str, scenario: str, numbers: Sequence[float]) -> PaperTable:
    settings = [(step, batch) for step in (300, 500) for batch in (32, 64)]
    cells = (
        TableEntry(f"({step}, {batch})", number, scenario, step, _batch(batch))
        for (step, batch), number in zip(settings, numbers, strict=True)
    )
    return PaperTable(name, "(step size, batch)", tuple(cells))


def _row(name: str, scenario: str, found: Mapping[str, float], key: str = "") -> PaperTable:
    """A table of one row; `key`: the setting that varies, by default `name`."""
    key = key or name
    cells = (
        TableEntry(
            value,
            number,
            scenario,
            int(value) if key == "step size" else 500,
            _batch(int(value)) if key == "batch" else _delay(value) if key == "sd" else (),
        )
        for value, number in found.items()
    )
    return PaperTable(name, key, tuple(cells))


MNIST = _image("MNIST", "hybrid/mnist", (1.374, -0.516, 1.366, 1.291))
CIFAR = _image("CIFAR-10", "hybrid/cifar-10", (4.849, 2.435, 3.468, 2.884))
BATCH = _row(
    "batch",
    "hybrid/batch",
    {"8": 4.896, "16": 5.183, "32": 4.222, "64": 3.304, "128": 2.599},
)
STEP = _row(
    "step size",
    "hybrid/step-size",
    {"100": 0.136, "300": 3.857, "500": 3.915, "700": 3.083, "1000": 2.967},
)
DELAY = _row(
    "delay",
    "hybrid/delay",
    {"0.25 s": 3.915, "0.5 s": 1.920, "0.75 s": 3.012, "1 s": 2.879, "1.25 s": 5.184},
    key="sd",
)


def differences(lab: Lab, where: TableEntry) -> np.ndarray:
    """Hybrid's test accuracy minus async's, averaged over time: points, one per seed."""
    result = lab.runs(where.scenario, *where.sets)
    runs = {
        each.parameters.get("step_size"): result.groups[each.label]
        for each in result.scenario.algorithm
    }
    until = result.scenario.run.duration
    assert until is not None
    ours, baseline = (
        [accuracy(run, until) for run in runs[step]] for step in (where.step_size, None)
    )
    return np.subtract(ours, baseline)


def accuracy(run: Run, until: float) -> float:
    """Test accuracy (%), averaged over the time from 0 to `until` (seconds)."""
    times = np.linspace(0, until, POINTS)
    return 100 * float(np.interp(times, run.curve["time"], run.curve["accuracy"]).mean())
