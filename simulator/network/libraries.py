"""Model the algorithms of NCCL, gloo and BytePS by size, and their added time.

NCCL's tuner (NVIDIA/nccl, src/graph/tuning.cc at commit b6475625, NCCL 2.21) estimates latency and
bandwidth of every algorithm and protocol, and chooses the fastest. Its constants here, in
microseconds and GB/s, come from that file. The tuner ignores distance: the latency of [network]
prolongs a collective, but does not change the choice.

BytePS (bytedance/byteps, common/core_loops.cc) cuts gradients into chunks. A chunk is reduced in a
box, copied to the host, pushed to a server, pulled, copied back and gathered. These stages work on
different chunks at once.

gloo's ring (facebookincubator/gloo, gloo/allreduce.cc and allgather.cc, as called by PyTorch) cuts
payloads into segments, two of which are in flight. A segment leaves after the receiver's
notification (gloo/transport/tcp/pair.cc, sendNotifyRecvReady), so a hop takes two latencies.
"""

from math import ceil, inf
from typing import NamedTuple

from .fabric.messages import MessageBuilder, Messages, Team

CHUNK = 4_096_000
"""Bytes of BytePS's largest chunk (common/global.cc, BYTEPS_PARTITION_BYTES)."""
SEGMENT = 2**20
"""Bytes of gloo's largest segment (allreduce.h, kMaxSegmentSize)."""
NVLINK = 26e9
"""Bytes/s above which links between devices must be NVLink (faster than PCIe 4.0 x16)."""
RDMA = 12.5e9
"""Bytes/s from which a card is assumed to be close to the GPU, so that LL128 is safe."""

