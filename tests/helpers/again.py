"""Run tests, and those that failed once more, alone: twice is a failure, once is listed as FLAKY.

    python -m tests.helpers.again '-n 2 -m "not alone"' "-m alone"

Each argument holds the options of one run of pytest. "Alone" means after all runs, in one process.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

FINISHED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}  # else not every test was run


def main(runs: Sequence[str]) -> int:
    """Run pytest with each of the options; return 0 if each test passed, at the latest alone."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]

        def end(*options: str) -> int:
            return subprocess.run([*command, *options], check=False).returncode

        ends = {end(*shlex.split(each)) for each in runs}
        if ends == {pytest.ExitCode.OK}:
            return 0
        once = _failed(Path(cache))
        if not ends <= FINISHED or not once:
            return 1
        print(f"\nOnce more, alone: {len(once)} of them failed", flush=True)
        status = end(*sorted(once))
        for test in sorted(once - _failed(Path(cache))):
            print("FLAKY", test)
        return int(status != pytest.ExitCode.OK)


def _failed(cache: Path) -> set[str]:
    """Names of the tests that failed when they ran last, as pytest keeps them."""
    kept = cache / "v" / "cache" / "lastfailed"
    return set(json.loads(kept.read_text("utf-8"))) if kept.exists() else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
