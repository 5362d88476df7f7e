"""The verdict: the one answer of a study, made here and only rendered elsewhere.

A verdict follows from the order of alternatives (`order`), which accounts for the uncertainty from
seeds and models. If runs of a learning curve use equal tokens, time and loss become one question:
every alternative is judged by its days to the loss of data-parallel training, because more tokens
make up for a higher loss. Terminal, page, notebook and JSON show the sentence and the reasons.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..scenario.cluster import DAY
from . import intervals, wording
from .intervals import Estimate, Values, stated
from .order import MARGIN, MOST, NO_ORDER, Order, Terms, order
from .prediction_interval import NO_ERRORS, NO_MODELS, Models
from .run import Run, diverged
from .statistics import (
    Groups,
    common_unit,
    crossing,
    format_loss,
    human,
    jsonable,
    loss_at,
    number,
    reached,
    seconds_per_gradient,
    seconds_per_step,
    with_unit,
)
from .wording import Reason, all_of

PACES = {
    "seconds_per_step": ("step", seconds_per_step),
    "seconds_per_gradient": ("gradient that reaches the model", seconds_per_gradient),
}
"""Measures of speed, each with its unit of work in words, and its function of a run."""
ALIKE = 0.01  # share by which estimates may differ and still count as equal
HEADLINE = 15  # words
ENOUGH = 8  # seeds to ask for if one says nothing
ALONE = "one worker alone"  # an alternative in a search, not an algorithm
DATA_PARALLEL = ("ssgd", "ssgd-bucketed")  # programs that serve as baselines
EQUAL_LOSS = "days_at_equal_loss"
Bases = Mapping[str, str | None]
Row = Mapping[str, Any]

LEADING = ("missed", "stalled", "bound", "diverged", "unreached", "over-cap")
"""Codes of reasons in the sentence itself; all but the first only without a pick."""
LIMITS = ("edge", "some-seeds", "free-codec", "fewer-tokens")
"""Codes of reasons that limit the answer, which come before explanations."""


class Question(NamedTuple):
    """The quantity to minimise: its key, its name (`goal`), and words for a value (`tells`)."""

    measure: str
    goal: str
    tells: str
    unit: str = "s"

    def words(self, larger: bool) -> str:
        """Return the words for a larger or a smaller value."""
        pairs = {"s": ("later", "earlier"), "": ("higher", "lower")}
        if pace := PACES.get(self.measure.replace("-", "_")):
            return f"{'more' if larger else 'less'} per {pace[0]}"
        word = pairs.get(self.unit, ("more", "less"))[not larger]
        if self.measure == "weighed" and self.unit != "s":
            return f"{word} of money and time"
        return f"{word} at the same loss" if self.measure == EQUAL_LOSS else word

    def amount(self, estimate: Estimate) -> dict[str, Any]:
        """Return a difference of values for JSON."""
        ends = estimate.interval and [*estimate.interval]
        return {"value": estimate.value, "interval90": ends, "unit": self.unit}

    def behind(self, code: str, label: str, gap: Estimate, margin: float) -> "Reason":
        """Return the reason "`label` is behind the pick by `gap`", or ahead within `margin`."""
        numbers = {"label": label, "gap": self.amount(gap), "more": self.words(True)}
        if gap.value >= 0:
            return Reason(code, numbers)
        ends = gap.interval and (-gap.interval[1], -gap.interval[0])
        ahead = self.amount(replace(gap, value=-gap.value, interval=ends))
        less = self.words(False)
        return Reason("ahead", {"label": label, "gap": ahead, "less": less, "margin": margin})

    def show(self, estimate: Estimate) -> str:
        """Format a value with its interval, in the words of the question."""
        value = wording.amount(estimate, self.unit) if self.unit else show_loss(estimate)
        return self.tells.format(value)


def show_loss(estimate: Estimate) -> str:
    """Format a loss with its interval."""
    if estimate.interval is None:
        return format_loss(estimate.value)
    low, high = (number(end) for end in estimate.interval)
    return f"{format_loss(estimate.value)} ({wording.kind(estimate)}: {low} to {high})"


class Spent(NamedTuple):
    """The amounts that an alternative uses, and its loss relative to the baseline's."""

    days: Estimate | None = None
    cost: Estimate | None = None
    currency: str = ""
    above: Estimate | None = None
    loss: Estimate | None = None

    @classmethod
    def of(cls, row: Row, above: Estimate | None = None) -> "Spent":
        """Read the amounts of a whole run from a row of `simulate` or `tune`."""
        used = row.get("used") or {}
        days, cost = (stated(used[key]) if key in used else None for key in ("days", "cost"))
        last, ends = (row.get("loss") or {}).get("last"), (row.get("interval90") or {}).get("loss")
        loss = None if last is None else stated({"mean": last, "interval": ends})
        return cls(days, cost, row.get("currency") or "", above, loss)

    def briefly(self, others: Iterable["Spent"] = ()) -> list[str]:
        """Format the days and the cost, without intervals, in a unit that suits others, too."""
        unit = common_unit(*(DAY * one.days.value for one in (self, *others) if one.days))
        days = [human(DAY * self.days.value, unit)] if self.days else []
        before = "" if self.currency else "cost "
        cost = [before + with_unit(self.cost.value, self.currency)] if self.cost else []
        return days + cost


