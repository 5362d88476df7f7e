"""Our flows against SimGrid's plain max-min model: `python -m tests.lab.bench.simgrid`.

Needs SimGrid's headers (libsimgrid-dev) and g++. Prints the rows of docs/evidence/simgrid.md; exits
1 if a completion time differs by more than 0.1 %.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path

import numpy as np

from paceline.simulator.network import collectives
from paceline.simulator.network.fabric.fabric import Fabric
from paceline.simulator.network.fabric.messages import MessagePlan
from paceline.simulator.scenario.network import CollectiveName

SOURCE = Path(__file__).with_suffix(".cpp")
SETS = 250
MOST = 1e-3
OPTIONS = (
    "network/model:CM02", "network/latency-factor:1", "network/bandwidth-factor:1",
    "network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:0",
    "maxmin/precision:1e-9", "surf/precision:1e-12", "contexts/stack-size:64",
)  # fmt: skip
UNLIMITED = 1e20  # bytes/s, for SimGrid


@dataclass
class Case:
    """Lines' bandwidths, paths (latency, limit, lines), and messages: at once, or as a plan."""

    lines: list[float]
    paths: list[tuple[float, float, list[int]]]
    weighted: bool = False
    sends: list[tuple[float, int, int]] | None = None  # start, path, bytes
    plan: MessagePlan | None = None
    sizes: list[int] | None = None

    def text(self) -> str:
        """The case as simgrid.cpp reads it."""
        rows: list[tuple[object, ...]] = [(len(self.lines), *self.lines), (len(self.paths),)]
        for latency, limit, lines in self.paths:
            rows.append((latency, min(limit, UNLIMITED), len(lines), *lines))
        if self.plan is None:
            assert self.sends is not None
            rows += [(len(self.sends),), *((*send, 0, 0) for send in self.sends)]
        else:
            plan = self.plan
            rows.append((len(plan.paths),))
            for i, path in enumerate(plan.paths):
                followers = plan.followers[plan.offsets[i] : plan.offsets[i + 1]]
                size = round(plan.shares[i] * self.sizes[plan.origins[i]])
                rows.append((0, path, size, plan.waits[i], len(followers), *followers))
        return "\n".join(" ".join(map(str, row)) for row in rows)

    def ours(self) -> tuple[list[float], float]:
        """When each message arrives (of a plan: when the last does), and wall seconds."""
        fabric = Fabric(self.lines)
        paths = [
            fabric.path(lines, latency, limit=limit, weight=1 / latency if self.weighted else 1.0)
            for latency, limit, lines in self.paths
        ]
        begin = time.perf_counter()
        if self.plan is None:
            tickets = [fabric.send(at, paths[path], size) for at, path, size in self.sends]
        else:
            tickets = [fabric.start(0.0, self.plan, self.sizes)]
        ends = {}
        while step := fabric.advance(inf):
            ends |= dict.fromkeys(step[1], step[0])
        return [ends[ticket] for ticket in tickets], time.perf_counter() - begin

    def difference(self, peer: str) -> tuple[list[float], float, float]:
        """Relative differences, SimGrid's seconds and ours."""
        command = [peer, *(f"--cfg={each}" for each in OPTIONS), "--log=root.thres:critical"]
        done = subprocess.run(
            command, input=self.text(), check=True, capture_output=True, text=True, timeout=300
        )
        *theirs, wall = map(float, done.stdout.split())
        ours, seconds = self.ours()
        if self.plan is not None:
            return [abs(ours[0] / max(theirs) - 1)], wall, seconds
        starts = [at for at, _, _ in self.sends]
        both = zip(ours, theirs, starts, strict=True)
        return [abs(mine - other) / (other - at) for mine, other, at in both], wall, seconds


