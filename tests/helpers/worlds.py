"""Small scenarios ("worlds") for running programs, and recordings of effects.

A `Recorder` stands between a program and its node.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.load.load import parse
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, Node
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Algorithm, Scenario, World

FREE = {"collective": "star", "latency": "0 s"}
RING = {"collective": "ring", "latency": "20 ms", "bandwidth": "1 Mbit/s"}
TIME_ONLY = {"kind": "none"}
QUADRATIC = {"kind": "quadratic", "dimension": 6, "shift": 1.0}
DIGITS = {"kind": "softmax", "data": "digits", "batch": 8}
EXPONENTIAL = {"dist": "exponential", "mean": "1 s"}


def scenario(
    *algorithms: dict[str, Any],
    workers: int = 4,
    compute: Any = "1 s",
    steps: int | None = 20,
    objective: dict[str, Any] = TIME_ONLY,
    network: dict[str, Any] = FREE,
    lr: Any = 0.1,
    programs: Mapping[str, Program] | None = None,
    folder: Path = Path(),
    **tables: Any,
) -> Scenario:
    """Parse a scenario; `tables` extend those that the other arguments make."""
    made: dict[str, Any] = {
        "model": {"parameters": 1000},
        "objective": objective,
        "optimizer": {"lr": lr},
        "cluster": {"workers": workers, "compute": compute},
        "network": network,
        "run": {} if steps is None else {"steps": steps},
        "algorithm": list(algorithms),
    }
    for name, table in tables.items():
        made[name] = made.get(name, {}) | table if isinstance(table, dict) else table
    return parse(made, file="test", folder=folder, programs=programs)


def on_virtual(algorithm: Algorithm, world: Scenario, seed: int, **options: Any) -> Run:
    """Run one algorithm with one seed on the virtual engine."""
    return virtual.run_world(World(world, algorithm).under(), seed, **options)


def on_batched(
    algorithm: Algorithm, world: Scenario, seeds: Sequence[int], **options: Any
) -> list[Run]:
    """Run one algorithm with all seeds on the batched engine."""
    return batched.run_world(World(world, algorithm), seeds, **options)


def simulate(world: Scenario, index: int = 0, seed: int = 0, **options: Any) -> Run:
    """Run one of a scenario's algorithms on the virtual engine."""
    return on_virtual(world.algorithm[index], world, seed, **options)


@dataclass
class Recording:
    """The effects of every node, by rank (the server's come last).

    `effects`: every effect's name and its subject, if any. `marks`: marked parameters. `durations`:
    seconds of every gradient, by the node's clock. `begun`: collectives in the order in which the
    last worker joined them. `stall`: why the run stalls for good, if it does.
    """

    effects: list[list[tuple[Any, ...]]]
    marks: list[list[Any]]
    durations: list[list[float]]
    begun: list[int] = field(default_factory=list)
    joined: Counter[int] = field(default_factory=Counter)
    stall: str = ""

    @classmethod
    def of(cls, nodes: int) -> "Recording":
        """Return an empty recording."""
        return cls(*([[] for _ in range(nodes)] for _ in range(3)))

    def sources(self, rank: int) -> list[int]:
        """Return the senders of the messages that a node received, in order."""
        return [subject for name, *subject in self.effects[rank] if name == "receive"]

    def schedule(self, rank: int, steps: int) -> list[tuple[Any, ...]]:
        """Return a node's effects before its gradient number `steps` + 1."""
        effects, computed = [], 0
        for effect in self.effects[rank]:
            computed += effect[0] in ("gradient", "loss_and_gradient", "start_backward")
            if computed > steps:
                break
            effects.append(effect)
        return effects


NOTED = {"send": 1, "count": 1, "discard": 0, "work": 0, "clock": 0}
"""Number of recorded arguments of effects that are recorded at the call."""


class Recorder:
    """A node that records its program's effects. Handles become (name, handle)."""

    def __init__(self, node: Node, recording: Recording) -> None:
        self._node, self._recording = node, recording
        self._collectives = 0

    def __getattr__(self, name: str) -> Any:
        effect = getattr(self._node, name)
        if name not in NOTED:
            return effect

        def noted(*arguments):
            self._note(name, *arguments[: NOTED[name]])
            return effect(*arguments)

        return noted

    def _note(self, *effect: Any) -> None:
        self._recording.effects[self._node.rank].append(effect)

    async def _timed(self, name: str, computing: Any) -> Any:
        begin = self._node.clock()
        result = await computing
        self._recording.durations[self._node.rank].append(self._node.clock() - begin)
        self._note(name)
        return result

    async def gradient(self, x):
        return await self._timed("gradient", self._node.gradient(x))

    async def loss_and_gradient(self, x):
        return await self._timed("loss_and_gradient", self._node.loss_and_gradient(x))

    async def start_backward(self, x, pieces):
        handles = await self._node.start_backward(x, pieces)
        self._note("start_backward", pieces)
        return [(f"piece {index}", handle) for index, handle in enumerate(handles)]

    def start_mean(self, value):
        return self._join("mean", self._node.start_mean(value))

    def start_gather(self, value):
        return self._join("gather", self._node.start_gather(value))

    def start_mean_after(self, handle, value):
        return self._join("mean after", self._node.start_mean_after(handle[1], value))

    def _join(self, kind, handle):
        recording, number = self._recording, self._collectives
        self._collectives += 1
        self._note("start", kind, number)
        recording.joined[number] += 1
        if recording.joined[number] == self._node.workers:
            recording.begun.append(number)
        return f"{kind} {number}", handle

    def timer(self, seconds):
        self._note("timer")
        return "timer", self._node.timer(seconds)

    async def mean(self, value):
        return await self.wait(self.start_mean(value))

    async def wait(self, handle):
        name, inner = handle
        result = await self._node.wait(inner)
        self._note("wait", name)
        return result

    async def finished(self, handle):
        name, inner = handle
        answer = await self._node.finished(inner)
        self._note("finished", name, answer)
        return answer

    async def arrived(self, handle):
        name, inner = handle
        answer = await self._node.arrived(inner)
        self._note("arrived", name, answer)
        return answer

    async def receive(self, source=ANY):
        message = await self._node.receive(source)
        self._note("receive", message[0])
        return message

    async def receive_before(self, handle, source=ANY):
        message = await self._node.receive_before(handle[1], source)
        self._note("receive", None if message is None else message[0])
        return message

    async def request(self, to, value):
        self._note("request", to)
        answer = await self._node.request(to, value)
        self._note("answer", to)
        return answer

    def mark(self, x):
        self._note("mark")
        self._recording.marks[self._node.rank].append(x)
        self._node.mark(x)

    def leap(self, transform):
        """Take every step, so that it is recorded."""


def _recorded(function: Any, recording: Recording) -> Any:
    @wraps(function)
    def begin(me: Node, **parameters: Any) -> Any:
        return function(Recorder(me, recording), **parameters)

    return begin


def play(world: Scenario, index: int = 0, seed: int = 0) -> Recording:
    """Run one of a scenario's algorithms and record it."""
    algorithm = world.algorithm[index]
    program = world.programs[algorithm.name]
    recording = Recording.of(world.cluster.workers + (program.server is not None))
    watched = replace(
        program,
        worker=_recorded(program.worker, recording),
        server=program.server and _recorded(program.server, recording),
    )
    watching = world.with_programs({algorithm.name: watched})
    recording.stall = on_virtual(algorithm, watching, seed).stall
    return recording
