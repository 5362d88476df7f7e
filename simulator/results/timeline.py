"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Perfetto counts whole nanoseconds, and leaves out a slice that overlaps the one before it; so times
are rounded to those before anything else, and a slice begins where the one before it ends.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..inputs import untrusted
from .run import Kind, Run
from .statistics import Groups

Document = dict[str, Any]
FILE = "timeline.json"
LARGEST = 256_000_000  # bytes: two million spans
FIRST = 100_000  # lowest process id; Perfetto takes thread N of process N for its main thread
CUT = " (only the beginning)"
RED = "terrible"  # the name of red in chrome://tracing
PER_MICROSECOND = 1e3  # nanoseconds


def events(groups: Groups) -> Document:
    """Return the trace document: one process per algorithm, one thread per worker.

    Shows the first seed that recorded spans. The server is the thread after the last worker's.
    """
    recorded = {label: [r for r in runs if r.spans is not None] for label, runs in groups.items()}
    shown = {label: runs[0] for label, runs in recorded.items() if runs}
    traced = [
        event for pid, run in enumerate(shown.values(), FIRST) for event in _process(pid, run)
    ]
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
    merged = []
    for name, document in documents.items():
        for event in document["traceEvents"]:
            pid = pids[name, event["pid"]]
            moved = event | {"pid": pid}
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


def _process(pid: int, run: Run) -> Iterator[dict[str, Any]]:
    spans = run.spans
    assert spans is not None
    yield _about(pid, 0, "process_name", name=run.label + CUT * run.spans_truncated)
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