@dataclass(frozen=True)
class Verdict:
    """The answer of a study.

    `pick`: the chosen alternative, None if none can be; `candidates`: all that may be as good, the
    pick first; `gap`: by how much the `runner_up` is behind; `would_decide`: the reason that tells
    how to decide an open question; `spent`: amounts by label; `baseline`: the data-parallel
    alternative for comparing losses; `basis`: the basis of the loss; `text`: the sentence, if it
    does not follow from an order; `ruled`: whether the user's rule chooses, so that the best
    estimate is picked.
    """

    question: Question
    order: Order = NO_ORDER
    pick: str | None = None
    candidates: list[str] = field(default_factory=list)
    runner_up: str | None = None
    gap: Estimate | None = None
    reasons: list[Reason] = field(default_factory=list)
    would_decide: Reason | None = None
    spent: Mapping[str, Spent] = field(default_factory=dict)
    baseline: str | None = None
    basis: str | None = None
    text: str = ""
    ruled: bool = False

    @property
    def decided(self) -> bool:
        """Whether the pick is surely better than every other, or the user's rule picks it."""
        return self.pick is not None and (self.order.decided or self.ruled or bool(self.text))

    @property
    def sentence(self) -> str:
        """The answer in words: first what is decided, then what is open."""
        if self.text:
            return self.text
        lead = [str(reason) for reason in self.reasons if reason.code in self._leading]
        if self.pick is None:
            return " ".join(["Nothing to pick.", *lead])
        return " ".join([*lead, f"{self.pick}: {self._value()}{self._open()}."])

    @property
    def headline(self) -> str:
        """The answer in at most `HEADLINE` words, without intervals."""
        if self.pick is None or self.text:
            return self.sentence
        estimate, spent = self.order.estimates.get(self.pick), self.spent.get(self.pick, Spent())
        brief = [self.question.tells.format(self._brief(estimate))] if estimate else []
        value = ", ".join(spent.briefly() or brief)
        texts = (f"{self.pick}: {value}{end}" for end in (self._open(), ""))
        return next((text for text in texts if len(text.split()) <= HEADLINE), self.pick)

    @property
    def _leading(self) -> Sequence[str]:
        return LEADING if self.pick is None else LEADING[:1]

    def _value(self) -> str:
        parts, estimate = [], self.order.estimates.get(self.pick or "")
        spent = self.spent.get(self.pick or "", Spent())
        if self.baseline:
            base = self.spent[self.baseline]
            parts += spent.briefly(self.spent.values())
            if spent.above and self.baseline != self.pick:
                loss = wording.above(spent.above.value, spent.above.interval)
                instead = ", ".join(base.briefly(self.spent.values()))
                against = "than" if loss.startswith(wording.NO_GAIN) else "against"
                parts.append(f"loss {loss} {against} {self.baseline} ({instead})")
            elif spent.loss:
                parts.append(f"loss {show_loss(spent.loss)}")
        elif estimate:
            value = self.question.show(estimate)
            beside = spent.briefly()[self.question.measure == "loss-at-deadline" :]
            parts += [value, *(amount for amount in beside if amount not in value)]
        else:
            count = self.order.counts.get(self.pick or "", (0, 0))
            parts.append(f"{count[0]} of {count[1]} seeds reached it")
        return ", ".join(parts)

    def _open(self) -> str:
        if self.decided:
            next_ = self.order.estimates.get(self.runner_up or "")
            if self.baseline or next_ is None:
                return ""
            simpler = next_.value < self.order.value(self.pick or "")
            word, value = "as good:" if simpler else "next is", self._brief(next_)
            return f"; {word} {self.runner_up}, {value}"
        others = all_of(self.candidates[1:])
        if not others:
            return ""
        code = self.would_decide.code if self.would_decide else ""
        if code == "equivalent":
            return f"; as good: {others}"
        return f"; within the error: {others}" if "model" in code else f"; undecided: {others}"

    def _brief(self, estimate: Estimate) -> str:
        unit = self.question.unit
        return with_unit(estimate.value, unit) if unit else format_loss(estimate.value)

    @property
    def why(self) -> list[str]:
        """The reasons in words; see `reasons_in`."""
        return reasons_in(self.json())

    def json(self) -> dict[str, Any]:
        """Return the document `verdict`."""
        document = {
            "question": self.question.goal,
            "measure": self.question.measure,
            "pick": self.pick,
            "candidates": self.candidates,
            "decided": self.decided,
            "runner_up": self.runner_up,
            "gap": self.gap and self.question.amount(self.gap),
            "reasons": [reason.json() for reason in self.reasons],
            "would_decide": self.would_decide and self.would_decide.json(),
            "sentence": self.sentence,
            "basis": self.basis,
            "estimates": {
                label: {"value": estimate.value, **estimate.beside_value()}
                for label, estimate in self.order.estimates.items()
            },
        }
        return dict(jsonable(document))

    @property
    def keys(self) -> dict[str, Any]:
        """The document `pick`, which states the order behind the verdict.

        `alternatives`: the other candidates; `seeds_to_decide`: None if unknown or above
        `order.MOST`.
        """
        ranked, label = self.order, self.pick
        value = ranked.estimates.get(label or "")
        document = {
            "label": label,
            "decided": self.decided,
            "alternatives": self.candidates[1:],
            "margin": ranked.margin,
            "seeds_to_decide": ranked.seeds,
            "measure": self.question.measure,
            "sentence": self.sentence,
        }
        if value is None:
            there = ranked.counts.get(label or "", (None, 0))[0]
            return dict(jsonable(document | {"value": there, "ci95": None}))
        return dict(jsonable(document | {"value": value.value, **value.beside_value()}))


