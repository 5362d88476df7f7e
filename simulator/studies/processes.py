"""Processes on this machine that run tasks; when one dies, its task is run once more."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

TRIES = 2


class DiedError(Exception):
    """The process of a task has died each time: the message says how."""


class Process(NamedTuple):
    """A process, this end of the pipe to it, which its death ends, and whether it is known up."""

    child: BaseProcess
    end: Connection
    up: bool = False


class Processes(ThreadPoolExecutor):
    """A pool of processes, each with a thread here that waits for it.

    So the task that a process dies of is known, and no other is affected. In a
    `ProcessPoolExecutor` all share their queues: one that is killed while it answers leaves all
    others waiting.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        resource_tracker.ensure_running()  # now: a thread that starts it would let Ctrl-C in again
        self._jobs = jobs
        self._own = threading.local()
        self._started: list[Process] = []
        self._starting = threading.Lock()
        self._over = False

    def submit(self, work: Callable[..., Any], /, *task: Any, **options: Any) -> Future[Any]:
        """Submit a task. Its future raises DiedError where its process dies `TRIES` times."""
        return super().submit(self._do, work, *task, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes once their tasks are done."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for each in self._started:
            each.end.close()
        for each in self._started if wait else ():
            each.child.join()

    def abort(self) -> None:
        """End all processes at once."""
        with self._starting:
            self._over = True
            super().shutdown(wait=False, cancel_futures=True)
            for each in self._started:
                each.child.terminate()
        for each in self._started:
            each.child.join()

    def _do(self, work: Callable[..., Any], /, *task: Any, **options: Any) -> Any:
        came_up, status = False, None
        for _ in range(TRIES):
            own: Process = getattr(self._own, "process", None) or self._start()
            try:
                if not own.up:
                    own.end.recv()
                    self._own.process = own = own._replace(up=True)
                came_up = True
                own.end.send((work, task, options))
                failed, result = own.end.recv()
            except (EOFError, OSError):
                self._own.process = None
                own.child.join()
                status = own.child.exitcode
                continue
            if failed:
                raise result
            return result
        if came_up:
            raise DiedError(
                f"its process died {how(status)}, and again when it was repeated; unless someone "
                "killed it, memory ran out (ask for fewer jobs), or it ends itself"
            )
        raise RuntimeError(
            "a process of the pool has died: a script that asks for jobs must do so under "
            '`if __name__ == "__main__":`; where that is so, memory has run out: ask for fewer jobs'
        )

    def _start(self) -> Process:
        spawn = multiprocessing.get_context("spawn")
        with self._starting:
            if self._over:
                raise CancelledError
            ours, theirs = spawn.Pipe()
            child = spawn.Process(target=_serve, args=(theirs, self._jobs))
            child.start()
            theirs.close()  # so that its death ends the pipe
            own = Process(child, ours)
            self._started.append(own)
        return own


def _serve(end: Connection, jobs: int) -> None:
    """Run tasks in a process, one after another, until the pipe ends."""
    _begin(jobs)
    end.send("up")
    while True:
        try:
            task = end.recv()
        except EOFError:
            return
        except Exception as error:  # the function of the task cannot be imported here
            answer: tuple[bool, Any] = (True, error)
        else:
            answer = _answer(*task)
        try:
            end.send(answer)
        except (
            AttributeError,
            TypeError,
            pickle.PicklingError,
        ) as error:
            end.send((True, RuntimeError(f"{answer[1]!r}: {error}")))


def _answer(work: Callable[..., Any], task: Any, options: Any) -> tuple[bool, Any]:
    """Return whether a task failed, and its result or exception."""
    try:
        return False, work(*task, **options)
    except Exception as error:
        error.add_note(traceback.format_exc())  # where that was
        return True, error


def how(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:  # its status was collected elsewhere
        return "unseen"
    return f"by signal {-status}" if status < 0 else f"with status {status}"


@contextmanager
def interrupts_held() -> Iterator[None]:
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


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
