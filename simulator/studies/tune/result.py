"""The result of a search: its ranking, its ties, warnings, and the answer in a sentence."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import InputError
from ...load.load import available_programs
from ...objectives import plugins
from ...objectives.basis import loss_basis
from ...results import consumption, pick, statistics, wording
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.figures.chart import Chart
from ...results.intervals import LEVEL, USUAL, stated
from ...results.order import MARGIN, Order, within
from ...results.pick import ALONE, ONE_SEED
from ...results.statistics import human
from ...scenario.tables import Range
from ..display.display import Display, even, without_tables
from . import verdict
from .objective import TOKENS, TuningObjective
from .race import Contender
from .search import study
from .space import Space

if TYPE_CHECKING:
    from optuna import Study

LATE = ("delay", "overlap", "staleness")  # parameters that a cap on delay is about
REASONS = {
    "unreached": "no configuration reached loss {target:g}: they are ranked by how close they "
    "came; run longer, raise run.target_loss, or try other values",
    "over cap": "no configuration keeps run.cap: raise it, or try smaller periods and delays",
    "some seeds": "even the best got there with {reached} of {seeds} seeds only",
    "one seed": ONE_SEED,
    "edge": "{label}: {key} = {value} is the {side} tried, so a better one may lie beyond it; "
    "widen {key} in [tune]",
    "refused": "{count} combinations were refused, such as: {first}",
    "note": "{note}",
}


class Reason(NamedTuple):
    """A reason to doubt an answer: its code in `REASONS`, and the numbers of its sentence."""

    code: str
    numbers: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return REASONS[self.code].format(**self.numbers)


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
        found = [choice for choice in self.ranked if choice.candidate.label in equivalent]
        return sorted(found, key=self._simplicity)

    @property
    def simplest(self) -> Contender:
        """The one to take: of the best and those equivalent to it, the soonest, then simplest."""
        near = [self.best, *self.tied]
        if self.objective.of_loss and self.objective.target is None:
            soon = min(choice.used("days") for choice in near) * (1 + MARGIN)
            near = [choice for choice in near if not choice.used("days") > soon]
        return min(near, key=self._simplicity)

    @property
    def named(self) -> list[Contender]:
        """The configurations that the answer names: the best, the one to take, the soonest."""
        trade = [choice for choice in self.ranked if choice.candidate.label == self.soonest]
        return [*dict.fromkeys([self.best, *([self.simplest, *trade] * bool(self.best.reached))])]

    def _simplicity(self, contender: Contender) -> tuple[Any, ...]:
        return verdict.simplicity(contender.candidate, available_programs(self.space.programs))

    @property
    def warnings(self) -> list[str]:
        """Warnings to heed before acting on the answer, in words."""
        return [reason.sentence for reason in self.reasons]

    @property
    def reasons(self) -> list[Reason]:
        """Reasons to doubt the answer."""
        best, objective, found = self.best, self.objective, list[Reason]()
        if best.diverged:
            found = [Reason("note", {"note": note}) for note in notes_of(self.space, best)]
        elif not best.reached and objective.target is not None:
            found.append(Reason("unreached", {"target": objective.target}))
        elif not best.reached and objective.cap:
            found.append(Reason("over cap", {}))
        elif not best.all_reached:
            seeds = len(best.scores)
            found.append(Reason("some seeds", {"reached": best.reached, "seeds": seeds}))
        if not best.diverged:
            found += [Reason("one seed", {})] * (len(best.scores) == 1)
            for choice in self.named:
                found += edges(self.space, choice, objective)
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
    def _alone(self) -> verdict.Alone | None:
        """One worker alone, where it is a choice."""
        return verdict.alone(self.space.scenario, self.objective, len(self.seeds))

    @property
    def _choices(self) -> list[Contender]:
        """All that was tried, and one worker alone, the best first."""
        one = [self._alone] if self._alone else []
        ahead = bool(one) and one[0].mean() < self.best.mean()
        return [*one, *self.ranked] if ahead else [*self.ranked, *one]

    @cached_property
    def _order(self) -> Order:
        """The order of the choices after as many tokens, else that of configurations."""
        if self._alone is None or not self.objective.steps:
            return self.order
        return verdict.ordered(self._choices, self.objective)

    @property
    def first(self) -> Contender:
        """What to take if time does not count: the simplest, or one worker alone."""
        one, order, best = self._alone, self._order, self.simplest
        if one is None or order.best != ALONE:
            return best
        sooner = best.used("days") * (1 + MARGIN) < one.used("days")
        return best if sooner and best.candidate.label in order.equivalent else one

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

    @cached_property
    def extremes(self) -> dict[str, dict[str, Any]]:
        """The best, the soonest and the cheapest, as `verdict.extremes` returns them."""
        best = self.first.candidate.label
        return verdict.extremes(self._choices, self.objective, best, self.tradeoffs, self.space)

    @property
    def trade(self) -> str:
        """What the soonest way to as low a loss costs and saves; empty where that is the best."""
        if (row := self._trade) is None:
            return ""
        choices = {choice.candidate.label: choice for choice in self._choices}
        first = choices[self.tradeoffs[0]["label"]]  # with the lowest loss
        if self._alone and row["label"] != ALONE:
            first = self._alone
        above = verdict.tradeoff(choices[row["label"]], first)
        low, high = above["interval"] or [above["loss_above"]] * 2
        basis = f", {above['basis']}" if above["basis"] else ""
        took = [human(DAY * first.used("days"))]
        if not math.isnan(first.used("cost")):
            took.append(statistics.with_unit(first.used("cost"), self.objective.currency))
        return (
            f"If time counts as well: {row['label']} is done {', '.join(self._spent(row['used']))},"
            f" not in {' for '.join(took)}, at {above['loss_above']:+.2%} loss over "
            f"{first.candidate.label} ({USUAL}: {low:+.2%} to {high:+.2%}, paired{basis}); with "
            f"the tokens that make up for that it takes {human(DAY * above['sooner'])}."
        )

    @property
    def lines(self) -> list[str]:
        """A line for each of the `extremes`, or for those of one configuration."""
        aim, rows = self.objective, dict(self.extremes)
        where = f" to loss {aim.target:g}" if aim.target else " to that loss"
        one, labels = rows.pop("alone", None), dict[str, list[str]]()
        for name, row in rows.items():
            labels.setdefault(row["label"], []).append(name)
        found = []
        for label, names in labels.items():
            row, end = rows[names[0]], where if aim.target or names != ["best"] else ""
            days, cost = (
                wording.amount(stated(row | of, key), *unit)
                for key, unit in (("days", ("s", DAY)), ("cost", (aim.currency,)))
                for of in ({"interval": row.get(f"{key}_interval"), "level": LEVEL},)
            )
            found.append(f"{', '.join(names).capitalize()}{end}: {label}, {days}, {cost}.")
        if one:
            low, high = one["loss_interval"]
            loss = (
                f", loss {statistics.format_loss(one['loss'])} ({USUAL}: {low:.3g} to {high:.3g})"
            )
            goal = where if aim.target else f" {aim.within}"
            spent = human(DAY * one["days"]), statistics.with_unit(one["cost"], aim.currency)
            end = "" if aim.target else loss
            found.append(f"One worker alone{goal}: {one['label']}, {', '.join(spent)}{end}.")
        return found

    def _spent(self, used: dict[str, Any] | None) -> list[str]:
        """Say in what time, and for how much, with intervals; not what the value itself is."""
        name, used = self.objective.name, used or {}
        parts = (
            ("days", "in", ("s", DAY), name in ("cost-to-loss", "loss-at-budget", TOKENS)),
            (
                "cost",
                "for",
                (self.objective.currency,),
                "cost" not in name and "budget" not in name,
            ),
            ("nights", "in", ("nights",), True),
        )
        return [
            f"{word} {wording.amount(stated(used[key]), *unit)}"
            for key, word, unit, wanted in parts
            if wanted and key in used
        ]

    @property
    def headline(self) -> str:
        """The answer in short: where the lowest losses are undecided, the trade-off leads."""
        alone = self.first.candidate.label == ALONE
        if not self.best.reached or (self._order.decided and not alone):
            return pick.headline(self._verdict)
        lead = "The lowest loss is undecided"
        if self._order.decided:
            lead = "One worker alone has the lowest loss"
        elif self._trade is None:
            return pick.undecided(self._open)
        return lead + (f"; soonest to it is {self.soonest}" if self.soonest else "")

    @property
    def _open(self) -> list[str]:
        """The labels of the choices that may have the lowest loss, the one to take first."""
        first, order = self.first.candidate.label, self._order
        return [*dict.fromkeys([first, order.best, *sorted(order.open, key=order.value)])]

    @property
    def sentence(self) -> str:
        """The answer: the best, and what to take if time counts as well."""
        best, order, label = self.best, self._order, self.first.candidate.label
        if not best.reached:
            return self._unreached
        said = self._reached(self.first)
        if label != order.best:
            taken = {choice.candidate.label: choice.used("days") for choice in self._choices}
            sooner = taken[label] * (1 + MARGIN) < taken[order.best]
            said += f"; {'sooner' if sooner else 'simpler'} than {order.best} and equivalent to it"
            said += f" ({within(order.margin)})"
        if order.decided:
            short = f"{self.headline}. " * (label == ALONE)
            return f"{short}{said[0].upper() if short else said[0]}{said[1:]}. {self.trade}".strip()
        if label == order.best or order.unsettled:
            of_loss = bool(best.model and best.model.basis)
            said += f"; {pick.outlook(order, len(self.seeds), of_loss=of_loss)}"
        lead = dict.fromkeys([f"{self.headline}.", self.trade, f"{pick.undecided(self._open)}."])
        return " ".join([*filter(None, lead), f"{pick.GUESS} {said}."])

    @property
    def _unreached(self) -> str:
        best, target = self.best, self.objective.target
        if self.objective.cap:
            label = best.candidate.label
            return f"No configuration runs {self.objective.within}; {label} comes closest."
        if best.diverged or target is None:
            return "Every configuration diverged; try smaller learning rates."
        near = f"{best.candidate.label} came closest to loss {target:g}"
        return f"{near}{wording.with_basis(self.loss_basis)}; no seed reached it."

    def _reached(self, choice: Contender) -> str:
        """Say what one of the best choices reached."""
        aim, seeds, label = self.objective, len(self.seeds), choice.candidate.label
        basis = f"{aim.within} (nothing is said of loss)".strip()
        basis = wording.with_basis(self.loss_basis if aim.of_loss else basis)
        if label not in self._order.estimates:
            often = f"{self.best.reached} of {seeds} seeds"
            return f"{label}: reached loss {aim.target:g} with {often}{basis}"
        found, row = self._order.estimates[label], dict[str, Any]()
        if isinstance(choice, verdict.Alone):
            basis = wording.with_basis(choice.phrase)
        else:
            (row,) = self.rows([choice])
        if row.get("estimate") == found.of:  # with the interval of the table
            found = self._order.stating(label, row["interval"]).estimates[label]
        spread = wording.sentence(found, aim.unit, seeds)
        used = verdict.amounts(choice, aim, self.space)["used"]
        spent = "".join(f", {amount}" for amount in self._spent(used))
        return f"{label}: {aim.sentence(found.value)}{spread}{basis}{spent}"

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
            key: [self.order.best, *(other for other in found[key] if other != label)]
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
        best, plain = self.best, self.reference
        return [
            verdict.row(contender, best, self.objective, self.space, plain)
            for contender in contenders
        ]

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
