"""From logs of jobs to a profile: computing, one law of the links, and what both leave open."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import human, with_unit
from paceline.simulator.scenario import redraw
from paceline.simulator.scenario.cluster import Cluster
from paceline.simulator.scenario.overhead import GIGABIT
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import Progress

from ..calibration import compute_laws, model_error, profile
from ..calibration.calibrate import COMMENTS, HEAD, CalibrationResult, PaceCheck
from ..calibration.calibrate import calibrate as of_runs
from ..calibration.compute_laws import FittedLaws
from ..calibration.profile import Profile
from ..measurement.fingerprints import fingerprints
from . import jobs as files
from . import tables, transport
from .steps import Observed, observe
from .transport import (
    BESIDE,
    BUCKETED,
    DRAWS,
    LAW,
    LEAST,
    SPREAD,
    STEADY,
    Fitted,
)

SURE = 3.0  # standard errors by which jobs' computing differs
ALIKE = 0.01  # relative difference below which it does not matter
MISSED = 0.03  # relative error of a job's own pace, from which a note says so
TOLD = 4.0  # squares by which one overlap explains jobs better than the other: 95 %
UNSURE = 0.05  # relative sd of computing, from which a note says so
ABOUT = {
    "calibration.draws": "factors of numbers, uncertain together: a replicate takes one of each",
    "calibration.otherwise": "replicates whose buckets overlap as no job declares",
    "calibration.model_error": "of other programs: relative standard deviations, by family",
    "overhead.0": "one law of the links, fitted to all jobs: docs/calibrate.md",
    "overhead.1": "the same of buckets, whose factor is their own",
}
BUSBW = "Links may be slower than stated (measure busbw of nccl-tests, or one mean)"
FASTER = (
    "Links may be faster than stated, or less travels than declared (rarer averages, "
    "a codec, fewer bytes_per_parameter, parameters that are not averaged)"
)
"""What may explain a law far above what is usual, of whole means, and far below."""
STAGES = 3  # reading, computing, links


def calibrate(
    paths: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    allow_paths: bool = False,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Fit a profile to measured runs, or to the logs of jobs that one file describes.

    `paths`: those of `calibration.calibrate`, which then fits them with `base`; or a file of
    [[job]] tables, whose logs, as all files that it names, must lie in its folder, unless
    `allow_paths`. `progress` receives the number of stages done, and in the last one of its steps.
    Raises InputError; for a log alone it says what is missing, with a file of jobs to fill in.
    """
    named = [Path(path) for path in paths]
    if not any(path.name.endswith((".toml", *tables.TEXTS)) for path in named):
        return of_runs(named, base=base, allow_paths=allow_paths, progress=progress)
    if logs := [path for path in named if path.name.endswith(tables.TEXTS)]:
        raise InputError(files.template(logs[0]))
    if len(named) > 1 or base is not None:
        what = "--base: logs take none" if base else "one file of jobs at a time, and nothing else"
        raise InputError(f"{named[0]}: {what}; put every [[job]] into one file")

    done = progress or (lambda stage, stages: None)
    done(0, STAGES)
    found = [observe(job) for job in files.read(named[0], allow_paths=allow_paths)]
    done(1, STAGES)
    conditions, notes = _conditions(found)
    laws = [_law([each for each, c in zip(found, conditions, strict=True) if c == n])
            for n in range(max(conditions) + 1)]  # fmt: skip
    scenarios = [_with_unit_steps(each, laws[c]) for each, c in zip(found, conditions, strict=True)]
    done(2, STAGES)
    bucketed = [each.job.name for each in found if each.job.scenario.algorithm[0].name == BUCKETED]
    fits = 2 if bucketed else 1
    fitted = transport.fit(
        found, scenarios, conditions, told=lambda n, steps: done(n, fits * steps)
    )
    odd, slower = fitted.conflicts(), BUSBW
    if bucketed:
        otherwise = [
            each.model_copy(update={"algorithm": [*map(redraw.otherwise, each.algorithm)]})
            for each in scenarios
        ]
        least = fitted.misfit - (0.0 if any(odd) else TOLD)
        other = transport.fit(
            found, otherwise, conditions, least, lambda n, steps: done(steps + n, fits * steps)
        )
        slower = _slower(found, scenarios, conditions, fitted, other) if odd[1] else BUSBW
        if other.misfit < least:
            fitted, doubt = _either(fitted, other, ", ".join(bucketed))
            notes.append(doubt)
    done(STAGES, STAGES)
    of_logs = dict.fromkeys(note for each in found for note in each.notes)
    notes = [*of_logs, *notes, *_unknown(found, fitted, conditions, slower)]
    return _result(found, conditions, laws, fitted, notes)


