"""Large clusters and long traces: that they end, how long they take and how much memory."""

import json
import math
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.simulator.load.load import parse
from paceline.validate.measurement import kineto as profiler
from paceline.validate.measurement.telemetry import Telemetry
from paceline.validate.measurement.telemetry_files import COLLECTIVE, read
from paceline.validate.training.events import STEP, WAIT

TITLE = "Large"
HOW = "python -m tests.lab.reliability large"
ROWS = 1_000_000
PATIENCE = 300.0  # seconds for each
EXPONENTIAL = {"dist": "exponential", "mean": "100 ms"}


def world(workers: int, compute: Any, folder: Path = Path()) -> Any:
    """Return 100 steps of many workers."""
    return parse(
        {
            "model": {"parameters": 1_000_000},
            "cluster": {"workers": workers, "compute": compute},
            "network": {"latency": "5 ms", "bandwidth": "1 Gbit/s", "collective": "tree"},
            "run": {"steps": 100},
            "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 10}],
        },
        folder=folder,
    )


def many(folder: Path, workers: int, engine: str) -> str:
    """Simulate many workers."""
    result = paceline.simulate(world(workers, EXPONENTIAL), engine=engine, out=folder / "out")
    assert all(run.engine == engine and run.steps == 100 for run in result.runs)
    return f"100 steps of {workers:,} workers, 2 algorithms"


def samples(folder: Path) -> str:
    """Simulate compute times that are drawn from a CSV file."""
    draws = np.random.default_rng(0).uniform(0.1, 0.2, ROWS)
    np.savetxt(folder / "times.csv", draws, "%.6f")
    result = paceline.simulate(world(4, {"dist": "empirical", "file": "times.csv"}, folder))
    mean = result.algorithms[1]["seconds_per_step"]["mean"]
    assert 0.14 < mean < 0.3, mean
    return f"{ROWS:,} samples"


def telemetry(folder: Path) -> str:
    """Read a job's telemetry: the steps and all-reduces of two ranks."""
    for rank in range(2):
        with Telemetry(folder / "job", rank=rank, workers=2, model_bytes=4e6) as told:
            for number in range(ROWS // 4):
                at = 1000.0 + 0.1 * number
                told.add(STEP, at, at + 0.08 + 0.01 * rank, math.nan)
                told.add(COLLECTIVE, at + 0.08 + 0.01 * rank, at + 0.1, 4e6)
    (found,) = read(folder / "job").events.values()
    assert len(found) >= ROWS
    return f"{ROWS:,} rows"


def kineto(folder: Path) -> str:
    """Read a profiler's trace: 100 operations a step, and an all-reduce that half of them hide."""
    steps = ROWS // 102
    with (folder / "trace.json").open("w") as file:
        file.write('{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [\n')
        for number in range(steps):
            at = 1e6 + 1e5 * number
            spans = [("user_annotation", f"ProfilerStep#{number}", at, 1e5 - 1)]
            spans += [("kernel", "gemm", at + 500 * each, 500) for each in range(100)]
            spans += [("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 4e4, 2e4)]
            for kind, name, start, lasted in spans:
                event = {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": lasted}
                file.write(json.dumps(event) + ",\n")
        file.write('{"ph": "M", "name": "process_name"}]}')
    found = profiler.read(folder / "trace.json").events[profiler.KEY]
    waits = found[found["kind"] == WAIT]
    assert len(waits) == steps
    assert abs((waits["end"] - waits["start"]) - 0.01).max() < 1e-6
    return f"{ROWS:,} events, {steps:,} steps"


CASES: dict[str, Callable[[Path], str]] = {
    "10,000 workers, batched": partial(many, workers=10_000, engine="batched"),
    "1,000 workers, virtual": partial(many, workers=1_000, engine="virtual"),
    "compute times from a CSV file": samples,
    "a job's telemetry": telemetry,
    "a profiler's trace": kineto,
}


def measure(seconds: float) -> list[dict[str, Any]]:
    """Each case in a process of its own, with its time and memory."""
    rows = []
    for what in CASES:
        row = {"what": what, "tried": 1, "handled": 0, "how": HOW}
        with tempfile.TemporaryDirectory() as folder:
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            try:
                told = pool.submit(_measure, what, Path(folder))
                row |= {"note": told.result(max(seconds, PATIENCE)), "handled": 1}
            except (AssertionError, BrokenProcessPool, TimeoutError) as error:
                row["missed"] = [f"it did not end well, or in time: {error!r}"]
            for process in [*pool._processes.values()]:
                process.kill()
        rows.append(row)
    return rows


def _measure(what: str, folder: Path) -> str:
    before, begin = _memory(), time.monotonic()
    done = CASES[what](folder)
    took, grown = time.monotonic() - begin, _memory() - before
    return f"{done}: {took:.1f} s, {grown / 2**10:.0f} MiB more than before"


def _memory() -> float:
    """KiB that this process has had at most; Linux counts those of its parent into getrusage."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return float(found[1])
