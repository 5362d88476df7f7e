"""Read traces of torch.profiler (Kineto) as events, to calibrate without a rerun."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted

from ..training.events import EVENT, ISSUE, STEP, WAIT, Key
from .telemetry_files import Recorded, ranks

PROFILED = re.compile(r"ProfilerStep#(\d+)")
COLLECTIVE = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl):_?(?:all_?reduce|all_?gather|all_?to_?all|"
                        r"reduce|broadcast|gather|scatter)", re.IGNORECASE)  # fmt: skip
STARTED = re.compile(r"c10d::\w*(?:reduce|gather|alltoall|broadcast|scatter)")
KERNEL = re.compile(r"nccl", re.IGNORECASE)
OURS = re.compile(r"c10d::|record_param_comms|(?:nccl|gloo|mpi|ucc|xccl):")
SIZES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "char": 1, "byte": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
KEY: Key = ("measured", 0)
LARGEST = 1_000_000_000  # bytes, unpacked; a few hundred steps take some ten million
REMEDY = "give what torch.profiler's export_chrome_trace writes"
MOST = 65_535  # workers, as in a scenario

Interval = tuple[float, float]


def read(*paths: Path | str) -> Recorded:
    """Read steps and collectives from one trace (.json, .gz) for each rank.

    A step is a span `ProfilerStep#N` of `profiler.step()`. A collective counts by its exposed time:
    while it runs and nothing else does, on the CPU or, with NCCL kernels, on the GPU. The rest of
    the step is computing. The order within a step is lost: computing comes first, then each
    collective's exposed time. Times count from each rank's first step. `bytes` are nan unless the
    profiler recorded shapes. Raises InputError.
    """
    if not paths:
        raise InputError("no trace; give the file of each rank")
    traced: dict[int, tuple[np.ndarray, dict[str, Any]]] = {}
    workers = 0
    for index, path in enumerate(paths):
        document = _document(Path(path))
        try:
            about = document.get("distributedInfo") or {}
            rank = int(about.get("rank", index))
            workers = int(about.get("world_size", len(paths)))
            if not 0 <= rank < workers <= MOST and "rank" in about and "world_size" in about:
                raise ValueError("no such rank")
            gpus = [str(item.get("name")) for item in document.get("deviceProperties") or []]
            events = _events(Path(path), rank, document["traceEvents"])
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
            raise InputError(f"{path}: its events do not come from a profiler; {REMEDY}") from None
        if rank in traced:
            raise InputError(f"{path}: a second trace of rank {rank}; give one of each")
        head = {"title": Path(path).name, "workers": workers}
        traced[rank] = events, head | {"hardware": {"gpu": gpus[0]} if gpus else {}}
    notes = ["from a profiler's trace, which slows steps down: compare with step times without it"]
    if missing := sorted({*range(workers)} - traced.keys()):
        notes.append(f"no trace of {ranks(missing)}")
    in_order = [traced[rank] for rank in sorted(traced)]
    events = np.concatenate([events for events, _ in in_order])
    return Recorded({KEY: events}, {KEY: np.empty((0, 3))}, in_order[0][1], notes)


def _document(path: Path) -> dict[str, Any]:
    try:
        with untrusted.refused(path, REMEDY), untrusted.unpacked(path) as file:
            content = untrusted.content(file, LARGEST)
        with untrusted.refused(path, REMEDY, "not a trace"):
            document = untrusted.loads(content)
            if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
                raise ValueError("it has no traceEvents")
            return document
    except MemoryError:
        raise InputError(f"{path}: larger than this machine's memory; trace fewer steps") from None


def _events(path: Path, rank: int, trace: Sequence[dict[str, Any]]) -> np.ndarray:
    spans = sorted(
        (event for event in trace if event.get("ph") == "X" and "dur" in event and "name" in event),
        key=lambda event: float(event["ts"]),
    )
    steps = {
        span["name"]: span
        for span in spans
        if PROFILED.fullmatch(span["name"]) and span.get("cat") != "gpu_user_annotation"
    }
    if not steps:
        raise InputError(
            f"{path}: no steps in it; call the profiler's step() after each step of your loop"
        )
    collectives, busy = _split(spans)
    intervals = [*map(_interval, steps.values())]
    zero = intervals[0][0]
    collectives.sort(key=lambda collective: collective[0][0])
    begins = [begin for (begin, _), _ in collectives]
    rows: list[tuple[float, ...]] = []
    none = math.nan, math.nan, math.nan
    for number, (start, end) in enumerate(intervals, start=1):
        exposed, latest = [], start
        within = slice(bisect_left(begins, start), bisect_left(begins, end))
        for (begin, over), size in collectives[within]:
            since = max(begin, latest)  # earlier ones began before the first step
            until = max(min(over, end), since)
            exposed.append((max(until - since - (busy(until) - busy(since)), 0.0), size))
            latest = max(latest, over)
        at = end - sum(seconds for seconds, _ in exposed) - zero
        rows.append((rank, STEP, number, start - zero, at, *none))
        for seconds, size in exposed:
            rows.append((rank, ISSUE, number, at, at, *none))
            rows.append((rank, WAIT, number, at, at + seconds, *none[1:], size))
            at += seconds
    if len(rows) == len(intervals):
        raise InputError(
            f"{path}: no collectives in its steps; trace a job of several workers whose "
            "all-reduces come before the profiler's step()"
        )
    return np.array(rows, EVENT)


def _interval(span: dict[str, Any]) -> Interval:
    start, lasted = float(span["ts"]), float(span["dur"])
    if not (math.isfinite(start) and 0 <= lasted < math.inf):
        raise ValueError("not a time")
    return start * 1e-6, (start + lasted) * 1e-6


def _split(
    spans: Sequence[dict[str, Any]],
) -> tuple[list[tuple[Interval, float]], Callable[[float], float]]:
    """Return (interval, bytes) of collectives, and a function of other work (`_busy`)."""
    kernels = [span for span in spans if span.get("cat") == "kernel"]
    if ours := [span for span in kernels if KERNEL.match(span["name"])]:
        other_work = [_interval(span) for span in kernels if not KERNEL.match(span["name"])]
        return [(_interval(span), _bytes(span)) for span in ours], _busy(other_work)
    ours = [span for span in spans if COLLECTIVE.match(span["name"])]
    started = [span for span in spans if STARTED.match(span["name"])]
    intervals = [_interval(span) for span in ours]
    if len(started) == len(ours):  # from the program's call, not a thread's start
        intervals = [
            (min(_interval(one)[0], begin), end)
            for one, (begin, end) in zip(started, intervals, strict=True)
        ]
    work = [span for span in spans if span.get("cat") == "cpu_op" and not OURS.match(span["name"])]
    return [*zip(intervals, map(_bytes, ours), strict=True)], _busy([*map(_interval, work)])


def _busy(intervals: Sequence[Interval]) -> Callable[[float], float]:
    """Return a function of a time (s): the seconds in the intervals up to it."""
    if not intervals:
        return lambda at: 0.0
    starts, ends = np.array(sorted(intervals)).T
    ends = np.maximum.accumulate(ends)
    starts[1:] = np.maximum(starts[1:], ends[:-1])  # the part that no earlier one covers
    ends = np.maximum(ends, starts)
    edges = np.column_stack([starts, ends]).ravel()
    seconds = np.cumsum(np.column_stack([np.zeros(len(starts)), ends - starts]).ravel())
    return lambda at: float(np.interp(at, edges, seconds))


def _bytes(span: dict[str, Any]) -> float:
    """Return a payload's bytes, nan if unknown. Raises ValueError for inf."""
    about = span.get("args", {})
    if "In msg nelems" in about:
        entries, kind = float(about["In msg nelems"]), about.get("dtype", "")
    else:
        shapes, types = about.get("Input Dims") or [[]], about.get("Input type") or [""]
        if not shapes[0] or not all(isinstance(shape, int) for shape in shapes[0]):
            return math.nan
        entries, kind = math.prod(map(float, shapes[0])), types[0]
    size = entries * SIZES.get(str(kind).lower().removeprefix("c10::"), math.nan)
    if math.isinf(size):
        raise ValueError("a message of infinitely many bytes")
    return size
