"""Start the processes of a real run on this machine, watch them, and end them.

`run` starts one process, the fork server (`launch.worker`), which imports torch and forks a process
for each node; `join` instead makes this process a node, if a launcher such as torchrun started all
of them.

Parent and children share the job's folder instead of a pipe: the pickled job, the store file of the
processes, a log for each rank, and small status files. The parent polls them and stops at
the first of: all ranks have ended well; a rank has died (its log's last lines are the message); a
rank has refused the scenario; a rank hangs; the fork server or the relay has ended.

No process outlives the run. The kernel kills each with its parent (`clock.die_with_parent`), so all
nodes end when the fork server is killed, in the `finally` of `_processes`, or when the parent
itself is killed. A lock keeps a second command out of the folder.
"""

import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.scenario.scenario import Scenario

from ..host.namespaces import NODES, Links, available
from ..host.relay import Path as LinkPath
from ..training import clock, rendezvous
from ..training.task import Job, TrainingTask
from . import worker
from .job import write_job
from .worker import DONE, ENDED, REASON, REFUSED

STORE, LOG = "store", "launch.log"  # files of a job's folder
LOOK = 0.05  # seconds between checks of the processes
LAST_LINES = 12  # lines of a log that are shown
TIMED_OUT = "no answer came within validation.timeout; is it too short, or did a process hang?"
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")

Progress = Callable[[int, int], None]


def launched() -> bool:
    """Return whether a launcher such as torchrun has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def exposure_warnings() -> list[str]:
    """Return a warning if other machines can reach the ranks, else an empty list."""
    address = os.environ.get("MASTER_ADDR", "")
    if not launched() or address == "localhost" or address.startswith("127.") or address == "::1":
        return []
    return [
        f"warning: the ranks meet at {address} without passwords or encryption: anyone who can "
        "reach them can run code there; use a network that you trust"
    ]


def run(job: Job, progress: Progress | None = None) -> None:
    """Run a job with a process for each node; return when all have finished.

    No other command may use the job's folder. Raises InputError if this machine cannot run the job,
    RunError if a process dies; then, as on Ctrl-C, all others are ended before this returns.
    """
    nodes = process_count(job.scenario, job.tasks)
    folder = job.folder
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # processes meet in this folder, and reading the job runs code
    links: Links | None = None
    with ExitStack() as stack:
        for name in (REASON, DONE, ENDED, STORE):
            (folder / name).unlink(missing_ok=True)
        path = write_job(job)
        environment = {
            "WORLD_SIZE": str(nodes),
            "PACELINE_STORE": str((folder / STORE).absolute()),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if job.scenario.validation.network == "kernel":
            links = stack.enter_context(Links(_paths(job.scenario, nodes), nodes))
            environment["PACELINE_LINKS"] = links.socket
            environment["PACELINE_RELAY"] = str(links.relay.pid)
        else:  # NCCL, like gloo, must listen only on this machine
            environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "lo")
        started = stack.enter_context(_processes(path, nodes, environment))
        _watch(started, links, nodes, job, progress)


def process_count(scenario: Scenario, tasks: Sequence[TrainingTask]) -> int:
    """Return the number of processes: workers, and a server if any task has one."""
    programs = scenario.programs
    served = any(programs[task.algorithm.name].server for task in tasks)
    return scenario.cluster.workers + served


def join(job: Job) -> None:
    """Do this process's part under a launcher; rank 0 returns with all records.

    Other ranks exit here, as does rank 0 if anything fails: the launcher then ends the rest.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    needed = process_count(job.scenario, job.tasks)
    if size != needed:
        raise InputError(
            f"WORLD_SIZE={size}: {job.scenario.file} needs {needed} processes, one for each worker "
            f"and one for a server if an algorithm has one; start {needed}"
        )
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        clock.use_precise_timers()
        store = worker.work(job)
        if rank == 0:
            for other in range(1, size):
                rendezvous.collect(store, other, job.folder)
            return
        rendezvous.hand_in(store, rank, job.folder)
    except InputError:
        raise
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # skips torch's destructors, which can wait forever
    os._exit(0)


@contextmanager
def _processes(
    path: Path, nodes: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the fork server; the end of the context ends all processes."""
    # -P: do not import modules from the user's current folder
    command = [sys.executable, "-P", "-m", "paceline.validate.launch.worker", str(path), str(nodes)]
    with (path.parent / LOG).open("wb") as log:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        try:
            yield started
        finally:
            started.kill()  # also ends its children
            started.wait()


def _watch(
    started: subprocess.Popen[bytes],
    links: Links | None,
    nodes: int,
    job: Job,
    progress: Progress | None,
) -> None:
    """Wait until all ranks have ended well. Raises InputError, RunError."""
    folder = job.folder
    while True:
        over, ended = started.poll(), _by_rank(folder / ENDED)
        if progress:
            progress(_done(folder), len(job.tasks))
        if REFUSED in ended.values():
            raise InputError((folder / REASON).read_text())
        for rank, status in ended.items():
            if status:
                raise RunError(_death_report(rank, status, job))
        if len(ended) == nodes:
            return

        if links is not None and links.relay.poll() is not None:
            raise RunError("the relay of the kernel's links has died; all processes were ended")
        if over is not None:
            raise RunError(f"the processes could not be started:\n{_log_tail(folder / LOG)}")
        time.sleep(LOOK)


def _by_rank(path: Path) -> dict[int, int]:
    """Read a file with one number for each rank."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(rank): int(number) for rank, number in map(str.split, lines)}


def _done(folder: Path) -> int:
    done = folder / DONE
    return int(done.read_text() or 0) if done.exists() else 0


def _death_report(rank: int, state: int, job: Job) -> str:
    """Return which process died, how, and the end of its log."""
    words = _log_tail(job.folder / f"rank-{rank}.log")
    task = job.tasks[min(_done(job.folder), len(job.tasks) - 1)]
    how = f"by signal {-state}" if state < 0 else f"with status {state}"
    name = "the server" if rank == job.scenario.cluster.workers else f"worker {rank}"
    return (
        f"{name} died {how} during {task.algorithm.label} (seed {task.seed}); all others were "
        f"ended. Its log ends with:\n{words}"
    )


def _log_tail(log: Path) -> str:
    """Return the end of a log; of a traceback only the error."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    lines = lines[-LAST_LINES:]
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    shown = lines[errors[-1] :] if errors else lines
    if any("imed out" in line or "imeout" in line for line in shown):
        shown.append(TIMED_OUT)
    if any("EnforceNotMet" in line for line in lines):
        shown.append("the workers start different collectives, or send payloads of different sizes")
    return "\n".join(f"  {line}" for line in shown or ["nothing"]) + f"\n  (whole log: {log})"


def _paths(scenario: Scenario, nodes: int) -> dict[tuple[int, int], LinkPath]:
    """Return the expected latency and bandwidth of every ordered pair of nodes."""
    why = available()
    if nodes > NODES:
        why = f"{nodes} workers and servers, of at most {NODES}"
    if why:
        raise InputError(
            f'{scenario.file}: validation.network = "kernel": {why}; or write "emulated"'
        )
    bare = scenario.network.model_copy(update={"transport": "ideal"})  # real TCP uses both
    network = ClosedForm(scenario.model_copy(update={"network": bare}))
    links = {pair: network.link(*pair) for pair in permutations(range(nodes), 2)}
    least = [scenario.network.mtu] if scenario.network.transport == "tcp" else []
    return {pair: LinkPath(link.latency, link.bandwidth, *least) for pair, link in links.items()}
