"""What TCP leaves of a link: headers, acknowledgements, windows, and slow start after idleness.

Nothing here is fitted to the collectives of docs/transport.md, which measures what these rules miss
over links of the kernel. Sizes are bytes, times seconds.
"""

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from math import inf, ldexp
from pathlib import Path
from typing import NamedTuple

from ..inputs import untrusted
from ..scenario.network import Network
from ..scenario.overhead import Overhead
from ..scenario.scenario import Scenario

HEADERS = 20 + 20 + 12  # IPv4 (RFC 791), TCP (RFC 9293), its timestamps (RFC 7323)
FRAME = 14  # Ethernet's header, which the token bucket of a shaped link counts, too
PER_ACK = 2  # full segments that are acknowledged at once (RFC 9293, 3.8.6.3)
INITIAL = 10  # segments of the first window (RFC 6928)
IDLE = 0.2  # and a round trip: time-out of Linux, in which the window of idle connections halves
MEASURED = Path(__file__).with_name("transport.toml")
WINDOW = 3 * 2**20  # of one socket: half of Linux's largest receive buffer (tcp_rmem, tcp(7))

CHANNELS = 2  # of NCCL's rings at least, each with connections of its own (src/graph/connect.cc)

GLOO = 2 * (48 + 48 + HEADERS + FRAME)
"""Bytes beside the payload in a hop of gloo: two segments, each with a header (pair.h, struct Op),
and the word that it may be sent, another such header in a packet of its own."""


def payload(mtu: int) -> int:
    """Return the bytes of payload in a full packet."""
    return mtu - HEADERS


def share(mtu: int, frame: int = FRAME) -> float:
    """Return the share of a link's bytes that is payload."""
    return payload(mtu) / (mtu + frame)


def acknowledgements(mtu: int) -> float:
    """Return the bytes of acknowledgements that travel back, per byte of full packets."""
    return (HEADERS + FRAME) / (PER_ACK * (mtu + FRAME))


def start(sizes: Iterable[float], rate: float, round_trip: float, first: float) -> float:
    """Return the seconds by which slow start delays messages that follow each other.

    The messages, of `sizes`, share one connection of `rate` bytes/s, whose window is `first` bytes
    and grows by all that is acknowledged, so doubles every round trip (RFC 5681). While it is
    smaller than the round trip's worth of bytes, the sender stands still for the rest of each round
    trip that is not a message's last.
    """
    window, lost = first, 0.0
    for size in sizes:
        if window >= rate * round_trip:
            break
        left = size
        while left > window and window < rate * round_trip:
            lost += round_trip - window / rate
            left -= window
            window *= 2
        window += min(left, window)
    return lost


def resumed(first: float, sent: float, halvings: int) -> float:
    """Return the window of a connection that has `sent` bytes and then was idle (RFC 2861).

    It has halved with each time-out that passed since, down to the `first`.
    """
    return max(first, ldexp(first + sent, -halvings))


def credit(sizes: Iterable[float], rate: float, latency: float, burst: float) -> float:
    """Return the seconds that a token bucket saves messages that follow each other.

    It is full of `burst` bytes at first, lets as many pass at once, and refills at `rate` bytes/s
    in the `latency` that passes before the next message.
    """
    tokens, saved = burst, 0.0
    for size in sizes:
        used = min(tokens, size)
        saved += used / rate
        tokens = min(burst, tokens - used + rate * latency)
    return saved


# As a scenario's [network] has them


def one_way(network: Network) -> bool:
    """Whether acknowledgements of means meet no payload: a node sends, then receives."""
    return network.library == "ideal" and network.collective in ("tree", "star")


def on_one(network: Network, kind: str) -> bool:
    """Whether messages of a collective follow each other on the same connections."""
    rings = network.library != "ideal" or network.collective in ("ring", "hierarchical")
    return rings or kind == "gather"


def usable(network: Network) -> float:
    """Return the share of a link's bandwidth that carries payload, 1 with ideal transport."""
    if network.transport == "ideal":
        return 1.0
    back = 0.0 if one_way(network) else acknowledgements(network.mtu)
    return share(network.mtu) / (1 + back)


def connections(network: Network) -> int:
    """Return the number of connections between two nodes."""
    return network.sockets * (CHANNELS if network.library == "nccl" else 1)


