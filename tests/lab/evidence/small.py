"""Runs of an mlp and of softmax regression, on even and uneven data: real gradients, plain SGD.

The problems, programs and held-out cells are those of `tests.lab.bench.error_model`, whose table in
docs/evidence/error-model.md is what predictions from learning curves are held against.
"""

import csv
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.validate.logs import loss
from tests.lab.bench import error_model
from tests.lab.evidence.cells import CURVES

FILE = CURVES.with_name("small.csv")
HEAD = ("problem", "data", "workers", "seed", "program", "step", "seconds", "loss")
FITTED = ((4, 0), (1, 0))  # workers and seed of what is known: the baseline, and one worker
ROWS = [str(each.get("label", each["name"])) for each in error_model.ALGORITHMS]
HELD_OUT = ((4, 1), (8, 1), (4, 2), (8, 2))


class Group(NamedTuple):
    """Runs of all programs on one problem, by so many workers, with one seed."""

    problem: str
    data: str
    workers: int
    seed: int


Curves = dict[str, np.ndarray]  # by program; columns step, seconds, loss
Fit = Callable[[dict[Group, Curves], str, str, Path], dict[str, Any]]  # makes an [objective]


def groups() -> Iterator[Group]:
    """Yield every group once, those first that say the most."""
    for workers, seed in (*FITTED, *HELD_OUT):
        for problem in error_model.DATA:
            for data in error_model.PARTITIONS:
                yield Group(problem, data, workers, seed)


def known() -> dict[Group, Curves]:
    """Return the curves that there are."""
    found: dict[Group, dict[str, list[list[float]]]] = {}
    if FILE.exists():
        with FILE.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                group = Group(row["problem"], row["data"], int(row["workers"]), int(row["seed"]))
                curves = found.setdefault(group, {})
                curves.setdefault(row["program"], []).append([float(row[k]) for k in HEAD[5:]])
    return {g: {k: np.array(v) for k, v in each.items()} for g, each in found.items()}


def trained(group: Group) -> Curves:
    """Run the programs of a group; return every tenth step of each curve, later ever fewer."""
    table, steps = error_model.DATA[group.problem]
    table = table | {"partition": error_model.PARTITIONS[group.data]}
    one = group.workers == 1
    programs = error_model.ALGORITHMS[:1] if one else error_model.ALGORITHMS
    if (group.workers, group.seed) in FITTED and not one:
        programs = error_model.FITTED
    scenario = error_model.world(table, steps, group.workers, programs)
    found = paceline.simulate(scenario, seed=group.seed, seeds=1).curves()
    curves = {}
    for program, curve in found.items():
        rows = np.column_stack([np.ravel(curve[key]) for key in HEAD[5:] if key != "seconds"])
        rows = np.insert(rows, 1, np.ravel(curve["time"]), axis=1)
        kept = np.unique(np.rint(np.append(np.arange(10), np.geomspace(10, len(rows) - 1, 20))))
        curves[program] = rows[kept.astype(int)]
    return curves


def train() -> None:
    """Train what is missing; a group is kept as soon as it is known."""
    have = known()
    for group in (each for each in groups() if each not in have):
        curves, new = trained(group), not FILE.exists()
        with FILE.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([HEAD] if new else [])
            for program, curve in curves.items():
                writer.writerows(
                    [*group, program, f"{step:.0f}", f"{seconds:.6g}", f"{loss:.5g}"]
                    for step, seconds, loss in curve
                )
        print(*group, *(f"{each[-1, 2]:.4g}" for each in curves.values()), flush=True)


def seconds(curve: np.ndarray, level: float) -> float:
    """Return the time to a loss, nan where it is not reached."""
    table = {"loss": curve[None, :, 2], "time": curve[None, :, 1]}
    return error_model.seconds(table, 0, level)


