"""A trace of torch.profiler (Kineto's Chrome trace) as events, for calibration without a rerun."""

import gzip
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import InputError
from validate.events import EVENT, ISSUE, STEP, WAIT, Key
from validate.recorded import Recorded

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

Interval = tuple[float, float]


def read(*paths: Path | str) -> Recorded:
    """Return the steps and collectives in `paths`, one trace (.json or .json.gz) for each rank.

    A step is a span `ProfilerStep#N`, which `profiler.step()` makes. Of a collective only what is
    exposed counts: while it runs and nothing else does, on the CPU, or, where there are NCCL
    kernels, on the GPU. What is left of the step is computing. The order within a step is not kept:
    it is told as computing first, then each collective's exposed time. Times count from each
    rank's first step. `bytes` are known where the profiler recorded shapes. Raises InputError.
    """
    if not paths:
        raise InputError("no trace; give the file of each rank")
    found: list[np.ndarray] = []
    heads: list[dict[str, Any]] = []
    for index, path in enumerate(paths):
        document = _document(Path(path))
        told = document.get("distributedInfo") or {}
        rank = int(told.get("rank", index))
        found.append(_events(Path(path), rank, document["traceEvents"]))
        head = {
            "title": Path(path).name, "label": KEY[0], "seed": KEY[1], "rank": rank,
            "workers": int(told.get("world_size", len(paths))), "model_bytes": None,
        }  # fmt: skip
        gpus = [each.get("name") for each in document.get("deviceProperties") or []]
        heads.append(head | {"hardware": {"gpu": gpus[0]} if gpus else {}})
    ranks = [head["rank"] for head in heads]
    if len({*ranks}) < len(ranks):
        raise InputError(f"{', '.join(map(str, paths))}: traces of the same rank; give one of each")
    notes = ["from a profiler's trace, which slows steps down: see how fast the job is without it"]
    if missing := sorted({*range(heads[0]["workers"])} - {*ranks}):
        notes.append(f"no trace of rank {', '.join(map(str, missing))}")
    order = np.argsort(ranks)
    events = np.concatenate([found[index] for index in order])
    return Recorded({KEY: events}, {KEY: np.empty((0, 3))}, heads[order[0]], notes)


def _document(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except OSError as error:
        reason = error.strerror or "not a whole gzip file"
        raise InputError(f"{path}: cannot be read ({reason}); give a profiler's trace") from None
    except (ValueError, EOFError):
        raise InputError(
            f"{path}: not a trace; give what torch.profiler's export_chrome_trace writes"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(
            f"{path}: not a trace, as it has no traceEvents; give what torch.profiler's "
            "export_chrome_trace writes"
        )
    return document


def _events(path: Path, rank: int, trace: Sequence[dict[str, Any]]) -> np.ndarray:
    spans = sorted(
        (each for each in trace if each.get("ph") == "X" and "dur" in each),
        key=lambda each: float(each["ts"]),
    )
    steps = _once(
        each
        for each in spans
        if PROFILED.fullmatch(each["name"]) and each.get("cat") != "gpu_user_annotation"
    )
    if not steps:
        raise InputError(
            f"{path}: no steps in it; call the profiler's step() after each one of your loop"
        )
    collectives, others = _split(spans)
    zero = _interval(steps[0])[0]
    found, any_inside = [], False
    for number, step in enumerate(steps, start=1):
        start, end = _interval(step)
        exposed = []
        taken: list[Interval] = [*others]
        for (begin, over), size in collectives:
            if start <= begin < end:
                left = _length(_minus((begin, min(over, end)), taken))
                exposed.append((left, size))
                taken = _merged([*taken, (begin, over)])
        any_inside = any_inside or bool(exposed)
        now = end - sum(left for left, _ in exposed)
        found.append((rank, STEP, number, start - zero, now - zero, math.nan, math.nan, math.nan))
        for left, size in exposed:
            at = now - zero
            found.append((rank, ISSUE, number, at, at, math.nan, math.nan, math.nan))
            found.append((rank, WAIT, number, at, at + left, math.nan, math.nan, size))
            now += left
    if not any_inside:
        raise InputError(
            f"{path}: no collectives in its steps; trace a job of several workers whose "
            "all-reduces come before the profiler's step()"
        )
    return np.array(found, EVENT)


def _once(spans: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*{each["name"]: each for each in spans}.values()]


def _interval(span: dict[str, Any]) -> Interval:
    """In seconds."""
    start = float(span["ts"])
    return start * 1e-6, (start + float(span["dur"])) * 1e-6


def _split(spans: Sequence[dict[str, Any]]) -> tuple[list[tuple[Interval, float]], list[Interval]]:
    """The collectives, with their bytes, and when anything else was computed."""
    kernels = [each for each in spans if each.get("cat") == "kernel"]
    ours = [each for each in kernels if KERNEL.match(each["name"])]
    if ours:
        others = [_interval(each) for each in kernels if not KERNEL.match(each["name"])]
        return [(_interval(each), _bytes(each)) for each in ours], _merged(others)
    ours = [each for each in spans if COLLECTIVE.match(each["name"])]
    started = [each for each in spans if STARTED.match(each["name"])]
    intervals = [_interval(each) for each in ours]
    if len(started) == len(ours):  # from when the program asked for it, not a thread took it up
        intervals = [
            (min(_interval(one)[0], begin), end)
            for one, (begin, end) in zip(started, intervals, strict=True)
        ]
    others = [
        _interval(each)
        for each in spans
        if each.get("cat") == "cpu_op" and not OURS.match(each["name"])
    ]
    return [*zip(intervals, map(_bytes, ours), strict=True)], _merged(others)


def _bytes(span: dict[str, Any]) -> float:
    """Of a collective's payload; nan where the trace does not say."""
    told = span.get("args", {})
    if "In msg nelems" in told:
        return float(told["In msg nelems"]) * _size(str(told.get("dtype", "")))
    shapes, types = told.get("Input Dims") or [[]], told.get("Input type") or [""]
    if not shapes[0] or not all(isinstance(each, int) for each in shapes[0]):
        return math.nan
    return float(math.prod(shapes[0])) * _size(str(types[0]))


def _size(kind: str) -> float:
    return SIZES.get(kind.lower().removeprefix("c10::"), math.nan)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, in order, without overlaps."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _minus(interval: Interval, taken: Sequence[Interval]) -> list[Interval]:
    """What of an interval is in none of those `taken`, which are in order."""
    at, end = interval
    found = []
    for start, stop in taken:
        if stop <= at or start >= end:
            continue
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    return [*found, (at, end)] if at < end else found


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
