"""`paceline fit-loss`: from the losses of one or two short runs to an [objective] for scenarios."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import csv_cells
from paceline.simulator.inputs.messages import nearest
from paceline.simulator.objectives.learning_curve import batch, curve, evidence
from paceline.simulator.objectives.learning_curve.batch import Critical
from paceline.simulator.objectives.learning_curve.curve import Curve
from paceline.simulator.results import read as directories
from paceline.simulator.results import store
from paceline.simulator.results.statistics import jsonable, number
from paceline.validate.calibration import error_model, profile
from paceline.validate.calibration.profile import Profile
from paceline.validate.measurement import telemetry_files

KINDS = ("learning-curve", "quadratic")
QUANTITIES = ("tokens", "step", "loss", "run")
TOGETHER = ("ssgd", "ssgd-bucketed", "psgd")
LATE = 1 / 3  # of a local run, the last part, whose loss is compared
PARTS = 6  # of it, whose spread says how sure the mean is
HEAD = (
    'The loss of a training run. A scenario takes it in by extends = "THIS FILE"; what the',
    "scenario says itself counts more.",
)


@dataclass(frozen=True)
class Given:
    """What a log cannot say. Lists go by run, the baseline first; one value is for all runs."""

    tokens: float | None = None
    workers: tuple[int, ...] = ()
    tau: tuple[int, ...] = ()
    algorithm: tuple[str, ...] = ()
    parameters: float | None = None
    critical: tuple[float, ...] = ()
    columns: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Trained:
    """A run that has trained: losses after so many `tokens`, of `run` (seed), `batch` a step."""

    name: str
    program: str
    workers: int
    tau: int
    tokens: np.ndarray
    loss: np.ndarray
    run: np.ndarray
    batch: float


@dataclass(frozen=True)
class LossFit:
    """A fitted objective as a profile, and what was found in sentences."""

    profile: Profile
    sentences: list[str]

    @property
    def notes(self) -> list[str]:
        """Return the assumptions, in sentences."""
        return list(self.profile.tables["calibration"].get("notes", ()))

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline fit-loss --json`."""
        return dict(jsonable({"profile": self.profile.tables, "sentences": self.sentences}))


def fit(
    baseline: Path,
    local: Sequence[Path] = (),
    given: Given = Given(),
    *,
    kind: str = "learning-curve",
    base: Path | None = None,
    stem: str = "loss",
) -> LossFit:
    """Fit an [objective] to a baseline and to runs with local steps.

    Runs are run directories of validate, a job's telemetry, or logs of the user's own loop. `base`:
    a profile to which the objective is added; `stem`: the name of the file of losses beside it.
    Raises InputError.
    """
    if kind not in KINDS:
        raise InputError(f"--kind {kind}: {nearest(kind, KINDS, 'kinds are')}")
    below = profile.read(base) if base else Profile({})
    fitted = _curve if kind == "learning-curve" else _quadratic
    objective, calibration, files, said = fitted([baseline, *local], given, stem)
    before = below.tables.get("calibration", {})
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **before,
        "runs": [*before.get("runs", ()), str(baseline), *map(str, local)],
        "notes": [*before.get("notes", ()), *calibration.pop("notes", ())],
        **{key: {**before.get(key, {}), **each} for key, each in calibration.items()},
    }
    tables = {**below.tables, "calibration": about, "objective": objective}
    whole = Profile(tables, below.comments, below.head or HEAD, {**below.files, **files})
    return LossFit(whole, said)


Fitted = tuple[dict[str, Any], dict[str, Any], dict[str, bytes], list[str]]


def _quadratic(paths: Sequence[Path], given: Given, stem: str) -> Fitted:
    """Fit the calibrated quadratic of `error_model`, to runs of validate."""
    model = error_model.fit(paths)
    low, high = model.range
    said = (
        f"Quadratic: fitted to losses from {number(low)} to {number(high)}; "
        "below, nothing is known."
    )
    measured = {"measured": {"loss": [low, high]}}
    return model.objective, {"sd": model.sd, "notes": model.notes, **measured}, {}, [said]


