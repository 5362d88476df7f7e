"""The verdict of a search: the order of configurations, what each used, and trade-offs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from ...cluster import prices
from ...cluster.membership import stretched
from ...network.closed_form import ClosedForm
from ...objectives.learning_curve.objective import data_parallel, to_target
from ...programs import Program
from ...results import consumption, intervals, prediction_interval
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.order import MARGIN, Order, Terms, order
from ...results.pick import ALONE
from ...results.prediction_interval import Spread
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve
from .. import learning
from .objective import Modelled, Score, TuningObjective
from .race import Contender, model_of
from .space import Candidate, Space

Row = dict[str, Any]
DATA_PARALLEL = ("ssgd", "ssgd-bucketed")
TIMES = ("time-to-loss", "seconds-per-step")
NOISE = 0.1
"""Of half an interval: about the standard error of its end, as the quantile of 200 draws."""


@dataclass
class Alone(Contender):
    """One worker alone, the `worker` of that rank; `losses`: the one it reaches, and draws of it;
    `phrase`: what they are by.
    """

    worker: int = 0
    losses: np.ndarray = field(default_factory=lambda: np.ones(1))
    phrase: str = ""


def simplicity(candidate: Candidate, programs: Mapping[str, Program]) -> tuple[Any, ...]:
    """Return a key that sorts simple configurations first.

    Fewest departures from plain ssgd: another program, a server or gossip, and each parameter
    besides lr that is not at its default count one. Then the roundest numbers (fewest significant
    digits), then the smallest.
    """
    program, parameters = programs[candidate.name], candidate.parameters
    defaults = {key: about["default"] for key, about in program.describe().items()}
    knobs = [key for key in parameters if key != "lr" and parameters[key] != defaults.get(key)]
    departures = (candidate.name != "ssgd") + bool(program.server or program.gossips) + len(knobs)
    numbers = [value for value in parameters.values() if type(value) in (int, float)]
    return departures, sum(map(_digits, numbers)), sum(numbers), candidate.label


def _digits(value: float) -> int:
    return len(f"{value:.12g}".partition("e")[0].replace(".", "").strip("-0"))


def paired_gap(contender: Contender, best: Contender) -> np.ndarray:
    """Return by how much a contender is worse than the best, seed by seed."""
    pairs = zip(contender.scores, best.scores, strict=False)  # it may have been given up early
    return np.array([one.penalised - other.penalised for one, other in pairs])


def ordered(contenders: Sequence[Contender], objective: TuningObjective) -> Order:
    """Return the order of contenders that have run with all seeds.

    Where none reached the target with every seed, the best comes first that is the closest to it.
    Under a learning curve those that were given up early are in it, too: seeds alone gave them up.
    """
    survivors = [contender for contender in contenders if not contender.stopped]
    best = None
    if not any(contender.all_reached for contender in survivors):
        best = min(survivors, key=Contender.mean).candidate.label
    found = order_of({c.candidate.label: c.scores for c in survivors}, objective, best)
    if all(contender.factors is None for contender in survivors):
        return found
    return order_of({c.candidate.label: c.scores for c in contenders}, objective, found.best)


def order_of(
    scores: Mapping[str, Sequence[Score]], objective: TuningObjective, best: str | None = None
) -> Order:
    """Return the order of scores by label, with the errors of their models."""
    models = {label: model_of(own) for label, own in scores.items()}
    known = {label: model for label, model in models.items() if model and model.factors}
    margin = min((model.margin for model in models.values() if model), default=MARGIN)
    return order(
        {label: [score.value for score in own] for label, own in scores.items()},
        lower_bounds(scores, objective),
        terms=Terms(heavy=objective.heavy, margin=margin, limits=objective.limits),
        best=best,
        factors={label: np.array(model.factors) for label, model in known.items()},
    )


def lower_bounds(
    scores: Mapping[str, Sequence[Score]], objective: TuningObjective
) -> dict[str, list[float]]:
    """Return lower bounds of the values, by label; infinite for what diverged."""
    return {
        label: [math.inf if score.diverged else objective.at_least(score) for score in own]
        for label, own in scores.items()
    }


def ranking(contenders: Sequence[Contender], best: str) -> list[Contender]:
    """Sort by the mean distance to the best, by its label, on the seeds run."""
    first = next(each for each in contenders if each.candidate.label == best)
    return sorted(
        contenders, key=lambda each: (each is not first, float(paired_gap(each, first).mean()))
    )


def row(
    contender: Contender,
    best: Contender,
    objective: TuningObjective,
    space: Space,
    reference: Contender | None = None,
) -> Row:
    """Return a configuration's row of the JSON; `at_least` bounds a value that was cut.

    `to_reference`: by what share its loss is above that of the `reference`, if there is one.
    """
    scores, reached = contender.scores, contender.all_reached
    values, used = [score.value for score in scores], amounts(contender, objective, space)
    found = intervals.estimate(values, heavy=objective.heavy).within(*objective.limits)
    if not reached:  # then there is no mean, and a median would flatter
        found = intervals.Estimate(math.inf, intervals.MEAN, None, None, intervals.NEVER)
    gap = intervals.signed(paired_gap(contender, best), heavy=objective.heavy)
    factors, first = contender.factors, best.factors
    if factors is not None and first is not None and math.isfinite(found.value):
        with np.errstate(invalid="ignore"):  # of draws in which neither gets there
            moved = gap.value + contender.mean() * (factors - 1) - best.mean() * (first - 1)
            gap = intervals.widened(gap, moved)
        found = intervals.widened(found, found.value * factors)
    if reached and (ends := _of_value(contender, objective, space, used["used"] or {})):
        found = replace(found, interval=(ends[0], ends[1]), level=intervals.LEVEL)
    apart, limited = reached and contender is not best, objective.target or objective.cap
    return {
        "label": contender.candidate.label,
        "name": contender.candidate.name,
        "parameters": contender.candidate.parameters,
        "value": found.value,
        **found.beside_value(),
        "behind": {"value": gap.value, **gap.beside_value()} if apart else None,
        "behind_ci95": gap.ci95 if apart else None,
        "seeds": len(values),
        "reached": contender.reached,
        "diverged": sum(score.diverged for score in scores),
        "at_least": float(np.mean([objective.at_least(score) for score in scores])),
        "left": float(np.mean([score.gap for score in scores])) if limited else None,
        "stopped": contender.stopped or None,
        "to_reference": reference and _share_above(contender, reference),
        **used,
        "basis": contender.model and contender.model.basis,
    }


def amounts(contender: Contender, objective: TuningObjective, space: Space) -> Row:
    """Return what a configuration used, as `consumption.summarise_amounts`."""
    seconds = [DAY * (score.used or {}).get("days", math.nan) for score in contender.scores]
    ends = objective.target or objective.steps or objective.cap
    timed = ends and not isinstance(contender, Alone)  # of whose time the mean is known alone
    model = contender.model
    bounds = consumption.Bounds(
        objective.heavy,
        np.array(model.steps) if model and model.steps else None,
        {} if objective.target else objective.most,
        _of_one_run(contender, objective, space, seconds) if timed else None,
    )
    used = [score.used or {} for score in contender.scores]
    return consumption.summarise_amounts(used, space.scenario.cost, bounds)


def _of_value(
    contender: Contender, objective: TuningObjective, space: Space, used: Row
) -> Sequence[float] | None:
    """Return the interval that `simulate` states of a time, price or loss of one run."""
    values = [score.value for score in contender.scores]
    if objective.name in TIMES:
        return _of_one_run(contender, objective, space, values)
    if objective.name == "cost-to-loss":
        return used["cost"]["interval"] if "cost" in used else None
    if contender.factors is None or not objective.of_loss:
        return None
    return learning.of_steps(values, contender.factors, None)


def _of_one_run(
    contender: Contender, objective: TuningObjective, space: Space, times: Sequence[float]
) -> Sequence[float] | None:
    """Return the interval of one measured run's time, as `simulate` states it; None: no interval.

    `times`: of the runs, one per seed.
    """
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


def reference(ranked: Sequence[Contender]) -> Contender | None:
    """Return what losses are compared with: data-parallel training, or else the best."""
    there = complete(ranked)
    plain = [choice for choice in there if choice.candidate.name in DATA_PARALLEL]
    return next(iter([*plain, *there]), None)


def complete(ranked: Sequence[Contender]) -> list[Contender]:
    """Return those that reached the target, or have a loss, with every seed."""
    return [contender for contender in ranked if contender.reached and contender.all_reached]


def _share_above(choice: Contender, first: Contender) -> Row | None:
    """Return by what share a mean is above the first one's, with its interval."""
    losses = [score.value for one in (choice, first) for score in one.scores]
    if choice is first or not choice.all_reached or min(losses) <= 0:
        return None
    found = _log_above(choice, first)
    ends = found.interval and [*map(math.expm1, found.interval)]
    of = {"label": first.candidate.label, "value": math.expm1(found.value)}
    return of | {"interval": ends, "level": found.level, "basis": found.basis}


