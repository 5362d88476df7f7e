"""Collectives over plain sockets: one connection a pair, messages sent as soon as they are known.

Sums are left out, as they cost the processor and not the link. `gloo` is torch's own ring.
"""

import fcntl
import os
import select
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.lab.transport import links
from tests.lab.transport.cells import Cell, steps

PORT = 7000
PATIENCE = 120  # seconds
PINGS = 21
LOOK = 2e-4  # seconds between looks
SIOCOUTQNSD = 0x894B  # of linux/sockios.h: bytes that TCP has not sent yet


class Wire:
    """This rank's connections, and what waits to leave on each."""

    def __init__(self, rank: int, ranks: int, meet: Callable[[], object]) -> None:
        self.rank = rank
        self.sockets: dict[int, socket.socket] = {}
        self._waiting: dict[int, deque[memoryview]] = {}
        self._poll = select.poll()
        with socket.create_server((links.address(rank), PORT), backlog=ranks) as server:
            meet()
            for peer in range(rank):
                each = socket.create_connection((links.address(peer), PORT), timeout=PATIENCE)
                each.sendall(bytes([rank]))
                self._add(peer, each)
            for _ in range(rank + 1, ranks):
                each, _ = server.accept()
                self._add(each.recv(1)[0], each)
        self._by_number = {each.fileno(): peer for peer, each in self.sockets.items()}

    def _add(self, peer: int, each: socket.socket) -> None:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
        self.sockets[peer], self._waiting[peer] = each, deque()

    def send(self, peer: int, data: memoryview) -> None:
        """Queue bytes for a peer; they leave while this rank waits."""
        self._waiting[peer].append(data)
        self._push(peer)

    def _push(self, peer: int) -> None:
        waiting = self._waiting[peer]
        try:
            while waiting:
                gone = self.sockets[peer].send(waiting[0])
                if gone < len(waiting[0]):
                    waiting[0] = waiting[0][gone:]
                else:
                    waiting.popleft()
        except BlockingIOError:
            return

    def wait(self, wanted: dict[int, memoryview]) -> None:
        """Wait until the `wanted` bytes of each peer are here."""
        left = dict(wanted)
        while left:
            self._look(left)
            for peer in [peer for peer, part in left.items() if not part]:
                del left[peer]

    def flush(self) -> None:
        """Wait until the kernel has taken what this rank sends."""
        while any(self._waiting.values()):
            self._look({})

    def leave(self, peer: int) -> None:
        """Wait until all for a peer has left TCP for the link, so that what follows comes after."""
        while self._waiting[peer] or self._unsent(peer):
            self._push(peer)
            time.sleep(LOOK)

    def _unsent(self, peer: int) -> int:
        found = fcntl.ioctl(self.sockets[peer], SIOCOUTQNSD, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def ping(self) -> float:
        """Return the median seconds that a byte takes between the first two ranks, one way."""
        if self.rank > 1:
            return 0.0
        took, room = [], memoryview(bytearray(1))
        for _ in range(PINGS):
            began = time.monotonic()
            if not self.rank:
                self.send(1, memoryview(b"?"))
            self.wait({1 - self.rank: room})
            if self.rank:
                self.send(0, memoryview(b"!"))
            took.append(time.monotonic() - began)
        return statistics.median(took) / 2

    def _look(self, left: dict[int, memoryview]) -> None:
        for peer, each in self.sockets.items():
            mask = select.POLLIN if peer in left else 0
            self._poll.register(each, mask | (select.POLLOUT if self._waiting[peer] else 0))
        ready = self._poll.poll(1000 * PATIENCE)
        if not ready:
            raise TimeoutError(f"rank {self.rank}: nothing for {PATIENCE} s")
        for number, event in ready:
            peer = self._by_number[number]
            if event & select.POLLOUT:
                self._push(peer)
            if event & (select.POLLIN | select.POLLHUP) and peer in left:
                try:
                    count = self.sockets[peer].recv_into(left[peer])
                except BlockingIOError:
                    continue
                if not count:
                    raise ConnectionError(f"rank {self.rank}: rank {peer} has gone")
                left[peer] = left[peer][count:]


def collective(cell: Cell, rank: int, wire: Wire) -> Callable[[], None]:
    """Return a function that takes part in one collective over sockets."""
    m, p = cell.ranks, cell.payload
    data, room = memoryview(bytearray(p)), memoryview(bytearray(p))
    others = range(1, m)

    def ring() -> None:
        for size, _ in steps("ring", m, p):
            wire.send((rank + 1) % m, data[: round(size)])
            wire.wait({(rank - 1) % m: room[: round(size)]})

    def tree() -> None:
        reach = [2**level for level in range((m - 1).bit_length())]
        for far in reach:
            if rank % (2 * far) == far:
                wire.send(rank - far, data)
            elif rank % (2 * far) == 0 and rank + far < m:
                wire.wait({rank + far: room})
        for far in reversed(reach):
            if rank % (2 * far) == far:
                wire.wait({rank - far: room})
            elif rank % (2 * far) == 0 and rank + far < m:
                wire.send(rank + far, data)
                wire.leave(rank + far)

    def star() -> None:
        if rank:
            wire.send(0, data)
            wire.wait({0: room})
            return
        wire.wait({peer: memoryview(bytearray(p)) for peer in others})
        for peer in others:
            wire.send(peer, data)

    def one_way() -> None:
        if rank % 2:
            wire.wait({rank - 1: room})
        else:
            wire.send(rank + 1, data)

    def exchange() -> None:
        wire.send(rank ^ 1, data)
        wire.wait({rank ^ 1: room})

    known = {"ring": ring, "tree": tree, "star": star, "one-way": one_way, "exchange": exchange}
    run = known[cell.kind]

    def whole() -> None:
        run()
        wire.flush()

    return whole


def gloo(cell: Cell, rank: int, store: str) -> Callable[[], None]:
    """Return a function that takes part in gloo's all-reduce."""
    import torch
    import torch.distributed as dist

    from paceline.validate.training import transport

    os.environ["GLOO_SOCKET_IFNAME"] = links.INTERFACE
    kind: Any = dist
    group = transport.gloo(kind.FileStore(store, cell.ranks), rank, cell.ranks, PATIENCE)
    values = torch.zeros(cell.payload // 4)

    def whole() -> None:
        group.allreduce([values]).wait()

    return whole
