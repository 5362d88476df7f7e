"""`paceline fit-loss`: fit an [objective] to the losses of one or two short runs."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import csv_files
from paceline.simulator.inputs.messages import nearest, visible
from paceline.simulator.objectives.learning_curve import batch, curve
from paceline.simulator.objectives.learning_curve.batch import Critical
from paceline.simulator.objectives.learning_curve.curve import Curve
from paceline.simulator.programs import catalogue
from paceline.simulator.results.figures import drawing, style
from paceline.simulator.results.figures.chart import Axis, Chart, Line, Look, Panel
from paceline.simulator.results.figures.chart import fitted as around
from paceline.simulator.results.intervals import NORMAL, TAILS, USUAL

from ..calibration.profile import Profile

QUANTITIES = ("tokens", "step", "loss")
LIKE = 1.2  # smaller ratios of two batches show nothing about the critical batch
AHEAD, POINTS = 7, 100  # lengths of a log that are drawn, and points of a line
LEAST = 1e-3  # tokens or samples of a critical batch
DRIFT = 0.15
"""Standard deviation, as a log, by which a factor of steps after a quarter of a run differs from
that at its end: of 18 runs of two small GPTs (docs/evidence/validation/learning-curves.md)."""
HEAD = (
    'The loss of a training run. A scenario uses it by extends = "THIS FILE"; the keys of the',
    "scenario take precedence.",
)


@dataclass(frozen=True)
class Given:
    """Settings that logs lack, one per run; only `workers` includes the baseline.

    `columns`: QUANTITY=NAME or RUN:QUANTITY=NAME, with RUN counted from 1; `warmup`: steps, taken
    from the baseline if None.
    """

    tokens: float | None = None
    workers: Sequence[int] = ()
    tau: Sequence[int] = ()
    algorithm: Sequence[str] = ("diloco",)
    parameters: float | None = None
    noise_scale: Sequence[float] = ()
    warmup: float | None = None
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class Trained:
    """A run's losses by tokens, and notes on its log; `batch`: tokens per step."""

    name: str
    program: str
    workers: int
    tau: int
    tokens: np.ndarray
    loss: np.ndarray
    batch: float
    notes: tuple[str, ...] = ()

    def after(self, warmup: float) -> np.ndarray:
        """Return rows (steps after a warm-up, loss)."""
        return np.column_stack([self.tokens / self.batch - warmup, self.loss])


def fit(
    paths: Sequence[Path], given: Given, stem: str = "loss"
) -> tuple[Profile, list[str], list[str]]:
    """Fit an [objective] to logs of a baseline, which is the first, and of runs with local steps.

    Return it as a profile, with findings in sentences, and notes. `stem`: name of the file of
    losses beside it. Raises InputError.
    """
    for name in {*given.algorithm} - {*catalogue()}:
        raise InputError(f"--algorithm {name}: {nearest(name, catalogue(), 'programs are')}")
    first, *_ = runs = _runs(paths, given)
    with _naming(first):
        fitted = curve.fit(first.tokens, first.loss, batch=first.batch, warmup=given.warmup)
    objective, sentences, notes = _curve(runs, fitted, given, stem)
    rows = np.column_stack([first.tokens, first.loss]).tolist()
    cells = [map(csv_files.digits, row) for row in rows]
    files = {f"{stem}.csv": csv_files.table(("tokens", "loss"), cells)}
    files[f"{stem}.svg"] = drawing.encode(chart(first, fitted), "svg")
    logs = visible(", ".join(map(str, paths)))
    head = (*HEAD, f"Fitted on {datetime.now(UTC):%Y-%m-%d} to {logs}.", *notes)
    return Profile({"objective": objective}, head, files), sentences, notes


