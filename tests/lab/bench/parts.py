"""The parts of the benchmark; every function yields the rows of a part."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.simulator.distributions import random_streams
from paceline.simulator.distributions.random_streams import Purpose
from paceline.simulator.network import collectives
from paceline.simulator.network.fabric.fabric import Fabric
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import cores
from tests.helpers.worlds import EXPONENTIAL, on_batched, on_virtual, scenario
from tests.lab.bench import textbook
from tests.lab.bench.measure import Aim, Rate, Row, rate

Rows = Iterator[Row]
THREADS = min(2, cores())
SEEDS = range(32)
TAU = 10
SERVICE = 0.01  # seconds of the server for an update
UPDATES = 100_000
GIVEN = {"collective": "given", "duration": "1 s", "latency": "0 s"}
LOCAL = {"name": "local-sgd", "tau": TAU}
WORKERS = 1024
BLOCK, CALLS = 5000, 20  # numbers that a generator draws per call, and number of calls
RINGS = 1_000_000  # messages of a measurement


def cluster(workers: int, steps: int, algorithm: dict[str, Any], **tables: Any) -> Scenario:
    """Return a scenario with exponential compute times of mean 1 s; an average takes 1 s."""
    tables = {"server": {"apply": f"{SERVICE} s"}, "network": GIVEN} | tables
    return scenario(algorithm, workers=workers, steps=steps, compute=EXPONENTIAL, **tables)


def steps_of(made: Scenario) -> int:
    """Return the worker-steps of one seed."""
    return made.cluster.workers * (made.run.steps or 0)


def one_seed(made: Scenario, **options: Any) -> Rate:
    """Return the rate of seed 0 on the reference engine: worker-steps."""
    return rate(lambda: on_virtual(made.algorithm[0], made, 0, **options), steps_of(made))


def together(made: Scenario, seeds: range = SEEDS) -> Rate:
    """Return the rate of all seeds in one call of the batched engine: worker-steps."""
    return rate(
        partial(on_batched, made.algorithm[0], made, seeds),
        steps_of(made) * len(seeds),
    )


def textbook_local_sgd() -> Rate:
    return rate(lambda: textbook.local_sgd(16, TAU, 4000 // TAU, 1.0), 16 * 4000)


def textbook_server(transit: float) -> Rate:
    """Return the textbook's rate on a parameter server with 25 workers: updates."""
    few = UPDATES // 4
    return rate(lambda: textbook.parameter_server(25, few, transit, SERVICE), few)


