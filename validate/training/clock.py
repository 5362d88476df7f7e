"""Time on this machine: a clock from the start of a run, and waits that end when they should."""

import ctypes
import signal
import sys
import time
from collections.abc import Callable
from statistics import median

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_TIMERSLACK = 1, 15, 29
CANDIDATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # seconds
REPEATS = 20  # of each candidate
TOO_LONG = 2  # times as long as asked for: no more repeats are needed
HOLDS = 0.03  # a duration is held if steps take at most that much longer, in the median


class Clock:
    """Seconds since `origin`, a time of this machine's monotonic clock."""

    def __init__(self) -> None:
        self.origin = time.monotonic()

    def now(self) -> float:
        """Seconds since the origin."""
        return time.monotonic() - self.origin

    def sleep_until(self, at: float) -> None:
        """Return at `at` seconds since the origin, or at once if that is over."""
        left = at - self.now()
        if left > 0:
            time.sleep(left)


def prctl(option: int, value: int) -> bool:
    """Set an attribute of this process, where the system has it: on Linux."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def use_precise_timers() -> bool:
    """Let timers of this process end on time, not 50 microseconds late; before threads start."""
    return prctl(PR_SET_TIMERSLACK, 1)


def die_with_parent() -> None:
    """End this process as soon as the one that has started it is gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def name_process(name: str) -> None:
    """Name this process, as `ps` shows it (15 bytes)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def smallest_step(work: Callable[[], object], wanted: float) -> float:
    """The shortest duration (seconds) that steps with `work` in them can be stretched to here.

    All processes of a run measure at the same time, since they will compute at the same time.
    Candidates up to `wanted` are tried; infinite if none of them is held.
    """
    longest = min(wanted, CANDIDATES[-1])
    begin = time.monotonic()
    work()
    alone = time.monotonic() - begin
    for duration in [*(each for each in CANDIDATES if alone < each < longest), longest]:
        lasted = []
        for _ in range(REPEATS):
            begin = time.monotonic()
            work()
            left = begin + duration - time.monotonic()
            if left > 0:
                time.sleep(left)
            lasted.append(time.monotonic() - begin)
            if sum(lasted) > TOO_LONG * REPEATS * duration:
                break
        if median(lasted) <= (1 + HOLDS) * duration:
            return duration
    return float("inf")
