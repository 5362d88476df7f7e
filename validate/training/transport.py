"""Run collectives of torch.distributed on plain buffers between a run's processes.

Collectives start in the order of the calls, the same on every rank, because torch.distributed
matches them only by order. Any number can be under way. A collective that must wait (for a copy
from a GPU, or for an earlier result) is queued on one thread, like every later one until the queue
is empty. So the order is preserved, and a start never blocks the program.

gloo works on the host's memory: buffers of a GPU are copied there first (`Staged`), and a sum does
so in chunks, which travel while others are copied. NCCL works on the GPU's memory (`Native`); its
collectives follow the stream on which their buffer is made, and the host sleeps until they have
ended, so that the clock then shows their end.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor

from ..host.device import Device, fetch, host, put

CHUNK = 2**24  # bytes of a sum that are copied from or to a GPU, or travel, at once
THREADS = 16  # gloo's collectives of one group that run at once; others queue
TASKS = Path("/proc/self/task")
GUARDED = 0.1  # share of the time limit between checks of waits that cannot be interrupted
GLANCE = timedelta(seconds=0.5)  # seconds between looks during a collective of gloo
FOREVER = 1e7  # seconds: quiet peers have not failed, and the launcher sees dead ones

Make = Callable[[], Tensor]
Works = list[Any]
After = Callable[[], object] | None
Join = Callable[[list[Tensor]], Tensor]
first: Join = itemgetter(0)


class Pending:
    """A collective under way: its works (or their future), and its result, made once."""

    def __init__(
        self,
        works: "Works | Future[Works]",
        result: Make,
        land: Callable[[Works], None] | None = None,
    ) -> None:
        self._works, self._result, self._land = works, result, land
        self._lock = threading.Lock()
        self._made: Tensor | None = None

    def done(self) -> bool:
        """Return whether the collective is finished on this rank."""
        if isinstance(self._works, Future):
            if not self._works.done():
                return False
            self._works = self._works.result()
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Tensor:
        """Wait for the result. Raises RuntimeError if a peer has died or is too slow."""
        with self._lock:
            if self._made is None:
                works = self._works.result() if isinstance(self._works, Future) else self._works
                (self._land or finish)(works)
                self._made, self._works = self._result(), []  # the works hold memory of the host
            return self._made


def finish(works: Works, look: Callable[[], None] | None = None) -> None:
    """Wait for gloo's operations on the host's memory, calling `look` now and then."""
    for work in works:
        while look is not None and not work.is_completed():
            with suppress(RuntimeError):  # the wait below raises it again
                work.wait(GLANCE)
            if not work.is_completed():
                look()
        work.wait()


class DeviceGroup:
    """Collectives of a group on tensors of its device, such as gloo's on a CPU.

    `device`: the device to which buffers are moved, and on which results are. `look`: called now
    and then while waiting for gloo; an exception from it ends the wait.
    """

    def __init__(self, group: Any, device: Device) -> None:
        self._group, self._size, self._device = group, group.size(), device
        self.look: Callable[[], None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._last: Callable[[], Future[Works] | None] = lambda: None

    def total(self, buffer: Make, after: After = None) -> Pending:
        """Start the sum over all ranks of `buffer()`, which is overwritten.

        `buffer` is called immediately or, with `after`, on a thread once `after()` has returned.
        """
        return self._start(buffer, after, lambda mine, _: [self._group.allreduce([mine])])

    def gather(self, buffer: Make, after: After = None) -> Pending:
        """Start gathering the ranks' buffers, all of one length: shape (ranks, length)."""

        def begin(mine: Tensor, buffers: list[Tensor]) -> Works:
            buffers[:] = [torch.empty_like(mine) for _ in range(self._size)]
            return [self._group.allgather([buffers], [mine])]

        return self._start(buffer, after, begin, torch.stack)

    def mean_of_parts(self, buffer: Make, mean: Callable[[Tensor], Tensor]) -> Pending:
        """Start a reduce-scatter and an all-gather of `buffer()`, in a part per rank.

        Each rank turns all ranks' buffers of one part into their `mean`: shape (ranks, length of a
        part) to (length of a part,).
        """

        def begin(mine: Tensor, buffers: list[Tensor]) -> Works:
            buffers[:] = [torch.empty_like(mine)]
            return [self._group.alltoall_base(buffers[0], mine, [], [])]

        spread = self._start(buffer, None, begin)
        return self.gather(lambda: mean(spread.wait().reshape(self._size, -1)), lambda: None)

    def _start(
        self,
        buffer: Make,
        after: After,
        begin: Callable[[Tensor, list[Tensor]], Works],
        join: Join = first,
    ) -> Pending:
        buffers: list[Tensor] = []
        buffer, after = self._staged(buffer, after)

        def start() -> Works:
            buffers.append(self._bring(buffer()))
            return begin(buffers[0], buffers)

        works = self._queue(start, after)
        return Pending(works, lambda: put(join(buffers), self._device.where), self._land)

    def _queue(self, start: Callable[[], Works], after: After) -> Works | Future[Works]:
        """Call `start` now, or on the thread, in the order of calls, after `after`."""
        if after is None and ((last := self._last()) is None or last.done()):
            return start()

        def start_after() -> Works:
            if after is not None:
                after()
            return start()

        works = self._thread.submit(start_after)
        self._last = ref(works)
        return works

    def _staged(self, buffer: Make, after: After) -> tuple[Make, After]:
        """Return how to make the buffer, and what comes before that."""
        return buffer, after

    def _bring(self, buffer: Tensor) -> Tensor:
        return put(buffer, self._device.where)

    def finish(self, works: Works) -> None:
        """Wait for works of gloo, of this group or another of these processes."""
        finish(works, self.look)

    def _land(self, works: Works) -> None:
        self.finish(works)

    def close(self) -> None:
        """End the thread after its queue, and the group."""
        self._thread.shutdown()
        shut(self._group)


