"""SimGrid, where it is installed: libsimgrid-dev with a C++ compiler, and python3-simgrid."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from paceline.simulator.scenario.scenario import Scenario
from tests.lab.bench.batched import LOCAL, SEEDS, THREADS, one_seed, steps_of, together
from tests.lab.bench.engine import SERVICE, TAU, cluster
from tests.lab.bench.measure import Comparison, Missing, Rate, rate

TITLE = "Peers: SimGrid's actors, the same clusters"
HEAD = "millions per second", "SimGrid"
HERE = Path(__file__).parent
QUIET = "--log=root.thres:critical"
PYTHONS = sys.executable, "/usr/bin/python3"


def rows() -> Iterator[Comparison | Missing]:
    """Yield the rows to measure."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = _compile(Path(folder) / "peer")
        if compiled is None:
            yield Missing("C++: libsimgrid-dev or a compiler is not installed; skipped")
        else:
            yield from _cpp(compiled)
    python = next(filter(_has_simgrid, PYTHONS), None)
    if python is None:
        yield Missing("Python: python3-simgrid is not installed; skipped")
    else:
        yield from _local_sgd("Python", [python, str(HERE / "peer.py")], 500)


def _cpp(peer: str) -> Iterator[Comparison]:
    yield from _local_sgd("C++", [peer], 5000)
    command = [peer, "server", "25", "50000", "0", str(SERVICE), QUIET]
    scenario, more = (cluster(25, steps, {"name": "asgd"}) for steps in (2000, 4000))
    theirs = _rate(command, 50_000)
    yield from _both("parameter server, 25 workers: updates", "C++", theirs, scenario, more)


def _local_sgd(language: str, peer: list[str], steps: int) -> Iterator[Comparison]:
    command = [*peer, "local-sgd", "16", str(steps), str(TAU), *([QUIET] * (language == "C++"))]
    scenario, more = (cluster(16, own, LOCAL) for own in (4000, 50_000))
    theirs = _rate(command, 16 * steps)
    yield from _both("local SGD, 16 workers: worker-steps", language, theirs, scenario, more)


def _both(
    what: str, language: str, theirs: Rate, scenario: Scenario, more: Scenario
) -> Iterator[Comparison]:
    """Our two engines against theirs; the batched one on `more` steps."""
    for engine, ours in (
        ("virtual", rate(one_seed(scenario), steps_of(scenario))),
        (
            f"batched, {len(SEEDS)} seeds",
            rate(together(more, THREADS), steps_of(more) * len(SEEDS)),
        ),
    ):
        yield Comparison(f"{what}, {engine}, against {language}", ours, theirs)


def _rate(command: list[str], units: int) -> Rate:
    """Return the rate by the seconds that the peer says its simulation took."""

    def measured() -> float:
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return units / float(found.stdout.split()[0]) / 1e6

    return measured


def _compile(target: Path) -> str | None:
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    command = [
        compiler,
        "-O2",
        "-std=c++17",
        str(HERE / "peer.cpp"),
        "-lsimgrid",
        "-o",
        str(target),
    ]
    done = subprocess.run(command, check=False, capture_output=True)
    return str(target) if done.returncode == 0 else None


def _has_simgrid(python: str) -> bool:
    command = [python, "-c", "import simgrid"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
