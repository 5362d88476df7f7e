"""The scripts of docs/how-to/deploy.md run word for word."""

import importlib.util
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
NEEDS = {"train.py": "torch", "accelerated.py": "accelerate", "lit.py": "lightning"}


@pytest.mark.long
@pytest.mark.parametrize("name", NEEDS)
def test_scripts_train(name, tmp_path):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    (tmp_path / name).write_text(SCRIPTS[name])
    assert name == "lit.py" or len(SCRIPTS[name].splitlines()) <= 40
    launch = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", name
    done = subprocess.run(
        [sys.executable, *launch],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (right,) = re.findall(r"(\d+)% of the digits are right", done.stdout)
    assert int(right) > 85
