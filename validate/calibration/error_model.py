"""Calibrate a quadratic on short measured runs.

The expected loss of synchronous SGD on a quadratic is linear in the gaps of its modes:
loss(n) = floor + sum_i gap_i r_i(n), with r_i(n) = (1 - lr h_i)^(2n) for plain SGD, so that
non-negative least squares over a grid of curvatures h finds the few that matter (Lawson and Hanson
1974). Noise and heterogeneity come from surveys of curvature along the run, and from local-sgd.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.load.load import parse
from paceline.simulator.programs.pieces.transform import (
    AdamW,
    Identity,
    Momentum,
    Nesterov,
    Transform,
)
from paceline.simulator.results import read, store
from paceline.simulator.results.read import RunDirectory
from paceline.simulator.results.statistics import aligned

Array = np.ndarray[Any, np.dtype[np.float64]]

Points = Sequence[Mapping[str, Any]]
"""Points of a curvature survey, as `torch_objective.curvature.survey` returns them."""

SURVEYS = "landscape.json"
BLOCK = 16  # coordinates of a mode
ROUNDS = 3  # noise is fitted given the floor, and the floor given the noise
LEAST = 0.05  # share below which workers count as alike
LEVELS = 20  # of loss, at which steps are compared
CURVATURES = 60  # of the grid of modes
FEWEST = 1e-3  # least share of the whole gap that a mode has
SHARES, APARTS = np.linspace(0.0, 0.95, 39), np.geomspace(0.01, 100.0, 41)
MISFIT = 0.03  # relative error of losses that is expected of a quadratic
SPREAD = 0.3, 0.5  # least uncertainty of surveyed heterogeneity: relative, and of the logarithm
ENOUGH = 30  # points of a curve that heterogeneity is fitted to


@dataclass(frozen=True)
class ErrorModel:
    """A fitted error model; `objective` is the table [objective].

    `sd`: relative standard errors by dotted key; that of `objective.spectrum.curvature` is of all
    curvatures together, and so of all numbers of steps. `range`: lowest and highest loss that was
    fitted; nothing is known below.
    """

    objective: dict[str, Any]
    sd: dict[str, float]
    range: tuple[float, float]
    notes: list[str]


@dataclass(frozen=True)
class Observation:
    """Loss curves of ssgd (`tau` None) or local-sgd: `losses` (seeds, points) at `steps` (points,).

    `lr` and `tau` are functions of the local step.
    """

    label: str
    workers: int
    steps: Array
    losses: Array
    lr: Callable[[int], float]
    momentum: Transform
    tau: Callable[[int], float] | None = None

    @property
    def mean(self) -> Array:
        """Return the geometric mean of the losses over seeds (points,)."""
        mean: Array = np.exp(np.log(self.losses).mean(axis=0))
        return mean

    @property
    def rates(self) -> Array:
        """Return the effective learning rates lr / (1 - mu) at the points (points,)."""
        mu = self.momentum.mu if isinstance(self.momentum, Momentum | Nesterov) else 0.0
        rates: Array = np.array([self.lr(max(1, int(step))) for step in self.steps]) / (1 - mu)
        return rates

    def take(self, most: int) -> "Observation":
        """Return the observation at no more than `most` points, evenly spread."""
        points = np.unique(np.linspace(0, len(self.steps) - 1, most).astype(int))
        return replace(self, steps=self.steps[points], losses=self.losses[:, points])


def squared_distances(
    seen: Observation, curvature: Array, share: Any = 0.0, apart: Any = 1.0
) -> Array:
    """Return squared distances from the optimum, relative to the first.

    They are those at the steps of `seen`, along modes of `curvature`, for workers whose curvatures
    differ by `share` at `apart`, as in `objectives.quadratic`. All are broadcast; the shape is
    (points, *modes). Half of the workers move one way along the second coordinate of a mode, half
    the other, so simulating one is enough.
    """
    h, s, k = np.broadcast_arrays(
        *(np.asarray(number, float) for number in (curvature, share, apart))
    )
    coupling = np.sqrt(s * h * k) * (seen.tau is not None)
    x: Array = np.stack([np.ones(h.shape), np.zeros(h.shape)])
    u = seen.momentum.init(x)
    distances = np.empty((len(seen.steps), *h.shape))
    wanted = {int(step): index for index, step in enumerate(seen.steps)}
    since = 0
    with np.errstate(over="ignore", invalid="ignore"):  # a mode that diverges is not chosen
        for step in range(int(seen.steps[-1]) + 1):
            if step:
                slope = np.stack([h * x[0] + coupling * x[1], k * x[1] + coupling * x[0]])
                direction, u = seen.momentum.update(slope, u, x)
                x = x - seen.lr(step) * direction
                since += 1
                if seen.tau is not None and since >= seen.tau(step):
                    x[1], u, since = 0, seen.momentum.init(x), 0
            if step in wanted:
                distances[wanted[step]] = x[0] ** 2
    return distances


@dataclass(frozen=True)
class Noise:
    """sigma^2 = `fixed` + `growth` 2 (F - F*); `sd`: relative standard error of either."""

    fixed: float = 0.0
    growth: float = 0.0
    sd: float = 0.0

    def excess(self, seen: Observation, gap: Array) -> Array:
        """Return the loss that noise adds: lr sigma^2 / (4 workers)."""
        excess: Array = seen.rates * (self.fixed + 2 * self.growth * gap) / (4 * seen.workers)
        return excess


def noise(points: Points, floor: float) -> Noise:
    """Fit mini-batch noise as a function of the loss, by relative least squares."""
    noisy = [point for point in points if point["noise"] > 0]
    if not noisy:
        return Noise()
    loss, variance = (np.array([point[key] for point in noisy]) for key in ("loss", "noise"))
    rows = np.stack([np.ones(len(loss)), 2 * np.maximum(0, loss - floor)], axis=1)
    (fixed, growth), left = nnls(rows / variance[:, None], np.ones(len(loss)))
    return Noise(float(fixed), float(growth), float(left / len(loss)))


@dataclass(frozen=True)
class FittedModes:
    """A loss `floor`, and the `curvature` and `gap` of a few modes above it (modes,)."""

    floor: float
    curvature: Array
    gap: Array

    def loss(self, seen: Observation, noise: Noise, share: Any = 0.0, apart: Any = 1.0) -> Array:
        """Return the expected loss, of shape (points, *shape of `share`)."""
        s, k = np.broadcast_arrays(share, apart)
        gaps = squared_distances(seen, self.curvature, s[..., None], k[..., None]) @ self.gap
        excess = noise.excess(seen, gaps.reshape(len(gaps), -1).T).T
        loss: Array = self.floor + gaps + excess.reshape(gaps.shape)
        return loss


def modes(seen: Sequence[Observation], noise: Noise, floor: float, steepest: float) -> FittedModes:
    """Fit runs of ssgd: first all modes of a grid, then the few that are left.

    `steepest`: the largest curvature that the grid may have; `floor`: as known so far.
    """
    rates = [np.interp(np.arange(1, int(run.steps[-1]) + 1), run.steps, run.rates) for run in seen]
    moved = max(float(rate.sum()) for rate in rates)  # by the effective rates of all steps
    first = min(1.0 / run.rates.max() for run in seen)
    grid = np.geomspace(0.02 / moved, max(min(steepest, first), 1 / moved), CURVATURES)
    merged, gaps = _merged(grid, _weigh(seen, noise, floor, grid).gap)
    return _weigh(seen, noise, floor, merged[gaps > FEWEST * gaps.sum()])


def _weigh(
    seen: Sequence[Observation], noise: Noise, floor: float, curvature: Array
) -> FittedModes:
    """Fit the gaps of modes: relative errors, equal weight to each factor of steps."""
    rows, targets = [], []
    for observation in seen:
        loss = observation.mean
        target = loss - noise.excess(observation, np.maximum(0, loss - floor))
        weight = np.sqrt(np.diff(np.log1p(observation.steps), prepend=0.0) + 1e-3) / loss
        basis = np.column_stack([np.ones(len(loss)), squared_distances(observation, curvature)])
        rows.append(np.nan_to_num(basis, nan=1e9, posinf=1e9) * weight[:, None])
        targets.append(target * weight)
    (level, *gaps), _ = nnls(np.concatenate(rows), np.concatenate(targets))
    return FittedModes(float(level), curvature, np.array(gaps))


def _merged(curvature: Array, gaps: Array) -> tuple[Array, Array]:
    """Merge neighbours on the grid into one mode of their mean curvature."""
    used = np.flatnonzero(gaps)
    groups = np.split(used, np.flatnonzero(np.diff(used) > 1) + 1)
    at = [np.exp(np.average(np.log(curvature[group]), weights=gaps[group])) for group in groups]
    return np.array(at), np.array([gaps[group].sum() for group in groups])


@dataclass(frozen=True)
class FittedHeterogeneity:
    """Heterogeneity as in a scenario; `sd`: relative standard errors."""

    share: float
    curvature: float
    sd: tuple[float, float]


def heterogeneity(
    seen: Sequence[Observation], points: Points, fitted: FittedModes, noise: Noise
) -> FittedHeterogeneity | None:
    """Return the posterior mean, given local-sgd runs and a survey.

    On the quadratic zeta^2 = share curvature 2 (F - F*), and the curvature is that of a worker's
    loss along its own deviation from the mean gradient. None if neither is informative.
    """
    share, apart = np.meshgrid(SHARES, APARTS, indexing="ij")
    misfit = np.zeros(share.shape)
    gap = np.array([point["loss"] - fitted.floor for point in points])
    between = np.array([point["between"] for point in points])
    ratio = (between / (2 * gap))[gap > 0] if len(points) else np.empty(0)
    if len(ratio) > 1:
        spread = max(ratio.std(), SPREAD[0] * abs(ratio.mean()), 1e-3)
        misfit += ((share * apart - ratio.mean()) / spread) ** 2
    along = np.array([point["apart"] for point in points if (point["apart"] or 0) > 0])
    if len(along) > 1:
        spread = max(np.log(along).std(), SPREAD[1])
        misfit += ((np.log(apart) - np.log(along).mean()) / spread) ** 2
    for fewer in (observation.take(ENOUGH) for observation in seen):
        with np.errstate(all="ignore"):  # where local steps diverge, nothing is likely
            predicted = fitted.loss(fewer, noise, share, apart)
            wrong = np.log(predicted) - np.log(fewer.mean)[:, None, None]
            misfit += np.nan_to_num((wrong**2).mean(axis=0), nan=np.inf) / MISFIT**2
    if not seen and len(ratio) < 2:
        return None
    likely = np.exp((misfit.min() - misfit) / 2)
    likely /= likely.sum()
    mean = float((likely * share).sum())
    log = float((likely * np.log(apart)).sum())
    sd = float((likely * (share - mean) ** 2).sum()) ** 0.5
    sd_log = float((likely * (np.log(apart) - log) ** 2).sum()) ** 0.5
    return FittedHeterogeneity(mean, float(np.exp(log)), (sd / max(mean, 1e-9), sd_log))


def fit(runs: Sequence[Path]) -> ErrorModel:
    """Fit the runs of ssgd and local-sgd in the run directories.

    Curvature surveys (`landscape.json`) are used if there are any. Raises InputError without
    losses, or without ssgd.
    """
    observations = [observation for path in runs for observation in _observe(read.read(path))]
    if not observations:
        raise InputError(
            f"{', '.join(map(str, runs))}: no losses of ssgd or local-sgd; give a run of them "
            'whose objective.kind is "torch" or "softmax"'
        )
    return calibrate(observations, [point for path in runs for point in _points(Path(path))])


def calibrate(seen: Sequence[Observation], points: Points = ()) -> ErrorModel:
    """Fit loss curves and curvature surveys. Raises InputError without ssgd."""
    together = [observation for observation in seen if observation.tau is None]
    apart = [observation for observation in seen if observation.tau is not None]
    if not together:
        raise InputError("no ssgd among the runs; add one: local steps are compared with it")
    steepest = _largest(points)
    fitted = FittedModes(0.0, np.empty(0), np.empty(0))
    for _ in range(ROUNDS):
        seen_noise = noise(points, fitted.floor)
        fitted = modes(together, seen_noise, fitted.floor, steepest)
    differ = heterogeneity(apart, points, fitted, seen_noise)
    sd = {"objective.spectrum.curvature": _steps_error(together, fitted, seen_noise)}
    if points:
        sd |= {"objective.noise": seen_noise.sd / 2, "objective.noise_growth": seen_noise.sd}
    table: dict[str, Any] = {
        "kind": "quadratic",
        "dimension": BLOCK * len(fitted.gap),
        "spectrum": {
            "kind": "modes",
            "curvature": [_short(value) for value in fitted.curvature],
            "gap": [_short(value) for value in fitted.gap],
        },
        "noise": _short(seen_noise.fixed**0.5),
        "noise_growth": _short(seen_noise.growth),
        "initial_gap": _short(float(fitted.gap.sum())),
        "floor": _short(fitted.floor),
    }
    if differ is not None and differ.share >= LEAST:
        names = "objective.heterogeneity.share", "objective.heterogeneity.curvature"
        sd |= dict(zip(names, differ.sd, strict=True))
        table["heterogeneity"] = {
            "share": _short(differ.share),
            "curvature": _short(differ.curvature),
        }
    low = min(float(observation.mean.min()) for observation in together)
    high = max(float(observation.mean.max()) for observation in together)
    return ErrorModel(table, sd, (low, high), _notes(together, points, apart, differ))


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _largest(points: Points) -> float:
    """Return the largest surveyed curvature, inf without a survey."""
    keys = "smoothness", "curvature", "apart"
    return max((point[key] or 0.0 for point in points for key in keys), default=0.0) or np.inf


def _steps_error(seen: Sequence[Observation], fitted: FittedModes, noise: Noise) -> float:
    """Return the relative error of the model's number of steps to a loss."""
    wrong: list[float] = []
    for observation in seen:
        predicted = np.minimum.accumulate(fitted.loss(observation, noise))
        for losses in observation.losses:
            lowest = max(losses.min(), predicted.min())
            levels = np.geomspace(min(losses[1], predicted[1]), lowest, LEVELS + 1)[:-1]
            ways = [
                np.interp(-np.log(levels), -np.log(np.minimum.accumulate(curve)), observation.steps)
                for curve in (losses, predicted)
            ]
            wrong += list(np.log(ways[0] + 1) - np.log(ways[1] + 1))
    return float(np.sqrt(np.mean(np.square(wrong))))


