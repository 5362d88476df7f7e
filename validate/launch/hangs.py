"""Processes of a real run that no longer answer: which they are, and where they stand."""

import os
import re
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil

STARTED = "started"  # a file of a job's folder: a line for each rank, with its process id
LOOK = 0.5  # seconds between looks: each costs the run some microseconds
LINGER = 3.0  # seconds in which all who wait for one that is gone have noticed
ANSWER = 0.5  # seconds for a process to say where it stands
PATIENT = re.compile(
    r'rendezvous\.py", line \d+ in wait_for'
)  # has no part in this, or has done it
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Watch:
    """Looks, now and then, whether a rank has been stopped for longer than `patience` seconds."""

    def __init__(self, folder: Path, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._since: dict[int, float] = {}
        self._next = 0.0

    def stopped(self) -> int | None:
        """The rank that is."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + LOOK
        still = {rank for rank, process in _processes(self._folder).items() if is_stopped(process)}
        self._since = {rank: self._since.get(rank, now) for rank in still}
        return next((r for r, at in self._since.items() if now - at > self._patience), None)


def find_hung(folder: Path, ended: Callable[[], Collection[int]]) -> dict[int, str]:
    """Ranks that neither end nor wait though another one has ended, and what is known of each.

    Those that can are asked to write where they stand to their logs.
    """
    processes = _processes(folder)
    deadline = time.monotonic() + LINGER
    while time.monotonic() < deadline and len(ended()) < len(processes):
        time.sleep(LOOK / 10)
    left = {rank: each for rank, each in processes.items() if rank not in ended()}
    found = {rank: "stopped" for rank, each in left.items() if is_stopped(each)}
    asked = {rank: each for rank, each in left.items() if rank not in found}
    before = {rank: len(_log(folder, rank)) for rank in asked}
    for process in asked.values():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGUSR1)
    if asked:
        time.sleep(ANSWER)
    for rank, known in before.items():
        if not PATIENT.search(_log(folder, rank)[known:]):
            found[rank] = "silent"
    return found


def is_stopped(process: int) -> bool:
    """Whether a process exists and has been stopped."""
    try:
        return psutil.Process(process).status() in STOPPED
    except psutil.NoSuchProcess:
        return False


def _processes(folder: Path) -> dict[int, int]:
    path = folder / STARTED
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(rank): int(process) for rank, process in map(str.split, lines)}


def _log(folder: Path, rank: int) -> str:
    path = folder / f"rank-{rank}.log"
    return path.read_text(errors="replace") if path.exists() else ""
