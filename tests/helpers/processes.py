"""Processes of their own, in which nothing is loaded yet."""

import subprocess
import sys
from pathlib import Path


def loaded(code: str, *modules: str) -> list[str]:
    """Run code in a new process; return which of the modules it has loaded."""
    text = f"import sys\n{code}\nprint(*sorted({set(modules)} & sys.modules.keys()))"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.splitlines()[-1].split()
