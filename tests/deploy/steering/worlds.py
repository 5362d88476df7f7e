"""Worlds whose link and workers change on schedules that no controller knows."""

from collections import Counter, defaultdict
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paceline.deploy.steering.attach import Controller, Model, Outlook
from paceline.deploy.steering.inputs import Inputs
from paceline.deploy.steering.telemetry import Telemetry
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import parse
from paceline.simulator.programs.local import LearningRate, local_sgd
from paceline.simulator.programs.pieces.schedule import FixedPeriod, OwnPeriod
from paceline.simulator.programs.program import Program

PERIODS = (1, 2, 4, 8, 16, 32, 64)
TARGET = 0.01
STEPS = 2000  # of a run at most: the longest period takes 1400


def scenario(link, slow, bandwidth, *, programs=None, algorithms=None, **run):
    """Two sites of two workers; `link`, `slow`: profiles of the line between, and of a worker."""
    line = {"between": ["a", "b"], "latency": "2 ms", "bandwidth": f"{bandwidth} Mbit/s"}
    groups = [
        {"name": "near", "workers": 2, "region": "a"},
        {"name": "far", "workers": 1, "region": "b"},
        {"name": "odd", "workers": 1, "region": "b"},
    ]
    return parse(
        {
            "model": {"parameters": 1_000_000},
            "objective": {
                "kind": "quadratic", "dimension": 32, "noise": 0.8, "initial_gap": 1.0,
                "heterogeneity": {"share": 0.8, "curvature": 0.5},
            },
            "optimizer": {"lr": 0.05},
            "cluster": {
                "workers": 4,
                "compute": {"dist": "gamma", "mean": "100 ms", "shape": 20.0},
                "group": [*groups[:2], groups[2] | ({"profile": slow} if slow else {})],
            },
            "network": {
                "model": "flows", "collective": "ring",
                "latency": "0.2 ms", "bandwidth": "10 Gbit/s",
                "link": [line | ({"profile": link} if link else {})],
            },
            "run": {"steps": STEPS, "target_loss": TARGET, "evaluate_every": 8} | run,
            "algorithm": algorithms
            or [{"name": "local-sgd", "tau": tau, "label": f"tau {tau}"} for tau in PERIODS],
        },
        file="steering", folder=Path(), programs=programs,
    )  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A world: a `kind` of change, the bandwidth at first, and two profiles."""

    kind: str
    bandwidth: float
    link: dict | None
    slow: dict | None


class SteeredPeriod(OwnPeriod):
    """A period that a controller sets, at the start of each round, the same for every worker."""

    __slots__ = ("_begun", "_controller", "rounds")

    def __init__(self, controller):
        self._controller, self._begun, self.rounds = controller, Counter(), []

    def phase(self, me):
        number = self._begun[me.rank]
        self._begun[me.rank] += 1
        if number == len(self.rounds):
            self.rounds.append(self._controller.settings["tau"])
        return FixedPeriod(self.rounds[number])


def steered(world, policy, seed, *, tau, body=local_sgd):
    """Run one seed under a policy; return the run, the controller and the telemetry."""
    controller = Controller({"tau": tau}, policy)
    recorder = Recorder(controller)
    piece = SteeredPeriod(controller)

    async def worker(me, *, lr: LearningRate):
        await body(recorder.node(me), lr=lr, tau=piece)

    programs = {"steered": Program("steered", worker, "tests", rounds=True)}
    table = scenario(
        world.link, world.slow, world.bandwidth, programs=programs,
        algorithms=[{"name": "steered"}],
    )  # fmt: skip
    run = run_seeds(table, table.algorithm[0], [seed], engine="virtual")[0]
    return run, controller, recorder


@cache
def outlook():
    """Return what the controller knows of the loss, which depends on no world."""
    known = scenario(None, None, 100.0)
    candidates = [{"tau": tau} for tau in PERIODS]
    return Outlook(known, known.algorithm[0], candidates, STEPS)


def model(bandwidth):
    """Return the policy `model`, for the scenario as it is at time 0."""
    return Model(Inputs(scenario(None, None, bandwidth)), copy(outlook()))


# Telemetry of a run in virtual time


@dataclass
class Share:
    """One worker's part of a round."""

    steps: int
    seconds: float
    loss: float
    clock: float
    asked: float = 0.0


@dataclass
class Recorder:
    """Makes a record of each round once its mean has come, and shows it to the controller."""

    controller: Any
    rounds: dict[int, dict[int, Share]] = field(default_factory=lambda: defaultdict(dict))
    records: list[Telemetry] = field(default_factory=list)
    step: int = 0

    def node(self, me):
        """Return a node whose effects are recorded."""
        return RecordedNode(me, self)

    def came(self, number, me, asked):
        """Record the round whose mean has come on a first worker."""
        if number != len(self.records):
            return
        shares = [share for _, share in sorted(self.rounds.pop(number).items())]
        assert len(shares) == me.workers
        now, steps, many = me.clock(), shares[0].steps, len(shares)
        begun = max(share.clock for share in shares)
        self.step += steps
        self.records.append(
            Telemetry(
                self.step,
                steps,
                sum(share.clock for share in shares) / many,
                tuple(share.seconds / share.steps for share in shares),
                now - begun if now > asked else None,
                float(me.parameters * me.bytes_per_parameter),
                sum(share.loss for share in shares) / many,
            )
        )
        self.controller.observe(self.records[-1])


class RecordedNode:
    """A node; the one inside carries out its effects."""

    def __init__(self, me, recorder):
        self._me, self._recorder = me, recorder
        self._steps, self._seconds, self._loss, self._started = 0, 0.0, 0.0, 0
        self._numbers = {}

    def __getattr__(self, name):
        return getattr(self._me, name)

    async def gradient(self, x):
        return (await self.loss_and_gradient(x))[1]

    async def loss_and_gradient(self, x):
        began = self._me.clock()
        actual = await self._me.loss_and_gradient(x)
        self._seconds += self._me.clock() - began
        self._loss = self._loss if self._steps else actual[0]
        self._steps += 1
        return actual

    def start_mean(self, value):
        handle = self._me.start_mean(value)
        share = Share(self._steps, self._seconds, self._loss, self._me.clock())
        self._recorder.rounds[self._started][self._me.rank] = share
        self._numbers[id(handle)] = self._started, handle
        self._steps, self._seconds, self._loss = 0, 0.0, 0.0
        self._started += 1
        return handle

    async def wait(self, handle):
        began = self._me.clock()
        actual = await self._me.wait(handle)
        number, _ = self._numbers.pop(id(handle))
        self._recorder.came(number, self._me, began)
        return actual

    async def mean(self, value):
        return await self.wait(self.start_mean(value))
