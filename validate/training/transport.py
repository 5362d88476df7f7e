"""Transport: collectives of torch.distributed on plain buffers, between the processes of one run.

Collectives start in the order of the calls, the same on every rank, as torch.distributed matches
them by order alone; any number can be under way. A collective that must wait (for a copy from a
GPU, or for the result that it is computed from) is queued on one thread, and so is every later one
until the queue is empty: one thread keeps the order, and the program never blocks in a start.

gloo works on the host's memory: buffers of a GPU are copied there on a CUDA stream of their own,
and their collective starts once the copy is complete (`Staged`). NCCL takes tensors where they are.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

THREADS = 16  # of gloo: collectives of one group that run at once; the rest queue
TASKS = Path("/proc/self/task")
FOREVER = 1e7  # seconds: a quiet peer has not failed, and a dead process ends the run anyway

Make = Callable[[], Tensor]
Works = list[Any]


class Pending:
    """A collective under way: its works, or a future of them, and a function for its result."""

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
        """Return the result when it is there. Raises RuntimeError if a peer is gone or too late."""
        works = self._works.result() if isinstance(self._works, Future) else self._works
        for work in works:
            work.wait()
        return self._result()


class DeviceGroup:
    """Collectives of a process group that takes tensors of its own device, as NCCL those of a GPU.

    `device`: where buffers are brought to, and results are.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._size, self._device = group, group.size(), device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._last: Future[Works] | None = None

    def total(self, buffer: Make, after: Callable[[], object] | None = None) -> Pending:
        """Start the sum over all ranks of the buffer that `buffer()` returns, which is overwritten.

        `buffer` is called at once or, with `after`, on a thread once `after()` has returned.
        """
        return self._start(buffer, after, lambda mine, _: [self._group.allreduce([mine])])

    def gather(self, buffer: Make, after: Callable[[], object] | None = None) -> Pending:
        """Start gathering the buffers of all ranks, of one length: shape (ranks, length)."""

        def begin(mine: Tensor, found: list[Tensor]) -> Works:
            found[:] = [torch.empty_like(mine) for _ in range(self._size)]
            return [self._group.allgather([found], [mine])]

        return self._start(buffer, after, begin, torch.stack)

    def _start(
        self,
        buffer: Make,
        after: Callable[[], object] | None,
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
        self, start: Callable[[], Works], after: Callable[[], object] | None
    ) -> "Works | Future[Works]":
        """Start at once, unless this collective or an earlier one must wait."""
        if after is None and (self._last is None or self._last.done()):
            return start()

        def run() -> Works:
            if after is not None:
                after()
            return start()

        self._last = self._thread.submit(run)
        return self._last

    def _ready(
        self, buffer: Make, after: Callable[[], object] | None
    ) -> tuple[Make, Callable[[], object] | None]:
        """Return the function that makes the buffer, and the one to wait for first."""
        return buffer, after

    def _bring(self, buffer: Tensor) -> Tensor:
        return buffer.to(self._device)

    def _land(self, result: Tensor) -> Tensor:
        return result

    def close(self) -> None:
        """End the thread after its queue."""
        self._thread.shutdown()


class Staged(DeviceGroup):
    """Collectives of gloo on buffers of a GPU, which travel through the host's memory."""

    def __init__(self, group: Any, device: torch.device) -> None:
        super().__init__(group, device)
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def _ready(
        self, buffer: Make, after: Callable[[], object] | None
    ) -> tuple[Make, Callable[[], object] | None]:
        """Begin to copy the buffer to the host, unless it must wait for another result."""
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


def tell(group: Any, numbers: Sequence[float]) -> Pending:
    """Start telling every rank these numbers, straight; the result has a row for each rank.

    `group`: one of gloo whose connections carry nothing else, so that no bulk is in front.
    """
    mine = torch.tensor([list(numbers)] * group.size(), dtype=torch.float64)
    theirs = torch.empty_like(mine)
    return Pending([group.alltoall_base(theirs, mine, [], [])], lambda: theirs)


def gloo(store: Any, rank: int, size: int, timeout: float) -> Any:
    """Return a gloo group of processes, on the interface GLOO_SOCKET_IFNAME if that is set.

    `timeout`: seconds that one of its operations can take.
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
    """Return an NCCL group of processes, each of which has a GPU of its own."""
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(seconds=timeout)
    return kind(store, rank, size, options)


def deprioritise_socket_threads() -> None:
    """Let gloo's spinning socket threads give way to computing ones, by SCHED_BATCH."""
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        with suppress(OSError):  # the thread has ended, or this is not permitted
            if (task / "comm").read_text().startswith("gloo"):
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
