"""Record the events of a rank in a user's training loop, for calibration.

Importing this needs no torch. An event costs two readings of the clock and five numbers in memory.
They are written to the rank's file about once a second, so a killed job loses at most a second.
"""

import json
import math
import os
import platform
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from paceline.simulator.errors import InputError

from ..host import machine
from ..training.events import ISSUE, STEP, WAIT
from .telemetry_files import COLLECTIVE, FILE, LOSS, SCHEMA, read

__all__ = ["Telemetry", "read"]

FLUSH = 1.0  # seconds
Span = AbstractContextManager[None]
_now = time.monotonic


class Telemetry:
    """A recorder of one rank of a training job to `directory`; a context manager.

    `rank` of `workers`; `model_bytes`: of all parameters; `label` and `seed`: name and number of
    the run. `synchronize`: called before every reading of the clock; with CUDA, whose kernels run
    asynchronously, `torch.cuda.synchronize`. Raises InputError for a rank that is not
    one of the workers, or a directory that cannot be written.
    """

    def __init__(  # noqa: PLR0913
        self,
        directory: Path | str,
        *,
        rank: int = 0,
        workers: int = 1,
        title: str = "",
        model_bytes: float | None = None,
        label: str = "measured",
        seed: int = 0,
        synchronize: Callable[[], object] | None = None,
    ) -> None:
        if not 0 <= rank < workers:
            raise InputError(f"rank {rank} of {workers} workers; ranks are 0 to {workers - 1}")
        head = {
            "schema": SCHEMA, "title": title, "label": label, "seed": seed, "rank": rank,
            "workers": workers, "model_bytes": model_bytes, "boot": machine.boot_id(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"), **_environment(),
        }  # fmt: skip
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._file = (Path(directory) / FILE.format(rank)).open("wb")
        except OSError as error:
            raise InputError(f"{directory}: cannot write here ({error.strerror})") from None
        self._file.write(f"{json.dumps(head)}\n".encode())
        self._file.flush()
        self._rows = array("d")
        self._step = 0
        self._flushed = _now()
        self.clock: Callable[[], float] = _now
        if synchronize is not None:
            self.clock = lambda: (synchronize(), _now())[1]

    def step(self) -> Span:
        """Return a context that times one gradient: forward and backward pass."""
        self._step += 1
        return self._span(STEP)

    def collective(self, *, bytes: float = math.nan) -> Span:  # noqa: A002
        """Return a context that times a blocking collective; `bytes`: of its payload."""
        return self._span(COLLECTIVE, bytes)

    def issue(self) -> Span:
        """Return a context that times the start of an asynchronous collective."""
        return self._span(ISSUE)

    def wait(self, *, bytes: float = math.nan) -> Span:  # noqa: A002
        """Return a context that times the wait for the earliest collective."""
        return self._span(WAIT, bytes)

    @contextmanager
    def _span(self, kind: int, size: float = math.nan) -> Iterator[None]:
        """Record an event that lasts as long as the context."""
        start = self.clock()
        yield
        self.add(kind, start, self.clock(), size)

    def loss(self, value: float) -> None:
        """Record a loss after the steps so far."""
        now = _now()
        self.add(LOSS, now, now, float(value))

    def add(self, kind: int, start: float, end: float, size: float) -> None:
        """Store one row: kind, begin and end (s), and bytes or loss."""
        self._rows.extend((kind, self._step, start, end, size))
        if end - self._flushed > FLUSH:
            self.flush()
            self._flushed = end

    def flush(self) -> None:
        """Write the rows recorded so far."""
        self._file.write(self._rows)
        self._file.flush()
        self._rows = array("d")

    def close(self) -> None:
        """Write the remaining rows, and close the file."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment() -> dict[str, Any]:
    """Return versions and hardware, those of torch only if it is already imported."""
    versions = {"python": platform.python_version()}
    hardware = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if (torch := sys.modules.get("torch")) is not None:
        versions["torch"] = str(torch.__version__)
        from ..host import device  # noqa: PLC0415 - torch is already there

        if name := device.in_use():
            hardware["gpu"] = name
    return {"versions": versions, "hardware": hardware}
