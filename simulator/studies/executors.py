"""Run tasks in this process, in several, or on a Dask cluster; store their results."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from ..engines.observer import TELL
from ..errors import InputError, RunError
from ..results import store
from ..results.store import Destination
from .execution import Execution, Progress, cores

T = TypeVar("T")
R = TypeVar("R")

PATIENCE, PULSE = 10.0, 2.0  # seconds between reports of progress: by others, by us
SHARED = "/dev/shm"  # where Linux keeps the locks that processes share

UNDER_WAY: ContextVar[str] = ContextVar("UNDER_WAY", default="")
"""The description of the running task, or of the first of several."""


class Processes(ProcessPoolExecutor):
    """Processes on this machine, which share its cores."""

    def __init__(self, jobs: int) -> None:
        resource_tracker.ensure_running()  # a later start would restore Ctrl-C's handler
        super().__init__(jobs, multiprocessing.get_context("spawn"), _begin, (jobs,))

    def abort(self) -> None:
        """End all processes at once."""
        pool: Any = self
        children, calls, results_ = pool._processes or {}, pool._call_queue, pool._result_queue
        children = [*children.values()]
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        # Otherwise its thread waits at exit to send a task, or for the rest of a result.
        if calls is not None:
            calls.cancel_join_thread()
            results_._writer.close()


def _begin(jobs: int) -> None:
    """Set up a process: share the cores with the pool, and end with the parent."""
    # More threads than cores wait for each other busily, which doubles the time of small models.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def start(execution: Execution) -> Iterator[Executor | None]:
    """Yield an executor of tasks; None: this process. Raises InputError if there is none."""
    if execution.dask is not None:
        with _client(execution.dask) as client, client.get_executor(pure=False) as cluster:
            yield cluster
    elif execution.jobs == 1:
        yield None
    else:
        named = multiprocessing.current_process().name != "MainProcess"
        if named and multiprocessing.parent_process() is None:  # a child process imports the script
            raise SystemExit(1)  # the parent reports the mistake once
        try:
            pool = Processes(execution.jobs)
        except OSError as error:
            raise InputError(
                f"--jobs {execution.jobs}: processes need shared memory, and {SHARED} cannot be "
                f"used ({error.strerror}); mount it, or write --jobs 1"
            ) from None
        try:
            yield pool
        except BaseException:  # do not wait for tasks whose results are no longer needed
            pool.abort()
            raise
        pool.shutdown()


@dataclass(frozen=True)
class Work(Generic[T, R]):
    """The work of a task: `do` it, describe it, and count its `runs`.

    `versions`: of packages in every process. For `complete`, whose tasks are blocks of others:
    `key`, equal for equal results, and `blocks`, which groups their indices.
    """

    do: Callable[[T], R]
    description: Callable[[T], str]
    runs: Callable[[T], int] = lambda task: 1
    versions: Mapping[str, str] = field(default_factory=dict)
    key: Callable[[Any], str] | None = None
    blocks: Callable[[list[int]], Sequence[list[int]]] = lambda left: [[index] for index in left]


def checked(versions: Mapping[str, str], do: Callable[[T], R], task: T) -> R:
    """Do a task. Raises InputError if this process has other versions."""
    if versions:
        store.demand_versions(versions)
    return do(task)


def results(
    executor: Executor | None,
    work: Work[T, R],
    tasks: Mapping[int, T],
    waiting: Callable[[float], None] = lambda runs: None,
) -> Iterator[tuple[int, R]]:
    """Do `work` with every task; yield the key and result of each as soon as it ends.

    Meanwhile `waiting` is called every `PATIENCE` seconds; in this process every `PULSE` seconds,
    with the finished `runs` of the current task. Raises RunError if a process dies.
    """
    do = partial(checked, work.versions, work.do)
    if executor is None:
        for key, task in tasks.items():
            context = copy_context()
            context.run(UNDER_WAY.set, work.description(task))
            context.run(TELL.set, _counted(waiting, work.runs(task)))
            yield key, context.run(do, task)
        return
    posix = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if posix else ()
    try:
        try:  # the threads and processes started here also ignore Ctrl-C
            futures = {executor.submit(do, task): key for key, task in tasks.items()}
        finally:
            if posix:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended = as_completed(futures, PATIENCE)
        while futures:
            try:
                future = next(ended)
            except TimeoutError:
                longest = next((key for future, key in futures.items() if future.running()), None)
                UNDER_WAY.set("" if longest is None else work.description(tasks[longest]))
                waiting(0.0)
                ended = as_completed(futures, PATIENCE)
            else:
                yield futures.pop(future), future.result()
    except BrokenProcessPool:
        raise RunError(
            "a process died. Perhaps someone killed it, memory ran out (use fewer jobs), it ended "
            'itself, or a script asks for jobs outside of `if __name__ == "__main__":`'
        ) from None


class Place(NamedTuple):
    """Where a study runs and writes; `resumes`: if all programs' code has a version."""

    execution: Execution
    executor: Executor | None = None
    directory: Any = None
    resumes: bool = True

    @property
    def kept(self) -> Any:
        """The directory if it may store results."""
        return self.directory if self.resumes else None

    def executor_of(self, tasks: int) -> Executor | None:
        """Return the executor for `tasks` tasks; a single task runs here, to show its progress."""
        return None if tasks == 1 and self.execution.dask is None else self.executor


