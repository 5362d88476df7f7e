"""The matrix of real runs, the most telling first, and their curves as a file.

Real gradients in virtual time: the mathematics are those of a cluster's run, the clock is not.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.scenario import Scenario
from paceline.validate.torch_objective.data import load_named

CURVES = Path(__file__).parents[3] / "docs/evidence/validation/evidence/gpt.csv"
HEAD = ("program", "workers", "seed", "step", "seconds", "loss")
STEPS, EVERY = 400, 20
WARMED = 40  # steps of the warm-up
TEXT = "python-text: 4,000,001 characters, Python 3.11.7, ba12bdfbe7f0938a"
GPT = {"kind": "torch", "model": "gpt", "data": "python-text", "batch": 8}
LARGE = 32  # samples of a worker's step, where its own noise is a quarter
PARAMETERS = 112_384
ADAMW = {"kind": "adamw", "beta2": 0.99, "weight_decay": 0.1}


class Cell(NamedTuple):
    """One run: a program of `PROGRAMS`, the number of workers, and the seed."""

    program: str
    workers: int
    seed: int = 0


def rate(peak: float, times: int = 1) -> dict[str, Any]:
    """Constant after a warm-up over the first tenth, so that 20 % of a run is any run's 20 %."""
    steps = {"warmup": times * WARMED, "steps": times * STEPS}
    return {"schedule": "warmup-cosine", "peak": peak, "end": peak, **steps}


def cosine(algorithm: dict[str, Any]) -> dict[str, Any]:
    """The same with a rate that decays to nothing, as published runs have it."""
    return algorithm | {"lr": {**rate(2e-3), "end": 0.0}}


def diloco(tau: int, **outer: float) -> dict[str, Any]:
    return {"name": "diloco", "tau": tau, "inner": ADAMW, **outer}


# local-sgd's own text clears the transform's state every round, which AdamW does not survive:
# "local" averages the models of workers that keep theirs.
PROGRAMS: dict[str, dict[str, Any]] = {
    "ssgd": {"name": "ssgd", "momentum": ADAMW},
    **{f"diloco {tau}": diloco(tau, outer_momentum=0.5) for tau in (2, 8, 32)},
    **{f"local {tau}": diloco(tau, outer_lr=1.0, outer_momentum=0.0) for tau in (2, 8, 32)},
    "local-sgd 32": {"name": "local-sgd", "tau": 32, "momentum": ADAMW},
    **{f"dts {delay}": {"name": "dts", "delay": delay, "inner": ADAMW} for delay in (1, 4)},
    "asgd": {"name": "asgd", "momentum": ADAMW},
}
# Why local steps cost what they cost here: with a rate that decays, and with an optimizer that
# does not divide by the noise of a worker's own gradients.
CAUSES: dict[str, dict[str, Any]] = {
    **{f"{name} cosine": cosine(PROGRAMS[name]) for name in ("ssgd", "local 8", "diloco 8")},
    "ssgd momentum": {"name": "ssgd", "momentum": 0.9, "lr": rate(0.1)},
    "local 8 momentum": {**PROGRAMS["local 8"], "inner": 0.9, "lr": rate(0.1)},
    "asgd no delay": {**PROGRAMS["asgd"], "name": "ssgd", "lr": rate(5e-4, 4)},  # of one worker
    "asgd rate 0.00025": {**PROGRAMS["asgd"], "lr": rate(2.5e-4)},
    "asgd no momentum": {**PROGRAMS["asgd"], "momentum": {**ADAMW, "beta1": 0.0}, "lr": rate(5e-4)},
    "local 1": diloco(1, outer_lr=1.0, outer_momentum=0.0),
    **{f"ssgd rate {each:g}": {**PROGRAMS["ssgd"], "lr": rate(each)} for each in (1e-3, 4e-3)},
    **{f"{name} batch {LARGE}": PROGRAMS[name] for name in ("ssgd", "local 2")},
}


