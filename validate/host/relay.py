"""Relay packets between nodes, with the latency and bandwidth of their links.

The relay is a separate process, `python -m paceline.validate.host.relay`, which
`host.namespaces.Links` starts. It imports only the standard library, so that it starts fast and
leaves no work for the garbage collector.

One thread, one `select` loop. A node's process sends its rank and the descriptor of its TUN device
over a Unix socket. From then on the relay reads IP packets from the device. It computes when each
leaves its link (`RelayedPath`: a bounded queue at the bandwidth, then the latency), stores it in a
heap, and writes it to the receiver's device at that time. TCP itself runs in the nodes' kernels;
ECN marks signal congestion before packets are dropped.

Precision: a sleeping core wakes about 0.1 ms late. The relay measures that (`late`), sleeps for
correspondingly less and polls the rest; a packet that ends a sleep counts as that much older
(`credit`). It requests real-time priority, because busy nodes would delay it by milliseconds.
"""

import ctypes
import json
import math
import os
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path as Folder
from select import select
from time import monotonic
from typing import NamedTuple, NoReturn

NETWORK = "10.77.0"  # node r is NETWORK.(r + 1)
QUEUE = 1e6  # least capacity of a link's queue in bytes, beyond which packets are dropped
LATEST = 2e-4  # seconds; greater lateness is due to other processes, not to waking
BATCH = 64  # packets read from a device in a row, before other devices
MTU = (1500, 65000)  # bytes; small packets for slow links, few for fast ones
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


class Path(NamedTuple):
    """The latency and bandwidth from one node to another."""

    latency: float  # one way, seconds
    bandwidth: float = math.inf  # bytes/s
    least: int = MTU[0]  # bytes of a packet

    @property
    def mtu(self) -> int:
        """Return the packet size: the bytes that pass in 1 ms, within limits.

        Larger packets cost the relay less, but delay the packets behind them.
        """
        return int(min(max(1e-3 * self.bandwidth, self.least), MTU[1]))


class RelayedPath:
    """The state of a path: a bounded queue at the bandwidth, then the latency.

    Beyond twice the bandwidth-delay product it marks packets, so that TCP slows down before any is
    dropped, while the link stays busy. Acknowledgements go first, because a real host queues only
    few packets of a connection (TCP's small queues). Behind all data of their direction they would
    keep the other sender idle.
    """

    def __init__(self, to: int, path: Path, back: float) -> None:
        self.to, self.latency, self.bandwidth = to, path.latency, path.bandwidth
        # both in seconds of transmission; sixty packets where the product is small
        round_trip = path.latency + back
        self.long = max(2 * round_trip, 60 * path.mtu / path.bandwidth)
        self.room = max(4 * self.long, QUEUE / path.bandwidth)
        self.free = 0.0
        self.congested = False  # whether the last packet found a long queue

    def release(self, size: int, now: float, first: bool = False) -> float:
        """Return when a packet that enters at `now` leaves (s); inf: dropped.

        `first`: whether it overtakes the queue, like acknowledgements.
        """
        if first:
            self.free = max(now, self.free) + size / self.bandwidth
            return now + size / self.bandwidth + self.latency
        start = max(now, self.free)
        self.congested = start - now > self.long
        if start - now > self.room:
            return math.inf
        self.free = start + size / self.bandwidth
        return self.free + self.latency


def bare(packet: bytes) -> bool:
    """Return whether an IPv4 packet is a TCP packet without data (RFC 791, 9293)."""
    header = 4 * (packet[0] & 15)
    return packet[9] == 6 and len(packet) == header + 4 * (packet[header + 12] >> 4)


def marked(packet: bytes) -> bytes:
    """Return an IPv4 packet with ECN's mark if its transport supports it (RFC 3168)."""
    if packet[1] & 3 != 2:
        return packet
    # the mark adds 1 to a 16-bit word, which takes 1 from the header's checksum (RFC 1624)
    checksum = struct.unpack_from("!H", packet, 10)[0] or 0xFFFF
    head = struct.pack("!BB8sH", packet[0], packet[1] | 1, packet[2:10], checksum - 1)
    return head + packet[12:]


