"""The result of a search: its ranking, its ties, and the answer in a sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...load.load import known_programs
from ...objectives import plugins
from ...objectives.basis import loss_basis
from ...results import consumption, pick, statistics, wording
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.figures.chart import Chart
from ...results.intervals import LEVEL, USUAL, stated
from ...results.order import MARGIN, Order, within
from ...results.pick import ALONE
from ...results.statistics import human
from ..display.display import Display, even, without_tables
from . import verdict
from .objective import TOKENS, TuningObjective
from .race import Contender
from .search import ToldTrial, study
from .space import Space

if TYPE_CHECKING:
    from optuna import Study

LOWEST = "The best guess at the lowest loss, whatever the time, is"


@dataclass(frozen=True, repr=False)
class TuneResult(Display):
    """The result of `tune`.

    `ranked`: every configuration tried, the best first; `order`: of those that were not given up;
    `regret`: as `regret.regrets` returns it; `runs`: simulations that were needed, `resumed` of
    them kept from before; `notes`: assumptions; `trials`: what optuna asked for and was told.
    """

    _index = ("label",)

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
    trials: list[ToldTrial] = field(default_factory=list)

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
        found = [each for each in self.ranked if each.candidate.label in self.order.equivalent]
        return sorted(found, key=self._simplicity)

    @property
    def simplest(self) -> Contender:
        """The one to take: of the best and those equivalent to it, the soonest, then simplest."""
        near = [self.best, *self.tied]
        if self.objective.of_loss and self.objective.target is None:
            days = [each.used("days") for each in near]
            soon = min(days) * (1 + MARGIN)
            near = [e for e, took in zip(near, days, strict=True) if not took > soon]
        return min(near, key=self._simplicity)

    @property
    def named(self) -> list[Contender]:
        """The configurations that the answer names: the best, the one to take, the soonest."""
        trade = [each for each in self.ranked if each.candidate.label == self.soonest]
        found = [self.best, self.simplest, *trade] if self.best.reached else [self.best]
        return [*dict.fromkeys(found)]

    def _simplicity(self, contender: Contender) -> tuple[Any, ...]:
        return verdict.simplicity(contender.candidate, known_programs(self.space.programs))

    @property
    def warnings(self) -> list[str]:
        """Warnings to heed before acting on the answer."""
        found = verdict.warnings(
            self.space, self.objective, self.ranked, self.named, self.order, self.regret
        )
        if self.refused:
            count = len(self.refused)
            found.append(f"{count} combinations were refused, such as: {self.refused[0]}")
        return found

    @property
    def loss_basis(self) -> str | None:
        """What the loss of the configuration to take is the loss of; None without a loss."""
        world = self.space.world(self.simplest.candidate.table)
        return loss_basis(world, world.algorithm[0]) if self.objective.of_loss else None

    @cached_property
    def _alone(self) -> verdict.Alone | None:
        """One worker alone, where it is a choice."""
        return verdict.alone(self.space.scenario, self.objective, len(self.seeds))

    @property
    def _choices(self) -> list[Contender]:
        """All that was tried, and one worker alone, the best first."""
        one, best = self._alone, self.best
        if one is None:
            return self.ranked
        return [one, *self.ranked] if one.mean() < best.mean() else [*self.ranked, one]

    @cached_property
    def _order(self) -> Order:
        """The order of the choices after as many tokens, else that of configurations."""
        if self._alone is None or not self.objective.steps:
            return self.order
        return verdict.ordered(self._choices, self.objective)

    @property
    def first(self) -> Contender:
        """What to take if time does not count: the simplest, or one worker alone."""
        one, known, best = self._alone, self._order, self.simplest
        if one is None or known.best != ALONE:
            return best
        sooner = best.used("days") * (1 + MARGIN) < one.used("days")
        return best if sooner and best.candidate.label in known.equivalent else one

    @property
    def _on(self) -> str:
        """What the loss is the loss of, or the cap, to stand after a value."""
        cap = f" {self.objective.within} (nothing is said of loss)".replace("  ", " ")
        return wording.with_basis(self.loss_basis) if self.objective.of_loss else cap

    @cached_property
    def tradeoffs(self) -> list[dict[str, Any]]:
        """What less time costs in loss after as many tokens, as `verdict.tradeoffs` returns it."""
        if not self.objective.steps:
            return []
        return verdict.tradeoffs(self._choices, self.objective, self.space)

    @property
    def _trade(self) -> dict[str, Any] | None:
        """The soonest way to as low a loss, with the tokens that make up for it.

        None: the best, or it takes as long as the one to take.
        """
        rows, most = self.tradeoffs, self.first.used("days") / (1 + MARGIN)
        soonest = verdict.soonest(rows)
        late = soonest is None or soonest is rows[0] or soonest["days"] > most
        return None if late else soonest

    @property
    def soonest(self) -> str | None:
        """The configuration to take if time counts as well; None: the best."""
        return str(self._trade["label"]) if self._trade else None

    @property
    def trade(self) -> str:
        """What the soonest way to as low a loss costs and saves; empty where that is the best."""
        if (row := self._trade) is None:
            return ""
        found = {each.candidate.label: each for each in self._choices}
        first = found[self.tradeoffs[0]["label"]]  # with the lowest loss
        if self._alone and row["label"] != ALONE:
            first = self._alone
        spent, above = self._spent(row["used"]), verdict.tradeoff(found[row["label"]], first)
        took = " for ".join([human(DAY * first.used("days")), *self._price(first.used("cost"))])
        return (
            f"If time counts as well: {row['label']} is done {', '.join(spent)}, not in {took}, "
            f"at {self._over(above, first)}; with the tokens that make up for that it takes "
            f"{human(DAY * above['sooner'])}, and no other trade-off is sooner."
        )

    @staticmethod
    def _over(above: dict[str, Any], first: Contender) -> str:
        """Say by what a loss is above that of the `first`, seed by seed and draw by draw."""
        low, high = above["interval"] or [above["loss_above"]] * 2
        basis = f", {above['basis']}" if above["basis"] else ""
        return (
            f"{above['loss_above']:+.2%} loss over {first.candidate.label} "
            f"({USUAL}: {low:+.2%} to {high:+.2%}, paired{basis})"
        )

    def _price(self, cost: float) -> list[str]:
        """Say a price, if there is one."""
        return [] if math.isnan(cost) else [statistics.with_unit(cost, self.objective.currency)]

    @cached_property
    def extremes(self) -> dict[str, dict[str, Any]]:
        """The best, the soonest and the cheapest, as `verdict.extremes` returns them."""
        best = self.first.candidate.label
        return verdict.extremes(self._choices, self.objective, best, self.tradeoffs, self.space)

    @property
    def lines(self) -> list[str]:
        """A line for each of the `extremes`, or for those of one configuration."""
        target, unit = self.objective.target, self.objective.currency
        where, rows = f" to loss {target:g}" if target else " to that loss", dict(self.extremes)
        one, found, which = rows.pop("alone", None), [], dict[str, list[str]]()
        for name, row in rows.items():
            which.setdefault(row["label"], []).append(name)
        for label, names in which.items():
            row, end = rows[names[0]], where if target or names != ["best"] else ""
            spent = self._spent_by(row, "days", "s", DAY), self._spent_by(row, "cost", unit)
            found.append(f"{', '.join(names).capitalize()}{end}: {label}, {', '.join(spent)}.")
        if one:
            low, high = (f"{end:.3g}" for end in one["loss_interval"])
            last = f", loss {statistics.format_loss(one['loss'])} ({USUAL}: {low} to {high})"
            loss = "" if target else last
            crashes = any(self.space.scenario.cluster.of_workers("failures"))
            goal = where if target else f" {self.objective.says.removeprefix('loss ')}"
            time, cost = human(DAY * one["days"]), statistics.with_unit(one["cost"], unit)
            found.append(
                f"One worker alone{goal}: {one['label']}, {time}, {cost}{loss}, by its mean step"
                f"{' and times down' * crashes}, as nothing is sent."
            )
        return found

    @property
    def _outdone(self) -> str:
        """In what one worker alone is better at the target than what is to be taken."""
        one, best = self._alone, self.simplest
        if one is None or not self.objective.target:
            return ""
        sooner, cheaper = (one.used(key) < best.used(key) for key in ("days", "cost"))
        asked = self.objective.name == "cost-to-loss"
        return "sooner and cheaper" if sooner and cheaper else "cheaper" * (asked and cheaper)

    @staticmethod
    def _spent_by(row: dict[str, Any], key: str, *unit: Any) -> str:
        of = {"interval": row.get(f"{key}_interval"), "level": LEVEL}
        return wording.amount(stated(row | of, key), *unit)

    def _spent(self, used: dict[str, Any] | None) -> list[str]:
        """Say in what time, and for how much, with intervals; not what the value itself is."""
        found, name = [], self.objective.name
        if used and name in ("cost-to-loss", "loss-at-budget", TOKENS):
            found.append(f"in {wording.amount(stated(used['days']), 's', DAY)}")
        if used and "cost" in used and name not in ("cost-to-loss", "loss-at-budget"):
            price = wording.amount(stated(used["cost"]), self.objective.currency)
            found.append(f"for {price}")
        if used and "nights" in used:
            found.append(f"in {wording.amount(stated(used['nights']), 'nights')}")
        return found

    @property
    def sentence(self) -> str:
        """The answer: the best, and what to take if time counts as well."""
        lead = ""
        if self._alone and (better := self._outdone):
            one, label = self._alone, self.simplest.candidate.label
            took = human(DAY * one.used("days")), *self._price(one.used("cost"))
            lead = f"One worker alone is {better} than {label}, at no higher loss: "
            lead += f"{', '.join(took)}."
        return " ".join(filter(None, [lead, self._answer]))

    @property
    def headline(self) -> str:
        """The answer in short: where the lowest losses are undecided, the trade-off leads."""
        first, known, trade = self.first.candidate.label, self._order, self._trade
        lead = "The lowest loss is undecided"
        if known.decided and first == ALONE:
            lead = "One worker alone has the lowest loss"
        elif known.decided or not self.best.reached:
            return pick.headline(self._verdict)
        if trade is None:
            return lead if known.decided else pick.undecided(self._open)
        cheapest = self.extremes["cheapest"]["label"] if self.extremes else None
        both = " and cheapest" if cheapest == trade["label"] else ""
        last = f", cheapest {cheapest}" if cheapest and not both else ""
        return f"{lead}; soonest{both} to it is {trade['label']}{last}"

    @property
    def _open(self) -> list[str]:
        """The labels of the choices that may have the lowest loss, the one to take first."""
        first, known = self.first.candidate.label, self._order
        return [*dict.fromkeys([first, known.best, *sorted(known.open, key=known.value)])]

    @property
    def _answer(self) -> str:
        best, target, seeds = self.best, self.objective.target, len(self.seeds)
        if not best.reached:
            if self.objective.cap:
                label = best.candidate.label
                return f"No configuration runs {self.objective.within}; {label} comes closest."
            if best.diverged or target is None:
                return "Every configuration diverged; try smaller learning rates."
            near = f"{best.candidate.label} came closest to loss {target:g}{self._on}"
            return f"{near}; no seed reached it."
        first, known, trade = self.first, self._order, self.trade
        label, said = first.candidate.label, self._reached(first)
        if label != known.best:
            days = next(e.used("days") for e in self._choices if e.candidate.label == known.best)
            ahead = "sooner" if first.used("days") * (1 + MARGIN) < days else "simpler"
            said += f"; {ahead} than {known.best} and equivalent to it ({within(known.margin)})"
        if self._alone and self.objective.steps and first is not self._alone and not trade:
            said += f"; {self._over(verdict.tradeoff(first, self._alone), self._alone)}"
        if known.decided and first is not self._alone:
            return f"{said}. {trade}".strip()
        guess = f"{LOWEST if trade and label == known.best else pick.GUESS} "
        short = [f"{self.headline}.", trade, f"{pick.undecided(self._open)}."]
        if known.decided:
            guess, said, short = "", f"{said[0].upper()}{said[1:]}", short[:2]
        elif label == known.best or known.unsettled:
            of_loss = bool(best.model and best.model.basis)
            said += f"; {pick.outlook(known, seeds, of_loss=of_loss)}"
        return " ".join(filter(None, [*dict.fromkeys(short), f"{guess}{said}."]))

    def _reached(self, each: Contender) -> str:
        """Say what one of the best choices reached."""
        seeds, target, label = len(self.seeds), self.objective.target, each.candidate.label
        if label not in self._order.estimates:
            often = f"{self.best.reached} of {seeds} seeds"
            return f"{label}: reached loss {target:g} with {often}{self._on}"
        found = self._order.estimates[label]
        row = {} if isinstance(each, verdict.Alone) else self.rows([each])[0]
        if row.get("estimate") == found.of:  # with the interval of the table
            found = self._order.stating(label, row["interval"]).estimates[label]
        spread = wording.sentence(found, self.objective.unit, seeds)
        used = verdict.amounts(each, self.objective, self.space)["used"]
        spent = "".join(f", {each}" for each in self._spent(used))
        on = wording.with_basis(each.phrase) if isinstance(each, verdict.Alone) else self._on
        return f"{label}: {self.objective.sentence(found.value)}{spread}{on}{spent}"

    @property
    def pick(self) -> dict[str, Any]:
        """The configuration to take, and whether the best is known, as `results.pick.verdict` says.

        That is the simplest of the best and its equivalents; None where no run got there.
        """
        alone = self.first.candidate.label == ALONE
        return self._verdict | {
            "decided": self._order.decided and not alone,
            "measure": self.objective.name,
            "headline": self.headline,
            "sentence": self.sentence,
        }

    @property
    def _verdict(self) -> dict[str, Any]:
        """The keys of `pick` apart from the sentence, which needs them."""
        found, label = pick.verdict(self.order), self.simplest.candidate.label
        if not self.best.reached:
            return found | {"label": None, "value": None, "ci95": None}
        if label == self.order.best:
            return found
        value = self.order.estimates[label]
        others = {
            key: [self.order.best, *(each for each in found[key] if each != label)]
            for key in ("alternatives", "ties")
        }
        return found | others | {"label": label, "value": value.value, **value.beside_value()}

    @property
    def reference(self) -> Contender | None:
        """What losses are compared with; None where values are no losses at one time."""
        aim = self.objective
        return verdict.reference(self.ranked) if aim.of_loss and aim.target is None else None

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations as JSON has them, before infinities become null."""
        space, plain = self.space, self.reference
        return [verdict.row(each, self.best, self.objective, space, plain) for each in contenders]

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
        return self.sentence

    def _table(self) -> list[dict[str, str]]:
        unit = self.objective.unit
        rows = self.rows(self.ranked)
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
            "best": self.rows([self.best])[0],
            "ties": self.rows(self.tied),
            "simplest": self.simplest.candidate.label,
            "pick": self.pick,
            "tradeoffs": self.tradeoffs,
            "trade": self.trade or None,
            "soonest": self.soonest,
            "extremes": self.extremes,
            "lines": self.lines,
            "sentence": self.sentence,
            "ranking": self.rows(self.ranked),
            "regret": self.regret,
            "warnings": self.warnings,
            "notes": self.notes,
            "evaluations": len(self.ranked),
            "runs": self.runs,
            "versions": plugins.versions(scenario.objective),
            "wall_seconds": self.wall_seconds,
        }
        return dict(statistics.jsonable(document))
