"""The verdict on top of a page: what to deploy, by how much it wins, and how sure that is."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...results import wording
from ...results.columns import estimate_of, ranked_by
from ...results.intervals import MEDIAN, USUAL, difference, stated
from ...results.pick import any_of, decided, headline, scored, undecided
from ...results.statistics import human, number, with_unit
from ...results.usage import few
from . import swept
from .compared import against
from .parts import percent
from .reading import FoundRun

BASELINES = ("ssgd",)  # names of algorithms to compare with; else the scenario's first
SPENT, MARGIN, SURE = "What does it take?", "By how much?", "How sure is that?"
CHANGE = "What would change the answer?"
Row = Mapping[str, Any]
Facts = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of one RUN. `facts`: questions and their answers; `decided`: the pick is.
    `basis`: what the loss is the loss of; `measure`: what the pick is the best in."""

    run: str
    headline: str
    sentence: str
    facts: Facts = field(default_factory=list)
    pick: str | None = None
    decided: bool = False
    value: str = "-"
    within: str = "-"
    basis: str = ""
    measure: str = ""


def verdict(found: FoundRun) -> RunVerdict:
    """Return the verdict of one RUN, whichever command wrote it."""
    if found.main:
        return _of_runs(found, found.main.summary["pick"])
    if found.tune:
        return _of_search(found, found.tune)
    if found.sweep:
        return _of_sweep(found, found.sweep)
    comparison = found.comparison or {}
    return RunVerdict(found.name, against(comparison), comparison["sentence"])


def _of_runs(found: FoundRun, pick: Row) -> RunVerdict:
    assert found.main is not None
    best, measure, target = pick["label"], pick["measure"], found.target
    if best is None or best not in found.main.runs:
        return RunVerdict(found.name, "Nothing to deploy", pick["sentence"])
    facts = [(MARGIN, [*_margins(found, pick)]), (SURE, [*_sure(found, pick)])]
    reached, unit = measure == "reached", "" if measure == "loss" else "s"
    value = number(pick["value"]) if measure == "loss" else human(pick["value"])
    basis = "" if measure.startswith("seconds_per_") else found.main.summary.get("loss_basis") or ""
    by = measure.replace("seconds_per_", "time per ")
    return RunVerdict(
        found.name,
        headline(pick),
        pick["sentence"],
        facts,
        best,
        decided(pick),
        "-" if reached else value,
        "-" if reached else wording.qualified(stated(pick, "value"), unit),
        basis,
        f"time to loss {target:g}" if measure in ("time_to_target", "reached") else by,
    )


def _margins(found: FoundRun, pick: Row) -> Iterator[str]:
    """Say how far the next algorithm and the baseline are behind, paired over seeds."""
    assert found.main is not None
    groups = {label: runs for label, runs in found.main.runs.items() if not runs[0].bound}
    scores = {
        label: {run.seed: value for run, value in zip(groups[label], values, strict=True)}
        for label, values in scored(groups, pick["measure"], found.target).items()
    }
    best = scores.pop(pick["label"])
    middle = np.median if pick.get("estimate") == MEDIAN else np.mean
    order = sorted(scores, key=lambda label: float(middle([*scores[label].values()])))
    names = {found.main.rows[label]["name"]: label for label in reversed(groups)}
    plain = next((names[name] for name in BASELINES if name in names), None)
    for label in dict.fromkeys([*order[:1], plain]):
        if label in scores:
            role = "the next" if label == order[0] else "the baseline"
            rows = [found.main.rows[each] for each in (pick["label"], label)]
            ends = [(row.get("interval90") or {}).get(pick["measure"]) for row in rows]
            yield margin(best, scores[label], pick, f"{label}, {role}", ends)


def margin(
    best: Mapping[int, float],
    other: Mapping[int, float],
    pick: Row,
    name: str,
    ends: Sequence[Sequence[float] | None] = (None, None),
) -> str:
    """Say how much smaller `best` is than `other`, paired over their common seeds.

    `ends`: where a measured run of each is expected; then the interval of the difference is theirs
    together.
    """
    seeds = [seed for seed in best if seed in other]
    one, two = (np.array([values[seed] for seed in seeds]) for values in (best, other))
    if not np.isfinite([one, two]).all():
        count = int(np.isfinite(two).sum())
        return f"{name}, reached the target with only {count} of {len(seeds)} seeds."
    measure = pick["measure"]
    gap = difference(two, one, heavy=pick.get("estimate") == MEDIAN)
    known = [each for each in ends if each and None not in each]
    if measure != "loss" and len(known) == 2:
        (down, up), (low, high) = (
            (float(middle - each[0]), float(each[1] - middle))
            for middle, each in zip((one.mean(), two.mean()), known, strict=True)
        )
        span = gap.value - math.hypot(low, up), gap.value + math.hypot(high, down)
        gap = gap.by_model(*span)
    amount, within = wording.difference(gap, "" if measure == "loss" else "s")
    what = {
        "loss": "lower",
        "seconds_per_step": "less per step",
        "seconds_per_gradient": "less per useful gradient",
    }.get(measure, "sooner")
    return f"{amount} {what} than {name}{within}."


