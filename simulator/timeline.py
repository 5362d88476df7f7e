"""Timelines as Chrome trace events, which ui.perfetto.dev and chrome://tracing open."""

from collections.abc import Iterator
from typing import Any

from simulator.report import Groups
from simulator.trace import Kind, Run

MICROSECONDS = 1e6
RED = "terrible"  # as chrome://tracing calls it


def events(groups: Groups) -> dict[str, Any]:
    """Return the trace document: one process per algorithm, one thread per worker.

    Shows the first seed that recorded spans. The server is the thread after the last worker's.
    """
    shown = [
        (label, run)
        for label, runs in groups.items()
        for run in [next((run for run in runs if run.spans is not None), None)]
        if run is not None
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {label: f"seed {run.seed}" for label, run in shown},
        "traceEvents": [
            event for pid, (_, run) in enumerate(shown) for event in _process(pid, run)
        ],
    }


def _process(pid: int, run: Run) -> Iterator[dict[str, Any]]:
    assert run.spans is not None
    cut = " (only the beginning)" if run.spans_truncated else ""
    yield _name(pid, 0, "process_name", run.label + cut)
    servers = {int(worker) for worker in run.spans["worker"][run.spans["kind"] == Kind.SERVE]}
    for thread in sorted({int(worker) for worker in run.spans["worker"]}):
        yield _name(
            pid, thread, "thread_name", "server" if thread in servers else f"worker {thread}"
        )
    for worker, kind, start, end, step in run.spans.tolist():
        yield {
            "ph": "X",
            "name": Kind(kind).name.lower(),
            "pid": pid,
            "tid": worker,
            "ts": start * MICROSECONDS,
            "dur": (end - start) * MICROSECONDS,
            "args": {"step": step},
            **({"cname": RED} if kind == Kind.DOWN else {}),
        }


def _name(pid: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": {"name": name}}
