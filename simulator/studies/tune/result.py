"""The result of a search: its ranking and the verdict on it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...errors import InputError
from ...inputs.messages import toml
from ...objectives import plugins
from ...objectives.build import loss_basis
from ...results import statistics
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.figures.chart import Chart
from ...results.intervals import Estimate, stated
from ...results.order import Order
from ...results.verdict import (
    Known,
    Question,
    Spent,
    Verdict,
    conclude,
    least_loss,
    of_equal_loss,
    quickest,
    surest,
)
from ...results.wording import Reason
from ...scenario.scenario import Scenario
from ...scenario.tables import Range
from ..display import Display, even, without_tables
from ..result import free_codecs
from . import ranking
from .objective import TuningObjective
from .race import Contender
from .space import Space


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
            return least_loss(order, self._judged.losses, self.reference or "")
        if aim.ruled and order.estimates:
            return best, reasons
        if aim.steps and order.estimates:
            times = {contender.label: contender.used("days") for contender in self.ranked}
            best, reasons = quickest(order, self._judged.losses, times)
        tried = {contender.label: contender for contender in self.ranked}
        label, surer = surest(
            order, best, lambda label: self._simplicity(tried[label]), self._question.unit
        )
        return label, [*reasons, *surer]

    @property
    def simplest(self) -> Contender:
        """The pick: of the best and those as good, the most certain and simplest."""
        return next(contender for contender in self.ranked if contender.label == self._choice[0])

    def _simplicity(self, contender: Contender) -> tuple[Any, ...]:
        return ranking.simplicity(contender.candidate, self.scenario.programs)

    @cached_property
    def _judged(self) -> ranking.Judged:
        return ranking.judged(self.ranked, self.objective)

    @cached_property
    def _equal_loss(self) -> Order:
        """The order of days at equal loss."""
        aim = replace(self.objective, day=0.0, max_loss=None)
        if not self.objective.ruled:
            return self.order
        return ranking.order_of(ranking.judged(self.ranked, aim).scores, aim)

    @property
    def reference(self) -> str | None:
        """The reference of losses; None if values are not losses at one time."""
        return self._judged.base

    @property
    def _question(self) -> Question:
        aim, base = self.objective, self.reference
        if not aim.steps or not base:
            goal = f"least {aim.says} {aim.within}" if aim.cap else f"least {aim.says}"
            return Question(aim.name, goal, aim.tells, aim.unit)
        if not aim.ruled:
            return of_equal_loss(base)
        what, unit = ("money and time", aim.currency) if aim.day else ("time", "s")
        until = f"to the loss of {base}"
        if aim.max_loss is not None:
            until = f"at a loss at most {100 * aim.max_loss:.3g} % above that of {base}"
        return Question("weighed", f"least {what} {until}", f"{{}} of {what}", unit)

    @cached_property
    def verdict(self) -> Verdict:
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
            return Verdict(question, self.order, reasons=reasons, basis=self.loss_basis)
        pick, chosen = self._choice
        terms = Known(
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
        return conclude(
            question,
            order,
            ranking.compared(self._judged.scores),
            terms,
            pick=pick,
            ruled=aim.ruled,
            reasons=[*self._rules, *chosen, *self._doubts],
            spent=self._spent(),
            baseline=self.reference if aim.steps else None,
            basis=self.loss_basis,
        )

    def _spent(self) -> dict[str, Spent]:
        """Return the amounts that configurations use, for sentences."""
        base, spent = self.reference, dict[str, Spent]()
        for one in self.ranked:
            if one.label in (self._choice[0], base):
                row = ranking.row(one, self.objective, self.space)
                share = self._judged.losses.above(one.label, base) if base else None
                spent[one.label] = Spent.of(row, share)._replace(loss=stated(row, "value"))
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

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations for JSON, before infinities become null.

        `to_reference`: the share by which the loss exceeds the reference's; `at_equal_loss`: after
        equal tokens, days to the loss of the reference; `weighed`: the quantity that the user's
        rule minimises; `set`: arguments of `--set` to train on the row's `part` of the cluster.
        """
        aim, base, rows = self.objective, self.reference, list[dict[str, Any]]()
        for rival in contenders:
            label, row = rival.label, ranking.row(rival, aim, self.space)
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
