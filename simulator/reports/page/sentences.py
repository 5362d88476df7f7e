"""The verdict on top of a page: what to deploy, by how much it wins, and how sure that is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...results import statistics, wording
from ...results.intervals import MEDIAN, MODEL, USUAL, difference, stated
from ...results.order import MARGIN as ORDER_MARGIN
from ...results.order import within
from ...results.pick import ENOUGH, all_of, any_of, decided, headline, scored
from ...results.run import Run
from ...results.statistics import crossing, human, number
from .parts import percent
from .reading import FoundRun

Groups = Mapping[str, Sequence[Run]]
BASELINES = ("ssgd",)  # names of algorithms to compare with; else the scenario's first
LEVELS = 80  # losses, or times, at which we look for the leader
MARGIN, SURE, CHANGE = "By how much?", "How sure is that?", "What would change the answer?"
SPENT = "What does it take?"
LOSS_ALONE = "the error of the learning curve, and on no calibration of times"


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of one RUN. `facts`: questions and their answers; `decided`: the pick is.
    `basis`: what the loss is the loss of; `asked`: what the pick is the best in."""

    run: str
    headline: str
    sentence: str
    facts: list[tuple[str, list[str]]]
    pick: str | None = None
    decided: bool = False
    value: str = "-"
    within: str = "-"
    basis: str = ""
    asked: str = ""


def verdict(found: FoundRun) -> RunVerdict:
    """Return the verdict of a RUN of `simulate` or `validate`."""
    run = found.main
    assert run is not None
    pick = run.summary["pick"]
    best = pick["label"]
    if best is None or best not in run.runs:
        return RunVerdict(found.name, "Nothing to deploy", pick["sentence"], [])
    said, sure = headline(pick), decided(pick)
    groups = {label: runs for label, runs in run.runs.items() if not runs[0].bound}
    scores = {
        label: {run.seed: value for run, value in zip(groups[label], values, strict=True)}
        for label, values in scored(groups, pick["measure"], found.target).items()
    }
    facts = [
        (MARGIN, _margins(scores, pick, baseline(found), run.rows)),
        (SURE, [*_sure(found, scores, pick)]),
        (CHANGE, [*filter(None, _change(found, groups, pick))]),
    ]
    say = number if pick["measure"] == "loss" else human
    basis = (
        "" if pick["measure"].startswith("seconds_per_") else run.summary.get("loss_basis") or ""
    )
    asked = _asked(pick["measure"], found.target)
    if pick["measure"] == "reached":
        return RunVerdict(
            found.name, said, pick["sentence"], facts, best, sure, basis=basis, asked=asked
        )
    within = wording.qualified(stated(pick, "value"), _unit(pick["measure"]))
    value, sentence = say(pick["value"]), pick["sentence"]
    return RunVerdict(found.name, said, sentence, facts, best, sure, value, within, basis, asked)


def _asked(measure: str, target: float | None) -> str:
    """Return what a pick is the best in, as a search names it."""
    if measure in ("time_to_target", "reached"):
        return f"time to loss {target:g}"
    return measure.replace("seconds_per_", "time per ")


def _unit(measure: str) -> str:
    return "" if measure == "loss" else "s"


def baseline(found: FoundRun) -> str | None:
    """Return the label of the algorithm that others are compared with."""
    assert found.main is not None
    rows = {label: row for label, row in found.main.rows.items() if not row["bound"]}
    names = {row["name"]: label for label, row in reversed(rows.items())}
    return next((names[name] for name in BASELINES if name in names), next(iter(rows), None))


