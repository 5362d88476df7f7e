"""Where processes of a run meet before they have a connection, and in its pauses."""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_torch: Any = dist  # it exports them all the same


def open_store(rank: int, size: int, timeout: float) -> Any:
    """The store of all processes: a file (PACELINE_STORE) on one machine, else that of a launcher.

    A launcher sets MASTER_ADDR and MASTER_PORT, as torchrun does.
    """
    limit = timedelta(seconds=timeout)
    if path := os.environ.get("PACELINE_STORE"):
        store = _torch.FileStore(path, size)
        store.set_timeout(limit)
        return store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's agent has it
    return part(_torch.TCPStore(host, port, size, rank == 0 and not served, limit), "paceline")


def part(store: Any, name: str) -> Any:
    """A part of a store, with keys of its own."""
    return _torch.PrefixStore(name, store)


def meet(store: Any, name: str, size: int) -> None:
    """Wait until so many processes have come here."""
    if store.add(name, 1) == size:
        store.set(f"{name}, all", "")
    store.get(f"{name}, all")
