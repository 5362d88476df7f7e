"""`paceline compare RUN_DIR LOG`: compare a predicted step time with a job's log."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import nearest
from paceline.simulator.results import intervals, read
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import human, jsonable

from ..measurement.fingerprints import fitted_to
from . import jobs, steps, tables

BLOCKS = 20  # blocks of successive steps, whose means give the error of the overall mean
Pair = tuple[float, float]


@dataclass(frozen=True)
class LogCheck:
    """The seconds per step of a log, and the prediction for the algorithm `label`.

    `interval90`: the predicted interval of a measured run, None without a profile; `seeds`: the
    prediction's interval over seeds. `measured_interval`: the interval of the log's mean. `fitted`:
    whether the profile was calibrated from this log.
    """

    log: str
    label: str
    predicted: float
    interval90: Pair | None
    seeds: Pair | None
    measured: float
    measured_interval: Pair | None
    steps: int
    fitted: bool
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Return whether the interval contains the measured step time; None without one."""
        return self.interval90 and self.interval90[0] <= self.measured <= self.interval90[1]

    @property
    def sentence(self) -> str:
        """Return a sentence on whether the prediction is right."""
        interval, level = (self.interval90, USUAL) if self.interval90 else (self.seeds, "seeds")
        verdict = "This prediction has no interval; with a profile (paceline calibrate) it has one."
        if self.covered is not None:
            verdict = "inside." if self.covered else "outside."
        if self.covered is False and not self.fitted:
            verdict = "outside: the simulated job differs from the log's."
        if self.fitted:
            verdict += " The profile was fitted to this log, so agreement proves nothing."
        return (
            f"{self.log}: {_with_ends(self.measured, self.measured_interval, USUAL)} a step, of "
            f"{self.steps} steps; predicted for {self.label}: "
            f"{_with_ends(self.predicted, interval, level)}, {self.error:+z.1%}, {verdict}"
        )

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline compare --json`."""
        judged = {"error": self.error, "covered": self.covered, "sentence": self.sentence}
        return dict(jsonable(asdict(self) | judged))


def _with_ends(value: float, ends: Pair | None, level: str) -> str:
    return human(value) + (f" ({level}: {human(ends[0])} to {human(ends[1])})" if ends else "")


def check(
    predicted: Path | str, log: Path | str, *, label: str | None = None, warmup: int = 10,
    columns: Mapping[str, str] | None = None,
) -> LogCheck:  # fmt: skip
    """Compare the step time of a log after its `warmup` with a simulated run's.

    `label`: the algorithm that the job ran; may be left out if `predicted` has only one. `columns`:
    see `tables.read`. Raises InputError.
    """
    run = read.read(predicted)
    if run.is_measured:
        raise InputError(f"{predicted}: measured; give a directory of paceline simulate")
    if label is None and len(run.rows) > 1:
        raise InputError(
            f"{predicted}: has {', '.join(run.rows)}; name the job's algorithm with --algorithm"
        )
    label = label or next(iter(run.rows))
    of_name = [row for row in run.rows if row.split()[0] == label]
    if label not in run.rows and len(of_name) == 1:  # a program that ran once
        label = of_name[0]
    if label not in run.rows:
        raise InputError(f"{predicted}: no {label!r}; {nearest(label, run.rows, 'it has')}")
    path = Path(log)
    rows = jobs.warm(tables.read(path, columns), warmup, str(path))
    rows, notes = steps.without_pauses(rows, path.name)
    blocks = np.array_split(rows.seconds / rows.steps, min(BLOCKS, len(rows.steps)))
    pace = run.rows[label]["seconds_per_step"]
    return LogCheck(
        path.name, label, pace["mean"], pace.get("interval90"), intervals.stated(pace).interval,
        float(rows.seconds.sum() / rows.steps.sum()),
        intervals.estimate([block.mean() for block in blocks], of=intervals.MEAN).interval,
        int(rows.steps.sum()), fitted_to(run.table, path), (*rows.notes, *notes),
    )  # fmt: skip
