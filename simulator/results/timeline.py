"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Perfetto counts whole nanoseconds, and leaves out a slice that overlaps the one before it; so times
are rounded to those before anything else, and a slice begins where the one before it ends.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .run import Kind, Run
from .statistics import Groups

FIRST = 100_000  # lowest process id; Perfetto takes thread N of process N for its main thread
RED = "terrible"  # the name of red in chrome://tracing
PER_MICROSECOND = 1e3  # nanoseconds


def events(groups: Groups) -> dict[str, Any]:
    """Return the trace document: one process per algorithm, one thread per worker.

    Shows the first seed that recorded spans. The server is the thread after the last worker's.
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
