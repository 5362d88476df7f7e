"""Train the cells that are missing, score those that there are, or print the quadratic's table."""

import argparse

from tests.lab.evidence import gpt, small

parser = argparse.ArgumentParser(prog="python -m tests.lab.evidence", description=__doc__)
parser.add_argument("what", nargs="?", choices=("train", "score", "quadratic"), default="train")
what = parser.parse_args().what
if what == "train":
    gpt.train()
    small.train()
elif what == "score":
    gpt.write()
else:
    head, rows = small.report(small.quadratic)
    print(*(" | ".join(row) for row in (head, *rows)), sep="\n")
