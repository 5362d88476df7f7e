"""What runs tasks: this process, processes on this machine, or a Dask cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from simulator.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def start(jobs: int, dask: str | None) -> Iterator[Executor | None]:
    """Start what runs tasks: `jobs` processes, or the Dask cluster at address `dask`.

    None stands for this very process. Raises InputError where no Dask answers.
    """
    if dask is not None:
        with _client(dask) as client, client.get_executor(pure=False) as cluster:
            yield cluster
    elif jobs == 1:
        yield None
    else:
        before = multiprocessing.active_children()
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin, initargs=(jobs,))
        try:
            yield pool
        except BaseException:  # do not wait for tasks that nobody wants any more
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in before:
                    child.terminate()
            raise
        pool.shutdown()


def results(
    executor: Executor | None, work: Callable[[T], R], tasks: Mapping[int, T]
) -> Iterator[tuple[int, R]]:
    """Do the tasks; yield each result, with its task's key, as soon as it is there.

    Raises RuntimeError when a process ends before its task.
    """
    if executor is None:
        for key, task in tasks.items():
            yield key, work(task)
        return
    try:
        futures = _submit(executor, work, tasks)
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a process of the pool has died: a script that asks for jobs must do so under "
            '`if __name__ == "__main__":`; where that is so, memory has run out: ask for fewer jobs'
        ) from None


def _submit(
    executor: Executor, work: Callable[[T], R], tasks: Mapping[int, T]
) -> dict[Future[R], int]:
    try:
        with _interrupts_held():
            return {executor.submit(work, task): key for key, task in tasks.items()}
    except BrokenProcessPool:
        raise
    except RuntimeError:
        named = multiprocessing.current_process().name != "MainProcess"
        if named and multiprocessing.parent_process() is None:
            # a child that still imports a script without that guard: its parent says it, once
            raise SystemExit(1) from None
        raise


def _client(address: str) -> Any:
    """Connect to a Dask scheduler."""
    try:
        from distributed import Client  # noqa: PLC0415 - an extra, and half a second
    except ImportError:
        raise InputError(
            f'dask {address}: Dask is not installed; pip install "paceline[cluster]"'
        ) from None
    try:
        connect: Callable[..., Any] = Client  # it has no types
        return connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"dask {address}: no scheduler answers ({error}); give its address, such as "
            "tcp://host:8786"
        ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back meanwhile; processes started in here leave it to this one for good."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(jobs: int) -> None:
    """Share the cores with the pool's other processes, and end with the parent, even a killed one.

    Threads of OpenMP (torch) that are more than the cores wait for each other busily, which more
    than doubles the time of small models. What a user has set stands.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
