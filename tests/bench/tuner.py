"""The tuner on the quickstart."""

import tempfile
from collections.abc import Iterator

import paceline
from paceline.simulator.studies import executors
from tests.bench.measure import Row

TITLE = "`paceline tune scenarios/quickstart.toml`"
HEAD = "", ""


def rows() -> Iterator[Row]:
    """What there is to report."""
    jobs = min(2, executors.cores())
    with tempfile.TemporaryDirectory() as folder:
        result = paceline.tune("scenarios/quickstart.toml", jobs=jobs, out=folder)
    tried, took = len(result.ranked), result.wall_seconds
    yield Row("configurations", str(tried), aim=">= 200", held=tried >= 200)
    yield Row(f"seconds on {jobs} cores", f"{took:.0f}", aim="< 60", held=took < 60)
