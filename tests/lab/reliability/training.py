"""Real training whose processes die, hang or diverge, or whose command is ended."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from tests.validate.test_launch import TOML, nothing_is_left, ranks, start

TITLE = "Faults of real training"
HOW = "python -m tests.lab.reliability training"
TIMEOUT = 5.0  # seconds: validation.timeout
SLACK = 25.0  # seconds for a machine that has other things to do
GROWN = 50_000  # bytes
CLOSING = 5.0  # seconds in which a process that has ended is rid of its sockets
BEGINS = 90.0  # seconds in which training begins
SETS = ("--set", f"validation.timeout={TIMEOUT:g} s", "--set", "run.steps=2000")


def begun(folder: Path, *more: str) -> "subprocess.Popen[str]":
    """Start a validation, and wait until it trains."""
    (folder / "test.toml").write_text(TOML)
    process = start(folder, *SETS, *more)
    deadline = time.monotonic() + BEGINS
    while not any(_grows(each) for each in folder.rglob("rank-*.bin")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def _grows(records: Path) -> bool:
    """Return whether a node has left snapshots: workers of a server have none."""
    return records.stat().st_size > GROWN


def ports(processes: list[int]) -> set[int]:
    """Return the ports on which processes listen."""
    return _ports(each for one in processes for each in psutil.Process(one).net_connections("inet"))


def _ports(connections: Iterable[Any]) -> set[int]:
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def over(
    process: "subprocess.Popen[str]", folder: Path, before: set[int], within: float = TIMEOUT
) -> str:
    """Wait for the end, in time; nothing is left of the run: return what the command says."""
    _, said = process.communicate(timeout=within + SLACK)
    nothing_is_left(folder)
    deadline = time.monotonic() + CLOSING
    while left := before & _ports(psutil.net_connections("inet")):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert "Traceback" not in said, said
    return said


def rank_struck(folder: Path, sent: int, *more: str) -> None:
    """A worker that is killed, or stopped: the message says which, how, and the end of its log."""
    process = begun(folder, *more)
    there = ranks(folder)
    before = ports([*there.values()])
    os.kill(there[1], sent)
    said = over(process, folder, before)
    how = "hangs (stopped)" if sent == signal.SIGSTOP else f"died by signal {sent}"
    assert process.returncode == 1
    assert said.startswith(f"paceline: error: worker 1 {how} during "), said
    assert "log ends with:" in said


def server_stopped(folder: Path) -> None:
    """The server hangs."""
    process = begun(folder, "--set", 'algorithm=[{ name = "asgd" }]')
    there = ranks(folder)
    before = ports([*there.values()])
    os.kill(there[2], signal.SIGSTOP)
    said = over(process, folder, before)
    assert said.startswith("paceline: error: the server hangs (stopped) during asgd"), said


def command_struck(folder: Path, sent: int) -> None:
    """The command itself is ended: so are all others."""
    process = begun(folder)
    before = ports([*ranks(folder).values()])
    process.send_signal(sent)
    over(process, folder, before)
    ends = (130, -sent) if sent == signal.SIGINT else (-sent,)
    assert process.returncode in ends, process.returncode


def forker_killed(folder: Path) -> None:
    """The process that has started all others is killed."""
    process = begun(folder)
    there = ranks(folder)
    before = ports([there[each] for each in there if each >= 0])
    os.kill(there[-1], signal.SIGKILL)
    said = over(process, folder, before)
    assert process.returncode == 1
    assert said.startswith("paceline: error: "), said


def full(folder: Path, rank: int | None) -> None:
    """No file of a worker, or of the command itself, may grow any more."""
    process = begun(folder, "--set", "run.steps=300")
    there = ranks(folder)
    before = ports([there[each] for each in there if each >= 0])
    struck = process.pid if rank is None else there[rank]
    psutil.Process(struck).rlimit(psutil.RLIMIT_FSIZE, (GROWN, GROWN))
    said = over(process, folder, before, within=BEGINS)  # the command writes in the end
    assert process.returncode == 1
    begins = "paceline: error: " + ("" if rank is None else f"worker {rank} died with status 1")
    assert said.startswith(begins), said
    assert "File too large" in said, said


def diverges(folder: Path) -> None:
    """Parameters that are no longer finite end the run, with the step."""
    (folder / "test.toml").write_text(TOML)
    goal = 'objective={ kind = "torch", model = "mlp", data = "digits", batch = 8 }'
    process = start(folder, *SETS, "--set", goal, "--set", "optimizer.lr=1e30")
    _, said = process.communicate(timeout=BEGINS + SLACK)
    nothing_is_left(folder)
    assert process.returncode == 1, said
    assert "diverged by step" in said, said
    assert "died with status 1 during ssgd (seed 0)" in said, said


CASES: dict[str, Callable[[Path], None]] = {
    "worker killed": lambda folder: rank_struck(folder, signal.SIGKILL),
    "worker stopped (SIGSTOP)": lambda folder: rank_struck(folder, signal.SIGSTOP),
    "worker of a server stopped": lambda folder: rank_struck(
        folder, signal.SIGSTOP, "--set", 'algorithm=[{ name = "asgd" }]'
    ),
    "server stopped": server_stopped,
    "worker terminated": lambda folder: rank_struck(folder, signal.SIGTERM),
    "disk full for a worker": lambda folder: full(folder, 0),
    "disk full for the command": lambda folder: full(folder, None),
    "worker diverges": diverges,
    "command killed": lambda folder: command_struck(folder, signal.SIGKILL),
    "command terminated": lambda folder: command_struck(folder, signal.SIGTERM),
    "command interrupted": lambda folder: command_struck(folder, signal.SIGINT),
    "parent of all killed": forker_killed,
}


def measure(seconds: float) -> list[dict[str, Any]]:
    """Each case once, then as often as there is time for, in random order."""
    rows = {
        what: {"what": what, "tried": 0, "handled": 0, "how": HOW, "missed": []} for what in CASES
    }
    deadline = time.monotonic() + seconds
    draw, todo = random.Random(0), [*CASES]
    while todo or time.monotonic() < deadline:
        what = todo.pop(0) if todo else draw.choice([*CASES])
        row, folder = rows[what], Path(tempfile.mkdtemp(prefix="paceline-training-"))
        row["tried"] += 1
        try:
            CASES[what](folder)
            row["handled"] += 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            row["missed"].append(str(error)[:500])
        shutil.rmtree(folder, ignore_errors=True)
    return [*rows.values()]