def quadratic(curves: dict[Group, Curves], problem: str, data: str, folder: Path) -> dict[str, Any]:
    """Fit the calibrated quadratic, for which a survey of curvature needs the run itself."""
    table, steps = error_model.DATA[problem]
    table = table | {"partition": error_model.PARTITIONS[data]}
    return error_model.fitted(f"{problem} {data}", table, steps)


def fitted(curves: dict[Group, Curves], problem: str, data: str, folder: Path) -> dict[str, Any]:
    """Fit an objective to ssgd on four workers and on one, and a fifth of a run of local-sgd 8."""
    (four, one), steps = FITTED, error_model.DATA[problem][1]
    base = curves[Group(problem, data, *four)]
    local = base["local-sgd 8"]
    runs = (
        base["ssgd"],
        local[local[:, 0] <= 0.2 * steps],
        curves[Group(problem, data, *one)]["ssgd"],
    )
    paths = [folder / f"{place}.csv" for place in range(len(runs))]
    for path, curve in zip(paths, runs, strict=True):
        np.savetxt(path, curve[1:, ::2], "%.8g", ",", header="step,loss", comments="")
    found = loss.fit(
        paths,
        loss.Given(
            tokens=16.0, workers=(4, 4, 1), tau=(8, 1), algorithm=("local-sgd", "ssgd"),
            lr=error_model.LR,
        ),
    )  # fmt: skip
    for name, content in found.profile.files.items():
        (folder / name).write_bytes(content)
    table = dict(found.profile.tables["objective"])
    table["curve"] = {**table["curve"], "file": str(folder / table["curve"]["file"])}
    return table


def errors(
    curves: dict[Group, Curves], problem: str, data: str, fit: Fit = fitted
) -> tuple[dict[str, list[float]], list[float]]:
    """Return relative errors of the times to six losses by program, and Kendall's taus."""
    baseline = curves[Group(problem, data, *FITTED[0])]["ssgd"][:, 2]
    levels = error_model.levels(baseline.min(), baseline.max())
    found: dict[str, list[float]] = {}
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        objective = fit(curves, problem, data, Path(folder))
        steps = error_model.DATA[problem][1]
        for workers, seed in HELD_OUT:
            real = curves[Group(problem, data, workers, seed)]
            scenario = error_model.world(objective, steps, workers, error_model.ALGORITHMS)
            ours = {
                program: np.column_stack([np.ravel(curve[k]) for k in ("step", "time", "loss")])
                for program, curve in paceline.simulate(scenario, seed=seed, seeds=1)
                .curves()
                .items()
            }
            for level in levels:
                times = {k: (seconds(real[k], level), seconds(ours[k], level)) for k in real}
                both = {k: v for k, v in times.items() if np.isfinite(v).all()}
                for k, (truth, guess) in both.items():
                    found.setdefault(k, []).append(guess / truth - 1)
                if len(both) > 1:
                    truths, guesses = map(np.array, zip(*both.values(), strict=True))
                    ranks.append(error_model.rank(truths, guesses))
    return found, ranks


def report(fit: Fit = fitted) -> str:
    """Return the table of a kind of model on the page."""
    curves, columns, last = known(), [], []
    for problem in error_model.DATA:
        for data in error_model.PARTITIONS:
            found, ranks = errors(curves, problem, data, fit)
            every = [each for values in found.values() for each in values]
            columns.append(found | {"**all**": every})
            last.append(f"{np.nanmedian(ranks):.2f}, {np.nanmin(ranks):.2f}")
    heads = [f"{p}, {d}" for p in error_model.DATA for d in error_model.PARTITIONS]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for program in (*ROWS, "**all**"):
        cells = [np.abs(100 * np.array(column.get(program, [np.nan]))) for column in columns]
        shown = [f"{np.median(each):.1f} ({np.quantile(each, 0.9):.0f})" for each in cells]
        lines.append(f"| {program} | {' | '.join(shown)} |")
    return "\n".join([*lines, f"| Kendall's tau: median, lowest | {' | '.join(last)} |", ""])
