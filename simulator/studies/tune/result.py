"""The result of a search: its ranking and the verdict on it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...load.load import available_programs
from ...objectives import plugins
from ...objectives.basis import loss_basis
from ...results import consumption, statistics, wording
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.figures.chart import Chart
from ...results.intervals import USUAL, Estimate, stated
from ...results.order import Order
from ...results.verdict import (
    Compared,
    Known,
    Question,
    Reason,
    Spent,
    Verdict,
    conclude,
    of_equal_loss,
)
from ...scenario.tables import Range
from .. import learning
from ..display.display import Display, even, without_tables
from . import ranking
from .objective import Score, TuningObjective
from .race import Contender
from .search import study
from .space import Space

if TYPE_CHECKING:
    from optuna import Study

LATE = ("delay", "overlap", "staleness")  # parameters that a cap on delay is about


@dataclass(frozen=True, repr=False)
class TuneResult(Display):
    """The result of `tune`.

    `ranked`: every configuration tried, the best first; `order`: of those that were not given up;
    `regret`: as `regret.regrets` returns it; `runs`: simulations that were needed, `resumed` of
    them kept from before; `notes`: assumptions; `trials`: records of optuna's trials.
    """

    space: Space
    objective: TuningObjective
    seeds: list[int]
    ranked: list[Contender]
    order: Order
    regret: list[dict[str, Any]]
    refused: list[str]
    runs: int
    resumed: int
    notes: list[str]
    wall_seconds: float
    trials: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def study(self) -> "Study":
        """The optuna study of the search, in memory: its `trials` may be added to any other."""
        return study(self.trials)

    @property
    def best(self) -> Contender:
        """The configuration with the lowest mean value."""
        return self.ranked[0]

    @property
    def tied(self) -> list[Contender]:
        """Those known to be equivalent to the best, the simplest first."""
        equivalent = self.order.equivalent
        near = [choice for choice in self.ranked if choice.candidate.label in equivalent]
        return sorted(near, key=self._simplicity)

    @property
    def simplest(self) -> Contender:
        """The one to take: of the best and those equivalent to it, the simplest."""
        return min([self.best, *self.tied], key=self._simplicity)

    def _simplicity(self, contender: Contender) -> tuple[Any, ...]:
        return ranking.simplicity(contender.candidate, available_programs(self.space.programs))

    @cached_property
    def _scores(self) -> dict[str, list[Score]]:
        """The scores by label, as the verdict judges them."""
        return ranking.judged(self.ranked, self.objective)

    @property
    def _compared(self) -> Compared:
        return ranking.compared(self._scores)

    @property
    def _losses(self) -> Compared:
        return ranking.compared({each.candidate.label: each.scores for each in self.ranked})

    @property
    def reference(self) -> str | None:
        """What losses are compared with; None where values are no losses at one time."""
        aim = self.objective
        return ranking.reference(self.ranked) if aim.of_loss and aim.target is None else None

    @cached_property
    def verdict(self) -> Verdict:
        """The answer: the configuration to take, and how sure that is."""
        aim, best = self.objective, self.best
        label = best.candidate.label
        goal = f"least {aim.says} {aim.within}" if aim.cap else f"least {aim.says}"
        question = Question(aim.name, goal, aim.tells, aim.unit)
        if aim.steps and self.reference:
            question = of_equal_loss(self.reference)
        if not best.reached:
            failed = Reason("diverged")
            if aim.cap:
                failed = Reason("over-cap", {"label": label})
            elif aim.target is not None and not best.diverged:
                failed = Reason("unreached", {"target": aim.target, "label": label})
            reasons = [failed, *self._doubts]
            return Verdict(question, self.order, reasons=reasons, basis=self.loss_basis)
        pick = self.simplest.candidate.label
        known = Known(
            aim.heavy,
            names={each.candidate.label: each.candidate.name for each in self.ranked},
            of_loss=bool(best.model and best.model.basis),
        )
        (row,) = self.rows([self.simplest])
        found = self.order
        if not aim.steps and row["value"] == found.value(pick):
            found = found.stating(pick, row["interval"])  # as the table has it
        return conclude(
            question,
            found,
            self._compared,
            known,
            pick=pick,
            reasons=[*self._better_alone, *self._doubts],
            spent=self._spent(),
            baseline=self.reference,
            basis=self.loss_basis,
        )

    def _spent(self) -> dict[str, Spent]:
        """Return what the configurations use that a sentence may name."""
        base, losses, spent = self.reference, self._losses, dict[str, Spent]()
        named = self.simplest.candidate.label, base
        for choice in self.ranked:
            if (label := choice.candidate.label) in named:
                row = ranking.row(choice, self.objective, self.space)
                share = losses.above(label, base) if base else None
                spent[label] = Spent.of(row, share)._replace(loss=stated(row, "value"))
        return spent

    @property
    def _better_alone(self) -> list[Reason]:
        """The reason that one worker alone is better than every configuration, where it is."""
        one, aim = self.alone, self.objective
        if one is None or not self.best.reached:
            return []
        (score,) = ranking.judged([*self.ranked, one], aim)[one.candidate.label][:1]
        if score.value >= self.order.value(self.order.best):
            return []
        gap = [statistics.human(DAY * one.used("days"))]
        if not math.isnan(one.used("cost")):
            gap.append(statistics.with_unit(one.used("cost"), aim.currency))
        gap += [] if aim.target else [f"loss {statistics.format_loss(one.mean())}"]
        return [Reason("alone", {"gap": ", ".join(gap)})]

    @property
    def _doubts(self) -> list[Reason]:
        """Reasons to doubt the answer, besides what would decide it."""
        best, found = self.best, [Reason("no-loss")] * (not self.objective.of_loss)
        if best.diverged:
            found = [Reason("note", {"note": note}) for note in notes_of(self.space, best)]
        elif best.reached and not best.all_reached:
            seeds = len(best.scores)
            found.append(Reason("some-seeds", {"reached": best.reached, "seeds": seeds}))
        if not best.diverged:
            for choice in dict.fromkeys([best, *([self.simplest] * bool(best.reached))]):
                found += edges(self.space, choice, self.objective)
        if self.refused:
            numbers = {"count": len(self.refused), "first": self.refused[0]}
            found.append(Reason("refused", numbers))
        return found

    @property
    def loss_basis(self) -> str | None:
        """What the loss of the configuration to take is the loss of; None without a loss."""
        world = self.space.world(self.simplest.candidate.table)
        return loss_basis(world, world.algorithm[0]) if self.objective.of_loss else None

    @cached_property
    def alone(self) -> ranking.Alone | None:
        """One worker alone, where it is a choice."""
        return ranking.alone(self.space.scenario, self.objective, len(self.seeds))

    def _alone(self) -> dict[str, Any] | None:
        """Return the row of one worker alone."""
        one = self.alone
        if one is None:
            return None
        loss, *drawn = one.losses.tolist()
        return {
            "label": f"worker {one.worker}",
            "days": one.used("days"),
            "cost": one.used("cost"),
            "loss": loss,
            "loss_interval": learning.of_steps([1.0], np.array(drawn), None),
            "basis": one.model and one.model.basis,
        }

    @property
    def pick(self) -> dict[str, Any]:
        """The verdict in the terms of its order, as JSON has it."""
        return self.verdict.keys

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations as JSON has them, before infinities become null.

        `behind`: by how much the best is better, in the unit of the verdict; `to_reference`: by
        what share the loss is above that of the `reference`; `at_equal_loss`: after equal tokens,
        days to the loss of the reference.
        """
        aim, best, base = self.objective, self.best.candidate.label, self.reference
        compared, losses, found = self._compared, self._losses, list[dict[str, Any]]()
        for each in contenders:
            label, row = each.candidate.label, ranking.row(each, aim, self.space)
            apart = label != best and each.all_reached
            gap = compared.behind(label, best, aim.heavy) if apart else None
            row["behind"] = _stated(gap)
            share = losses.above(label, base) if base and each.all_reached else None
            row["to_reference"] = share and {"label": base} | (_stated(share) or {})
            if aim.steps and label in self.order.estimates:
                row["at_equal_loss"] = _stated(self.order.estimates[label].moved(_in_days))
            found.append(row)
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return a flat row for each configuration, the best first: a row of a data frame."""
        return even([without_tables(statistics.jsonable(row)) for row in self.rows(self.ranked)])

    @property
    def _head(self) -> str:
        tried, seeds = len(self.ranked), statistics.seeds(self.seeds)
        scenario = self.space.scenario
        return f"{tried} configurations, {seeds}, {scenario.title or scenario.file}"

    @property
    def _in_words(self) -> str:
        return self.verdict.sentence

    def _table(self) -> list[dict[str, str]]:
        unit, rows = self.objective.unit, self.rows(self.ranked)
        _, amounts = consumption.cells(rows)
        return [
            {
                "configuration": row["label"],
                f"{self.objective.says} ({USUAL})": wording.cell(stated(row, "value"), unit),
                "seeds": f"{row['reached']} of {row['seeds']}",
                "given up": row["stopped"] or "",
            }
            | {heading: cell(row) for heading, cell in amounts.items()}
            for row in rows
        ]

    def _chart(self) -> Chart | None:
        from . import figures  # noqa: PLC0415 - it draws this

        return figures.value(self)

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline tune --json`."""
        scenario = self.space.scenario
        document = {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "objective": self.objective.name,
            "measure": self.objective.says,
            "unit": self.objective.unit,
            "loss_basis": self.loss_basis,
            "seeds": self.seeds,
            "verdict": self.verdict.json(),
            "pick": self.pick,
            "best": self.rows([self.best])[0],
            "ties": self.rows(self.tied),
            "simplest": self.simplest.candidate.label,
            "alone": self._alone(),
            "ranking": self.rows(self.ranked),
            "regret": self.regret,
            "notes": self.notes,
            "evaluations": len(self.ranked),
            "runs": self.runs,
            "versions": plugins.versions(scenario.objective),
            "wall_seconds": self.wall_seconds,
        }
        return dict(statistics.jsonable(document))


