"""The verdict of a search: the best, its ties, and warnings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from ...cluster import prices
from ...cluster.membership import stretched
from ...errors import InputError
from ...network.closed_form import ClosedForm
from ...objectives.learning_curve.objective import data_parallel, to_target
from ...programs import Program
from ...results import consumption, intervals, prediction_interval
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.order import MARGIN, Order, order, within
from ...results.pick import ALONE, ONE_SEED
from ...results.prediction_interval import Spread
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve, Range
from .. import learning
from .objective import Modelled, Score, TuningObjective
from .race import Contender
from .space import Candidate, Space, Values

Row = dict[str, Any]
DATA_PARALLEL = ("ssgd", "ssgd-bucketed")
TIMES = ("time-to-loss", "seconds-per-step")
NOISE = 0.1
"""Of half an interval: about the standard error of its end, as the quantile of 200 draws."""
LATE = ("delay", "overlap", "staleness")  # parameters that a cap on delay is about


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


def behind(contender: Contender, best: Contender) -> np.ndarray:
    """Return by how much a contender is worse than the best, seed by seed."""
    pairs = zip(contender.scores, best.scores, strict=False)  # it may have been given up early
    return np.array([one.penalised - other.penalised for one, other in pairs])


def ordered(contenders: Sequence[Contender], objective: TuningObjective) -> Order:
    """Return the order of contenders that have run with all seeds.

    Where none reached the target with every seed, the best comes first that is the closest to it.
    Under a learning curve those that were given up early are in it, too: seeds alone gave them up.
    """
    survivors = [each for each in contenders if not each.stopped]
    best = None
    if not any(each.all_reached for each in survivors):
        best = min(survivors, key=Contender.mean).candidate.label
    found = _order(survivors, objective, best)
    modelled = any(each.factors is not None for each in survivors)
    return _order(contenders, objective, found.best) if modelled else found


def _order(contenders: Sequence[Contender], objective: TuningObjective, best: str | None) -> Order:
    scores = {each.candidate.label: [s.value for s in each.scores] for each in contenders}
    bounds = {
        each.candidate.label: [
            math.inf if score.diverged else objective.at_least(score) for score in each.scores
        ]
        for each in contenders
    }
    known = {each.candidate.label: each.factors for each in contenders if each.factors is not None}
    margin = min((each.model.margin for each in contenders if each.model), default=MARGIN)
    heavy, limits = objective.heavy, objective.limits
    return order(
        scores, bounds, heavy=heavy, best=best, factors=known, margin=margin, limits=limits
    )


def ranking(contenders: Sequence[Contender], best: str) -> list[Contender]:
    """Sort by the mean distance to the best, by its label, on the seeds run."""
    first = next(each for each in contenders if each.candidate.label == best)
    return sorted(
        contenders, key=lambda each: (each is not first, float(behind(each, first).mean()))
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
    values = [score.value for score in contender.scores]
    found = intervals.estimate(values, heavy=objective.heavy).within(*objective.limits)
    if not contender.all_reached:  # then there is no mean, and a median would flatter
        found = intervals.Estimate(math.inf, intervals.MEAN, None, None, intervals.NEVER)
    paired = intervals.signed(behind(contender, best), heavy=objective.heavy)
    factors, first = contender.factors, best.factors
    if factors is not None and first is not None and math.isfinite(found.value):
        with np.errstate(invalid="ignore"):  # of draws in which neither gets there
            paired = intervals.widened(paired, paired.value + _moved(contender) - _moved(best))
        found = intervals.widened(found, found.value * factors)
    if contender.all_reached and (ends := _of_value(contender, objective, space, values)):
        found = replace(found, interval=(ends[0], ends[1]), level=intervals.LEVEL)
    apart = contender.all_reached and contender is not best
    return {
        "label": contender.candidate.label,
        "name": contender.candidate.name,
        "parameters": contender.candidate.parameters,
        "value": found.value,
        **found.beside_value(),
        "behind": {"value": paired.value, **paired.beside_value()} if apart else None,
        "behind_ci95": paired.ci95 if apart else None,
        "seeds": len(values),
        "reached": contender.reached,
        "diverged": sum(score.diverged for score in contender.scores),
        "at_least": float(np.mean([objective.at_least(score) for score in contender.scores])),
        "left": float(np.mean([score.gap for score in contender.scores]))
        if objective.target or objective.cap
        else None,
        "stopped": contender.stopped or None,
        "to_reference": reference and _share_above(contender, reference),
        **amounts(contender, objective, space),
        "basis": contender.model and contender.model.basis,
    }  # fmt: skip


def amounts(contender: Contender, objective: TuningObjective, space: Space) -> Row:
    """Return what a configuration used, as `consumption.summarise_amounts`."""
    seconds = [DAY * (score.used or {}).get("days", math.nan) for score in contender.scores]
    ends = objective.target or objective.steps or objective.cap
    timed = ends and not isinstance(contender, Alone)  # of whose time the mean is known alone
    model = contender.model
    return consumption.summarise_amounts(
        [score.used or {} for score in contender.scores], space.scenario.cost,
        within=_of_one_run(contender, objective, space, seconds) if timed else None,
        heavy=objective.heavy, factors=np.array(model.steps) if model and model.steps else None,
        limits={} if objective.target else objective.most,
    )  # fmt: skip


def _of_value(
    contender: Contender, objective: TuningObjective, space: Space, values: Sequence[float]
) -> Sequence[float] | None:
    """Return the interval that `simulate` states of a time, price or loss of one run."""
    if objective.name in TIMES:
        return _of_one_run(contender, objective, space, values)
    if objective.name == "cost-to-loss":
        spent: Row = amounts(contender, objective, space)["used"] or {}
        return spent["cost"]["interval"] if "cost" in spent else None
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
    there = [each for each in ranked if each.reached and each.all_reached]
    plain = [each for each in there if each.candidate.name in DATA_PARALLEL]
    return next(iter([*plain, *there]), None)


def _share_above(each: Contender, first: Contender) -> Row | None:
    """Return by what share a mean is above the first one's, with its interval."""
    losses = [score.value for one in (each, first) for score in one.scores]
    if each is first or not each.all_reached or min(losses) <= 0:
        return None
    found = _log_above(each, first)
    ends = found.interval and [*map(math.expm1, found.interval)]
    of = {"label": first.candidate.label, "value": math.expm1(found.value)}
    return of | {"interval": ends, "level": found.level, "basis": found.basis}