def random_sets(weighted: bool) -> Iterator[Case]:
    """Flows over random lines; of different latencies, or all of one."""
    for seed in range(SETS):
        rng = np.random.default_rng([seed, weighted])
        lines = (10 ** rng.uniform(4, 7, rng.integers(2, 21))).tolist()
        paths, sends = [], []
        for flow in range(rng.integers(1, 51)):
            way = rng.permutation(len(lines))[: rng.integers(1, 7)].tolist()
            latency = float(10 ** rng.uniform(-3, -0.5)) if weighted else 0.01
            limit = float(10 ** rng.uniform(3.5, 6.5)) if rng.random() < 1 / 3 else inf
            start = 0.0 if seed % 5 == 0 else float(rng.uniform(0, 5))
            paths.append((latency, limit, way))
            sends.append((start, flow, int(10 ** rng.uniform(3, 7))))
        yield Case(lines, paths, weighted, sends)


def all_reduces(name: CollectiveName, counts: tuple[int, ...]) -> Iterator[Case]:
    """All-reduce of 1 to 10 MB among workers with network cards of different speeds."""
    for count, seed in ((count, seed) for count in counts for seed in range(5)):
        rng = np.random.default_rng([seed, count])
        cards = rng.uniform(1e6, 1e7, 2 * count).tolist()
        made = collectives.messages(name, range(count))
        paths = [(1e-3, inf, [a, count + b]) for a, b in made.routes]
        size = int(rng.integers(1_000_000 // count, 10_000_000 // count)) * count
        yield Case(cards, paths, plan=made.plan(range(len(paths))), sizes=[size] * count)


def incasts() -> Iterator[Case]:
    """Workers send gradients to a server, at random times, more than its card can take at once."""
    for count, seed in ((count, seed) for count in (4, 16, 64) for seed in range(5)):
        rng = np.random.default_rng([seed, count])
        cards = [*rng.uniform(1e6, 1e7, count).tolist(), 2e7]
        paths = [(1e-3, inf, [worker, count]) for worker in range(count)]
        starts = rng.uniform(0, 2, (4, count)).cumsum(axis=0)
        sends = [(at, w, 1_000_000) for row in starts.tolist() for w, at in enumerate(row)]
        yield Case(cards, paths, sends=sends)


KINDS: dict[str, Callable[[], Iterator[Case]]] = {
    "random flow sets, max-min": lambda: random_sets(weighted=False),
    "random flow sets, weights 1/latency": lambda: random_sets(weighted=True),
    "ring all-reduce, 4, 8, 16 workers": lambda: all_reduces("ring", (4, 8, 16)),
    "ring all-reduce, 64 workers": lambda: all_reduces("ring", (64,)),
    "tree all-reduce, 4, 7, 16, 64 workers": lambda: all_reduces("tree", (4, 7, 16, 64)),
    "halving-doubling all-reduce, 4, 16, 64 workers": lambda: all_reduces(
        "halving-doubling", (4, 16, 64)
    ),
    "parameter-server incast, 4, 16, 64 workers": incasts,
}


def compare(peer: str) -> Iterator[tuple[str, float]]:
    """Rows of the table, and the largest difference of each."""
    for what, cases in KINDS.items():
        found = [(case, *case.difference(peer)) for case in cases()]
        differences = list(chain.from_iterable(each for _, each, _, _ in found))
        count = sum(len(case.plan.paths if case.plan else case.sends) for case, *_ in found)
        median, most = np.median(differences), max(differences)
        theirs, ours = (sum(row[i] for row in found) for i in (2, 3))
        row = f"| {what} | {len(found)} | {count:,} | {median:.1e} | {most:.1e}"
        yield f"{row} | {theirs:.3f} | {ours:.3f} |", most


def main() -> int:
    compiler = shutil.which("g++")
    if compiler is None or not Path("/usr/include/simgrid").exists():
        print("SimGrid (libsimgrid-dev) or g++ is not installed; nothing compared", file=sys.stderr)
        return 1
    most = 0.0
    with tempfile.TemporaryDirectory() as folder:
        peer = str(Path(folder) / "flows")
        command = [compiler, "-O2", "-std=c++17", str(SOURCE), "-lsimgrid", "-o", peer]
        subprocess.run(command, check=True)
        for row, largest in compare(peer):
            print(row, flush=True)
            most = max(most, largest)
    print(f"Largest difference of all: {most:.1e}; the aim is at most {MOST:g}.")
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main())