def _curve(
    runs: Sequence[Trained], fitted: Curve, given: Given, stem: str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the objective's table, findings, and notes."""
    first, *others = runs
    end = float(first.tokens.max())
    low, high = fitted.interval90(end)
    findings = [
        f"Baseline {first.name}: loss = {fitted.floor:.4g} + {fitted.scale:.4g} (tokens "
        f"{fitted.shift:+.3g})^-{fitted.exponent:.3g}, fitted from {fitted.fitted[0]:.3g} to "
        f"{end:.3g} tokens, where it is {float(fitted.loss(end)):.4g} ({USUAL}: {low:.4g} to "
        f"{high:.4g}); beyond, the interval widens."
    ]
    size = given.parameters
    tokens = _whole(first.batch / first.workers)
    curve_table: dict[str, Any] = {"file": f"{stem}.csv", "workers": first.workers}
    numbers = {"tokens": tokens, "parameters": size or None, "warmup": given.warmup}
    curve_table |= {key: _whole(value) for key, value in numbers.items() if value is not None}
    # a scenario's steps may have other numbers of tokens
    table: dict[str, Any] = {"kind": "learning-curve", "tokens": tokens, "curve": curve_table}
    critical, noise_tokens, notes = _critical(fitted, first, others, given)
    if not notes:
        table["noise_scale"] = [_whole(max(end, LEAST)) for end in (critical.low, critical.high)]
        table |= {"noise_tokens": _whole(round(noise_tokens))} if noise_tokens else {}
        findings.append(
            f"Critical batch: {critical.low:.3g} to {critical.high:.3g} tokens ({USUAL}), "
            f"{critical.basis}."
        )
    for run in (run for run in others if run.tau > 1):
        row, sentence = _local(fitted, [run for run in runs if run.tau == 1], run, critical, size)
        table.setdefault("own", []).append(row)
        findings.append(sentence)
    if not size:
        notes.append(
            "--parameters is not set: scenarios cannot check that their [model] matches the run"
        )
    notes += [f"{run.name}: {note}" for run in runs for note in run.notes]
    notes += [f"{first.name}: {note}" for note in fitted.notes]
    return table, findings, notes


def chart(first: Trained, fitted: Curve) -> Chart:
    """Chart a log, its fit, the predicted held-out end, and the extrapolation."""
    end, held = float(first.tokens.max()), float(np.quantile(first.tokens, 1 - curve.HELD))
    blue, red = style.COLOURS[:2]
    lines = []
    for name, colour, chosen in (
        ("log", style.GREY, first.tokens <= held),
        ("its last tenth", red, first.tokens > held),
    ):
        every = max(int(chosen.sum()) // POINTS, 1)
        x, y = first.tokens[chosen][::every], first.loss[chosen][::every]
        lines.append(Line(name, x, y, Look(colour, hollow=True), joined=False, marks="all"))
    left = max(float(first.tokens[first.tokens > 0].min()), end / 50)
    shown = [*first.loss[first.tokens >= left]]
    without = replace(fitted, draws=fitted.held[1:])
    for name, law, ends, look in (
        ("fit", fitted, (max(fitted.fitted[0], end / 50), end), Look(blue)),
        ("fit without it", without, (held, end), Look(red, "dash")),
        ("ahead", fitted, (end, AHEAD * end), Look(blue, "dot")),
    ):
        tokens = np.geomspace(*ends, POINTS)
        low, middle, high = np.quantile(law.drawn(tokens), (TAILS[0], 0.5, TAILS[1]), axis=0)
        lines.append(Line(name, tokens, middle, look, band=(low, high), marks="none"))
        shown += [low.min(), high.max()]
    panel = Panel(Axis("tokens", (left / 1.2, AHEAD * end), log=True), around("loss", shown), lines)
    return Chart(first.name, f"band: {USUAL}", [panel])


def _local(
    fitted: Curve, runs: Sequence[Trained], run: Trained, critical: Critical, size: float | None
) -> tuple[dict[str, Any], str]:
    """Return a run's table of local steps, against the nearest batch in `runs`, and a finding."""
    other = min(runs, key=lambda one: abs(math.log(one.batch / run.batch)))
    drawn, _ = _factor(other, run, fitted.warmup)
    least, log, most = (
        math.log(batch.progress(run.batch, other.batch, scale))
        for scale in (critical.low, critical.value, critical.high)
    )
    log -= float(drawn[0])
    sd = math.hypot(float(np.std(drawn)), abs(most - least) / (2 * NORMAL), DRIFT)
    low, middle, high = np.exp(log + NORMAL * sd * np.arange(-1, 2)).tolist()
    sentence = (
        f"{run.name} ({run.program}, {run.workers} workers, tau {run.tau}): needs {middle:.2f} "
        f"times the steps of data-parallel training ({USUAL}: {low:.2f} to {high:.2f}), measured "
        f"over {run.tokens.max() / run.batch:.0f} steps."
    )
    table = {"algorithm": run.program, "workers": run.workers, "tau": run.tau}
    table |= {"log_steps": log, "sd": sd} | ({"parameters": _whole(size)} if size else {})
    return table, sentence


def _whole(value: float) -> float:
    """Convert a whole number to int, because a profile rounds other numbers."""
    return int(value) if float(value).is_integer() else value


def _critical(
    fitted: Curve, first: Trained, others: Sequence[Trained], given: Given
) -> tuple[Critical, float | None, list[str]]:
    """Return the critical batch, the tokens of a run with it, and notes if there is no evidence."""
    if given.noise_scale:
        return batch.given((min(given.noise_scale), max(given.noise_scale))), None, []
    factors, ends = list[tuple[float, float, np.ndarray]](), list[float]()
    for run in (run for run in others if run.tau == 1):
        if max(run.batch, first.batch) < LIKE * min(run.batch, first.batch):
            continue
        drawn, end = _factor(first, run, fitted.warmup)
        factors.append((first.batch, run.batch, drawn))
        ends.append(end + fitted.warmup * run.batch)
    if factors:
        with _naming(first):
            return batch.matched(factors), float(np.exp(np.mean(np.log(ends)))), []
    critical = batch.published(float(first.tokens.max()))
    note = (
        f"one batch size does not determine the critical batch: taken {critical.basis}; give "
        "--noise-scale, or another run with a different batch size"
    )
    return critical, None, [note]


def _factor(first: Trained, second: Trained, warmup: float) -> tuple[np.ndarray, float]:
    """Return draws of log(steps of one run / the other's), and the tokens there."""
    rows = second.after(warmup)
    steps, losses = rows[rows[:, 0] > 0].T
    with _naming(first, second):
        drawn, end = batch.factor(first.after(warmup), rows)
    with _naming(second):
        curve.demand_no_rise(steps, losses, curve.demand_fall(losses))
    return drawn, end * second.batch


@contextmanager
def _naming(*runs: Trained) -> Iterator[None]:
    """Turn a ValueError into an InputError that names the runs."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{', '.join(run.name for run in runs)}: {error}") from None


def _runs(paths: Sequence[Path], given: Given) -> list[Trained]:
    """Read all runs, the baseline first."""
    runs: list[Trained] = []
    columns = _columns(given.columns, len(paths))
    for place, path in enumerate(paths):
        tau, program, local = 1, "", len(paths) - 1
        if place:
            tau = _one("tau", given.tau, place - 1, local)
            program = _one("algorithm", given.algorithm, place - 1, local)
        if not tau:
            raise InputError(f"{path}: the period of the log is unknown; write --tau (1 for none)")
        workers = int(_one("workers", given.workers, place, len(paths)) or 1)
        table = {"tokens": given.tokens, "workers": workers, "columns": columns[place]}
        tokens, loss, batch, column, notes = curve.points(path, table)
        name = f"{path}{f' ({column})' * (column != 'loss')}"
        run = Trained(name, program, workers, int(tau), tokens, loss, batch, notes)
        if any(np.array_equal(run.loss, other.loss) for other in runs):
            raise InputError(
                f"{run.name}: the same losses as another run; name the column of each, such as "
                '--column "1:loss=NAME" --column "2:loss=NAME"'
            )
        runs.append(run)
    return runs


def _one(name: str, values: Sequence[Any], place: int, runs: int) -> Any:
    """Return the value of an option for one run, None if left out. Raises InputError."""
    if len(values) not in (0, 1, runs):
        raise InputError(
            f"--{name}: {len(values)} values for {runs} runs; write one for all, or one per run"
        )
    return values[place if len(values) == runs else 0] if values else None


def _columns(texts: Sequence[str], runs: int) -> list[dict[str, str]]:
    """Return the columns of every run, by quantity; without a number they apply to all runs."""
    columns: list[dict[str, str]] = [{} for _ in range(runs)]
    for text in sorted(texts, key=lambda text: ":" in text.partition("=")[0]):
        left, _, name = text.partition("=")
        number, _, quantity = left.rpartition(":")
        if quantity not in QUANTITIES or not name:
            wrong = nearest(quantity, QUANTITIES, "quantities are")
            raise InputError(f"--column {text}: write QUANTITY=NAME or RUN:QUANTITY=NAME; {wrong}")
        if number and not (number.isdecimal() and 1 <= int(number) <= runs):
            raise InputError(f"--column {text}: RUN is the number of a run, 1 to {runs}")
        for column in columns[int(number) - 1 : int(number)] if number else columns:
            column[quantity] = name
    return columns