def _conditions(found: Sequence[Observed]) -> tuple[list[int], list[str]]:
    """Number the conditions in which jobs compute alike, and say what was assumed.

    Jobs of one model share theirs where they name the same machine, or where their logs show that
    they compute alike; a job whose log shows no computing is taken to share that of its model.
    """
    notes: list[str] = []
    keys: list[tuple[Any, ...]] = [
        (own.machine, own.scenario.model.bytes, own.scenario.cluster.accumulation)
        for own in (each.job for each in found)
    ]
    for key in dict.fromkeys(keys):
        mine = [n for n, own in enumerate(keys) if own == key]
        known = [n for n in mine if found[n].compute > 0]
        logs = [math.log(found[n].compute) for n in known]
        errors = [float(found[n].covariance[0, 0]) for n in known]
        apart = max(logs, default=0.0) - min(logs, default=0.0)
        if key[0] is None and apart > ALIKE + SURE * math.sqrt(2 * max(errors, default=0.0)):
            for n in known:
                keys[n] = (*key, n)
            notes.append(
                f"jobs of one model compute {math.expm1(apart):.1%} apart: each in its own "
                'condition; name machine = "..." in each [[job]] to say which share one'
            )
        elif key[0] is None and len(mine) > 1:
            notes.append(
                f"{len(mine)} jobs of one model are taken to compute alike"
                + (", as their logs show" if len(known) == len(mine) else "")
            )
    order = [*dict.fromkeys(keys)]
    return [order.index(key) for key in keys], notes


def _either(fitted: Fitted, other: Fitted, names: str) -> tuple[Fitted, str]:
    """Let half of the draws be those of the other overlap, which explains the jobs too.

    `names`: of the jobs that average buckets.
    """
    parts: dict[str, Any] = {
        key: np.concatenate([getattr(fitted, key)[::2], getattr(other, key)[1::2]])
        for key in ("draws", "spreads")
    }
    parts["otherwise"] = [n >= len(fitted.draws[::2]) for n in range(len(parts["draws"]))]
    why = (
        "the jobs together contradict the overlap of buckets with the backward pass"
        if fitted.misfit - other.misfit > TOLD
        else "another overlap of buckets with the backward pass explains the jobs with usual links"
    )
    return replace(fitted, **parts), (
        f"{names}: {why}: numbers are of what is declared, intervals span both; correct overlap "
        "in the [[job]]"
    )


def _law(mine: Sequence[Observed]) -> FittedLaws:
    """Fit the law of computing of one condition to the log with the most steps, of mean 1 s.

    If all logs are of whole steps, it has their spread in seconds, of which the fit takes its part.
    """
    best = max(mine, key=lambda each: (each.computing, sum(map(len, each.times))))
    whole = np.concatenate(best.times)
    mean = float(np.mean(whole))
    if best.computing:
        return compute_laws.fit([own / mean for own in best.times])
    spread = 1.4826 * float(np.median(np.abs(whole - np.median(whole))))
    if best.compute > 0:  # what workers wait for the slowest is less than what is left of a step
        spread = min(spread, (best.pace - best.compute) / 2)
    spread = max(spread, STEADY * mean)
    law = {"dist": "gamma", "mean": "1000 ms", "shape": spread**-2}
    chosen = {"family": "gamma", "parameters": law, "chosen": True}
    return FittedLaws(law, None, [], {}, {}, [chosen], 0.0)


