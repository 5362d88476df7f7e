"""The design of the experiment: cells of conditions, ordered so that any prefix is balanced.

Levels are drawn along a scrambled Halton sequence (Owen 2017), whose every prefix fills the space
evenly. A draw chooses among the levels that are possible with those chosen before it: the relay
carries only so many packets, a repetition takes only so long, and a token
bucket holds less than half of it: else there is no link to be seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import qmc

CELLS, SEED = 150, 22
MBIT = 1e6 / 8  # bytes/s
RATES = (1.0, 5.0, 20.0, 50.0, 200.0, 1000.0)  # Mbit/s
KINDS = ("ring", "tree", "star", "one-way", "exchange", "gloo")
CONTROLS = ("cubic", "reno", "bbr")
LONGEST = 4.0  # seconds of a repetition over ideal links
SHORTEST = 5e-3
RELAYED = 12e3  # packets a second, at which the relay uses about 30 % of a core
FORWARDED = 2500.0  # Mbit/s between veth devices that two cores carry
ETHERNET = 14  # bytes of a header of a veth device's frames; a TUN device has none


@dataclass(frozen=True)
class Cell:
    """One condition.

    `kind`: of collective; `rate`: Mbit/s of each rank's outgoing link, a token bucket of `burst`
    bytes before which `queue` bytes wait; `latency`: seconds one way, 0: a bridge without a relay;
    `congestion`, `after_idle`: TCP's settings; `idle`: seconds between repetitions; `payload`:
    bytes of a rank.
    """

    number: int
    kind: str
    ranks: int
    rate: float
    latency: float
    payload: int
    mtu: int
    burst: int
    queue: int
    congestion: str
    after_idle: int
    idle: float

    @property
    def table(self) -> dict[str, Any]:
        """Return the condition as a dict."""
        return asdict(self)

    @property
    def bandwidth(self) -> float:
        """Return the link's bytes per second."""
        return self.rate * MBIT

    @property
    def frame(self) -> int:
        """Return the bytes that the token bucket counts beside each packet."""
        return 0 if self.latency else ETHERNET

    @property
    def steps(self) -> list[tuple[float, int]]:
        """Return the messages in order: (bytes of each, messages that leave one rank at once)."""
        return steps(self.kind, self.ranks, self.payload)

    @property
    def volume(self) -> float:
        """Return the payload that leaves the busiest rank."""
        return sum(size * at_once for size, at_once in self.steps)

    @property
    def slack(self) -> float:
        """Return the seconds until a bucket that a packet has left half empty is full again."""
        return (self.burst - self.mtu - self.frame) / self.bandwidth

    @property
    def ideal(self) -> float:
        """Return the seconds over links without TCP: latency and bytes / bandwidth of each step."""
        return sum(self.latency + size * at_once / self.bandwidth for size, at_once in self.steps)


def steps(kind: str, m: int, payload: float) -> list[tuple[float, int]]:
    """Return the messages of a collective in order, as `Cell.steps`."""
    levels = (m - 1).bit_length()
    return {
        "ring": [(payload / m, 1)] * (2 * (m - 1)),
        "gloo": [(payload / m, 1)] * (2 * (m - 1)),
        "tree": [(payload, 1)] * (2 * levels),
        "star": [(payload, 1), (payload, m - 1)],
        "one-way": [(payload, 1)],
        "exchange": [(payload, 1)],
    }[kind]


def design(count: int = CELLS, seed: int = SEED) -> list[Cell]:
    """Return the first `count` cells."""
    draws = qmc.Halton(11, seed=seed).random(count)
    return [_cell(number, draw.tolist()) for number, draw in enumerate(draws)]


def _cell(number: int, draw: list[float]) -> Cell:
    take = iter(draw)

    def one(levels: Sequence[Any], possible: Callable[[Any], bool] = lambda _: True) -> Any:
        left = [level for level in levels if possible(level)] or [levels[0]]
        return left[int(next(take) * len(left))]

    rate = one(RATES)
    bandwidth = rate * MBIT
    mtu = one((1500, 9000))
    ranks = one((2, 4, 8), lambda m: m * rate <= FORWARDED)
    kind = one(KINDS)
    relayed = 1.5 * ranks * bandwidth / mtu < RELAYED  # with acknowledgements
    latency = one((0.0, 2e-3, 10e-3, 35e-3), lambda level: relayed or not level)

    def volume(size: int) -> float:
        return sum(each * n for each, n in steps(kind, ranks, size))

    payload = one(
        (10_000, 100_000, 1_000_000, 10_000_000),
        lambda size: SHORTEST < volume(size) / bandwidth < LONGEST,
    )
    burst = one((10_000, 32_768, 262_144), lambda level: 2 * level < volume(payload))
    deep = max(0.4 * bandwidth, 200_000)
    queue = one((max(0.05 * bandwidth, 60_000), deep))
    return Cell(
        number, kind, ranks, rate, latency, payload, mtu, burst, int(queue),
        one(CONTROLS), one((1, 0)), one((0.0, 0.5)),
    )  # fmt: skip
