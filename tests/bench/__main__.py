"""Measure everything, print it, and write docs/benchmarks.md: `make bench`.

Exits 1 if a figure that the project holds itself to is missed. Names of parts, such as `served`,
measure only these and write nothing.
"""

import platform
import sys
from pathlib import Path
from types import ModuleType

from paceline.simulator.results import store
from paceline.simulator.studies import executors
from tests.bench import batched, engine, flows, served, simgrid, tuner
from tests.bench.measure import Row

PARTS = {
    "engine": engine, "batched": batched, "served": served, "flows": flows, "simgrid": simgrid,
    "tuner": tuner,
}  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Written by `make bench` on {machine}. Rates are millions of worker-steps, updates or gradients per
second of wall-clock time; both sides of a ratio run in turn in one call, and the ratio is the
median of the ratios pair by pair, because machines drift. The last columns are what the project
holds itself to.
"""


def machine() -> str:
    """What it runs on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line for line in lines if line.startswith("model name")).split(":")[1].strip()
    except (OSError, StopIteration):
        model = platform.machine()
    versions = " and ".join(f"{name} {store.versions()[name]}" for name in ("python", "numpy"))
    return f"{executors.cores()} cores ({model}) with {versions}"


def table(part: ModuleType, rows: list[Row]) -> str:
    """One part of the page."""
    ours, other = part.HEAD
    lines = [f"\n## {part.TITLE}\n", f"| | {ours} | {other} | ratio | aim | |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    lines += [
        f"| {row.what} | {row.ours} | {row.other} | {row.ratio} | {row.aim} | {row.verdict} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    page, missed = [INTRODUCTION.format(machine=machine())], False
    for name in names or PARTS:
        part, rows = PARTS[name], []
        print(f"\n{part.TITLE}")
        for row in part.rows():
            print(row, flush=True)
            rows.append(row)
        missed = missed or any(row.held is False for row in rows)
        page.append(table(part, rows))
    if not names:
        PAGE.write_text("".join(page), encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
