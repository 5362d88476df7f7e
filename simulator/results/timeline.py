"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Perfetto counts whole nanoseconds, and leaves out a slice that overlaps the one before it; so times
are rounded to those before anything else, and a slice begins where the one before it ends.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.inputs import untrusted
from paceline.simulator.results import timeline_arrows
from paceline.simulator.results.run import Kind, Run
from paceline.simulator.results.statistics import Groups

Document = dict[str, Any]
FILE = "timeline.json"
LARGEST = 256_000_000  # bytes: two million spans
FIRST = 100_000  # lowest process id; Perfetto takes thread N of process N for its main thread
CUT = " (only the beginning)"
RED = "terrible"  # the name of red in chrome://tracing
NANOSECONDS = 1e9  # per second
PER_MICROSECOND = 1e3  # nanoseconds


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
                found.append(_order(moved["pid"]))
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
    yield _name(pid, 0, "process_name", run.label + CUT * run.spans_truncated)
    servers = {int(worker) for worker in spans["worker"][spans["kind"] == Kind.SERVE]}
    servers |= {len(each) for each in run.workers.values()}  # a server may leave no SERVE span
    for thread in sorted({int(worker) for worker in spans["worker"]}):
        yield _name(
            pid, thread, "thread_name", "server" if thread in servers else f"worker {thread}"
        )
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
        slices = timeline_arrows.Slices(spans["worker"][awake], starts[awake], ends[awake])
        sent, taken = nanoseconds(run.arrows["sent"]), nanoseconds(run.arrows["taken"])
        for begin, end in timeline_arrows.drawn(run.arrows, sent, taken, slices):
            shared = {"id": next(numbers), "pid": pid}
            yield {"ph": "s", **begin, **shared}
            yield {"ph": "f", "bp": "e", **end, **shared}


def nanoseconds(seconds: np.ndarray) -> np.ndarray:
    """Round seconds to whole nanoseconds."""
    return np.rint(seconds * NANOSECONDS).astype(np.int64)


def _name(pid: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}


def _order(pid: int) -> dict[str, Any]:
    place = {"sort_index": pid - FIRST}
    return {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": place}