def _with_unit_steps(each: Observed, law: FittedLaws) -> Scenario:
    """Return a job's scenario with the law of computing times, whose mean is 1 s."""
    scenario = each.job.scenario
    keys = {"workers", "accumulation", "region"} & scenario.cluster.model_fields_set
    own = {key: getattr(scenario.cluster, key) for key in keys}
    table = own | _cluster(law, scenario.cluster.workers)
    with TemporaryDirectory() as folder:
        for name, content in law.files.items():
            (Path(folder) / name).write_bytes(content)
        cluster = Cluster.model_validate(table, context={"folder": Path(folder)})
    return scenario.model_copy(update={"cluster": cluster})


def _cluster(law: FittedLaws, workers: int) -> dict[str, Any]:
    """Return the tables of a law, without groups of more workers than there are."""
    found = law.tables
    if sum(each["workers"] for each in law.group) >= workers:
        found.pop("group", None)
    return found


def _scaled(value: Any, by: float) -> Any:
    """Return tables with all times, which a law writes in milliseconds, multiplied."""
    if isinstance(value, dict):
        return {key: _scaled(each, by) for key, each in value.items()}
    if isinstance(value, list):
        return [_scaled(each, by) for each in value]
    if isinstance(value, str) and (parts := re.fullmatch(r"(\S+) ms", value)):
        return f"{float(parts[1]) * by:.6g} ms"
    return value


def _slower(
    found: Sequence[Observed], scenarios: Sequence[Scenario], conditions: Sequence[int],
    fitted: Fitted, other: Fitted,
) -> str:  # fmt: skip
    """Say what may explain buckets that take longer than is usual, and what each would have to be.

    `other`: the fit of the other overlap.
    """
    first = next(each for each in scenarios if each.algorithm[0].name == BUCKETED)
    if not found[scenarios.index(first)].job.knows_link:
        return BUSBW
    rate = ClosedForm(first).mean_plan.rate
    causes = [
        f"links that give {with_unit(fitted.given(rate), 'B/s')} of {with_unit(rate, 'B/s')} "
        "(measure busbw of nccl-tests, or one mean)"
    ]
    if first.algorithm[0].parameters["overlap"]:
        causes.append(
            f"buckets that are averaged after the backward pass, over links of "
            f"{with_unit(other.given(rate), 'B/s')} (overlap = false; record a trace)"
        )
    if fitted.point[BESIDE] > math.log(LEAST):
        slowed = transport.fit(found, scenarios, conditions, -math.inf, only=BESIDE)
        causes.append(
            f"collectives that slow computing by {100 * math.exp(slowed.point[BESIDE]):.0f} % "
            "(cluster.beside_collectives; published GPUs: by 19 % on average, 40 % at most; time a "
            "step with and without no_sync)"
        )
    return f"Any of these would explain it, with the rest as usual: {'; '.join(causes)}"