class Compared(NamedTuple):
    """The values behind an order: one per seed by label, and draws of their relative errors."""

    values: Mapping[str, Values]
    factors: Mapping[str, np.ndarray] = MappingProxyType({})

    def behind(self, other: str, best: str, heavy: bool) -> Estimate | None:
        """Estimate by how much `other` exceeds `best`, paired over seeds; None without values."""
        factors = self.factors
        pairs = np.array([*zip(self.values[other], self.values[best], strict=False)], float).T
        if not pairs.size or not np.isfinite(pairs).all():
            return None
        gap = intervals.difference(*pairs, heavy=heavy)
        if {other, best} <= factors.keys():
            with np.errstate(invalid="ignore"):  # draws in which neither reaches the target
                moved = pairs[0].mean() * (factors[other] - 1)
                gap = intervals.widened(
                    gap, gap.value + moved - pairs[1].mean() * (factors[best] - 1)
                )
        return gap

    def above(self, one: str, other: str) -> Estimate | None:
        """Estimate by what share `one` is above `other`, paired over seeds; None without values."""
        factors = self.factors
        pairs = np.array([*zip(self.values[one], self.values[other], strict=False)], float).T
        if one == other or not pairs.size or not (np.isfinite(pairs) & (pairs > 0)).all():
            return None
        ratio = intervals.signed(np.log(pairs[0] / pairs[1]), scale=1.0)
        if {one, other} <= factors.keys():
            with np.errstate(invalid="ignore", divide="ignore"):
                drawn = ratio.value + np.log(factors[one] / factors[other])
            ratio = intervals.widened(ratio, drawn)
        return ratio.moved(math.expm1)

    def beyond(self, base: str, most: float) -> list[str]:
        """Return the labels whose best estimate is above that of `base` by more than `most`."""
        shares = {label: self.above(label, base) for label in self.values if label != base}
        return [label for label, share in shares.items() if not share or share.value > most]