def _curve(paths: Sequence[Path], given: Given, stem: str) -> Fitted:
    first, *others = _runs(paths, given)
    if first.tau > 1:
        raise InputError(
            f"{first.name}: the baseline takes local steps; name a run without any first"
        )
    try:
        fitted = curve.fit(first.tokens, first.loss, first.run, batch=first.batch)
    except ValueError as error:
        raise InputError(f"{first.name}: {error}") from None
    together = [each for each in others if each.tau <= 1]
    apart = [each for each in others if each.tau > 1]
    critical, notes = _critical(fitted, first, together, given)
    said = [_said(fitted, first)]
    table: dict[str, Any] = {
        "kind": "learning-curve",
        "tokens": _whole(first.batch / first.workers),
        "curve": {"file": f"{stem}.csv", "workers": first.workers},
    }
    if critical:
        table["critical"] = [*map(_whole, (critical.low, critical.high))]
        said.append(f"Critical batch: {_range(critical)} tokens, {critical.basis}.")
    own = []
    for each in apart:
        ratio, sd = _ratio(fitted, each, critical)
        own.append({"algorithm": each.program, "workers": each.workers, "tau": each.tau,
                    "log_ratio": ratio, "sd": sd})  # fmt: skip
        if given.parameters:
            own[-1]["parameters"] = given.parameters
        said.append(
            f"{each.name} ({each.program}, {each.workers} workers, tau {each.tau}): loss "
            f"{math.expm1(ratio):+.2%} ± {sd:.2%} against the baseline on as many tokens, measured."
        )
        if given.parameters:
            run = evidence.OwnRun(each.program, each.workers, each.tau, given.parameters, ratio, sd)
            found = evidence.penalty(
                each.program, each.workers, each.tau, given.parameters, own=[run]
            )
            said += [f"With published runs: {found.sentence}."] if found else []
    if own:
        table["own"] = own
    rows = np.column_stack([first.run, first.tokens, first.loss]).tolist()
    cells = [[csv_cells.digits(each) for each in row] for row in rows]
    files = {f"{stem}.csv": csv_cells.table(("run", "tokens", "loss"), cells)}
    return table, {"notes": notes}, files, said


def _said(fitted: Curve, first: Trained) -> str:
    low, high = fitted.interval90(fitted.fitted[1])
    return (
        f"Baseline {first.name}: loss = {fitted.floor:.4g} + {fitted.scale:.4g} (tokens + "
        f"{fitted.shift:.3g})^-{fitted.exponent:.3g}, fitted from {fitted.fitted[0]:.3g} to "
        f"{fitted.fitted[1]:.3g} tokens, where it is {float(fitted.loss(fitted.fitted[1])):.4g} "
        f"(90 %: {low:.4g} to {high:.4g}); beyond, the interval widens."
    )


def _whole(value: float) -> float:
    """Return a whole number as one: a profile rounds others."""
    return int(value) if float(value).is_integer() else value


def _range(critical: Critical) -> str:
    return f"{critical.low:.3g} to {critical.high:.3g}"


def _critical(
    fitted: Curve, first: Trained, together: Sequence[Trained], given: Given
) -> tuple[Critical | None, list[str]]:
    """Return the critical batch: given, or fitted to a run with another batch."""
    if given.critical:
        return batch.given(given.critical if len(given.critical) > 1 else given.critical[0]), []
    found = []
    for each in together:
        try:
            second = curve.fit(each.tokens, each.loss, each.run, batch=each.batch)
            found.append(batch.fitted(fitted, second))
        except ValueError as error:
            raise InputError(f"{first.name}, {each.name}: {error}") from None
    if found:
        return found[0], []
    return None, ["the critical batch is not known from one batch size: the published law is taken"]


def _ratio(fitted: Curve, local: Trained, critical: Critical | None) -> tuple[float, float]:
    """Return the log of a local run's loss over data-parallel's on as many tokens, and its sd.

    Data-parallel's is the baseline's, at the run's own batch by the critical batch.
    """
    known = critical or batch.published(float(local.tokens.max()))
    ways = [_compared(fitted, local, each) for each in (known.value, known.low, known.high)]
    late, compared = ways[0]
    drawn = [np.log(curve.Curve(*row, fitted.batch, fitted.fitted, fitted.draws).loss(late)).mean()
             for row in fitted.draws]  # fmt: skip
    means = [float(part.mean()) for part in np.array_split(compared, min(PARTS, len(compared)))]
    if (seeds := len(np.unique(local.run))) > 1:
        means = [float(_compared(fitted, local, known.value, one)[1].mean())
                 for one in np.unique(local.run)]  # fmt: skip
    noise = float(np.std(means, ddof=1)) / math.sqrt(seeds if seeds > 1 else len(means))
    of_batch = abs(float(ways[1][1].mean() - ways[2][1].mean())) / (2 * evidence.Z90)
    sd = math.hypot(noise, float(np.std(drawn)), of_batch)
    return float(compared.mean()), max(sd, 1e-4)


