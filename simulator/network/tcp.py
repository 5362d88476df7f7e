"""Compute TCP's effects: headers, acknowledgements, windows, and slow start.

No constant is fitted to the collectives of docs/transport.md, which measures the errors of these
rules over links of the kernel. Sizes are in bytes, times in seconds.
"""

from collections.abc import Iterable, Iterator
from math import inf, ldexp
from typing import Any, NamedTuple

from ..inputs import untrusted
from ..scenario.network import Network
from ..scenario.overhead import Overhead
from ..scenario.scenario import Scenario

HEADERS = 20 + 20 + 12  # IPv4 (RFC 791), TCP (RFC 9293), its timestamps (RFC 7323)
FRAME = 14  # Ethernet's header, which the token bucket of a shaped link also counts
PER_ACK = 2  # full segments per acknowledgement (RFC 9293, 3.8.6.3)
INITIAL = 10  # segments of the first window (RFC 6928)
IDLE = 0.2  # plus a round trip: Linux's time-out until an idle connection's window halves
WINDOW = 3 * 2**20  # per socket: half of Linux's largest receive buffer (tcp_rmem, tcp(7))

CHANNELS = 2  # NCCL's least number of channels, with separate connections (src/graph/connect.cc)

GLOO = 2 * (48 + 48 + HEADERS + FRAME)
"""Overhead bytes of a hop of gloo: headers (pair.h, struct Op) of a segment and of the receiver's
notification, each in a packet."""

HOST = 1.37e9
"""Bytes/s that gloo's only thread receives, sums and sends, while its link waits: two hosts with
40 Gbit/s cards reach 1.073 GB/s (pytorch/gloo#248), the result of 1/5 + 1/1.37 ns."""
HOSTS = (0.65e9, 2.4e9)
"""The same for slow and fast hosts: 5 and 19 Gbit/s over the fastest cards."""
WIDENED = 10**9  # the number of quantiles that already contain Student's factor


def share(mtu: int) -> float:
    """Return the share of payload in a link's bytes."""
    return (mtu - HEADERS) / (mtu + FRAME)


def acknowledgements(mtu: int) -> float:
    """Return the bytes of returning acknowledgements per byte of full packets."""
    return (HEADERS + FRAME) / (PER_ACK * (mtu + FRAME))


def start(sizes: Iterable[float], rate: float, round_trip: float, first: float) -> float:
    """Return the seconds by which slow start delays successive messages.

    The messages, of `sizes`, share one connection of `rate` bytes/s, whose window starts at `first`
    bytes and grows by all acknowledged bytes, so it doubles every round trip (RFC 5681). While it
    is below `rate` times `round_trip`, the sender idles for the rest of every round trip except a
    message's last.
    """
    window, lost = first, 0.0
    for size in sizes:
        if window >= rate * round_trip:
            break
        rest = size
        while rest > window and window < rate * round_trip:
            lost += round_trip - window / rate
            rest -= window
            window *= 2
        window += min(rest, window)
    return lost


def resumed(first: float, sent: float, halvings: int) -> float:
    """Return the window of a connection that was idle after `sent` bytes (RFC 2861).

    It halves with every time-out while idle, down to the `first` window (bytes).
    """
    return max(first, ldexp(first + sent, -halvings))


def credit(sizes: Iterable[float], rate: float, latency: float, burst: float) -> float:
    """Return the seconds that a token bucket saves successive messages.

    The bucket starts full, passes `burst` bytes at once, and refills at `rate` bytes/s during the
    `latency` (s) before the next message.
    """
    tokens, saved = burst, 0.0
    for size in sizes:
        used = min(tokens, size)
        saved += used / rate
        tokens = min(burst, tokens - used + rate * latency)
    return saved


def one_way(network: Network) -> bool:
    """Return whether acknowledgements of means never compete with payload."""
    return network.library == "ideal" and network.collective in ("tree", "star")


def on_one(network: Network, kind: str) -> bool:
    """Return whether a collective's messages reuse connections, one after another."""
    rings = network.library != "ideal" or network.collective in ("ring", "hierarchical")
    return rings or kind == "gather"


def usable(network: Network) -> float:
    """Return the share of payload in a link's bandwidth, 1 with ideal transport."""
    if network.transport == "ideal":
        return 1.0
    back = 0.0 if one_way(network) else acknowledgements(network.mtu)
    return share(network.mtu) / (1 + back)


def connections(network: Network) -> int:
    """Return the number of connections between two nodes."""
    return network.sockets * (CHANNELS if network.library == "nccl" else 1)


def window(network: Network, own: float | None) -> float:
    """Return the most bytes in flight between two nodes; `own`: configured window."""
    if network.transport == "ideal":
        return own or inf
    return (own or WINDOW) * connections(network)


def first_window(network: Network) -> float:
    """Return the first window between two nodes, in bytes."""
    return (network.slow_start or INITIAL * (network.mtu - HEADERS)) * connections(network)