def _margins(
    scores: Mapping[str, Mapping[int, float]], pick: Mapping[str, Any], against: str | None,
    rows: Mapping[str, Mapping[str, Any]],
) -> list[str]:  # fmt: skip
    """Say how far the next algorithm and the baseline are behind; `rows`: of all, by label."""
    best, middle = pick["label"], np.median if _by_median(pick) else np.mean
    values = {label: float(middle([*each.values()])) for label, each in scores.items()}
    others = sorted((k for k in values if k != best), key=lambda k: not math.isfinite(values[k]))
    others.sort(key=lambda k: values[k] if math.isfinite(values[k]) else math.inf)
    if not others:
        return ["No other algorithm was run."]
    said = []
    roles = {others[0]: "next"}
    if against is not None and against != best and against in values:
        roles[against] = "next and the baseline" if against in roles else "baseline"
    for label, role in roles.items():
        ends = [(rows[each].get("interval90") or {}).get(pick["measure"]) for each in (best, label)]
        said.append(margin(scores[best], scores[label], pick, f"{label}, the {role}", ends))
    if against == best:
        said.append("It is the baseline itself.")
    return said


def _by_median(pick: Mapping[str, Any]) -> bool:
    return bool(pick.get("estimate") == MEDIAN)


def margin(
    best: Mapping[int, float], other: Mapping[int, float], pick: Mapping[str, Any], name: str,
    ends: Sequence[Sequence[float] | None] = (None, None),
) -> str:  # fmt: skip
    """Say how much smaller `best` is than `other`, paired over their common seeds.

    By the median of the differences if the pick is by medians, else by the mean. `ends`: where a
    measured run of each is expected, if times have such an interval; then that of the difference
    is theirs together.
    """
    seeds = [seed for seed in best if seed in other]
    if pick["measure"] == "seconds_per_gradient" and math.inf in best.values():
        return f"By how much {name}, takes longer is not in this run directory: repeat its command."
    one, two = (np.array([values[seed] for seed in seeds]) for values in (best, other))
    if not np.isfinite(two).all():
        count = int(np.isfinite(two).sum())
        return f"{name}, reached the target with only {count} of {len(seeds)} seeds."
    median, measure = _by_median(pick), pick["measure"]
    found = difference(two, one, heavy=median)
    known = [each for each in ends if each and None not in each]
    if measure != "loss" and len(known) == 2:
        (down, up), (low, high) = (
            (float(middle - each[0]), float(each[1] - middle))
            for middle, each in zip((one.mean(), two.mean()), known, strict=True)
        )
        span = found.value - math.hypot(low, up), found.value + math.hypot(high, down)
        found = found.by_model(*span)
    gap, within = wording.difference(found, _unit(measure))
    what = {
        "loss": "lower",
        "seconds_per_step": "less per step",
        "seconds_per_gradient": "less per useful gradient",
    }.get(measure, "sooner")
    times = np.median(two / one) if median else two.mean() / one.mean()
    ratio = "" if measure == "loss" or not one.all() else f": {number(times)} times as fast"
    return f"{gap} {what} than {name}{within}{ratio}."


def _sure(
    found: FoundRun, scores: Mapping[str, Mapping[int, float]], pick: Mapping[str, Any]
) -> Iterator[str]:
    own = scores[pick["label"]]
    ahead = [
        sum(values[seed] > own[seed] for seed in own if seed in values)
        for label, values in scores.items()
        if label != pick["label"]
    ]
    seeds, wins = len(own), min(ahead, default=0)
    if seeds == 1 and not decided(pick):
        yield f"One seed cannot tell chance from merit; run more with `--seeds {ENOUGH}`."
    elif ahead and decided(pick):
        than = "with every seed" if wins == seeds else f"with at least {wins} of {seeds} seeds"
        yield f"Known at {USUAL}: it was ahead of each other algorithm {than}."
    elif ahead:
        yield from unsure(pick)
    assert found.main is not None
    row = found.main.rows[pick["label"]]
    known = (row.get("interval90") or {}).get("time_to_target")
    beside = (pick.get("basis") or "").endswith(MODEL)  # the value, already
    if known and known[0] is not None and not beside:
        yield wording.one_run(row, "time_to_target")
        yield f"That rests on {row.get('interval90_basis') or LOSS_ALONE}."
    if found.comparison and found.comparison["basis"] == "measured":
        yield from _measured(found.comparison)
    elif "measured" not in found.sides:
        yield "No real training has confirmed it; run `paceline validate`."


