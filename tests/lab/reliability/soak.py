"""Mixed commands for an hour, in one process and in others, without growth of anything."""

import contextlib
import gc
import io
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.stats import linregress, t

from tests.lab.reliability import children
from tests.lab.reliability.faults import TINY, VARY

TITLE = "Soak"
HOW = "make soak"
WARM = 0.3  # of the rounds: caches fill
LIMITS = {  # growth per round that is none, for each of what is counted
    "MiB of memory": 0.05,  # allocators keep pieces
    "open files": 0.02,
    "processes": 0.02,
    "temporary files": 0.02,
}
ROUNDS = 8  # at least, for a slope
COMMANDS = (
    ("simulate", "tiny.toml", "--out", "simulated"),
    ("simulate", "tiny.toml", "--out", "anew", "--seed", "7", "--engine", "virtual"),
    ("sweep", "tiny.toml", *VARY, "--jobs", "1", "--out", "swept"),
    ("tune", "tiny.toml", "--jobs", "1", "--trials", "6", "--out", "tuned"),
    ("theory", "tiny.toml", "--json"),
    ("report", "simulated", "swept"),
    ("compare", "simulated", "anew", "--as-measured", "--out", "compared"),
    ("simulate", "tiny.toml", "--set", "run.steps=0"),
    ("list", "programs"),
)
IN_PROCESSES = (("simulate", "tiny.toml", "--out", "parallel", "--jobs", "2"), COMMANDS[0])
EXPECTED = {("simulate", "tiny.toml", "--set", "run.steps=0"): 2}


def measure(seconds: float) -> list[dict[str, Any]]:
    """Rounds of all commands; what is counted after each, and whether its slope is none."""
    import paceline

    folder = Path(tempfile.mkdtemp(prefix="paceline-soak-"))
    (folder / "tiny.toml").write_text(TINY)
    get_temp_dir()  # of multiprocessing, which removes it in the end
    home, temporary = Path.cwd(), Path(tempfile.mkdtemp(prefix="paceline-soak-tmp-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)  # for ours alone, to be counted
    os.chdir(folder)
    counted: list[tuple[float, ...]] = []
    done, quiet = 0, io.StringIO()  # one for all: click remembers every stream it has written to
    try:
        deadline = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > deadline and number >= ROUNDS:
                break
            for command in COMMANDS:
                quiet.seek(0)
                quiet.truncate()
                with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    status = paceline.command_line.run([*command])
                assert status == EXPECTED.get(command, 0), (command, quiet.getvalue())
                done += 1
            ended = children.run(IN_PROCESSES[number % len(IN_PROCESSES)], folder)
            assert (ended.status, ended.orphans) == (0, []), ended
            done += 1
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            counted.append(_counted(temporary))
    finally:
        os.chdir(home)
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        shutil.rmtree(folder)
        shutil.rmtree(temporary)
    rows = [{"what": "commands", "tried": done, "handled": done, "how": HOW}]
    return rows + judged(counted)


def judged(counted: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """A row for each of what is counted: handled unless the slope's 95 % interval shows growth."""
    table = np.array(counted)[int(WARM * len(counted)) :]
    rounds = np.arange(len(table))
    rows = []
    for (name, limit), values in zip(LIMITS.items(), table.T, strict=True):
        fit = linregress(rounds, values)
        spread = float(t.ppf(0.975, len(table) - 2) * np.nan_to_num(fit.stderr))  # nan: constant
        grows = fit.slope - spread > limit
        note = (
            f"{values[0]:.0f} to {values[-1]:.0f}, {fit.slope:+.3f} ± {spread:.3f} a round over "
            f"{len(table)} rounds"
        )
        row = {"what": name, "tried": 1, "handled": int(not grows), "how": HOW, "note": note}
        rows.append(row | ({"missed": [f"grows: {note}"]} if grows else {}))
    return rows


def _counted(temporary: Path) -> tuple[float, ...]:
    """Count what must not grow, in the order of `LIMITS`, for this process and its children."""
    gc.collect()
    process = psutil.Process()
    children_of_ours, entries = process.children(recursive=True), [*temporary.rglob("*")]
    memory = process.memory_info().rss / 2**20
    return memory, process.num_fds(), len(children_of_ours), len(entries)