def _in_days(seconds: float) -> float:
    return seconds / DAY


def _stated(found: Estimate | None) -> dict[str, Any] | None:
    return {"value": found.value, **found.beside_value()} if found else None


def notes_of(space: Space, best: Contender) -> dict[str, None]:
    """Return the notes of the runs of the best."""
    return dict.fromkeys(
        f"{best.candidate.label}: {note}"
        for score in best.scores
        if score.ran >= space.limit  # notes of a shorter run are due to its cut
        for note in score.notes
    )


def edges(space: Space, choice: Contender, objective: TuningObjective) -> Iterator[Reason]:
    """Yield a reason for each parameter whose value is the last one tried, but not the world's."""
    family, cap = choice.candidate.family, objective.cap
    for key, value in choice.candidate.varied.items():
        values = space.entries[family].choices[key]
        if not isinstance(values, Range):
            if len({*map(repr, values)}) < 2 or not all(type(x) in (int, float) for x in values):
                continue
            low, high = min(values), max(values)
        else:
            low, high = values.low, values.high
        if value not in (low, high):
            continue
        lowest = value == low
        step = 1 if type(value) is int else value / 2
        beyond = value - step if lowest else value + step
        if cap and beyond > (cap.delay if key in LATE else cap.tau):
            continue
        try:
            space.candidate(family, choice.candidate.varied | {key: beyond})
        except InputError:
            continue
        side = "lowest" if lowest else "highest"
        label = choice.candidate.label
        yield Reason("edge", {"label": label, "key": key, "value": value, "side": side})


def ended_short(space: Space, contenders: Sequence[Contender], target: float | None) -> list[str]:
    """Say how many might be better than they look, because their steps ended before the target."""
    short = sum(
        any(math.isinf(run.ran) and not run.reached and not run.diverged for run in choice.scores)
        for choice in contenders
    )
    if target is None or not short:
        return []
    return [
        f"{short} of {len(contenders)} configurations had done run.steps = "
        f"{space.scenario.run.steps} before loss {target:g}; with more, one of them may be best"
    ]