def conclude(
    question: Question,
    ranked: Order,
    compared: Compared,
    terms: "Known",
    *,
    pick: str | None = None,
    **rest: Any,
) -> Verdict:
    """Return an order's verdict.

    `pick` is the pick if that is not the order's best, and `rest` has further fields.

    The reasons start with limits of the answer, then give the gaps to the next alternative and to
    data-parallel training.
    """
    label, ruled = pick or ranked.best, rest.get("ruled", False)
    open_ = [ranked.best, *sorted(ranked.open, key=ranked.value)]
    open_ *= not (ruled or ranked.decided)
    others = sorted((other for other in ranked.estimates if other != label), key=ranked.value)
    runner_up = next(iter(others), None)
    plain = (k for k in compared.values if terms.names.get(k) in DATA_PARALLEL)
    plain = (k for k in plain if k not in (label, ALONE))
    base: str | None = rest.get("baseline") or next(plain, None)
    gaps, reasons = dict[str, Estimate](), list[Reason]()
    for code, other in (("next", runner_up), ("baseline", base)):
        if other is None or other in (label, *gaps):
            continue
        if gap := _gap(compared, other, label, terms.heavy):
            gaps[other] = gap
            reasons.append(question.behind(code, other, gap, ranked.margin))
    if runner_up is None and len(compared.values) > 1 and label in ranked.estimates:
        reasons.append(Reason("only"))
    reasons += rest.get("reasons", ())
    rest["reasons"] = sorted(reasons, key=lambda reason: reason.code not in LIMITS)
    doubt = would_decide(ranked, len(compared.values[ranked.best]), terms)
    rest["would_decide"] = None if ruled and ranked.open else doubt
    nearest = gaps.get(runner_up or "")
    candidates = [*dict.fromkeys([label, *open_])]
    return Verdict(question, ranked, label, candidates, runner_up, nearest, **rest)


def _gap(compared: Compared, other: str, label: str, heavy: bool) -> Estimate | None:
    """Estimate by how much `other` is behind; if seeds differ, from both estimates in tables."""
    if len(compared.values[other]) == len(compared.values[label]):
        return compared.behind(other, label, heavy)
    later, first = (intervals.estimate(compared.values[k], heavy=heavy) for k in (other, label))
    apart = later.value - first.value
    return Estimate(apart, intervals.MEAN, None, None, "") if math.isfinite(apart) else None


def reasons_in(document: Row) -> list[str]:
    """Return the reasons of a document `verdict` in words, without those in its sentence.

    First comes what would decide it, or the first limit of the answer where that has one. Next
    comes the basis of the loss, which every reader needs. Raises InputError for unknown reasons.
    """
    rows = [document["would_decide"], *document["reasons"]]
    try:
        rows.insert(0, rows.pop(1) if rows[1:] and rows[1]["code"] in LIMITS else None)
        reasons = [Reason.read(row) for row in rows if row]
        texts = [str(reason) for reason in reasons if reason.code != "wins"]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = "verdict.reasons: not written by `simulate`, `tune` or `sweep`; run it again"
        raise InputError(what) from error
    basis = [f"Loss {document['basis']}."] if document["basis"] else []
    first = bool(rows[0] or rows[1]) and len(texts) > 0
    texts = [*texts[:first], *basis, *texts[first:]]
    return [text for text in texts if text not in document["sentence"]]


