"""Read a job's log while it grows, for `paceline watch`."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from paceline.deploy.watch import Report, Watcher
from paceline.simulator.errors import InputError
from paceline.simulator.objectives.learning_curve import curve
from paceline.validate.logs import tables

POLL = 1.0  # seconds between two looks at the log
RARELY = 10.0  # times what a look takes, until the next look at a long log
Row = tuple[int, float, int, float | None]


def rows(path: Path, columns: Mapping[str, str]) -> list[Row]:
    """Return the lines of a log: step, seconds (nan: unknown), their steps, and loss.

    Ranks other than the first are left out, as is a last line without an end. Raises InputError if
    the log has neither times nor losses.
    """
    losses, timed, problem = dict[int, float](), dict[int, tuple[float, int]](), None
    of_times = {quantity: name for quantity, name in columns.items() if quantity != "loss"}
    of_losses = {key: columns[key] for key in ("step", "loss") if key in columns}
    try:
        log = tables.read(path, of_times, cut=_ended)
        first = log.rank == log.rank.min()
        seconds, steps = log.seconds[first].tolist(), log.steps[first].astype(int).tolist()
        timed = dict(zip(log.step[first].tolist(), zip(seconds, steps, strict=True), strict=True))
    except InputError as error:
        problem = error
    try:
        _, by, _ = curve.read_columns(path, of_losses, cut=_ended)
        losses = {int(step): float(loss) for step, loss in zip(by["step"], by["loss"], strict=True)}
    except (ValueError, LookupError, InputError, OSError) as error:
        if "loss" in columns or not timed:
            raise problem or InputError(f"{path}: {error}") from None
    if not timed:
        steps = sorted(losses)
        apart = [after - step for step, after in pairwise(steps)]
        timed = {step: (math.nan, n) for step, n in zip(steps, [1, *apart], strict=True)}
    return [(step, *timed[step], losses.get(step)) for step in sorted(timed)]


def _ended(data: bytes) -> bytes:
    """Return a log without a last line that has no end, unless it is a JSON document."""
    return data if data[-1:] in (b"}", b"]") else data[: data.rfind(b"\n") + 1]


def follow(
    watcher: Watcher,
    path: Path,
    columns: Mapping[str, str],
    seconds: float = 0.0,
    waiting: Callable[[str], object] = str,
) -> Iterator[Report]:
    """Yield the reports on a log, and its status at the end: `seconds` from now, or at Ctrl-C.

    `waiting`: takes notes. Raises InputError at the end if the log still cannot be read.
    """
    end, size, seen, problem, ended = time.monotonic() + seconds, -2, 0, "", False
    try:
        while True:
            began, now = time.monotonic(), path.stat().st_size if path.exists() else -1
            if 0 <= now < size:
                waiting(f"{path}: shorter than before; it is read anew, after step {watcher.taken}")
            if now != size:
                size = now
                try:
                    for row in rows(path, columns):
                        if row[0] > watcher.taken:
                            watcher.add(*row)
                    problem = ""
                except InputError as error:  # no step was printed yet, or the log is being rotated
                    if seconds and not problem:
                        waiting(str(error))
                    problem = str(error)
                yield from watcher.reports[seen:]
                seen = len(watcher.reports)
            if (left := end - time.monotonic()) <= 0:
                break
            time.sleep(min(left, max(POLL, RARELY * (time.monotonic() - began))))
    except KeyboardInterrupt:
        ended, problem = True, ""
    if problem:
        raise InputError(problem)
    watcher.close()
    yield from watcher.reports[seen:]
    yield from filter(None, [watcher.status])
    if ended:
        raise KeyboardInterrupt
