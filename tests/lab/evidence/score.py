"""How well a baseline and one short local run predict the other cells: the tables of the page."""

import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import known_programs
from paceline.simulator.objectives.learning_curve.objective import expect
from paceline.simulator.scenario.world import World
from paceline.simulator.studies.learning import expected, intervals
from paceline.validate.logs import loss
from tests.lab.evidence import cells, small
from tests.lab.evidence.cells import CAUSES, CURVES, GPT, HEAD, PARAMETERS, STEPS, WARMED, Cell

PAGE = CURVES.parent.parent / "learning-curves.md"
TOKENS = 64 * GPT["batch"]  # characters of a worker's step
BASELINE = Cell("ssgd", 4)
LEVELS = 6
CLOSE = 0.02  # relative difference of times, or of losses, below which there is no order
MARKS = "<!-- scores -->\n", "<!-- end -->"

Curves = dict[Cell, np.ndarray]
Lines = Iterator[str]


class Known(NamedTuple):
    """What is known beside the baseline: a `part` of a local run, a run of another batch."""

    words: str
    part: float = 0.2
    local: Cell | None = Cell("diloco 8", 4)
    second: Cell | None = None


KNOWN = (
    Known("20 % of one local run"),
    Known("20 % of local 8 in its place", local=Cell("local 8", 4)),
    Known("no local run", local=None),
    Known("20 % of one local run, and one worker alone", second=Cell("ssgd", 1)),
    Known("no local run, and one worker alone", local=None, second=Cell("ssgd", 1)),
    Known("the whole of both", part=1.0, second=Cell("ssgd", 1)),
)


def log(path: Path, curve: np.ndarray) -> Path:
    """Write what a loop would have logged: steps and losses."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((HEAD[3], HEAD[5]))
        writer.writerows((f"{step:.0f}", f"{value:.6g}") for step, _, value in curve)
    return path


def fitted(real: Curves, known: Known, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Fit an objective to the baseline and what else is known, as `paceline fit-loss` does."""
    runs = [each for each in (known.local, known.second) if each]
    paths = []
    for cell in (BASELINE, *runs):
        steps = real[cell][:, 0]
        end = STEPS * (known.part if cell == known.local else 1.0)
        used = real[cell][(steps > 0) & (steps <= end)]
        paths.append(log(folder / f"{cell.program}-{cell.workers}.csv", used))
    found = loss.fit(
        paths,
        loss.Given(
            tokens=float(TOKENS),
            workers=(BASELINE.workers, *(each.workers for each in runs)),
            tau=tuple(int(cells.PROGRAMS[each.program].get("tau", 1)) for each in runs),
            parameters=float(PARAMETERS),
            warmup=WARMED,
        ),
    )
    for name, content in found.profile.files.items():
        (folder / name).write_bytes(content)
    table = dict(found.profile.tables["objective"])
    table["curve"] = {**table["curve"], "file": str(folder / table["curve"]["file"])}
    return table, found.sentences


def predicted(cell: Cell, objective: dict[str, Any]) -> tuple[np.ndarray, str]:
    """Return the predicted curve of a cell, with the times of its own seed, and its basis."""
    scenario = cells.world(cell.program, cell.workers, objective)
    (algorithm,) = scenario.algorithm
    basis = expect(World.of(scenario, algorithm, known_programs(None)[algorithm.name])).basis
    (curve,) = paceline.simulate(scenario, seed=cell.seed, seeds=1).curves().values()
    return np.column_stack([np.ravel(curve[key]) for key in ("step", "time", "loss")]), basis


def seconds(curve: np.ndarray, level: float) -> float:
    """Return the time to a loss, inf where it is not reached."""
    first = int(np.argmax(curve[:, 2] <= level))
    if curve[first, 2] > level:
        return float("inf")
    between = curve[max(first - 1, 0) : first + 1]
    return float(np.interp(-np.log(level), -np.log(between[:, 2]), between[:, 1]))


def agreement(real: Sequence[float], found: Sequence[float]) -> list[float]:
    """Return 1 for each pair that reality separates and is in its order, -1 if in the other."""
    signs = []
    for a, b in combinations(range(len(real)), 2):
        if max(real[a], real[b]) > (1 + CLOSE) * min(real[a], real[b]):
            ours = (found[a] > found[b]) - (found[a] < found[b])  # of two infinities: a tie
            signs.append(float(ours if real[a] > real[b] else -ours))
    return signs


