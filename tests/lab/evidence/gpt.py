"""Runs of a small GPT, the most informative first, and predictions from a baseline.

Gradients are real, but time is virtual: only the clock differs from a cluster's run.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import parse
from paceline.simulator.objectives.learning_curve.objective import expect
from paceline.simulator.scenario.scenario import Scenario, World
from paceline.simulator.studies.learning import expected, intervals
from paceline.validate.torch_objective.data import load_named
from tests.lab import tables
from tests.lab.evidence import curves
from tests.lab.evidence.curves import Curve, agreement, seconds

PAGE = Path(__file__).parents[3] / "docs/evidence/validation/learning-curves.md"
MARKS = "<!-- scores -->\n", "<!-- end -->"
FILE = PAGE.with_name("evidence") / "gpt.csv"
TEXT = "python-text: 4,000,001 characters, Python 3.11.7, ba12bdfbe7f0938a"
STEPS, EVERY = 400, 20
WARMED = 40  # steps of the warm-up
GPT = {"kind": "torch", "model": "gpt", "data": "python-text", "batch": 8}
TOKENS = 64 * GPT["batch"]  # characters of a worker's step
PARAMETERS = 112_384
ADAMW = {"kind": "adamw", "beta2": 0.99, "weight_decay": 0.1}


class Cell(NamedTuple):
    """One run: a program of `PROGRAMS`, the number of workers, and the seed."""

    program: str
    workers: int
    seed: int = 0


def diloco(tau: int, **outer: float) -> dict[str, Any]:
    return {"name": "diloco", "tau": tau, "inner": ADAMW, **outer}


# The program local-sgd clears the transform's state every round, which breaks AdamW; "local"
# averages the models of workers that keep theirs.
PROGRAMS: dict[str, dict[str, Any]] = {
    "ssgd": {"name": "ssgd", "momentum": ADAMW},
    **{f"diloco {tau}": diloco(tau, outer_momentum=0.5) for tau in (2, 8, 32)},
    **{f"local {tau}": diloco(tau, outer_lr=1.0, outer_momentum=0.0) for tau in (2, 8, 32)},
    "local-sgd 32": {"name": "local-sgd", "tau": 32, "momentum": ADAMW},
    **{f"dts {delay}": {"name": "dts", "delay": delay, "inner": ADAMW} for delay in (1, 4)},
    "asgd": {"name": "asgd", "momentum": ADAMW},
}
BASELINE = Cell("ssgd", 1)


def cells() -> Iterator[Cell]:
    """Yield every cell, the most informative first."""
    yield from (Cell("ssgd", workers) for workers in (4, 1))
    yield from (Cell(name, 4) for name in PROGRAMS if name != "ssgd")
    yield from (Cell("ssgd", workers) for workers in (8, 2))
    yield from (Cell("ssgd", workers, seed) for workers in (1, 4, 2, 8) for seed in (1, 2))
    others = [name for name in PROGRAMS if name not in ("ssgd", "local-sgd 32")]
    yield from (Cell(name, workers) for workers in (2, 8) for name in others)


def world(program: str, workers: int, objective: dict[str, Any] = GPT) -> Scenario:
    """Return the scenario of a cell.

    The rate is constant after a warm-up over the first tenth, so that 20 % of a run is like a
    shorter run. It is the best after 200 steps of 1, 2, 4, 8 times 1e-3 (asgd: 0.5, 1, 2), for four
    workers. It is the same for ssgd on one worker, ssgd, dts and local. A lower one was no better
    for diloco with the published outer step, whose momentum of 0.9 suits longer runs.
    """
    peak = 5e-4 if program == "asgd" else 2e-3
    rate = {"schedule": "warmup-cosine", "peak": peak, "end": peak, "warmup": WARMED}
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
            "algorithm": [
                {"label": program, "lr": rate | {"steps": STEPS}, **PROGRAMS[program]}
            ],
        },
        file="evidence",
    )  # fmt: skip


def known() -> dict[Cell, Curve]:
    """Return the existing curves of cells; the file also has other experiments."""
    actual = {Cell(key[0], *map(int, key[1:])): curve for key, curve in curves.read(FILE).items()}
    return {cell: curve for cell, curve in actual.items() if cell.program in PROGRAMS}


def trained(cell: Cell) -> Curve:
    """Run a cell on one core."""
    scenario = world(cell.program, cell.workers)
    result = paceline.simulate(scenario, seed=cell.seed, seeds=1, engine="virtual")
    (curve,) = result.curves().values()
    return curves.stacked(curve)


def train() -> None:
    """Train missing cells; store every curve as soon as it is finished."""
    have, text = known(), load_named("python-text", None).note
    if have and text != TEXT:
        raise SystemExit(f"{text}: not the text of {FILE}; remove that file to train all anew")
    for cell in (cell for cell in cells() if cell not in have):
        curve = trained(cell)
        curves.append(FILE, Cell._fields, cell, curve)
        print(*cell, f"{curve[-1, 2]:.4f}", flush=True)


class Known(NamedTuple):
    """What is known beside the baseline: a `part` of a local run and of one of another batch."""

    words: str
    part: float = 0.25
    local: Cell | None = Cell("diloco 8", 4)
    second: Cell | None = Cell("ssgd", 4)

    @property
    def cells(self) -> list[Cell]:
        """Return the runs in the data."""
        return [cell for cell in (BASELINE, self.local, self.second) if cell]


KNOWN = (
    Known("25 % of ssgd and of diloco 8 with four workers"),
    Known("25 % of local 8 in place of diloco", local=Cell("local 8", 4)),
    Known("25 % of ssgd with four workers", local=None),
    Known("25 % of diloco 8 with four workers", second=None),
    Known("the whole of both", part=1.0),
)


class Guess(NamedTuple):
    """The prediction of a cell beside its `real` curve.

    `basis`: of the penalty; `held`: whether 90 % intervals contain the last loss, and the times to
    the losses `levels`.
    """

    real: Curve
    curve: Curve
    basis: str
    held: list[bool]
    times: list[tuple[float, float]]


def guess(cell: Cell, real: Curve, objective: dict[str, Any], levels: np.ndarray) -> Guess:
    """Predict a cell with the times of its seed.

    A loss that was not reached counts as reached after the end of the run.
    """
    scenario = world(cell.program, cell.workers, objective)
    (algorithm,) = scenario.algorithm
    basis = expect(World(scenario, algorithm).under()).basis
    (simulated,) = paceline.simulate(scenario, seed=cell.seed, seeds=1).curves().values()
    curve = curves.stacked(simulated)
    runs = run_seeds(scenario, algorithm, [cell.seed])
    model, held = expected(scenario, algorithm, runs), []
    times = [(seconds(real, level), seconds(curve, level)) for level in levels]
    for level, (truth, _) in zip(levels, times, strict=True):
        actual = intervals(scenario.cluster, model, runs, {}, float(level))
        low, high = actual["time_to_target"] or (np.nan, np.nan)
        held.append(bool(low <= truth and min(truth, real[-1, 1]) <= high))
    low, high = actual["loss"] or (np.nan, np.nan)
    return Guess(real, curve, basis, [bool(low <= real[-1, 2] <= high), *held], times)


def score(guesses: dict[Cell, Guess], known: Known) -> list[str]:
    """Compare predictions with cells outside their data; return cells of the table."""
    held = [actual for cell, actual in guesses.items() if cell not in known.cells]
    last = [actual.curve[-1, 2] / actual.real[-1, 2] - 1 for actual in held]
    times = [ours / real - 1 for actual in held for real, ours in actual.times
             if max(real, ours) < np.inf]  # fmt: skip
    order, ends, regrets = list[float](), list[float](), list[float]()
    for workers in sorted({cell.workers for cell in guesses}):
        some = [actual for cell, actual in guesses.items() if cell.workers == workers]
        ends += agreement([one.real[-1, 2] for one in some], [one.curve[-1, 2] for one in some])
        for pairs in zip(*(actual.times for actual in some), strict=True):
            truths, ours = zip(*pairs, strict=True)
            order += agreement(truths, ours)
            if len(some) > 1 and np.isfinite(truths).any() and np.isfinite(ours).any():
                regrets.append(truths[int(np.argmin(ours))] / min(truths) - 1)
    sizes = [f"{100 * np.quantile(np.abs(errors), at):.1f} %" for errors in (times, last)
             for at in (0.5, 0.95)]  # fmt: skip
    worst = max(regrets)
    most = f"{100 * worst:.0f} %" if worst < np.inf else "not reached"
    regret = f"{100 * np.median(regrets):.0f} %, {most}"
    return [known.words, *sizes, f"{np.mean(order):.2f}", f"{np.mean(ends):.2f}", regret]


def detail(cell: Cell, made: Guess) -> list[object]:
    """Return a row about one cell."""
    both = [ours / real - 1 for real, ours in made.times if max(real, ours) < np.inf]
    never = sum((real == np.inf) != (ours == np.inf) for real, ours in made.times)
    words = f"{100 * np.median(both):+.0f} % (median of {len(both)})" if both else ""
    words += f"; {never} reached by one alone" if never else ""
    pair = made.real, made.curve
    losses = [float(np.interp(part * STEPS, one[:, 0], one[:, 2])) for part in (0.2, 1)
              for one in pair]  # fmt: skip
    error = f"{100 * (losses[3] / losses[2] - 1):+.1f} %"
    return [cell.program, cell.workers, made.basis, *(f"{x:.3f}" for x in losses), error, words]


def residuals(guesses: dict[Cell, Guess], known: Known) -> Iterator[list[object]]:
    """Yield errors of predicted log ratios to ssgd with equal workers, by kind and basis."""
    rest: dict[tuple[str, str], list[float]] = {}
    for cell, actual in guesses.items():
        base = Cell("ssgd", cell.workers)
        if cell in (base, known.local) or base not in guesses:
            continue
        real, ours = (
            np.log(one[-1, 2] / other[-1, 2])
            for one, other in zip(actual[:2], guesses[base][:2], strict=True)
        )
        rest.setdefault((cell.program.split()[0], actual.basis), []).append(float(real - ours))
    for key, missed in rest.items():
        mean, size = 100 * np.mean(missed), 100 * np.std(missed)
        root = 100 * np.sqrt(np.mean(np.square(missed)))
        yield [known.words, *key, len(missed), f"{mean:+.1f} %", f"{size:.1f} %", f"{root:.1f} %"]


def write() -> None:
    """Predict every cell of the first seed; write the tables into the page and beside it."""
    real = known()
    base = real[BASELINE]
    first = np.interp(0.2 * STEPS, base[:, 0], base[:, 2])
    levels = np.geomspace(first, base[-1, 2], curves.LEVELS + 1)[:-1]
    scores, within, rest = [], [], []
    for case in KNOWN:
        taus = tuple(int(PROGRAMS[cell.program].get("tau", 1)) for cell in case.cells[1:])
        logs = [real[cell] for cell in case.cells]
        logs[1:] = [log[log[:, 0] <= STEPS * case.part] for log in logs[1:]]
        with tempfile.TemporaryDirectory() as folder:
            objective, remarks = curves.objective(
                logs, Path(folder), tokens=float(TOKENS), tau=taus, parameters=float(PARAMETERS),
                workers=tuple(cell.workers for cell in case.cells),
            )  # fmt: skip
            actual = {cell: guess(cell, curve, objective, levels) for cell, curve in real.items()
                     if cell.seed == 0}  # fmt: skip
        print(*(f"{case.words}: {remark.replace(folder, '')}" for remark in remarks), sep="\n")
        held = np.array([one.held for cell, one in actual.items() if cell not in case.cells])
        shares = f"{100 * held[:, 0].mean():.0f} %", f"{100 * held[:, 1:].mean():.0f} %"
        within.append([case.words, *shares])
        scores.append(f"| {' | '.join(score(actual, case))} |")
        rest += residuals(actual, case) if case in (KNOWN[0], KNOWN[2]) else ()
        if case is KNOWN[0]:
            details = [detail(*one) for one in actual.items()]

    def table(number: int, head: list[str], rows: Any) -> str:
        return tables.write(PAGE.with_name(f"learning-curves-{number}.csv"), head, rows)

    losses = ["loss at 20 %", "predicted", "final loss", "predicted"]
    text = [
        "| known beside the baseline | time to a loss: median | 95th percentile | "
        "final loss: median | 95th percentile | Kendall's tau: times | final losses | "
        "regret: median, largest |\n|---|--:|--:|--:|--:|--:|--:|--:|",
        *scores,
        "| aim | 10 % | 25 % | 1 % | | 0.85 | | 5 % |\n",
        f"{KNOWN[0].words.capitalize()}:\n",
        table(1, ["program", "workers", "basis", *losses, "error", "time to six losses"], details),
        "\nHow often 90 % intervals hold the truth:\n",
        table(2, ["known", "final loss", "times to six losses"], within),
        "\nErrors of the log of the final loss over that of ssgd with as many workers:\n",
        table(3, ["known", "program", "basis", "cells", "mean", "standard deviation",
                  "root mean square"], rest),
        MARKS[1],
    ]  # fmt: skip
    before, _, after = PAGE.read_text("utf-8").partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + "\n".join(text) + after.partition(MARKS[1])[2], "utf-8")
