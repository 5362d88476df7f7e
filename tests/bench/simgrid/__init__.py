"""SimGrid, where it is installed: libsimgrid-dev with a C++ compiler, and python3-simgrid."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.simulator.engines.batched import run
from paceline.simulator.scenario.scenario import Scenario
from tests.bench.batched import LOCAL, SEEDS, THREADS, one_seed, together
from tests.bench.engine import SERVICE, TAU, cluster
from tests.bench.measure import Row, compared, seconds

TITLE = "Peers: SimGrid's actors, the same clusters"
HEAD = "millions per second", "SimGrid"
HERE = Path(__file__).parent
QUIET = "--log=root.thres:critical"
PYTHONS = sys.executable, "/usr/bin/python3"


def rows() -> Iterator[Row]:
    """What there is to report."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = _compile(Path(folder) / "peer")
        if compiled is None:
            yield Row("C++: libsimgrid-dev or a compiler is not installed; skipped", "-")
        else:
            yield from _cpp(compiled)
    python = next(filter(_has_simgrid, PYTHONS), None)
    if python is None:
        yield Row("Python: python3-simgrid is not installed; skipped", "-")
    else:
        yield from _local_sgd("Python", [python, str(HERE / "peer.py")], 500)


def _cpp(peer: str) -> Iterator[Row]:
    yield from _local_sgd("C++", [peer], 5000)
    updates = 50_000
    command = [peer, "server", "25", str(updates), "0", str(SERVICE), QUIET]
    scenario = cluster(25, updates // 25, {"name": "asgd"})
    large = cluster(25, 4000, {"name": "asgd"})
    yield from _both(
        "parameter server, 25 workers: updates", "C++",
        lambda: updates / _wall(command),
        scenario, updates, large, 25 * 4000 * len(SEEDS),
    )  # fmt: skip


def _local_sgd(language: str, peer: list[str], steps: int) -> Iterator[Row]:
    command = [*peer, "local-sgd", "16", str(steps), str(TAU), *([QUIET] * (language == "C++"))]
    yield from _both(
        "local SGD, 16 workers: worker-steps", language,
        lambda: 16 * steps / _wall(command),
        cluster(16, 4000, LOCAL), 16 * 4000, cluster(16, 50_000, LOCAL), 16 * 50_000 * len(SEEDS),
    )  # fmt: skip


def _both(
    what: str,
    language: str,
    theirs: Callable[[], float],
    small: Scenario,
    units: int,
    large: Scenario,
    many: int,
) -> Iterator[Row]:
    """Our two engines against theirs, in turn."""
    run.run(large.algorithm[0], small, [0])  # what must be compiled is compiled once
    for engine, work, size in (
        ("virtual", one_seed(small), units),
        (f"batched, {len(SEEDS)} seeds", together(large, THREADS), many),
    ):
        pairs = [(size / seconds(work) / 1e6, theirs() / 1e6) for _ in range(3)]
        ours, other = (sorted(column)[1] for column in zip(*pairs, strict=True))
        ratio = sorted(a / b for a, b in pairs)[1]
        yield compared(f"{what}, {engine}, against {language}", (ours, other, ratio))


def _wall(command: list[str]) -> float:
    """Seconds that the peer says its simulation took."""
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(found.stdout.split()[0])


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