def covered(cell: Cell, objective: dict[str, Any], curve: np.ndarray, at: np.ndarray) -> list[bool]:
    """Return whether 90 % intervals hold the last loss, and the time to each loss of `at`.

    A loss that was not reached is reached after the end of the run.
    """
    scenario = cells.world(cell.program, cell.workers, objective)
    (algorithm,) = scenario.algorithm
    runs = run_seeds(scenario, algorithm, [cell.seed])
    model, held = expected(scenario, algorithm, runs), []
    for level in at:
        found = intervals(scenario.cluster, model, runs, {}, float(level))
        low, high = found["time_to_target"] or (np.nan, np.nan)
        truth = seconds(curve, level)
        held.append(bool(low <= truth and min(truth, curve[-1, 1]) <= high))
    low, high = found["loss"] or (np.nan, np.nan)
    return [bool(low <= curve[-1, 2] <= high), *held]


class Score(NamedTuple):
    """Predictions of held-out cells: relative errors of times and last losses, orders, regrets."""

    times: list[float]
    last: list[float]
    order: list[float]
    ends: list[float]
    regrets: list[float]

    def row(self, words: str) -> str:
        """Return a line of the table."""
        shares = [*_errors(self.times), *_errors(self.last)]
        worst = max(self.regrets, default=np.nan)
        ranks = f"{np.mean(self.order):.2f} | {np.mean(self.ends):.2f}"
        most = f"{100 * worst:.0f} %" if worst < np.inf else "not reached"
        regret = f"{100 * np.median(self.regrets):.0f} %, {most}"
        return f"| {words} | {' | '.join(shares)} | {ranks} | {regret} |"


def _errors(values: list[float]) -> list[str]:
    size = 100 * np.abs(values)
    return [f"{np.median(size):.1f} %", f"{np.quantile(size, 0.95):.1f} %"]


def levels(real: Curves) -> np.ndarray:
    """Return six losses, from that of the baseline at 20 % to one before its end."""
    base = real[BASELINE]
    first = np.interp(0.2 * STEPS, base[:, 0], base[:, 2])
    found: np.ndarray = np.geomspace(first, base[-1, 2], LEVELS + 1)[:-1]
    return found


def score(real: Curves, ours: Curves, known: Known) -> Score:
    """Hold predictions against the cells that they do not know."""
    held = [cell for cell in ours if cell not in (BASELINE, known.local, known.second)]
    found = Score([], [ours[cell][-1, 2] / real[cell][-1, 2] - 1 for cell in held], [], [], [])
    for workers in sorted({cell.workers for cell in ours}):
        some = [cell for cell in ours if cell.workers == workers]
        ends = ([float(each[cell][-1, 2]) for cell in some] for each in (real, ours))
        found.ends.extend(agreement(*ends))
        for level in levels(real):
            truths = [seconds(real[cell], level) for cell in some]
            guesses = [seconds(ours[cell], level) for cell in some]
            found.order.extend(agreement(truths, guesses))
            if len(some) > 1 and np.isfinite(truths).any() and np.isfinite(guesses).any():
                found.regrets.append(truths[int(np.argmin(guesses))] / min(truths) - 1)
            found.times.extend(
                guess / truth - 1
                for cell, truth, guess in zip(some, truths, guesses, strict=True)
                if cell in held and max(truth, guess) < np.inf
            )
    return found


