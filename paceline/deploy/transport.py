"""Connections between the user's processes: those of `validate`, on a network as it is."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.simulator.errors import RunError
from paceline.validate.training import rendezvous
from paceline.validate.training.clock import Clock
from paceline.validate.training.collectives import Collectives
from paceline.validate.training.emulated_network import Accounting, RealNetwork
from paceline.validate.training.packing import TensorMeter
from paceline.validate.training.rendezvous import Connections
from paceline.validate.training.transport import DeviceGroup, Pending, tell

_torch: Any = dist
_numbers = count()  # of this process's transports: every process opens them in one order


class OpenNetwork(RealNetwork):
    """The network that there is; `bytes`: payloads that this rank has given to it."""

    def __init__(self) -> None:
        self.bytes = 0.0

    def starts(self, kind: str, size: float) -> None:
        """Count the payload of a collective."""
        self.bytes += size


def place() -> tuple[Any, int, int]:
    """Return the processes' store, this process's rank, and their number.

    torch.distributed is set up by the launcher's environment if it is not yet; a process that no
    launcher has started is alone.
    """
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ:
            return _torch.HashStore(), 0, 1
        dist.init_process_group()
    store = _torch.distributed_c10d._get_default_store()
    return store, dist.get_rank(), dist.get_world_size()


class Transport(Connections):
    """What one process reaches the others by.

    `start`: a vector as long as those that travel, which is not kept; `gossips`: whether messages
    are sent; `timeout`: seconds after which a process that does not answer is given up.
    """

    network: OpenNetwork
    collectives: Collectives
    team: DeviceGroup

    def __init__(
        self, where: tuple[Any, int, int], start: Tensor, gossips: bool, timeout: float
    ) -> None:
        store, rank, self.workers = where
        store, clock = rendezvous.sub_store(store, f"paceline {next(_numbers)}"), Clock()
        clock.begin(time.monotonic())  # a mailbox holds what comes before
        meter = TensorMeter(start.nbytes, start.numel())
        start = start.new_zeros(1).expand(len(start))
        super().__init__(store, rank, start, Accounting(meter, OpenNetwork(), clock), timeout)
        shared = start.device.type == "cuda" and self.workers > 1
        native = shared and "nccl" in str(dist.get_backend())
        self.open_team(self.workers, native)
        if gossips:
            self.open_mailbox(self.workers, {*range(self.workers)} - {rank})

    def mean(self, value: Any) -> Any:
        """Average over all ranks, and wait."""
        handle = self.collectives.mean(value, 0)
        self.collectives.settle(handle)
        return handle.result

    def tell(self, numbers: Sequence[float]) -> Pending:
        """Start giving numbers to all ranks; the result has a row of each."""
        return tell(self.flags, numbers)

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Give all ranks the values that rank 0 has."""
        for tensor in tensors:
            # bytes, so that the sum with zeros is exact for every dtype
            values = tensor.detach().reshape(-1).view(torch.uint8)
            copied = (torch.zeros_like if self.rank else torch.clone)(values)
            total = self.team.total(copied.detach)
            tensor.data.copy_(total.wait().view(tensor.dtype).view(tensor.shape))

    def close(self) -> None:
        """Complete what was begun, on all ranks, and end."""
        self.collectives.land()
        if self.mailbox is not None:
            self.mailbox.end()
            self.mailbox.close(self.timeout)
        if not self._all("end", self.timeout):
            raise RunError(self.lost())
        # the first rank's process may serve the store, for as long as it lasts
        self._all("left", self.timeout if self.rank == 0 else 0.0)
        super().close()

    def _all(self, key: str, seconds: float) -> bool:
        """Count this process in; tell whether all are within that time."""
        count, until = self.store.add(key, 1), time.monotonic() + seconds
        while count < self.workers and time.monotonic() < until:
            time.sleep(rendezvous.LOOK)
            count = self.store.add(key, 0)
        return bool(count >= self.workers)

    def lost(self, step: int = 0) -> str:
        """Say that other processes do not answer, in a step or at the end."""
        with suppress(RuntimeError):  # of a store whose process has ended
            if ended := self.store.add("end", 0):
                return (
                    f"{ended} of {self.workers} processes closed their sessions, and others did "
                    f"not{f', such as this one at step {step}' if step else ''}: all have to take "
                    "as many steps; let their loaders give as many batches (drop_last)"
                )
        return (
            f"another process has ended, or has not answered for {self.timeout:g} s; its own "
            "output says why"
        )
