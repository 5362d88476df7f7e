"""Measure what TCP gives over links of the kernel, fit what is not derived, and write the page.

`python -m tests.lab.transport measure [--cells N] [--seconds S]` goes on where the last call ended:
it measures the cells of the design that have no record, then those that others disturbed. `fit`
prints the model's residuals; `page` writes them, beside every cell, into the page. `logs`
measures logs of real jobs, and prints how well calibration from two of them predicts the others.
"""

import argparse
import sys
import time

from paceline.validate.host import namespaces
from tests.lab.transport import fit, measure, page, real_logs
from tests.lab.transport.cells import CELLS, design


def measured(cells: int, seconds: float) -> int:
    """Measure cells for so many seconds at most; return the exit status."""
    if why := namespaces.available():
        print(why, file=sys.stderr)
        return 2
    measure.versions()  # imports torch before the forks
    until = time.monotonic() + seconds
    records, failed = measure.read(), set[int]()
    chosen = design(CELLS)[:cells]
    while True:
        left = [cell for cell in chosen if cell.number not in failed]
        todo = [cell for cell in left if cell.number not in records]
        todo += [
            cell
            for cell in left
            if cell.number in records and measure.disturbed(records[cell.number])
        ]
        if not todo or time.monotonic() > until:
            break
        for cell in todo:
            if time.monotonic() > until:
                break
            try:
                record = measure.measure(cell)
            except RuntimeError as error:
                print(f"{cell}: {error}", file=sys.stderr, flush=True)
                failed.add(cell.number)
                continue
            known = records.get(cell.number)
            if known is None or record["others"] <= known["others"]:
                records[cell.number] = record
            measure.write(records)
            print(page.words(record), flush=True)
    bad = [number for number, each in records.items() if measure.disturbed(each)]
    print(f"{len(records)} of {len(chosen)} cells, {len(bad)} disturbed, {len(failed)} failed")
    return int(bool(failed))


def main() -> int:
    """Read the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.transport", description=__doc__)
    parser.add_argument("what", choices=("measure", "fit", "page", "logs"))
    parser.add_argument("--cells", type=int, default=CELLS, help="how many cells of the design")
    parser.add_argument("--seconds", type=float, default=5400.0, help="time limit of this call")
    options = parser.parse_args()
    if options.what == "measure":
        return measured(options.cells, options.seconds)
    if options.what == "logs":
        real_logs.measure()
        print(real_logs.words())
        return 0
    print(fit.words() if options.what == "fit" else page.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
