"""The record of one run: its curve, times, bytes and, on demand, a timeline."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ..scenario.scenario import Algorithm

TIMES = ("compute", "wait", "communicate", "stalled", "lost", "down", "absent", "unselected")
"""Uses of a worker's time; the last five only if workers crash, are left out, or come and go."""
COLUMNS = ("time", "step", "loss", "accuracy", "tau", "bytes", "cost")
CURVE = (*COLUMNS, "test_loss")
"""Columns of a simulated or stored run; files for readers have only `COLUMNS`."""
PAID = ("egress_bytes", "device_seconds")


class Kind(IntEnum):
    """What a worker or server does during a span."""

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

FIRST = 100_000  # lowest process id; in Perfetto thread N of process N is its main thread
PER_MICROSECOND = 1e3  # nanoseconds

_WAIT, _COMMUNICATE = int(Kind.WAIT), int(Kind.COMMUNICATE)
_THREE_SPANS = struct.Struct("<" + 3 * "HBddI")


class Spans:
    """A compact record of spans, 23 bytes each, with at most about `limit` spans.

    `truncated`: whether spans were dropped.
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
        """Record a span of `busy` from `since` to `now`, and the wait that ends at `done`.

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

    `curve` maps each name of `COLUMNS` to a list, one entry per evaluation; the entry is nan if an
    objective has no loss or no accuracy. `seconds` is the mean over workers of the time in each of
    compute, wait and communicate. If nodes can crash, or slow ones are left out, it also has
    stalled (waiting for nodes that are down, or for a collective that a crash restarted), lost
    (computing whose result was not used, or was repeated) and down (or saving checkpoints). If
    workers come and go it has absent (not a member), and if clients are sampled, unselected.
    `workers` has the same for every worker. `links` maps "from->to" to the bytes sent over it.

    `updates` counts the updates of the parameters up to the last evaluation: by the server, by all
    workers if their steps are counted together, or else by one worker. `staleness` maps each
    staleness to its number of contributions to updates, counted in `staleness_unit`:

    - "updates": updates by the server between sending a gradient's parameters and receiving the
      gradient;
    - "steps": local steps that a worker computed between starting a mean and acting on it;
    - "averagings": averagings with neighbours between reading a gradient's parameters and applying
      it.

    It is empty if nothing was counted. `rounds`: the number of means of sampled clients, or of
    updates from a server's full buffer. `round_seconds`: seconds of each, without time when no
    worker was available. With sampled clients: `reports`: clients' messages used in rounds;
    `gradients`: gradients in them up to the last evaluation; `working_seconds`: that time within
    the hours of the day when clients may be available; `nights`: its days of such hours (0: all
    hours count); `at_work`: how many clients computed or transferred in these hours, used or not.
    `handed_over`: why an engine other than the requested one ran it. `failures`, if nodes can
    crash: `crashes` (number), `recovery_seconds` (mean time until a crashed worker, or all, had
    regained their work), `lost_seconds` and `down_seconds` (of all workers), `goodput` (share of
    the workers' time that is neither lost nor down; `statistics.goodput` is the share spent on used
    results), `dropped` (contributions that means left out), `contributing` (mean number of workers
    in a mean), `drop_outs` (number of selected clients that dropped out), `stall` (description of a
    deadlock; None without). `lines`, if transfers share them: for each `line` its full `bandwidth`
    (bytes/s; None: no limit), the `bytes` that it carried, its `utilisation` (share of its
    capacity; None if every flow has the whole line) and `saturated_seconds`. `stall`: description
    of a deadlock; empty without one. `bound`: whether the workers never meet, so that the run
    bounds other algorithms and is never picked. `paid`, if workers come and go and their time has a
    price: for each name of `PAID` a list of amounts paid so far, as in `curve`.
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
    at_work: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)
    staleness_unit: str = ""
    handed_over: str = ""
    failures: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, list[float]] = field(default_factory=dict)
    stall: str = ""
    bound: bool = False
    paid: dict[str, list[float]] = field(default_factory=dict)

    @property
    def contributing(self) -> float | None:
        """The mean number of workers whose gradients count in a step; None if all always do."""
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

        `staleness` may be unordered and contain zeros; `fields` are the other fields of `Run`.
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
    """Return the evaluation from which a loss has diverged; None if it never does.

    A loss has diverged once it stays infinite, nan or above its first value.
    """
    values = np.asarray(losses, dtype=float)
    if not values.size or not math.isfinite(values[0]):
        return None
    limit = values[0] * ROUNDING if values[0] > 0 else math.inf
    learning = np.isfinite(values) & (values <= limit)
    return None if learning[-1] else int(np.flatnonzero(learning)[-1]) + 1


def diverged(run: Run) -> bool:
    """Return whether a run's loss diverged for good."""
    return begins(run.curve["loss"]) is not None


def divergence_note(curve: Mapping[str, Sequence[float]]) -> str | None:
    """Return a note on the step at which a curve diverged, and the likely cause."""
    first = begins(curve["loss"])
    return None if first is None else f"diverged by step {curve['step'][first]:g}: {CAUSE}"


def trace(groups: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

    An algorithm is a process, a worker a thread; the server's thread follows the last worker's. It
    shows the first seed that recorded spans. Perfetto counts whole nanoseconds, and drops a slice
    that overlaps the previous one. So times are first rounded to nanoseconds, and every slice
    begins where the previous one ends.
    """
    recorded = [run for runs in groups.values() for run in runs if run.spans is not None]
    shown = {run.label: run for run in reversed(recorded)}
    shown = {label: shown[label] for label in groups if label in shown}
    events = [event for pid, run in enumerate(shown.values(), FIRST) for event in _events(pid, run)]
    seeds = {label: f"seed {run.seed}" for label, run in shown.items()}
    return {"displayTimeUnit": "ms", "otherData": seeds, "traceEvents": events}


def _events(pid: int, run: Run) -> Iterator[dict[str, Any]]:
    spans, about = np.asarray(run.spans), {"ph": "M", "pid": pid}
    whole = run.label + " (only the beginning)" * run.spans_truncated
    yield about | {"tid": 0, "name": "process_name", "args": {"name": whole}}
    servers = {*spans["worker"][spans["kind"] == Kind.SERVE].tolist()}
    servers |= {len(seconds) for seconds in run.workers.values()}  # which may leave no SERVE span
    for thread in np.unique(spans["worker"]).tolist():
        name = "server" if thread in servers else f"worker {thread}"
        yield about | {"tid": thread, "name": "thread_name", "args": {"name": name}}
    times = [np.rint(spans[end] * 1e9).astype(np.int64).tolist() for end in ("start", "end")]
    for (worker, kind, _, _, step), start, end in zip(spans.tolist(), *times, strict=True):
        slice_ = {"ph": "X", "pid": pid, "tid": worker, "name": Kind(kind).name.lower()}
        slice_ |= {"ts": start / PER_MICROSECOND, "dur": (end - start) / PER_MICROSECOND}
        yield slice_ | {"args": {"step": step}}
