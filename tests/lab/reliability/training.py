"""Real training whose processes die, hang or diverge, or whose command is ended."""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.helpers.waiting import wait_until
from tests.validate.test_launch import TOML, nothing_is_left, ranks, start

TITLE = "Faults of real training"
HOW = "python -m tests.lab.reliability training"
TIMEOUT = 5.0  # seconds: validation.timeout
SLACK = 25.0  # seconds for a machine that has other things to do
GROWN = 50_000  # bytes
CLOSING = 5.0  # seconds in which a process that has ended is rid of its sockets
BEGINS = 90.0  # seconds in which training begins
SETS = ("--set", f"validation.timeout={TIMEOUT:g} s", "--set", "run.steps=2000")
SERVED = ("--set", 'algorithm=[{ name = "asgd" }]')
FEW = ("--set", "run.steps=300")
NEURAL = 'objective={ kind = "torch", model = "mlp", data = "digits", batch = 8 }'
DIVERGES = ("--set", NEURAL, "--set", "optimizer.lr=1e30")
Strike = Callable[[int, dict[int, int]], object]
"""Takes the command's process, and its ranks' by rank; -1 is the parent of all others."""


class Case(NamedTuple):
    """How to strike a run, and what its command then says and ends with."""

    strike: Strike | None
    starts: str = ""
    statuses: tuple[int, ...] = (1,)
    within: float = TIMEOUT
    sets: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


def rank(number: int, sent: int) -> Strike:
    """Send a signal to a rank."""
    return lambda _, there: os.kill(there[number], sent)


def command(sent: int, *statuses: int) -> Case:
    """End the command itself: so are all others."""
    return Case(lambda process, _: os.kill(process, sent), statuses=(-sent, *statuses))


def full(number: int | None, starts: str = "") -> Case:
    """Let no file of a worker, or of the command itself, grow any more."""

    def strike(process: int, there: dict[int, int]) -> None:
        struck = psutil.Process(process if number is None else there[number])
        struck.rlimit(psutil.RLIMIT_FSIZE, (GROWN, GROWN))

    # The command writes in the end.
    return Case(strike, starts, within=BEGINS, sets=FEW, says=("File too large",))


LOG = ("log ends with:",)
CASES = {
    "worker killed": Case(
        rank(1, signal.SIGKILL), "worker 1 died by signal 9 during ", says=LOG),
    "worker stopped (SIGSTOP)": Case(
        rank(1, signal.SIGSTOP), "worker 1 hangs (stopped) during ", says=LOG),
    "worker of a server stopped": Case(
        rank(1, signal.SIGSTOP), "worker 1 hangs (stopped) during ", sets=SERVED, says=LOG),
    "server stopped": Case(
        rank(2, signal.SIGSTOP), "the server hangs (stopped) during asgd", sets=SERVED),
    "worker terminated": Case(
        rank(1, signal.SIGTERM), "worker 1 died by signal 15 during ", says=LOG),
    "disk full for a worker": full(0, "worker 0 died with status 1"),
    "disk full for the command": full(None),
    "worker diverges": Case(
        None, within=BEGINS, sets=DIVERGES,
        says=("diverged by step", "died with status 1 during ssgd (seed 0)")),
    "command killed": command(signal.SIGKILL),
    "command terminated": command(signal.SIGTERM),
    "command interrupted": command(signal.SIGINT, 130),
    "parent of all killed": Case(rank(-1, signal.SIGKILL)),
}  # fmt: skip


def listening(connections: Any) -> set[int]:
    """Return the ports on which processes listen."""
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


def check(case: Case, folder: Path) -> None:
    """Strike a run once it trains: it ends in time, says why, and leaves nothing."""
    (folder / "test.toml").write_text(TOML)
    process, ports = start(folder, *SETS, *case.sets), set[int]()
    if case.strike:
        wait_until(
            # Workers of a server have no snapshots.
            lambda: any(path.stat().st_size > GROWN for path in folder.rglob("rank-*.bin")),
            process, BEGINS,
        )  # fmt: skip
        there = ranks(folder)
        for one in there.values():
            ports |= listening(psutil.Process(one).net_connections("inet"))
        case.strike(process.pid, there)
    _, said = process.communicate(timeout=case.within + SLACK)
    nothing_is_left(folder)
    wait_until(lambda: not ports & listening(psutil.net_connections("inet")), seconds=CLOSING)
    assert "Traceback" not in said, said
    assert process.returncode in case.statuses, (process.returncode, said)
    if 1 in case.statuses:
        assert f"paceline: error: {case.starts}" in said, said
    assert all(words in said for words in case.says), said


def measure(seconds: float) -> list[dict[str, Any]]:
    """Each case once, then as often as there is time for, in random order."""
    rows = {
        what: {"what": what, "tried": 0, "handled": 0, "how": HOW, "missed": []} for what in CASES
    }
    deadline = time.monotonic() + seconds
    draw, todo = random.Random(0), [*CASES]
    while todo or time.monotonic() < deadline:
        what = todo.pop(0) if todo else draw.choice([*CASES])
        row = rows[what]
        row["tried"] += 1
        with tempfile.TemporaryDirectory(prefix="paceline-training-") as folder:
            try:
                check(CASES[what], Path(folder))
                row["handled"] += 1
            except (AssertionError, subprocess.TimeoutExpired) as error:
                row["missed"].append(str(error)[:500])
    return [*rows.values()]
