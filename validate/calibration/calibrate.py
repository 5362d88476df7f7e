"""From measured runs to a profile: compute times, overheads, error model, and how sure they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import known_programs
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies.simulate import Progress
from paceline.validate.calibration import (
    compute_laws,
    error_model,
    overhead_tables,
    sources,
)
from paceline.validate.calibration import (
    profile as profiles,
)
from paceline.validate.calibration.compute_laws import Fitted
from paceline.validate.calibration.overhead_tables import OverheadTables
from paceline.validate.calibration.overheads import RunEvents
from paceline.validate.calibration.profile import Profile
from paceline.validate.calibration.sources import Source
from paceline.validate.comparison import quantities
from paceline.validate.host import machine

HEAD = (
    'A profile of measured runs. A scenario takes it in by extends = "THIS FILE"; what the',
    "scenario says itself counts more.",
)
STAGES = 5  # reading, costs, laws, the error model, and how well all that predicts
COMMENTS = {
    "calibration": "where the numbers come from",
    "calibration.overlap": "share of the collectives' time that computing hid; the rest is exposed",
    "calibration.collective": "what half of the collectives took at most, hidden time included",
    "calibration.run_to_run": "relative, of the pace that no other number tells",
    "calibration.sd": "relative standard errors, by key",
    "calibration.measured": "least and most; predictions beyond say so",
    "cluster": "compute times, as drawn or measured",
}


@dataclass(frozen=True)
class Check:
    """How well a profile tells the pace of a run that it was fitted to: seconds per step."""

    label: str
    workers: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Calibrated:
    """A profile, and what it was fitted to. `laws`: of compute times."""

    profile: Profile
    laws: Fitted
    checks: list[Check]

    @property
    def notes(self) -> list[str]:
        """What was assumed, in sentences."""
        return list(self.profile.tables["calibration"]["notes"])

    @property
    def sentence(self) -> str:
        """How well the profile tells what it was fitted to."""
        if not self.checks:
            unsure = "Nothing here can be repeated in simulation, so nothing says how well it fits."
            return f"{self.overlap} {unsure}".lstrip()
        worst = max(self.checks, key=lambda each: abs(each.error))
        return (
            f"Of the {len(self.checks)} runs that it was fitted to, the profile tells the pace "
            f"within {abs(worst.error):.2%} ({worst.label}, {worst.workers} workers). That is no "
            "test of it: predict a run that it has not seen."
        )

    @property
    def overlap(self) -> str:
        """What of the collectives' time computing hid, in a sentence; empty where nobody knows."""
        told = self.profile.tables["calibration"]
        if "overlap" not in told:
            return ""
        return (
            f"Of the time of the collectives (median {told['collective']}), {told['overlap']:.0%} "
            "is hidden behind computing; [network] has what is exposed."
        )

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline calibrate --json`."""
        checks = [
            {"label": each.label, "workers": each.workers, "predicted": each.predicted,
             "measured": each.measured, "error": each.error}
            for each in self.checks
        ]  # fmt: skip
        document = {
            "profile": self.profile.tables,
            "laws": self.laws.ranking,
            "checks": checks,
            "sentence": self.sentence,
        }
        return dict(jsonable(document))


def calibrate(
    paths: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    allow_paths: bool = False,
    progress: Progress | None = None,
) -> Calibrated:
    """Fit a profile to what is at `paths`.

    Run directories of `paceline validate`, a job's telemetry, or traces of torch.profiler. What
    they do not show is taken from the profile `base`, such as that of `paceline probe`. Files that
    the runs' scenarios name must lie in these' folders, unless `allow_paths`. `progress` is told
    how many of the stages are done. Raises InputError where there is nothing to fit to.
    """

    def done(stage: int) -> None:
        if progress:
            progress(stage, STAGES)

    done(0)
    found = sources.read([Path(path) for path in paths], allow_paths=allow_paths)
    done(1)
    networks = sorted({source.scenario.validation.network for source in found})
    if len(networks) > 1:
        raise InputError(
            f"{', '.join(map(str, paths))}: networks of several kinds ({', '.join(networks)}); "
            "calibrate each kind by itself"
        )
    below = profiles.read(base) if base else overhead_tables.NOTHING
    fitted = overhead_tables.fit(_teams(found), below)
    done(2)
    times, starts = sources.steps(found)
    law = compute_laws.fit(times, starts=starts)
    done(3)
    notes = [note for source in found for note in source.notes]
    model = _error_model(found, notes)
    done(4)
    checks = [check for source in found for check in _check(source, fitted)]
    sd = fitted.sd | ({"cluster.compute": law.sd} if 0 < law.sd < math.inf else {})
    whole: dict[str, Any] = {
        "calibration": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "hardware": _hardware(found),
            "versions": found[0].summary.get("versions", {}),
            "runs": [str(path) for path in paths],
            "run_to_run": _spread(_held_out(found, below) or checks),
            "sd": sd | (model.sd if model else {}),
            "measured": _measured(found, times, model),
            "notes": [*notes, *law.notes, *(model.notes if model else [])],
        },
        "cluster": law.tables,
        "overhead": fitted.tables,
    }
    done(STAGES)
    told = next((source.collectives for source in found if source.collectives), None)
    if told:
        whole["calibration"]["overlap"] = round(told.overlap, 4)
        whole["calibration"]["collective"] = profiles.seconds(told.median)
    if network := next((source.network for source in found if source.network), None):
        whole["network"] = network
    if model:
        whole["objective"] = model.objective
    files = {
        name: "\n".join(f"{each:.9g}" for each in own.tolist()).encode()
        for name, own in law.samples.items()
    }
    return Calibrated(Profile(whole, fitted.comments | COMMENTS, HEAD, files), law, checks)


def _teams(found: Sequence[Source], but: str | None = None) -> dict[int, list[RunEvents]]:
    """Runs by their number of workers; without those of one label."""
    teams: dict[int, list[RunEvents]] = {}
    for source in found:
        runs = [run for run in source.runs if run.algorithm.label != but]
        if runs:
            teams.setdefault(source.scenario.cluster.workers, []).extend(runs)
    return teams


def _held_out(found: Sequence[Source], below: Profile) -> list[Check]:
    """Predict each algorithm's runs from those of the others."""
    labels = {run.algorithm.label for source in found for run in source.runs}
    checks = []
    for label in sorted(labels) if len(labels) > 1 else ():
        others = overhead_tables.fit(_teams(found, but=label), below)
        checks += [check for source in found for check in _check(source, others, only=label)]
    return checks


def _spread(checks: Sequence[Check]) -> float:
    """Root mean square of relative errors: what equal runs differ by, and what no term tells."""
    squares = [math.log1p(each.error) ** 2 for each in checks]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def _error_model(found: Sequence[Source], notes: list[str]) -> "error_model.ErrorModel | None":
    """The error model, where losses are known; else a note says why there is none."""
    try:
        return error_model.fit([source.path for source in found])
    except InputError as error:
        notes.append(f"no error model: {error}")
        return None


def _check(source: Source, fitted: OverheadTables, only: str | None = None) -> list[Check]:
    """Predict the pace of a source's runs, of one label if `only` that, with their own draws."""
    scenario = source.scenario.model_copy(update={"overhead": fitted.parsed, "calibration": None})
    found = []
    for run in source.runs:
        label = run.algorithm.label
        measured = source.paces.get((label, run.seed), math.nan)
        if only not in (None, label) or not math.isfinite(measured):
            continue
        timed = scenario
        if not known_programs(None)[run.algorithm.name].needs_loss:
            timed = scenario.model_copy(update={"objective": NoObjective(kind="none")})
        (simulated,) = run_seeds(timed, run.algorithm, [run.seed])
        predicted = quantities.pace(simulated)
        if math.isfinite(predicted):
            found.append(Check(label, scenario.cluster.workers, predicted, measured))
    return found


def _hardware(found: Sequence[Source]) -> str:
    said = [machine.called(source.summary.get("machine") or {}) for source in found]
    return "; ".join(filter(None, dict.fromkeys(said)))


def _measured(
    found: Sequence[Source], times: Sequence[np.ndarray], model: error_model.ErrorModel | None
) -> dict[str, Any]:
    """What was measured, from the least to the most."""
    workers = [source.scenario.cluster.workers for source in found]
    means = [float(each.mean()) for each in times]
    every = np.concatenate([run.events["bytes"] for source in found for run in source.runs])
    sizes = every[~np.isnan(every)]
    limits: dict[str, Any] = {
        "workers": [min(workers), max(workers)],
        "step": [profiles.seconds(min(means)), profiles.seconds(max(means))],
    }
    if len(sizes):
        limits["bytes"] = [float(sizes.min()), float(sizes.max())]
    if model:
        limits["loss"] = list(model.range)
    return limits
