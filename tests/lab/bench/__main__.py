"""Measure speed against peers and limits, and write docs/evidence/benchmarks.md: `make bench`.

Exits 1 if an aim is missed. `python -m tests.lab.bench NAME...` measures only the parts of these
names (such as `flows`) and the rows whose titles contain them, and writes nothing.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab import tables
from tests.lab.bench.measure import MISSED, PAIRS
from tests.lab.bench.parts import PARTS

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "benchmarks.md"
HEAD = ("what", "ours", "theirs", "ratio", "quartiles", "aim", "verdict")
INTRODUCTION = f"""# Benchmarks

Written by `make bench` on {{machine}}; nothing else may run meanwhile.

Rates are millions of worker-steps, updates, gradients or messages per second of wall-clock time,
and higher is better. Each row that compares two of them measures {PAIRS} pairs: ours, theirs,
ours, theirs, and so on, in one call, because machines drift. It shows the median of each rate, the
median of the ratio pair by pair, and the quartiles of that ratio, between which half of the pairs
lie. A row with a single figure also shows its median and quartiles if it is measured several
times.

Aims are set against other programs and physical limits: textbook SimPy models of the same cluster,
and NumPy's random-number generator that only draws the numbers of a run. A few limit how cost
grows with size, how much memory a run takes, or how long a user waits. An aim is missed only if
the whole range between the quartiles lies on its wrong side; if only the median does, the verdict
is "unclear". Rows without an aim are for information.
"""


def chosen(part: str, row: str, names: Sequence[str]) -> bool:
    """Return whether to measure a row; without names, all are measured."""
    return not names or any(name == part or name.lower() in row.lower() for name in names)


def main(names: Sequence[str]) -> int:
    """Measure, and return the exit status."""
    verdicts, page = [], [INTRODUCTION.format(machine=tables.machine("numpy", "simpy", "numba"))]
    for part in PARTS:
        name, rows = part.__name__, []
        title = (part.__doc__ or "").removeprefix("Measure ").rstrip(".")
        for row in part():
            if chosen(name, row.what, names):
                rows.append(row.measure())
                print(name, *rows[-1], sep="  ", flush=True)
        verdicts += [cells[-1] for cells in rows]
        if not names:
            link = tables.write(PAGE.with_name(f"benchmarks-{name}.csv"), HEAD, rows)
            page.append(f"\n## {title[0].upper()}{title[1:]}\n\n{link}\n")
    if not verdicts:
        print(f"no part or row is called {' or '.join(names)}", file=sys.stderr)
        return 2
    if not names:
        PAGE.write_text("".join(page), "utf-8")
    return int(MISSED in verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
