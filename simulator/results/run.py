"""The record of one run: curve points, time spent, bytes sent and, on demand, a timeline."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ..scenario.scenario import Algorithm

TIMES = ("compute", "wait", "communicate", "stalled", "lost", "down", "absent", "unselected")
"""Uses of a worker's time; the last five where nodes can crash, are left out, or come and go."""
COLUMNS = ("time", "step", "loss", "accuracy", "tau", "bytes", "cost")
CURVE = (*COLUMNS, "test_loss")
"""Columns of a run that was just made or kept; those of its files are the first."""
PAID = ("egress_bytes", "device_seconds")
STALENESS = {  # units that staleness is counted in
    "updates": "updates the server made since it sent the parameters",
    "steps": "local steps computed since the mean was started",
    "averagings": "averagings with neighbours since the parameters were read",
}


class Kind(IntEnum):
    """Activity of a worker or server during a span."""

    COMPUTE = 0
    WAIT = 1
    COMMUNICATE = 2
    SERVE = 3
    DOWN = 4
    STALLED = 5


SPAN = np.dtype(
    [("worker", "<u2"), ("kind", "u1"), ("start", "<f8"), ("end", "<f8"), ("step", "<u4")]
)

CAUSE = "the learning rate, or an outer one, is too high for this algorithm"
ROUNDING = 1 + 1e-9  # times that differ by a smaller factor count as equal

FIRST = 100_000  # lowest process id; Perfetto takes thread N of process N for its main thread
RED = "terrible"  # the name of red in chrome://tracing
PER_MICROSECOND = 1e3  # nanoseconds

_WAIT, _COMMUNICATE = int(Kind.WAIT), int(Kind.COMMUNICATE)
_THREE_SPANS = struct.Struct("<" + 3 * "HBddI")


class Spans:
    """Record of spans, 23 bytes each; at most about `limit`.

    `truncated` says that spans were dropped.
    """

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit * SPAN.itemsize
        self.truncated = False

    def add(  # noqa: PLR0913, PLR0917 - flat, because it runs at every communication
        self,
        worker: int,
        busy: int,
        since: float,
        now: float,
        begins: float,
        done: float,
        step: int,
    ) -> None:
        """Record that `worker` did `busy` from `since` to `now`, waited, communicated until `done`.

        `begins`: time at which waiting turned into communicating; `step`: the local step just done.
        """
        if len(self._buffer) >= self._limit:
            self.truncated = True
            return
        self._buffer += _THREE_SPANS.pack(
            worker, busy, since, now, step,
            worker, _WAIT, now, begins, step,
            worker, _COMMUNICATE, begins, done, step,
        )  # fmt: skip

    def array(self, until: float) -> np.ndarray:
        """Return the spans cut at `until`, without empty ones, in the order recorded."""
        spans = np.frombuffer(self._buffer, dtype=SPAN).copy()
        spans["end"] = np.minimum(spans["end"], until)
        return spans[spans["end"] > spans["start"]]


