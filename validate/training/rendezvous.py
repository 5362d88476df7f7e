"""Bring a run's processes together: a shared store, barriers, connections, files."""

import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.simulator.errors import RunError
from paceline.simulator.inputs.paths import leaves

from ..host import device as devices
from ..host import machine
from . import transport
from .collectives import Collectives
from .emulated_network import Accounting
from .messages import SKELETON, START, Mailbox
from .transport import DeviceGroup

LOOPBACK = "localhost", "127.0.0.1", "::1"  # names that never mean another machine
LOOK = 0.02  # seconds between checks
CHUNK = 4 * 2**20  # bytes of a part of a file in a store
VECTORS = 2  # vectors in the longest message

_torch: Any = dist  # stores are missing from its type stubs


def open_store(rank: int, size: int, timeout: float) -> Any:
    """Open the processes' store: the file PACELINE_STORE, or else a launcher's store.

    A launcher such as torchrun sets MASTER_ADDR and MASTER_PORT.
    """
    limit = timedelta(seconds=timeout)
    if path := os.environ.get("PACELINE_STORE"):
        store = _torch.FileStore(path, size)
        store.set_timeout(limit)
        return store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's agent serves it
    serves = rank == 0 and not served
    here = serves and os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    listening = {"master_listen_fd": fd} if serves and (fd := listen(host, port, here)) else {}
    return sub_store(_torch.TCPStore(host, port, size, serves, limit, **listening), "paceline")


def listen(host: str, port: int, here: bool) -> int | None:
    """Listen only at a launcher's address; return the socket's descriptor.

    Returns None if that does not tell which address other machines use: a name with several
    addresses, or a loopback address, unless all processes are `here`. Then the store listens on all
    addresses.
    """
    with suppress(OSError):
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        places = sorted({(family, where) for family, *_, where in addresses}, key=itemgetter(0))
        loopback = all(ip_address(where[0]).is_loopback for _, where in places)
        if (loopback and (here or host in LOOPBACK)) or (len(places) == 1 and not loopback):
            return socket.create_server(places[0][1], family=places[0][0]).detach()
    return None


def sub_store(store: Any, name: str) -> Any:
    """Return a store within a store, with separate keys."""
    return _torch.PrefixStore(name, store)


def meet(store: Any, name: str, size: int, patient: bool = False) -> None:
    """Wait until `size` processes have called this; if `patient`, without a limit."""
    everyone = f"{name}, all"
    if store.add(name, 1) == size:
        announce(store, everyone)
    if patient:
        wait_for(store, everyone)
    store.get(everyone)


def wait_for(store: Any, name: str) -> None:
    """Wait without a time limit until a process has called `announce(store, name)`."""
    while not store.check([name]):
        time.sleep(LOOK)


def announce(store: Any, name: str) -> None:
    """Let processes that call `wait_for(store, name)` continue."""
    store.set(name, "")


def share_devices(store: Any, rank: int, where: torch.device, workers: int) -> tuple[str, bool]:
    """Return the identity of this rank's device, and whether NCCL can join one of each worker.

    Numbers do not identify devices: every rank may see its GPU as the first.
    """
    device = devices.of(where)
    seat = f"{machine.boot_id()} {device.identity()}"
    store.set(f"seat {rank}", seat)
    seats = {store.get(f"seat {worker}") for worker in range(workers)}
    return seat, device.native and len(seats) == workers


def hand_in(store: Any, rank: int, folder: Path) -> None:
    """Send all files of this rank below a folder to the process that calls `collect`."""
    paths = [path for path in sorted(folder.rglob(f"rank-{rank}.*")) if path.is_file()]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
    store.set(f"files {rank}", json.dumps(sizes))
    for name in sizes:
        with (folder / name).open("rb") as file:
            for number, chunk in enumerate(iter(lambda: file.read(CHUNK), b"")):
                store.set(f"file {rank} {name} {number}", chunk)
    store.get(f"collected {rank}")
    store.set(f"left {rank}", "")  # afterwards the process that serves the store may end


def collect(store: Any, rank: int, folder: Path) -> None:
    """Write a rank's files to a folder. Raises RunError for paths outside it."""
    for name, size in json.loads(store.get(f"files {rank}")).items():
        if leaves(name, folder):
            raise RunError(f"rank {rank} sends a file {name!r}, which is outside {folder}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            for number in range(-(-size // CHUNK)):
                key = f"file {rank} {name} {number}"
                file.write(store.get(key))
                store.delete_key(key)
    store.set(f"collected {rank}", "")
    store.get(f"left {rank}")


class Connections:
    """The connections of one process: a group for collectives, and one for messages.

    All processes open them in the same order. `start`: a vector with the size and device of vectors
    in messages; `timeout`: seconds after which a process that does not answer has failed. `team`,
    `flags` (for numbers of each rank), `collectives` and `mailbox` are None until opened.
    """

    def __init__(
        self, store: Any, rank: int, start: Tensor, accounting: Accounting, timeout: float
    ) -> None:
        self.store, self.rank, self.timeout = store, rank, timeout
        self._start, self._accounting = start, accounting
        self.meter, self.network, self.clock = accounting
        self.team: DeviceGroup | None = None
        self.flags: Any = None
        self.collectives: Collectives | None = None
        self.mailbox: Mailbox | None = None
        self._groups: list[Any] = []

    def open_team(self, workers: int, native: bool, deadline: float = inf) -> None:
        """Open the workers' collectives; `native`: by the library of their devices."""
        rank, device = self.rank, devices.of(self._start.device)
        if native:
            group = device.group(sub_store(self.store, "team"), rank, workers, self.timeout)
            self.team = transport.Native(group, device, self.timeout)
        else:
            kind = DeviceGroup if self._start.device.type == "cpu" else transport.Staged
            self.team = kind(self._gloo("team", workers, self.timeout), device)
        self.flags = self._kept(self._gloo("flags", workers, self.timeout))
        where, accounting = self._start.device, self._accounting
        self.collectives = Collectives(
            self.team, self.flags, rank, workers, where, deadline, accounting
        )

    def open_mailbox(self, nodes: int, peers: Iterable[int]) -> None:
        """Open the mailbox of a node: messages travel by gloo."""
        group = self._kept(self._gloo("post", nodes, transport.FOREVER))
        capacity = 8 * START + SKELETON + VECTORS * self._start.nbytes
        receives, device = self.network.receives, self._start.device
        self.mailbox = Mailbox(
            group, self.rank, frozenset(peers), capacity, device, receives, self.clock
        )

    def _gloo(self, name: str, size: int, timeout: float) -> Any:
        return transport.gloo(sub_store(self.store, name), self.rank, size, timeout)

    def _kept(self, group: Any) -> Any:
        self._groups.append(group)
        return group

    def close(self) -> None:
        """Close all connections, once every process has finished with them."""
        if self.team is not None:
            self.team.close()
        for group in self._groups:
            transport.shut(group)