def unsure(pick: Mapping[str, Any]) -> Iterator[str]:
    """Say which alternatives of an undecided pick may be as good, and what would decide."""
    ties, apart = pick["ties"], pick.get("not_separated", pick["ties"])
    if ties and apart is not ties:
        near = within(pick.get("margin", ORDER_MARGIN))
        yield f"Equivalent, {near} of each other: {pick['label']} and {all_of(ties)}."
    if apart:
        yield f"Not known to be better than {any_of(apart)}, nor to be equivalent to it."
    if enough := pick.get("seeds_to_decide"):
        yield f"About {enough} seeds would decide."


def _measured(comparison: Mapping[str, Any]) -> Iterator[str]:
    error, regret = comparison.get("median_absolute_error"), comparison.get("regret")
    if error is not None:
        yield f"Real training: predicted times per step are off by {percent(error, 1)} (median)."
    if regret and regret["value"] is not None:
        costs = f"costs {percent(regret['value'], 1)} more than {regret['best']}"
        yield f"Picking {regret['picked']} {costs if regret['value'] else 'is right'} there."


def _change(found: FoundRun, groups: Groups, pick: Mapping[str, Any]) -> Iterator[str]:
    best = pick["label"]
    if pick["measure"] == "time_to_target" and found.target is not None and len(groups) > 1:
        yield targets(groups, best, found.target)
    elif pick["measure"] == "loss" and len(groups) > 1:
        yield _deadlines(groups, best)
    elif pick["measure"] == "seconds_per_step":
        yield (
            "The loss, which was not simulated: fewer seconds per step alone do not make training "
            "faster. Choose an `objective`."
        )
    if not found.tune:
        yield (
            "Latency, bandwidth, straggling and other settings were not varied; "
            "`paceline tune` says what they change."
        )


def targets(groups: Groups, best: str, target: float) -> str:
    """Say for which targets another algorithm would be the pick."""
    high = min(run.curve["loss"][0] for runs in groups.values() for run in runs)
    low = max(min(run.curve["loss"]) for run in groups[best])
    if not 0 < low < target < high:
        return ""
    levels = np.union1d(np.geomspace(low, 0.95 * high, LEVELS), [target])
    means = [{k: np.mean([crossing(run, v) for run in runs]) for k, runs in groups.items()}
             for v in levels]  # fmt: skip
    first = [*map(_first, means)]
    start, stop = _stretch(first, int(np.searchsorted(levels, target)), best)
    above, below = number(levels[stop]), number(levels[start])
    said = f"By these seeds' means it is the first at any loss from {above} down to {below}"
    other = []
    if stop + 1 < len(levels):
        other.append(f"for a target above that, {first[stop + 1]}")
    if start > 0:
        other.append(f"for one below, {first[start - 1]}")
    return f"{said}; {', '.join(other)}." if other else f"{said}; no other target changes the pick."


def _deadlines(groups: Groups, best: str) -> str:
    """Say from which deadline on the pick has the lowest loss."""
    end = min(run.duration for runs in groups.values() for run in runs)
    times = np.linspace(0, end, LEVELS)[1:]
    means = [{k: np.mean([statistics.at(run, t) for run in runs]) for k, runs in groups.items()}
             for t in times]  # fmt: skip
    first = [*map(_first, means)]
    start, _ = _stretch(first, len(times) - 1, best)
    if start == 0:
        return f"By these seeds' means it has the lowest loss at any deadline up to {human(end)}."
    before = human(times[start])
    return f"A deadline before {before}: until then {first[start - 1]} has the lower loss."


def _first(values: Mapping[str, Any]) -> str:
    known = {label: value for label, value in values.items() if not math.isnan(value)}
    return min(known, key=lambda label: known[label]) if known else ""


def _stretch(first: Sequence[str], place: int, best: str) -> tuple[int, int]:
    """Return the first and last index of the stretch around `place` in which `best` leads."""
    start = stop = place
    while start > 0 and first[start - 1] == best:
        start -= 1
    while stop + 1 < len(first) and first[stop + 1] == best:
        stop += 1
    return start, stop