def _compared(
    fitted: Curve, local: Trained, critical: float, one: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the baseline's tokens at the late part of a run, and the log ratios there."""
    factor = batch.progress(local.batch, fitted.batch, critical) * fitted.batch / local.batch
    mine = np.ones(len(local.loss), bool) if one is None else local.run == one
    tokens, loss = local.tokens[mine] * factor, local.loss[mine]
    within = tokens <= fitted.fitted[1] * 1.001
    late = within & (tokens >= (1 - LATE) * tokens[within].max(initial=0.0))
    if np.count_nonzero(late) < 2:
        raise InputError(
            f"{local.name}: fewer than two losses where the baseline has some; log more often, or "
            "give a longer baseline"
        )
    found: np.ndarray = np.log(loss[late]) - np.log(fitted.loss(tokens[late]))
    return tokens[late], found


def _runs(paths: Sequence[Path], given: Given) -> list[Trained]:
    """Read all runs: the baseline first, then every other run of a directory or file."""
    found: list[Trained] = []
    for place, path in enumerate(paths):
        whole = path / "measured" if (path / "measured").is_dir() else path
        if (whole / store.WHOLE).exists():
            found += _directory(whole, given)
            continue
        workers = _one(given.workers, place, "workers", len(paths)) or 0
        tau = _one(given.tau, place - 1, "tau", len(paths) - 1) if place else 1
        program = _one(given.algorithm, place - 1, "algorithm", len(paths) - 1) or "diloco"
        if place and not tau:
            raise InputError(f"{path}: the period of a log is unknown; say --tau, 1 for none")
        found.append(_log(path, given, workers, int(tau or 1), str(program)))
    together = [each for each in found if each.tau <= 1]
    return [*together[:1], *(each for each in found if each not in together[:1])] or found


def _one(values: Sequence[Any], place: int, name: str, runs: int) -> Any:
    """Return a run's own value of an option, None if left out. Raises InputError."""
    if len(values) not in (0, 1, runs):
        raise InputError(
            f"--{name}: {len(values)} values for {runs} runs; write one for all, or one for each"
        )
    return values[place if len(values) == runs else 0] if values else None


def _log(path: Path, given: Given, workers: int, tau: int, program: str) -> Trained:
    if any(path.glob("rank-*.telemetry")):
        recorded = telemetry_files.read(path)
        rows = np.concatenate([*recorded.losses.values()])
        if not len(rows) or given.tokens is None:
            what = "no losses; record them by telemetry.loss" if given.tokens else "say --tokens"
            raise InputError(f"{path}: {what}")
        steps, place = np.unique(rows[:, 1], return_inverse=True)
        loss = np.bincount(place, rows[:, 2]) / np.bincount(place)
        size = given.tokens * int(recorded.head["workers"])
        return Trained(str(path), program, int(recorded.head["workers"]), tau, steps * size, loss,
                       np.zeros(len(steps)), size)  # fmt: skip
    table = {"tokens": given.tokens, "workers": workers or 1, "columns": given.columns}
    tokens, loss, run, size = curve.points(path, table)
    return Trained(str(path), program, workers or 1, tau, tokens, loss, run, size)


def _directory(path: Path, given: Given) -> list[Trained]:
    """Read the runs of a run directory; adaptive periods have no single one and are left out."""
    found = directories.read(path)
    objective, workers = found.table.get("objective", {}), int(found.table["cluster"]["workers"])
    each_step = given.tokens or objective.get("batch", 32)
    runs = []
    for (label, row), table in zip(found.rows.items(), found.table["algorithm"], strict=True):
        tau = 1 if row["name"] in TOGETHER else table.get("tau")
        if label not in found.runs or not isinstance(tau, int):
            continue
        seeds = found.runs[label]
        points = np.array([
            (run.seed, step * workers * each_step, loss)
            for run in seeds
            for step, loss in zip(run.curve["step"], run.curve["loss"], strict=True)
        ])  # fmt: skip
        if not (np.isfinite(points).all() and (points[:, 2] > 0).all()):
            raise InputError(
                f"{path}: {label}: a loss that is not above 0 and finite; leave it out"
            )
        run, tokens, loss = points.T
        name, size = f"{path} ({label})", float(workers * each_step)
        runs.append(Trained(name, row["name"], workers, tau, tokens, loss, run, size))
    if not runs:
        raise InputError(
            f"{path}: no losses of data-parallel training or fixed periods; give a run of ssgd, or "
            "of local-sgd or diloco, whose objective computes losses"
        )
    return runs


def columns(given: Sequence[str]) -> dict[str, str]:
    """Parse columns given as QUANTITY=NAME. Raises InputError."""
    found = {}
    for each in given:
        quantity, equals, name = each.partition("=")
        if not equals or quantity not in QUANTITIES:
            raise InputError(
                f"--column {each}: write QUANTITY=NAME; quantities are: {', '.join(QUANTITIES)}"
            )
        found[quantity] = name
    return found
