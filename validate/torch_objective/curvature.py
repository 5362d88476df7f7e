"""Survey of an objective along a run: noise, heterogeneity of workers, curvature.

Computed after the run from its snapshots, with each worker's first mini-batches, the same ones at
every point, so that differences of gradients do not come from different samples.
"""

from collections.abc import Callable, Sequence
from math import nan
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from paceline.simulator.objectives.objective import Objective

POINTS = 8  # along a run
BATCHES = 16, 4  # of each worker at each point: most and least; fewer if gradients are slow
SECONDS = 2.0  # approximate budget of a survey
STEP = 1e-2  # distance of gradient differences, relative to the norm of the parameters

Array = np.ndarray[Any, np.dtype[np.float64]]


T = TypeVar("T")


class Snapshot(NamedTuple):
    """The parameters `x` (dimension,) after `step` local steps, and their loss."""

    step: float
    loss: float
    x: np.ndarray


def survey(
    objective: Callable[[], Objective], path: Sequence[Snapshot], workers: int
) -> dict[str, Any] | None:
    """Measure the objective at up to `POINTS` snapshots, evenly spread.

    `objective` makes it afresh, as at the start of a run. None without losses or snapshots. Each
    point has `step`, `loss` and, with squared norms of whole gradients,

    - `squared_gradient`: ||grad F||^2, `noise`: sigma^2 = E||g - grad F_w||^2 of one mini-batch of
      a worker, `between`: zeta^2, the mean of ||grad F_w - grad F||^2 over workers, all without
      bias by the analysis of variance (Scheffe 1959, section 7.2);
    - `curvature`: u' H u of the mean loss along u = grad F; `apart`: the mean over workers of
      u' H_w u along u = grad F_w - grad F, by differences (nan with one worker);
    - `smoothness`: ||g(x) - g(y)|| / ||x - y|| of the mean gradient, y being the point before.

    `batches`: mini-batches of each worker at each point; `seconds`: duration of the survey. If
    gradients are slow there are fewer batches, then fewer points.
    """
    goal = objective()
    path = [
        snapshot
        for snapshot in path
        if np.isfinite(snapshot.loss) and np.isfinite(snapshot.x).all()
    ]
    if isinstance(goal.start, complex) or not path:
        return None
    begin = perf_counter()
    goal.source(0).gradient(np.asarray(path[0].x))
    batches, count = afford(perf_counter() - begin, workers)
    points: list[dict[str, float]] = []
    x = gradient = np.full(1, nan)  # of the point before
    for snapshot in chosen(path, count):
        measured = SurveyPoint(goal, np.asarray(snapshot.x), workers, batches)
        point = {"step": float(snapshot.step), "loss": float(snapshot.loss), **measured.estimates()}
        moved = float(np.linalg.norm(snapshot.x - x))
        changed = float(np.linalg.norm(measured.mean - gradient))
        points.append(point | {"smoothness": changed / moved if moved else nan})
        x, gradient = np.asarray(snapshot.x, dtype=float), measured.mean
    return {
        "batches": batches,
        "workers": workers,
        "seconds": perf_counter() - begin,
        "points": [{k: v if np.isfinite(v) else None for k, v in p.items()} for p in points],
    }


def chosen(path: Sequence[T], most: int = POINTS) -> list[T]:
    """Return at most `most` items of a path, evenly spread."""
    return [path[index] for index in np.unique(np.linspace(0, len(path) - 1, most).astype(int))]


def afford(seconds: float, workers: int) -> tuple[int, int]:
    """Return mini-batches per point, and points, that fit the time budget."""
    most, least = BATCHES
    gradients = SECONDS / max(seconds, 1e-6) / (3 * workers)  # each point takes three passes
    batches = int(np.clip(gradients / POINTS, least, most))
    return batches, int(np.clip(gradients / batches, 2, POINTS))


class SurveyPoint:
    """The `gradients` of all workers at one point (workers, dimension), and their `mean`."""

    def __init__(self, goal: Objective, x: np.ndarray, workers: int, batches: int) -> None:
        self._goal, self._x, self._batches = goal, x, batches
        self.noise, self.gradients = 0.0, np.empty((workers, len(x)))
        for rank in range(workers):
            drawn = self._gradients(rank, x)
            self.gradients[rank] = drawn.mean(axis=0)
            self.noise += float(drawn.var(axis=0, ddof=1).sum()) / workers
        self.mean: Array = self.gradients.mean(axis=0)

    def _gradients(self, rank: int, x: np.ndarray) -> Array:
        source = self._goal.source(rank)
        return np.array([source.gradient(x) for _ in range(self._batches)], dtype=float)

    def estimates(self) -> dict[str, float]:
        """Return the estimates at this point, without smoothness."""
        workers, of_mean = len(self.gradients), self.noise / self._batches
        apart = self.gradients - self.mean
        between = (apart**2).sum() / (workers - 1) - of_mean if workers > 1 else 0.0
        alone = [self._differences(rank, apart[rank]) for rank in range(workers)]
        along = [self._differences(rank, self.mean) for rank in range(workers)]
        return {
            "squared_gradient": float(self.mean @ self.mean - of_mean / workers),
            "noise": self.noise,
            "between": float(between) * (workers - 1) / workers,
            "curvature": float(np.mean(along)),
            "apart": float(np.mean(alone)) if workers > 1 else nan,
        }

    def _differences(self, rank: int, direction: Array) -> float:
        """Return the curvature of a worker's loss along a direction."""
        length = float(np.linalg.norm(direction))
        if not length:
            return nan
        unit = direction / length
        step = STEP * (float(np.linalg.norm(self._x)) or 1.0)
        moved = self._gradients(rank, (self._x + step * unit).astype(self._x.dtype)).mean(axis=0)
        return float(unit @ (moved - self.gradients[rank])) / step