def _unknown(
    found: Sequence[Observed], fitted: Fitted, of: Sequence[int], slower: str
) -> list[str]:
    """Say what the fit found out about links of which nothing was known, and what it misses.

    `of`: the condition of each job; `slower`: what may explain a law far above what is usual.
    """
    notes, conditions = [], max(of) + 1
    unknown = [each for each in found if not each.job.knows_link]
    for each, own in zip(unknown, fitted.point[LAW + conditions :], strict=True):
        speed = profile.rate(GIGABIT / math.exp(own))
        notes.append(
            f"{each.job.name}: its link is unknown: it moves payloads as one of {speed} would, and "
            "says nothing of other links"
        )
    for n in range(conditions):
        mine = [each for each, own in zip(found, of, strict=True) if own == n]
        unsure = float(np.std(fitted.draws[:, LAW + n]))
        one_link = len({each.job.scenario.network.bandwidth for each in mine}) < 2
        if (unsure > UNSURE or one_link) and not any(each.compute > 0 for each in mine):
            low, high = fitted.range_of(n)
            step = min(each.pace for each in mine)
            rest = " to ".join(human(max(0.0, step - end)) for end in (high, low))
            notes.append(
                f"{', '.join(each.job.name for each in mine)}: every step communicates, so that "
                f"computing cannot be told from communicating: computing takes {human(low)} to "
                f"{human(high)}, and what it does not hide of communicating and waiting {rest} of "
                f"a step of {human(step)} ({USUAL}), by what is usual of links like those stated, "
                "and with what collectives slow computing by counted as computing; "
                'write compute = "..." into the [[job]], or add a log of another period (local-sgd)'
                " or over another link"
            )
    for causes, conflicts in zip((FASTER, slower), fitted.conflicts(), strict=True):
        if conflicts:
            names = ", ".join(dict.fromkeys(each.job.name for each in found))
            notes.append(
                f"{names}: at odds with the links and the computing that are stated or shown: "
                f"{'; '.join(conflicts)}. {causes}"
            )
    for each, predicted in zip(found, fitted.paces, strict=True):
        missed = predicted / each.pace - 1
        if abs(missed) > MISSED:
            notes.append(
                f"{each.job.name}: no law of the links explains its pace with the other jobs' "
                f"({missed:+.1%}); are its link and its machine what the file says?"
            )
    return notes


