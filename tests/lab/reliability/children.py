"""Run commands in processes that start fast: forks of one with everything imported."""

import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# Import everything once: commands are forks of this process, which has no threads.
PRELOAD = [
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
    "rich.console", "scipy.stats", "sklearn.datasets",
    "paceline.simulator.reports.terminal", "paceline.simulator.reports.page.page",
    "paceline.simulator.studies.papers.reproduce", "paceline.simulator.studies.sweep",
    "paceline.simulator.studies.tune.tune",
]  # fmt: skip
KINDS = ("out", "err")
PATIENCE = 120.0  # seconds after which a command hangs


@dataclass
class Ended:
    """The end of a command: status (negative: a signal), output, and processes still running."""

    status: int
    out: str
    err: str
    orphans: list[int] = field(default_factory=list)


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    strike: Callable[[int], object] | None = None,
    after: float = 0.0,
    when: Callable[[], bool] = lambda: True,
    file_size: int | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Run a command line in a folder; after `after` seconds, and once `when()`, `strike` it.

    `file_size`: the most bytes of its files, as on a full disk; `prepare`: a function of a module,
    called first. Its child processes have `PATIENCE` seconds to end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    logs = Path(tempfile.mkdtemp())
    ends = [_fifo(logs / kind) for kind in KINDS]
    given = (list(arguments), str(folder), str(logs), file_size, prepare)
    child = context.Process(target=_command, args=given)
    child.start()
    try:
        child.join(after)
        while child.is_alive() and not when():
            time.sleep(0.002)
        if strike is not None and child.is_alive():
            strike(child.pid)
        child.join(PATIENCE)
        assert child.exitcode is not None, f"{arguments} hangs"
        orphans = _left(child.pid)
    finally:
        child.kill()
        child.join()
    out, err = map(_taken, ends)
    shutil.rmtree(logs)
    return Ended(child.exitcode, out, err, orphans)


def _command(
    arguments: list[str],
    folder: str,
    said: str,
    file_size: int | None,
    prepare: Callable[[], None] | None,
) -> None:
    """Run the command, in the process that `run` starts."""
    os.setsid()
    os.chdir(folder)
    for stream, kind in enumerate(KINDS, 1):
        os.dup2(os.open(f"{said}/{kind}", os.O_WRONLY), stream)
        setattr(sys, f"std{kind}", os.fdopen(stream, "w", closefd=False))
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    if prepare is not None:
        prepare()
    import paceline.command_line

    try:
        sys.exit(paceline.command_line.run(arguments))
    except KeyboardInterrupt:  # before the command begins
        sys.exit(130)


def _left(session: int | None) -> list[int]:
    """Return a session's processes that still run after 60 s."""
    deadline = time.monotonic() + 60
    while actual := [pid for pid in psutil.pids() if _session(pid) == session]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return actual


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None


def _fifo(path: Path) -> int:
    """Make a named pipe and open it for reading; unlike a file, its size has no limit."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def _taken(end: int) -> str:
    """Return the contents of a pipe (64 KiB at most)."""
    with open(end, "rb") as file:
        return (file.read() or b"").decode(errors="replace")