@contextmanager
def study(
    execution: Execution,
    kind: Callable[..., Any],
    settings: Mapping[str, Any],
    out: Path | str | Destination | None,
    overwrite: bool,
) -> Iterator[Place]:
    """Open the directory of a study, of this `kind`, and start its processes."""
    with ExitStack() as stack:
        directory = None
        if out is not None:
            opened = Destination.of(out, overwrite).open(kind, settings)
            directory = stack.enter_context(opened)
        executor = stack.enter_context(start(execution))
        yield Place(execution, executor, directory, not settings["programs"])


def complete(
    place: Place,
    work: Work[Sequence[T], list[R]],
    tasks: Sequence[T],
    progress: Progress | None = None,
) -> tuple[list[R], int]:
    """Return the result of every task (once by key), and how many runs were stored before."""
    stored, named = place.kept, work.key if place.resumes else None
    keys = [*map(named, tasks)] if named else [*map(str, range(len(tasks)))]
    first = {text: index for index, text in reversed([*enumerate(keys)])}
    every = sorted(first.values())
    done = {i: result for i in every if stored and (result := stored.find(keys[i])) is not None}
    runs = {index: work.runs([tasks[index]]) for index in every}
    ready = resumed = sum(runs[index] for index in done)

    def say(under_way: float = 0.0) -> None:
        if progress:
            progress(ready + under_way, sum(runs.values()))

    say()
    shares = work.blocks([index for index in every if index not in done])
    todo = {at: [tasks[index] for index in share] for at, share in enumerate(shares)}
    for at, made in results(place.executor_of(len(todo)), work, todo, say):
        for index, result in zip(shares[at], made, strict=True):
            done[index] = result
            if stored:
                stored.keep(keys[index], result)
        ready += sum(runs[index] for index in shares[at])
        say()
    return [done[first[text]] for text in keys], resumed


def _counted(tell: Callable[[float], None], runs: int) -> Callable[[float], None]:
    """Return a function that adds up the finished shares of runs, one after another."""
    reported, ended, last, reached = monotonic(), 0, 0.0, 0.0

    def told(share: float) -> None:
        nonlocal reported, ended, last, reached
        ended += share == 0 < last
        last, reached = share, max(reached, min(runs, ended + share))
        if (now := monotonic()) >= reported + PULSE:
            reported = now
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
        connect: Callable[..., Any] = Client  # distributed has no types
        return connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"dask {address}: no scheduler answers ({error}); give its address, such as "
            "tcp://host:8786"
        ) from error
