"""Run a hundred changing worlds under each policy and write docs/steering.md.

    python -m tests.deploy.steering [--jobs N]

Exits 1 where the median regret of `model` exceeds 5 %, or any exceeds 20 %.
"""

import argparse
import sys
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from tests.deploy.steering.regret import page, regret, row
from tests.deploy.steering.worlds import schedules

PAGE = Path(__file__).parents[3] / "docs" / "steering.md"
BEGIN, END = "<!-- python -m tests.deploy.steering writes from here -->", "<!-- to here -->"


def main():
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.steering")
    parser.add_argument("--jobs", type=int, default=2)
    jobs = parser.parse_args().jobs
    numbers = range(len(schedules()))
    with get_context("spawn").Pool(jobs) as pool:
        rows = []
        for found in pool.imap(row, numbers):
            rows.append(found)
            lost = f"{100 * regret(found, 'model'):+.1f} %"
            print(found["number"], found["kind"], lost, flush=True)
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(rows)}\n\n{END}{after}", "utf-8")
    values = [regret(found, "model") for found in rows]
    print(f"median {100 * median(values):.1f} %, worst {100 * max(values):.1f} %")
    return int(median(values) > 0.05 or max(values) > 0.2)


if __name__ == "__main__":
    sys.exit(main())
