"""Wrong and made-up inputs: refused, or handled; never a traceback, a hang, or a blow-up."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import paceline
import paceline.command_line
from tests import corpus
from tests.lab.fuzz.readers import READERS

TITLE = "Inputs"
LEAST = 5.0  # seconds of a reader
SPARE = 180.0  # seconds after its time at which a fuzzer counts as one that hangs
HOW = "python -m tests.lab.reliability inputs --seconds {:.0f}"
ROOT = Path(corpus.__file__).parents[2]


def measure(seconds: float) -> list[dict[str, Any]]:
    """Every case of the corpus, and the fuzzer over every reader for a share of the time."""
    how = HOW.format(seconds)
    found = [wrong() | {"how": f"{how}; python -m pytest tests/load/test_wrong_inputs.py"}]
    share = max(LEAST, seconds / len(READERS))
    return [*found, *({**fuzzed(name, share), "how": how} for name in READERS)]


def wrong() -> dict[str, Any]:
    """Count the wrong inputs that are refused as they should be."""
    cases = corpus.cases()
    with tempfile.TemporaryDirectory() as folder:
        world = corpus.world(Path(folder, "world"))
        whole = [not [*faults(case, world, Path(folder, "case"))] for case in cases]
    return {"what": "wrong inputs and command lines", "tried": len(cases), "handled": sum(whole)}


def faults(case: corpus.Case, world: Path, folder: Path) -> Iterator[str]:
    """Run a case in a folder that is made for it; say what is wrong with how it was refused."""
    shutil.rmtree(folder, ignore_errors=True)
    corpus.prepare(case, world, folder)
    before, out, err = corpus.tree(folder), StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        status = paceline.command_line.run(case.arguments)
    said = err.getvalue()
    if status != 2:
        yield f"status {status}: {said}"
    if out.getvalue():
        yield f"on stdout: {out.getvalue()}"
    if not said.startswith("paceline: error: ") or said.count("paceline: ") > 1:
        yield f"not one message: {said}"
    yield from (f"{word} in {said}" for word in JARGON if word in said)
    yield from (f"no {words} in {said}" for words in case.says if words not in said)
    if corpus.tree(folder) != before:
        yield "files were written"


JARGON = ("Traceback", "pydantic", "type=", "validation error", "PACELINE_DEBUG", "site-packages")


def fuzzed(name: str, seconds: float) -> dict[str, Any]:
    """Fuzz a reader in a process with limits; keep the inputs that it did not handle.

    A process that is killed, or ends by itself before its time, has not handled one input.
    """
    what = f"{name}: made-up inputs"
    if find_spec("atheris") is None:
        return {"what": f"{what} (atheris is not installed)", "tried": 0, "handled": 0}
    with tempfile.TemporaryDirectory() as folder:
        began, tried, handled = time.monotonic(), 0, 0
        while (left := seconds - (time.monotonic() - began)) > 1 or not tried:
            counts, whole = _round(name, Path(folder), max(left, 1))
            tried, handled = tried + counts["tried"] + (not whole), handled + counts["handled"]
            if not (whole or counts["tried"]):
                break
        corpus.CRASHES.mkdir(exist_ok=True)
        for crash in Path(folder, "crashes").glob("*"):
            shutil.copy(crash, corpus.CRASHES / crash.name)
    return {"what": what, "tried": tried, "handled": handled}


def _round(name: str, folder: Path, seconds: float) -> tuple[dict[str, int], bool]:
    """One process of the fuzzer: its counts, and whether it came to its end."""
    (folder / "counts.json").unlink(missing_ok=True)
    line = [sys.executable, "-m", "tests.lab.fuzz", name, str(folder), f"{seconds:.0f}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        try:
            done = subprocess.run(
                line, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False,
                timeout=seconds + SPARE,
            )  # fmt: skip
            whole = done.returncode == 0
        except subprocess.TimeoutExpired:
            whole = False
    counts = {"tried": 0, "handled": 0}
    if (folder / "counts.json").exists():
        counts = json.loads((folder / "counts.json").read_text())
    return counts, whole
