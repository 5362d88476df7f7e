"""Ring all-reduces as flows: how the cost of a message grows with the workers."""

import time
from collections.abc import Iterator
from math import inf

from paceline.simulator.network import collectives
from paceline.simulator.network.fabric.fabric import Fabric
from tests.lab.bench.measure import Aim, Comparison, Quantity, Rate, rate

TITLE = "Ring all-reduce in flows, every message simulated"
HEAD = "millions of messages per second", "16 workers"
FEW, MANY = 16, 256
MESSAGES = 1_000_000
ROUNDS, LIMIT = 100, 60  # a minute for a hundred rounds of the largest ring


def ring(workers: int, rounds: int, differ: bool) -> None:
    """Simulate all-reduces one after another, on network cards that are equal or all different."""
    made = collectives.messages("ring", range(workers))
    fabric = Fabric([1e6 * (1 + differ * (card % 97) / 97) for card in range(2 * workers)])
    plan = made.plan([fabric.path([a, workers + b], 1e-3, serial=True) for a, b in made.routes])
    end = 0.0
    for _ in range(rounds):
        fabric.start(end, plan, [1e6] * workers)
        found = fabric.advance(inf)
        assert found is not None
        end = found[0]


def rate_of(workers: int, differ: bool) -> Rate:
    """Return the rate: messages, about as many whatever the number of workers."""
    each = 2 * workers * (workers - 1)
    rounds = round(MESSAGES / each)
    return rate(lambda: ring(workers, rounds, differ), rounds * each)


def rows() -> Iterator[Comparison | Quantity]:
    """Yield the rows to measure."""
    for differ in (False, True):
        cards = "network cards that all differ" if differ else "equal network cards"
        few = rate_of(FEW, differ)
        for workers in (64, MANY):
            what = f"{workers} workers, {cards}, against {FEW} workers"
            yield Comparison(what, rate_of(workers, differ), few)
        yield Quantity(
            f"{MANY} workers, {cards}: seconds for {ROUNDS} rounds",
            lambda differ=differ: seconds(differ), Aim(most=LIMIT),
        )  # fmt: skip


def seconds(differ: bool) -> float:
    """Return the seconds that `ROUNDS` rounds of `MANY` workers take."""
    begin = time.perf_counter()
    ring(MANY, ROUNDS, differ)
    return time.perf_counter() - begin