def _log_above(each: Contender, first: Contender) -> intervals.Estimate:
    """Estimate the logarithm of a contender's value over the first one's, paired over seeds."""
    pairs = zip(each.scores, first.scores, strict=False)
    above = intervals.signed(np.log([one.value / two.value for one, two in pairs]), scale=1.0)
    if each.factors is None or first.factors is None:
        return above
    with np.errstate(invalid="ignore"):
        return intervals.widened(above, above.value + np.log(each.factors / first.factors))


def _moved(contender: Contender) -> np.ndarray:
    """Draw by how much the mean of a contender may be off."""
    assert contender.factors is not None
    return contender.mean() * (contender.factors - 1)


def tradeoffs(ranked: Sequence[Contender], objective: TuningObjective, space: Space) -> list[Row]:
    """Return what less time costs in loss after as many tokens, the best first.

    `loss_above` that of the best, a share, with its interval and `basis`; what each takes,
    `used`, with its intervals; what is saved: `days_saved`, `cost_saved`; `sooner`, `cheaper`: days
    and cost with those that make up for the loss, by what tokens are worth. Only of what takes
    `MARGIN` fewer days, or costs so much less, than all whose loss is surely as low, by their
    intervals, and what no other beats in both at no higher a loss, apart from what draws leave
    open.
    """
    there = [each for each in ranked if each.reached and each.all_reached]
    rows = [
        tradeoff(each, there[0]) | {"used": amounts(each, objective, space)["used"]}
        for each in there
    ]
    rows = [row for row in rows if not any(beaten(row, other) for other in rows)]
    rows.sort(key=lambda row: (_highest(row), row["days"]))
    least, found = {"days": math.inf, "cost": math.inf}, list[Row]()
    for row in rows:
        if any(row[key] * (1 + MARGIN) <= low for key, low in least.items()):
            least = {key: min(low, row[key]) for key, low in least.items()}
            found.append(row)
    return found


def _highest(row: Row) -> float:
    return float(([row["loss_above"]] + (row["interval"] or []))[-1])


def beaten(row: Row, other: Row) -> bool:
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


