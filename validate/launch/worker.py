"""One process of a real run: checks its machine, then does its part of every task."""

import gc
import os
from dataclasses import replace
from math import inf
from typing import Any

import torch

from paceline.simulator.errors import InputError
from paceline.simulator.objectives import build, softmax
from paceline.simulator.scenario.tables import Softmax, Torch
from paceline.simulator.studies import execution

from ..host import device as devices
from ..host import machine
from ..torch_objective import data
from ..training import clock, learner, rendezvous, task
from ..training.task import Job, Place
from .job import read_job

REFUSED = 3  # exit status: this machine cannot run the scenario; the file REASON says why
REASON, DONE = "refused", "done"  # files of a job's folder


def preload(path: str) -> None:
    """Load the data set of a pickled job, once for all processes."""
    job = read_job(path)
    torch.set_num_threads(1)
    spec = job.scenario.objective
    if isinstance(spec, Torch):
        data.load_named(spec.data, spec.folder)
    elif isinstance(spec, Softmax):
        softmax.load_data(spec.data)


def main(path: str) -> int:
    """Do this process's part of a pickled job; return its exit status."""
    job = read_job(path)
    try:
        work(job)
    except InputError as error:
        unfinished = job.folder / f"{REASON}.{os.getpid()}"
        unfinished.write_text(str(error))
        unfinished.replace(job.folder / REASON)  # complete, or not there
        return REFUSED
    return 0


def work(job: Job) -> Any:
    """Do this process's part of a job, as RANK and WORLD_SIZE of the environment say.

    Return the store of all processes. Raises InputError for steps that are too short for this
    machine.
    """
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = rendezvous.open_store(rank, size, job.scenario.validation.timeout)
    place = _place(job, rank, store)
    job = _on(job, place.device)
    if job.scenario.validation.compute == "stretched":
        _require_stretchable_steps(job, place, size)
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
    """Return this rank's place: its device, and whether each worker has one of its own.

    Whatever else there is: a server, or numbers by which each rank sees its own GPU as the first.
    """
    device = devices.place(int(os.environ.get("LOCAL_RANK", rank)), job.device)
    device.use()
    if device.where.type == "cpu":
        return Place(rank, store, device.where)
    seat = f"{machine.boot_id()} {device.identity()}"
    store.set(f"seat {rank}", seat)
    workers = job.scenario.cluster.workers
    seats = [store.get(f"seat {index}") for index in range(workers)]
    native = device.native and len(set(seats)) == workers
    return Place(rank, store, device.where, native, seat)


def _on(job: Job, device: torch.device) -> Job:
    """Return the job with its objective on this device."""
    scenario = job.scenario
    if not isinstance(scenario.objective, Torch):
        return job
    goal = scenario.objective.model_copy(update={"device": str(device)})
    return replace(job, scenario=scenario.model_copy(update={"objective": goal}))


def _require_stretchable_steps(job: Job, place: Place, size: int) -> None:
    """Refuse steps that are shorter than this machine can hold."""
    scenario, first = job.scenario, job.tasks[0]
    wanted, shortest = min(scenario.team.mean_compute), 0.0
    rendezvous.meet(place.store, "measure", size)
    if place.rank < scenario.cluster.workers:
        goal = build.build(scenario, first.algorithm, first.seed)
        source = learner.learner(goal, place.rank)
        start = learner.start(goal, scenario.model.parameters, place.device)
        shortest = clock.smallest_step(lambda: float(source.tensors(start)[0]), wanted)
    place.store.set(f"shortest {place.rank}", str(shortest))
    rendezvous.meet(place.store, "measured", size, patient=True)
    least = max(float(place.store.get(f"shortest {rank}")) for rank in range(size))
    if least > wanted:
        held = f"the shortest that hold take {least * 1e3:.3g} ms" if least < inf else "none hold"
        raise InputError(
            f"{scenario.file}: cluster.compute: steps of {wanted * 1e3:.3g} ms cannot be held "
            f"here, where {size} processes share {execution.cores()} cores: {held}; write longer "
            'ones, take fewer workers, or write validation.compute = "real" to take steps as they '
            "are"
        )
