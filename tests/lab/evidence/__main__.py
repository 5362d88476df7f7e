"""Train the cells that are missing, score those that there are or the quadratic, or find causes."""

import argparse

from tests.lab.evidence import cells, small

parser = argparse.ArgumentParser(prog="python -m tests.lab.evidence", description=__doc__)
parser.add_argument(
    "what", nargs="?", choices=("train", "score", "quadratic", "causes"), default="train"
)
what = parser.parse_args().what
if what == "train":
    cells.train()
    small.train()
elif what == "causes":
    from tests.lab.evidence import causes

    for line in causes.report():
        print(line, flush=True)
elif what == "quadratic":
    print(small.report(small.quadratic))
else:
    from tests.lab.evidence import score

    score.write()