def engine() -> Rows:
    """Measure the reference engine, `virtual`, with one seed, against textbook SimPy."""
    few, many = (cluster(workers, 4000, LOCAL) for workers in (16, 256))
    what = "local SGD, 16 workers: worker-steps"
    yield Row(what, one_seed(few), textbook_local_sgd(), Aim(1.5))
    yield Row(f"{what}, against 256 workers", one_seed(few), one_seed(many), Aim(most=1.3))
    stored = one_seed(few, spans=10**9)
    yield Row(f"{what}, against keeping every span", one_seed(few), stored, Aim(most=1.2))
    for name, latency, transit in (("free", "0 s", 0.0), ("50 ms", "50 ms", 0.05)):
        network = GIVEN | {"latency": latency}
        ours = one_seed(cluster(25, UPDATES // 25, {"name": "asgd"}, network=network))
        what = f"parameter server, 25 workers, transit {name}: updates"
        yield Row(what, ours, textbook_server(transit), Aim(2))


def generator(
    make: Callable[[int, Purpose, int], np.random.Generator],
    draw: Callable[[np.random.Generator], Any],
    units: float = 1.0,
) -> Rate:
    """Return the rate of generators that only draw blocks, with `units` per number."""
    generators = [make(0, Purpose.COMPUTE, rank) for rank in range(256)]

    def block(drawing: np.random.Generator) -> None:
        for _ in range(CALLS):
            draw(drawing)

    numbers = len(generators) * CALLS * BLOCK
    return rate(lambda: [block(drawing) for drawing in generators], units * numbers)


def large(steps: int, sampling: str = "keyed") -> Scenario:
    """Return local SGD on 1,024 workers."""
    return cluster(WORKERS, steps, LOCAL, run={"sampling": sampling})


def jumping(tau: int, momentum: float, sampling: str, steps: int) -> Rate:
    """Return the rate of local SGD on a quadratic, on one thread, with a schedule of rates."""
    lr = {"schedule": "warmup-cosine", "peak": 0.01, "steps": steps}
    made = cluster(
        4, steps, LOCAL | {"tau": tau, "momentum": momentum}, lr=lr,
        objective={"kind": "quadratic", "dimension": 48}, run={"sampling": sampling},
    )  # fmt: skip
    return together(made, range(8))


def most_memory() -> float:
    """Return the peak resident memory (MiB) of a process with one large run, on Linux."""
    command = [sys.executable, "-m", "tests.lab.bench.parts"]
    return int(subprocess.run(command, check=True, capture_output=True).stdout) / 1024


def batched() -> Rows:
    """Measure the batched engine with 32 seeds."""
    what = f"local SGD, {WORKERS:,} workers"
    yield Row(
        f"{what}: worker-steps, against the generator drawing one exponential number for each",
        together(large(100_000)),
        generator(random_streams.generator, lambda rng: rng.exponential(1.0, BLOCK)), Aim(0.6),
    )  # fmt: skip
    yield Row(
        f'{what}, sampling = "aggregate": worker-steps, against drawing a gamma for each period',
        together(large(100_000, "aggregate")),
        generator(random_streams.quick, lambda own: own.standard_gamma(TAU, BLOCK), TAU), Aim(0.5),
    )  # fmt: skip
    what = f"{what}, 100,000 steps: most memory, MiB"
    yield Row(what, most_memory, aim=Aim(most=512), times=1)
    fast, slow = together(cluster(16, 100_000, LOCAL)), one_seed(cluster(16, 4000, LOCAL))
    what = "local SGD, 16 workers: worker-steps, against"
    yield Row(f"{what} textbook SimPy, one seed", fast, textbook_local_sgd(), Aim(100))
    yield Row(f"{what} `virtual`, one seed", fast, slow)
    dimension = 100
    noisy = {"objective": {"kind": "quadratic", "dimension": dimension}}
    fast = together(cluster(16, 2000, LOCAL, **noisy))
    noise = generator(
        random_streams.generator, lambda own: own.standard_normal(BLOCK), 1 / dimension
    )
    what = f"the same on a quadratic of dimension {dimension}, against"
    yield Row(f"{what} the generator drawing its noise", fast, noise, Aim(0.4))
    yield Row(f"{what} `virtual`, one seed", fast, one_seed(cluster(16, 400, LOCAL, **noisy)))
    for tau, momentum in ((100, 0.0), (100, 0.9), (1000, 0.9)):
        yield Row(
            f"the same on a quadratic of dimension 48, 4 workers, 8 seeds, tau {tau}, momentum "
            f"{momentum:g}: a draw for each period, against steps",
            jumping(tau, momentum, "aggregate", 50_000), jumping(tau, momentum, "keyed", 2000),
            Aim(20),
        )  # fmt: skip


def ring(workers: int, rounds: int, differ: bool) -> float:
    """Simulate all-reduces one after another, on network cards that are equal or all different.

    Return the seconds.
    """
    begin, end = time.perf_counter(), 0.0
    made = collectives.messages("ring", range(workers))
    fabric = Fabric([1e6 * (1 + differ * (card % 97) / 97) for card in range(2 * workers)])
    plan = made.plan([fabric.path([a, workers + b], 1e-3, serial=True) for a, b in made.routes])
    for _ in range(rounds):
        fabric.start(end, plan, [1e6] * workers)
        arrived = fabric.advance(inf)
        assert arrived is not None
        end = arrived[0]
    return time.perf_counter() - begin


def rate_of_rings(workers: int, differ: bool) -> Rate:
    """Return the rate of messages, about equally many for any number of workers."""
    messages = 2 * workers * (workers - 1)
    rounds = round(RINGS / messages)
    return rate(lambda: ring(workers, rounds, differ), rounds * messages)


def flows() -> Rows:
    """Measure ring all-reduces in flows, with every message simulated."""
    for differ in (False, True):
        cards = "network cards that all differ" if differ else "equal network cards"
        for workers in (64, 256):
            what = f"{workers} workers, {cards}, against 16 workers"
            yield Row(what, rate_of_rings(workers, differ), rate_of_rings(16, differ))
        what = f"256 workers, {cards}: seconds for 100 rounds"
        yield Row(what, partial(ring, 256, 100, differ), aim=Aim(most=60), times=3)


def tuner() -> Rows:
    """Measure `paceline tune scenarios/quickstart.toml`."""

    def tuned() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return paceline.tune("scenarios/quickstart.toml", jobs=THREADS, out=folder)

    yield Row("configurations", lambda: len(tuned().ranked), aim=Aim(200), times=1)
    what = f"seconds on {THREADS} cores"
    yield Row(what, lambda: float(tuned().wall_seconds), aim=Aim(most=60), times=3)


PARTS = (engine, batched, flows, tuner)

if __name__ == "__main__":
    together(large(100_000))()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    memory = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert memory
    print(memory[1])  # ru_maxrss would include the parent's
