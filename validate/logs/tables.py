"""Read a log, in whatever form it is, as rows: a rank's step, and how long it took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table, untrusted
from paceline.simulator.inputs.escaping import visible

from ..measurement import kineto, telemetry_files
from ..measurement.telemetry_files import Recorded
from ..training.events import STEP, WAIT
from .columns import TIMES, Column, choose

INCREASING = 0.75  # share of times, from which they are elapsed times
NAMES = (".csv", ".tsv", ".txt", ".log", ".jsonl", ".ndjson")
TEXTS = (*NAMES, *(f"{each}.gz" for each in NAMES))
HEAD = 100_000  # bytes of a trace, that say what its devices are: its events follow
NEEDED = "a log has a column of steps and one of their times, such as step, seconds"

ROWS = ("rank", "step", "steps", "seconds", "compute")  # arrays of a `Log`


@dataclass(frozen=True, eq=False)
class Log:
    """Rows of a log, by `rank` and `step`, and what each says of the steps up to its own.

    `steps`: how many it covers; `seconds`: their time in all; `compute`: their computing, nan if
    unknown. `notes`: in sentences.
    """

    path: Path
    rank: np.ndarray
    step: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    compute: np.ndarray
    notes: tuple[str, ...] = ()


def read(path: Path, columns: Mapping[str, str] | None = None) -> Log:
    """Read a log: CSV, JSON lines, exports of W&B and TensorBoard, traces or telemetry.

    `columns`: names of columns, with units in brackets, by quantity. Raises InputError.
    """
    if path.is_dir():
        return _recorded(path, telemetry_files.read(path), columns)
    with untrusted.refused(path, NEEDED), untrusted.unpacked(path) as file:
        begin = file.read(HEAD)
    if b'"traceEvents"' in begin:
        return _recorded(path, kineto.read(path), columns)
    try:
        names, rows = log_table.read(path, NEEDED, "seconds")
        return _log(path, names, rows, choose(names, columns or {}))
    except ValueError as error:
        raise InputError(f"{path}: {visible(str(error))}") from None


def _recorded(path: Path, found: Recorded, columns: Mapping[str, str] | None) -> Log:
    """Return a recorded job's steps: what each computed, and the waits that followed."""
    if columns:
        raise InputError(f"{path}: columns: neither telemetry nor a trace has any; leave them out")
    events = np.concatenate(list(found.events.values()))
    events = events[np.isin(events["kind"], (STEP, WAIT))]
    keys, place = np.unique(events[["node", "step"]], return_inverse=True)
    lasted = events["end"] - events["start"]
    whole = np.bincount(place, lasted, len(keys))
    computed = np.bincount(place, lasted * (events["kind"] == STEP), len(keys))
    ones = np.ones(len(keys))
    return Log(path, keys["node"], keys["step"], ones, whole, computed, tuple(found.notes))


def _log(
    path: Path, names: Sequence[str], rows: log_table.Rows, chosen: Mapping[str, Column]
) -> Log:
    """Read the columns that are needed."""
    parts = [each for each in ("compute", "wait") if each in chosen]
    vague = [part for part in parts if chosen[part].scale is None and "seconds" in chosen]
    wanted = [*({"step", "rank"} & chosen.keys()), *(each for each in parts if each not in vague)]
    if len(parts) < 2 or "seconds" in chosen:
        wanted.append("seconds" if "seconds" in chosen else "time")
    columns = [
        (names.index(each.name), each.name, each.value) for each in (chosen[one] for one in wanted)
    ]
    numbers, lines, left_out = log_table.numbers(rows, columns)
    if not len(lines):
        filled = " and ".join(name for _, name, _ in columns)
        raise ValueError(f"no line has {filled} filled in; {NEEDED}")
    notes = [f"{path}: column {chosen[each].name}, without a unit, is left out" for each in vague]
    if left_out:
        notes.append(f"{path}: {left_out} lines without a step's time are left out")
    values = dict(zip(wanted, numbers.T, strict=True))
    rank = values.get("rank", np.zeros(len(lines))).astype(int)
    order = np.lexsort((values["step"], rank))
    values = {each: own[order] for each, own in values.items()}
    return _ordered(path, rank[order], values, lines[order], chosen, tuple(notes))


def _ordered(  # noqa: PLR0913, PLR0917
    path: Path, rank: np.ndarray, values: dict[str, np.ndarray], lines: np.ndarray,
    chosen: Mapping[str, Column], notes: tuple[str, ...],
) -> Log:  # fmt: skip
    """Check rows that are in order of rank and step; turn elapsed times into those of steps."""

    def demand(wrong: np.ndarray, what: str, *quantities: str) -> None:
        if wrong.any():
            at = lines[-len(wrong) :][int(wrong.argmax())]
            names = " and ".join(
                chosen[quantity].name for quantity in quantities if quantity in chosen
            )
            raise ValueError(f"line {at}, column {names}: {what}")

    step, same = values["step"].astype(int), rank[1:] == rank[:-1]
    twice = same & (step[1:] == step[:-1])
    number = step[int(twice.argmax())] if twice.size else 0
    demand(
        twice,
        f"step {number} again; write one line for each step, and ranks in a column called rank, or "
        "cut the log where the job resumed",
        "step",
    )
    compute = values.get("compute", np.full(len(step), math.nan))
    if "time" in values:
        gone = np.diff(values["time"])
        own = chosen["time"].name.lower().startswith("time")  # "time_s" could be either
        if not own or not same.any() or (gone[same] >= 0).mean() >= INCREASING:
            back = same & (gone < 0)
            demand(back, "earlier than the step before; cut the log where the job resumed", "time")
            keep = np.flatnonzero(same) + 1
            covered = np.diff(step)[same].astype(float)
            if not len(keep):
                raise ValueError(f"a single elapsed time; {NEEDED}")
            return Log(path, rank[keep], step[keep], covered, gone[same], compute[keep], notes)
    seconds = values.get("seconds", values.get("time"))
    if seconds is None:
        seconds = compute + values["wait"]
    elif "wait" in values and "compute" not in values:
        compute = seconds - values["wait"]
    demand(seconds <= 0, "0 s; a step takes time: are the units right?", *TIMES)
    demand(
        (compute > seconds * (1 + 1e-6)) | (compute < 0),
        "more than the whole step takes; are the units right?",
        "compute", "wait",
    )  # fmt: skip
    return Log(path, rank, step, np.ones(len(step)), seconds, compute, notes)
