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
NANOSECONDS = 1e9  # per second
PER_MICROSECOND = 1e3  # nanoseconds
LEAST = 10  # nanoseconds; shorter slices get no arrows
BEGIN, END = 4, 2  # nanoseconds from an arrow's ends to the ends of their slices

Ends = tuple[np.ndarray, np.ndarray, np.ndarray]


def events(groups: Groups) -> Document:
    """Return the trace document: one process per algorithm, one thread per worker.

    Shows the first seed that recorded spans. The server is the thread after the last worker's.
    Arrows ("s" to "f") lead from the sender of a message to the node that acted on it, and from the
    last worker to join a collective to those that waited for it.
    """
    shown = [
        (label, run)
        for label, runs in groups.items()
        for run in [next((run for run in runs if run.spans is not None), None)]
        if run is not None
    ]
    numbers = count(1)
    return {
        "displayTimeUnit": "ms",
        "otherData": {label: f"seed {run.seed}" for label, run in shown},
        "traceEvents": [
            event
            for pid, (_, run) in enumerate(shown, FIRST)
            for event in _process(pid, run, numbers)
        ],
    }


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
    processes.sort(key=lambda each: labels.index(each[0].removesuffix(CUT)))
    pids = {process[1:]: pid for pid, process in enumerate(processes, FIRST)}
    titles = {pids[name, pid]: f"{name}: {label}" for label, name, pid in processes}
    numbers = count(1)
    ids: dict[tuple[str, int], int] = {}
    found = []
    for name, document in documents.items():
        for event in document["traceEvents"]:
            moved = event | {"pid": pids[name, event["pid"]]}
            if "id" in event:
                key = name, event["id"]
                moved["id"] = ids[key] if key in ids else ids.setdefault(key, next(numbers))
            if event["name"] == "process_name":
                moved["args"] = {"name": titles[moved["pid"]]}
                place = moved["pid"] - FIRST
                found.append(_about(moved["pid"], 0, "process_sort_index", sort_index=place))
            found.append(moved)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            f"{name}: {label}": seed
            for name, document in documents.items()
            for label, seed in document["otherData"].items()
        },
        "traceEvents": sorted(found, key=lambda event: event["pid"]),
    }


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
    servers |= {len(each) for each in run.workers.values()}  # a server may leave no SERVE span
    for thread in sorted({int(worker) for worker in spans["worker"]}):
        name = "server" if thread in servers else f"worker {thread}"
        yield _about(pid, thread, "thread_name", name=name)
    starts, ends = nanoseconds(spans["start"]), nanoseconds(spans["end"])
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
    if run.arrows is not None:
        awake = spans["kind"] != Kind.DOWN
        slices = Slices(spans["worker"][awake], starts[awake], ends[awake])
        sent, taken = nanoseconds(run.arrows["sent"]), nanoseconds(run.arrows["taken"])
        for begin, end in _drawn(run.arrows, sent, taken, slices):
            shared = {"id": next(numbers), "pid": pid}
            yield {"ph": "s", **begin, **shared}
            yield {"ph": "f", "bp": "e", **end, **shared}


def nanoseconds(seconds: np.ndarray) -> np.ndarray:
    """Round seconds to whole nanoseconds."""
    return np.rint(seconds * NANOSECONDS).astype(np.int64)


def _about(pid: int, thread: int, what: str, **says: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": says}


class Slices:
    """The slices of all nodes, from `starts` to `ends` (n,), nanoseconds."""

    def __init__(self, nodes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        self._of: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for node in np.unique(nodes).tolist():
            own = np.flatnonzero((nodes == node) & (ends - starts >= LEAST))
            own = own[np.argsort(starts[own], kind="stable")]
            self._of[node] = starts[own], ends[own]

    def around(self, nodes: np.ndarray, times: np.ndarray) -> Ends:
        """Return start and end of each node's slice at each time, and whether there is one.

        A slice includes its end. Shapes (n,), times in nanoseconds.
        """
        starts, ends = np.zeros_like(times), np.zeros_like(times)
        there = np.zeros(len(times), dtype=bool)
        for node in np.unique(nodes).tolist():
            begin, end = self._of.get(node, (times[:0], times[:0]))
            if not len(begin):
                continue
            own = np.flatnonzero(nodes == node)
            at = times[own]
            places = np.maximum(np.searchsorted(begin, at, side="left") - 1, 0)
            starts[own], ends[own] = begin[places], end[places]
            # or after one that is too short
            there[own] = (starts[own] <= at) & (at <= ends[own] + LEAST)
        return starts, ends, there


def _drawn(
    arrows: np.ndarray, sent: np.ndarray, taken: np.ndarray, slices: Slices
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield both ends of arrows from slice to slice, as events; `sent`, `taken`: nanoseconds."""
    starts, ends, there = slices.around(arrows["source"], sent)
    begins = np.maximum(starts, np.minimum(sent, ends) - BEGIN)
    starts, ends, also = slices.around(arrows["target"], taken)
    comes = np.maximum(np.maximum(starts, np.minimum(taken, ends) - END), begins)
    for index in np.flatnonzero(there & also & (comes < ends)).tolist():
        source, target, cause, *_ = arrows[index].tolist()
        name = {"name": Cause(cause).name.lower(), "cat": "between workers"}
        yield (
            {**name, "tid": source, "ts": int(begins[index]) / PER_MICROSECOND},
            {**name, "tid": target, "ts": int(comes[index]) / PER_MICROSECOND},
        )
