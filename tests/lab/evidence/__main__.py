"""Train the cells that are missing, score those that there are, or predict logs of real jobs."""

import argparse

from tests.lab.evidence import gpt, real_logs

WHAT = {
    "train": gpt.train,
    "score": gpt.write,
    "logs": lambda: print(real_logs.words()),
}
parser = argparse.ArgumentParser(prog="python -m tests.lab.evidence", description=__doc__)
parser.add_argument("what", nargs="?", choices=WHAT, default="train")
WHAT[parser.parse_args().what]()
