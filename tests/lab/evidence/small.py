"""Runs of an mlp and of softmax regression, on even and uneven data: real gradients, plain SGD.

Models of one short run are judged by what they predict of other seeds, and of 8 workers: here the
learning curve of `fit-loss`, or the calibrated quadratic of docs/evidence/error-model.md. Real
gradients in virtual time stand for measured runs: the mathematics are the same.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.simulator.load.load import parse
from paceline.simulator.objectives import build
from paceline.simulator.results import store
from paceline.simulator.scenario.scenario import Scenario
from paceline.validate.calibration import error_model
from paceline.validate.torch_objective import curvature
from tests.lab.evidence import curves
from tests.lab.evidence.curves import Curve, agreement, seconds

FILE = Path(__file__).parents[3] / "docs/evidence/validation/evidence/small.csv"
RUNS = Path("runs/error-model")
DATA = {
    "mlp": ({"kind": "torch", "model": "mlp", "data": "digits", "batch": 16}, 1200),
    "softmax": ({"kind": "softmax", "data": "digits", "batch": 16}, 800),
}
PARTITIONS: dict[str, Any] = {"iid": "iid", "dirichlet(0.3)": {"dirichlet": 0.3}}
PROBLEMS = [*product(DATA, PARTITIONS)]
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
ROWS = [str(algorithm.get("label", algorithm["name"])) for algorithm in ALGORITHMS]
FITTED = [ALGORITHMS[0], ALGORITHMS[3]]  # ssgd, and local-sgd 8
LR = 0.1
FOUR, ONE = (4, 0), (1, 0)  # workers and seed of what is known: the baseline, and one worker
HELD_OUT = ((4, 1), (8, 1), (4, 2), (8, 2))


class Group(NamedTuple):
    """Runs of all programs on one problem, by so many workers, with one seed."""

    problem: str
    data: str
    workers: int
    seed: int


Curves = dict[str, Curve]  # by program
Fit = Callable[[dict[Group, Curves], str, str, Path], dict[str, Any]]  # makes an [objective]


def world(table: dict[str, Any], steps: int, workers: int, algorithms: list[Any]) -> Scenario:
    """Return the scenario of programs."""
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


def problem_table(problem: str, data: str) -> tuple[dict[str, Any], int]:
    """Return the objective of a problem, and its steps."""
    table, steps = DATA[problem]
    return table | {"partition": PARTITIONS[data]}, steps


def known() -> dict[Group, Curves]:
    """Return the curves that there are."""
    found: dict[Group, Curves] = {}
    for (problem, data, workers, seed, program), curve in curves.read(FILE).items():
        found.setdefault(Group(problem, data, int(workers), int(seed)), {})[program] = curve
    return found


def train() -> None:
    """Train what is missing; a group is kept as soon as it is known."""
    have = known()
    groups = [Group(*problem, *size) for size in (FOUR, ONE, *HELD_OUT) for problem in PROBLEMS]
    for group in (group for group in groups if group not in have):
        table, steps = problem_table(group.problem, group.data)
        programs = {FOUR: FITTED, ONE: ALGORITHMS[:1]}.get(group[2:], ALGORITHMS)
        scenario = world(table, steps, group.workers, programs)
        result = paceline.simulate(scenario, seed=group.seed, seeds=1)
        for program, simulated in result.curves().items():
            rows = curves.stacked(simulated)
            # Every tenth step at first, later ever fewer.
            kept = np.append(np.arange(10), np.geomspace(10, len(rows) - 1, 20))
            curve = rows[np.unique(np.rint(kept)).astype(int)]
            curves.append(FILE, (*Group._fields, "program"), (*group, program), curve)
        print(*group, flush=True)


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


def quadratic(real: dict[Group, Curves], problem: str, data: str, folder: Path) -> dict[str, Any]:
    """Fit the calibrated quadratic to ssgd and local-sgd 8 of four workers, seed 0, run anew.

    It needs the run itself, for a survey of its curvature.
    """
    scenario = world(*problem_table(problem, data), FOUR[0], FITTED)
    out = RUNS / f"{problem} {data}" / "fitted"
    paceline.simulate(scenario, seed=0, seeds=1, out=out)
    (out / error_model.SURVEYS).write_bytes(store.dump(survey(scenario, *FOUR)))
    model = error_model.fit([out])
    print(f"\n{problem} {data}\n{model.objective}\n{model.range} {model.fit}\n{model.sd}")
    return model.objective


def fitted(real: dict[Group, Curves], problem: str, data: str, folder: Path) -> dict[str, Any]:
    """Fit an objective to ssgd on four workers and on one, and a fifth of a run of local-sgd 8."""
    base, one = (real[Group(problem, data, *size)] for size in (FOUR, ONE))
    local = base["local-sgd 8"]
    runs = base["ssgd"], local[local[:, 0] <= 0.2 * DATA[problem][1]], one["ssgd"]
    table, _ = curves.objective(
        runs, folder, tokens=16.0, workers=(4, 4, 1), tau=(8, 1), algorithm=("local-sgd", "ssgd"),
        lr=LR,
    )  # fmt: skip
    return table


def errors(
    real: dict[Group, Curves], problem: str, data: str, fit: Fit
) -> tuple[dict[str, list[float]], list[float]]:
    """Return relative errors of the times to six losses by program, and Kendall's taus."""
    baseline = real[Group(problem, data, *FOUR)]["ssgd"][:, 2]
    levels = np.geomspace(1.05 * baseline.min(), baseline.max() / 2, curves.LEVELS)
    found: dict[str, list[float]] = {}
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        objective = fit(real, problem, data, Path(folder))
        for workers, seed in HELD_OUT:
            truths = real[Group(problem, data, workers, seed)]
            scenario = world(objective, DATA[problem][1], workers, ALGORITHMS)
            simulated = paceline.simulate(scenario, seed=seed, seeds=1).curves()
            ours = {program: curves.stacked(curve) for program, curve in simulated.items()}
            for level in levels:
                times = {k: (seconds(truths[k], level), seconds(ours[k], level)) for k in truths}
                both = {k: pair for k, pair in times.items() if np.isfinite(pair).all()}
                for k, (truth, guess) in both.items():
                    found.setdefault(k, []).append(guess / truth - 1)
                if signs := [*agreement(*zip(*both.values(), strict=True))] if both else []:
                    ranks.append(float(np.mean(signs)))
    return found, ranks


def report(fit: Fit = fitted) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of a kind of model."""
    real, columns, last = known(), [], []
    for problem, data in PROBLEMS:
        found, ranks = errors(real, problem, data, fit)
        found["**all**"] = [error for values in found.values() for error in values]
        columns.append(found)
        last.append(f"{np.nanmedian(ranks):.2f}, {np.nanmin(ranks):.2f}")
    rows = []
    for program in (*ROWS, "**all**"):
        cells = [np.abs(100 * np.array(column.get(program, [np.nan]))) for column in columns]
        shown = [f"{np.median(cell):.1f} ({np.quantile(cell, 0.9):.0f})" for cell in cells]
        rows.append([program, *shown])
    heads = [f"{problem}, {data}" for problem, data in PROBLEMS]
    return ["", *heads], [*rows, ["Kendall's tau: median, lowest", *last]]