def _log_above(choice: Contender, first: Contender) -> intervals.Estimate:
    """Estimate the logarithm of a contender's value over the first one's, paired over seeds."""
    pairs = zip(choice.scores, first.scores, strict=False)
    above = intervals.signed(np.log([one.value / two.value for one, two in pairs]), scale=1.0)
    if choice.factors is None or first.factors is None:
        return above
    with np.errstate(invalid="ignore"):
        return intervals.widened(above, above.value + np.log(choice.factors / first.factors))


def tradeoffs(ranked: Sequence[Contender], objective: TuningObjective, space: Space) -> list[Row]:
    """Return what less time costs in loss after as many tokens, the best first.

    `loss_above` that of the best, a share, with its interval and `basis`; what each takes,
    `used`, with its intervals; what is saved: `days_saved`, `cost_saved`; `sooner`, `cheaper`: days
    and cost with those that make up for the loss, by what tokens are worth. Only of what takes
    `MARGIN` fewer days, or costs so much less, than all whose loss is surely as low, by their
    intervals, and what no other beats in both at no higher a loss, apart from what draws leave
    open.
    """
    there = complete(ranked)
    rows = [
        tradeoff(choice, there[0]) | {"used": amounts(choice, objective, space)["used"]}
        for choice in there
    ]
    rows = [row for row in rows if not any(is_dominated(row, other) for other in rows)]
    rows.sort(key=lambda row: (_highest(row), row["days"]))
    least, found = {"days": math.inf, "cost": math.inf}, list[Row]()
    for row in rows:
        if any(row[key] * (1 + MARGIN) <= low for key, low in least.items()):
            least = {key: min(low, row[key]) for key, low in least.items()}
            found.append(row)
    return found


