"""Telemetry files of a user's job: their format, and reading them as events."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted

from ..training.events import EVENT, ISSUE, STEP, WAIT, Key

FILE = "rank-{}.telemetry"
"""File of one rank: a line of JSON, then rows of `ROW` doubles, in the machine's byte order: kind,
step, start, end (seconds of a monotonic clock), bytes (of a loss: its value)."""
ROW = 5
LOSS, COLLECTIVE = -1, -2  # kinds in a telemetry file, besides those of `training.events`
KNOWN = (LOSS, COLLECTIVE, STEP, ISSUE, WAIT)
SCHEMA = 1
HEAD = 1_000_000  # most bytes of the first line
MOST = 65_535  # workers, as in a scenario
TYPES: dict[str, type] = {  # types of a head's keys
    "rank": int, "workers": int, "seed": int, "label": str, "boot": str, "title": str,
    "hardware": dict, "versions": dict,
}  # fmt: skip
SHOWN = 8  # ranks that a note names


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded job. `events`: by label and seed, of dtype `training.events.EVENT`.

    `losses`: likewise, rows of (seconds since the beginning, step, loss) of all ranks, by time.
    `head`: of rank 0. `notes`: caveats, in sentences.
    """

    events: dict[Key, np.ndarray]
    losses: dict[Key, np.ndarray]
    head: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def read(directory: Path | str) -> Recorded:
    """Read the telemetry of all ranks of one job. Raises InputError.

    Clocks of different machines do not agree: there, each rank's times count from its first event,
    and `joined` is unknown. Ranks of the same boot share a clock: `joined` is then the latest start
    of a collective.
    """
    paths = sorted(Path(directory).glob(FILE.format("*")))
    if not paths:
        raise InputError(f"{directory}: holds no telemetry; give the directory of a Telemetry")
    files = sorted((_read(path) for path in paths), key=lambda file: int(file[0]["rank"]))
    head, notes = files[0][0], []
    if len({(about["label"], about["seed"], about["workers"]) for about, _ in files}) > 1:
        raise InputError(
            f"{directory}: its ranks belong to several runs; give each run a separate directory"
        )
    if len({about["rank"] for about, _ in files}) < len(files):
        raise InputError(f"{directory}: two files of one rank; keep one of them")
    missing = sorted({*range(head["workers"])} - {about["rank"] for about, _ in files})
    if missing:
        notes.append(f"nothing of {ranks(missing)}")
    shared = len({about["boot"] for about, _ in files}) == 1
    if not shared:
        notes.append("several machines: only durations within a rank are known")
    begin = [rows[:, 2].min() if len(rows) else math.inf for _, rows in files]
    if not np.isfinite(begin).any():
        raise InputError(f"{directory}: nothing was recorded; put `with telemetry.step():` around "
                         "the forward and backward pass")  # fmt: skip
    zeros = [min(begin)] * len(files) if shared else begin
    events = [
        _events(int(about["rank"]), rows, zero)
        for (about, rows), zero in zip(files, zeros, strict=True)
    ]
    if shared and not missing:
        _join(events)
    losses = [
        np.column_stack([rows[:, 2] - zero, rows[:, 1], rows[:, 4]])[rows[:, 0] == LOSS]
        for (_, rows), zero in zip(files, zeros, strict=True)
    ]
    rows_of_losses = np.concatenate(losses)
    key = str(head["label"]), int(head["seed"])
    curve = rows_of_losses[np.argsort(rows_of_losses[:, 0], kind="stable")]
    return Recorded({key: np.concatenate(events)}, {key: curve}, head, notes)


def ranks(numbers: Sequence[int]) -> str:
    """Name ranks in words: "ranks 1, 2 and 7 more"."""
    shown = ", ".join(map(str, numbers[:SHOWN]))
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"rank{'s' * (len(numbers) > 1)} {shown}{more}"


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Read a rank's head and rows; an incomplete last row is left out."""
    with untrusted.refused(path, "was it written by Telemetry?", "cannot be read as telemetry"):
        with untrusted.opened(path) as file:
            head = untrusted.loads(file.readline(HEAD))
            data = untrusted.content(file, untrusted.LARGEST_WRITTEN)
            numbers = np.frombuffer(data[: len(data) // 8 * 8])
        if head["schema"] != SCHEMA or not {"rank", "workers", "label", "seed", "boot"} <= {*head}:
            raise ValueError("of another version")
        right = all(type(head[key]) is kind for key, kind in TYPES.items() if key in head)
        if not (right and 0 <= head["rank"] < head["workers"] <= MOST):
            raise ValueError("its first line is not Telemetry's")
    count = len(numbers) // ROW
    rows = numbers[: count * ROW].reshape(count, ROW)
    kinds, steps, starts, ends, _ = rows.T
    wrong = ~(np.isin(kinds, KNOWN) & (steps >= 0) & (steps < 2**53) & (starts <= ends))
    wrong |= ~(np.isfinite(starts) & np.isfinite(ends)) | np.isinf(rows[:, 4]) & (kinds != LOSS)
    if wrong.any():
        raise InputError(
            f"{path}: event {int(wrong.argmax())} is not one of Telemetry's; give an unchanged file"
        )
    return head, rows


def _events(rank: int, rows: np.ndarray, zero: float) -> np.ndarray:
    """Convert rows to events; a blocking collective is a start and an immediate wait."""
    records = []
    for kind, step, start, end, size in rows.tolist():
        times = start - zero, end - zero
        if kind == COLLECTIVE:
            records.append((rank, ISSUE, step, times[0], times[0], math.nan, math.nan, math.nan))
        if kind != LOSS:
            code = WAIT if kind == COLLECTIVE else int(kind)
            records.append((rank, code, step, *times, math.nan, math.nan, size))
    return np.array(records, EVENT)


def _join(ranks: Sequence[np.ndarray]) -> None:
    """Set `joined`: when the last rank started each collective."""
    issued = [rank["start"][rank["kind"] == ISSUE] for rank in ranks]
    waits = [np.flatnonzero(rank["kind"] == WAIT) for rank in ranks]
    common = min(map(len, [*issued, *waits]))
    joined = np.max([times[:common] for times in issued], axis=0) if common else np.empty(0)
    for events, places in zip(ranks, waits, strict=True):
        events["joined"][places[:common]] = joined
