"""One seed of a parameter server: the arrays that the compiled loop works on, and what it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf, nan

import numpy as np

from paceline.simulator.cluster import workers as cluster
from paceline.simulator.distributions.distribution import Array
from paceline.simulator.engines.compiled import loop
from paceline.simulator.engines.compiled.shared import Draw, SharedRun
from paceline.simulator.engines.observer import Observer, evaluation_interval
from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.engines.virtual import run, simulation
from paceline.simulator.objectives import build
from paceline.simulator.programs.effects import NOTHING, Vector
from paceline.simulator.programs.pieces.gate import COMPILED, Gate, always
from paceline.simulator.results.run import Run

ALWAYS = 2**62  # how long nothing is needed that never changes
MARKS = 256  # that wait to be shown: the loop runs beside Python only as long as it needs nothing


@dataclass(slots=True)
class _Server:
    """The server as the observer sees it."""

    rank: int
    step: int
    now: float
    updates: int
    period: float = nan
    x: Vector = field(default=NOTHING)


class SeedRun:
    """One seed. `done`: whether its run has ended.

    Also the traffic that its observer asks for bytes.
    """

    def __init__(self, world: SharedRun, seed: int) -> None:
        self._world, self.seed, self.done = world, seed, False
        scenario, workers = world.scenario, world.workers
        goal = self._goal = build.build(scenario, world.algorithm, seed)
        interval, adaptive = evaluation_interval(scenario)
        every = workers * interval
        deadline = simulation.deadline(scenario)

        self._run = np.zeros(1, loop.STATE)
        state = self._state = self._run[0]
        state["deadline"] = deadline
        state["every"], state["limit"] = every, world.limit
        state["mark_at"] = min(every, world.limit)
        state["receive"], state["whole"] = scenario.server.receive, scenario.model.bytes
        card = scenario.server.bandwidth
        state["pace_in"] = state["pace_out"] = 1 / card if card else 0.0
        state["served"] = 1
        state["ready"] = workers  # all begin
        self._team = np.zeros(workers, loop.WORKER)
        self._team["pace_up"], self._team["pace_down"] = world.up.pace, world.down.pace
        self._ages = np.zeros(64, np.int64)
        self._heap = np.full(4 * workers + 1, inf), np.full(4 * workers + 1, ALWAYS)
        self._ready, self._slots, self._held = (
            np.arange(workers), np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        )  # fmt: skip
        self._begun = np.zeros(workers + 2)
        self._gate = np.zeros(0, np.int64)
        self._marks = np.zeros(MARKS, loop.SHOWN)
        self._adds_up, self._moved = False, 0.0
        self._draws: list[list[tuple[np.ndarray, Draw]]] = [[] for _ in range(workers)]
        self._drawn = [0] * workers
        self._rings = self._make_rings()
        self._observer = Observer(
            1,
            every=every,
            adaptive=adaptive,
            limit=world.limit,
            scale=workers,
            objective=goal,
            traffic=self,
            cost=scenario.cost,
            nodes=workers + 1,
            averages=world.program.averages,
            deadline=deadline,
            together=True,
        )

    def _make_rings(self) -> list[Array]:
        """Rings of numbers for each worker: compute times, and latencies to the server and back."""
        world, seed = self._world, self.seed
        streams = cluster.streams(world.scenario, seed)
        constants = np.array([nan if each.constant is None else each.constant for each in streams])
        return [
            self._ring(constants, lambda rank: streams[rank].draw),
            *(
                self._ring(way.latency, partial(way.draw, seed=seed))
                for way in (world.up, world.down)
            ),
        ]

    def _ring(self, constants: Array, draw: Callable[[int], Draw]) -> Array:
        """One number for each worker, or, where any are drawn (their constant is nan), a ring."""
        random = np.flatnonzero(np.isnan(constants)).tolist()
        ring = np.repeat(constants[:, None], self._world.ring if random else 1, axis=1)
        for rank in random:
            self._draws[rank].append((ring[rank], draw(rank)))
        return ring

    def follow(self, script: np.ndarray, gate: Gate | None) -> None:
        """Follow the next part of the server's script, to its end or to the run's.

        Raises Unsupported when nobody can go on.
        """
        if gate is not None and gate.rule not in COMPILED:
            raise Unsupported("its gate has a rule of its own")
        if gate is not None and not len(self._gate):
            self._gate = np.array(gate.state, np.int64)
        rule = loop.compiled(gate.rule if gate else always)
        self._state["place"] = 0
        while True:
            code = loop.follow(
                self._run, script, self._team, *self._rings, *self._heap, self._ready, self._slots,
                self._begun, self._ages, self._held, self._gate, self._room(len(script)), rule,
            )  # fmt: skip
            self._show()
            match code:
                case loop.POINT:
                    pass
                case loop.DRAW:
                    self._draw()
                case loop.GROW:
                    self._ages = np.concatenate([self._ages, np.zeros_like(self._ages)])
                case loop.STUCK:
                    raise Unsupported("its workers wait for each other")
                case loop.MORE | loop.DONE:
                    self.done = code == loop.DONE
                    return

    def _room(self, operations: int) -> np.ndarray:
        """Room for marks to wait to be shown, while so many operations are followed.

        Where bytes do not add up, each is shown at once, when they are known.
        """
        size = max(float(self._state["whole"]), float(self._team["size"].max()))
        most = self._state["moved"] + 2 * (operations + self._world.workers) * size
        self._adds_up = self._world.adds_up(most)
        return self._marks[: int(min(MARKS, self._observer.room)) if self._adds_up else 1]

    def _show(self) -> None:
        """Show the observer the server's marks."""
        state, observer = self._state, self._observer
        for step, now, updates, moved in self._marks[: state["shown"]].tolist():
            self._moved = moved
            state["mark_at"] = observer.see(_Server(self._world.workers, step, now, updates))
        state["shown"], state["every"] = 0, observer.every
        if observer.complete and not state["stopped"]:
            state["stopped"] = 1
            state["deadline"] = min(state["deadline"], state["now"])

    def _draw(self) -> None:
        """Fill the rings of those that need numbers now or soon."""
        ring, iterations, untils = self._world.ring, self._team["iterations"], self._team["until"]
        first = end = 0  # of the stretch that the last of them is in
        for rank in np.flatnonzero(untils - iterations < ring // 2).tolist():
            iteration, until = int(iterations[rank]), ALWAYS
            if self._draws[rank]:
                drawn = self._drawn[rank]
                until = self._drawn[rank] = max(iteration - 1, 0) + ring  # its last is still needed
                place = drawn & (ring - 1)
                for numbers, draw in self._draws[rank]:
                    found = draw(until - drawn)
                    fits = min(ring - place, len(found))
                    numbers[place : place + fits] = found[:fits]
                    numbers[: len(found) - fits] = found[fits:]
            if not first <= iteration < end:
                first, end, work, size = self._world.stretch(iteration)
            self._team["work"][rank], self._team["size"][rank] = work, size
            untils[rank] = min(until, end)

    # What its observer asks of the traffic, and its run

    def totals(self) -> tuple[float, float]:
        """Bytes so far over all links, and over those that are charged as egress."""
        if self._adds_up:
            return self._moved, self._world.charged(self._moved)
        return self._world.totals(self._team["bytes_down"], self._team["bytes_up"])

    def result(self) -> Run:
        """Its run, accounted for up to its end."""
        world, team, observer = self._world, self._team, self._observer
        end = min(float(self._state["deadline"]), world.scenario.run.duration or inf)
        waited = team["waited"] + np.maximum(end - team["now"], 0.0)
        # some went on from an answer that came after the end
        beyond = np.where(team["now"] >= team["answer"], np.maximum(team["answer"] - end, 0.0), 0.0)
        network = np.minimum(beyond, team["answer"] - team["begins"])
        communicated = team["communicated"] - network
        waited -= beyond - network
        seconds = {"compute": end - waited - communicated, "wait": waited}
        seconds["communicate"] = communicated
        curve = observer.curve
        links = world.by_link(team["bytes_down"], team["bytes_up"])
        stale = np.flatnonzero(self._ages).tolist()
        return Run(
            label=world.algorithm.label,
            name=world.algorithm.name,
            seed=self.seed,
            engine="batched",
            steps=curve["step"][-1],
            duration=curve["time"][-1],
            curve=curve,
            seconds={name: float(each.mean()) for name, each in seconds.items()},
            workers={name: each.tolist() for name, each in seconds.items()},
            links=dict(zip(world.links.tolist(), links.tolist(), strict=True)),
            notes=run.notes(world.program, world.algorithm, self._goal, curve),
            updates=observer.updates,
            staleness=dict(zip(stale, self._ages[stale].tolist(), strict=True)),
            staleness_unit="updates",
            inbox_bytes=float(self._state["inbox"]),
        )
