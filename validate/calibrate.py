"""From measured runs to a profile: compute times, overheads, error model, and how sure they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simulator.dispatch import run_seeds
from simulator.errors import InputError
from simulator.load import known_programs
from simulator.overhead import Overhead, at
from simulator.report import jsonable
from simulator.scenario import Scenario
from simulator.sections import NoObjective
from validate import error_model, laws, overheads, profiles, quantities, sources
from validate.laws import Fitted
from validate.overheads import Term
from validate.profiles import Profile
from validate.sources import Source

HEAD = (
    'A profile of measured runs. A scenario takes it in by extends = "THIS FILE"; what the',
    "scenario says itself counts more.",
)
COMMENTS = {
    "calibration": "where the numbers come from",
    "calibration.run_to_run": "relative, of the pace of equal runs",
    "calibration.sd": "relative standard errors, by key",
    "calibration.measured": "least and most; predictions beyond say so",
    "cluster": "compute times, as drawn or measured",
}
TERMS = ("issue", "collect", "collective", "agree", "send", "message", "receive")


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
            return "Nothing here can be repeated in simulation, so nothing says how well it fits."
        worst = max(self.checks, key=lambda each: abs(each.error))
        return (
            f"Of the {len(self.checks)} runs that it was fitted to, the profile tells the pace "
            f"within {abs(worst.error):.2%} ({worst.label}, {worst.workers} workers). That is no "
            "test of it: predict a run that it has not seen."
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


def calibrate(paths: Sequence[Path | str], *, base: Path | str | None = None) -> Calibrated:
    """Fit a profile to what is at `paths`.

    Run directories of `paceline validate`, a job's telemetry, or traces of torch.profiler. What
    they do not show is taken from the profile `base`, such as that of `paceline probe`. Raises
    InputError where there is nothing to fit to.
    """
    found = sources.read([Path(path) for path in paths])
    networks = sorted({source.scenario.validation.network for source in found})
    if len(networks) > 1:
        raise InputError(
            f"{', '.join(map(str, paths))}: networks of several kinds ({', '.join(networks)}); "
            "calibrate each kind by itself"
        )
    tables, comments, sd = _overheads(found, profiles.read(base).overheads if base else ())
    times, starts = sources.steps(found)
    law = laws.fit(times, starts=starts)
    notes = [note for source in found for note in source.notes]
    model = _error_model(found, notes)
    costs = TypeAdapter(tuple[Overhead, ...]).validate_python(tuple(tables))
    checks = [check for source in found for check in _check(source, costs)]
    if 0 < law.sd < math.inf:
        sd["cluster.compute"] = law.sd
    whole: dict[str, Any] = {
        "calibration": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "hardware": _hardware(found),
            "versions": found[0].summary.get("versions", {}),
            "runs": [str(path) for path in paths],
            "run_to_run": _spread(checks),
            "sd": sd | (model.sd if model else {}),
            "measured": _measured(found, times, model),
            "notes": [*notes, *law.notes, *(model.notes if model else [])],
        },
        "cluster": law.tables,
        "overhead": tables,
    }
    if network := next((source.network for source in found if source.network), None):
        whole["network"] = network
    if model:
        whole["objective"] = model.objective
    files = {
        name: "\n".join(f"{each:.9g}" for each in own.tolist()).encode()
        for name, own in law.samples.items()
    }
    return Calibrated(Profile(whole, comments | COMMENTS, HEAD, files), law, checks)


def _spread(checks: Sequence[Check]) -> float:
    """What runs that are told alike differ by: the root mean square of their relative errors."""
    squares = [math.log1p(each.error) ** 2 for each in checks]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def _overheads(
    found: Sequence[Source], below: Sequence[Overhead]
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, float]]:
    """Tables of [[overhead]], one for each number of workers; comments; and standard errors."""
    teams: dict[int, list[Source]] = {}
    for source in found:
        teams.setdefault(source.scenario.cluster.workers, []).append(source)
    tables, comments, sd = [], {}, {}
    for index, (workers, team) in enumerate(sorted(teams.items())):
        terms = overheads.fit([run for source in team for run in source.runs])
        known = at(below, workers)
        table: dict[str, Any] = {
            "workers": workers,
            "step": profiles.law(terms["step"].mean, terms["step"].spread),
        }
        errors = {"step": terms["step"]}
        for name in TERMS:
            if name in terms:
                table[name], errors[name] = profiles.seconds(terms[name].mean), terms[name]
            elif getattr(known, name):
                table[name] = profiles.seconds(getattr(known, name))
        _latencies(team[0].scenario, terms, known, table)
        tables.append(table)
        for name in table:
            term = errors.get(name)
            said = f"mean of {term.samples}" if term else "not shown by these runs"
            comments[f"overhead.{index}.{name}"] = f"{_described(name)}: {said}"
        comments[f"overhead.{index}.workers"] = ""
        for name, term in errors.items():
            if term.mean > 0 and term.se > 0:
                sd[f"overhead.{index}.{name}"] = term.se / term.mean
    return tables, comments, sd


def _latencies(
    scenario: Scenario, terms: dict[str, Term], known: Overhead, table: dict[str, Any]
) -> None:
    """On links that are not emulated: latencies that a hop of a collective takes, and a question.

    What a collective takes beyond the prescribed is latency, but for what it takes without any,
    which only another profile can tell.
    """
    nominal = overheads.Nominal(scenario)
    if (
        scenario.validation.network == "emulated"
        or not nominal.latency
        or "collective" not in terms
    ):
        return
    rest = max(0.0, terms["collective"].mean - known.collective)
    factor = 1 + rest / nominal.latency
    table["latency_factor"] = profiles.rounded(factor)
    table["collective"] = profiles.seconds(known.collective)
    table["agree_latencies"] = profiles.rounded(factor * nominal.hops)


def _error_model(found: Sequence[Source], notes: list[str]) -> "error_model.ErrorModel | None":
    """The error model, where losses are known; else a note says why there is none."""
    try:
        return error_model.fit([source.path for source in found])
    except InputError as error:
        notes.append(f"no error model: {error}")
        return None


def _check(source: Source, costs: Sequence[Overhead]) -> list[Check]:
    """Predict the pace of the very runs that were fitted, with their own draws."""
    scenario = source.scenario.model_copy(update={"overhead": tuple(costs), "calibration": None})
    found = []
    for run in source.runs:
        timed = scenario
        if not known_programs(None)[run.algorithm.name].needs_loss:
            timed = scenario.model_copy(update={"objective": NoObjective(kind="none")})
        (simulated,) = run_seeds(timed, run.algorithm, [run.seed])
        measured = source.paces.get((run.algorithm.label, run.seed), math.nan)
        predicted = quantities.pace(simulated)
        if math.isfinite(measured) and math.isfinite(predicted):
            workers = scenario.cluster.workers
            found.append(Check(run.algorithm.label, workers, predicted, measured))
    return found


def _hardware(found: Sequence[Source]) -> str:
    machines = [source.summary.get("machine") or {} for source in found]
    said = [f"{each['processor']}, {each['cores']} cores" for each in machines if each]
    return "; ".join(dict.fromkeys(said))


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


def _described(name: str) -> str:
    return Overhead.model_fields[name].description or name