def window(network: Network, own: float | None) -> float:
    """Return the most bytes in flight between two nodes; `own`: the window that is set, if any."""
    if network.transport == "ideal":
        return own or inf
    return (own or WINDOW) * connections(network)


def first_window(network: Network) -> float:
    """Return the bytes of the first window between two nodes."""
    return (network.slow_start or INITIAL * payload(network.mtu)) * connections(network)


@cache
def measured() -> dict[str, float]:
    """Return what the experiment of docs/transport.md says of links, whose `page` writes the file.

    `cells`: how many it has; `longer`, `most`: by how much of their time without TCP they took
    longer: median, 95th percentile. `gloo`: seconds that a mean costs gloo itself. Of `collectives`
    that the simulator can state, their measured time over the stated one: `low`, `median`, `high`,
    quantiles at 5, 50 and 95 %. `hosts`: published ones that move less through NCCL's sockets than
    their cards could, with the same quantiles of their bytes per second.
    """
    return tomllib.loads(untrusted.text(MEASURED))


class Missed(NamedTuple):
    """What collectives take over what these rules say: quantiles at 5, 50 and 95 %, of `number`."""

    low: float
    median: float
    high: float
    number: int


def missed(network: Network) -> Missed:
    """Return what is known of [network] without a profile.

    Hosts may move less than the slowest line could, where NCCL's sockets are the bottleneck.
    """
    known = measured()
    seen = Missed(known["low"], known["median"], known["high"], int(known["collectives"]))
    if network.library != "nccl":
        return seen
    rate = min(carried(network), default=0.0)
    low, median, high = (
        rate / known[f"hosts_{quantile}"] for quantile in ("high", "median", "low")
    )
    ends = max(seen.low, low), max(seen.median, median), max(seen.high, high)
    return Missed(*ends, int(known["hosts"]))


def rates(network: Network) -> list[float]:
    """Return the bandwidths that [network] writes, of all its lines."""
    lines = (network, *network.link)
    return [rate for line in lines for rate in (line.bandwidth, line.up, line.down) if rate]


def carried(network: Network) -> Iterator[float]:
    """Yield the bytes of payload per second of all lines that [network] writes, by their windows.

    A factor of what hosts move is relative to them: a window slows a fast card down already.
    """
    lines = [(network, network.latency), *((line, line.latency) for line in network.link)]
    for line, its in lines:
        law = network.latency if its is None else its
        most = window(network, line.tcp_window or network.tcp_window)
        limit = most / (2 * law.expectation) if law.expectation else inf
        yield from (
            min(usable(network) * rate, limit)
            for rate in (line.bandwidth, line.up, line.down)
            if rate
        )


def gloo() -> dict[str, float]:
    """Return what gloo adds to its collectives and questions, by key of [[overhead]].

    A question goes to all others at once, and waits for their word that it may.
    """
    return {"hop_bytes": GLOO, "collective": measured()["gloo"], "agree_latencies": 2.0}


def costs(scenario: Scenario) -> Overhead:
    """Return a scenario's overheads, relative to the links that TCP leaves.

    Factors that were measured over links of the nominal bandwidth contain headers already. Without
    a profile, it is what collectives over links of the kernel took in the median, and in gloo.
    """
    found, network = scenario.costs, scenario.network
    known, left = scenario.calibration, usable(network)
    if left == 1:
        return found
    if known is None and not scenario.overhead:
        update = {
            "transmission_factor": missed(network).median,
            "latency_factor": measured()["median"],
        }
        if network.library == "gloo":
            update |= gloo()
    elif known is None or known.transport == "tcp":
        return found
    else:
        bare = found.transmission_factor == found.message_factor == 1 and not found.hop_bytes
        whole = 1.0 if bare else left  # what was measured takes less of links that give less
        update = {
            "message_factor": found.message_factor * whole,
            "transmission_factor": found.transmission_factor
            * whole ** (1 + found.transmission_exponent),
        }
    return found.model_copy(update=update)


def slowed(scenario: Scenario, factor: float) -> Scenario:
    """Return a scenario over links that take `factor` times as long (messages: their bytes do)."""
    found = costs(scenario)
    keys = ("latency_factor", "transmission_factor", "message_factor")
    own = found.model_copy(update={key: factor * getattr(found, key) for key in keys})
    return scenario.model_copy(update={"overhead": (own,)})
