"""Calibrate a profile from logs of jobs: computing, and one law of the links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import human
from paceline.simulator.scenario import redraw
from paceline.simulator.scenario.cluster import Cluster
from paceline.simulator.scenario.overhead import GIGABIT
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import Progress

from ..calibration import compute_laws, profile
from ..calibration.calibrate import COMMENTS, HEAD, CalibrationResult, PaceCheck
from ..calibration.calibrate import calibrate as calibrate_runs
from ..calibration.compute_laws import FittedLaws
from ..calibration.profile import Profile
from ..measurement.fingerprints import fingerprints
from . import jobs as files
from . import link_law, tables
from .link_law import BUCKETED, DRAWS, LAW, LEAST, SLOWDOWN, STEADY, Fitted
from .steps import Observed, observe

SURE = 3.0  # standard errors by which the computing of jobs must differ
RELEVANT = 0.01  # relative difference of computing that matters
MISSED = 0.03  # relative error of a job's pace from which a note names it
CLEARLY = 4.0  # difference of misfits from which one overlap is clearly better: 95 %
UNSURE = 0.05  # relative standard deviation of computing from which a note says so
OWN_SPREAD = 0.7  # a worker's own spread over that of whole steps
STAGES = 3  # reading, computing, links
ABOUT = {
    "calibration.draws": "factors of numbers, uncertain together: a replicate takes one of each",
    "calibration.otherwise": "replicates whose buckets overlap as no job declares",
    "calibration.model_error": "of other programs: relative standard deviations, by family",
    "overhead.0": "one law of the links, fitted to all jobs: docs/calibrate.md",
    "overhead.1": "the same of buckets, whose factor is their own",
}
CAUSES = (
    "Links may be faster than stated, or less is sent than declared (rarer averages, a codec, "
    "fewer bytes_per_parameter)",
    "Links may be slower than stated (measure busbw of nccl-tests), buckets may be averaged after "
    "the backward pass (overlap = false), or collectives may slow computing (time a step under "
    "no_sync)",
)
"""What may explain a law far below what is usual, and one far above."""


@dataclass(frozen=True)
class _Study:
    """Observed jobs, the `condition` of each in which it computes, and the `laws` of conditions."""

    observed: Sequence[Observed]
    condition: Sequence[int]

    @cached_property
    def laws(self) -> list[FittedLaws]:
        return [_law(self.members(n)) for n in range(max(self.condition) + 1)]

    def members(self, condition: int) -> list[Observed]:
        pairs = zip(self.observed, self.condition, strict=True)
        return [seen for seen, own in pairs if own == condition]

    def scenarios(self) -> list[Scenario]:
        """Return the jobs' scenarios with laws of computing times whose mean is 1 s."""
        found = []
        for seen, condition in zip(self.observed, self.condition, strict=True):
            law, scenario = self.laws[condition], seen.job.scenario
            keys = {"workers", "accumulation", "region"} & scenario.cluster.model_fields_set
            table = {key: getattr(scenario.cluster, key) for key in keys}
            table |= _cluster(law, scenario.cluster.workers)
            with TemporaryDirectory() as folder:
                for name, content in law.files.items():
                    (Path(folder) / name).write_bytes(content)
                cluster = Cluster.model_validate(table, context={"folder": Path(folder)})
            found.append(scenario.model_copy(update={"cluster": cluster}))
        return found


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
        progress: Receives the number of stages done, and of draws in the last stage.

    Raises:
        InputError: For wrong input; for a log alone, with a file of jobs to fill in.
    """
    named = [Path(path) for path in paths]
    if not any(path.name.endswith((".toml", *tables.TEXTS)) for path in named):
        return calibrate_runs(named, base=base, allow_paths=allow_paths, progress=progress)
    if logs := [path for path in named if path.name.endswith(tables.TEXTS)]:
        raise InputError(files.template(logs[0]))
    if len(named) > 1 or base is not None:
        what = "--base: logs take none" if base else "one file of jobs at a time, and nothing else"
        raise InputError(f"{named[0]}: {what}; put every [[job]] into one file")

    done = progress or (lambda stage, stages: None)
    done(0, STAGES)
    observed = [observe(job) for job in files.read(named[0], allow_paths=allow_paths)]
    done(1, STAGES)
    condition, notes = _conditions(observed)
    study = _Study(observed, condition)
    scenarios = study.scenarios()
    done(2, STAGES)
    bucketed = [job.job.name for job in observed if job.job.scenario.algorithm[0].name == BUCKETED]
    total = DRAWS * (2 if bucketed else 1)
    fitted = link_law.fit(observed, scenarios, condition, done=lambda draws: done(draws, total))
    if bucketed:
        flipped = [
            scenario.model_copy(update={"algorithm": [*map(redraw.otherwise, scenario.algorithm)]})
            for scenario in scenarios
        ]
        enough = fitted.misfit - (0.0 if any(fitted.conflicts()) else CLEARLY)
        other = link_law.fit(
            observed, flipped, condition, enough, lambda draws: done(DRAWS + draws, total)
        )
        if other.misfit < enough:
            notes.append(_overlap_note(fitted, other, ", ".join(bucketed)))
            fitted = _mixed(fitted, other)
    done(STAGES, STAGES)
    of_logs = dict.fromkeys(note for seen in observed for note in seen.notes)
    return _result(study, fitted, [*of_logs, *notes, *_unknown(study, fitted)])


def _conditions(observed: Sequence[Observed]) -> tuple[list[int], list[str]]:
    """Number the conditions in which jobs compute alike, and say what was assumed.

    Jobs of one model share a condition if they name the same machine, or if their logs show that
    they compute alike. A job whose log shows no computing shares the condition of its model.
    """
    notes: list[str] = []
    keys: list[tuple[Any, ...]] = [
        (job.machine, job.scenario.model.bytes, job.scenario.cluster.accumulation)
        for job in (seen.job for seen in observed)
    ]
    for key in dict.fromkeys(keys):
        members = [n for n, other in enumerate(keys) if other == key]
        shown = [n for n in members if observed[n].compute > 0]
        logs = [math.log(observed[n].compute) for n in shown]
        variance = max((float(observed[n].covariance[0, 0]) for n in shown), default=0.0)
        apart = max(logs, default=0.0) - min(logs, default=0.0)
        if key[0] is not None or len(members) < 2:
            continue
        if apart > RELEVANT + SURE * math.sqrt(2 * variance):
            for n in shown:
                keys[n] = (*key, n)
            notes.append(
                f"jobs of one model compute {math.expm1(apart):.1%} apart: each in its own "
                'condition; name machine = "..." in each [[job]] to say which share one'
            )
        else:
            known = ", as their logs show" if len(shown) == len(members) else ""
            notes.append(f"{len(members)} jobs of one model are taken to compute alike{known}")
    order = [*dict.fromkeys(keys)]
    return [order.index(key) for key in keys], notes


def _overlap_note(fitted: Fitted, other: Fitted, names: str) -> str:
    why = (
        "the jobs together contradict the overlap of buckets with the backward pass"
        if fitted.misfit - other.misfit > CLEARLY
        else "another overlap of buckets with the backward pass explains the jobs with usual links"
    )
    return (
        f"{names}: {why}: numbers are of what is declared, intervals span both; correct overlap "
        "in the [[job]]"
    )


def _mixed(fitted: Fitted, other: Fitted) -> Fitted:
    """Let half of the draws be those of the other overlap, which explains the jobs too."""
    draws = np.concatenate([fitted.draws[::2], other.draws[1::2]])
    otherwise = [n >= len(fitted.draws[::2]) for n in range(len(draws))]
    return replace(fitted, draws=draws, otherwise=otherwise)


def _law(members: Sequence[Observed]) -> FittedLaws:
    """Fit the law of computing of one condition to the log with the most steps, of mean 1 s.

    If all logs are of whole steps, a worker's own spread is a part of theirs.
    """
    best = max(members, key=lambda seen: (seen.computing, sum(map(len, seen.times))))
    whole = np.concatenate(best.times)
    if best.computing:
        return compute_laws.fit([times / float(np.mean(whole)) for times in best.times])
    spread = 1.4826 * float(np.median(np.abs(whole - np.median(whole)))) / best.pace
    if best.compute > 0:  # what workers wait for the slowest is less than the rest of a step
        spread = min(spread, (best.pace - best.compute) / 2 / best.compute)
    spread = OWN_SPREAD * max(spread, STEADY)
    law = {"dist": "gamma", "mean": "1000 ms", "shape": float(f"{spread**-2:.6g}")}
    ranking = [{"family": "gamma", "parameters": law, "chosen": True}]
    return FittedLaws(law, None, [], {}, {}, ranking, 0.0)


def _cluster(law: FittedLaws, workers: int) -> dict[str, Any]:
    """Return the tables of a law, without groups of more workers than there are."""
    found = law.tables
    if sum(group["workers"] for group in law.group) >= workers:
        found.pop("group", None)
    return found


def _unknown(study: _Study, fitted: Fitted) -> list[str]:
    """Say what the fit leaves open, which links it found unusual, and which jobs it misses."""
    notes, conditions = [], len(study.laws)
    unknown = [seen for seen in study.observed if not seen.job.knows_link]
    for seen, number in zip(unknown, fitted.point[LAW + conditions :], strict=True):
        notes.append(
            f"{seen.job.name}: its link is unknown: it moves payloads as one of "
            f"{profile.rate(GIGABIT / math.exp(number))} would, and says nothing of other links"
        )
    for n in range(conditions):
        members = study.members(n)
        unsure = float(np.std(fitted.draws[:, LAW + n])) > UNSURE
        one_link = len({seen.job.scenario.network.bandwidth for seen in members}) < 2
        if (unsure or one_link) and not any(seen.compute > 0 for seen in members):
            low, high = map(human, fitted.computing(n))
            notes.append(
                f"{', '.join(seen.job.name for seen in members)}: every step communicates, so that "
                "computing cannot be told from communicating: computing takes "
                f"{low} to {high} of a step of {human(min(seen.pace for seen in members))} "
                f"({USUAL}), what collectives slow computing by included; "
                'write compute = "..." into the [[job]], or add a log of another period (local-sgd)'
                " or over another link"
            )
    for causes, conflicts in zip(CAUSES, fitted.conflicts(), strict=True):
        if conflicts:
            names = ", ".join(dict.fromkeys(seen.job.name for seen in study.observed))
            notes.append(
                f"{names}: at odds with the links and the computing that are stated or shown: "
                f"{'; '.join(conflicts)}. {causes}"
            )
    for seen, predicted in zip(study.observed, fitted.paces, strict=True):
        if abs(missed := predicted / seen.pace - 1) > MISSED:
            notes.append(
                f"{seen.job.name}: no law of the links explains its pace with the other jobs' "
                f"({missed:+.1%}); are its link and its machine what the file says?"
            )
    return notes


def _result(study: _Study, fitted: Fitted, notes: list[str]) -> CalibrationResult:
    """Write the profile: the computing of the condition with most jobs, the law, the draws."""
    condition = study.condition
    main = max(condition, key=condition.count)
    jobs = [seen.job for seen in study.observed]
    first = jobs[condition.index(main)]
    model = first.scenario.model
    firsts = [jobs[condition.index(n)] for n in range(len(study.laws))]
    same = [
        n for n, job in enumerate(firsts)
        if (job.scenario.model, job.machine) == (model, first.machine)
    ]  # fmt: skip
    compute = float(np.mean([fitted.point[LAW + n] for n in same]))
    law = study.laws[main].scaled(math.exp(compute))
    network = files.common(jobs)
    overheads, draws = _overheads(fitted, network.get("library") == "gloo")
    # jobs of several conditions: each draw takes one of them
    times = [
        math.exp(row[LAW + same[n % len(same)]] - compute) for n, row in enumerate(fitted.draws)
    ]
    draws |= {"cluster.compute": times}
    draws |= {f"cluster.group.{n}.compute": times for n in range(len(law.group))}
    if not any(job.knows_link for job in jobs):
        network["bandwidth"] = profile.rate(GIGABIT / math.exp(fitted.point[-1]))
        draws["network.bandwidth"] = np.exp(fitted.point[-1] - fitted.draws[:, -1]).tolist()
        for key in ("transmission_factor", "transmission_exponent", "per_byte", "tree_exponent"):
            for n, table in enumerate(overheads):
                del table[key], draws[f"overhead.{n}.{key}"]
    cluster: dict[str, Any] = {}
    for key in ("workers", "accumulation"):
        value, *others = {getattr(job.scenario.cluster, key) for job in jobs}
        if not others and value > 1:
            cluster[key] = value
    slowdown = 1 + math.exp(fitted.point[SLOWDOWN])
    if slowdown > 1 + LEAST and any(job.slowed for job in jobs):
        cluster["beside_collectives"] = profile.rounded(slowdown)
        factors = (1 + np.exp(fitted.draws[:, SLOWDOWN])) / slowdown
        draws["cluster.beside_collectives"] = factors.tolist()
    others = [
        f"{job.name}: a step computes {profile.seconds(math.exp(fitted.point[LAW + n]))}: not in "
        "[cluster], which has one law" for n, job in enumerate(firsts) if n not in same
    ]  # fmt: skip
    calibration = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "runs": [job.name for job in jobs],
        "fingerprints": fingerprints(job.log.path for job in jobs),
        "fitted": sorted({job.scenario.algorithm[0].words for job in jobs}),
        "replicates": DRAWS,
        "model_error": _model_error(sorted({job.family for job in jobs})),
        "measured": _measured([job.scenario for job in jobs]),
        "transport": network.get("transport", "ideal"),
        "library": network.get("library", "ideal"),
        "notes": [*notes, *others, *law.notes],
        "draws": draws,
        **({"otherwise": fitted.otherwise} if fitted.otherwise else {}),
    }
    whole: dict[str, Any] = {
        "calibration": calibration,
        "cluster": cluster | _cluster(law, first.scenario.cluster.workers),
        "overhead": overheads,
        **({"network": network} if network else {}),
    }
    if all(job.scenario.model == model for job in jobs):
        keys = ("parameters", "bytes_per_parameter")
        whole["model"] = {key: getattr(model, key) for key in keys}
    checks = [
        PaceCheck(seen.job.name, seen.job.scenario.cluster.workers, predicted, seen.mean)
        for seen, predicted in zip(study.observed, fitted.paces, strict=True)
    ]
    written = Profile(whole, COMMENTS | ABOUT, HEAD, law.files)
    return CalibrationResult(written, law, checks, free=len(fitted.point))


def _overheads(fitted: Fitted, gloo: bool) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Return the tables of [[overhead]], of all means and of buckets, and their draws."""
    found, draws = list[dict[str, Any]](), dict[str, list[float]]()
    for n in range(2):
        at = fitted.overhead(fitted.point, n == 1)
        rows = [fitted.overhead(row, n == 1) for row in fitted.draws]
        draws |= {f"overhead.{n}.{key}": [row[key] / at[key] for row in rows] for key in at}
        table: dict[str, Any] = {key: profile.rounded(value) for key, value in at.items()}
        table |= {key: profile.seconds(at[key]) for key in ("collective", "hop")}
        if gloo:  # a question of gloo waits for the word that it may be sent
            table["agree_latencies"] = 2.0
        found.append(table | ({"algorithm": BUCKETED} if n else {}))
    return found, draws


def _model_error(families: Sequence[str]) -> dict[str, Any]:
    """Return the model's error of other programs; that of the jobs' own kind is in the draws."""
    shipped = profile.model_error("real")
    return {
        **shipped,
        "source": f"{shipped['source']}; that of {' and '.join(families)} ones is in the draws",
        "seconds_per_step": {**shipped["seconds_per_step"], **dict.fromkeys(families, 0.0)},
    }


def _measured(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Return the measured ranges, each from least to most."""
    workers = [scenario.cluster.workers for scenario in scenarios]
    sizes = [scenario.model.bytes for scenario in scenarios]
    return {
        "workers": [min(workers), max(workers)],
        "bytes": [min(sizes), max(sizes)],
        "latency": profile.between([ClosedForm(scenario).hop for scenario in scenarios]),
    }
