"""Read a log of any format as rows: a rank's step, and its duration.

A unit is stated by a name (`step_ms`), by a `columns` table (`seconds = "dt [ms]"`) or by the cells
("412 ms"), and never guessed from the size of the numbers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table, printed_logs, units, untrusted
from paceline.simulator.inputs.messages import nearest, visible

INCREASING = 0.75  # share of rising times above which they are elapsed times
CLOCK, RESTARTS, EVEN = 5, 0.1, 3.0
"""Rises that show a clock, at least half of all differences; the largest share of differences that
fall; the factor by which growth in both halves may be apart."""
NAMES = (".csv", ".tsv", ".txt", ".log", ".jsonl", ".ndjson")
TEXTS = (*NAMES, *(f"{name}.gz" for name in NAMES))
TICKS = 10  # seconds between rows whose clock shows whole seconds
HEAD = 100_000  # first bytes, in which a Trainer's state names its history
RESUMED = "cut the log where the job resumed"
AGAIN = f"write one line for each step, and ranks in a column called rank, or {RESUMED}"
NEEDED = "a log has a column of steps and one of their times, such as step, seconds"

ROWS = ("rank", "step", "steps", "seconds", "compute")  # arrays of a `Log`
_SPELLED = {
    3600.0: "hour hours",
    1.0: "s sec secs second seconds",
    1e-3: "ms msec msecs millis millisecond milliseconds",
    1e-6: "us µs μs usec usecs micros microsecond microseconds",
    1e-9: "ns nsec nanos nanosecond nanoseconds",
}
UNITS = {word: scale for scale, words in _SPELLED.items() for word in words.split()}
SPELLINGS = {
    "step": "step steps global_step iteration iter it train_step current_steps",
    "seconds": "step_time steptime step_duration iteration_time iter_time batch_time duration dt "
    "time_per_step time_per_iteration time_per_iter train_step_time",
    "compute": "compute compute_time computing forward_backward gradient_time",
    "wait": "wait wait_time waiting comm comm_time communication communication_time sync sync_time "
    "allreduce allreduce_time all_reduce_time",
    "time": "time elapsed elapsed_time wall_time walltime timestamp runtime relative_time",
    "rank": "rank global_rank worker",
}
STEMS = {stem: quantity for quantity, words in SPELLINGS.items() for stem in words.split()}
TIMES = ("seconds", "compute", "wait", "time")
KNOWN = {  # documented here, by W&B or by TensorBoard; the first counts
    "step": "step", "_step": "step", "global_step": "step", "rank": "rank", "seconds": "seconds",
    "seconds_per_step": "seconds", "compute": "compute", "wait": "wait", "_runtime": "time",
    "_timestamp": "time", "wall time": "time", "relative time (process)": "time",
}  # fmt: skip
PLACES = [*KNOWN]
WHOLE = 2.0**53  # beyond it a float skips whole numbers


@dataclass(frozen=True)
class Column:
    """A column by its `name`; `scale`: its unit (seconds), or None if unknown."""

    name: str
    quantity: str
    scale: float | None

    def value(self, cell: Any) -> float:
        """Return the number in a cell (SI units), nan if it is empty. Raises ValueError."""
        text = str(cell).strip()
        if cell is None or not text:
            return math.nan
        if isinstance(cell, bool) or not isinstance(cell, int | float | str):
            raise ValueError("not a number; write one")
        timed = self.quantity in TIMES
        if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text):
            raise ValueError("above 1000 in some countries, not in others; leave the comma out")
        if re.fullmatch(r"[+-]?\d+,\d+", text):
            cell = text.replace(",", ".")  # as written in many countries
        elif timed and re.fullmatch(r"(\d{4}-[\d-]+[ T]|\d+:)?\d+:[\d:.Z+-]*\d[\dZ]*", text):
            return printed_logs.clock(text)
        try:
            number = float("" if "_" in str(cell) else cell)  # "1_000" is Python, not a log
        except (ValueError, OverflowError):
            if timed:
                return units.to_si(str(cell), "time")
            number = math.nan
        if not timed and not (0 <= number < WHOLE and number == int(number)):
            raise ValueError("not a whole number; write one, 0 or more")
        if not 0 <= number < math.inf:
            raise ValueError("not a time; write a finite number, 0 or more")
        if self.scale is None:
            raise ValueError(
                f"without a unit; call the column {self.name}_s or {self.name}_ms, or write "
                f'columns = {{ {self.quantity} = "{self.name} [ms]" }} beside the log, with its '
                "unit in brackets"
            )
        units.demand_within(number * self.scale, "time")
        return number * self.scale


@dataclass(frozen=True, eq=False)
class Log:
    """Rows of a log, each about the steps of a `rank` up to `step`.

    `steps`: the number that a row covers; `seconds`: their total time; `compute`: their compute
    time, nan if unknown. `notes`: sentences; `framework`: the framework that printed the log, "" if
    unknown.
    """

    path: Path
    rank: np.ndarray
    step: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    compute: np.ndarray
    notes: tuple[str, ...] = ()
    framework: str = ""


def read(
    path: Path, columns: Mapping[str, str] | None = None, cut: log_table.Cut | None = None
) -> Log:
    """Read a log: CSV, JSON lines, W&B, TensorBoard, or what frameworks print.

    `columns`: names of columns, with units in brackets, by quantity. Raises InputError.
    """
    try:
        names, rows = log_table.read(path, NEEDED, "seconds", cut)
        return _log(path, names, rows, _choose(names, columns or {}))
    except ValueError as error:
        raise InputError(f"{path}: {visible(str(error))}") from None


def runs(path: Path) -> list[dict[str, str]]:
    """Return `columns` for each run in an export of several runs, such as W&B's."""
    with untrusted.refused(path, NEEDED):
        names, _ = log_table.read(path, NEEDED, "seconds")
    found = dict[str, dict[str, str]]()
    for name in names:
        column = None if name.endswith(log_table.ENDS) else _read_name(name)[1]
        if column and column.quantity in ("step", "seconds", "time") and " - " in name:
            of_run = found.setdefault(name.rpartition(" - ")[0], {})
            if of_run.setdefault(column.quantity, name) != name:
                return []
    timed = [run for run in found.values() if {"seconds", "time"} & run.keys()]
    return timed if len(timed) > 1 else []


