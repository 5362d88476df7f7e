"""Train the cells that are missing, or score those that there are."""

import argparse

from tests.lab.evidence import gpt

WHAT = {"train": gpt.train, "score": gpt.write}
parser = argparse.ArgumentParser(prog="python -m tests.lab.evidence", description=__doc__)
parser.add_argument("what", nargs="?", choices=WHAT, default="train")
WHAT[parser.parse_args().what]()
