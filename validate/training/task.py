"""Run one process's part of one algorithm with one seed."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.simulator.cluster import speed
from paceline.simulator.engines.node import compare
from paceline.simulator.engines.observer import evaluation_interval
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.results.run import Spans
from paceline.simulator.scenario.scenario import Algorithm, Scenario

from ..host import machine
from . import learner, rendezvous
from .clock import Clock
from .emulated_network import Accounting, EmulatedNetwork, RealNetwork
from .node import Limits, RealNode, Role
from .packing import TensorMeter
from .records import Account, Recorder

HEADSTART = 0.05  # seconds between agreeing on a start and the start itself
COUNTING = 0.02  # seconds between updates of the workers' common step count
REHEARSALS = 3  # repetitions of each collective in the warm-up
SUMMED = torch.float16, torch.float64  # dtypes of means besides that of the parameters
GATHERED = 2**20  # most bytes of each rank in the warm-up


@dataclass(frozen=True)
class TrainingTask:
    """One algorithm with one seed; its records go to `folder`."""

    algorithm: Algorithm
    seed: int
    folder: Path


@dataclass(frozen=True)
class Job:
    """The tasks of all processes of a run, in order; `device`: "cpu" or "cuda"."""

    scenario: Scenario
    tasks: tuple[TrainingTask, ...]
    folder: Path
    device: str


@dataclass(frozen=True)
class Place:
    """Identity of one process of a run: its rank, store and device.

    `native`: whether each worker has a separate device, whose library runs the collectives;
    `identity`: of the device, unique on all machines.
    """

    rank: int
    store: Any
    device: torch.device
    native: bool = False
    identity: str = ""


def run(task: TrainingTask, job: Job, place: Place) -> None:
    """Run this process's part of a task, and write its records.

    Raises ProgramError if the program breaks the rules of effects, RuntimeError if another process
    has died or does not answer in time.
    """
    program = job.scenario.programs[task.algorithm.name].under(task.algorithm.parameters)
    if place.rank < job.scenario.cluster.workers + (program.server is not None):
        TaskProcess(task, job.scenario, place, program).run()
    # further processes serve only other programs


class TaskProcess:
    """One process of a task, which builds its node with network, recorder and learner."""

    def __init__(
        self, task: TrainingTask, scenario: Scenario, place: Place, program: Program
    ) -> None:
        scenario = scenario.nominal  # overheads are real here
        self._task, self._scenario, self._place, self._program = task, scenario, place, program
        self.rank, self.workers = place.rank, scenario.cluster.workers
        self.size = self.workers + (program.server is not None)
        self._clock, self._limits = Clock(), _limits(program, scenario)
        goal = self._goal = build.build(scenario, task.algorithm, task.seed)
        self._start = learner.start(goal, scenario.model.parameters, place.device)
        network = EmulatedNetwork if scenario.validation.network == "emulated" else RealNetwork
        self._network = network(scenario, task.seed, self.rank)
        source = learner.learner(goal, self.rank) if self.rank < self.workers else None
        nothing = self._nothing = self._start[:0]
        self._learns = not isinstance(goal.start, complex)  # else the objective has no parameters
        self._buffers: Callable[[], Tensor] = source.buffers if source else lambda: nothing
        watched = program.averages or self.rank == 0  # whether this node's parameters are evaluated
        if program.server is not None:
            watched = self.rank == self.workers
        every, adaptive = _interval(program, scenario, self.rank)
        like = self._start if watched and self._learns else nothing
        buffers = self._buffers().numel()
        cadence = every, self._limits.step, adaptive
        self._recorder = Recorder(task.folder, self.rank, like, buffers, *cadence)
        buffered = not watched and buffers > 0  # marks do not contain them
        self._counter = StepCounter(place.store, self._limits.step)
        if program.pooled:
            self._limits.enough = self._counter.full.is_set
        meter = TensorMeter(scenario.model.bytes, self._start.numel())
        accounting = Accounting(meter, self._network, self._clock)
        self._links = links = rendezvous.Connections(
            place.store, self.rank, self._start, accounting, scenario.validation.timeout
        )
        if self.rank < self.workers:
            ends = inf if program.pooled else self._limits.deadline
            links.open_team(self.workers, place.native, ends)
        if program.server or program.gossips:
            nodes = range(self.size)
            if not program.gossips:  # workers and a server
                nodes = range(self.workers) if source is None else range(self.workers, self.size)
            links.open_mailbox(self.size, {*nodes} - {self.rank})
        self._spans = Spans(scenario.run.timeline_spans)
        see = self._see if watched else self._count
        learned = self._see_buffers if buffered else lambda node: None
        role = Role(scenario, task.seed, self._start, source, self._spans, see, learned)
        self.node = RealNode(role, self._limits, links)
        compare([self.node], scenario, goal, task.algorithm.parameters)
        if source is not None and scenario.validation.compute == "stretched":
            clocks: list[Any] = [self.node] * self.workers
            self.node.stretch(speed.compute_times(scenario, task.seed, clocks)[self.rank])

    def _count(self, node: RealNode, x: Tensor) -> None:
        self._counter.count = node.step

    def _see(self, node: RealNode, x: Tensor) -> None:
        self._counter.count = node.step
        step = node.updates if self._program.pooled else node.step
        if self._recorder.due(step):
            row = node.now, node.period, node.updates, *self._network.totals()
            shown = x if self._learns else self._nothing
            self._recorder.see(step, row, shown, self._buffers())

    def _see_buffers(self, node: RealNode) -> None:
        if self._recorder.due(node.step):
            row = node.now, node.period, 0, 0, 0
            self._recorder.see(node.step, row, self._nothing, self._buffers())

    def run(self) -> None:
        """Rehearse, begin with the other nodes, run the program, write the records."""
        store, program = self._place.store, self._program
        function = program.server if self.rank == self.workers else program.worker
        assert function is not None
        coroutine = program.start(function, self.node, self._task.algorithm.parameters)
        self._rehearse()
        self._clock.begin(self._agree_on_start())
        self._clock.sleep_until(0.0)
        used = machine.ResourceUse()
        with self._counter.counting() if self._limits.pooled else nullcontext():
            self.node.execute(coroutine)
            account = _account(self.node, used)
            if self._place.device.type != "cpu":
                by = "NCCL" if self._place.native else "gloo, through the host's memory"
                account.machine |= {"device": self._place.identity, "collectives": by}
            self.node.end()
        if self._links.collectives is not None:
            account.collectives = self._links.collectives.settled
        if self._links.mailbox is not None:
            account.collectives += self._links.mailbox.received
            account.late += self._links.mailbox.late
        account.links = self._network.traffic.links()
        until = account.duration
        self._recorder.times(self._spans.array(until), self.node.events)
        # sockets stay open until all have finished
        rendezvous.meet(store, "end", self.size, patient=True)
        self._links.close()
        self._recorder.close(account)

    def _rehearse(self) -> None:
        """Run uncounted gradients and collectives: the first ones are slow."""
        team = self._links.team
        if team is None:
            return
        source = learner.learner(self._goal, self.rank)
        for _ in range(self._scenario.validation.warm_up):
            source.tensors(self._start)  # the run repeats these mini-batches
        if not (self._limits.meets or self._limits.completes or self._program.gossips):
            return  # such a node exchanges at most messages with a server
        piece = torch.zeros(min(self._start.nbytes, GATHERED), dtype=torch.uint8)
        totals = [self._start.to(dtype) for dtype in (self._start.dtype, *SUMMED)]
        codec = self._task.algorithm.parameters.get("codec")
        parts = piece.new_zeros(self.workers * -(-len(piece) // self.workers))
        for _ in range(REHEARSALS):  # NCCL prepares each dtype on first use
            for total in totals:
                team.total(total.clone).wait()
            team.gather(piece.clone).wait()
            if getattr(codec, "on_grid", False):  # its means are reduced in parts
                team.mean_of_parts(parts.clone, lambda rows: rows[0]).wait()

    def _agree_on_start(self) -> float:
        """Agree on when all processes begin (s), by this process's monotonic clock."""
        store = self._place.store
        rendezvous.meet(store, "ready", self.size)
        if self.rank == 0:
            store.set("start", f"{machine.boot_id()} {time.monotonic() + HEADSTART}")
        boot, start = store.get("start").decode().split()
        return float(start) if boot == machine.boot_id() else time.monotonic() + HEADSTART


