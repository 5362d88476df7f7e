"""The processes of one run: collectives of torch.distributed on plain buffers.

Collectives start in the order of the calls, on every rank the same; any number may be under way.
gloo works on the host's memory, so buffers of a GPU are copied there by a stream of their own, and
their collective starts once they have arrived. NCCL takes them where they are.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

THREADS = 8  # of gloo: collectives of one group under way at once; the rest queue
TASKS = Path("/proc/self/task")
FOREVER = 1e7  # seconds: silence of a peer is no failure, as whoever dies ends all

Make = Callable[[], Tensor]
Works = list[Any]


class Pending:
    """A collective under way: its works, or the future of them, and what brings its result."""

    def __init__(self, works: "Works | Future[Works]", result: Make) -> None:
        self._works, self._result = works, result

    def done(self) -> bool:
        """Whether it is finished here."""
        if isinstance(self._works, Future):
            if not self._works.done():
                return False
            self._works = self._works.result()
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Tensor:
        """The result, once it is there. Raises RuntimeError when a peer is gone, or too late."""
        works = self._works.result() if isinstance(self._works, Future) else self._works
        for work in works:
            work.wait()
        return self._result()


class DeviceGroup:
    """Collectives of a process group that takes tensors of its own device."""

    def __init__(self, group: Any) -> None:
        self._group, self._size = group, group.size()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._last: Future[Works] | None = None

    def total(self, buffer: Make, after: Callable[[], None] | None = None) -> Pending:
        """Start the sum over all ranks of what `buffer()` makes, which is overwritten.

        `buffer` is called, on a thread, once `after` has returned; if there is none, at once.
        """
        return self._start(buffer, after, lambda mine, _: [self._group.allreduce([mine])])

    def gather(self, buffer: Make, after: Callable[[], None] | None = None) -> Pending:
        """Start gathering everybody's buffer, all of one length: shape (ranks, length)."""

        def begin(mine: Tensor, found: list[Tensor]) -> Works:
            found[:] = [torch.empty_like(mine) for _ in range(self._size)]
            return [self._group.allgather([found], [mine])]

        return self._start(buffer, after, begin, torch.stack)

    def _start(
        self,
        buffer: Make,
        after: Callable[[], None] | None,
        begin: Callable[[Tensor, list[Tensor]], Works],
        join: Callable[[list[Tensor]], Tensor] = lambda found: found[0],
    ) -> Pending:
        buffer, after = self._ready(buffer, after)
        found: list[Tensor] = []

        def start() -> Works:
            found.append(self._bring(buffer()))
            return begin(found[0], found)

        return Pending(self._in_order(start, after), lambda: self._land(join(found)))

    def _in_order(
        self, start: Callable[[], Works], after: Callable[[], None] | None
    ) -> "Works | Future[Works]":
        """Start at once, unless this one must wait, or another one before it does."""
        if after is None and (self._last is None or self._last.done()):
            return start()

        def run() -> Works:
            if after is not None:
                after()
            return start()

        self._last = self._thread.submit(run)
        return self._last

    def _ready(
        self, buffer: Make, after: Callable[[], None] | None
    ) -> tuple[Make, Callable[[], None] | None]:
        """What to call for the buffer, and after what."""
        return buffer, after

    def _bring(self, buffer: Tensor) -> Tensor:
        return buffer

    def _land(self, result: Tensor) -> Tensor:
        return result

    def close(self) -> None:
        """End the thread, after what it has been given."""
        self._thread.shutdown()


class OnDevice(DeviceGroup):
    """Collectives of NCCL, which takes tensors of a GPU only."""

    def __init__(self, group: Any, device: torch.device) -> None:
        super().__init__(group)
        self._device = device

    def _bring(self, buffer: Tensor) -> Tensor:
        return buffer.to(self._device)


class Staged(DeviceGroup):
    """Collectives of gloo on buffers of a GPU, which travel through the host's memory."""

    def __init__(self, group: Any, device: torch.device) -> None:
        super().__init__(group)
        self._device = device
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def _ready(
        self, buffer: Make, after: Callable[[], None] | None
    ) -> tuple[Make, Callable[[], None] | None]:
        """Begin to copy the buffer to the host, unless what it is made of is not there yet."""
        if after is not None:
            return buffer, after
        made = buffer()
        if not made.is_cuda:
            return lambda: made, None
        host = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            host.copy_(made, non_blocking=True)
            made.record_stream(self._copies)
            arrived = self._copies.record_event()
        return lambda: host, arrived.synchronize

    def _bring(self, buffer: Tensor) -> Tensor:
        return buffer.cpu()

    def _land(self, result: Tensor) -> Tensor:
        return result.to(self._device)


def gloo(store: Any, rank: int, size: int, timeout: float) -> Any:
    """A gloo group of processes: by the interface GLOO_SOCKET_IFNAME where that is set.

    `timeout`: seconds that one of its operations may take.
    """
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timedelta(seconds=timeout)
    options._threads = THREADS
    options._devices = [_device(kind)]
    group = kind(store, rank, size, options)
    deprioritise_socket_threads()
    return group


def _device(kind: Any) -> Any:
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return kind.create_device(interface=interface)
    if "PACELINE_STORE" in os.environ:  # all on this machine
        return kind.create_device(hostname="127.0.0.1")
    return kind.create_default_device()


def nccl(store: Any, rank: int, size: int, timeout: float) -> Any:
    """An NCCL group of processes, each of which has a GPU of its own."""
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(seconds=timeout)
    return kind(store, rank, size, options)


def deprioritise_socket_threads() -> bool:
    """Let gloo's socket threads, which spin, give way to those that compute; whether they all do.

    SCHED_BATCH, where that is permitted.
    """
    found = []
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        with suppress(OSError):  # a thread has ended
            if (task / "comm").read_text().startswith("gloo"):
                found.append(_calm(int(task.name)))
    return bool(found) and all(found)


def _calm(thread: int) -> bool:
    try:
        os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    except PermissionError:
        return False
    return True
