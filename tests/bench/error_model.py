"""How well an error model of one short run predicts others: the tables of docs/error-model.md.

    python -m tests.bench.error_model          all (a quarter of an hour)

Real gradients in virtual time stand for measured runs: the mathematics are the same. The model is
fitted to ssgd and local-sgd (tau = 8) of 4 workers with seed 0; what is predicted has other seeds,
and 8 workers. Runs go to runs/error-model; when interrupted, the same command resumes.
"""

import os
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

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
HELD_OUT = ((4, 1), (8, 1))  # workers, and the first of two seeds
LR = 0.1
LEVELS = 6
CLOSE = 0.02  # relative difference of times below which there is no order to be told

Curves = dict[str, dict[str, np.ndarray]]


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


def simulated(scenario: Scenario, out: str, seed: int, seeds: int) -> Curves:
    jobs = os.cpu_count() or 1
    return paceline.simulate(
        scenario, seed=seed, seeds=seeds, jobs=jobs, out=RUNS / out
    ).curves()  # fmt: skip


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


def study(name: str, table: dict[str, Any], steps: int) -> None:
    fitted = world(table, steps, 4, FITTED)
    simulated(fitted, f"{name}/fitted", 0, 1)
    (RUNS / name / "fitted" / error_model.SURVEYS).write_bytes(
        store.dump(survey(fitted, 4, 0))
    )  # fmt: skip
    model = error_model.fit([RUNS / name / "fitted"])
    print(f"\n{name}\n{model.objective}\n{model.range} {model.fit}\n{model.sd}")
    low, high = model.range
    at = levels(low, high)
    errors: dict[str, list[float]] = {}
    plain, apart = [], []
    for workers, seed in HELD_OUT:
        real = simulated(
            world(table, steps, workers, ALGORITHMS), f"{name}/real-{workers}", seed, 2
        )  # fmt: skip
        ours = simulated(
            world(model.objective, steps, workers, ALGORITHMS), f"{name}/ours-{workers}", 100, 2
        )  # fmt: skip
        for index in range(2):
            for loss in at:
                pairs = {
                    label: (
                        seconds(real[label], index, loss),
                        sum(seconds(ours[label], each, loss) for each in range(2)) / 2,
                    )
                    for label in real
                }
                both = {k: v for k, v in pairs.items() if np.isfinite(v).all()}
                for label, (truth, guess) in both.items():
                    errors.setdefault(label, []).append(guess / truth - 1)
                truths, guesses = map(np.array, zip(*both.values(), strict=True))
                plain.append(float(kendalltau(truths, guesses).statistic))
                apart.append(rank(truths, guesses))
    print("| | median error | median | 90th percentile |\n|---|--:|--:|--:|")
    for label, found in [*errors.items(), ("all", [*chain(*errors.values())])]:
        size = np.abs(list(found))
        print(
            f"| {label} | {np.median(found):+.1%} | {np.median(size):.1%} | "
            f"{np.quantile(size, 0.9):.1%} |"
        )
    print(
        f"Kendall's tau: median {np.nanmedian(plain):.2f} (from {np.nanmin(plain):.2f}); of pairs "
        f"{CLOSE:.0%} apart {np.nanmedian(apart):.2f} (from {np.nanmin(apart):.2f})"
    )


if __name__ == "__main__":
    for model_name, (spec, steps) in DATA.items():
        for partition, dealt in PARTITIONS.items():
            study(f"{model_name} {partition}", {**spec, "partition": dealt}, steps)