def _highest(row: Row) -> float:
    return float(([row["loss_above"]] + (row["interval"] or []))[-1])


def is_dominated(row: Row, other: Row) -> bool:
    """Whether another takes less at no higher a loss; upper ends differ by chance by `NOISE`."""
    room = NOISE * (_highest(row) - row["loss_above"])
    as_low = other["loss_above"] <= row["loss_above"] * (1 + intervals.ROUNDING)
    dearer = other["cost_saved"] < row["cost_saved"]  # not where nothing has a price
    return (
        other["days"] < row["days"]
        and as_low
        and not dearer
        and _highest(other) <= _highest(row) + room
    )


def tradeoff(choice: Contender, first: Contender) -> Row:
    """Return what the loss of one is above the other's, paired, and what making up for it takes."""
    above, days = _log_above(choice, first), choice.used("days")
    more = _more(above, choice)[0]
    return {
        "label": choice.candidate.label,
        "basis": choice.model and choice.model.basis,
        "loss_above": math.expm1(above.value),
        "interval": above.interval and [*map(math.expm1, above.interval)],
        "ci95": above.ci95 and [*map(math.expm1, above.ci95)],
        "days": days,
        "cost": choice.used("cost"),
        "days_saved": first.used("days") - days,
        "cost_saved": first.used("cost") - choice.used("cost"),
        "sooner": days * more,
        "cheaper": choice.used("cost") * more,
    }


def _more(above: intervals.Estimate, choice: Contender) -> list[float]:
    """Return how many times the tokens make up for a loss above another's: the mean, and ends."""
    worth = math.log1p(choice.model.margin if choice.model else MARGIN)
    logs = above.value, *(above.interval or [above.value] * 2)
    return [(1 + MARGIN) ** (log / worth) for log in logs]


def soonest(front: Sequence[Row]) -> Row | None:
    """Return which of the `tradeoffs` reaches as low a loss first, with the tokens for that."""
    return min(front, key=itemgetter("sooner"), default=None)


def extremes(
    ranked: Sequence[Contender], objective: TuningObjective, best: str, front: Sequence[Row],
    space: Space,
) -> dict[str, Row]:  # fmt: skip
    """Return the `best`, the soonest and the cheapest way to the target, or to as low a loss.

    Each with its `label`, and `days` and `cost` with the tokens that make up for a higher loss,
    beside their intervals; of those whose runs all got there. The soonest is that of the `front`,
    the `tradeoffs`, if there are any, and the cheapest of equivalents one of them. Also one worker
    `alone`, where it is a choice. Empty where time has no price; no more than that one where runs
    have no common end.
    """
    there = complete(ranked)
    if not there or math.isnan(there[0].used("cost")):
        return {}
    one = next((choice for choice in there if isinstance(choice, Alone)), None)
    if not (objective.target or objective.steps):
        return {"alone": _of_alone(one, ())} if one else {}
    ways = _ways(there, objective)
    soon, cheapest = _soonest_and_cheapest(ways, front)
    own = {"best": ways[best]} if best in ways else {}  # not if some runs miss
    own |= {"soonest": soon, "cheapest": cheapest}
    labels = {row["label"] for row in own.values()}
    named = [choice for choice in there if choice.candidate.label in labels]
    for choice in named:
        if used := amounts(choice, objective, space)["used"]:
            more = _more(_log_above(choice, there[0]), choice) if objective.steps else None
            ends = {f"{key}_interval": _interval(used[key], more) for key in ("days", "cost")}
            ways[choice.candidate.label] |= ends
    others = [choice for choice in named if objective.steps and choice is not one]
    return own | ({"alone": _of_alone(one, others)} if one else {})


