"""Ring all-reduces as flows: how long, and how the cost of a message grows with the workers."""

from collections.abc import Iterator
from math import inf

from paceline.simulator.network import collectives
from paceline.simulator.network.fabric.fabric import Fabric
from tests.bench.measure import Row, seconds

TITLE = "Ring all-reduce in flows, every message simulated"
HEAD = "seconds", "µs a message"
WORKERS, ROUNDS, LIMIT = 256, 100, 60


def ring(workers: int, rounds: int, differ: bool) -> None:
    """Rounds of a ring, one after another, on network cards that are equal or all different."""
    made = collectives.messages("ring", range(workers))
    fabric = Fabric([1e6 * (1 + differ * (card % 97) / 97) for card in range(2 * workers)])
    plan = made.plan([fabric.path([a, workers + b], 1e-3, serial=True) for a, b in made.routes])
    end = 0.0
    for _ in range(rounds):
        fabric.start(end, plan, [1e6] * workers)
        found = fabric.advance(inf)
        assert found is not None
        end = found[0]


def rows() -> Iterator[Row]:
    """What there is to report: as many messages each, so that only the workers differ."""
    ring(2, 1, differ=False)  # what must be compiled is compiled once
    total = ROUNDS * 2 * WORKERS * (WORKERS - 1)
    for differ in (False, True):
        cards = "network cards that all differ" if differ else "equal network cards"
        few = 0.0
        for workers in (16, 64, WORKERS):
            rounds = round(total / (2 * workers * (workers - 1)))
            took = seconds(lambda: ring(workers, rounds, differ))  # noqa: B023 - called at once
            few = few or took
            what = f"{workers} workers, {rounds:,} rounds, {cards}"
            cost = f"{took / total * 1e6:.2f}"
            yield Row(what, f"{took:.1f}", cost, f"{took / few:.2f}", *_aim(workers, took))


def _aim(workers: int, took: float) -> tuple[str, bool | None]:
    return (f"< {LIMIT} s", took < LIMIT) if workers == WORKERS else ("", None)
