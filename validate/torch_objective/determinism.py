"""Determinism: seeds and threads of torch within a context, restored afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..host.device import generators

CPU = torch.device("cpu")
SEEDED = threading.RLock()  # of the process's random numbers, which all its threads share


@contextmanager
def seeded(key: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed torch's random numbers on the CPU and on `device` with `key`; one thread at a time."""
    devices = [] if device.type == "cpu" else [device.index]
    kind = "cuda" if device.type == "cpu" else device.type
    with SEEDED, torch.random.fork_rng(devices=devices, device_type=kind):
        # not torch.manual_seed, which seeds every device
        torch.default_generator.manual_seed(key)
        for index in devices:
            generators(device)[index].manual_seed(key)
        yield


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one core, so that sums do not depend on the number of cores."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
