"""Records of one node in one run: an account, and snapshots that a thread writes.

A mark costs the program only the time of queueing a tensor; losses are computed afterwards, from
the snapshots. If the process is killed, the file can be read up to that point.
"""

import io
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from paceline.simulator.engines.observer import POINTS
from paceline.simulator.errors import RunError
from paceline.simulator.inputs import untrusted
from paceline.simulator.results import store
from paceline.simulator.results.run import SPAN

from ..host.device import fetch
from .events import EVENT

COLUMNS = ("step", "time", "period", "updates", "bytes", "charged")
HEAD = 1000  # most bytes of a file's first line
WAITING = 8  # most snapshots in the writer's queue: each is as large as the model
DTYPES = {"torch.float32": "<f4", "torch.float64": "<f8"}


@dataclass
class Account:
    """A node's account of a run, written at its end. Times in seconds.

    `seconds`: by activity; `outcomes`: the replay log: results of effects that depend on time, in
    order, from which the run can be repeated; `gradients` and `marks`: their numbers; `late`: how
    many of `collectives` (and messages) arrived after their emulated time; `busy`: CPU seconds of
    the process; `observing`: seconds of queueing and writing snapshots.
    """

    duration: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    outcomes: list[Any] = field(default_factory=list)
    gradients: int = 0
    marks: int = 0
    late: int = 0
    collectives: int = 0
    busy: float = 0.0
    observing: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Recorder:
    """Writer of a node's snapshots (`rank-N.bin`) and its account (`rank-N.json`).

    `like`: a tensor of a snapshot's dtype and dimension; `buffers`: number of entries of the
    model's buffers. It records every `every`-th step and the `last`. If `adaptive`, for runs whose
    number of steps is unknown, the interval doubles whenever there are more than twice `POINTS`
    snapshots.
    """

    folder: Path
    rank: int
    like: Tensor
    buffers: int
    every: int
    last: float
    adaptive: bool

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._whole = self.folder / f"rank-{self.rank}.json"
        for name in (self._whole, self._whole.with_suffix(".npz")):
            name.unlink(missing_ok=True)  # files of an earlier attempt
        self._next = min(self.every, self.last)
        self._taken = 0
        self.observing = 0.0
        self._queue: queue.Queue[Any] = queue.Queue(WAITING)
        self._file = self._whole.with_suffix(".bin").open("wb")
        kind, size = DTYPES[str(self.like.dtype)], self.like.numel()
        head = {"dtype": kind, "dimension": size, "buffers": self.buffers}
        self._file.write(f"{json.dumps(head)}\n".encode())
        self._file.flush()  # so that the file can be read even without snapshots
        self._failure: Exception | None = None
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def due(self, step: int) -> bool:
        """Return whether to record a snapshot of this step."""
        return step >= self._next

    def see(self, step: int, row: Sequence[float], x: Tensor, buffers: Tensor) -> None:
        """Queue a snapshot, which must not change; `row`: the other `COLUMNS`.

        Raises RunError if an earlier snapshot is not finite, or the error of its writing.
        """
        begin = time.monotonic()
        if self._failure is not None:
            raise self._failure
        self._queue.put(((step, *row), fetch(x), fetch(buffers)))
        self._taken += 1
        if self.adaptive and self._taken > 2 * POINTS:
            self.every *= 2
            self._taken //= 2
        following = (step // self.every + 1) * self.every
        self._next = min(following, self.last) if step < self.last else following
        self.observing += time.monotonic() - begin

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            begin = time.thread_time()
            try:
                if self._failure is None:
                    self._keep(*item)
            except Exception as error:  # `see` raises it again in the program's thread
                self._failure = error
            self.observing += time.thread_time() - begin

    def _keep(
        self, row: Sequence[float], fetched: Callable[[], Tensor], extra: Callable[[], Tensor]
    ) -> None:
        x, buffers = fetched(), extra()
        self._file.write(np.array(row, dtype="<f8").tobytes())
        for tensor in (x, buffers):
            self._file.write(tensor.detach().to(x.dtype).numpy().tobytes())
        self._file.flush()
        if not bool(x.isfinite().all()):
            raise RunError(
                f"diverged by step {row[0]:g}: parameters are no longer finite; lower the learning "
                "rate of this algorithm"
            )

    def times(self, spans: np.ndarray, events: Sequence[tuple[Any, ...]]) -> None:
        """Write the node's timeline (dtype `SPAN`) and its events."""
        did = np.array(list(events), EVENT)
        np.savez(self._whole.with_suffix(".npz"), spans=spans, events=did)

    def close(self, account: Account) -> None:
        """Write the remaining data and the account, which marks the node as finished."""
        self._queue.put(None)
        self._writer.join()
        if self._failure is not None:
            raise self._failure
        self._file.close()
        account.observing = self.observing
        document = asdict(account) | {"every": self.every}
        store.write(self._whole, json.dumps(document).encode())  # marks the node as finished


@dataclass(frozen=True, eq=False)
class Record:
    """The records of one node. `rows`: by `COLUMNS`, "x" (n, dimension) and "buffers".

    `events`, `spans`: of dtypes `training.events.EVENT` and `results.run.SPAN`.
    `account` is None if the node did not finish.
    """

    rows: np.ndarray
    account: Account | None
    every: int
    events: np.ndarray = field(default_factory=partial(np.empty, 0, EVENT))
    spans: np.ndarray = field(default_factory=partial(np.empty, 0, SPAN))


def read(folder: Path, rank: int) -> Record | None:
    """Read the records of a node in a folder; None if there are none."""
    path = folder / f"rank-{rank}.bin"
    try:
        with path.open("rb") as file:
            head = untrusted.loads(file.readline(HEAD))
            kind = np.dtype(
                [
                    *((name, "<f8") for name in COLUMNS),
                    ("x", head["dtype"], (head["dimension"],)),
                    ("buffers", head["dtype"], (head["buffers"],)),
                ]
            )
            start = file.tell()
    except (OSError, ValueError):
        return None
    count = (path.stat().st_size - start) // kind.itemsize
    rows = np.memmap(path, kind, "r", start, (count,)) if count else np.empty(0, kind)
    times = {}
    if (timeline := path.with_suffix(".npz")).is_file():
        content = io.BytesIO(untrusted.data(timeline, untrusted.LARGEST_WRITTEN))
        with np.load(store.stored(content), allow_pickle=False) as archive:
            times = {name: archive[name] for name in ("events", "spans")}
    return Record(rows, *_account(path.with_suffix(".json")), **times)


def _account(path: Path) -> tuple[Account | None, int]:
    try:
        document = untrusted.loads(untrusted.text(path, untrusted.LARGEST_WRITTEN))
    except (OSError, ValueError):
        return None, 1
    every = document.pop("every")
    document["staleness"] = {int(key): n for key, n in document["staleness"].items()}
    return Account(**document), every