def _sure(found: FoundRun, pick: Row) -> Iterator[str]:
    """Say which alternatives are open, and what real training says."""
    yield from unsure(pick)
    comparison = found.comparison or {}
    error, regret = comparison.get("median_absolute_error"), comparison.get("regret")
    if comparison.get("basis") != "measured":
        return
    if error is not None:
        yield f"Real training: predicted times per step are off by {percent(error, 1)} (median)."
    if regret and regret["value"] is not None:
        costs = f"costs {percent(regret['value'], 1)} more than {regret['best']}"
        yield f"Picking {regret['picked']} {costs if regret['value'] else 'is right'} there."


def unsure(pick: Row) -> Iterator[str]:
    """Name the alternatives of an undecided pick, and how many seeds would decide."""
    if decided(pick):
        yield f"Known at {USUAL}."
        return
    if open_ones := pick.get("not_separated", pick["ties"]):
        yield f"Not known to be better than {any_of(open_ones)}."
    if enough := pick.get("seeds_to_decide"):
        yield f"About {enough} seeds would decide."


def _of_search(found: FoundRun, tune: Row) -> RunVerdict:
    warnings = [f"{text[0].upper()}{text[1:]}." for text in tune["warnings"]]
    changes = [(CHANGE, warnings)] if warnings else []
    pick, rows, unit = tune["pick"], tune["ranking"], tune["unit"]
    if not rows[0]["reached"]:
        return RunVerdict(found.name, "Nothing to deploy yet", tune["sentence"], changes)
    label, shown = pick["label"], pick
    if tune.get("trade") and not decided(pick) and tune.get("extremes"):
        chosen = dict.fromkeys(tune["extremes"][key]["label"] for key in ("soonest", "cheapest"))
        label = any_of([*chosen])
        shown = next((row for row in rows if row["label"] in chosen), pick)
    facts: Facts = [(SPENT, tune["lines"])] if tune.get("lines") else []
    facts += [(MARGIN, [*_behind(tune)]), (SURE, [*unsure(pick)]), *changes]
    value, within = with_unit(shown["value"], unit), wording.qualified(stated(shown, "value"), unit)
    return RunVerdict(
        found.name, headline(pick), tune["sentence"], facts, label, decided(pick), value, within,
        tune.get("loss_basis") or "", tune["measure"],
    )  # fmt: skip


def _behind(tune: Row) -> Iterator[str]:
    """Say how far the next and the best baseline are behind, paired over seeds."""
    _, *others = tune["ranking"]
    word = {"time-to-loss": "sooner", "cost-to-loss": "cheaper"}.get(tune["objective"], "lower")
    plain = next((row for row in others if row["name"] in BASELINES), None)
    for row in others[:1] + [plain] * (plain not in [None, *others[:1]]):
        role = "the next" if row is others[0] else f"the best {row['name']}"
        if row["behind"] is None or row["behind"]["value"] is None:
            reached = f"{row['reached']} of {row['seeds']} seeds"
            yield f"{row['label']}, {role}, reached the target with only {reached}."
            continue
        gap, within = wording.difference(stated(row["behind"], "value"), tune["unit"])
        yield f"{gap} {word} than {row['label']}, {role}{within}."


def _of_sweep(found: FoundRun, sweep: Row) -> RunVerdict:
    """Say which algorithm is first at which points, and where that is undecided."""
    column, points = ranked_by(sweep["rows"]), swept.points(sweep)
    picks = swept.picks(sweep, points)
    if not picks:
        why = "No algorithm that may be picked has a value at any point."
        return RunVerdict(found.name, "Nothing to deploy", why)
    basis = "" if column.key == "seconds_per_step" else sweep.get("loss_basis") or ""
    labels = {row["label"] for row in sweep["rows"]}
    if len(labels) == 1:
        rows = {name: own[0] for name, own in points.items() if own[0][column.key] is not None}
        order = sorted(rows, key=lambda name: estimate_of(rows[name], column.key).value)
        least, most = (
            f"{wording.cell(estimate_of(rows[name], column.key), column.unit)} at {name}"
            for name in (order[0], order[-1])
        )
        span = f"{labels.pop()}: {column.words} from {least} to {most}."
        return RunVerdict(found.name, "One algorithm was swept", span, basis=basis)
    wins: dict[str, list[str]] = {}
    for name, pick in picks.items():
        wins.setdefault(pick["label"] if pick["decided"] else "", []).append(name)
    unsure_at = wins.pop("", [])
    ahead = Counter(pick["label"] for pick in picks.values())
    best = max(ahead, key=lambda label: (len(wins.get(label, ())), ahead[label]))
    sure = len(wins.get(best, ())) == len(points)
    parts = [f"{label} at {len(names)}" for label, names in wins.items()]
    parts += [f"undecided at {len(unsure_at)}"] if unsure_at else []
    title = f"Deploy {best}" if sure else f"It depends: {', '.join(parts)}"
    if not wins:
        either = [
            each for pick in picks.values() for each in (pick["label"], *pick["alternatives"])
        ]
        title = undecided([*dict.fromkeys([best, *either])])
    sentence = (
        f"Smallest {column.words}, known at {USUAL}: {', '.join(parts)} of "
        f"{few(len(points), 'point', 'points')}{wording.with_basis(basis and f'({basis})')}."
    )
    return RunVerdict(found.name, title, sentence, [], best, sure, basis=basis)
