"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Perfetto counts whole nanoseconds, and leaves out a slice that overlaps the one before it; so times
are rounded to those before anything else, and a slice begins where the one before it ends.

A viewer ties each end of an arrow to the slice that contains it. So an arrow begins just inside the
slice in which its source sent a message, and ends just inside the slice after which its target
acted on it.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ..inputs import untrusted
from .run import Cause, Kind, Run
from .statistics import Groups

Document = dict[str, Any]
FILE = "timeline.json"
LARGEST = 256_000_000  # bytes: two million spans
FIRST = 100_000  # lowest process id; Perfetto takes thread N of process N for its main thread
CUT = " (only the beginning)"
RED = "terrible"  # the name of red in chrome://tracing
PER_MICROSECOND = 1e3  # nanoseconds
LEAST = 10  # nanoseconds; shorter slices get no arrows
BEGIN, END = 4, 2  # nanoseconds from an arrow's ends to the ends of their slices


def events(groups: Groups) -> Document:
    """Return the trace document: one process per algorithm, one thread per worker.

    Shows the first seed that recorded spans. The server is the thread after the last worker's.
    Arrows ("s" to "f") lead from the sender of a message to the node that acted on it, and from the
    last worker to join a collective to those that waited for it.
    """
    recorded = {label: [r for r in runs if r.spans is not None] for label, runs in groups.items()}
    shown = {label: runs[0] for label, runs in recorded.items() if runs}
    numbers = count(1)
    traced = [
        event for pid, run in enumerate(shown.values(), FIRST)
        for event in _process(pid, run, numbers)
    ]  # fmt: skip
    return _document({label: f"seed {run.seed}" for label, run in shown.items()}, traced)


def _document(about: Mapping[str, str], traced: list[dict[str, Any]]) -> Document:
    return {"displayTimeUnit": "ms", "otherData": {**about}, "traceEvents": traced}


def together(documents: Mapping[str, Document]) -> Document:
    """Merge documents, such as the predicted and the measured one, given by name.

    Processes of the same label are adjacent; every run begins at time zero. Raises KeyError or
    TypeError for a document that `events` did not make.
    """
    processes = [
        (event["args"]["name"], name, event["pid"])
        for name, document in documents.items()
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    ]
    labels = list(dict.fromkeys(label.removesuffix(CUT) for label, _, _ in processes))
    processes.sort(key=lambda process: labels.index(process[0].removesuffix(CUT)))
    pids = {process[1:]: pid for pid, process in enumerate(processes, FIRST)}
    numbers = count(1)
    ids: dict[tuple[str, int], int] = {}
    merged = []
    for name, document in documents.items():
        for event in document["traceEvents"]:
            pid = pids[name, event["pid"]]
            moved = event | {"pid": pid}
            if "id" in event:
                key = name, event["id"]
                moved["id"] = ids[key] if key in ids else ids.setdefault(key, next(numbers))
            if event["name"] == "process_name":
                moved["args"] = {"name": f"{name}: {processes[pid - FIRST][0]}"}
                merged.append(_about(pid, 0, "process_sort_index", sort_index=pid - FIRST))
            merged.append(moved)
    about = {
        f"{name}: {label}": seed
        for name, document in documents.items()
        for label, seed in document["otherData"].items()
    }
    return _document(about, sorted(merged, key=lambda event: event["pid"]))


def read(directory: Path) -> Document:
    """Return the document of a run directory; an empty one if it has none, or an invalid one."""
    try:
        document = untrusted.loads(untrusted.text(directory / FILE, LARGEST))
        together({"": document})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"otherData": {}, "traceEvents": []}
    return dict(document)


def _process(pid: int, run: Run, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    spans = run.spans
    assert spans is not None
    yield _about(pid, 0, "process_name", name=run.label + CUT * run.spans_truncated)
    servers = {int(worker) for worker in spans["worker"][spans["kind"] == Kind.SERVE]}
    servers |= {len(seconds) for seconds in run.workers.values()}  # which may leave no SERVE span
    for thread in sorted({int(worker) for worker in spans["worker"]}):
        name = "server" if thread in servers else f"worker {thread}"
        yield _about(pid, thread, "thread_name", name=name)
    starts, ends = _nanoseconds(spans["start"]), _nanoseconds(spans["end"])
    for (worker, kind, _, _, step), start, end in zip(
        spans.tolist(), starts.tolist(), ends.tolist(), strict=True
    ):
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
    if run.arrows is None:
        return
    arrows = run.arrows
    slices = np.flatnonzero((spans["kind"] != Kind.DOWN) & (ends - starts >= LEAST))
    slices = slices[np.argsort(starts[slices], kind="stable")]
    drawn = np.ones(len(arrows), dtype=bool)
    sides = []
    for node, time, before in (("source", "sent", BEGIN), ("target", "taken", END)):
        at = _nanoseconds(arrows[time])
        begin, end = _slices_around(spans["worker"][slices], starts[slices], ends[slices],
                                    arrows[node], at)  # fmt: skip
        # An arrow may also lie after a slice that is too short to have one.
        drawn &= (begin <= at) & (at <= end + LEAST)
        sides.append((np.maximum(begin, np.minimum(at, end) - before), end))
    (begins, _), (comes, end) = sides
    comes = np.maximum(comes, begins)
    for index in np.flatnonzero(drawn & (comes < end)).tolist():
        source, target, cause, *_ = arrows[index].tolist()
        about = {"name": Cause(cause).name.lower(), "cat": "between workers"}
        shared = {"id": next(numbers), "pid": pid}
        first = {"tid": source, "ts": int(begins[index]) / PER_MICROSECOND}
        yield {"ph": "s", **about, **first, **shared}
        last = {"tid": target, "ts": int(comes[index]) / PER_MICROSECOND}
        yield {"ph": "f", "bp": "e", **about, **last, **shared}


def _nanoseconds(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)


def _about(pid: int, thread: int, what: str, **says: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": says}


def _slices_around(
    workers: np.ndarray, starts: np.ndarray, ends: np.ndarray, nodes: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each node's last slice before a time, which includes its end.

    A node without a slice has one that is never.
    """
    begin, end = np.full_like(at, np.iinfo(np.int64).max), np.zeros_like(at)
    for node in np.unique(nodes).tolist():
        own, asked = np.flatnonzero(workers == node), np.flatnonzero(nodes == node)
        if own.size:
            places = np.maximum(np.searchsorted(starts[own], at[asked], side="left") - 1, 0)
            begin[asked], end[asked] = starts[own][places], ends[own][places]
    return begin, end