def is_log(path: Path) -> bool:
    """Return whether a file is a log by its name, or the state of a Trainer."""
    if path.suffix != ".json" or not path.is_file():
        return path.name.endswith(TEXTS)
    with untrusted.refused(path, NEEDED), untrusted.opened(path) as file:
        return f'"{log_table.HISTORY}"'.encode() in file.read(HEAD)


def _log(
    path: Path, names: Sequence[str], rows: log_table.Rows, chosen: Mapping[str, Column]
) -> Log:
    """Read the necessary columns, in order of rank and step."""
    wanted, vague = _needed(chosen)
    read = [chosen[quantity] for quantity in wanted]
    numbers, lines, left_out = log_table.numbers(
        rows, [(names.index(column.name), column.name, column.value) for column in read]
    )
    if not len(lines):
        filled = " and ".join(column.name for column in read)
        raise ValueError(f"no line has {filled} filled in; {NEEDED}")
    notes = [f"{path}: column {chosen[part].name}, without a unit, is left out" for part in vague]
    if left_out:
        notes.append(f"{path}: {left_out} lines without a step's time are left out")
    values = {"rank": np.zeros(len(lines))} | dict(zip(wanted, numbers.T, strict=True))
    order = np.lexsort((values["step"], values["rank"]))
    values = {quantity: column[order] for quantity, column in values.items()}

    def demand(wrong: np.ndarray, what: str, *quantities: str) -> None:
        if wrong.any():
            at = lines[order][-len(wrong) :][int(wrong.argmax())]
            columns = " and ".join(chosen[part].name for part in quantities if part in chosen)
            raise ValueError(f"line {at}, column {columns}: {what}")

    prefixes = (chosen[part].name.rpartition(" - ")[0] for part in wanted if part != "rank")
    framework = next(filter(None, prefixes), "")
    log = _steps(path, values, demand, chosen)
    return replace(log, notes=tuple(notes), framework=framework)


def _needed(chosen: Mapping[str, Column]) -> tuple[list[str], list[str]]:
    """Return the quantities to read, and the parts of a step whose columns have no unit."""
    parts = [part for part in ("compute", "wait") if part in chosen]
    vague = [part for part in parts if chosen[part].scale is None and "seconds" in chosen]
    wanted = [*({"step", "rank"} & chosen.keys()), *(part for part in parts if part not in vague)]
    if "seconds" in chosen or len(parts) < 2:  # otherwise its parts make up a step's time
        wanted.append("seconds" if "seconds" in chosen else "time")
    return wanted, vague


