"""Wrong inputs and command lines: each is refused in one message."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import paceline
import paceline.command_line
from tests import corpus

TITLE = "Inputs"


def measure(seconds: float) -> list[dict[str, Any]]:
    """Count the wrong inputs that are refused as they should be."""
    cases = corpus.cases()
    with tempfile.TemporaryDirectory() as folder:
        world = corpus.world(Path(folder, "world"))
        whole = [not [*faults(case, world, Path(folder, "case"))] for case in cases]
    return [{
        "what": "wrong inputs and command lines", "tried": len(cases), "handled": sum(whole),
        "how": "python -m pytest tests/load/test_wrong_inputs.py",
    }]  # fmt: skip


def faults(case: corpus.Case, world: Path, folder: Path) -> Iterator[str]:
    """Run a case in a folder that is made for it; say what is wrong with how it was refused."""
    shutil.rmtree(folder, ignore_errors=True)
    corpus.prepare(case, world, folder)
    before, out, err = corpus.tree(folder), StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        status = paceline.command_line.run(case.arguments)
    output = err.getvalue()
    if status != 2:
        yield f"status {status}: {output}"
    if out.getvalue():
        yield f"on stdout: {out.getvalue()}"
    if not output.startswith("paceline: error: ") or output.count("paceline: ") > 1:
        yield f"not one message: {output}"
    yield from (f"{word} in {output}" for word in JARGON if word in output)
    yield from (f"no {words} in {output}" for words in case.says if words not in output)
    if corpus.tree(folder) != before:
        yield "files were written"


JARGON = ("Traceback", "pydantic", "type=", "validation error", "PACELINE_DEBUG", "site-packages")
