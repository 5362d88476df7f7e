"""Run directories of later versions, and other versions of Python and of libraries."""

import io
import json
import subprocess
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import paceline
import paceline.command_line
from paceline.simulator.results import store

TITLE = "Compatibility: later run directories, other versions"
ROOT = Path(__file__).parents[3]
WORLD = {
    "model": {"parameters": 1000},
    "cluster": {"workers": 2, "compute": "100 ms"},
    "network": {"latency": "10 ms", "bandwidth": "1 Mbit/s"},
    "run": {"steps": 20},
    "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 5}],
}
ENVIRONMENTS = ROOT / ".compat"
QUICK = (
    "test_theory", "load/test_load", "engines/test_conformance", "programs/test_codecs",
    "distributions/test_random_streams", "results/test_store", "results/test_statistics",
    "results/test_figures", "studies/test_tune", "studies/test_sweep",
    "command_line/test_command_line",
)  # fmt: skip
MARKED = "not slow and not gpu and not alone and not browser"
ABOUT = """
import platform
from importlib.metadata import version
names = "numpy", "scipy", "pydantic", "numba", "typer", "pint", "optuna"
print("Python", platform.python_version(), *(f"{name} {version(name)}" for name in names), sep=", ")
"""

Row = dict[str, Any]


def measure(seconds: float) -> list[Row]:
    """Return rows of later files, and of each environment that `make compat` has made.

    Environments that take longer than `seconds` are given up, and say so.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [later(Path(folder))]
    there = sorted(ENVIRONMENTS.glob("*/bin/python"))
    return [*files, *(suite(python, seconds) for python in there)]


def command(*arguments: object) -> tuple[int, str]:
    """Run a command in this process; return its status, and all that it said."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = paceline.command_line.run([*map(str, arguments)])
    return status, output.getvalue()


def _opened(run: Path, out: Path) -> dict[str, tuple[int, str]]:
    """Run each command that opens run directories; return its status and output."""
    return {
        "report": command("report", run, "--out", out / "report.html"),
        "compare": command(
            "compare", run, run, "--as-measured", "--figure", "svg", "--out", out / "compared"
        ),
        "calibrate": command("calibrate", run, "--out", out / "profile.toml"),
    }


def later(out: Path) -> Row:
    """Give a run directory of a later schema to every command: refused, with what to do."""
    run = out / "later"
    paceline.simulate(WORLD, out=run)
    document = json.loads((run / store.WHOLE).read_text("utf-8"))
    (run / store.WHOLE).write_text(json.dumps(document | {"schema": store.SCHEMA + 1}))
    actual = _opened(run, out)
    right = [
        status == 2 and f"schema {store.SCHEMA + 1}" in output and "use that one" in output
        for status, output in actual.values()
    ]
    return {
        "what": "commands that refuse a run directory of a later version",
        "tried": len(right),
        "handled": sum(right),
        "how": "tests/reliability/test_compatibility.py",
    }


def suite(python: Path, seconds: float) -> Row:
    """Run the quick part of the suite under another Python, or other versions."""
    about = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, check=True)
    tests = [f"tests/{name}.py" for name in QUICK]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-m", MARKED, f"--junitxml={report}", *tests]
        try:
            subprocess.run(command, cwd=ROOT, check=False, timeout=max(seconds, 600))
            cases = [*parse(report).getroot().iter("testcase")]
        except (subprocess.TimeoutExpired, OSError):
            cases = []
    run = [case for case in cases if case.find("skipped") is None]
    lost = [
        case for case in run if case.find("failure") is not None or case.find("error") is not None
    ]
    what = f"tests with {python.parent.parent.name}: {about.stdout.strip()}"
    row = {"what": what, "tried": len(run), "handled": len(run) - len(lost), "how": "make compat"}
    names = [f"{case.get('classname')}: {case.get('name')}" for case in lost]
    return row | {"missed": names or ["given up"] * (not cases)}