@dataclass
class Run:
    """One algorithm with one seed. Times in seconds, sizes in bytes.

    `curve` maps each name of `COLUMNS` to a list, one entry per evaluation; where an objective has
    no loss or no accuracy the entry is nan. `seconds` is the mean over workers of the time spent in
    each of compute, wait and communicate; where nodes can crash, or slow ones are left out, also in
    stalled (waiting for nodes that are down, or for a collective that a crash began again), lost
    (computing in vain, and doing again what had been done) and down (or saving checkpoints); where
    they come and go absent (not a member), and where clients are sampled unselected.
    `workers` has the same of each worker. `links` maps "from->to" to the bytes sent over it.

    `updates` counts the updates of the parameters up to the last evaluation: the server's, those of
    all workers where their steps are counted together, or else one worker's. `staleness` maps each
    staleness to the number of contributions to updates that were so stale, counted in
    `staleness_unit`, a key of `STALENESS`:

    - "updates": those the server made between sending the parameters that a gradient was computed
      at and receiving that gradient;
    - "steps": local steps that a worker computed between starting a mean and acting on it;
    - "averagings": those with neighbours between reading the parameters of a gradient and applying
      it.

    It is empty where nothing was counted. `rounds`: means that sampled clients, or updates for
    which a server filled its buffer, each of `round_seconds`, not counting time when no worker was
    there; `reports`: what clients sent that
    went into these, and `gradients`: those in it up to the last evaluation, where clients are
    sampled, in the `working_seconds` and `nights` of that time: of hours of the day when clients
    may be there, and days of such hours (0: clients may be there at any); `at_work`: how many
    computed or transferred in these hours, in vain or not.
    `inbox_bytes`: the most bytes of messages that waited at the server at once. `handed_over`: the
    reason why another engine than the one asked for ran it.
    `failures`, where nodes can crash: `crashes` (number), `recovery_seconds` (mean time until a
    crashed worker, or all, were where they had been), `lost_seconds` and `down_seconds` (of all
    workers), `goodput` (share of the workers' time that is neither lost nor down; that of the time
    in which they computed what was used is `statistics.goodput`), `dropped` (contributions to
    means that were left out), `contributing` (workers in a mean, on average),
    `drop_outs` (of rounds or reports, by clients that were selected),
    `stall` (description of a deadlock; None without). `lines`, where
    transfers share them: of each `line` its full `bandwidth` (bytes/s; None: no limit), the `bytes`
    that it has carried, its `utilisation` (share of what it could have carried; None where every
    flow has all of it), `saturated_seconds` and `down_seconds` (without any capacity).
    `stall`: description of a deadlock; empty without one.
    `bound`: whether the workers never meet, so that it bounds other algorithms and is never picked.
    `paid`, where workers come and go and their time has a price: for each name of `PAID` a list, as
    in `curve`, of what had been paid for.
    """

    label: str
    name: str
    seed: int
    engine: str
    steps: float
    duration: float
    curve: dict[str, list[float]]
    seconds: dict[str, float]
    links: dict[str, float]
    spans: np.ndarray | None = None
    spans_truncated: bool = False
    notes: list[str] = field(default_factory=list)
    updates: int = 0
    rounds: int = 0
    reports: int = 0
    gradients: float | None = None
    round_seconds: float = 0.0
    working_seconds: float | None = None
    nights: float = 0.0
    at_work: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)
    staleness_unit: str = ""
    inbox_bytes: float = 0.0
    handed_over: str = ""
    failures: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, list[float]] = field(default_factory=dict)
    stall: str = ""
    bound: bool = False
    paid: dict[str, list[float]] = field(default_factory=dict)

    @property
    def contributing(self) -> float | None:
        """How many workers' gradients count in a step; None where no worker ever misses one."""
        if self.gradients is not None and self.steps > 0:
            return self.gradients / self.steps
        return (self.failures or {}).get("contributing")

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        seed: int,
        engine: str,
        curve: dict[str, list[float]],
        *,
        staleness: Mapping[int, int] | None = None,
        **fields: Any,
    ) -> "Run":
        """Return the run of `algorithm` that ends at the last point of its curve.

        `staleness` may be in any order and have zeros; `fields` are the other fields of `Run`.
        """
        there = curve["time"][-1] - fields.pop("deserted", 0.0)
        if "buffer" in algorithm.parameters and (rounds := fields.get("updates")):
            fields |= {"rounds": rounds, "round_seconds": there / rounds}
            if fields.get("gradients") is not None:
                together = min(algorithm.parameters["buffer"], len(fields["workers"]["compute"]))
                fields["reports"] = rounds * together
        return cls(
            label=algorithm.label,
            name=algorithm.name,
            seed=seed,
            engine=engine,
            steps=curve["step"][-1],
            duration=curve["time"][-1],
            curve=curve,
            staleness={age: count for age, count in sorted((staleness or {}).items()) if count},
            bound=algorithm.bound,
            **fields,
        )


def begins(losses: Sequence[float]) -> int | None:
    """Return the evaluation from which a loss has diverged; None if it has not.

    A loss has diverged if from then on it is not finite, or above its first value.
    """
    values = np.asarray(losses, dtype=float)
    if not values.size or not math.isfinite(values[0]):
        return None
    limit = values[0] * ROUNDING if values[0] > 0 else math.inf
    learning = np.isfinite(values) & (values <= limit)
    return None if learning[-1] else int(np.flatnonzero(learning)[-1]) + 1


def diverged(run: Run) -> bool:
    """Whether a run's loss diverged for good."""
    return begins(run.curve["loss"]) is not None


def divergence_note(curve: Mapping[str, Sequence[float]]) -> str | None:
    """Return a note on the step at which a curve diverged, and the likely cause."""
    first = begins(curve["loss"])
    return None if first is None else f"diverged by step {curve['step'][first]:g}: {CAUSE}"


def trace(groups: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

    An algorithm is a process, a worker a thread; the server is the thread after the last worker's.
    Shows the first seed that recorded spans. Perfetto counts whole nanoseconds, and leaves out a
    slice that overlaps the one before it; so times are rounded to those before anything else, and a
    slice begins where the one before it ends.
    """
    recorded = {label: [r for r in runs if r.spans is not None] for label, runs in groups.items()}
    shown = {label: runs[0] for label, runs in recorded.items() if runs}
    traced = [
        event for pid, run in enumerate(shown.values(), FIRST) for event in _process(pid, run)
    ]
    seeds = {label: f"seed {run.seed}" for label, run in shown.items()}
    return {"displayTimeUnit": "ms", "otherData": seeds, "traceEvents": traced}


def _process(pid: int, run: Run) -> Iterator[dict[str, Any]]:
    spans = run.spans
    assert spans is not None
    yield _about(
        pid, 0, "process_name", name=run.label + " (only the beginning)" * run.spans_truncated
    )
    servers = {int(worker) for worker in spans["worker"][spans["kind"] == Kind.SERVE]}
    servers |= {len(seconds) for seconds in run.workers.values()}  # which may leave no SERVE span
    for thread in sorted({int(worker) for worker in spans["worker"]}):
        name = "server" if thread in servers else f"worker {thread}"
        yield _about(pid, thread, "thread_name", name=name)
    times = [np.rint(spans[end] * 1e9).astype(np.int64).tolist() for end in ("start", "end")]
    for (worker, kind, _, _, step), start, end in zip(spans.tolist(), *times, strict=True):
        yield {
            "ph": "X",
            "name": Kind(kind).name.lower(),
            "pid": pid,
            "tid": worker,
            "ts": start / PER_MICROSECOND,
            "dur": (end - start) / PER_MICROSECOND,
            "args": {"step": step},
            **({"cname": RED} if kind == Kind.DOWN else {}),
        }


def _about(pid: int, thread: int, what: str, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": arguments}