def quickest(
    ranked: Order, losses: Compared, times: Mapping[str, float]
) -> tuple[str, list[Reason]]:
    """Return the quickest alternative whose loss is within the error of the best, and the reason.

    Considers alternatives whose loss is within the error of the best loss, and which take at most
    `MARGIN` longer than the quickest. `times`: the time of each, or another amount to minimise.
    """
    near = [ranked.best]
    for label in ranked.open if ranked.model else ():
        gap = losses.above(label, ranked.best)
        if gap is None or gap.span[0] <= 0 <= gap.span[1]:
            near.append(label)
    most = (1 + MARGIN) * min(times[label] for label in near)
    label = min((label for label in near if times[label] <= most), key=ranked.value)
    return label, [Reason("by-time")] * (len(near) > 1)


def least_loss(ranked: Order, losses: Compared, base: str) -> tuple[str, list[Reason]]:
    """Return the alternative surest to lose no more than `base`; give a reason unless it is best.

    Only alternatives within `MARGIN` of the best are considered.
    """
    most = (1 + MARGIN) * ranked.value(ranked.best)
    near = [label for label, estimate in ranked.estimates.items() if estimate.value <= most]
    above = {label: losses.above(label, base) for label in near}
    ends = {label: share.span[1] if share else 0.0 for label, share in above.items()}
    label = min(near, key=lambda label: (ends[label], ranked.value(label)))
    return label, [Reason("by-loss", {"margin": MARGIN})] * (label != ranked.best)


def surest(
    ranked: Order, best: str, simplicity: Callable[[str], Any], unit: str
) -> tuple[str, list[Reason]]:
    """Return the simplest alternative that is as good as `best` and as certain, and the reason.

    "As good" means equivalent in the order, or an estimate within `ALIKE` of the best. "As certain"
    means that the interval's upper end exceeds the least one by at most the order's margin.
    """
    estimates, equals = ranked.estimates, [best]
    equals += [k for k in ranked.equivalent if k != best and best == ranked.best]
    if best not in estimates:
        return min(equals, key=simplicity), []
    close = ALIKE * abs(estimates[best].value)
    equals += [k for k in ranked.open if abs(ranked.value(k) - ranked.value(best)) <= close]
    ends = {label: estimates[label].span[1] for label in equals}
    least = min(ends.values())
    most = least + ranked.margin * abs(least)
    pick = min((label for label in ends if ends[label] <= most), key=simplicity)
    if ends[best] <= most:
        return pick, []
    low, high = ({"value": end, "unit": unit} for end in estimates[best].span)
    return pick, [Reason("surer", {"label": best, "low": low, "high": high})]


def at_equal_loss(
    losses: Compared, times: Compared, base: str, worths: Iterable[float]
) -> Compared:
    """Return the times (seconds) after which each loss would equal the mean loss of `base`.

    `worths`: relative changes of the losses for `MARGIN` of the tokens; the least gives the
    exponent by which tokens grow with the loss.
    """
    power = math.log1p(MARGIN) / math.log1p(min(worths, default=MARGIN))
    goal = float(np.mean(losses.values[base]))
    equal = {
        label: [
            time * (loss / goal) ** power if math.isfinite(loss) and loss > 0 else math.inf
            for time, loss in zip(row, losses.values[label], strict=True)
        ]
        for label, row in times.values.items()
    }
    shared = losses.factors.get(base, 1.0)
    drawn = {  # an error that the baseline shares leaves the difference in loss as it is
        label: (losses.factors.get(label, shared) / shared) ** power * times.factors.get(label, 1.0)
        for label in {**losses.factors, **times.factors}
    }
    return Compared(equal, drawn)