def _notes(
    together: Sequence[Observation],
    points: Points,
    apart: Sequence[Observation],
    differ: FittedHeterogeneity | None,
) -> list[str]:
    notes = []
    if sum(len(observation.losses) for observation in together) == 1:
        notes.append("one seed: standard errors do not cover other splits of the data")
    if points:
        notes.append(
            f"the largest curvature surveyed is {_largest(points):.3g}: learning rates above its "
            "reciprocal train more slowly than predicted"
        )
    else:
        notes.append("no curvature survey: gradients count as noise-free")
    if differ is None or differ.share < LEAST:
        why = "no run shows their differences" if differ is None else "they hardly differ"
        notes.append(f"the workers' data count as alike: {why}")
    elif not apart:
        notes.append("no local-sgd: the cost of local steps comes from the curvature survey alone")
    return notes


def _points(path: Path) -> list[dict[str, Any]]:
    """Read a directory's curvature surveys, except infinite gradients."""
    if not (path / SURVEYS).exists():
        return []
    with untrusted.refused(path / SURVEYS, "repeat the run"):
        document = untrusted.loads(untrusted.text(path / SURVEYS, store.LARGEST_DOCUMENT))
        points = [point for survey in document.values() for point in survey["points"]]
        return [point for point in points if None not in (point["noise"], point["between"])]


