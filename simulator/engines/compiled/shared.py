"""State that all seeds of a parameter server share: the workers' trace, and the links."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import chain
from math import inf, nan
from operator import itemgetter
from threading import Lock

import numpy as np

from ...distributions.distribution import Array
from ...distributions.parametric import Constant
from ...distributions.random_streams import Purpose, generator
from ...network.closed_form import ClosedForm
from ...network.region_path import RegionPath
from ...programs import Program
from ...scenario.scenario import Algorithm, Scenario
from ..observer import NEVER
from .worker_trace import WorkerTrace

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