def report(real: Curves) -> str:
    """Predict every cell of the first seed; return the tables of the page."""
    lines = [
        "| known beside the baseline | time to a loss: median | 95th percentile | "
        "final loss: median | 95th percentile | Kendall's tau: times | final losses | "
        "regret: median, largest |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    said: list[str] = []
    detail: list[str] = []
    within: list[str] = []
    rest: list[str] = []
    for known in KNOWN:
        with tempfile.TemporaryDirectory() as folder:
            objective, words = fitted(real, known, Path(folder))
            found = {cell: predicted(cell, objective) for cell in real
                     if cell.seed == 0 and cell.program not in CAUSES}  # fmt: skip
            held = np.array([covered(cell, objective, real[cell], levels(real)) for cell in found
                             if cell not in (BASELINE, known.local, known.second)])  # fmt: skip
        ends, times = (f"{100 * each.mean():.0f} %" for each in (held[:, 0], held[:, 1:]))
        within.append(f"| {known.words} | {ends} | {times} |")
        said += [f"{known.words}: {each.replace(folder, '')}" for each in words]
        ours = {cell: curve for cell, (curve, _) in found.items()}
        lines.append(score(real, ours, known).row(known.words))
        if known in (KNOWN[0], Known("no local run", local=None)):
            rest += residuals(real, found, known)
        if known is KNOWN[0]:
            detail = [_detail(real[cell], *found[cell], cell, levels(real)) for cell in found]
    print(*said, sep="\n")
    lines += [
        "| aim | 10 % | 25 % | 1 % | | 0.85 | | 5 % |",
        "",
        f"{KNOWN[0].words.capitalize()}:",
        "",
        "| program | workers | basis | loss at 20 % | predicted | final loss | predicted | error "
        "| time to six losses |",
        "|---|--:|---|--:|--:|--:|--:|--:|---|",
        *detail,
        "",
        "How often 90 % intervals hold the truth:",
        "",
        "| known | final loss | times to six losses |",
        "|---|--:|--:|",
        *within,
        "",
        "What is missed of the log of the final loss over ssgd's of as many workers:",
        "",
        "| known | program | basis | cells | mean | standard deviation | root mean square |",
        "|---|---|---|--:|--:|--:|--:|",
        *rest,
        "",
        *penalties(real),
        "",
        "How well 20 % of each run foretells its own end (root mean square), if what it costs is:",
        "",
        *carried(real),
        "",
        seeds(real),
        "",
        "The mlp and softmax, plain SGD at a rate of 0.1, from ssgd on four workers and on one and",
        "20 % of local-sgd 8, seed 0; held out as in the [table of the calibrated quadratic]"
        "(../error-model.md):",
        "times to six losses, median absolute error (90th percentile), %:",
        "",
        small.report(),
    ]
    return "\n".join(lines)


def residuals(real: Curves, found: Mapping[Cell, tuple[np.ndarray, str]], known: Known) -> Lines:
    """Return what predictions miss of log ratios to ssgd of as many workers, by kind and basis."""
    rest: dict[tuple[str, str], list[float]] = {}
    for cell, (curve, basis) in found.items():
        base = Cell("ssgd", cell.workers)
        if cell in (base, known.local) or base not in found:
            continue
        ratio = np.log(real[cell][-1, 2] / real[base][-1, 2])
        guess = np.log(curve[-1, 2] / found[base][0][-1, 2])
        rest.setdefault((cell.program.split()[0], basis), []).append(float(ratio - guess))
    for (kind, basis), each in rest.items():
        mean, size = (f"{100 * value:+.1f} %" for value in (np.mean(each), np.std(each)))
        root = f"{100 * np.sqrt(np.mean(np.square(each))):.1f} %"
        yield f"| {known.words} | {kind} | {basis} | {len(each)} | {mean} | {size[1:]} | {root} |"


def penalties(real: Curves) -> list[str]:
    """Return how far runs with local steps are behind ssgd as they go on: in loss, and in steps."""
    parts = 0.2, 0.5, 1.0
    lines = [
        f"| four workers | {' | '.join(f'after {100 * part:.0f} %' for part in parts)} |",
        f"|---|{'--:|' * len(parts)}",
    ]
    for kind in ("", " cosine", " momentum"):
        for name in ("local 8", "diloco 8", "dts 4"):
            cell, base = Cell(name + kind, 4), Cell("ssgd" + kind, 4)
            if cell in real and base in real:
                behind = [_behind(real[cell], real[base], part * STEPS) for part in parts]
                if kind:  # steps of curves that bend down at their end, or do not fall, say little
                    behind = [each.split(",")[0] for each in behind]
                lines.append(f"| {cell.program} against {base.program} | {' | '.join(behind)} |")
    return lines


def _behind(curve: np.ndarray, base: np.ndarray, step: float) -> str:
    own, other = (float(np.interp(step, each[:, 0], each[:, 2])) for each in (curve, base))
    there = np.interp(-own, -np.minimum.accumulate(base[:, 2]), base[:, 0])
    return f"{100 * (own / other - 1):+.1f} %, {step / there:.2f} times the steps"


def carried(real: Curves) -> Lines:
    """Return how well 20 % of each run foretells its own end, ssgd's curve being known, by way.

    A ratio of losses that stays; a factor of steps that stays; the same, counted from the warm-up.
    """
    yield "| workers | runs | ratio of losses | factor of steps | factor after the warm-up |"
    yield "|--:|--:|--:|--:|--:|"
    early = 0.2 * STEPS
    for workers in (2, 4, 8):
        base = real[Cell("ssgd", workers)]
        steps, falling = base[:, 0], np.minimum.accumulate(base[:, 2])
        errors = []
        for cell, curve in real.items():
            if cell[1:] != (workers, 0) or cell.program in ("ssgd", *CAUSES):
                continue
            own = np.interp((WARMED, early), steps, curve[:, 2])
            warm, there = np.interp(-own, -falling, steps)  # steps of ssgd to the same losses
            speed = min((there - warm) / (early - WARMED), 1.0)
            ends = (STEPS, there / early * STEPS, WARMED + speed * (STEPS - WARMED))
            guesses = np.interp(ends, steps, falling) * (
                own[1] / np.interp(early, steps, falling),
                1,
                1,
            )
            errors.append(np.log(guesses / curve[-1, 2]))
        sizes = 100 * np.sqrt(np.mean(np.square(errors), axis=0))
        yield f"| {workers} | {len(errors)} | {' | '.join(f'{each:.1f} %' for each in sizes)} |"


def seeds(real: Curves) -> str:
    """Return how far runs that differ in their seed alone are apart."""
    ends: dict[int, list[float]] = {}
    for cell, curve in real.items():
        if cell.program == "ssgd":
            ends.setdefault(cell.workers, []).append(float(curve[-1, 2]))
    said = [
        f"{100 * np.std(each, ddof=1) / np.mean(each):.1f} % ({len(each)} seeds of {workers})"
        for workers, each in sorted(ends.items())
        if len(each) > 1
    ]
    return f"Final losses of ssgd that differ in their seed alone, by workers: {', '.join(said)}."


def _detail(truth: np.ndarray, curve: np.ndarray, basis: str, cell: Cell, at: np.ndarray) -> str:
    times = [(seconds(truth, each), seconds(curve, each)) for each in at]
    both = [guess / real - 1 for real, guess in times if max(real, guess) < np.inf]
    never = sum((real == np.inf) != (guess == np.inf) for real, guess in times)
    words = f"{100 * np.median(both):+.0f} % (median of {len(both)})" if both else ""
    words += f"; {never} reached by one alone" if never else ""
    early = [float(np.interp(0.2 * STEPS, each[:, 0], each[:, 2])) for each in (truth, curve)]
    ends = truth[-1, 2], curve[-1, 2]
    losses = " | ".join(f"{each:.3f}" for each in (*early, *ends))
    error = f"{100 * (ends[1] / ends[0] - 1):+.1f} %"
    return f"| {cell.program} | {cell.workers} | {basis} | {losses} | {error} | {words} |"


def as_csv(tables: str) -> tuple[str, dict[str, str]]:
    """Return the report with links in place of all tables but the first, and these as CSV files."""
    page: list[str] = []
    files: dict[str, str] = {}
    for is_table, group in groupby(tables.splitlines(), lambda line: line.startswith("|")):
        lines = list(group)
        if not is_table or not any(line.startswith("|") for line in page):
            page += lines
            continue
        name = f"learning-curves-{len(files) + 1}.csv"
        file = io.StringIO()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        csv.writer(file, lineterminator="\n").writerows([rows[0], *rows[2:]])
        files[name] = file.getvalue()
        page.append(f"[{name}]({name})")
    return "\n".join(page) + "\n", files


def write() -> None:
    """Score the cells that there are, and put the tables into the page and beside it."""
    tables = report(cells.known())
    print(tables)
    shown, files = as_csv(tables)
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + shown + MARKS[1] + rest.split(MARKS[1])[1], "utf-8")
    for name, text in files.items():
        PAGE.with_name(name).write_text(text, "utf-8")
