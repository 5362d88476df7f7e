"""The scripts of docs/how-to/deploy.md and docs/examples run word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
SCRIPTS = dict(re.findall(r'```python title="(\S+)"\n(.*?)```', PAGE.read_text("utf-8"), re.S))
NEEDS = {"train.py": "torch", "islands.py": "torch"}
NEEDS |= {"accelerated.py": "accelerate", "lit.py": "lightning"}


@pytest.mark.long
@pytest.mark.parametrize("name", NEEDS)
def test_scripts_train(name, tmp_path):
    pytest.importorskip(NEEDS[name])
    (tmp_path / name).write_text(SCRIPTS[name])
    assert name == "lit.py" or len(SCRIPTS[name].splitlines()) <= 40
    printed = trained(tmp_path, name, processes=4 if name == "islands.py" else 2)
    (right,) = re.findall(r"(\d+)% of the digits are right", printed)
    assert int(right) > 85


def trained(folder, *script, processes=2):
    """Run a script in several processes; return what it prints."""
    launch = "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *script
    done = subprocess.run(
        [sys.executable, *launch],
        cwd=folder,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_examples_train(name, tmp_path):
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text("utf-8")
    ((title, code),) = re.findall(r'```python title="(\S+)"\n(.*?)```', page, re.S)
    (tmp_path / title).write_text(code)
    trained(tmp_path, title, "ssgd", "6")
    assert len([*tmp_path.glob("telemetry-*.pt")]) == 2
