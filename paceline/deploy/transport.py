"""Connect the user's processes like those of `validate`, over the real network."""

import atexit
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from paceline.simulator.errors import InputError, RunError
from paceline.validate.training import rendezvous
from paceline.validate.training.clock import Clock
from paceline.validate.training.collectives import Collectives
from paceline.validate.training.emulated_network import Accounting, RealNetwork
from paceline.validate.training.packing import TensorMeter
from paceline.validate.training.rendezvous import Connections
from paceline.validate.training.transport import DeviceGroup, tell

_torch: Any = dist
_numbers = count()  # counts this process's transports: all processes open them in the same order


class OpenNetwork(RealNetwork):
    """The real network; `bytes`: payloads that this rank has sent."""

    def __init__(self) -> None:
        self.bytes = 0.0

    def starts(self, kind: str, size: float) -> None:
        """Count the payload of a collective."""
        self.bytes += size


class Place(NamedTuple):
    """A process's place: it is `rank` of `processes`, and belongs to `worker` of `workers`.

    A worker is a process, or an island of a mesh, whose processes `members` hold its model. The
    processes with the same place `inner` in their islands average with each other. `store`: shared
    by all processes.
    """

    store: Any
    rank: int
    processes: int
    worker: int
    workers: int
    inner: str = ""
    members: frozenset[int] = frozenset()


def place(mesh: Any = None) -> Place:
    """Return this process's place; the first dimension of a `mesh` is the islands.

    torch.distributed is initialised from the launcher's environment if necessary; a process without
    a launcher is alone. Raises InputError for a mesh that does not have all processes.
    """
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ:
            return Place(_torch.HashStore(), 0, 1, 0, 1)
        dist.init_process_group()
        atexit.register(_end_default)
    store = _torch.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    if mesh is None:
        return Place(store, rank, size, rank, size)
    if not isinstance(mesh, DeviceMesh) or mesh.size() != size:
        raise InputError(
            f"mesh: it must be a DeviceMesh of all {size} processes, whose first dimension is the "
            "islands: init_device_mesh(device, (islands, processes of an island))"
        )
    island, *inner = mesh.get_coordinate() or ()
    members = frozenset(mesh.mesh[island].flatten().tolist())
    return Place(store, rank, size, island, mesh.size(0), f"place {inner}", members)


def _end_default() -> None:
    """End the group that `place` began, before the interpreter ends."""
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


class Transport(Connections):
    """One process's connections to the others.

    `start`: a vector of the length of messages, which is not stored; `timeout`: seconds after which
    a silent process counts as failed. `step`: this process's last step; `failed`: whether any
    process cannot continue.

    A process writes to the store that it has failed, or that it is in a meeting, so that others do
    not wait in vain. A waiting process looks there, and raises RunError if no answer can come.
    """

    network: OpenNetwork
    collectives: Collectives
    team: DeviceGroup

    def __init__(self, where: Place, start: Tensor, timeout: float) -> None:
        self._place, rank, self.workers = where, where.worker, where.workers
        self._everyone = rendezvous.sub_store(where.store, f"paceline {next(_numbers)}")
        store = rendezvous.sub_store(self._everyone, where.inner)
        meter = TensorMeter(start.nbytes, start.numel())
        start = start.new_zeros(1).expand(len(start))
        super().__init__(store, rank, start, Accounting(meter, OpenNetwork(), Clock()), timeout)
        self.step, self.failed, self._meetings = 0, False, 0
        self.open_team(self.workers, self._native(start.device))
        self.team.look = self.look
        self._meeting = self._kept(self._gloo("meetings", self.workers, timeout))

    def _native(self, where: torch.device) -> bool:
        """Return whether NCCL averages: the user's backend for GPUs, and each worker has one."""
        if where.type == "cpu" or self.workers == 1 or "nccl" not in _torch.get_backend_config():
            return False
        return rendezvous.share_devices(self.store, self.rank, where, self.workers)[1]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Send rank 0's values to all ranks."""
        for tensor in tensors:
            # bytes, so that the sum with zeros is exact for every dtype
            values = tensor.detach().reshape(-1).view(torch.uint8)
            copied = (torch.zeros_like if self.rank else torch.clone)(values)
            total = self.team.total(copied.detach)
            tensor.data.copy_(total.wait().view(tensor.dtype).view(tensor.shape))

    def meet(self, what: str, settings: Any = None) -> None:
        """Wait until all processes do this after the same step, under the same settings.

        Raises RunError on all processes if they do not.
        """
        self._meetings += 1
        alike = str(crc32(repr((what, settings)).encode()))
        doing = f"process {self._place.rank} {what}"
        here = "|".join([str(self.step), str(self.collectives.started), alike, doing])
        first = self.store.compare_set(f"meeting {self._meetings}", "", here).decode().split("|")
        if first[0] != str(self.step):
            raise self._uneven(first)
        if first[2] != alike:
            raise RunError(f"{first[3]}, {doing}: all must do the same, with the same settings")
        tell(self._meeting, [0.0], self.team.finish).wait()

    def _uneven(self, first: Sequence[str]) -> RunError:
        return RunError(
            f"{first[3]} after step {first[0]}, process {self._place.rank} is at step {self.step}: "
            "all must do that after the same step; give all equally many batches (drop_last)"
        )

    def fail(self, why: object) -> None:
        """Tell the other processes that this one cannot continue; the first reason counts.

        It leaves the groups, so that the others' waits fail. A group with a collective under way
        ends only once the others have also left it, so a thread waits for that.
        """
        if self._place.processes == 1 or self.failed:
            return
        self.failed = True
        with suppress(RuntimeError):  # of a store whose process has ended
            first = f"process {self._place.rank} failed at step {self.step}: "
            why = first * (not isinstance(why, RunError)) + str(why)
            self._everyone.compare_set("failed", "", why)
        groups = self._let_go()
        while groups:
            threading.Thread(target=id, args=(groups.pop(),)).start()

    def _let_go(self) -> list[Any]:
        """Drop the groups, and return them: each ends with its last reference."""
        groups = [self.team._group, *self._groups]
        self.team._group = self.flags = self._meeting = self.collectives.flags = None
        self._groups = []
        return groups

    def look(self) -> None:
        """Raise RunError if this process waits for something that cannot arrive."""
        if self.failed or self._everyone.check(["failed"]):
            raise RunError(self.lost())
        if self.store.check([key := f"meeting {self._meetings + 1}"]):
            first = self.store.get(key).decode().split("|")
            if self.step > int(first[0]) or self.collectives.started > int(first[1]):
                raise self._uneven(first)

    def close(self) -> None:
        """Complete operations once all ranks have met, and end; at once if one has failed."""
        if not self.failed:
            self.collectives.land()
            # the first rank's process may serve the store, which ends with it
            count, until = self._everyone.add("left", 1), time.monotonic() + self.timeout
            first, processes = self._place.rank == 0, self._place.processes
            while first and count < processes and time.monotonic() < until:
                if self._everyone.check(["failed"]):
                    break  # a process of another place in the islands never gets here
                time.sleep(rendezvous.LOOK)
                count = self._everyone.add("left", 0)
        super().close()
        self._let_go()  # here their threads may still take the interpreter's lock, not at its end

    def lost(self) -> str:
        """Return why another process does not answer."""
        with suppress(RuntimeError):  # of a store whose process has ended
            if self._everyone.check(["failed"]):
                return str(self._everyone.get("failed").decode())
        return (
            f"another process has ended, or has not answered for {self.timeout:g} s; see its output"
        )