def tradeoff(each: Contender, first: Contender) -> Row:
    """Return what the loss of one is above the other's, paired, and what making up for it takes."""
    above, days = _log_above(each, first), each.used("days")
    more = _more(above, each)[0]
    return {
        "label": each.candidate.label,
        "basis": each.model and each.model.basis,
        "loss_above": math.expm1(above.value),
        "interval": above.interval and [*map(math.expm1, above.interval)],
        "ci95": above.ci95 and [*map(math.expm1, above.ci95)],
        "days": days,
        "cost": each.used("cost"),
        "days_saved": first.used("days") - days,
        "cost_saved": first.used("cost") - each.used("cost"),
        "sooner": days * more,
        "cheaper": each.used("cost") * more,
    }


def _more(above: intervals.Estimate, each: Contender) -> list[float]:
    """Return how many times the tokens make up for a loss above another's: the mean, and ends."""
    worth = math.log1p(each.model.margin if each.model else MARGIN)
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
    there = [each for each in ranked if each.reached and each.all_reached]
    if not there or math.isnan(there[0].used("cost")):
        return {}
    one = next((each for each in there if isinstance(each, Alone)), None)
    if not (objective.target or objective.steps):
        return {"alone": _of_alone(one, ())} if one else {}
    found, front_labels, quick = {}, {row["label"] for row in front}, soonest(front)
    for each in there:
        row = tradeoff(each, there[0]) if objective.steps else {}
        days, cost = row.get("sooner", each.used("days")), row.get("cheaper", each.used("cost"))
        found[each.candidate.label] = {"label": each.candidate.label, "days": days, "cost": cost}

    def least(key: str) -> Row:
        rows = sorted(found.values(), key=itemgetter(key))
        if key == "days" and quick:
            return found[quick["label"]]
        near = [row for row in rows if row[key] <= rows[0][key] * (1 + MARGIN)]
        return next((row for row in near if row["label"] in front_labels), rows[0])

    own = {"best": found[best]} if best in found else {}  # not if some runs miss
    own |= {"soonest": least("days"), "cheapest": least("cost")}
    labels = {row["label"] for row in own.values()}
    named = [each for each in there if each.candidate.label in labels]
    for each in named:
        if used := amounts(each, objective, space)["used"]:
            more = _more(_log_above(each, there[0]), each) if objective.steps else None
            ends = {f"{key}_interval": _interval(used[key], more) for key in ("days", "cost")}
            found[each.candidate.label] |= ends
    others = [each for each in named if objective.steps and each is not one]
    return own | ({"alone": _of_alone(one, others)} if one else {})


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
    target, means = objective.target, scenario.team.mean_compute
    for each, failures in enumerate(scenario.cluster.of_workers("failures")):
        if failures is not None:  # it stands still until it is back
            down = failures.repair + scenario.recovery.restarting
            means[each] *= 1 + down / failures.between
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
        "above": [tradeoff(each, one) for each in named],
    }


def warnings(  # noqa: PLR0913, PLR0917 - the parts of a verdict
    space: Space,
    objective: TuningObjective,
    ranked: Sequence[Contender],
    named: Iterable[Contender],
    order_: Order,
    regret: Sequence[Row],
) -> list[str]:
    """Return warnings to heed before acting on the answer, which speaks of those `named`."""
    best, seeds = ranked[0], len(ranked[0].scores)
    found: list[str] = []
    if best.diverged:
        return [*noted(space, best)]
    if not best.reached and objective.target is not None:
        found.append(
            f"no configuration reached loss {objective.target:g}: they are ranked by how close "
            "they came; run longer, raise run.target_loss, or try other values"
        )
    elif not best.reached and objective.cap:
        found.append("no configuration keeps run.cap: raise it, or try smaller periods and delays")
    elif not best.all_reached:
        found.append(f"even the best got there with {best.reached} of {seeds} seeds only")
    if seeds == 1:
        found.append(ONE_SEED)
    for each in named:
        found += filter(None, map(_edge_of(space, each, objective), each.candidate.varied))
    found += _without_effect(space, ranked)
    found += _of_no_account(space, ranked, order_)
    return [*found, *_same_everywhere(regret)]


def noted(space: Space, best: Contender) -> dict[str, None]:
    """Return the notes of the runs of the best."""
    return dict.fromkeys(
        f"{best.candidate.label}: {note}"
        for score in best.scores
        if score.ran >= space.limit  # notes of a shorter run are due to its cut
        for note in score.notes
    )