PROTOCOLS = ("LL", "LL128", "Simple")
BASE = {"double-tree": (6.8, 14.0, 0.0), "ring": (6.6, 14.0, 8.4)}
HOPS = {
    "nvlink": {"double-tree": (0.6, 1.25, 28.0), "ring": (0.6, 1.9, 3.4)},
    "pci": {"double-tree": (1.0, 1.9, 28.0), "ring": (1.0, 2.5, 5.7)},
    "net": {"double-tree": (5.0, 8.5, 28.0), "ring": (2.7, 4.0, 14.0)},
}
LL_MOST = (87.7, 39.0, 20.4)  # on one host of A100s or later; on two, and on more with Intel CPUs
PLATEAU = 1.4  # factor of Ring/Simple's latency between hosts, from compute capability 8.0 on
CHANNELS = 16  # channels, which set the size at which the plateau begins
CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7) + (0.6,) * 6 + (0.8, 0.9, 0.9, 0.9, 0.9, 1),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6) + (0.5,) * 4 + (0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
"""Share of a tree's bandwidth, by protocol and power of two of the size in 64 bytes."""


class Cluster(NamedTuple):
    """The inputs of NCCL's tuner.

    `ranks`: total number of devices. `ring`, `tree`: payload bytes/s over the busiest card with
    that algorithm. `inner`: bytes/s of links inside hosts.
    """

    ranks: int
    hosts: int
    ring: float
    tree: float
    inner: float = inf


class Choice(NamedTuple):
    """An algorithm and protocol of NCCL: latency, and `seconds` of a collective.

    `slowdown`: transmission time relative to the time at the card's full bandwidth.
    """

    algorithm: str
    protocol: str
    latency: float
    seconds: float
    slowdown: float


def nccl_choices(cluster: Cluster, size: float, gather: bool = False) -> list[Choice]:
    """Return the estimates of NCCL's tuner by algorithm and protocol."""
    choices = []
    for algorithm in ("double-tree", "ring")[gather:]:
        for number, protocol in enumerate(PROTOCOLS):
            if protocol == "LL128" and cluster.ring < RDMA:
                continue
            if algorithm == "ring":
                full, (rate, latency, ratio) = cluster.ring, _ring(cluster, number, size, gather)
            else:
                full, (rate, latency, ratio) = cluster.tree, _tree(cluster, number, size)
            seconds = latency * 1e-6
            transmission = size / (rate * ratio) if rate < inf else 0.0
            slowdown = full / rate if full < inf else 1.0
            choices.append(Choice(algorithm, protocol, seconds, seconds + transmission, slowdown))
    return choices


def _ring(cluster: Cluster, number: int, size: float, gather: bool) -> tuple[float, float, float]:
    """Return a ring's rate (bytes/s), latency (us) and share of payload per step."""
    ranks, hosts, full = cluster.ranks, cluster.hosts, cluster.ring
    steps = ranks - 1 if gather else 2 * (ranks - 1)
    across = hosts - 1 if gather else 2 * hosts if hosts > 1 else 0
    rates = min(_ll_most(hosts), full / 4), full * (0.7 if ranks < 2 * hosts else 0.92), full
    simple = PROTOCOLS[number] == "Simple"
    post = 0.0 if hosts == 1 else 3.0 if simple else 1.0
    hop = max(_hop(cluster, "ring", number), post)
    latency = BASE["ring"][number] + ((steps - across) * hop + across * HOPS["net"]["ring"][number])
    if simple and hosts > 1 and not gather:
        latency *= PLATEAU if size >= 64 * CHANNELS * ranks else 1.0
    return rates[number], latency, ranks / steps


def _tree(cluster: Cluster, number: int, size: float) -> tuple[float, float, float]:
    """Return a double tree's rate, latency and share per step; see `_ring`."""
    hosts, full = cluster.hosts, cluster.tree
    rates = (
        min(0.92 * full / 3.8, _ll_most(hosts)),
        0.92 * full * (7 / 9 if hosts == 1 else 120 / 128),
        0.92 * full,
    )
    power = max(int(size) >> 6, 1).bit_length() - 1
    rate = rates[number] * (0.85 * (CORRECTION[number][power:] or (1,))[0])
    hop, net = _hop(cluster, "double-tree", number), HOPS["net"]["double-tree"][number]
    deep = (cluster.ranks // hosts - 1) * hop + (hosts.bit_length() - 1) * net
    return rate, BASE["double-tree"][number] + 2 * deep, 0.5


def _ll_most(hosts: int) -> float:
    return LL_MOST[min(hosts, 3) - 1] * 1e9


def _hop(cluster: Cluster, algorithm: str, number: int) -> float:
    return HOPS["nvlink" if cluster.inner > NVLINK else "pci"][algorithm][number]


def nccl_choice(cluster: Cluster, size: float, gather: bool = False) -> Choice:
    """Return NCCL's algorithm and protocol for a collective of `size` bytes."""
    return min(nccl_choices(cluster, size, gather), key=lambda choice: choice.seconds)


class Loops(NamedTuple):
    """The ring of NCCL: `loops` of `hops` steps, with one chunk per step and channel.

    With protocol Simple, for large payloads, a step moves 4 of a channel's 8 buffers of 512 KiB as
    two successive slices (src/include/device.h, ALLREDUCE_CHUNKSTEPS and ALLREDUCE_SLICESTEPS;
    NCCL_BUFFSIZE).
    """

    loops: int
    hops: int

    def latency(self, held: float, path: float) -> float:
        """Return the seconds that latency adds to `held` s of transmission.

        `path`: total latency of all hops. A rank forwards a slice while the next one arrives, so
        links wait only for the part of a step's latency that exceeds half of its transmission.
        """
        hop, step = path / self.hops, held / (self.loops * self.hops)
        return hop + self.loops * (self.hops - 1) * max(0.0, hop - step / 2)


LOOP = 2 * 2**21
"""Bytes per rank and loop: a chunk of 2 MiB in each of two channels."""


def nccl_loops(ranks: int, size: float, gather: bool = False) -> Loops:
    """Return NCCL's loops for a mean of `size` bytes, or a gather of `size` per rank."""
    chunk = size if gather else size / ranks
    return Loops(max(1, ceil(chunk / LOOP)), (ranks - 1) * (1 if gather else 2))


class Segments(NamedTuple):
    """gloo's ring: `phases` of `segments` over `hops`; `share`: payload per segment."""

    phases: int
    segments: int
    share: float
    hops: int

    def latency(self, held: float, path: float) -> float:
        """Return the seconds that latency adds to `held` s of transmission.

        `path`: total latency of all hops. With two segments in flight, the two latencies l of one
        hide behind the transmission s of the previous one. A phase of n segments takes
        n s + 2 l + (n - 1) div 2 times max(0, 2 l - s).
        """
        twice = 2 * path / self.hops
        stall = max(0.0, twice - held / (self.phases * self.segments))
        return self.phases * (twice + (self.segments - 1) // 2 * stall)

    def messages(self, team: Team) -> Messages:
        """Return segments as messages; a worker sends after receiving the last but one."""
        builder, size = MessageBuilder(), len(team)
        pairs = [(team[n], team[(n + 1) % size]) for n in range(size)]
        sent: list[list[int]] = []
        for _ in range(self.phases):
            before = sent[-2:] if sent else []
            for number in range(self.segments):
                waits = before if number < 2 else sent[-2:-1]
                after = [[wait[n - 1] for wait in waits] for n in range(size)]
                sent.append(builder.add(pairs, self.share, after))
        return builder.messages()


def gloo_segments(workers: int, size: float, gather: bool = False) -> Segments:
    """Return gloo's segments of `size` bytes for two or more workers."""
    if gather:
        return Segments(1, 2 * (workers - 1), 0.5, workers - 1)
    least = 2 * workers
    segment = min(ceil(size / least), SEGMENT) or 1
    chunk = ceil(max(size / segment, least) / workers)
    return Segments(2, (workers - 1) * chunk, 1 / (workers * chunk), 2 * (workers - 1))
