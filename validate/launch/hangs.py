"""Hangs: finding processes of a real run that no longer answer, and where they stand."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

# files of a job's folder: a line for each rank with its process id; for each that has ended with
# its exit status, negative for a signal
STARTED, ENDED = "started", "ended"
LOOK = 0.5  # seconds between checks, each of which costs the run some microseconds
LINGER = 3.0  # seconds until every process that waits for a dead one has noticed
ANSWER = 0.5  # seconds for a process to write its stack
# stack of a process that waits without being needed
PATIENT = re.compile(r'rendezvous\.py", line \d+ in wait_for')
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Watch:
    """Checks now and then whether a rank has been stopped for more than `patience` seconds."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._since: dict[int, float] = {}
        self._next = 0.0

    def stopped(self) -> int | None:
        """Return a rank that has been stopped for too long, or None."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + LOOK
        processes = by_rank(self._folder / STARTED)
        still = {rank for rank, process in processes.items() if is_stopped(process)}
        self._since = {rank: self._since.get(rank, now) for rank in still}
        return next((r for r, at in self._since.items() if now - at > self._patience), None)


def find_hung(folder: Path) -> dict[int, str]:
    """Return ranks that hang after another has ended: "stopped" or "silent".

    Those that are not stopped are signalled to write their stack to their log.
    """
    processes = by_rank(folder / STARTED)
    deadline = time.monotonic() + LINGER
    while time.monotonic() < deadline and len(by_rank(folder / ENDED)) < len(processes):
        time.sleep(LOOK / 10)
    left = processes.keys() - by_rank(folder / ENDED).keys()
    hung = {rank: "stopped" for rank in sorted(left) if is_stopped(processes[rank])}
    before = {rank: len(_log(folder, rank)) for rank in sorted(left - hung.keys())}
    for rank in before:
        with suppress(ProcessLookupError):
            os.kill(processes[rank], signal.SIGUSR1)
    if before:
        time.sleep(ANSWER)
    for rank, length in before.items():
        if not PATIENT.search(_log(folder, rank)[length:]):
            hung[rank] = "silent"
    return hung


def is_stopped(process: int) -> bool:
    """Whether a process exists and has been stopped."""
    try:
        return psutil.Process(process).status() in STOPPED
    except psutil.NoSuchProcess:
        return False


def by_rank(path: Path) -> dict[int, int]:
    """Read a file of a job's folder with one number for each rank."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(rank): int(number) for rank, number in map(str.split, lines)}


def _log(folder: Path, rank: int) -> str:
    path = folder / f"rank-{rank}.log"
    return path.read_text(errors="replace") if path.exists() else ""