def peak(program: str) -> float:
    """The best after 200 steps of 1, 2, 4, 8 times 1e-3 (asgd: 0.5, 1, 2), for four workers.

    ssgd of one worker, ssgd, dts and local have the same one. Nor was a lower one better for
    diloco with the published outer step, whose momentum of 0.9 suits longer runs: of (0.7, 0.9),
    (0.7, 0.7), (1, 0.5) and (0.7, 0.5) the last was the best, at periods of 8 and 32.
    """
    return 5e-4 if program == "asgd" else 2e-3


def cells() -> Iterator[Cell]:
    """Yield every cell once, those first that say the most."""
    yield Cell("ssgd", 4)
    yield Cell("ssgd", 1)
    for name in PROGRAMS:
        if name != "ssgd":
            yield Cell(name, 4)
    yield from (Cell(name, 4) for name in CAUSES)
    yield from (Cell("ssgd", workers) for workers in (8, 2))
    yield Cell("asgd", 8)
    yield from (Cell("ssgd", workers, seed) for seed in (1, 2) for workers in (1, 4))
    for workers in (2, 8):
        yield from (
            Cell(name, workers)
            for name in PROGRAMS
            if name not in ("ssgd", "local-sgd 32") and (name, workers) != ("asgd", 8)
        )
    yield from (Cell("ssgd", workers, seed) for seed in (1, 2) for workers in (2, 8))


def world(program: str, workers: int, objective: dict[str, Any] = GPT, **table: Any) -> Scenario:
    """Return the scenario of a cell; `table` overrides keys of its algorithm."""
    algorithm = {
        "label": program,
        "lr": rate(peak(program)),
        **(PROGRAMS | CAUSES)[program],
        **table,
    }
    return parse(
        {
            "model": {"parameters": PARAMETERS},
            "objective": objective,
            "cluster": {
                "workers": workers,
                "compute": {"dist": "shifted-exponential", "shift": "0.8 s", "mean": "1 s"},
            },
            "network": {"collective": "ring", "latency": "50 ms", "bandwidth": "20 Mbit/s"},
            "run": {"steps": STEPS, "evaluate_every": EVERY, "timeline_spans": 0},
            "algorithm": [algorithm],
        },
        file="evidence",
    )  # fmt: skip


def known() -> dict[Cell, np.ndarray]:
    """Return the curves that there are: columns step, seconds, loss."""
    found: dict[Cell, list[list[float]]] = {}
    if CURVES.exists():
        with CURVES.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                cell = Cell(row["program"], int(row["workers"]), int(row["seed"]))
                found.setdefault(cell, []).append([float(row[key]) for key in HEAD[3:]])
    return {cell: np.array(rows) for cell, rows in found.items()}


def trained(cell: Cell) -> np.ndarray:
    """Run a cell on one core; return its curve: columns step, seconds, loss."""
    batch = {"batch": LARGE} if cell.program.endswith(f"batch {LARGE}") else {}
    scenario, times = world(cell.program, cell.workers, GPT | batch), 1
    if cell.program == "asgd no delay":
        times, run = cell.workers, scenario.run
        cluster = scenario.cluster.model_copy(update={"workers": 1})
        run = run.model_copy(update={"steps": times * STEPS, "evaluate_every": times * EVERY})
        scenario = scenario.model_copy(update={"cluster": cluster, "run": run})
    (curve,) = (
        paceline.simulate(scenario, seed=cell.seed, seeds=1, engine="virtual").curves().values()
    )
    steps = np.ravel(curve["step"]) / times
    return np.column_stack([steps, *(np.ravel(curve[key]) for key in ("time", "loss"))])


def train() -> None:
    """Train what is missing; each curve is kept as soon as it is known."""
    have, text = known(), load_named("python-text", None).note
    if have and text != TEXT:
        raise SystemExit(f"{text}: not the text of {CURVES}; remove that file to train all anew")
    for cell in (each for each in cells() if each not in have):
        curve = trained(cell)
        new = not CURVES.exists()
        with CURVES.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([HEAD] if new else [])
            for step, seconds, loss in curve:
                row = f"{step:.0f}", f"{seconds:.6g}", f"{loss:.6g}"
                writer.writerow([cell.program, cell.workers, cell.seed, *row])
        print(*cell, f"{curve[-1, 2]:.4f}", flush=True)
