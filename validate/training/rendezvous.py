"""Rendezvous of a run's processes: a shared store, barriers, and transfer of their files."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paceline.simulator.errors import RunError
from paceline.simulator.inputs.paths import leaves

LOOK = 0.02  # seconds between looks
CHUNK = 4 * 2**20  # bytes of a file that a store takes at once

_torch: Any = dist  # stores are missing from its type stubs


def open_store(rank: int, size: int, timeout: float) -> Any:
    """Open the store of all processes: a file (PACELINE_STORE) on one machine, else a launcher's.

    A launcher sets MASTER_ADDR and MASTER_PORT, as torchrun does.
    """
    limit = timedelta(seconds=timeout)
    if path := os.environ.get("PACELINE_STORE"):
        store = _torch.FileStore(path, size)
        store.set_timeout(limit)
        return store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's agent serves it
    return sub_store(_torch.TCPStore(host, port, size, rank == 0 and not served, limit), "paceline")


def sub_store(store: Any, name: str) -> Any:
    """Return a store within a store, with keys of its own."""
    return _torch.PrefixStore(name, store)


def meet(store: Any, name: str, size: int, patient: bool = False) -> None:
    """Wait until `size` processes have called this; if `patient`, without a time limit."""
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
    """Let processes in `wait_for(store, name)` go on."""
    store.set(name, "")


def hand_in(store: Any, rank: int, folder: Path) -> None:
    """Send all files of this rank below a folder to the process that calls `collect`."""
    paths = [path for path in sorted(folder.rglob(f"rank-{rank}.*")) if path.is_file()]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
    store.set(f"files {rank}", json.dumps(sizes))
    for name in sizes:
        with (folder / name).open("rb") as file:
            for number, chunk in enumerate(iter(lambda: file.read(CHUNK), b"")):
                store.set(f"file {rank} {name} {number}", chunk)
    store.get(f"collected {rank}")  # this process may serve the store until then


def collect(store: Any, rank: int, folder: Path) -> None:
    """Write the files that a rank hands in to a folder. Raises RunError for paths outside it."""
    for name, size in json.loads(store.get(f"files {rank}")).items():
        if leaves(name, folder):
            raise RunError(f"rank {rank} hands in {name!r}, which is outside {folder}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            for number in range(-(-size // CHUNK)):
                key = f"file {rank} {name} {number}"
                file.write(store.get(key))
                store.delete_key(key)
    store.set(f"collected {rank}", "")
