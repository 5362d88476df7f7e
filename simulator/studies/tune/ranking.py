"""Rank the configurations of a search: their order, and the rows of its table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...cluster.membership import stretched
from ...programs import Program
from ...results import consumption, intervals, prediction_interval, verdict
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.order import MARGIN, Order, Terms, order
from ...results.prediction_interval import Spread
from ...results.verdict import ALONE
from .. import learning
from .objective import Score, TuningObjective
from .race import Contender, model_of
from .space import Candidate, Space

Row = dict[str, Any]
TIMES = ("time-to-loss", "seconds-per-step")


def simplicity(candidate: Candidate, programs: Mapping[str, Program]) -> tuple[Any, ...]:
    """Return a key that sorts simple configurations first.

    First come the fewest departures from plain ssgd. Another program, a server or gossip, and every
    parameter except lr with another value than its default count one each. Then come the roundest
    numbers (fewest significant digits), then the smallest.
    """
    program, parameters = programs[candidate.name], candidate.parameters
    defaults = {key: about["default"] for key, about in program.describe().items()}
    knobs = [key for key in parameters if key != "lr" and parameters[key] != defaults.get(key)]
    departures = (candidate.name != "ssgd") + bool(program.server or program.gossips) + len(knobs)
    numbers = [value for value in parameters.values() if type(value) in (int, float)]
    return departures, sum(map(_digits, numbers)), sum(numbers), candidate.label


def _digits(value: float) -> int:
    return len(f"{value:.12g}".partition("e")[0].replace(".", "").strip("-0"))


class Judged(NamedTuple):
    """The scores of a search as its verdict judges them, by label.

    `losses`: values and errors of the scores before; `base`: the reference of losses, None if
    values are not losses at one time; `out`: labels whose loss exceeds the user's bound.
    """

    scores: Mapping[str, Sequence[Score]]
    losses: verdict.Compared
    base: str | None = None
    out: Sequence[str] = ()


def judged(contenders: Sequence[Contender], objective: TuningObjective) -> Judged:
    """Return scores by label as the verdict judges them.

    After equal tokens a score becomes the time, or the money and time, to the loss of the baseline.
    If the user bounds the loss, losses within the bound (by their best estimate) need no extra
    time. Otherwise scores are unchanged.
    """
    scores = {contender.label: contender.scores for contender in contenders}
    losses, out = compared(scores), list[str]()
    base = reference(contenders) if objective.of_loss and objective.target is None else None
    if not objective.steps or base is None:
        return Judged(scores, losses, base)
    models = {one.label: one.model for one in contenders if one.model}
    drawn = {label: np.array(model.times) for label, model in models.items() if model.times}
    spent = {label: [objective.spent(score) for score in runs] for label, runs in scores.items()}
    times = verdict.Compared(spent, drawn)
    if objective.max_loss is None:
        worths = [model.margin for model in models.values()]
        times = verdict.at_equal_loss(losses, times, base, worths)
    else:
        out = losses.beyond(base, objective.max_loss)

    def moved(score: Score, value: float, label: str) -> Score:
        factors = tuple(times.factors[label].tolist()) if label in times.factors else ()
        model = score.model and score.model._replace(factors=factors, margin=MARGIN)
        value = math.inf if label in out or not score.reached else value
        return score._replace(value=value, model=model)

    rows = {
        label: [moved(*pair, label) for pair in zip(runs, times.values[label], strict=True)]
        for label, runs in scores.items()
    }
    return Judged(rows, losses, base, out)


def reference(contenders: Sequence[Contender]) -> str:
    """Return the reference of losses: plain data-parallel training, else the lowest loss.

    Of means without a codec, those of the part of the cluster that takes the fewest days.
    """
    several = [contender for contender in contenders if contender.label != ALONE] or contenders

    def place(one: Contender) -> tuple[bool, float, int]:
        days = one.used("days")
        coded = one.candidate.parameters.get("codec", "raw") != "raw"
        return coded, days if days < math.inf else math.inf, one.candidate.workers

    ordered = sorted(several, key=place)
    losses = {contender.label: [score.value for score in contender.scores] for contender in ordered}
    names = {contender.label: contender.candidate.name for contender in ordered}
    return verdict.baseline(losses, names)


def compared(scores: Mapping[str, Sequence[Score]]) -> verdict.Compared:
    """Return the values of scores by label, and draws of their errors."""
    values = {label: [score.value for score in runs] for label, runs in scores.items()}
    models = {label: model_of(runs) for label, runs in scores.items()}
    drawn = {k: np.array(model.factors) for k, model in models.items() if model and model.factors}
    return verdict.Compared(values, drawn)


def ordered(contenders: Sequence[Contender], objective: TuningObjective, scores: Judged) -> Order:
    """Return the order of contenders that have run with all seeds.

    If none reached the target with every seed, the one closest to it comes first. Under a learning
    curve the order includes configurations that were given up early, because only seeds decided
    that.
    """
    if objective.steps:  # the race judged by loss alone, but time counts as well
        return order_of(scores.scores, objective)
    survivors = [contender for contender in contenders if not contender.stopped]
    best = None
    if not any(contender.all_reached for contender in survivors):
        best = min(survivors, key=Contender.mean).label
    first = order_of({c.label: c.scores for c in survivors}, objective, best)
    if all(contender.factors is None for contender in survivors):
        return first
    return order_of(scores.scores, objective, first.best)


def order_of(
    scores: Mapping[str, Sequence[Score]], objective: TuningObjective, best: str | None = None
) -> Order:
    """Return the order of scores by label, with the errors of their models."""
    models = [model_of(runs) for runs in scores.values()]
    margin = min((model.margin for model in models if model), default=MARGIN)
    values, factors = compared(scores)
    terms = Terms(heavy=objective.heavy, margin=margin)
    bounds = {  # infinite for diverged runs
        label: [math.inf if score.diverged else objective.at_least(score) for score in runs]
        for label, runs in scores.items()
    }
    return order(values, bounds, terms=terms, best=best, factors=factors)


def ranking(contenders: Sequence[Contender], best: str, judged: Judged) -> list[Contender]:
    """Sort contenders by their mean distance to `best` on the seeds run."""

    def distance(contender: Contender) -> tuple[bool, float]:
        label, scores = contender.label, judged.scores
        pairs = zip(scores[label], scores[best], strict=False)  # it may have been given up early
        gaps = [one.penalised - other.penalised for one, other in pairs]
        return label != best, float(np.mean(gaps))

    return sorted(contenders, key=distance)


def row(contender: Contender, objective: TuningObjective, space: Space) -> Row:
    """Return a configuration's row of the JSON; `at_least` bounds a value that was cut."""
    scores, reached = contender.scores, contender.all_reached
    values, used = [score.value for score in scores], amounts(contender, objective, space)
    estimate = intervals.estimate(values, heavy=objective.heavy)
    if not reached:  # then there is no mean, and a median would look too good
        estimate = intervals.Estimate(math.inf, intervals.MEAN, None, None, intervals.NEVER)
    if contender.factors is not None and math.isfinite(estimate.value):
        estimate = intervals.widened(estimate, estimate.value * contender.factors)
    if reached and (ends := _of_value(contender, objective, space, used["used"] or {})):
        estimate = replace(estimate, interval=(ends[0], ends[1]), level=intervals.LEVEL)
    return {
        "label": contender.label,
        "name": contender.candidate.name,
        "parameters": contender.candidate.parameters,
        "part": contender.candidate.part and contender.candidate.part.name,
        "workers": contender.candidate.workers,
        "set": contender.candidate.overrides(space.scenario.table),
        "value": estimate.value,
        **estimate.beside_value(),
        "seeds": len(values),
        "reached": contender.reached,
        "diverged": sum(score.diverged for score in scores),
        "at_least": float(np.mean([objective.at_least(score) for score in scores])),
        "stopped": contender.stopped or None,
        **used,
        "basis": contender.model and contender.model.basis,
    }


