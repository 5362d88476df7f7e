"""The relay of the kernel's links, with a bandwidth that follows a schedule."""

import json
import os
import socket
import sys
from bisect import bisect_right
from pathlib import Path
from time import monotonic

from paceline.validate.host import relay

SCHEDULE = "STEERING_LINK"  # variable: times (seconds) and factors, as JSON
ORIGIN = "STEERING_ORIGIN"  # variable: the file with the monotonic time at which a run begins
LOOK = 0.1  # seconds between looks at it


def factor(schedule, seconds):
    """Return the factor of a schedule, times and factors, so many seconds after its start."""
    at, factors = schedule
    return factors[max(bisect_right(at, seconds) - 1, 0)]


class Changing(relay.RelayedPath):
    """A path whose bandwidth changes; its queue stays as long as it was."""

    schedule = [0.0], [1.0]
    looked, origin = 0.0, float("inf")

    def __init__(self, to, path, back):
        super().__init__(to, path, back)
        self.nominal = path.bandwidth

    def release(self, size, now, first=False):
        cls = type(self)
        if now - cls.looked > LOOK and (file := Path(os.environ[ORIGIN])).exists():
            cls.looked, cls.origin = monotonic(), float(file.read_text("ascii") or "inf")
        self.bandwidth = self.nominal * factor(cls.schedule, now - cls.origin)
        return super().release(size, now, first)


if __name__ == "__main__":
    Changing.schedule = json.loads(os.environ[SCHEDULE])
    relay.RelayedPath = Changing
    relay.main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
