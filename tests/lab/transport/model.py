"""The seconds of a cell by `simulator.network.tcp`, with the token bucket of the cell's links.

A cell is one condition of the experiment: a collective over links of the kernel. The outgoing link
of a rank is a fluid: a message leaves as fast as the bucket lets its packets, then takes the
latency. A bucket is full of `burst` bytes at first and refills at the link's rate.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from paceline.simulator.network import tcp

MBIT = 1e6 / 8  # bytes/s
ETHERNET = 14  # bytes of a header of a veth device's frames; a TUN device has none
SEGMENT = 2**20  # bytes of gloo's segments, at most; there are two or more of each rank's part
PREAMBLE = 48  # bytes before each of them, and of a question (struct Op of pair.h)
SUPER = 65536  # bytes of a super-packet, at most
BOTH = ("ring", "gloo", "exchange")
"""Kinds in which a rank sends payload and acknowledgements at the same time."""


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
    def bandwidth(self) -> float:
        """Return the link's bytes per second."""
        return self.rate * MBIT

    @property
    def frame(self) -> int:
        """Return the bytes that the token bucket counts beside each packet."""
        return 0 if self.latency else ETHERNET

    @property
    def slack(self) -> float:
        """Return the seconds until a bucket that a packet has left half empty is full again."""
        return (self.burst - self.mtu - self.frame) / self.bandwidth

    @property
    def ideal(self) -> float:
        """Return the seconds over links without TCP: latency and bytes / bandwidth of each step."""
        m, payload = self.ranks, self.payload
        steps, size = {
            "ring": (2 * (m - 1), payload / m),
            "gloo": (2 * (m - 1), payload / m),
            "tree": (2 * (m - 1).bit_length(), payload),
            "star": (2, payload * m / 2),
        }.get(self.kind, (1, payload))
        return steps * (self.latency + size / self.bandwidth)


class Fitted(NamedTuple):
    """What is fitted: seconds that the kernel wakes late for a bucket, and gloo's own a mean."""

    late: float
    gloo: float


SHIPPED = Fitted(late=16e-6, gloo=1e-3)
"""As `fit` prints them anew."""


@dataclass
class Link:
    """A rank's way out: the `tokens` of its bucket at a time (`since`, seconds).

    `rate`: bytes/s, less what a bucket loses that is full before the kernel wakes.
    """

    rate: float
    burst: float
    tokens: float
    since: float = 0.0

    def full(self, at: float) -> float:
        """Return the tokens at a time, once all that was sent before has left."""
        return min(self.burst, self.tokens + self.rate * max(0.0, at - self.since))

    def leaves(self, at: float, size: float) -> float:
        """Return when a message of `size` bytes has left that is sent `at` a time."""
        tokens = self.full(at)
        self.since = max(at, self.since) + max(0.0, size - tokens) / self.rate
        self.tokens = max(0.0, tokens - size)
        return self.since


