"""Wait for other processes as long as a busy machine needs."""

import time
from collections.abc import Callable
from subprocess import Popen

PATIENCE = 300.0  # seconds after which a process hangs; tests that pass never wait so long


def wait_until(
    happens: Callable[[], object], process: "Popen[str] | None" = None, seconds: float = PATIENCE
) -> None:
    """Return once `happens()` is true; fail after a time limit, or if `process` ends first."""
    end = time.monotonic() + seconds
    while not happens():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"not in {seconds:g} s"
        time.sleep(0.005)
