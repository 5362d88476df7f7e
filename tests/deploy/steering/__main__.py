"""Run a hundred changing worlds under each policy and write docs/evidence/steering.md.

    python -m tests.deploy.steering [--jobs N] [--keep FILE]

Exits 1 where the median regret of `model` exceeds 5 %, or any exceeds 20 %.
"""

import argparse
import json
import sys
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from tests.deploy.steering.regret import PAGE, page, regret, row
from tests.deploy.steering.worlds import schedules

BEGIN, END = "<!-- python -m tests.deploy.steering writes from here -->", "<!-- to here -->"


def main():
    """Run what is not kept yet, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.steering")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="file of finished worlds, to resume from")
    options = parser.parse_args()
    kept = options.keep
    lines = kept.read_text("utf-8").splitlines() if kept and kept.exists() else []
    rows = {found["number"]: found for found in map(json.loads, lines)}
    with get_context("spawn").Pool(options.jobs) as pool:
        for found in pool.imap(row, [n for n in range(len(schedules())) if n not in rows]):
            rows[found["number"]] = found
            lost = f"{100 * regret(found, 'model'):+.1f} %"
            print(found["number"], found["kind"], lost, flush=True)
            if kept:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    ordered = [rows[number] for number in sorted(rows)]
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(ordered)}\n\n{END}{rest.split(END)[1]}", "utf-8")
    values = [regret(found, "model") for found in ordered]
    print(f"median {100 * median(values):.1f} %, worst {100 * max(values):.1f} %")
    return int(median(values) > 0.05 or max(values) > 0.2)


if __name__ == "__main__":
    sys.exit(main())
