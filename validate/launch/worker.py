"""Run the processes of a real run: a fork server, and nodes.

Run as `python -m paceline.validate.launch.worker JOB NODES`, the fork server imports torch once,
then forks a process for each node. It has no threads when it forks, so that each child can still
enter its own network namespace.
"""

import gc
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.simulator.errors import InputError
from paceline.simulator.objectives import softmax
from paceline.simulator.scenario.tables import Softmax, Torch

from ..host import device as devices
from ..host import namespaces
from ..torch_objective import data
from ..training import clock, rendezvous, task
from ..training.task import Job, Place
from .job import read_job

REFUSED = 3  # exit status: this machine cannot run the scenario; the file REASON has the message
# files of a job's folder: message of a refusal, number of tasks done, and one with a line for each
# rank that ended: its exit status (negative for a signal)
REASON, DONE, ENDED = "refused", "done", "ended"


def serve(path: Path, nodes: int) -> None:
    """Start a process for each node, and stay until all have ended."""
    clock.die_with_parent()
    clock.use_precise_timers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    torch.set_num_threads(1)
    spec = read_job(path).scenario.objective
    if isinstance(spec, Torch):  # loaded once for all processes
        data.load_named(spec.data, spec.folder)
    elif isinstance(spec, Softmax):
        softmax.load_data(spec.data)
    ranks = {_fork(path, rank): rank for rank in range(nodes)}
    with (path.parent / ENDED).open("w") as file:
        while ranks:
            process, status = os.wait()
            file.write(f"{ranks.pop(process)} {os.waitstatus_to_exitcode(status)}\n")
            file.flush()


def _fork(path: Path, rank: int) -> int:
    parent = os.getpid()
    if process := os.fork():
        return process
    status = 1
    try:
        clock.die_with_parent()
        clock.name_process(f"rank {rank}")
        if os.getppid() != parent:
            os._exit(1)
        log = os.open(path.parent / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)

        os.environ["RANK"] = str(rank)
        if "PACELINE_LINKS" in os.environ:
            _, interface = namespaces.join(rank, os.environ["PACELINE_LINKS"])
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        status = _main(path)
    except BaseException:
        traceback.print_exc()
    os._exit(status)  # skips torch's destructors, which can wait forever


def _main(path: Path) -> int:
    """Do this process's part of a pickled job; return its exit status."""
    job = read_job(path)
    try:
        work(job)
    except InputError as error:
        unfinished = job.folder / f"{REASON}.{os.getpid()}"
        unfinished.write_text(str(error))
        unfinished.replace(job.folder / REASON)  # readers never see a partial file
        return REFUSED
    return 0


def work(job: Job) -> Any:
    """Do this process's part of a job, by the environment's RANK and WORLD_SIZE.

    Return the store of all processes.
    """
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = rendezvous.open_store(rank, size, job.scenario.validation.timeout)
    place = _place(job, rank, store)
    job = _on(job, place.device)
    for number, todo in enumerate(job.tasks):
        if number:  # a rank without a part in the last task waits without a time limit
            rendezvous.wait_for(store, f"{DONE} {number}")
        seat = replace(place, store=rendezvous.sub_store(store, f"task {number}"))
        task.run(todo, job, seat)
        gc.collect()  # objects of a finished run hold threads and sockets
        if rank == 0:
            (job.folder / DONE).write_text(f"{number + 1}")
            rendezvous.announce(store, f"{DONE} {number + 1}")
    return store


def _place(job: Job, rank: int, store: Any) -> Place:
    """Return this rank's place, with its device."""
    device = devices.place(int(os.environ.get("LOCAL_RANK", rank)), job.device)
    device.use()
    if device.where.type == "cpu":
        return Place(rank, store, device.where)
    workers = job.scenario.cluster.workers
    seat, native = rendezvous.share_devices(store, rank, device.where, workers)
    return Place(rank, store, device.where, native, seat)


def _on(job: Job, device: torch.device) -> Job:
    """Return the job with its objective on this device."""
    scenario = job.scenario
    if not isinstance(scenario.objective, Torch):
        return job
    goal = scenario.objective.model_copy(update={"device": str(device)})
    return replace(job, scenario=scenario.model_copy(update={"objective": goal}))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
