"""Seeds of a parameter server: the arrays of the compiled loop, and all that it asks Python for.

`SeedRun.follow` calls `loop.follow` until the current piece of the trace is used up, and does what
the loop returns for: draws random numbers into the rings, shows marks to the observer, enlarges the
histogram of staleness. The loop runs for long stretches without Python and without the GIL; this
file exists so that these interruptions are few and large.

Invariants:
- Draws come from the same keyed streams, in the same order per worker, as the reference engine's;
  how many are drawn at a time changes no number.
- A ring keeps the last number used: `_draw` fills from `drawn` up to (last iteration + ring), never
  over numbers that a waiting worker still needs.
- Marks wait in `_marks` and are evaluated in order, at the latest before the next piece of the
  trace; an observer that ends the run sets `deadline` to the time of that mark.
- Where links are alike (`SharedRun.alike`), the loop's running total of bytes is reported.
  Otherwise each mark returns to Python, which adds up the bytes that are charged.

After a change: tests/engines/test_compiled.py and tests/lab/bench/parts.py.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import chain
from math import inf, nan
from operator import itemgetter
from threading import Lock

import numpy as np

from ...cluster import workers as cluster
from ...distributions.distribution import Array
from ...distributions.parametric import Constant
from ...distributions.random_streams import Purpose, generator
from ...network.closed_form import ClosedForm
from ...network.region_path import RegionPath
from ...objectives import build
from ...programs import Program
from ...programs.effects import NOTHING
from ...programs.pieces.gate import COMPILED, Gate, always
from ...results.run import Run
from ...scenario.scenario import Algorithm, Scenario
from .. import tolerances
from ..observer import NEVER, Observer
from ..unsupported import Unsupported
from ..virtual import run
from . import loop
from .trace import WorkerTrace

MARKS = 256  # marks buffered before the loop returns to Python (it runs without the GIL until then)
NUMBERS = 2**22  # random numbers of one kind in memory, at most
RING = (256, 4096)  # numbers of one worker, at least and at most; fewer in short runs
MOST = 2**62  # bytes that the loop can count

Draw = Callable[[int], Array]


class ServerRoutes:
    """The routes of all workers to the server, or those back.

    `pace`: seconds per byte; `latency`: seconds, nan where random. Shapes (workers,).
    """

    def __init__(self, network: ClosedForm, ends: list[tuple[int, int]]) -> None:
        self.links = [network.message_link(*each) for each in ends]
        self._keys = [source * (network.workers + 1) + to for source, to in ends]
        self.pace = np.array([1 / link.bandwidth for link in self.links])
        self.latency = np.array([link.latency if link.is_constant else nan for link in self.links])

    def draw(self, rank: int, seed: int) -> Draw:
        """Return a function that draws one route's latencies: the numbers of `MessageRoute`."""
        return _draws(self.links[rank], generator(seed, Purpose.MESSAGE, self._keys[rank]))


def _draws(link: RegionPath, rng: np.random.Generator) -> Draw:
    random = [law for law in link.laws if not isinstance(law, Constant)]
    if len(random) > 1:  # one draw of each in turn, as `RegionPath.sample` does
        return lambda n: np.array([link.sample(rng, 1) for _ in range(n)])
    fixed = sum(law.expectation for law in link.laws if isinstance(law, Constant))
    return lambda n: random[0].sample(rng, n) + fixed