def _result(
    found: Sequence[Observed], conditions: Sequence[int], laws: Sequence[FittedLaws],
    fitted: Fitted, notes: list[str],
) -> CalibrationResult:  # fmt: skip
    """Write the profile: the computing of the condition with most jobs, the law, the draws."""
    main = max(conditions, key=conditions.count)
    jobs = [each.job for each in found]
    first = jobs[conditions.index(main)]
    model, machine = first.scenario.model, first.machine
    alike = [
        n for n in range(len(laws))
        if (own := jobs[conditions.index(n)]).scenario.model == model and own.machine == machine
    ]  # fmt: skip
    compute = float(np.mean([fitted.point[LAW + n] for n in alike]))
    law = laws[main]
    by = math.exp(compute)
    tables = ("compute", "bursts", "group", "ranking")
    longer: dict[str, Any] = {name: _scaled(getattr(law, name), by) for name in tables}
    samples = {name: own * by for name, own in law.samples.items()}
    law = replace(law, samples=samples, **longer)
    hidden = not any(each.computing for each, c in zip(found, conditions, strict=True) if c == main)
    if hidden:
        law.compute["shape"] *= (by / SPREAD) ** 2
    # jobs of several conditions: each draw takes one of them
    times = [
        math.exp(row[LAW + alike[n % len(alike)]] - compute) for n, row in enumerate(fitted.draws)
    ]
    network = files.common(jobs)
    # a question of gloo waits for the word that it may be sent
    asks = {"agree_latencies": 2.0} if network.get("library") == "gloo" else {}
    laws_of_links, draws = list[dict[str, Any]](), dict[str, list[float]]()
    for n in range(2):
        at = fitted.overhead(fitted.point, n == 1)
        rows = [fitted.overhead(row, n == 1) for row in fitted.draws]
        draws |= {f"overhead.{n}.{key}": [row[key] / at[key] for row in rows] for key in at}
        times_of = {key: profile.seconds(at[key]) for key in ("collective", "hop")}
        rounded = {key: profile.rounded(own) for key, own in at.items()}
        laws_of_links.append(rounded | times_of | asks | ({"algorithm": BUCKETED} if n else {}))
    if fitted.point[BESIDE] > math.log(LEAST):
        draws["cluster.beside_collectives"] = (
            (1 + np.exp(fitted.draws[:, BESIDE])) / (1 + math.exp(fitted.point[BESIDE]))
        ).tolist()
    draws["cluster.compute"] = times
    if hidden:
        draws["cluster.compute.shape"] = ((times / fitted.spreads * SPREAD) ** 2).tolist()
    draws |= {f"cluster.group.{n}.compute": times for n in range(len(law.group))}
    if not any(job.knows_link for job in jobs):
        link = fitted.draws[:, -1] - fitted.point[-1]
        network["bandwidth"] = profile.rate(GIGABIT / math.exp(fitted.point[-1]))
        draws["network.bandwidth"] = np.exp(-link).tolist()
        for key in ("transmission_factor", "transmission_exponent", "per_byte", "tree_exponent"):
            for n, at in enumerate(laws_of_links):
                del at[key], draws[f"overhead.{n}.{key}"]
    common: dict[str, set[int]] = {
        key: {getattr(job.scenario.cluster, key) for job in jobs}
        for key in ("workers", "accumulation")
    }
    cluster: dict[str, Any] = {
        key: own for key, (own, *others) in common.items() if not others and own > 1
    }
    if "cluster.beside_collectives" in draws:
        cluster["beside_collectives"] = profile.rounded(1 + math.exp(fitted.point[BESIDE]))
    others = [
        f"{jobs[conditions.index(n)].name}: a step computes "
        f"{profile.seconds(math.exp(fitted.point[LAW + n]))}: not in [cluster], which has one law"
        for n in range(len(laws)) if n not in alike
    ]  # fmt: skip
    families = sorted({job.family for job in jobs})
    whole: dict[str, Any] = {
        "calibration": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "runs": [job.name for job in jobs],
            "fingerprints": fingerprints(job.log.path for job in jobs),
            "fitted": sorted({job.scenario.algorithm[0].words for job in jobs}),
            "replicates": DRAWS,
            "model_error": _model_error(families),
            "measured": _measured(found),
            "transport": network.get("transport", "ideal"),
            "library": network.get("library", "ideal"),
            "notes": [*notes, *others, *law.notes],
            "draws": draws,
            **({"otherwise": fitted.otherwise} if fitted.otherwise else {}),
        },
        "cluster": cluster | _cluster(law, first.scenario.cluster.workers),
        "overhead": laws_of_links,
    }
    if network:
        whole["network"] = network
    if all(job.scenario.model == model for job in jobs):
        whole["model"] = {
            "parameters": model.parameters, "bytes_per_parameter": model.bytes_per_parameter
        }  # fmt: skip
    checks = [
        PaceCheck(job.name, job.scenario.cluster.workers, predicted, each.mean)
        for job, each, predicted in zip(jobs, found, fitted.paces, strict=True)
    ]
    written = Profile(whole, COMMENTS | ABOUT, HEAD, law.files)
    return CalibrationResult(written, law, checks, free=len(fitted.point))


def _model_error(families: Sequence[str]) -> dict[str, Any]:
    """Return the model's error of other programs; that of the jobs' own kind is in the draws."""
    shipped = model_error.shipped("real")
    own = dict.fromkeys(families, 0.0)
    return {
        **shipped,
        "source": f"{shipped['source']}; that of {' and '.join(families)} ones is in the draws",
        "seconds_per_step": {**shipped["seconds_per_step"], **own},
    }


def _measured(found: Sequence[Observed]) -> dict[str, Any]:
    """Return the measured ranges, each from least to most."""
    scenarios = [each.job.scenario for each in found]
    workers = [each.cluster.workers for each in scenarios]
    sizes = [each.model.bytes for each in scenarios]
    hops = [ClosedForm(each).hop for each in scenarios]
    return {
        "workers": [min(workers), max(workers)],
        "bytes": [min(sizes), max(sizes)],
        "latency": profile.between(hops),
    }