def measured() -> dict[str, float]:
    """Return the results of the experiment in docs/transport.md, from transport.toml.

    `gloo`: seconds of a mean in gloo itself.
    `collectives`: number of predicted collectives; `low`, `median`, `high`: 5, 50 and 95 %
    quantiles of measured over predicted time. `hosts`: number of published hosts whose NCCL
    sockets are slower than their cards; `hosts_low` and so on: their bytes per second.
    """
    facts: dict[str, float] = untrusted.packaged(__file__, "transport.toml")
    return facts


class Missed(NamedTuple):
    """Quantiles (5, 50, 95 %) of measured over predicted time of `number` collectives.

    `latency`: low and high over the median of latencies alone, None: as of all time.
    """

    low: float
    median: float
    high: float
    number: int
    latency: tuple[float, float] | None = None


def missed(scenario: Scenario) -> Missed:
    """Return the errors of these rules for a scenario without a profile.

    Hosts may be slower than the slowest line: a socket is as fast as one core, and the published
    rates are those of NCCL's sockets. Student's factor applies to these rates, which do not depend
    on the line: else a faster line would raise the longest time. gloo's law includes its only
    thread.
    """
    values, network = measured(), scenario.network
    base = Missed(values["low"], values["median"], values["high"], int(values["collectives"]))
    rate = min(carried(scenario), default=0.0)
    if network.library == "gloo" and rate:
        slow, usual, fast = (1 / rate + 1 / host for host in (HOSTS[0], HOST, HOSTS[1]))
        return base._replace(low=base.low * fast / usual, high=base.high * slow / usual)
    if not rate:
        return base
    hosts = int(values["hosts"])
    slow, usual, fast = (rate / values[f"hosts_{at}"] for at in ("low", "median", "high"))
    of_line, of_host = (_widened(one) for one in (base, Missed(fast, usual, slow, hosts)))
    low, median, high = (max(pair) for pair in zip(of_line, of_host, strict=True))
    bare = of_line[0] / of_line[1], of_line[2] / of_line[1]
    return base if (low, median, high) == of_line else Missed(low, median, high, WIDENED, bare)


def _widened(missed: Missed) -> tuple[float, float, float]:
    """Return the quantiles with Student's factor for their number."""
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s

    low, median, high, number, _ = missed
    power = float(stdtrit(number - 1, 0.95) / stdtrit(WIDENED, 0.95))
    return median * (low / median) ** power, median, median * (high / median) ** power


def rates(network: Network) -> list[float]:
    """Return the bandwidths (bytes/s) of all lines that [network] sets."""
    return [rate for line in (network, *network.link) for rate in _rates(line)]


def _rates(line: Any) -> list[float]:
    keys = "bandwidth", "up", "down"
    return [rate for key in keys if (rate := getattr(line, key, None))]


def carried(scenario: Scenario) -> Iterator[float]:
    """Yield the lines' and groups' payload rates (bytes/s), as limited by windows.

    Factors of hosts are relative to these rates, because a window may already slow a fast card.
    """
    network = scenario.network
    for line in (network, *network.link, *scenario.cluster.group):
        law = getattr(line, "latency", None) or network.latency
        most = window(network, getattr(line, "tcp_window", None) or network.tcp_window)
        limit = most / (2 * law.expectation) if law.expectation else inf
        yield from (min(usable(network) * rate, limit) for rate in _rates(line))


def gloo() -> dict[str, float]:
    """Return gloo's overheads of collectives and polls, by key of [[overhead]].

    A poll reaches all other workers at once, after their notifications of readiness.
    """
    return {
        "hop_bytes": GLOO,
        "collective": measured()["gloo"],
        "agree_latencies": 2.0,
        "per_byte": 1 / HOST,
    }


def costs(scenario: Scenario) -> Overhead:
    """Return a scenario's overheads, relative to the bandwidth after TCP's headers.

    Factors relative to the nominal bandwidth already include headers. Without a profile, factors
    are the medians of collectives over links of the kernel, plus gloo's overheads.
    """
    overhead, network = scenario.costs, scenario.network
    profile, payload_share = scenario.calibration, usable(network)
    if payload_share == 1:
        return overhead
    if profile is None and not scenario.overhead:
        update = {
            "transmission_factor": missed(scenario).median,
            "latency_factor": measured()["median"],
        }
        if network.library == "gloo":
            update |= gloo()
    elif profile is None or profile.transport == "tcp":
        return overhead
    else:
        bare = (
            overhead.transmission_factor == overhead.message_factor == 1 and not overhead.hop_bytes
        )
        fraction = 1.0 if bare else payload_share  # measured factors are relative to nominal links
        update = {
            "message_factor": overhead.message_factor * fraction,
            "transmission_factor": overhead.transmission_factor
            * fraction ** (1 + overhead.transmission_exponent),
        }
    return overhead.model_copy(update=update)
