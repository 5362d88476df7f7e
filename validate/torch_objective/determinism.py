"""Torch's settings while something is computed; they are put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")


@contextmanager
def seeded(key: int, device: torch.device = CPU) -> Iterator[None]:
    """Let torch's random numbers on the CPU, and on `device`, follow from `key` alone."""
    devices = [device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which seeds every device there is
        torch.default_generator.manual_seed(key)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(key)
        yield


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one core, so that sums do not depend on how many there are."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
