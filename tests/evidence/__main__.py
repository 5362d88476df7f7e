"""Train the cells that are missing, or score those that there are."""

import argparse

from tests.evidence import cells, small

parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=__doc__)
parser.add_argument("what", nargs="?", choices=("train", "score"), default="train")
if parser.parse_args().what == "train":
    cells.train()
    small.train()
else:
    from tests.evidence import score

    score.write()