def would_decide(ranked: Order, seeds: int, terms: "Known") -> Reason | None:
    """Return what would decide between the best and equally good others; None: nothing."""
    if seeds == 1 and not terms.exact:
        return Reason("one-seed", {"seeds": ENOUGH})
    if not ranked.open:
        return None
    if not ranked.unsettled:
        return Reason("equivalent", {"labels": ranked.open, "margin": ranked.margin})
    if ranked.model:
        return _one_more_run(ranked, terms) if terms.of_loss else Reason("time-model")
    short = [k for k in (ranked.best, *ranked.unsettled) if k not in ranked.estimates]
    if short:
        return Reason("not-reached", {"labels": short})
    return Reason("seeds" if ranked.seeds else "too-many", {"seeds": ranked.seeds or MOST})


def _one_more_run(ranked: Order, terms: "Known") -> Reason:
    """Return the short run that would narrow the losses most: where the error is largest."""
    trials = {label: terms.trials.get(label) for label in (ranked.best, *ranked.unsettled)}
    widths = {label: trial["sd"] for label, trial in trials.items() if trial}
    if not widths:
        return Reason("loss-model")
    label = max(widths, key=lambda label: widths[label])
    run = {key: round(terms.trials[label][key]) for key in ("workers", "tau", "steps")}
    return Reason(
        "loss-model-run", {"label": label, "algorithm": terms.names.get(label, label), **run}
    )


class Known(NamedTuple):
    """Properties of runs beside their scores.

    `heavy`: times have no finite variance, or vary too much over seeds; `exact`: nothing is random,
    so one seed is enough; `bases`: the bases of losses by label; `models`: errors of losses and
    times, which add to the spread over seeds; `rows`: summaries by label, as in `simulate --json`;
    `names`: programs by label; `equal_tokens`: runs of a learning curve end after equal tokens;
    `of_loss`: losses have errors, not only times; `trials`: `LossModel.trial` by label.
    """

    heavy: bool = False
    exact: bool = False
    bases: Bases = MappingProxyType({})
    models: Models = NO_MODELS
    rows: Mapping[str, Row] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    equal_tokens: bool = False
    of_loss: bool = False
    trials: Mapping[str, Mapping[str, float]] = MappingProxyType({})


NOTHING_KNOWN = Known()


def of_runs(groups: Groups, target: float | None, known: Known = NOTHING_KNOWN) -> Verdict:
    """Return which algorithm to use, and whether it is surely the best.

    With a target, it is the lowest mean time (median if `known.heavy`) among algorithms that
    reached it with every seed, else the one that reached it most often. Otherwise, after equal
    tokens, it is the fewest days at equal loss, else the lowest mean loss at the end of the
    shortest run. Without a loss, it is the fewest seconds per step or, with sampled clients, per
    gradient that reaches the model. Algorithms that stall with some seed are excluded, and so are
    bounds, whose workers never meet.
    """
    stalled = [label for label, runs in groups.items() if any(run.stall for run in runs)]
    bounds = [label for label, runs in groups.items() if runs and runs[0].bound]
    pairs = (("stalled", stalled), ("bound", bounds))
    out = [Reason(code, {"labels": labels}) for code, labels in pairs if labels]
    left = {label: runs for label, runs in groups.items() if label not in (*stalled, *bounds)}
    if not left:
        return Verdict(Question("stalled", "any that trains", "{}"), reasons=out)
    models = {label: known.models[label] for label in left if label in known.models}
    case = _Case(left, known._replace(models=models), out)
    if target is not None:
        times = scored(left, "time_to_target", target)
        if any(map(reached, times.values())):
            return case.to_target(times, target)
        case.reasons.insert(0, Reason("missed", {"target": target}))
    losses = {k: np.nan_to_num(v, nan=np.inf) for k, v in scored(left, "loss").items()}
    if not any(np.isfinite(values).all() for values in losses.values()):
        return case.quickest()
    return case.equal_loss() if known.equal_tokens else case.lowest_loss(losses)