class Links:
    """The links and connections of a cell. `hop`: seconds that a byte takes, one way.

    `fitted`: None where links carry payload alone.
    """

    def __init__(self, cell: Cell, hop: float, fitted: Fitted | None) -> None:
        self.cell, self.hop = cell, hop
        self.ideal = fitted is None
        self.own = 0.0 if fitted is None or cell.kind != "gloo" else fitted.gloo
        packet, rate = cell.mtu + cell.frame, cell.bandwidth
        if fitted is not None:
            rate = packet / (packet / rate + max(0.0, fitted.late - cell.slack))
        self.ways = [Link(rate, cell.burst, cell.burst) for _ in range(cell.ranks)]
        self.first = tcp.INITIAL * tcp.payload(cell.mtu)
        self.windows: dict[tuple[int, int], float] = defaultdict(lambda: self.first)
        self.last: dict[tuple[int, int], float] = defaultdict(lambda: -1.0)

    def send(self, at: float, source: int, to: int, size: float) -> float:
        """Return when a message has arrived that is sent `at` a time."""
        cell, pair, trip = self.cell, (source, to), 2 * self.hop
        resets = cell.after_idle and cell.congestion != "bbr"  # tcp_slow_start_after_idle_check
        if resets:
            waiting = min(size, cell.queue) / cell.bandwidth  # a round trip has that, too
            halvings = int(max(0.0, at - self.last[pair]) // (tcp.IDLE + trip + waiting))
            self.windows[pair] = tcp.resumed(0.0, self.windows[pair], halvings)
        self.windows[pair] = max(self.first, self.windows[pair])
        lost = 0.0
        if not self.ideal:
            way = self.ways[source]
            rate = math.inf if self.bytes(size) <= way.full(at) else cell.bandwidth
            lost = tcp.start([size], rate, trip, self.windows[pair])
        self.windows[pair] += size
        left = self.ways[source].leaves(at, self.bytes(size))
        self.last[pair] = left + lost
        return left + lost + self.hop

    def bytes(self, size: float) -> float:
        """Return the bytes that a message puts on its sender's link, acknowledgements of another's.

        A bucket that holds the largest super-packet (GSO) lets it through uncut to a veth device,
        whose other end takes it as one and acknowledges it once.
        """
        cell, header = self.cell, 0 if self.ideal else tcp.HEADERS + self.cell.frame
        packets = math.ceil(size / tcp.payload(cell.mtu))
        uncut = cell.burst > SUPER and not cell.latency
        acknowledged = size / SUPER if uncut else packets / tcp.PER_ACK
        back = max(1.0, acknowledged) if cell.kind in BOTH else 0.0
        return size + (packets + back) * header

    def collective(self, at: float) -> float:
        """Return when a collective has ended that all ranks start `at` a time."""
        m, kind = self.cell.ranks, self.cell.kind
        size = float(self.cell.payload)
        there = [at] * m
        if kind == "gloo":
            there = self.gloo(there, size)
        elif kind == "ring":
            for _ in range(2 * (m - 1)):
                there = [self.send(there[r - 1], (r - 1) % m, r, size / m) for r in range(m)]
        elif kind == "tree":
            reach = [2**level for level in range((m - 1).bit_length())]
            for far in reach:
                for low in range(0, m - far, 2 * far):
                    got = self.send(there[low + far], low + far, low, size)
                    there[low] = max(there[low], got)
            for far in reversed(reach):
                for low in range(0, m - far, 2 * far):
                    there[low + far] = self.send(there[low], low, low + far, size)
        elif kind == "star":
            head = max(self.send(at, rank, 0, size) for rank in range(1, m))
            there = [head] + [self.send(head, 0, rank, size) for rank in range(1, m)]
        elif kind == "one-way":
            there = [self.send(at, r, r + 1, size) for r in range(0, m, 2)]
        else:
            there = [self.send(at, r, r ^ 1, size) for r in range(m)]
        return max(there) + self.own

    def gloo(self, there: list[float], size: float) -> list[float]:
        """Carry out gloo's ring (gloo/allreduce.cc): segments, of which two are under way.

        A rank asks for a segment as soon as the one before the last is there, and the other sends
        it when the question has come (gloo/transport/tcp/pair.cc).
        """
        m = self.cell.ranks
        count = max(2, math.ceil(size / m / SEGMENT))
        for _ in ("reduce-scatter", "all-gather"):
            done = [there, there]
            for _ in range(count * (m - 1)):
                ready = done[-2]
                for way in self.ways:  # a question passes between the packets of payload
                    way.tokens -= self.bytes(PREAMBLE)
                sent = [max(ready[r - 1], ready[r] + self.hop) for r in range(m)]
                part = size / m / count + PREAMBLE
                done.append([self.send(sent[r], (r - 1) % m, r, part) for r in range(m)])
            there = [max(pair) for pair in zip(done[-1], done[-2], strict=True)]
        return there


def seconds(cell: Cell, repeats: int, gap: float, hop: float, fitted: Fitted | None) -> list[float]:
    """Return the seconds of each repetition, `gap` seconds after the one before."""
    links, now, found = Links(cell, hop, fitted), 0.0, []
    for _ in range(repeats):
        end = links.collective(now)
        found.append(end - now)
        now = end + gap
    return found
