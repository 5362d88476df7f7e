"""How well a baseline and one short local run predict the other cells: the tables of the page."""

import csv
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.simulator.load.load import known_programs
from paceline.simulator.objectives.learning_curve.objective import expect
from paceline.validate.logs import loss
from tests.evidence import cells
from tests.evidence.cells import CURVES, GPT, HEAD, PARAMETERS, PROGRAMS, STEPS, Cell

PAGE = CURVES.parent.parent / "learning-curves.md"
BASELINE, LOCAL = Cell("ssgd", 4), Cell("diloco 8", 4)
PART = 0.2  # of the local run, which is all that is known of it
WARMED = 40  # steps: the baseline's curve is fitted after the warm-up
LEVELS = 6
CLOSE = 0.02  # relative difference of times, or of losses, below which there is no order
MARKS = "<!-- scores -->\n", "<!-- end -->"

Curves = dict[Cell, np.ndarray]


def log(path: Path, curve: np.ndarray) -> Path:
    """Write what a loop would have logged: steps and losses."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((HEAD[3], HEAD[5]))
        writer.writerows((f"{step:.0f}", f"{value:.6g}") for step, _, value in curve)
    return path


def fitted(real: Curves, folder: Path) -> dict[str, Any]:
    """Fit an objective, as `paceline fit-loss` does, to the baseline and the short local run."""
    whole, local = real[BASELINE], real[LOCAL]
    known = loss.fit(
        log(folder / "baseline.csv", whole[whole[:, 0] >= WARMED]),
        [log(folder / "local.csv", local[(local[:, 0] > 0) & (local[:, 0] <= PART * STEPS)])],
        loss.Given(
            tokens=GPT["batch"] * 64.0,
            workers=(BASELINE.workers, LOCAL.workers),
            tau=(int(LOCAL.program.split()[1]),),
            parameters=float(PARAMETERS),
        ),
    )
    print(*known.sentences, *known.notes, sep="\n")
    for name, content in known.profile.files.items():
        (folder / name).write_bytes(content)
    table = dict(known.profile.tables["objective"])
    table["curve"] = {**table["curve"], "file": str(folder / table["curve"]["file"])}
    return table


def predicted(cell: Cell, objective: dict[str, Any]) -> tuple[np.ndarray, str]:
    """Return the predicted curve of a cell, with the times of its own seed, and its basis."""
    scenario = cells.world(cell.program, cell.workers, objective)
    (algorithm,) = scenario.algorithm
    basis = expect(scenario, algorithm, known_programs(None)[algorithm.name]).basis
    (curve,) = paceline.simulate(scenario, seed=cell.seed, seeds=1).curves().values()
    return np.column_stack([np.ravel(curve[key]) for key in ("step", "time", "loss")]), basis


def seconds(curve: np.ndarray, level: float) -> float:
    """Return the time to a loss, inf where it is not reached."""
    losses = np.minimum.accumulate(curve[:, 2])
    if losses[-1] > level:
        return float("inf")
    return float(np.interp(-np.log(level), -np.log(losses), curve[:, 1]))


def agreement(real: np.ndarray, found: np.ndarray) -> list[float]:
    """Return the signs' product of each pair that reality separates: 1 in the right order."""
    pairs = [
        (a, b)
        for a, b in combinations(range(len(real)), 2)
        if np.isfinite([real[a], real[b]]).any()
        and not abs(np.log(real[a] / real[b])) <= CLOSE
    ]  # fmt: skip
    with np.errstate(invalid="ignore"):
        return [
            float(np.nan_to_num(np.sign(real[a] - real[b]) * np.sign(found[a] - found[b])))
            for a, b in pairs
        ]


def summary(what: str, values: list[float], aim: str) -> str:
    size = np.abs(values)
    median, most = (f"{100 * q:.1f} %" for q in (np.median(size), np.quantile(size, 0.95)))
    return f"| {what} | {len(size)} | {median} | {most} | {aim} |"


def score(real: Curves) -> str:
    """Predict every cell; return the tables of the page."""
    with tempfile.TemporaryDirectory() as folder:
        objective = fitted(real, Path(folder))
        held = [cell for cell in real if cell not in (BASELINE, Cell("ssgd", 4, 1), LOCAL)]
        held = [cell for cell in held if cell.seed == 0]
        ours = {cell: predicted(cell, objective) for cell in [BASELINE, LOCAL, *held]}
    base = real[BASELINE]
    levels = np.geomspace(np.interp(0.2 * STEPS, base[:, 0], base[:, 2]), base[-1, 2], LEVELS + 1)
    levels = levels[:-1]  # the last one is reached at the very end, if at all
    rows, last, times, order, regrets = [], [], [], [], []
    for cell in [BASELINE, LOCAL, *held]:
        (curve, basis), truth = ours[cell], real[cell]
        error = curve[-1, 2] / truth[-1, 2] - 1
        own = [seconds(curve, each) / seconds(truth, each) - 1 for each in levels
               if max(seconds(curve, each), seconds(truth, each)) < np.inf]  # fmt: skip
        said = f"{100 * np.median(np.abs(own)):.0f} % of {len(own)}" if own else "none in both"
        rows.append(f"| {cell.program} | {cell.workers} | {basis} | {truth[-1, 2]:.3f} | "
                    f"{curve[-1, 2]:.3f} | {100 * error:+.1f} % | {said} |")  # fmt: skip
        if cell in held:
            last.append(error)
            times += own
    for workers in sorted({cell.workers for cell in ours}):
        some = [cell for cell in ours if cell.workers == workers and cell.program != "local-sgd 32"]
        if len(some) < 3:
            continue
        for level in levels:
            truths = np.array([seconds(real[cell], level) for cell in some])
            guesses = np.array([seconds(ours[cell][0], level) for cell in some])
            order += agreement(truths, guesses)
            if np.isfinite(guesses).any() and np.isfinite(truths).any():
                regrets.append(truths[guesses.argmin()] / truths.min() - 1)
    ends = agreement(*(np.array([each[-1, 2] for each in curves]) for curves in
                       ([real[cell] for cell in ours], [ours[cell][0] for cell in ours])))  # fmt: skip
    missed = sum(each == np.inf for each in regrets)
    return "\n".join([
        "| | n | median | 95th percentile | aim |",
        "|---|--:|--:|--:|---|",
        summary("time to a loss", times, "10 %, 25 %"),
        summary("final loss", last, "1 %"),
        summary("regret of the pick", [each for each in regrets if each < np.inf], "5 %"),
        "",
        f"Kendall's tau over pairs of one number of workers that the measurement separates by more "
        f"than {CLOSE:.0%}: {np.mean(order):.2f} in time to a loss ({len(order)} pairs), "
        f"{np.mean(ends):.2f} in final loss over all cells ({len(ends)} pairs); the aim is 0.85. "
        f"Of {len(regrets)} picks {missed} never reached the loss.",
        "",
        "| program | workers | basis | final loss | predicted | error | time to six losses, median |",
        "|---|--:|---|--:|--:|--:|---|",
        *rows,
        "",
    ])  # fmt: skip


def write() -> None:
    """Score the cells that there are, and put the tables into the page."""
    tables = score(cells.known())
    print(tables)
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + tables + MARKS[1] + rest.split(MARKS[1])[1], "utf-8")
    assert all(cell.program in PROGRAMS for cell in cells.known())