class _Case(NamedTuple):
    """The runs that a verdict is about, by label, with their properties and the reasons so far."""

    groups: Groups
    known: Known
    reasons: list[Reason]

    @property
    def terms(self) -> Terms:
        return Terms(self.known.exact, self.known.heavy)

    def to_target(self, times: Mapping[str, list[float]], target: float) -> Verdict:
        """Answer by the time to a loss that some run reached."""
        ran = {
            label: [np.inf if diverged(run) else run.duration for run in runs]
            for label, runs in self.groups.items()
        }
        models = self.known.models.items()
        factors = {k: model.to_target(self.groups[k], target) for k, model in models}
        ranked = order(times, ran, terms=self.terms, factors=factors)
        goal, tells = f"least time to loss {target:g}", f"loss {target:g} after {{}}"
        if ranked.estimates:
            question = Question("time_to_target", goal, tells)
            return self.stated(question, ranked, Compared(times, factors))
        return self.conclude(Question("reached", goal, tells), ranked, Compared(times))

    def lowest_loss(self, losses: Mapping[str, np.ndarray]) -> Verdict:
        """Answer by the loss at the end of the shortest run."""
        models, end = self.known.models, _end(self.groups)
        factors = {k: model.of_loss(self.groups[k], end) for k, model in models.items()}
        worths = [model.worth(self.groups[k], end) for k, model in models.items()]
        terms = Terms(self.known.exact, margin=min(worths, default=MARGIN))
        ranked = order(losses, losses, terms=terms, factors=factors)
        where = f"loss at {human(end)}"
        question = Question("loss", f"lowest {where}", f"{where}: {{}}", "")
        return self.conclude(question, ranked, Compared(losses, factors))

    def equal_loss(self) -> Verdict:
        """Answer by the days to the baseline's loss, if all runs use equal tokens."""
        groups, known, models = self.groups, self.known, self.known.models.items()
        last = {k: [run.curve["loss"][-1] for run in runs] for k, runs in groups.items()}
        lasting = {k: [run.duration for run in runs] for k, runs in groups.items()}
        paces = {k: model.times for k, model in models if model.times is not None}
        losses = Compared(last, {k: model.of_loss(groups[k], math.inf) for k, model in models})
        base = baseline(last, known.names)
        worths = [model.worth(groups[k], math.inf) for k, model in models]
        equal = at_equal_loss(losses, Compared(lasting, paces), base, worths)
        ranked = order(equal.values, equal.values, terms=self.terms, factors=equal.factors)
        used = {k: known.rows.get(k, {}).get("used") or {} for k in groups}
        tokens = {k: used[k].get("tokens", {}).get("mean") or 1.0 for k in groups}
        most = max(tokens.values())
        ends = {k: float(np.mean(lasting[k])) * most / tokens[k] for k in groups}
        pick, why = quickest(ranked, losses, ends)
        why += self.reasons
        if tokens[pick] < (1 - ALIKE) * most:
            why.append(Reason("fewer-tokens", {"label": pick, "share": tokens[pick] / most}))
        rows = {k: row for k, row in known.rows.items() if k in groups}
        return conclude(
            of_equal_loss(base),
            ranked,
            equal,
            known,
            pick=pick,
            reasons=why,
            basis=known.bases.get(pick),
            spent={k: Spent.of(row, losses.above(k, base)) for k, row in rows.items()},
            baseline=base if rows else None,
        )

    def quickest(self) -> Verdict:
        """Answer by the time of a step or, with sampled clients, of a gradient."""
        groups, models = self.groups, self.known.models.items()
        sampled = all(run.gradients is not None for runs in groups.values() for run in runs)
        measure = "seconds_per_gradient" if sampled else "seconds_per_step"
        paces = scored(groups, measure)
        self.reasons.append(Reason("no-loss"))
        factors = {k: model.times for k, model in models if model.times is not None}
        ranked = order(paces, terms=self.terms, factors=factors)
        what = PACES[measure][0]
        question = Question(measure, f"fewest seconds per {what}", f"{{}} per {what}")
        silent = self._replace(known=self.known._replace(bases={}))
        return silent.stated(question, ranked, Compared(paces, factors))

    def stated(self, question: Question, ranked: Order, compared: Compared) -> Verdict:
        """Return the verdict with the interval of the pick's time that the tables state."""
        ends = self.known.models.get(ranked.best, NO_ERRORS).stated.get(question.measure)
        rows, measure = self.known.rows, question.measure
        table = {k: stated(row[measure]) for k, row in rows.items() if row.get(measure)}
        ranked = ranked.as_in(table).stating(ranked.best, ends)
        return self.conclude(question, ranked, compared)

    def conclude(
        self, question: Question, ranked: Order, compared: Compared, **rest: Any
    ) -> Verdict:
        """Return the verdict that follows from an order."""
        basis = self.known.bases.get(rest.get("pick") or ranked.best)
        rest |= {"reasons": self.reasons, "basis": basis}
        return conclude(question, ranked, compared, self.known, **rest)


