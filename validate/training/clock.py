"""Measure time from a run's start, and wait precisely."""

import ctypes
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_TIMERSLACK = 1, 15, 29


class Clock:
    """Seconds since an origin, a time of this machine's monotonic clock.

    `begun`: set once the origin is the run's start; messages of other nodes may come before.
    """

    def __init__(self) -> None:
        self._origin, self.begun = time.monotonic(), threading.Event()

    def begin(self, origin: float) -> None:
        """Count from the start of the run."""
        self._origin = origin
        self.begun.set()

    def now(self) -> float:
        """Return seconds since the origin."""
        return time.monotonic() - self._origin

    def sleep_until(self, at: float) -> None:
        """Sleep until `at` seconds since the origin; return at once if that has passed."""
        remaining = at - self.now()
        if remaining > 0:
            time.sleep(remaining)


def prctl(option: int, value: int | bytes) -> None:
    """Set an attribute of this process, on Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def use_precise_timers() -> None:
    """Make timers end on time, not 50 microseconds late; call before threads start."""
    prctl(PR_SET_TIMERSLACK, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent is gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def name_process(name: str) -> None:
    """Name this process for `ps` (at most 15 bytes)."""
    prctl(PR_SET_NAME, name.encode())
