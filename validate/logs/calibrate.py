"""Calibrate a profile from logs of jobs: compute times, and one law of the links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results import store
from paceline.simulator.results.intervals import TAILS, USUAL
from paceline.simulator.results.statistics import human
from paceline.simulator.scenario.cluster import Cluster
from paceline.simulator.scenario.overhead import GIGABIT
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.scenario.team import Team
from paceline.simulator.studies.execution import Progress

from ..calibration import compute_laws, profile
from ..calibration.calibrate import HEAD, CalibrationResult, PaceCheck
from ..calibration.calibrate import calibrate as calibrate_runs
from ..calibration.compute_laws import FittedLaws
from ..calibration.profile import Profile
from . import jobs as files
from . import link_law, single, tables
from .link_law import BUCKETED, DRAWS, LAW, LEAST, SLOWDOWN, STEADY, Fitted
from .steps import Observed, observe

FITTED = ("cluster", "network")  # tables that a single file may provide
SURE = 3.0  # standard errors by which compute times of jobs must differ
RELEVANT = 0.01  # relative difference of compute times that matters
UNSURE = 0.05  # relative standard deviation of a compute time above which a note warns
OWN_SPREAD = 0.7  # ratio of a worker's spread to that of whole steps
OF_RATE = ("transmission_factor", "transmission_exponent", "per_byte", "tree_exponent")
STAGES = 3  # reading, computing, links


@dataclass(frozen=True)
class _Study:
    """Observed jobs, the condition in which each computes, and their laws."""

    observed: Sequence[Observed]
    condition: Sequence[int]

    @cached_property
    def laws(self) -> list[FittedLaws]:
        return [_law(self.members(n)) for n in range(max(self.condition) + 1)]

    def members(self, condition: int) -> list[Observed]:
        pairs = zip(self.observed, self.condition, strict=True)
        return [one for one, number in pairs if number == condition]

    def scenarios(self) -> list[Scenario]:
        """Return the jobs' scenarios with laws of computing times whose mean is 1 s."""
        scenarios = []
        for one, condition in zip(self.observed, self.condition, strict=True):
            law, scenario = self.laws[condition], one.job.scenario
            keys = {"workers", "accumulation", "region"} & scenario.cluster.model_fields_set
            table = {key: getattr(scenario.cluster, key) for key in keys}
            cluster = _parsed(law, table | _cluster(law, scenario.cluster.workers))
            scenarios.append(scenario.model_copy(update={"cluster": cluster}))
        return scenarios