def _observe(directory: RunDirectory) -> list[Observation]:
    """Read the loss curves of ssgd and plain local-sgd."""
    table = directory.table
    wanted = [row for row in table["algorithm"] if row["name"] in ("ssgd", "local-sgd")]
    if not wanted:
        return []
    world = parse(
        {
            "model": {"parameters": 1},
            "objective": {"kind": "quadratic"},
            "optimizer": table.get("optimizer", {}),
            "cluster": {"workers": table["cluster"]["workers"], "compute": "1 s"},
            "network": {"collective": "star", "latency": "0 s"},
            "run": {"steps": 1},
            "algorithm": wanted,
        },
        file=str(directory.path),
    )
    observations = []
    for algorithm in world.algorithm:
        given, runs = algorithm.parameters, directory.runs.get(algorithm.label, [])
        plain = given.get("outer", Identity()) == Identity() and given["codec"].kind == "raw"
        if not runs or not plain or isinstance(given["momentum"], AdamW):
            continue
        columns = aligned(runs)
        losses = columns["loss"]
        if len(losses[0]) > 1 and np.isfinite(losses).all() and (losses > 0).all():
            stepping = given["lr"], given["momentum"], given.get("tau")
            about = algorithm.label, world.cluster.workers, columns["step"][0]
            observations.append(Observation(*about, losses, *stepping))
    return observations