def of_equal_loss(base: str) -> Question:
    """Return the question of the fewest days to the loss of the `base`."""
    return Question(EQUAL_LOSS, f"fewest days to the loss of {base}", f"{{}} to the loss of {base}")


def baseline(losses: Mapping[str, Values], names: Mapping[str, str]) -> str:
    """Return the baseline of losses: data-parallel training, else the lowest loss."""
    means = {k: float(np.mean(v)) for k, v in losses.items()}
    plain = (k for k, loss in means.items() if names.get(k) in DATA_PARALLEL and loss < math.inf)
    return next(plain, None) or min(means, key=lambda k: means[k])


def of_points(picks: Sequence[Row], words: str, measure: str) -> Verdict:
    """Return the verdict on a sweep from the `picks` of its points: what is best, and where."""
    labels = Counter(pick["label"] for pick in picks if pick["label"])
    wins = Counter(pick["label"] for pick in picks if pick["label"] and pick["decided"])
    ranked = sorted(labels, key=lambda label: (-wins[label], -labels[label]))
    reasons = [
        Reason("wins", {"label": label, "count": wins[label], "of": len(picks)})
        for label in ranked
        if wins[label]
    ]
    question = Question(measure, f"least {words} at each point", "{}")
    sure = len(ranked) == 1 and wins[ranked[0]] == len(picks)
    parts = [f"{reason.numbers['label']} at {reason.numbers['count']}" for reason in reasons]
    unsure = [pick for pick in picks if not (pick["label"] and pick["decided"])]
    if unsure:
        parts.append(f"undecided at {len(unsure)}")
    text = f"Least {words} of {len(picks)} points: {'; '.join(parts)}."
    return Verdict(
        question, pick=ranked[0] if sure else None, candidates=ranked, reasons=reasons, text=text
    )


def scored(groups: Groups, measure: str, target: float | None = None) -> dict[str, list[float]]:
    """Return a `measure` of every run by label; smaller is better. See `of_runs`."""
    if target is not None and measure in ("time_to_target", "reached"):
        return {label: [crossing(run, target) for run in runs] for label, runs in groups.items()}
    end = _end(groups)
    _, score = PACES.get(measure, ("", lambda run: loss_at(run, end)))
    return {label: [score(run) for run in runs] for label, runs in groups.items()}


def _end(groups: Mapping[str, Sequence[Run]]) -> float:
    """Return when the shortest run ends, in seconds."""
    return min(run.duration for runs in groups.values() for run in runs)


def mark(pick: str | None, candidates: Sequence[str], row: Row) -> str:
    """Return one word for a row's place in the verdict of a search."""
    if row["label"] == pick:
        return "pick"
    if row["label"] in candidates:
        return "as good"
    return "given up early" * (bool(row["stopped"]) and not row.get("at_equal_loss"))


def to_run(document: Row, label: str | None, where: str) -> str | None:
    """Return the algorithm of a document to run: `label`, else its pick; None without one.

    Raises InputError if the answer is to train on one worker.
    """
    pick: str | None = label or document["pick"]["label"]
    if pick == ALONE:
        others = (row["label"] for row in document["ranking"] if row["label"] != ALONE)
        remedy = f"to run the best of the others, name it: {next(others, 'there is none')!r}"
        raise InputError(f"{where}: {ALONE} needs no averaging; {remedy}")
    return pick