class Relay:
    """A relay that takes all nodes' devices, then carries their packets.

    A pair without a path is joined without latency or limit: gloo connects all pairs.
    """

    def __init__(
        self, listener: socket.socket, nodes: int, paths: Mapping[tuple[int, int], Path]
    ) -> None:
        self.nodes = nodes
        self.paths = paths
        self.devices: dict[int, int] = {}  # rank -> file descriptor
        self.members: dict[int, socket.socket] = {}
        self.flying: list[tuple[float, int, int, bytes]] = []  # release, tie-break, to, packet
        self.number = count()
        # seconds that a sleeping core wakes late, a running mean; `credit`: the age of a packet
        # that ended a sleep
        self.late = 1e-4
        self.credit = 0.0
        self.listener = listener
        self.sources: dict[int, Callable[[], None]] = {listener.fileno(): self.accept}

    def run(self) -> NoReturn:
        """Carry packets until a signal ends it."""
        flying = self.flying
        while True:
            before = monotonic()
            wake = flying[0][0] - self.late if flying else math.inf
            wait = max(0.0, wake - before) if flying else None
            ready = select(self.sources, (), (), wait)[0]
            now = monotonic()
            self.credit = min(self.late, now - before)
            if wait and not ready:
                self.late += (min(now - wake, LATEST) - self.late) / 8
            for source in ready:
                if source in self.sources:  # otherwise it has just closed
                    self.sources[source]()
            while flying and flying[0][0] <= monotonic():
                _, _, to, packet = heappop(flying)
                if to in self.devices:
                    # the kernel refuses only broken packets, and a network may lose those
                    with suppress(OSError):
                        os.write(self.devices[to], packet)

    def accept(self) -> None:
        """Accept the connection of a node's process."""
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        self.sources[connection.fileno()] = partial(self.hear, connection)

    def hear(self, connection: socket.socket) -> None:
        """Take a node's rank and device, or drop the node if its process has ended."""
        message, files = b"", list[int]()
        try:
            message, files, *_ = socket.recv_fds(connection, 4, 1)
        except BlockingIOError:  # the descriptor was ready, then reused by this connection
            return
        except OSError:
            pass
        rank = struct.unpack("i", message)[0] if len(message) == 4 and len(files) == 1 else -1
        if 0 <= rank < self.nodes and rank not in self.devices:
            self.join(rank, files[0], connection)
            return
        for device in files:
            os.close(device)
        for member in [r for r, member in self.members.items() if member is connection]:
            self.sources.pop(self.devices[member])
            os.close(self.devices.pop(member))
            del self.members[member]
        self.sources.pop(connection.fileno())
        connection.close()

    def join(self, rank: int, device: int, connection: socket.socket) -> None:
        """Take a node's device; when all have joined, send every node its packet size."""
        os.set_blocking(device, False)
        links = {}
        for to in range(self.nodes):
            path = self.paths.get((rank, to), Path(0.0))
            back = self.paths.get((to, rank), Path(0.0))
            links[socket.inet_aton(f"{NETWORK}.{to + 1}")] = RelayedPath(to, path, back.latency)
        self.devices[rank], self.members[rank] = device, connection
        self.sources[device] = partial(self.receive, device, links)
        if len(self.devices) == self.nodes:
            for member, peer in self.members.items():
                least = min(
                    (path.mtu for pair, path in self.paths.items() if member in pair),
                    default=MTU[1],
                )
                with suppress(OSError):  # it has just ended, which `hear` finds next
                    peer.send(struct.pack("i", least))

    def receive(self, device: int, links: Mapping[bytes, RelayedPath]) -> None:
        """Read a node's packets, and schedule their release."""
        for _ in range(BATCH):
            try:
                packet = os.read(device, 65536)
            except OSError:  # no more packets for now
                return
            link = links.get(packet[16:20])  # IPv4's destination; there is no multicast
            if link is not None:
                at = monotonic() - self.credit
                release = link.release(len(packet), at, first=bare(packet))
                if release < math.inf:
                    packet = marked(packet) if link.congested else packet
                    heappush(self.flying, (release, next(self.number), link.to, packet))


def _stop(*_: object) -> NoReturn:
    raise SystemExit


def main(listener: socket.socket, nodes: int, parent: int) -> None:
    """Relay until terminated or the parent process has died; leave no folder behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, _stop)
    libc = ctypes.CDLL(None)
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(_PR_SET_TIMERSLACK, 1)  # ns; the kernel's own is 50 us
        with suppress(OSError):  # where permitted: busy nodes would delay it by milliseconds
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        paths = {(a, b): Path(*path) for a, b, *path in json.load(sys.stdin)}
        if os.getppid() == parent:
            Relay(listener, nodes, paths).run()
    finally:
        shutil.rmtree(Folder(listener.getsockname()).parent, ignore_errors=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