def _ways(there: Sequence[Contender], objective: TuningObjective) -> dict[str, Row]:
    """Return by label the days and cost to the target, or to as low a loss as the first."""
    ways = {}
    for choice in there:
        row = tradeoff(choice, there[0]) if objective.steps else {}
        days, cost = row.get("sooner", choice.used("days")), row.get("cheaper", choice.used("cost"))
        ways[choice.candidate.label] = {"label": choice.candidate.label, "days": days, "cost": cost}
    return ways


def _soonest_and_cheapest(ways: Mapping[str, Row], front: Sequence[Row]) -> tuple[Row, Row]:
    cheapest, *rest = sorted(ways.values(), key=itemgetter("cost"))
    near = [way for way in rest if way["cost"] <= cheapest["cost"] * (1 + MARGIN)]
    fronted = {row["label"] for row in front}
    cheapest = next((way for way in (cheapest, *near) if way["label"] in fronted), cheapest)
    soon = soonest(front) or min(ways.values(), key=itemgetter("days"))
    return ways[soon["label"]], cheapest


def _interval(spent: Row, more: Sequence[float] | None) -> list[float] | None:
    """Return the interval of an amount times `more`: a factor and its ends, independent of it."""
    known = intervals.stated(spent)
    if known.interval is None or known.value <= 0 or known.interval[0] <= 0:
        return None
    value, *ends = more or (1.0, 1.0, 1.0)
    off = [
        math.hypot(math.log(end / known.value), math.log(other / value))
        for end, other in zip(known.interval, ends, strict=True)
    ]
    return [
        known.value * value * math.exp(sign * by) for sign, by in zip((-1, 1), off, strict=True)
    ]


def alone(scenario: Scenario, objective: TuningObjective, seeds: int) -> Alone | None:
    """Return the fastest worker alone, by its mean step and mean times down, as a choice beside the
    configurations: to the target, at the deadline, or for as many tokens as all workers see.

    None where the loss is no curve of tokens, or never at the target, where workers are clients,
    under a budget, and where all are devices of one box, which nobody buys to use one of them.
    """
    spec, workers = scenario.objective, scenario.cluster.workers
    if not isinstance(spec, LearningCurve) or scenario.cluster.sampling or workers == 1:
        return None
    if len(ClosedForm(scenario).hosts(range(workers))) == 1:
        return None
    target, means = objective.target, [*scenario.team.mean_compute]
    for worker, failures in enumerate(scenario.cluster.of_workers("failures")):
        if failures is not None:  # it stands still until it is back
            down = failures.repair + scenario.recovery.restarting
            means[worker] *= 1 + down / failures.between
    rank, steps = int(np.argmin(means)), 0.0
    if target:
        steps = to_target(spec, 1, target)
    elif objective.name == "loss-at-deadline" and objective.deadline and means[rank]:
        steps = float(objective.deadline / means[rank])
    elif objective.steps:
        steps = float(objective.steps * workers)
    if not 0 < steps < math.inf:
        return None
    seconds, known = float(steps * means[rank]), data_parallel(spec, 1, steps)
    used = {"days": seconds / DAY}
    if scenario.cost.priced:
        used["cost"] = float(prices.worker_prices(scenario)[rank]) * seconds
    loss = float(known.parallel(steps))
    losses = np.array([loss, *(loss * known.factors(steps)[:, 0])])
    value, drawn, margin = loss, losses[1:] / loss, known.worth(steps, MARGIN)
    if target:
        value, drawn = used["cost"] if objective.name == "cost-to-loss" else seconds, np.ones(0)
    model = Modelled(known.basis, (), tuple(drawn.tolist()), (), margin, ())
    scores = [Score(value, 0.0, math.inf, used=used, model=model)] * seeds
    candidate = Candidate(ALONE, {"name": "ssgd"}, {})
    return Alone(candidate, scores, worker=rank, losses=losses, phrase=known.phrase)


def _of_alone(one: Alone, named: Iterable[Contender]) -> Row:
    """Return what one worker alone takes, and by what the losses of `named` are `above` its own."""
    loss, *drawn = one.losses.tolist()
    return {
        "label": f"worker {one.worker}",
        "days": one.used("days"),
        "cost": one.used("cost"),
        "loss": loss,
        "loss_interval": learning.of_steps([1.0], np.array(drawn), None),
        "basis": one.model and one.model.basis,
        "above": [tradeoff(choice, one) for choice in named],
    }
