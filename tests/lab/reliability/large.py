"""Large clusters and long traces: that they end, how long they take and how much memory."""

import json
import math
import random
import re
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

TITLE = "Large"
HOW = "python -m tests.lab.reliability large"
ROWS = 1_000_000
PATIENCE = 300.0  # seconds for each
WORLD = """
title = "Many workers"
model.parameters = 1_000_000
cluster = {{ workers = {workers}, compute = {compute} }}
network = {{ latency = "5 ms", bandwidth = "1 Gbit/s", collective = "tree" }}
run = {{ steps = {steps} }}
algorithm = [{{ name = "ssgd" }}, {{ name = "local-sgd", tau = 10 }}]
"""
EXPONENTIAL = '{ dist = "exponential", mean = "100 ms" }'


def many(folder: Path, workers: int, engine: str, steps: int = 100) -> str:
    """Simulate many workers."""
    from paceline import load, simulate

    (folder / "many.toml").write_text(
        WORLD.format(workers=workers, steps=steps, compute=EXPONENTIAL)
    )
    result = simulate(load(folder / "many.toml"), engine=engine, out=folder / "out")
    assert all(run.engine == engine and run.steps == steps for run in result.runs)
    return f"{steps} steps of {workers:,} workers, 2 algorithms"


def samples(folder: Path, rows: int = ROWS) -> str:
    """Simulate compute times that are drawn from a CSV file."""
    from paceline import load, simulate

    draw = random.Random(0)
    with (folder / "times.csv").open("w") as file:
        file.writelines(f"{draw.uniform(0.1, 0.2):.6f}\n" for _ in range(rows))
    compute = '{ dist = "empirical", file = "times.csv" }'
    (folder / "many.toml").write_text(WORLD.format(workers=4, steps=100, compute=compute))
    result = simulate(load(folder / "many.toml"))
    mean = result.algorithms[1]["seconds_per_step"]["mean"]
    assert 0.14 < mean < 0.3, mean
    return f"{rows:,} samples"


def telemetry(folder: Path, rows: int = ROWS) -> str:
    """Read a job's telemetry: the steps and all-reduces of two ranks, `rows` in all."""
    from paceline.validate.measurement.telemetry import Telemetry
    from paceline.validate.measurement.telemetry_files import COLLECTIVE, read
    from paceline.validate.training.events import STEP

    steps = rows // 4
    for rank in range(2):
        with Telemetry(folder / "job", rank=rank, workers=2, model_bytes=4e6) as told:
            for number in range(steps):
                at = 1000.0 + 0.1 * number
                told.add(STEP, at, at + 0.08 + 0.01 * rank, math.nan)
                told.add(COLLECTIVE, at + 0.08 + 0.01 * rank, at + 0.1, 4e6)
    (found,) = read(folder / "job").events.values()
    assert len(found) >= rows
    return f"{rows:,} rows"


def kineto(folder: Path, events: int = ROWS) -> str:
    """Read a profiler's trace: 100 operations a step, and an all-reduce that half of them hide."""
    from paceline.validate.measurement import kineto
    from paceline.validate.training.events import WAIT

    steps = events // 102
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
    found = kineto.read(folder / "trace.json").events[kineto.KEY]
    waits = found[found["kind"] == WAIT]
    assert len(waits) == steps
    assert abs((waits["end"] - waits["start"]) - 0.01).max() < 1e-6
    return f"{events:,} events, {steps:,} steps"


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
    for what, case in CASES.items():
        row = {"what": what, "tried": 1, "handled": 0, "how": HOW}
        with tempfile.TemporaryDirectory() as folder:
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            child = context.Process(target=_measure, args=(case, Path(folder), theirs))
            child.start()
            theirs.close()
            child.join(max(seconds, PATIENCE))
            child.kill()
            try:
                row["note"] = ours.recv()
                row["handled"] = 1
            except EOFError:
                row["missed"] = ["it did not end well, or in time"]
        rows.append(row)
    return rows


def _measure(case: Callable[[Path], str], folder: Path, end: Any) -> None:
    import paceline

    assert paceline.simulate  # what is imported is no part of it
    assert paceline.calibrate
    before, begin = _memory(), time.monotonic()
    done = case(folder)
    took, grown = time.monotonic() - begin, _memory() - before
    end.send(f"{done}: {took:.1f} s, {grown / 2**20:.0f} MiB more than before")


def _memory() -> float:
    """Bytes that this process has had at most; Linux counts those of its parent into getrusage."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        assert found
        return float(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