def _steps(
    path: Path,
    values: dict[str, np.ndarray],
    demand: Callable[..., None],
    chosen: Mapping[str, Column],
) -> Log:
    """Check rows in order; turn elapsed times into those of steps."""
    rank, step = values["rank"].astype(int), values["step"].astype(int)
    same = rank[1:] == rank[:-1]
    twice = same & (step[1:] == step[:-1])
    again = step[int(twice.argmax())] if twice.size else 0
    demand(twice, f"step {again} again; {AGAIN}", "step")
    for part in TIMES[:3]:
        if part in values and _is_clock(values[part], step, same):
            name = chosen[part].name
            raise ValueError(
                f"column {name}: it only grows, like a clock; write the duration of each "
                f'step, or columns = {{ time = "{name}" }} beside the log, with its unit'
            )
    compute = values.get("compute", np.full(len(step), math.nan))
    gone = np.diff(values.get("time", np.empty(0)))
    # a column such as "time_s" could be either
    elapsed = "time" in chosen and not chosen["time"].name.lower().startswith("time")
    if "time" in values and (elapsed or not same.any() or (gone[same] >= 0).mean() >= INCREASING):
        demand(same & (gone < 0), f"earlier than the step before; {RESUMED}", "time")
        time = values["time"]
        if not (time % 1).any() and np.isnan(compute).all():  # whole seconds blur single steps
            rows = np.append(True, (np.diff(time // TICKS) != 0) | ~same)
            rank, step, time = rank[rows], step[rows], time[rows]
        same = rank[1:] == rank[:-1]
        keep = np.flatnonzero(same) + 1
        if not len(keep):
            raise ValueError(f"a single elapsed time; {NEEDED}")
        covered = np.diff(step)[same].astype(float)
        return Log(path, rank[keep], step[keep], covered, np.diff(time)[same], compute[keep])
    seconds = values.get("seconds", values.get("time"))
    if seconds is None:
        seconds = compute + values["wait"]
    elif "wait" in values and "compute" not in values:
        compute = seconds - values["wait"]
    demand(seconds <= 0, "0 s; a step takes time: are the units right?", *TIMES)
    beyond = (compute > seconds * (1 + 1e-6)) | (compute < 0)
    demand(beyond, "more than the whole step takes; are the units right?", "compute", "wait")
    return Log(path, rank, step, np.ones(len(step)), seconds, compute)


def _is_clock(values: np.ndarray, step: np.ndarray, same: np.ndarray) -> bool:
    """Return whether values grow evenly, as elapsed times do, except where a job resumed."""
    grown = np.diff(values)
    back, forth = same & (grown < 0), same & (grown > 0)
    anew = bool((grown <= -values[:-1] / 2)[back].all())
    if forth.sum() < max(CLOCK, same.sum() / 2) or back.sum() > RESTARTS * same.sum() or not anew:
        return False
    rates = (grown / np.maximum(np.diff(step), 1))[forth]
    early, late = (float(np.median(half)) for half in np.array_split(rates, 2))
    return late > early / EVEN


def _choose(names: Sequence[str], given: Mapping[str, str]) -> dict[str, Column]:
    """Return the column of every quantity; `given`: the user's `columns`."""
    columns = {quantity: _given(quantity, text, names) for quantity, text in given.items()}
    read = {
        name: (column, place) for name in names for place, column in [_read_name(name)] if column
    }
    chosen = log_table.choose(
        names,
        {quantity: column.name for quantity, column in columns.items()},
        lambda name: (read[name][0].quantity, read[name][1]) if name in read else None,
        {"time": "seconds"},
    )
    columns = {
        quantity: read[name][0] for quantity, name in chosen.items() if name in read
    } | columns
    lacks = [("the number", "step")] if "step" not in columns else []
    if not {"seconds", "time"} & columns.keys() and not {"compute", "wait"} <= columns.keys():
        lacks.append(("the time", "seconds, step_s or step_ms"))
    for what, called in lacks:
        shown = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
        raise ValueError(
            f"no column with {what} of a step among {shown}; call it {called}, or write "
            'columns = { step = "its name", seconds = "its name [ms]" }'
            + "; paceline fit-loss reads its losses"
            * any("loss" in name for name in names)
        )
    return columns


def _given(quantity: str, text: str, names: Sequence[str]) -> Column:
    """Return the column that a user names, perhaps with a unit in brackets."""
    name, unit = text, None
    if text not in names and (parts := re.fullmatch(r"(.*?)\s*\[\s*([^\[\]]+?)\s*\]\s*", text)):
        name, unit = parts[1], parts[2].lower()
    wrong = None
    if name not in names:
        wrong = nearest(name, names, "its columns are")
    elif unit is not None and unit not in UNITS:
        wrong = nearest(unit, ("s", "ms", "us", "ns"), "units are")
    if wrong:
        raise ValueError(f"columns.{quantity} = {text!r}: {wrong}")
    read = _read_name(name)[1] if quantity in TIMES else Column(name, quantity, 1.0)
    says = read.scale if read else None
    return Column(name, quantity, says if unit is None else UNITS[unit])


def _read_name(name: str) -> tuple[int, Column | None]:
    """Return the index of a name among several, and its column if it has one."""
    # "run name - step_ms" in W&B's exports, "train/step_ms" in many logs
    bare = log_table.bare(name).rpartition("/")[2]
    if bare.lower() in KNOWN:
        return PLACES.index(bare.lower()), Column(name, KNOWN[bare.lower()], 1.0)
    words = log_table.words(bare)
    if not words:
        return len(PLACES), None
    if words[0] in UNITS and words[1:] in (["per", "step"], ["per", "iteration"], ["per", "iter"]):
        return len(PLACES), Column(name, "seconds", UNITS[words[0]])
    scale = UNITS.get(words[-1])
    quantity = STEMS.get("_".join(words[:-1] if scale else words))
    if scale and (words[:-1] == [] or quantity == "step"):  # "ms" or "step_ms": of a step
        quantity = "seconds"
    elif scale is None and quantity in ("step", "rank"):
        scale = 1.0
    readable = quantity in (TIMES if scale != 1.0 else SPELLINGS)
    return len(PLACES), Column(name, str(quantity), scale) if readable else None


def scale(name: str) -> float:
    """Return the unit (seconds) that a column's name states, 1 if none."""
    column = _read_name(name.strip())[1]
    return column.scale or 1.0 if column else 1.0