def amounts(contender: Contender, objective: TuningObjective, space: Space) -> Row:
    """Return the amounts a configuration used; see `consumption.summarise_amounts`."""
    seconds = [DAY * (score.used or {}).get("days", math.nan) for score in contender.scores]
    ends = objective.target or objective.steps or objective.cap
    model = contender.model
    factors = np.array(model.steps) if model and model.steps else None
    within = _of_one_run(contender, objective, space, seconds) if ends else None
    used = [score.used or {} for score in contender.scores]
    cost, heavy = space.scenario.cost, objective.heavy
    return consumption.summarise_amounts(used, cost, heavy, factors, within)


def _of_value(
    contender: Contender, objective: TuningObjective, space: Space, used: Row
) -> Sequence[float] | None:
    """Return the interval of one run's time, price or loss, as `simulate` states it."""
    values = [score.value for score in contender.scores]
    if objective.name in TIMES:
        return _of_one_run(contender, objective, space, values)
    if objective.name == "cost-to-loss":
        cost, days = (used[key]["interval"] for key in ("cost", "days"))
        if not objective.day or not cost or not days:
            return list(cost) if cost else None
        return [money + objective.day * day for money, day in zip(cost, days, strict=True)]
    if contender.factors is None or not objective.of_loss:
        return None
    return learning.of_steps(values, contender.factors, None)


def _of_one_run(
    contender: Contender, objective: TuningObjective, space: Space, times: Sequence[float]
) -> Sequence[float] | None:
    """Return the interval of one measured run's time, as `simulate` states it, or None."""
    model, within = contender.model, None
    if model and model.spreads:
        spreads = Spread(*model.spreads[:2]), Spread(*model.spreads[2:])
        held_up = [score.held_up for score in contender.scores]
        within = prediction_interval.of_one_run(times, spreads, held_up)
    steps = np.array(model.steps) if model and model.steps else None
    if steps is None:
        return within
    mean = sum(times) / len(times)
    return learning.of_steps(times, stretched(space.scenario.cluster, mean, steps), within)
