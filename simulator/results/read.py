"""Read run directories: their document, and their curves as runs."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..inputs import csv_files, untrusted
from . import store
from .run import COLUMNS, Run

CURVES = "curves.csv"
REAL = "real"  # the engine of real runs


@dataclass(frozen=True)
class RunDirectory:
    """A run directory: its scenario's `table`, its `summary`, and `runs` by label.

    `rows` has the summary of each algorithm, by label. Runs have only their curves, steps,
    gradients and duration (seconds). Algorithms that stall have no runs, and are in `stalled`.
    """

    path: Path
    table: dict[str, Any]
    summary: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    runs: dict[str, list[Run]]

    @property
    def is_measured(self) -> bool:
        """Whether the runs are real, not simulated."""
        return bool(self.rows) and all(row["engine"] == REAL for row in self.rows.values())

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the runs."""
        return list(self.summary["seeds"])

    @property
    def stalled(self) -> list[str]:
        """The labels of algorithms that stall with some seed."""
        return [label for label, row in self.rows.items() if row["stall"]]


def read(path: Path | str) -> RunDirectory:
    """Read a run directory that `paceline simulate` or a real run has written.

    Raises InputError if `path` is not a run directory, is unfinished, or has files of another run.
    """
    document = store.load(path)
    summary, table = document["summary"], document["scenario"]["table"]
    rows = {row["label"]: row for row in summary["algorithms"]}
    try:
        simulated = document.get("settings", {}).get("command") == "simulate"
        if simulated and any(row["engine"] == REAL for row in rows.values()):
            raise ValueError("run.json describes simulated runs as real")
        runs = _runs(Path(path) / CURVES, rows)
    except FileNotFoundError:
        raise InputError(
            f"{path}: its {CURVES} is missing; give a whole run directory (repeat its command)"
        ) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, csv.Error) as why:
        reason = f" ({why})" if isinstance(why, ValueError) else ""
        raise InputError(
            f"{path}: not a run directory of paceline simulate or validate{reason}; "
            "give one of those"
        ) from None
    return RunDirectory(Path(path), table, summary, rows, runs)


def _runs(path: Path, rows: dict[str, dict[str, Any]]) -> dict[str, list[Run]]:
    """Read curves.csv; return a run per label and seed, in the file's order."""
    points: dict[tuple[str, int], list[list[float]]] = {}
    text = untrusted.text(path, untrusted.LARGEST_WRITTEN)
    lines = csv.DictReader(io.StringIO(text, newline=""))
    if missing := {"label", "seed", *COLUMNS}.difference(lines.fieldnames or ()):
        raise ValueError(f"{CURVES} has no column {min(missing)}")
    for line in lines:
        if None in line.values() or None in line:
            raise ValueError(f"line {lines.line_num} of {CURVES} is not whole")
        values = [float(line[column] or "nan") for column in COLUMNS]
        key = csv_files.restored(line["label"]), int(line["seed"])
        points.setdefault(key, []).append(values)
    runs: dict[str, list[Run]] = {label: [] for label, row in rows.items() if not row["stall"]}
    for (label, seed), curve in points.items():
        if label in runs:
            run, place = _run(rows[label], seed, np.array(curve)), len(runs[label])
            for name in ("gradients", "working_seconds"):
                for value in (rows[label].get(name) or [])[place : place + 1]:
                    setattr(run, name, float(value))
            runs[label].append(run)
    return {label: made for label, made in runs.items() if made}


def _run(row: dict[str, Any], seed: int, points: np.ndarray) -> Run:
    curve = dict(zip(COLUMNS, points.T.tolist(), strict=True))
    for name in ("time", "step"):
        column = np.array(curve[name])
        if not (np.isfinite(column).all() and (np.diff(column, prepend=0.0) >= 0).all()):
            raise ValueError(f"{CURVES}: {row['label']}, seed {seed}: its {name} decreases")
    return Run(
        label=row["label"],
        name=row["name"],
        seed=seed,
        engine=row["engine"],
        steps=curve["step"][-1],
        duration=curve["time"][-1],
        curve=curve,
        seconds={},
        links={},
        bound=bool(row["bound"]),
    )