class Native(DeviceGroup):
    """Collectives of NCCL; a wait of more than `timeout` seconds ends the process."""

    def __init__(self, group: Any, device: Device, timeout: float) -> None:
        super().__init__(group, device)
        self._timeout, self._waits = timeout, dict[int, float]()
        self._closed = threading.Event()
        threading.Thread(target=self._guard, daemon=True).start()

    def _land(self, works: Works) -> None:
        self._waits[threading.get_ident()] = time.monotonic()
        try:
            self._device.land(works)
        finally:
            del self._waits[threading.get_ident()]

    def _guard(self) -> None:
        """End the process if a wait takes too long, because nothing can interrupt it."""
        while not self._closed.wait(GUARDED * self._timeout):
            since = min(list(self._waits.values()), default=inf)
            if time.monotonic() - since > self._timeout:
                message = f"RuntimeError: Timed out waiting {self._timeout:g} s for a collective\n"
                os.write(2, message.encode())  # `launch` searches logs for this
                os._exit(1)

    def close(self) -> None:
        """End the guard, the thread and the group."""
        self._closed.set()
        super().close()


class Staged(DeviceGroup):
    """Collectives of gloo on buffers of a GPU, copied through the host's memory.

    A sum's buffer is copied in chunks of `CHUNK` bytes. The all-reduce of a chunk starts when its
    copy has ended, and its result is copied back when that has ended, beside the other chunks. gloo
    adds an entry over the ranks in an order that depends on its place in the chunk: so sums equal
    those of a whole buffer to the last bit for two ranks, and to rounding for more.
    """

    def total(self, buffer: Make, after: After = None) -> Pending:
        """Start the sum over all ranks of `buffer()`, in chunks."""
        chunks, total = list[Tensor](), list[Tensor]()

        def copies() -> list[Make]:
            whole = buffer()
            return [fetch(part) for part in whole.tensor_split(-(-whole.nbytes // CHUNK) or 1)]

        coming = [] if after else copies()

        def start() -> Works:
            works = []
            for chunk in coming or copies():
                chunks.append(chunk())
                works.append(self._group.allreduce([chunks[-1]]))
            return works

        def land(works: Works) -> None:
            total.append(chunks[0].new_empty(sum(map(len, chunks)), device=self._device.where))
            parts = total[0].tensor_split(len(chunks))
            for work, chunk, part in zip(works, chunks, parts, strict=True):
                self.finish([work])
                part.copy_(chunk, non_blocking=True)

        return Pending(self._queue(start, after or (lambda: None)), lambda: total[0], land)

    def _staged(self, buffer: Make, after: After) -> tuple[Make, After]:
        """Begin to copy the buffer to the host, unless it must wait for another result."""
        coming = buffer if after else fetch(buffer())
        return coming, after or coming

    def _bring(self, buffer: Tensor) -> Tensor:
        return host(buffer)


def tell(
    group: Any, numbers: Sequence[float], land: Callable[[Works], None] | None = None
) -> Pending:
    """Start sending these numbers to every rank; the result has a row for each rank.

    `group`: a gloo group for such numbers alone, so that they never wait behind bulk data; `land`:
    waits for its works.
    """
    mine = torch.tensor([list(numbers)] * group.size(), dtype=torch.float64)
    theirs = torch.empty_like(mine)
    return Pending([group.alltoall_base(theirs, mine, [], [])], lambda: theirs, land)


def gloo(store: Any, rank: int, size: int, timeout: float) -> Any:
    """Return a gloo group, on the interface GLOO_SOCKET_IFNAME if that is set.

    `timeout`: time limit of an operation in seconds.
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


def shut(group: Any) -> None:
    """Shut a process group down; call it after its last collective on all ranks."""
    if hasattr(group, "shutdown"):  # since torch 2.7 by this name
        group.shutdown()


def deprioritise_socket_threads() -> None:
    """Give gloo's spinning socket threads low priority, by SCHED_BATCH."""
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        with suppress(OSError):  # the thread has ended, or this is not permitted
            if (task / "comm").read_text().startswith("gloo"):
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
