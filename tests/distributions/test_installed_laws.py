"""A law of an installed package stands beside ours: the class on the page that shows how."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-model.md").read_text("utf-8")
PROGRAM = """
import paceline
compute = {"dist": "weekday", "usual": "100 ms", "busy": "300 ms", "every": 20.0}
table = {
    "model": {"parameters": 10}, "cluster": {"workers": 4, "compute": compute},
    "network": {"latency": compute}, "run": {"steps": 400}, "optimizer": {"lr": 0.1},
    "objective": {"kind": "none"}, "algorithm": [{"name": "psgd"}, {"name": "ssgd"}],
}
paces = []
for engine in ("virtual", "batched"):
    rows = paceline.simulate(paceline.load(table), engine=engine).algorithms
    paces.append([row["seconds_per_step"]["mean"] for row in rows])
assert all(abs(a - b) < 1e-9 for a, b in zip(*paces, strict=True)), paces
assert abs(paces[0][0] - 0.11) < 0.005, paces
try:
    paceline.load(table | {"cluster": {"workers": 4, "compute": compute | {"evry": 1}}})
except paceline.InputError as error:
    print(error)
"""


def installed(folder, value):
    """A folder that looks like an installed package with the page's class."""
    code = re.search(r'```python title="weekday.py"\n(.*?)```', PAGE, re.S)[1]
    (folder / "weekday.py").write_text(code, "utf-8")
    about = folder / "weekday-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: weekday\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(f"[paceline.laws]\nweekday = {value}\n", "utf-8")
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def test_a_law_of_a_package_is_used_by_every_engine(tmp_path):
    where = installed(tmp_path, "weekday:Weekday")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cluster.compute.evry" in done.stdout


def test_something_else_is_refused(tmp_path):
    where = installed(tmp_path, "weekday:np")
    command = [sys.executable, "-c", "import paceline; paceline.load('quickstart')"]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    assert "entry point weekday of paceline.laws (weekday:np): no law" in done.stderr
