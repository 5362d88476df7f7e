"""The observer: turns the nodes' marks into the points of a curve. It costs no simulated time."""

from typing import Protocol

from simulator.effects import Vector
from simulator.engines import values
from simulator.network import Traffic
from simulator.objective import Objective
from simulator.scenario import Cost
from simulator.trace import COLUMNS

SECONDS_PER_HOUR = 3600.0
BYTES_PER_GB = 1e9


class Watched(Protocol):
    """What the observer sees of a node."""

    rank: int
    step: int
    now: float
    period: float
    x: Vector


class Observer:
    """Evaluates the mean of the watched nodes' parameters every `every` steps, and at `limit`.

    Where the workers never average it evaluates the first node's parameters instead. A point's time
    is when the last node got there; there are none after `deadline`. `scale`: a node's steps per
    local step (one; for a server, which counts gradients, the number of workers). `nodes`: machines
    that are paid.
    """

    def __init__(  # noqa: PLR0913 - each tells it one thing to watch
        self,
        watched: int,
        *,
        every: int,
        limit: int,
        scale: int,
        objective: Objective,
        traffic: Traffic,
        cost: Cost,
        nodes: int,
        averages: bool,
        deadline: float,
    ) -> None:
        self._watched, self._every, self._limit, self._scale = watched, every, limit, scale
        self._objective, self._traffic = objective, traffic
        self._averages, self._deadline = averages, deadline
        self._node_second = nodes * (cost.node_hour or 0.0) / SECONDS_PER_HOUR
        self._egress_byte = (cost.egress_per_gb or 0.0) / BYTES_PER_GB
        self._views: dict[int, list[tuple[int, float, float, Vector]]] = {}
        self.curve: dict[str, list[float]] = {name: [] for name in COLUMNS}
        self._point(0, 0.0, float("nan"), objective.start)

    def see(self, node: Watched) -> int:
        """Take in one node's mark; return the step of the next mark to show."""
        step = node.step
        views = self._views.setdefault(step, [])
        views.append((node.rank, node.now, node.period, node.x))
        if len(views) == self._watched:
            del self._views[step]
            views.sort(key=lambda view: view[0])
            _, times, periods, vectors = zip(*views, strict=True)
            x = values.mean(vectors) if self._averages else vectors[0]
            self._point(step / self._scale, max(times), periods[0], x)
        following = (step // self._every + 1) * self._every
        return min(following, self._limit) if step < self._limit else following

    def _point(self, step: float, time: float, period: float, x: Vector) -> None:
        if time > self._deadline:
            return
        loss, accuracy = self._objective.evaluate(x, step)
        moved, charged = self._traffic.totals()
        cost = time * self._node_second + charged * self._egress_byte
        row = (time, step, loss, accuracy, period, moved, cost)
        for name, value in zip(COLUMNS, row, strict=True):
            self.curve[name].append(value)
