"""The tuner on the quickstart: how many configurations it tries, and how long a user waits."""

import tempfile
from collections.abc import Iterator

import paceline
from paceline.simulator.studies import execution
from tests.lab.bench.measure import Aim, Quantity

TITLE = "`paceline tune scenarios/quickstart.toml`"
HEAD = "ours", ""
JOBS = min(2, execution.cores())


def tuned() -> dict[str, float]:
    """Tune once; return the configurations tried and the seconds taken."""
    with tempfile.TemporaryDirectory() as folder:
        result = paceline.tune("scenarios/quickstart.toml", jobs=JOBS, out=folder)
    return {"configurations": len(result.ranked), "seconds": result.wall_seconds}


def rows() -> Iterator[Quantity]:
    """Yield the rows to measure."""
    yield Quantity(
        "configurations", lambda: tuned()["configurations"], Aim(200), times=1, digits=0
    )  # fmt: skip
    yield Quantity(f"seconds on {JOBS} cores", lambda: tuned()["seconds"], Aim(most=60))