class SharedRun:
    """One algorithm of a scenario.

    `alike`: all of its bytes are charged as egress, or none are. `limit`: number of gradients after
    which the next update is the last; `ring`: numbers of a worker that are drawn ahead, at most, a
    power of two.
    """

    def __init__(
        self,
        program: Program,
        algorithm: Algorithm,
        scenario: Scenario,
        worker: WorkerTrace,
        seeds: int,
    ) -> None:
        self.program, self.algorithm, self.scenario = program, algorithm, scenario
        self._worker, self._lock = worker, Lock()
        workers = self.workers = scenario.cluster.workers
        self.limit = workers * scenario.run.steps if scenario.run.steps else NEVER
        network = ClosedForm(scenario)
        self.down = ServerRoutes(network, [(workers, rank) for rank in range(workers)])
        self.up = ServerRoutes(network, [(rank, workers) for rank in range(workers)])
        routes = [link.name for link in chain(self.down.links, self.up.links)]
        self.links, self._link = np.unique(routes, return_inverse=True)
        self._charged = np.array([name in network.charged for name in self.links])
        self.alike = bool(self._charged.all() or not self._charged.any())
        quickest = min(scenario.team.mean_compute)  # seconds of a step, if it never waits
        in_time = (scenario.run.duration or inf) / quickest if quickest else inf
        steps = min(scenario.run.steps or inf, in_time)
        most = min(max(NUMBERS // (workers * max(seeds, 1)), RING[0]), RING[1])
        self.ring = 1 << (int(min(2 * steps + 64, most)) - 1).bit_length()

    def stretch(self, iteration: int) -> tuple[int, int, float, float]:
        """Return the stretch of an iteration: its first, the one after its last, work, bytes."""
        worker = self._worker
        with self._lock:
            if worker.traced <= iteration + self.ring:
                worker.trace(self.ring)
            stretches = worker.stretches
            index = bisect_right(stretches, iteration, key=itemgetter("first")) - 1
            first, work, size = stretches[index].tolist()
            last = index + 1 == len(stretches)
            until = worker.traced if last else int(stretches[index + 1]["first"])
        return first, until, work, size

    def by_link(self, down: Array, up: Array) -> np.ndarray:
        """Return the bytes over each link from those over each route."""
        links = np.zeros(len(self.links), np.int64)
        np.add.at(links, self._link, np.concatenate((down, up)))
        return links

    def totals(self, moved: int, down: Array, up: Array) -> tuple[float, float]:
        """Return the bytes over all links, and over those charged as egress.

        `moved`: all bytes, which say enough where links are `alike`; else those over each route do.
        """
        if self.alike:
            return float(moved), float(moved) if self._charged.all() else 0.0
        links = self.by_link(down, up)
        return float(links.sum()), float(links[self._charged].sum())


class SeedRun:
    """The run of one seed. `done`: it has ended."""

    def __init__(self, shared: SharedRun, seed: int) -> None:
        self._shared, self.seed, self.done = shared, seed, False
        scenario, workers = shared.scenario, shared.workers
        goal = self._goal = build.build(scenario, shared.algorithm, seed)
        deadline = tolerances.deadline(scenario)
        self._workers = np.zeros(workers, loop.WORKER)
        self._workers["pace_up"], self._workers["pace_down"] = shared.up.pace, shared.down.pace
        self._moved = 0
        observer = self._observer = Observer(shared.program, scenario, goal, self._totals, deadline)

        self._run = np.zeros(1, loop.STATE)
        state = self._state = self._run[0]
        state["deadline"] = deadline
        state["every"], state["limit"] = observer.every, observer.limit
        state["mark_at"] = observer.first
        state["receive"], state["whole"] = scenario.server.receive, scenario.model.bytes
        card = scenario.server.bandwidth
        state["pace_in"] = state["pace_out"] = 1 / card if card else 0.0
        state["served"] = 1
        state["ready"] = workers  # all workers begin
        self._ages = np.zeros(64, np.int64)
        nodes = 2 << (workers - 1).bit_length()
        self._tree = np.full(nodes, inf), np.full(nodes, loop.NEVER)
        self._ready = np.arange(workers)
        self._slots, self._held = np.zeros((2, workers), np.int64)
        self._begun = np.zeros(workers + 2)
        self._gate = np.zeros(0, np.int64)
        self._marks = np.zeros(MARKS, loop.SHOWN)
        self._draws: list[list[tuple[np.ndarray, Draw]]] = [[] for _ in range(workers)]
        self._drawn = [0] * workers
        self._rings = self._make_rings()

    def _make_rings(self) -> list[Array]:
        """Make rings for each worker: compute times, latencies to the server, latencies back."""
        shared, seed = self._shared, self.seed
        streams = cluster.streams(shared.scenario, seed)
        constants = np.array([nan if each.constant is None else each.constant for each in streams])
        there_and_back = [
            self._ring(routes.latency, partial(routes.draw, seed=seed))
            for routes in (shared.up, shared.down)
        ]
        return [self._ring(constants, lambda rank: streams[rank].draw), *there_and_back]

    def _ring(self, constants: Array, draw: Callable[[int], Draw]) -> Array:
        """Make a ring per worker, of one number where all are constant; nan marks drawn ones."""
        random = np.flatnonzero(np.isnan(constants)).tolist()
        ring = np.repeat(constants[:, None], self._shared.ring if random else 1, axis=1)
        for rank in random:
            self._draws[rank].append((ring[rank], draw(rank)))
        return ring

    def follow(self, trace: np.ndarray, gate: Gate | None) -> None:
        """Follow the next piece of the server's trace, to its end or to that of the run.

        Raises Unsupported when all workers wait for each other.
        """
        if gate is not None and gate.rule not in COMPILED:
            raise Unsupported("its gate has a rule of its own")
        if gate is not None and not len(self._gate):
            self._gate = np.array(gate.state, np.int64)
        rule = loop.compiled(gate.rule if gate else always)
        self._state["place"] = 0
        while True:
            code = loop.follow(
                self._run, trace, self._workers, *self._rings, *self._tree, self._ready,
                self._slots, self._begun, self._ages, self._held, self._gate,
                self._room(len(trace)), rule,
            )  # fmt: skip
            self._show()
            if code in (loop.MORE, loop.DONE):
                self.done = code == loop.DONE
                return
            if code == loop.STUCK:
                raise Unsupported("its workers wait for each other")
            if code == loop.DRAW:
                self._draw()
            elif code == loop.GROW:
                self._ages = np.concatenate([self._ages, np.zeros_like(self._ages)])

    def _room(self, operations: int) -> np.ndarray:
        """Return the buffer for marks, for a piece of so many operations.

        Where only some bytes are charged, it holds one mark: they are summed at each.
        """
        size = max(float(self._state["whole"]), float(self._workers["size"].max()))
        if self._state["moved"] + 2 * (operations + self._shared.workers) * size > MOST:
            raise Unsupported("it sends more bytes than the loop can count")
        return self._marks[: int(min(MARKS, self._observer.room)) if self._shared.alike else 1]

    def _show(self) -> None:
        state, observer, server = self._state, self._observer, self._shared.workers
        marks = self._marks[: state["shown"]].tolist()
        for step, now, updates, moved in marks:
            self._moved = moved
            state["mark_at"] = observer.see(step, (server, now, nan, updates, NOTHING))
        state["shown"], state["every"] = 0, observer.every
        if observer.complete and not state["stopped"]:
            state["stopped"] = 1
            state["deadline"] = min(state["deadline"], state["now"])

    def _draw(self) -> None:
        """Fill the rings of all workers that need numbers now or soon."""
        ring = self._shared.ring
        iterations, untils = self._workers["iterations"], self._workers["until"]
        first = end = 0  # iterations of the last worker's stretch
        for rank in np.flatnonzero(untils - iterations < ring // 2).tolist():
            iteration, until = int(iterations[rank]), loop.NEVER
            if self._draws[rank]:
                drawn = self._drawn[rank]
                until = max(iteration - 1, 0) + ring  # its last number is still needed
                self._drawn[rank] = until
                place = drawn & (ring - 1)
                for numbers, draw in self._draws[rank]:
                    found = draw(until - drawn)
                    fits = min(ring - place, len(found))
                    numbers[place : place + fits] = found[:fits]
                    numbers[: len(found) - fits] = found[fits:]
            if not first <= iteration < end:
                first, end, work, size = self._shared.stretch(iteration)
            self._workers["work"][rank], self._workers["size"][rank] = work, size
            untils[rank] = min(until, end)

    # For the observer, and the result

    def _totals(self) -> tuple[float, float]:
        """Return the bytes so far over all links, and over those charged as egress."""
        down, up = self._workers["bytes_down"], self._workers["bytes_up"]
        return self._shared.totals(self._moved, down, up)

    def result(self) -> Run:
        """Return the results, with times cut off at the end of the run."""
        shared, table, observer = self._shared, self._workers, self._observer
        end = min(float(self._state["deadline"]), shared.scenario.run.duration or inf)
        waited = table["waited"] + np.maximum(end - table["now"], 0.0)
        # the loop may have let a worker go on from an answer that arrives after the end
        beyond = np.where(
            table["now"] >= table["answer"], np.maximum(table["answer"] - end, 0.0), 0.0
        )
        network = np.minimum(beyond, table["answer"] - table["begins"])
        communicated = table["communicated"] - network
        waited -= beyond - network
        seconds = {"compute": end - waited - communicated, "wait": waited}
        seconds["communicate"] = communicated
        if not observer.complete:
            self._moved = int(self._state["moved"])
            observer.close(shared.scenario.run.duration or inf)
        curve = observer.curve
        links = shared.by_link(table["bytes_down"], table["bytes_up"])
        stale = np.flatnonzero(self._ages).tolist()
        return Run.of(
            shared.algorithm,
            self.seed,
            "batched",
            curve,
            seconds={name: float(each.mean()) for name, each in seconds.items()},
            workers={name: each.tolist() for name, each in seconds.items()},
            links=dict(zip(shared.links.tolist(), links.astype(float).tolist(), strict=True)),
            notes=run.notes(shared.program, shared.algorithm, self._goal, curve),
            updates=observer.updates,
            staleness=dict(zip(stale, self._ages[stale].tolist(), strict=True)),
            staleness_unit="updates",
            inbox_bytes=float(self._state["inbox"]),
        )
