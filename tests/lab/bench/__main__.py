"""Measure speed against peers and limits, and write docs/evidence/benchmarks.md: `make bench`.

Exits 1 if an aim is missed. `python -m tests.lab.bench NAME...` measures only the parts of these
names (such as `served`) and the rows whose titles contain them, and writes nothing.
"""

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from paceline.simulator.studies import execution
from tests.lab import tables
from tests.lab.bench import batched, engine, estimates, flows, served, simgrid, tuner
from tests.lab.bench.measure import DISTURBED, MISSED, PAIRS, Row

PARTS = {
    "engine": engine, "batched": batched, "served": served, "flows": flows, "simgrid": simgrid,
    "tuner": tuner, "estimates": estimates,
}  # fmt: skip
PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "benchmarks.md"
INTRODUCTION = f"""# Benchmarks

Written by `make bench` on {{machine}}.

Rates are millions of worker-steps, updates, gradients or messages per second of wall-clock time,
and higher is better. Each row that compares two of them measures {PAIRS} pairs: ours, theirs, ours,
theirs, and so on, in one call, because machines drift. It shows the median of each rate, the median
of the ratio pair by pair, and the quartiles of that ratio, between which half of the pairs lie. A
row with a single figure shows its median and quartiles, too, where it is measured several times.

While we measure, we also watch what other processes use. A measurement during which they take more
than {100 * DISTURBED:g} % of the CPU is disturbed and is repeated, at most as often as there are
measurements in the row; the last column says how many of those shown were still disturbed.

Aims are set against other programs and physical limits: textbook SimPy models of the same cluster,
SimGrid, and NumPy's random-number generator doing nothing but draw the numbers that a run needs. A
few limit how cost grows with size, how much memory a run takes, or how long a user waits. An aim is
missed only where the whole range between the quartiles lies on its wrong side; where only the
median does, the verdict is "unclear". Rows without an aim are for information.
"""


def machine() -> str:
    """Describe the hardware, and the versions that speed depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line for line in lines if line.startswith("model name")).split(":")[1].strip()
    except (OSError, StopIteration):
        model = platform.machine()
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "simpy", "numba"))
    return (
        f"{execution.cores()} cores ({model}) with python {platform.python_version()}, {versions}"
    )


def section(name: str, part: ModuleType, rows: Sequence[Row]) -> str:
    """Write the table of one part; return the section that shows it."""
    head = ("what", *part.HEAD, "ratio", "quartiles", "aim", "verdict", "remark")
    cells = [
        (row.what, row.ours, row.theirs, row.ratio, row.spread, row.aim, row.verdict, row.remark)
        for row in rows
    ]
    link = tables.write(PAGE.with_name(f"benchmarks-{name}.csv"), head, cells)
    return f"\n## {part.TITLE}\n\n{link}\n"


def chosen(part: str, row: str, names: Sequence[str]) -> bool:
    """Whether a row is to be measured: all are where there are no names."""
    return not names or any(name == part or name.lower() in row.lower() for name in names)


def main(names: Sequence[str]) -> int:
    """Measure and return the exit status."""
    every: list[Row] = []
    measured = []
    for name, part in PARTS.items():
        rows = []
        for each in part.rows():
            if chosen(name, each.what, names):
                if not rows:
                    print(f"\n{part.TITLE}")
                rows.append(each.measure())
                print(rows[-1], flush=True)
        every += rows
        measured.append((name, part, rows))
    if not every:
        print(f"no part or row is called {' or '.join(names)}", file=sys.stderr)
        return 2
    if not names:
        sections = [section(*part) for part in measured]
        PAGE.write_text("".join([INTRODUCTION.format(machine=machine()), *sections]), "utf-8")
    return int(any(row.verdict == MISSED for row in every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
