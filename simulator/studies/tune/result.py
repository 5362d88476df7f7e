"""The result of a search: its order, the rows of its table, and the verdict on it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...cluster.membership import stretched
from ...errors import InputError
from ...inputs.messages import toml
from ...objectives import plugins
from ...objectives.build import loss_basis
from ...programs import Program
from ...results import consumption, intervals, prediction_interval, statistics
from ...results import verdict as verdicts
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.figures.chart import Chart
from ...results.intervals import Estimate, stated
from ...results.order import MARGIN, Order, Terms, order
from ...results.prediction_interval import Spread
from ...results.wording import Reason
from ...scenario.scenario import Scenario
from ...scenario.tables import Range
from .. import learning
from ..display import Display, even, without_tables
from ..result import free_codecs
from .objective import Score, TuningObjective
from .race import Contender, model_of
from .space import Candidate, Space

Row = dict[str, Any]
TIMES = ("time-to-loss", "seconds-per-step")


def simplicity(candidate: Candidate, programs: Mapping[str, Program]) -> tuple[Any, ...]:
    """Return a key that sorts by departures from ssgd, then roundest and smallest numbers."""
    program, parameters = programs[candidate.name], candidate.parameters
    defaults = {key: about["default"] for key, about in program.describe().items()}
    knobs = [key for key in parameters if key != "lr" and parameters[key] != defaults.get(key)]
    departures = (candidate.name != "ssgd") + bool(program.server or program.gossips) + len(knobs)
    numbers = [value for value in parameters.values() if type(value) in (int, float)]
    mantissas = (f"{value:.12g}".partition("e")[0] for value in numbers)
    digits = sum(len(mantissa.replace(".", "").strip("-0")) for mantissa in mantissas)
    return departures, digits, sum(numbers), candidate.label


class Judged(NamedTuple):
    """The scores of a search as its verdict judges them, by label.

    `losses`: values and errors of the scores before; `base`: the reference of losses, None if
    values are not losses at one time; `out`: labels whose loss exceeds the user's bound.
    """

    scores: Mapping[str, Sequence[Score]]
    losses: verdicts.Compared
    base: str | None = None
    out: Sequence[str] = ()


def judged(contenders: Sequence[Contender], objective: TuningObjective) -> Judged:
    """Return scores by label as the verdict judges them.

    After equal tokens a score becomes the time, or the money and time, to the loss of the baseline
    (within the user's bound on the loss: its own time). Otherwise scores are unchanged.
    """
    scores = {contender.label: contender.scores for contender in contenders}
    losses, out = compared(scores), list[str]()
    base = reference(contenders) if objective.of_loss and objective.target is None else None
    if not objective.steps or base is None:
        return Judged(scores, losses, base)
    models = {one.label: one.model for one in contenders if one.model}
    drawn = {label: np.array(model.times) for label, model in models.items() if model.times}
    spent = {label: [objective.spent(score) for score in runs] for label, runs in scores.items()}
    times = verdicts.Compared(spent, drawn)
    if objective.max_loss is None:
        worths = [model.margin for model in models.values()]
        times = verdicts.at_equal_loss(losses, times, base, worths)
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
    """Return the reference of losses: data-parallel training in the fewest days, or the lowest."""
    several = [
        contender for contender in contenders if contender.label != verdicts.ALONE
    ] or contenders

    def place(one: Contender) -> tuple[bool, float, int]:
        days, coded = one.used("days"), one.candidate.parameters.get("codec", "raw") != "raw"
        return coded, days if days < math.inf else math.inf, one.candidate.workers

    ordered = sorted(several, key=place)
    losses = {contender.label: [score.value for score in contender.scores] for contender in ordered}
    names = {contender.label: contender.candidate.name for contender in ordered}
    return verdicts.baseline(losses, names)


def compared(scores: Mapping[str, Sequence[Score]]) -> verdicts.Compared:
    """Return the values of scores by label, and draws of their errors."""
    values = {label: [score.value for score in runs] for label, runs in scores.items()}
    models = {label: model_of(runs) for label, runs in scores.items()}
    drawn = {k: np.array(model.factors) for k, model in models.items() if model and model.factors}
    return verdicts.Compared(values, drawn)


def ordered(contenders: Sequence[Contender], objective: TuningObjective, scores: Judged) -> Order:
    """Return the order of contenders with all seeds run; if none reached, the closest is first.

    Under a learning curve it includes those given up early, because only seeds decided that.
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


def sorted_by(contenders: Sequence[Contender], best: str, judged: Judged) -> list[Contender]:
    """Sort contenders by their mean distance to `best` on the seeds run."""

    def distance(contender: Contender) -> tuple[bool, float]:
        label, scores = contender.label, judged.scores
        pairs = zip(scores[label], scores[best], strict=False)  # it may have been given up early
        gaps = [one.penalised - other.penalised for one, other in pairs]
        return label != best, float(np.mean(gaps))

    return sorted(contenders, key=distance)


@dataclass(frozen=True, repr=False)
class TuneResult(Display):
    """The result of `tune`.

    `ranked`: every configuration tried, the best first; `order`: the order of those not given up;
    `runs`: simulations that were needed, of which `resumed` were stored before; `notes`:
    assumptions.
    """

    space: Space
    objective: TuningObjective
    seeds: list[int]
    ranked: list[Contender]
    order: Order
    refused: list[str]
    runs: int
    resumed: int
    notes: list[str]
    wall_seconds: float

    @property
    def scenario(self) -> Scenario:
        """The scenario whose space was searched."""
        return self.space.scenario

    @property
    def best(self) -> Contender:
        """The configuration with the lowest mean value."""
        return self.ranked[0]

    @property
    def tied(self) -> list[Contender]:
        """Configurations that are surely equivalent to the best, the simplest first."""
        equivalent = self.order.equivalent
        near = [choice for choice in self.ranked if choice.label in equivalent]
        return sorted(near, key=self._simplicity)

    @cached_property
    def _choice(self) -> tuple[str, list[Reason]]:
        """The simplest label as good and as certain as the best, with reasons for another."""
        aim, order, reasons = self.objective, self.order, list[Reason]()
        best = order.best
        if aim.max_loss is not None and order.estimates:
            return verdicts.least_loss(order, self._judged.losses, self.reference or "")
        if aim.ruled and order.estimates:
            return best, reasons
        if aim.steps and order.estimates:
            times = {contender.label: contender.used("days") for contender in self.ranked}
            best, reasons = verdicts.quickest(order, self._judged.losses, times)
        tried = {contender.label: contender for contender in self.ranked}
        label, surer = verdicts.surest(
            order, best, lambda label: self._simplicity(tried[label]), self._question.unit
        )
        return label, [*reasons, *surer]

    @property
    def simplest(self) -> Contender:
        """The pick: of the best and those as good, the most certain and simplest."""
        return next(contender for contender in self.ranked if contender.label == self._choice[0])

    def _simplicity(self, contender: Contender) -> tuple[Any, ...]:
        return simplicity(contender.candidate, self.scenario.programs)

    @cached_property
    def _judged(self) -> Judged:
        return judged(self.ranked, self.objective)

    @cached_property
    def _equal_loss(self) -> Order:
        """The order of days at equal loss."""
        aim = replace(self.objective, day=0.0, max_loss=None)
        if not self.objective.ruled:
            return self.order
        return order_of(judged(self.ranked, aim).scores, aim)

    @property
    def reference(self) -> str | None:
        """The reference of losses; None if values are not losses at one time."""
        return self._judged.base

    @property
    def _question(self) -> verdicts.Question:
        aim, base = self.objective, self.reference
        if not aim.steps or not base:
            goal = f"least {aim.says} {aim.within}" if aim.cap else f"least {aim.says}"
            return verdicts.Question(aim.name, goal, aim.tells, aim.unit)
        if not aim.ruled:
            return verdicts.of_equal_loss(base)
        what, unit = ("money and time", aim.currency) if aim.day else ("time", "s")
        until = f"to the loss of {base}"
        if aim.max_loss is not None:
            until = f"at a loss at most {100 * aim.max_loss:.3g} % above that of {base}"
        return verdicts.Question("weighed", f"least {what} {until}", f"{{}} of {what}", unit)

    @cached_property
    def verdict(self) -> verdicts.Verdict:
        """The answer: the configuration to pick, and how certain that is."""
        aim, best, question = self.objective, self.best, self._question
        if not best.reached:
            failed = Reason("diverged")
            if aim.cap:
                failed = Reason("over-cap", {"label": best.label})
            elif aim.target is not None and not best.diverged:
                numbers = {"target": aim.target, "label": best.label}
                failed = Reason("unreached", numbers)
            reasons = [failed, *self._doubts]
            return verdicts.Verdict(question, self.order, reasons=reasons, basis=self.loss_basis)
        pick, chosen = self._choice
        terms = verdicts.Known(
            aim.heavy,
            names={contender.label: contender.candidate.name for contender in self.ranked},
            of_loss=bool(best.model and best.model.basis),
            trials={one.label: one.model.trial or {} for one in self.ranked if one.model},
        )
        order, rows = self.order, self.rows([self.simplest, *self.ranked[:2]])
        if not aim.steps:
            order = order.as_in({row["label"]: stated(row, "value") for row in rows})
            if rows[0]["value"] == order.value(pick):
                order = order.stating(pick, rows[0]["interval"])
        return verdicts.conclude(
            question,
            order,
            compared(self._judged.scores),
            terms,
            pick=pick,
            ruled=aim.ruled,
            reasons=[*self._rules, *chosen, *self._doubts],
            spent=self._spent(),
            baseline=self.reference if aim.steps else None,
            basis=self.loss_basis,
        )

    def _spent(self) -> dict[str, verdicts.Spent]:
        """Return the amounts that configurations use, for sentences."""
        base, spent = self.reference, dict[str, verdicts.Spent]()
        for one in self.ranked:
            if one.label in (self._choice[0], base):
                row = self._row(one)
                share = self._judged.losses.above(one.label, base) if base else None
                spent[one.label] = verdicts.Spent.of(row, share)._replace(loss=stated(row, "value"))
        return spent

    @property
    def _rules(self) -> list[Reason]:
        """How the user weighs time, money and loss."""
        aim, reasons = self.objective, list[Reason]()
        if aim.day:
            reasons.append(Reason("day-worth", {"worth": {"value": aim.day, "unit": aim.currency}}))
        if aim.max_loss is not None:
            out, base = len(self._judged.out), self.reference
            numbers = {"count": out, "most": aim.max_loss, "label": base}
            reasons.append(Reason("max-loss", numbers))
        return reasons

    @property
    def _doubts(self) -> list[Reason]:
        """Reasons to doubt the answer, besides what would decide it."""
        best, reasons = self.best, [Reason("no-loss")] * (not self.objective.of_loss)
        if best.diverged:
            reasons = [Reason("note", {"note": note}) for note in notes_of(self.space, best)]
        elif best.reached and not best.all_reached:
            seeds = len(best.scores)
            reasons.append(Reason("some-seeds", {"reached": best.reached, "seeds": seeds}))
        if not best.diverged:
            first = [best] * (self.objective.max_loss is None or not best.reached)
            for choice in dict.fromkeys([*first, *([self.simplest] * bool(best.reached))]):
                reasons += edges(self.space, choice, self.objective)
        near = {self._choice[0], *self.order.open}
        close = [contender.candidate for contender in self.ranked if contender.label in near]
        if free := [one.label for one in close if free_codecs(self.space.world(one))]:
            reasons.append(Reason("free-codec", {"labels": free}))
        if self.refused:
            numbers = {"count": len(self.refused), "first": self.refused[0]}
            reasons.append(Reason("refused", numbers))
        return reasons

    @property
    def loss_basis(self) -> str | None:
        """The basis of the pick's loss; None without a loss."""
        world = self.space.world(self.simplest.candidate)
        return loss_basis(world, world.algorithm[0]) if self.objective.of_loss else None

    @property
    def pick(self) -> dict[str, Any]:
        """The verdict with the terms of its order, as in JSON.

        `set`: arguments of `simulate --set` that run only the pick.
        """
        keys = self.verdict.keys
        if self.verdict.pick:
            one = self.simplest.candidate
            algorithm = f"algorithm=[{toml(one.table)}]"
            keys["set"] = [algorithm, *one.overrides(self.scenario.table)]
        return keys

    def _row(self, one: Contender) -> Row:
        """Return a configuration's row of the JSON; `at_least` bounds a value that was cut."""
        aim, candidate, scores = self.objective, one.candidate, one.scores
        values, amounts = [score.value for score in scores], self._amounts(one)
        estimate = intervals.estimate(values, heavy=aim.heavy)
        if not one.all_reached:  # then there is no mean, and a median would look too good
            estimate = intervals.Estimate(math.inf, intervals.MEAN, None, None, intervals.NEVER)
        elif one.factors is not None:
            estimate = intervals.widened(estimate, estimate.value * one.factors)
        if one.all_reached and (ends := self._interval(one, values, amounts["used"] or {})):
            estimate = replace(estimate, interval=(ends[0], ends[1]), level=intervals.LEVEL)
        return {
            "label": one.label,
            "name": candidate.name,
            "parameters": candidate.parameters,
            "part": candidate.part and candidate.part.name,
            "workers": candidate.workers,
            "set": candidate.overrides(self.scenario.table),
            "value": estimate.value,
            **estimate.beside_value(),
            "seeds": len(values),
            "reached": one.reached,
            "diverged": sum(score.diverged for score in scores),
            "at_least": float(np.mean([aim.at_least(score) for score in scores])),
            "stopped": one.stopped or None,
            **amounts,
            "basis": one.model and one.model.basis,
        }

    def _amounts(self, one: Contender) -> Row:
        """Return the amounts a configuration used; see `consumption.summarise_amounts`."""
        aim, model, used = self.objective, one.model, [score.used or {} for score in one.scores]
        seconds = [DAY * amounts.get("days", math.nan) for amounts in used]
        factors = np.array(model.steps) if model and model.steps else None
        timed = aim.target or aim.steps or aim.cap
        within = self._interval_of_time(one, seconds) if timed else None
        cost = self.scenario.cost
        return consumption.summarise_amounts(used, cost, aim.heavy, factors, within)

    def _interval(self, one: Contender, values: list[float], used: Row) -> Sequence[float] | None:
        """Return the interval of one run's time, price or loss, as `simulate` states it."""
        aim = self.objective
        if aim.name in TIMES:
            return self._interval_of_time(one, values)
        if aim.name == "cost-to-loss":
            cost, days = (used[key]["interval"] for key in ("cost", "days"))
            if not aim.day or not cost or not days:
                return list(cost) if cost else None
            return [money + aim.day * day for money, day in zip(cost, days, strict=True)]
        if one.factors is None or not aim.of_loss:
            return None
        return learning.of_steps(values, one.factors, None)

    def _interval_of_time(self, one: Contender, times: list[float]) -> Sequence[float] | None:
        """Return the interval of one measured run's time, as `simulate` states it, or None."""
        model, within = one.model, None
        if model and model.spreads:
            spreads = Spread(*model.spreads[:2]), Spread(*model.spreads[2:])
            held_up = [score.held_up for score in one.scores]
            within = prediction_interval.of_one_run(times, spreads, held_up)
        if model is None or not model.steps:
            return within
        steps, mean = np.array(model.steps), sum(times) / len(times)
        return learning.of_steps(times, stretched(self.scenario.cluster, mean, steps), within)

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations for JSON, before infinities become null.

        `to_reference`: the share by which the loss exceeds the reference's; `at_equal_loss`: after
        equal tokens, days to the loss of the reference; `weighed`: the quantity that the user's
        rule minimises; `set`: arguments of `--set` to train on the row's `part` of the cluster.
        """
        aim, base, rows = self.objective, self.reference, list[dict[str, Any]]()
        for rival in contenders:
            label, row = rival.label, self._row(rival)
            share = self._judged.losses.above(label, base) if base and rival.all_reached else None
            row["to_reference"] = share and {"label": base} | (_stated(share) or {})
            if aim.steps and label in self._equal_loss.estimates:
                days = self._equal_loss.estimates[label].moved(lambda seconds: seconds / DAY)
                row["at_equal_loss"] = _stated(days)
            if aim.steps and aim.day:
                row["weighed"] = _stated(self.order.estimates.get(label))
            rows.append(row)
        return rows

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of a data frame, one per configuration, the best first."""
        return even([without_tables(statistics.jsonable(row)) for row in self.rows(self.ranked)])

    def _chart(self) -> Chart | None:
        from . import figures  # noqa: PLC0415 - it draws this

        return figures.ranking(self.json())

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline tune --json`."""
        scenario = self.scenario
        document = {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "objective": self.objective.name,
            "measure": self.objective.says,
            "unit": self.objective.unit,
            "loss_basis": self.loss_basis,
            "seeds": self.seeds,
            "verdict": self.verdict.json(),
            "pick": self.pick,
            "best": self.rows([self.simplest])[0],  # the verdict's choice
            "ties": self.rows(self.tied),
            "ranking": self.rows(self.ranked),
            "notes": self.notes,
            "evaluations": len(self.ranked),
            "runs": self.runs,
            "versions": plugins.versions(scenario.objective),
            "wall_seconds": self.wall_seconds,
        }
        return dict(statistics.jsonable(document))


def _stated(estimate: Estimate | None) -> dict[str, Any] | None:
    return {"value": estimate.value, **estimate.beside_value()} if estimate else None


def notes_of(space: Space, best: Contender) -> dict[str, None]:
    """Return the notes of the runs of the best."""
    return dict.fromkeys(
        f"{best.label}: {note}"
        for score in best.scores
        if score.ran >= space.limit  # notes of a shorter run are due to its cut
        for note in score.notes
    )


def edges(space: Space, choice: Contender, objective: TuningObjective) -> Iterator[Reason]:
    """Yield a reason for every parameter whose value is the last one tried."""
    family = choice.candidate.family
    for key, value in choice.candidate.varied.items():
        values = space.entries[family].choices[key]
        ends = (values.low, values.high) if isinstance(values, Range) else values
        if not all(type(x) in (int, float) for x in ends) or not min(ends) < max(ends):
            continue
        step = 1 if type(value) is int else value / 2
        sides = {min(ends): ("lowest", value - step), max(ends): ("highest", value + step)}
        side, beyond = sides.get(value, ("", value))
        if not side or objective.cap:  # the cap is an end, too
            continue
        with suppress(InputError):  # the next value is impossible
            space.candidate(family, choice.candidate.varied | {key: beyond})
            numbers = {"label": choice.label, "key": key, "value": value, "side": side}
            yield Reason("edge", numbers)
