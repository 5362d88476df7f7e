"""Events of a real run: every node's effects and their times, for calibration.

There is one row per awaited effect. The overhead of a real system shows in three places: between
two events (time of the framework), after `due` (the node notices the prescribed time late), and, if
no time is prescribed, in the whole event.
"""

import csv
import io
from collections.abc import Mapping
from math import isnan
from pathlib import Path

import numpy as np

from paceline.simulator.inputs import csv_files, untrusted

STEP, ISSUE, WAIT, AGREE, SEND, TAKE, SERVE, COLLECT = range(8)
KINDS = ("step", "issue", "wait", "agree", "send", "take", "serve", "collect")
"""Computing a gradient; starting a collective; waiting for one; polling whether one is finished;
sending a message; waiting for one; the server's work; within a wait, collecting a result that has
arrived."""
EVENT = np.dtype(
    [
        ("node", "i4"), ("kind", "i1"), ("step", "i8"), ("start", "f8"), ("end", "f8"),
        ("joined", "f8"), ("due", "f8"), ("bytes", "f8"),
    ]
)  # fmt: skip
"""`node`: rank, the server last; `step`: gradients computed so far. Times in seconds since the run
began: `joined`, when the last worker joined the collective (a message: when it was sent); `due`,
when it should end by the scenario. `bytes`: of the payload. nan: unknown."""

Key = tuple[str, int]
"""Label and seed of a run."""


def write(runs: Mapping[Key, np.ndarray]) -> bytes:
    """Write the events of runs (dtype `EVENT`) as CSV; unknown times are empty."""
    rows = (
        (label, seed, node, KINDS[kind], step, *map(_digits, times))
        for (label, seed), events in runs.items()
        for node, kind, step, *times in events.tolist()
    )
    return csv_files.table(("label", "seed", *(EVENT.names or ())), rows)


def _digits(time: float) -> csv_files.Digits:
    """Write a time to tenths of a microsecond, finer than any clock here."""
    return csv_files.Digits("" if isnan(time) else f"{time:.7f}".rstrip("0").rstrip("."))


def read(path: Path) -> dict[Key, np.ndarray]:
    """Read events from the CSV of `write`. Raises InputError."""
    rows_by_run: dict[Key, list[tuple[float, ...]]] = {}
    codes = {kind: code for code, kind in enumerate(KINDS)}
    with untrusted.refused(path, "is it from a measured run?", "cannot be read as events"):
        text = untrusted.text(path, untrusted.LARGEST_WRITTEN)
        for row in csv.DictReader(io.StringIO(text, newline="")):
            times = [float(row[name] or "nan") for name in (EVENT.names or ())[3:]]
            event = int(row["node"]), codes[row["kind"]], int(row["step"]), *times
            key = csv_files.restored(row["label"]), int(row["seed"])
            rows_by_run.setdefault(key, []).append(event)
        runs = {key: np.array(events, EVENT) for key, events in rows_by_run.items()}
        for (label, seed), events in runs.items():
            if not _possible(events):
                raise ValueError(f"{label}, seed {seed}: a time or number out of range")
    return runs


def _possible(events: np.ndarray) -> bool:
    """Return whether all events have finite, ordered times and valid numbers."""
    lasts = np.isfinite(events["start"]) & np.isfinite(events["end"])
    lasts &= events["start"] <= events["end"]
    finite = [~np.isinf(events[name]) for name in ("joined", "due", "bytes")]
    return bool(np.all([lasts, *finite, events["node"] >= 0, events["step"] >= 0]))
