"""Train missing cells, or score existing ones."""

import argparse

from tests.lab.evidence import gpt

WHAT = {"train": gpt.train, "score": gpt.write}
parser = argparse.ArgumentParser(prog="python -m tests.lab.evidence", description=__doc__)
parser.add_argument("what", nargs="?", choices=WHAT, default="train")
WHAT[parser.parse_args().what]()
