"""Run tasks in this process, in processes on this machine, or on a Dask cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from multiprocessing import resource_tracker
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from ..engines.observer import TELL
from ..errors import InputError, RunError
from .execution import Execution, cores

T = TypeVar("T")
R = TypeVar("R")

PATIENCE, PULSE = 10.0, 2.0  # seconds without a word on what is done: by others, and in here
TRIES = 2  # of a task whose process dies


UNDER_WAY: ContextVar[str] = ContextVar("UNDER_WAY", default="")
"""The description of the task that is being worked on, of several the first to begin."""


class DiedError(Exception):
    """Raised when the process of a task has died each time; the message says how."""


class Alone(NamedTuple):
    """A pool of one process, and that process."""

    pool: ProcessPoolExecutor
    child: Any


class Processes(ThreadPoolExecutor):
    """A pool of processes, each with a thread here that waits for it.

    So the task that a process dies of is known, and no other is affected. In one
    `ProcessPoolExecutor` for all, the first death ends every task.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        resource_tracker.ensure_running()  # now: a thread that starts it would let Ctrl-C in again
        self._jobs, self._over = jobs, False
        self._own = threading.local()
        self._started: list[Alone] = []
        self._starting = threading.Lock()

    def submit(self, work: Callable[..., Any], /, *task: Any, **options: Any) -> Future[Any]:
        """Submit a task. Its future raises DiedError if its process dies `TRIES` times."""
        return super().submit(self._do, work, *task, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes once their tasks are done."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for alone in self._started:
            alone.pool.shutdown(wait)

    def abort(self) -> None:
        """End all processes at once."""
        with self._starting:
            self._over = True
            super().shutdown(wait=False, cancel_futures=True)
            for alone in self._started:
                alone.child.terminate()
        for alone in self._started:
            alone.child.join()

    def _do(self, work: Callable[..., Any], /, *task: Any, **options: Any) -> Any:
        status: int | None = None
        for _ in range(TRIES):
            alone: Alone = getattr(self._own, "alone", None) or self._start()
            try:
                return alone.pool.submit(work, *task, **options).result()
            except BrokenProcessPool:
                self._own.alone = None
                alone.pool.shutdown()
                status = alone.child.exitcode
        raise DiedError(
            f"its process died {how(status)}, and again when it was repeated; unless someone "
            "killed it, memory ran out (ask for fewer jobs), or it ends itself"
        )

    def _start(self) -> Alone:
        with self._starting:
            if self._over:
                raise CancelledError
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, spawn, _begin, (self._jobs,))
            up = pool.submit(int)
            (child,) = pool._processes.values()
            self._own.alone = alone = Alone(pool, child)
            self._started.append(alone)
        try:
            up.result()
        except BrokenProcessPool:
            raise RuntimeError(
                "a process of the pool has died: a script that asks for jobs must do so under "
                '`if __name__ == "__main__":`; where that is so, memory has run out: ask for fewer '
                "jobs"
            ) from None
        return alone


def how(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:  # its status was collected elsewhere
        return "unseen"
    return f"by signal {-status}" if status < 0 else f"with status {status}"


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C inside the block; processes started there always ignore it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(jobs: int) -> None:
    """Share the cores with the pool's other processes, and end with the parent.

    More threads of OpenMP (torch) than cores wait for each other busily, which more than doubles
    the time of small models. A user's own setting stands.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def start(execution: Execution) -> Iterator[Executor | None]:
    """Yield an executor of tasks, processes or a Dask cluster; None: this process.

    Raises InputError where no Dask scheduler answers.
    """
    if execution.dask is not None:
        with _client(execution.dask) as client, client.get_executor(pure=False) as cluster:
            yield cluster
    elif execution.jobs == 1:
        yield None
    else:
        named = multiprocessing.current_process().name != "MainProcess"
        if named and multiprocessing.parent_process() is None:  # a child imports a script that asks
            raise SystemExit(1)  # its parent reports the mistake, once
        pool = Processes(execution.jobs)
        try:
            yield pool
        except BaseException:  # do not wait for tasks whose results are not wanted any more
            pool.abort()
            raise
        pool.shutdown()


@dataclass(frozen=True)
class Work(Generic[T, R]):
    """The work of a task: `do` it, describe it, and count its `runs`."""

    do: Callable[[T], R]
    description: Callable[[T], str]
    runs: Callable[[T], int] = lambda task: 1


def results(
    executor: Executor | None,
    work: Work[T, R],
    tasks: Mapping[int, T],
    waiting: Callable[[float], None] = lambda runs: None,
) -> Iterator[tuple[int, R]]:
    """Do `work` with each task; yield each result, with its task's key, at once.

    `waiting` is called every `PATIENCE` seconds meanwhile; if tasks run in this very process, every
    `PULSE` seconds with how many of the `runs` of the task under way are done, and share of one.
    Raises RunError, which begins with the task's description, when a process dies twice of it.
    """
    if executor is None:
        for key, task in tasks.items():
            context = copy_context()
            context.run(UNDER_WAY.set, work.description(task))
            context.run(TELL.set, _counted(waiting, work.runs(task)))
            yield key, context.run(work.do, task)
        return
    with interrupts_held():  # in the threads and processes that this starts, too
        futures = {executor.submit(work.do, task): key for key, task in tasks.items()}
    ended = as_completed(futures, PATIENCE)
    while futures:
        try:
            future = next(ended)
        except TimeoutError:
            longest = next((key for future, key in futures.items() if future.running()), None)
            UNDER_WAY.set("" if longest is None else work.description(tasks[longest]))
            waiting(0.0)
            ended = as_completed(futures, PATIENCE)
            continue
        key = futures.pop(future)
        try:
            yield key, future.result()
        except DiedError as died:
            raise RunError(f"{work.description(tasks[key])}: {died}") from None


def _counted(tell: Callable[[float], None], runs: int) -> Callable[[float], None]:
    """Return a function that adds up the finished shares of runs, one after another."""
    said, ended, last, reached = monotonic(), 0, 0.0, 0.0

    def told(share: float) -> None:
        nonlocal said, ended, last, reached
        ended += share == 0 < last
        last, reached = share, max(reached, min(runs, ended + share))
        if (now := monotonic()) >= said + PULSE:
            said = now
            tell(reached)

    return told


def _client(address: str) -> Any:
    try:
        from distributed import Client  # noqa: PLC0415 - an extra, and half a second
        from distributed.comm.addressing import get_address_host_port  # noqa: PLC0415
    except ImportError:
        raise InputError(
            f'dask {address}: Dask is not installed; pip install "paceline[cluster]"'
        ) from None
    try:
        if "inproc" not in address:  # a client of a wrong address takes 20 s to give up
            get_address_host_port(address)
        connect: Callable[..., Any] = Client  # it has no types
        return connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"dask {address}: no scheduler answers ({error}); give its address, such as "
            "tcp://host:8786"
        ) from error
