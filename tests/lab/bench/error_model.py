"""Problems and programs by which error models of short runs are judged, and the quadratic's fit.

`python -m tests.lab.evidence quadratic` fits it (some minutes) and prints its table of
docs/evidence/error-model.md. Real gradients in virtual time stand for measured runs: the
mathematics are the same. What is predicted has other seeds than the fitted run, and also 8 workers.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.simulator.load.load import parse
from paceline.simulator.objectives import build
from paceline.simulator.results import store
from paceline.simulator.scenario.scenario import Scenario
from paceline.validate.calibration import error_model
from paceline.validate.torch_objective import curvature

RUNS = Path("runs/error-model")
DATA = {
    "mlp": ({"kind": "torch", "model": "mlp", "data": "digits", "batch": 16}, 1200),
    "softmax": ({"kind": "softmax", "data": "digits", "batch": 16}, 800),
}
PARTITIONS: dict[str, Any] = {"iid": "iid", "dirichlet(0.3)": {"dirichlet": 0.3}}
ALGORITHMS: list[dict[str, Any]] = [
    {"name": "ssgd"},
    *({"name": "local-sgd", "tau": tau, "label": f"local-sgd {tau}"} for tau in (2, 4, 8, 16, 32)),
    {"name": "adacomm", "tau0": 16, "interval": "40 s", "label": "adacomm"},
    {"name": "dts", "delay": 4, "label": "dts"},
    {"name": "hpsgd"},
    {"name": "asgd"},
    {"name": "hybrid", "step_size": 100, "label": "hybrid"},
    {"name": "diloco", "tau": 8, "inner": 0.0, "label": "diloco"},
]
FITTED = [each for each in ALGORITHMS if each.get("label", each["name"]) in ("ssgd", "local-sgd 8")]
LR = 0.1
LEVELS = 6
CLOSE = 0.02  # relative difference of times below which there is no order to be told


def world(table: dict[str, Any], steps: int, workers: int, algorithms: list[Any]) -> Scenario:
    return parse(
        {
            "model": {"parameters": 1000},
            "objective": table,
            "optimizer": {"lr": LR},
            "cluster": {
                "workers": workers,
                "compute": {"dist": "shifted-exponential", "shift": "0.8 s", "mean": "1 s"},
            },
            "network": {"collective": "star", "latency": "0.2 s"},
            "run": {"steps": steps, "evaluate_every": 10},
            "algorithm": algorithms,
        },
        file="error-model",
    )


def survey(scenario: Scenario, workers: int, seed: int) -> dict[str, Any]:
    """A curvature survey along ssgd, whose snapshots a measured run would have left."""
    make = partial(build.build, scenario, scenario.algorithm[0], seed)
    goal = make()
    sources = [goal.source(rank) for rank in range(workers)]
    x: Any = goal.start
    path = [curvature.Snapshot(0, goal.evaluate(x, 0).loss, x)]
    for step in range(1, (scenario.run.steps or 0) + 1):
        mean = np.mean([source.gradient(x) for source in sources], axis=0)
        x = x - np.asarray(LR, x.dtype) * mean
        if step % 10 == 0:
            path.append(curvature.Snapshot(step, goal.evaluate(x, step).loss, x))
    return {"ssgd": curvature.survey(make, path, workers)}


def levels(low: float, high: float) -> np.ndarray:
    """Losses at which times are compared, of a baseline that fell from `high` to `low`."""
    found: np.ndarray = np.geomspace(1.05 * low, high / 2, LEVELS)
    return found


def seconds(curve: dict[str, np.ndarray], seed: int, loss: float) -> float:
    """Time to a loss; nan where it is not reached."""
    losses, times = np.minimum.accumulate(curve["loss"][seed]), curve["time"][seed]
    if losses[-1] > loss:
        return float("nan")
    return float(np.interp(-np.log(loss), -np.log(losses), times))


def rank(real: np.ndarray, predicted: np.ndarray) -> float:
    """Kendall's tau over the pairs that differ in reality."""
    apart = np.abs(np.log(real[:, None] / real)) > CLOSE
    signs = np.sign(real[:, None] - real) * np.sign(predicted[:, None] - predicted)
    return float(signs[apart].mean()) if apart.any() else float("nan")


def fitted(name: str, table: dict[str, Any], steps: int) -> dict[str, Any]:
    """Fit the quadratic to ssgd and local-sgd 8 of four workers, seed 0, run anew."""
    scenario = world(table, steps, 4, FITTED)
    folder = RUNS / name / "fitted"
    paceline.simulate(scenario, seed=0, seeds=1, out=folder)
    (folder / error_model.SURVEYS).write_bytes(store.dump(survey(scenario, 4, 0)))
    model = error_model.fit([folder])
    print(f"\n{name}\n{model.objective}\n{model.range} {model.fit}\n{model.sd}")
    return model.objective
