"""Calibrate a quadratic, and Theorem 2's constants, on short measured runs.

The expected loss of synchronous SGD on a quadratic is linear in the gaps of its modes:
loss(n) = floor + sum_i gap_i r_i(n), with r_i(n) = (1 - lr h_i)^(2n) for plain SGD, so that
non-negative least squares over a grid of curvatures h finds the few that matter (Lawson and Hanson
1974). Noise and heterogeneity come from surveys of curvature along the run, and from local-sgd.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.load.load import parse
from paceline.simulator.programs.pieces.transform import AdamW, Identity
from paceline.simulator.results import read, store
from paceline.simulator.results.read import RunDirectory
from paceline.simulator.results.statistics import aligned

from .error_model_modes import (
    FittedHeterogeneity,
    FittedModes,
    Noise,
    Observation,
    Points,
    heterogeneity,
    modes,
    noise,
)

SURVEYS = "landscape.json"
BLOCK = 16  # coordinates of a mode
ROUNDS = 3  # noise is fitted given the floor, and the floor given the noise
LEAST = 0.05  # share below which workers count as alike
LEVELS = 20  # of loss, at which steps are compared


@dataclass(frozen=True)
class ErrorModel:
    """A fitted error model. `objective` and `bound` are tables for [objective].

    `sd`: relative standard errors by dotted key; that of `objective.spectrum.curvature` is of all
    curvatures together, and so of all numbers of steps. `range`: lowest and highest loss that was
    fitted; nothing is known below. `fit`: root mean square error of log losses by label.
    """

    objective: dict[str, Any]
    bound: dict[str, Any] | None
    sd: dict[str, float]
    range: tuple[float, float]
    fit: dict[str, float]
    notes: list[str]


def fit(runs: Sequence[Path]) -> ErrorModel:
    """Fit the runs of ssgd and local-sgd in the run directories.

    Curvature surveys (`landscape.json`) are used if there are any. Raises InputError without
    losses, or without ssgd.
    """
    found = [read.read(path) for path in runs]
    observations = [each for directory in found for each in _observe(directory)]
    if not observations:
        raise InputError(
            f"{', '.join(map(str, runs))}: no losses of ssgd or local-sgd; give a run of them "
            'whose objective.kind is "torch" or "softmax"'
        )
    return calibrate(observations, [point for path in runs for point in _points(Path(path))])


def calibrate(seen: Sequence[Observation], points: Points = ()) -> ErrorModel:
    """Fit loss curves and points of curvature surveys. Raises InputError without ssgd."""
    together = [observation for observation in seen if observation.tau is None]
    apart = [each for each in seen if each.tau is not None]
    if not together:
        raise InputError("no ssgd among the runs; add one: local steps are compared with it")
    steepest = _largest(points)
    found = FittedModes(0.0, np.empty(0), np.empty(0))
    for _ in range(ROUNDS):
        seen_noise = noise(points, found.floor)
        found = modes(together, seen_noise, found.floor, steepest)
    differ = heterogeneity(apart, points, found, seen_noise)
    initial_gap = float(found.gap.sum())
    differs = differ is not None and differ.share >= LEAST
    quality = {each.label: _misfit(each, found, seen_noise, differ) for each in seen}
    sd = {"objective.spectrum.curvature": _pace(together, found, seen_noise)}
    if points:
        sd |= {"objective.noise": seen_noise.sd / 2, "objective.noise_growth": seen_noise.sd}
    table: dict[str, Any] = {
        "kind": "quadratic",
        "dimension": BLOCK * len(found.gap),
        "spectrum": {
            "kind": "modes",
            "curvature": [_short(each) for each in found.curvature],
            "gap": [_short(each) for each in found.gap],
        },
        "noise": _short(seen_noise.fixed**0.5),
        "noise_growth": _short(seen_noise.growth),
        "initial_gap": _short(initial_gap),
        "floor": _short(found.floor),
    }
    if differ is not None and differs:
        names = "objective.heterogeneity.share", "objective.heterogeneity.curvature"
        sd |= dict(zip(names, differ.sd, strict=True))
        table["heterogeneity"] = {
            "share": _short(differ.share),
            "curvature": _short(differ.curvature),
        }
    low = min(float(each.mean.min()) for each in together)
    high = max(float(each.mean.max()) for each in together)
    notes = _notes(together, points, apart, differ)
    return ErrorModel(table, _bound(points, initial_gap), sd, (low, high), quality, notes)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _largest(points: Points) -> float:
    """Return the largest surveyed curvature, inf without a survey."""
    found = [point[key] or 0.0 for point in points for key in ("smoothness", "curvature", "apart")]
    return max(found, default=0.0) or np.inf


def _bound(points: Points, initial_gap: float) -> dict[str, Any] | None:
    """Return Theorem 2's constants, which must hold everywhere: the largest surveyed."""
    smoothness = _largest(points)
    if not np.isfinite(smoothness):
        return None
    return {
        "kind": "bound",
        "initial_gap": _short(initial_gap),
        "smoothness": _short(smoothness),
        "gradient_variance": _short(max(point["noise"] for point in points)),
    }


def _misfit(
    seen: Observation, found: FittedModes, noise: Noise, differ: FittedHeterogeneity | None
) -> float:
    share, apart = (differ.share, differ.curvature) if differ else (0.0, 1.0)
    wrong = np.log(found.loss(seen, noise, share, apart)) - np.log(seen.mean)
    return float(np.sqrt((wrong**2).mean()))


def _pace(seen: Sequence[Observation], found: FittedModes, noise: Noise) -> float:
    """Return the relative error of the model's number of steps to a loss."""
    wrong: list[float] = []
    for observation in seen:
        predicted = np.minimum.accumulate(found.loss(observation, noise))
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
    notes = ["the curvature is that of a quadratic, the same along the whole run"]
    if sum(len(observation.losses) for observation in together) == 1:
        notes.append("one seed: standard errors do not cover other splits of the data")
    if points:
        notes.append(
            f"the largest curvature surveyed is {_largest(points):.3g}: a learning rate, times the "
            "gradients applied at once, above its reciprocal trains more slowly than predicted"
        )
    else:
        notes.append("no curvature survey: gradients count as noise-free")
    if differ is None:
        notes.append("neither curvature survey nor local-sgd: the workers' data count as alike")
    elif differ.share < LEAST:
        notes.append("the workers' data count as alike: their differences are too small to measure")
    elif not apart:
        notes.append("no local-sgd: the cost of local steps comes from the curvature survey alone")
    return notes


def _points(path: Path) -> list[dict[str, Any]]:
    """Read the points of a directory's curvature surveys, except those with infinite gradients."""
    if not (path / SURVEYS).exists():
        return []
    with untrusted.refused(path / SURVEYS, "repeat the run"):
        document = untrusted.loads(untrusted.text(path / SURVEYS, store.LARGEST_DOCUMENT))
        points = [point for survey in document.values() for point in survey["points"]]
        return [each for each in points if None not in (each["noise"], each["between"])]


def _observe(directory: RunDirectory) -> list[Observation]:
    """Read the loss curves of ssgd and plain local-sgd."""
    table = directory.table
    wanted = [each for each in table["algorithm"] if each["name"] in ("ssgd", "local-sgd")]
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
    found = []
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
            found.append(Observation(*about, losses, *stepping))
    return found
