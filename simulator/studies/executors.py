"""Run tasks in this process, in processes on this machine, or on a Dask cluster."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from ..engines.observer import TELL
from ..errors import InputError, RunError
from .execution import Execution
from .processes import DiedError, Processes, interrupts_held

T = TypeVar("T")
R = TypeVar("R")

PATIENCE, PULSE = 10.0, 2.0  # seconds without a word on what is done: by others, and in here


@contextmanager
def start(execution: Execution) -> Iterator[Executor | None]:
    """Yield an executor of tasks: processes, or a Dask cluster; None stands for this very process.

    Raises InputError where no Dask scheduler answers.
    """
    if execution.dask is not None:
        with _client(execution.dask) as client, client.get_executor(pure=False) as cluster:
            yield cluster
    elif execution.jobs == 1:
        yield None
    else:
        if _is_imported_by_a_child():
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
    """What is done with a task: `do` it; describe it, and count its `runs`."""

    do: Callable[[T], R]
    description: Callable[[T], str]
    runs: Callable[[T], int] = lambda task: 1


def results(
    executor: Executor | None,
    work: Work[T, R],
    tasks: Mapping[int, T],
    waiting: Callable[[float], None] = lambda runs: None,
) -> Iterator[tuple[int, R]]:
    """Do `work` with each task; yield each result, with its task's key, as soon as it is there.

    `waiting` is called every `PATIENCE` seconds meanwhile; if tasks run in this very process, every
    `PULSE` seconds with how many of the `runs` of the task under way are done, and share of one.
    Raises RunError, which begins with the task's description, when a process dies twice of it.
    """
    if executor is None:
        for key, task in tasks.items():
            context = copy_context()
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
            waiting(0.0)
            ended = as_completed(futures, PATIENCE)
            continue
        key = futures.pop(future)
        try:
            result = future.result()
        except DiedError as died:
            raise RunError(f"{work.description(tasks[key])}: {died}") from None
        yield key, result


def _counted(tell: Callable[[float], None], runs: int) -> Callable[[float], None]:
    """Return what takes the shares that are done of one run after another, to tell their sum."""
    said, ended, last, reached = monotonic(), 0, 0.0, 0.0

    def told(share: float) -> None:
        nonlocal said, ended, last, reached
        ended += share == 0 < last
        last, reached = share, max(reached, min(runs, ended + share))
        if (now := monotonic()) >= said + PULSE:
            said = now
            tell(reached)

    return told


def _is_imported_by_a_child() -> bool:
    """Whether a script asks for jobs while a process of its own jobs imports it."""
    named = multiprocessing.current_process().name != "MainProcess"
    return named and multiprocessing.parent_process() is None


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