def _limits(program: Program, scenario: Scenario) -> Limits:
    served, cluster = program.server is not None, scenario.cluster
    steps = (scenario.run.steps or inf) * program.counted(cluster.workers, cluster.participants)
    return Limits(
        steps,
        scenario.run.duration or inf,
        meets=program.averages and not (served or program.gossips or program.pooled),
        patience=scenario.validation.timeout,
        pooled=program.pooled,
        completes=program.pooled and not program.gossips,
        served=served,
    )


def _interval(program: Program, scenario: Scenario, rank: int) -> tuple[int, bool]:
    """Return a node's steps between snapshots, and whether that interval adapts."""
    if program.pooled:
        return 1, False  # a point combines the latest snapshot of each worker
    every, adaptive = evaluation_interval(scenario)
    return every * (scenario.cluster.workers if rank == scenario.cluster.workers else 1), adaptive


def _account(node: RealNode, used: machine.ResourceUse) -> Account:
    seconds = {"wait": node.waited, "communicate": node.communicated}
    duration = node.now
    return Account(
        duration=duration,
        seconds={"compute": duration - sum(seconds.values()), **seconds},
        outcomes=node.outcomes,
        gradients=node.step if node.rank < node.workers else 0,
        marks=node.updates,
        late=node.late,
        busy=used.own(),
        staleness=dict(node.staleness),
        machine=used.machine(),
    )


class StepCounter:
    """A thread beside the program that counts the steps of all workers, up to `limit`.

    `count`: steps of this worker; `full`: set once all workers together have made `limit`.
    """

    def __init__(self, store: Any, limit: float) -> None:
        self._store, self._limit, self.count = store, limit, 0
        self.full, self._over = threading.Event(), threading.Event()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while the context lasts."""
        thread = threading.Thread(target=self._count_steps, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _count_steps(self) -> None:
        reported = 0
        while not self._over.wait(COUNTING):
            count = self.count
            if self._store.add("steps", count - reported) >= self._limit:
                self.full.set()
            reported = count
