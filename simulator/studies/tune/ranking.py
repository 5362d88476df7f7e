"""The ranking of a search: the order of configurations, the rows of its table, one worker alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...cluster import prices
from ...cluster.membership import stretched
from ...network.closed_form import ClosedForm
from ...objectives.learning_curve.objective import data_parallel, to_target
from ...programs import Program
from ...results import consumption, intervals, prediction_interval, verdict
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.order import MARGIN, Order, Terms, order
from ...results.prediction_interval import Spread
from ...results.verdict import ALONE
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve
from .. import learning
from .objective import Modelled, Score, TuningObjective
from .race import Contender, model_of
from .space import Candidate, Space

Row = dict[str, Any]
TIMES = ("time-to-loss", "seconds-per-step")


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


def judged(contenders: Sequence[Contender], objective: TuningObjective) -> dict[str, list[Score]]:
    """Return scores by label as the verdict judges them.

    After equal tokens that is the time at which the loss would be that of the baseline; else the
    scores as they are.
    """
    scores = {each.candidate.label: each.scores for each in contenders}
    if not objective.steps:
        return scores
    worth = min((each.model.margin for each in contenders if each.model), default=MARGIN)
    base = [score.value for score in scores[reference(contenders)]]
    power = verdict.exponent(worth)

    def moved(score: Score) -> Score:
        days = (score.used or {}).get("days", math.nan)
        (value,) = verdict.at_equal_loss([DAY * days], [score.value], base, worth)
        factors = score.model and tuple(np.power(score.model.factors, power).tolist())
        model = score.model and score.model._replace(factors=factors or (), margin=MARGIN)
        return score._replace(value=value, model=model)

    return {label: [*map(moved, own)] for label, own in scores.items()}


def reference(contenders: Sequence[Contender]) -> str:
    """Return what losses are compared with: data-parallel training, else the lowest loss."""
    losses = {each.candidate.label: [score.value for score in each.scores] for each in contenders}
    names = {each.candidate.label: each.candidate.name for each in contenders}
    return verdict.baseline(losses, names)


def compared(scores: Mapping[str, Sequence[Score]]) -> verdict.Compared:
    """Return the values of scores by label, and draws of what they may be wrong by."""
    values = {label: [score.value for score in own] for label, own in scores.items()}
    models = {label: model_of(own) for label, own in scores.items()}
    drawn = {k: np.array(model.factors) for k, model in models.items() if model and model.factors}
    return verdict.Compared(values, drawn)


def ordered(
    contenders: Sequence[Contender], objective: TuningObjective,
    scores: Mapping[str, Sequence[Score]],
) -> Order:  # fmt: skip
    """Return the order of contenders that have run with all seeds, by their `judged` scores.

    Where none reached the target with every seed, the best comes first that is the closest to it.
    Under a learning curve those that were given up early are in it, too: seeds alone gave them up.
    """
    if objective.steps:  # the race gave up by loss alone, and time counts as well
        return order_of(scores, objective)
    survivors = [contender for contender in contenders if not contender.stopped]
    best = None
    if not any(contender.all_reached for contender in survivors):
        best = min(survivors, key=Contender.mean).candidate.label
    found = order_of({c.candidate.label: scores[c.candidate.label] for c in survivors}, objective,
                     best)  # fmt: skip
    if all(contender.factors is None for contender in survivors):
        return found
    return order_of(scores, objective, found.best)


def order_of(
    scores: Mapping[str, Sequence[Score]], objective: TuningObjective, best: str | None = None
) -> Order:
    """Return the order of scores by label, with the errors of their models."""
    models = [model_of(own) for own in scores.values()]
    margin = min((model.margin for model in models if model), default=MARGIN)
    values, factors = compared(scores)
    terms = Terms(heavy=objective.heavy, margin=margin, limits=objective.limits)
    bounds = lower_bounds(scores, objective)
    return order(values, bounds, terms=terms, best=best, factors=factors)


def lower_bounds(
    scores: Mapping[str, Sequence[Score]], objective: TuningObjective
) -> dict[str, list[float]]:
    """Return lower bounds of the values, by label; infinite for what diverged."""
    return {
        label: [math.inf if score.diverged else objective.at_least(score) for score in own]
        for label, own in scores.items()
    }


def ranking(
    contenders: Sequence[Contender], best: str, scores: Mapping[str, Sequence[Score]]
) -> list[Contender]:
    """Sort by the mean distance to the best, by its label, on the seeds run."""

    def distance(contender: Contender) -> tuple[bool, float]:
        label = contender.candidate.label
        pairs = zip(scores[label], scores[best], strict=False)  # it may have been given up early
        gaps = [one.penalised - other.penalised for one, other in pairs]
        return label != best, float(np.mean(gaps))

    return sorted(contenders, key=distance)


def row(contender: Contender, objective: TuningObjective, space: Space) -> Row:
    """Return a configuration's row of the JSON; `at_least` bounds a value that was cut."""
    scores, reached = contender.scores, contender.all_reached
    values, used = [score.value for score in scores], amounts(contender, objective, space)
    found = intervals.estimate(values, heavy=objective.heavy).within(*objective.limits)
    if not reached:  # then there is no mean, and a median would flatter
        found = intervals.Estimate(math.inf, intervals.MEAN, None, None, intervals.NEVER)
    if contender.factors is not None and math.isfinite(found.value):
        found = intervals.widened(found, found.value * contender.factors)
    if reached and (ends := _of_value(contender, objective, space, used["used"] or {})):
        found = replace(found, interval=(ends[0], ends[1]), level=intervals.LEVEL)
    return {
        "label": contender.candidate.label,
        "name": contender.candidate.name,
        "parameters": contender.candidate.parameters,
        "value": found.value,
        **found.beside_value(),
        "seeds": len(values),
        "reached": contender.reached,
        "diverged": sum(score.diverged for score in scores),
        "at_least": float(np.mean([objective.at_least(score) for score in scores])),
        "left": float(np.mean([score.gap for score in scores]))
        if objective.target or objective.cap
        else None,
        "stopped": contender.stopped or None,
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