def ended_short(space: Space, contenders: Sequence[Contender], target: float | None) -> list[str]:
    """Say how many might be better than they look, because their steps ended before the target."""
    short = [
        each
        for each in contenders
        if any(math.isinf(one.ran) and not one.reached and not one.diverged for one in each.scores)
    ]
    if target is None or not short:
        return []
    return [
        f"{len(short)} of {len(contenders)} configurations had done run.steps = "
        f"{space.scenario.run.steps} before loss {target:g}; with more, one of them may be best"
    ]


def _edge_of(space: Space, each: Contender, objective: TuningObjective) -> Any:
    """Make a function that says whether the value of a parameter is the last one tried."""
    family = each.candidate.family

    def edge(key: str) -> str | None:
        values, value = space.entries[family].choices[key], each.candidate.varied[key]
        numbers = _ends(values)
        if numbers is None or value not in numbers:
            return None
        low = numbers[0]
        step = 1 if type(value) is int else value / 2
        beyond = value - step if value == low else value + step
        cap = objective.cap
        if cap and beyond > (cap.delay if key in LATE else cap.tau):
            return None
        if not _possible(space, family, each.candidate.varied | {key: beyond}):
            return None  # the edge of the world, not of the search
        side = "lowest" if value == low else "highest"
        return (
            f"{each.candidate.label}: {key} = {value} is the {side} tried, so a better one may lie "
            f"beyond it; widen {key} in [tune]"
        )

    return edge


def _ends(values: Values) -> tuple[float, float] | None:
    """Lowest and highest of the numbers tried; None for one value, or others than numbers."""
    if isinstance(values, Range):
        return values.low, values.high
    if not all(type(value) in (int, float) for value in values) or len(set(values)) < 2:
        return None
    return min(values), max(values)


def _possible(space: Space, family: str, chosen: Mapping[str, Any]) -> bool:
    try:
        space.candidate(family, chosen)
    except InputError:
        return False
    return True


def _without_effect(space: Space, ranked: Sequence[Contender]) -> list[str]:
    """Parameters that changed no value at all, wherever nothing else was changed."""
    seen: dict[tuple[str, str], dict[str, list[Contender]]] = {}
    seeds = len(ranked[0].scores)
    for each in ranked:
        varied = each.candidate.varied
        for key in varied if each.all_reached and len(each.scores) == seeds else ():
            rest = repr({name: value for name, value in varied.items() if name != key})
            groups = seen.setdefault((each.candidate.family, key), {})
            groups.setdefault(rest, []).append(each)
    found = []
    for (family, key), groups in seen.items():
        values = space.entries[family].choices[key]
        full = [group for group in groups.values() if len(group) > 1]
        compared = {repr(each.candidate.varied[key]) for group in full for each in group}
        if isinstance(values, tuple) and not compared.issuperset(map(repr, values)):  # or tables
            continue
        pairs = [(group[0], other) for group in full for other in group[1:]]
        if pairs and not any(behind(other, one).any() for one, other in pairs):
            found.append(f"{pairs[0][0].candidate.name}'s {key} makes no difference to the goal")
    return found


def _of_no_account(space: Space, ranked: Sequence[Contender], found: Order) -> list[str]:
    """Parameters of the best program every tried value of which is equivalent to the best."""
    best, said = ranked[0], []
    name, family = best.candidate.name, best.candidate.family
    tied = [each for each in ranked if each.candidate.label in found.equivalent]
    alike = [each.candidate.varied for each in (best, *tied) if each.candidate.family == family]
    for key in best.candidate.varied:
        values = space.entries[family].choices[key]
        if isinstance(values, tuple) and len(values) > 1:
            there = [varied[key] for varied in alike]
            if all(value in there for value in values):
                said.append(
                    f"the answer hardly depends on {name}'s {key}: every value is equivalent "
                    f"({within(found.margin)})"
                )
    return said


def _same_everywhere(regret: Sequence[Row]) -> list[str]:
    """Inputs 20 % more or less of which changes nothing."""
    found = []
    for what in dict.fromkeys(row["input"] for row in regret if row["input"]):
        changed = [row["values"] for row in regret if row["input"] == what]
        nominal = regret[0]["values"]
        pairs = [(row[label], nominal[label]) for row in changed for label in nominal]
        known = [pair for pair in pairs if np.isfinite(pair).any()]
        if known and all(math.isclose(*pair) for pair in known):
            found.append(f"the answer does not depend on {what}: 20 % more or less changes nothing")
    return found