def calibrate(
    paths: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    allow_paths: bool = False,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Fit a profile to measured runs, or to the logs of jobs that one file describes.

    Args:
        paths: Those of `calibration.calibrate`, fitted with `base`; or one file of [[job]] tables.
        base: A profile for numbers that measured runs do not show.
        allow_paths: Whether files outside the folder of the file that names them may be read.
        progress: Receives the number of finished stages, and of draws in the last stage.

    Raises:
        InputError: For wrong input; for a log alone, with a file of jobs to fill in.
    """
    named = [Path(path) for path in paths]
    if len(named) == 1 and base is None and (result := single.calibrate(named[0])):
        return result
    if not any(path.suffix == ".toml" or tables.is_log(path) for path in named):
        return calibrate_runs(named, base=base, allow_paths=allow_paths, progress=progress)
    if logs := [path for path in named if tables.is_log(path)]:
        raise InputError(files.template(logs[0]))
    if len(named) > 1 or base is not None:
        what = "--base: leave it out for logs" if base else "give only one file of jobs"
        raise InputError(f"{named[0]}: {what}; put every [[job]] into one file")

    done = progress or (lambda stage, stages: None)
    done(0, STAGES)
    observed = [observe(job) for job in files.read(named[0], allow_paths=allow_paths)]
    done(1, STAGES)
    condition, notes = _conditions(observed)
    study = _Study(observed, condition)
    scenarios = study.scenarios()
    done(2, STAGES)
    fitted = link_law.fit(observed, scenarios, condition, lambda draws: done(draws, DRAWS))
    done(STAGES, STAGES)
    of_logs = dict.fromkeys(note for one in observed for note in one.notes)
    return _result(study, fitted, [*of_logs, *notes, *_unknown(study, fitted)])


def explain(path: Path, *, allow_paths: bool = False) -> list[str]:
    """Describe how a file is read, and what to add to it. Raises InputError."""
    if path.suffix == ".toml":
        jobs = files.read(path, allow_paths=allow_paths)
        return [f"{files.described(job.log)}, after a warm-up" for job in jobs]
    if path.is_file() and (result := single.calibrate(path)):
        fitted = {key: value for key, value in result.profile.tables.items() if key in FITTED}
        return [*result.notes, f"{path}: {fitted}"]
    return [files.template(path)]


def _conditions(observed: Sequence[Observed]) -> tuple[list[int], list[str]]:
    """Number the conditions under which jobs compute alike; return numbers and notes."""
    notes: list[str] = []
    keys: list[tuple[Any, ...]] = [
        (job.machine, job.scenario.model.bytes, job.scenario.cluster.accumulation)
        for job in (one.job for one in observed)
    ]
    for key in dict.fromkeys(keys):
        members = [n for n, other in enumerate(keys) if other == key]
        if key[0] is not None or len(members) < 2:
            continue
        shown = [n for n in members if observed[n].compute > 0]
        logs = np.log([observed[n].compute for n in shown])
        variance = max((float(observed[n].covariance[0, 0]) for n in shown), default=0.0)
        apart = float(np.ptp(logs)) if shown else 0.0
        if apart > RELEVANT + SURE * math.sqrt(2 * variance):
            for n in shown:
                keys[n] = (*key, n)
            notes.append(
                f"compute times of jobs of one model differ by {math.expm1(apart):.1%}, so "
                'each has its own condition; jobs with the same machine = "..." share one'
            )
        else:
            notes.append(f"{len(members)} jobs of one model are assumed to compute alike")
    order = [*dict.fromkeys(keys)]
    return [order.index(key) for key in keys], notes


def _law(members: Sequence[Observed]) -> FittedLaws:
    """Fit a condition's law of compute times, with mean 1 s, to its longest log."""
    best = max(members, key=lambda one: (one.computing, sum(map(len, one.times))))
    whole = np.concatenate(best.times)
    if best.computing:
        law = compute_laws.fit([times / float(np.mean(whole)) for times in best.times])
        # Keep the mean of the log, because the most likely law may have another one.
        cluster = _parsed(law, {"workers": max(len(best.times), 1)} | law.tables)
        return law.scaled(1 / float(np.mean(Team(cluster, 0.0).mean_compute)))
    spread = 1.4826 * float(np.median(np.abs(whole - np.median(whole)))) / best.pace
    if best.compute > 0:  # the wait for the slowest is shorter than the rest of a step
        spread = min(spread, (best.pace - best.compute) / 2 / best.compute)
    spread = OWN_SPREAD * max(spread, STEADY)
    shape = {"dist": "gamma", "mean": "1000 ms", "shape": float(f"{spread**-2:.6g}")}
    return FittedLaws(shape, [], {}, [{"family": "gamma"}], 0.0)


def _parsed(law: FittedLaws, table: dict[str, Any]) -> Cluster:
    """Return [cluster] as a scenario parses it, with the files of the law."""
    with TemporaryDirectory() as folder:
        for name, content in law.files.items():
            (Path(folder) / name).write_bytes(content)
        return Cluster.model_validate(table, context={"folder": Path(folder)})


def _cluster(law: FittedLaws, workers: int) -> dict[str, Any]:
    """Return the tables of a law, without groups that have more workers than the job."""
    grouped = sum(group["workers"] for group in law.group) < workers
    return {key: table for key, table in law.tables.items() if key != "group" or grouped}


def _unknown(study: _Study, fitted: Fitted) -> list[str]:
    """Return sentences on what the fit leaves open, and on unusual links and jobs."""

    def names(observed: Sequence[Observed]) -> str:
        return ", ".join(dict.fromkeys(one.job.name for one in observed))

    notes, conditions = [], len(study.laws)
    unknown = [seen for seen in study.observed if not seen.job.knows_link]
    for seen, number in zip(unknown, fitted.point[LAW + conditions :], strict=True):
        notes.append(
            f"{seen.job.name}: its link is unknown: payloads move as over "
            f"{profile.rate(GIGABIT / math.exp(number))}, which says nothing about other links"
        )
    for n in range(conditions):
        members, computing = study.members(n), fitted.draws[:, LAW + n]
        one_link = len({seen.job.scenario.network.bandwidth for seen in members}) < 2
        if any(seen.compute > 0 for seen in members) or not (
            one_link or float(np.std(computing)) > UNSURE
        ):
            continue
        low, high = map(human, np.exp(np.quantile(computing, TAILS)))
        notes.append(
            f"{names(members)}: every step communicates, so computing and communicating cannot be "
            f"separated: computing takes {low} to {high} of a step of "
            f"{human(min(seen.pace for seen in members))} ({USUAL}). Write "
            'compute = "..." into the [[job]], or add a log of another period (local-sgd) or link'
        )
    if fitted.unusual:
        notes.append(
            f"{names(study.observed)}: contradicts the stated or measured links and compute times: "
            "check bandwidth (busbw of nccl-tests), overlap, payloads, and compute times under "
            "no_sync"
        )
    return notes


def _result(study: _Study, fitted: Fitted, notes: list[str]) -> CalibrationResult:
    """Return the profile: compute times of the main condition, law, and draws."""
    condition, jobs = study.condition, [one.job for one in study.observed]
    firsts = [jobs[condition.index(n)] for n in range(len(study.laws))]
    main = max(condition, key=condition.count)
    first, model = firsts[main], firsts[main].scenario.model
    alike = [
        n for n, job in enumerate(firsts)
        if (job.scenario.model, job.machine) == (model, first.machine)
    ]  # fmt: skip
    compute = float(np.mean([fitted.point[LAW + n] for n in alike]))
    law = study.laws[main].scaled(math.exp(compute))
    network = files.common(jobs)
    overheads, draws = _overheads(fitted, network.get("library") == "gloo")
    # jobs of several conditions: each draw takes the law of one condition
    numbers = LAW + np.resize(alike, len(fitted.draws))
    times = np.exp(fitted.draws[np.arange(len(numbers)), numbers] - compute).tolist()
    for key in ["", *(f"group.{n}." for n in range(len(law.group)))]:
        draws[f"cluster.{key}compute"] = times
    if not any(job.knows_link for job in jobs):
        network["bandwidth"] = profile.rate(GIGABIT / math.exp(fitted.point[-1]))
        draws["network.bandwidth"] = np.exp(fitted.point[-1] - fitted.draws[:, -1]).tolist()
        for key, (n, table) in product(OF_RATE, enumerate(overheads)):
            del table[key], draws[f"overhead.{n}.{key}"]
    notes += [
        f"{job.name}: a step computes {profile.seconds(math.exp(fitted.point[LAW + n]))}; the one "
        "law of [cluster] omits this" for n, job in enumerate(firsts) if n not in alike
    ]  # fmt: skip
    libraries = {key: network.get(key, "ideal") for key in ("transport", "library")}
    origin = _origin(jobs) | libraries
    whole: dict[str, Any] = {
        "calibration": origin | {"notes": [*notes, *law.notes], "draws": draws},
        "cluster": _stated(jobs, fitted, draws) | _cluster(law, first.scenario.cluster.workers),
        "overhead": overheads,
        **({"network": network} if network else {}),
    }
    if all(job.scenario.model == model for job in jobs):
        whole["model"] = model.model_dump(include={"parameters", "bytes_per_parameter"})
    workers = [job.scenario.cluster.workers for job in jobs]
    measured = [one.pace for one in study.observed]
    checks = [*map(PaceCheck, origin["runs"], workers, fitted.paces, measured)]
    return CalibrationResult(Profile(whole, HEAD, law.files), law, checks, len(fitted.point))


def _stated(
    jobs: Sequence[files.Job], fitted: Fitted, draws: dict[str, list[float]]
) -> dict[str, Any]:
    """Return the keys of [cluster] that are equal in all jobs."""
    table: dict[str, Any] = {}
    for key in ("workers", "accumulation"):
        values = {getattr(job.scenario.cluster, key) for job in jobs}
        if len(values) == 1 and max(values) > 1:
            table[key] = values.pop()
    slowdown = 1 + math.exp(fitted.point[SLOWDOWN])
    if slowdown > 1 + LEAST and any(job.slowed for job in jobs):
        table["beside_collectives"] = profile.rounded(slowdown)
        factors = (1 + np.exp(fitted.draws[:, SLOWDOWN])) / slowdown
        draws["cluster.beside_collectives"] = factors.tolist()
    return table


def _origin(jobs: Sequence[files.Job]) -> dict[str, Any]:
    """Return the keys of [calibration] that describe the origin of the numbers."""
    families = sorted({job.family for job in jobs})
    scenarios = [job.scenario for job in jobs]
    shipped = profile.model_error("real")
    return {
        "date": profile.today(),
        "runs": [job.name for job in jobs],
        "fingerprints": store.fingerprints(job.log.path for job in jobs),
        "fitted": sorted({scenario.algorithm[0].words for scenario in scenarios}),
        "replicates": DRAWS,
        "model_error": {  # the errors of other programs
            **shipped,
            "source": f"{shipped['source']}; that of {' and '.join(families)} ones is in the draws",
            "seconds_per_step": {**shipped["seconds_per_step"], **dict.fromkeys(families, 0.0)},
        },
        "measured": {
            "workers": profile.ends([scenario.cluster.workers for scenario in scenarios]),
            "bytes": profile.ends([scenario.model.bytes for scenario in scenarios]),
            "latency": profile.between([ClosedForm(scenario).hop for scenario in scenarios]),
        },
    }


def _overheads(fitted: Fitted, gloo: bool) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Return the [[overhead]] tables of means and of buckets, and their draws."""
    tables, draws = list[dict[str, Any]](), dict[str, list[float]]()
    for n in range(2):
        at = fitted.overhead(fitted.point, n == 1)
        rows = [fitted.overhead(row, n == 1) for row in fitted.draws]
        draws |= {f"overhead.{n}.{key}": [row[key] / at[key] for row in rows] for key in at}
        table: dict[str, Any] = {key: profile.rounded(value) for key, value in at.items()}
        table |= {key: profile.seconds(at[key]) for key in ("collective", "hop")}
        if gloo:  # a question of gloo waits for the word that it may be sent
            table["agree_latencies"] = 2.0
        tables.append(table | ({"algorithm": BUCKETED} if n else {}))
    return tables, draws
