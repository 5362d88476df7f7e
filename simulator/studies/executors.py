"""What runs tasks: this process, processes on this machine, or a Dask cluster."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.studies.processes import DiedError, Processes, cores, interrupts_held

__all__ = ["cores", "results", "start"]

T = TypeVar("T")
R = TypeVar("R")


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
        if _is_imported_by_a_child():
            raise SystemExit(1)  # its parent says what is wrong, once
        pool = Processes(jobs)
        try:
            yield pool
        except BaseException:  # do not wait for tasks that nobody wants any more
            pool.abort()
            raise
        pool.shutdown()


def results(
    executor: Executor | None,
    work: Callable[[T], R],
    tasks: Mapping[int, T],
    called: Callable[[T], str],
) -> Iterator[tuple[int, R]]:
    """Do the tasks; yield each result, with its task's key, as soon as it is there.

    Raises RunError, with what the task is `called`, when a process dies twice of one task.
    """
    if executor is None:
        for key, task in tasks.items():
            yield key, work(task)
        return
    with interrupts_held():  # also by the threads and processes that this starts
        futures = {executor.submit(work, task): key for key, task in tasks.items()}
    for future in as_completed(futures):
        try:
            result = future.result()
        except DiedError as died:
            raise RunError(f"{called(tasks[futures[future]])}: {died}") from None
        yield futures[future], result


def _is_imported_by_a_child() -> bool:
    """Whether a script asks for jobs while a process of such jobs imports it."""
    named = multiprocessing.current_process().name != "MainProcess"
    return named and multiprocessing.parent_process() is None


def _client(address: str) -> Any:
    """Connect to a Dask scheduler."""
    try:
        from distributed import Client  # noqa: PLC0415 - an extra, and half a second
        from distributed.comm.addressing import get_address_host_port  # noqa: PLC0415
    except ImportError:
        raise InputError(
            f'dask {address}: Dask is not installed; pip install "paceline[cluster]"'
        ) from None
    try:
        if "inproc" not in address:  # a client of what is no address waits 20 s for its own end
            get_address_host_port(address)
        connect: Callable[..., Any] = Client  # it has no types
        return connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"dask {address}: no scheduler answers ({error}); give its address, such as "
            "tcp://host:8786"
        ) from error
