"""The objective of a search: one number per run, to be minimised (time, loss or cost)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...cluster.prices import least_per_second, price_per_second
from ...errors import InputError
from ...objectives.learning_curve.objective import Expected, baseline
from ...results import consumption, intervals, pick, prediction_interval
from ...results.divergence import diverged
from ...results.loss_model import NO_ERRORS, Errors
from ...results.order import MARGIN
from ...results.run import Run
from ...results.statistics import (
    at,
    crossing,
    format_loss,
    goodput,
    held_up,
    human,
    loss_at,
    number,
    with_unit,
)
from ...scenario.scenario import Scenario
from ...scenario.tables import Cap, LearningCurve, NoObjective

TOKENS, GOODPUT, PACE, USEFUL = (
    "loss-at-tokens", "goodput", "seconds-per-step", "seconds-per-gradient"
)  # fmt: skip
PACES = {PACE: pick.PACES["seconds_per_step"], USEFUL: pick.PACES["seconds_per_gradient"]}
OBJECTIVES = (
    "time-to-loss", "loss-at-deadline", "cost-to-loss", "loss-at-budget", TOKENS, *PACES, GOODPUT
)  # fmt: skip
NEVER = 1e12  # above the value of any run
FARTHEST = 10.0  # the largest gap: that of a diverged run


class Modelled(NamedTuple):
    """What models of losses and times say of a value beside it.

    `basis`: that of the loss, if a learning curve's, and `why`, what makes it extrapolated;
    `factors`: draws of what the value, or its lower bound, may be wrong by, none if nothing is
    known to err, and `steps` of what the steps to the target may; `margin`: the share of it up to
    which others are equivalent; `spreads`: variance and freedom of times that are shorter, and of
    those that are longer, where links have an error.
    """

    basis: str | None
    why: tuple[str, ...]
    factors: tuple[float, ...]
    steps: tuple[float, ...]
    margin: float
    spreads: tuple[float, ...]


class Score(NamedTuple):
    """The score of one run.

    `value`: seconds, loss or money; infinite where the target was not reached, or the cap not kept.
    `gap`: the share of the way to the target left at the end, in the logarithm of the loss (1: no
    progress), or how many times the cap was exceeded. `ran`: the seconds that the run was given,
    infinite where its steps ended it. `notes`: those of the run. `used`: as
    `consumption.used`, when it had the value. `model`: under a learning curve. `held_up`: as
    `statistics.held_up`.
    """

    value: float
    gap: float
    ran: float
    notes: tuple[str, ...] = ()
    used: Mapping[str, float] | None = None
    model: Modelled | None = None
    held_up: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether the run reached the target, has a final loss, or kept the cap."""
        return math.isfinite(self.value)

    @property
    def diverged(self) -> bool:
        """Whether the loss diverged."""
        return any(note.startswith("diverged") for note in self.notes)

    @property
    def penalised(self) -> float:
        """The value; a run without one ranks behind all that have one, by its gap."""
        return self.value if self.reached else NEVER * (1 + self.gap)


@dataclass(frozen=True)
class TuningObjective:
    """The quantity to minimise: time or cost to `target`, a loss, or one of `PACES`.

    The loss is that at `deadline` (seconds) or, if sooner, once `budget` is spent, or that after so
    many `tokens`: after `steps`, or fewer of all workers where others sample clients. Paces are
    those of runs that keep the `cap`. `currency`: of prices; `second`: lower bound on the
    cost of a second of a run, in the unit of the value; `heavy`: the value depends on times
    without a finite variance; `most`: what a run uses at most (`consumption.most`).
    """

    name: str
    target: float | None = None
    deadline: float | None = None
    second: float = 0.0
    heavy: bool = False
    budget: float | None = None
    cap: Cap | None = None
    currency: str = ""
    steps: int | None = None
    tokens: float = 0.0
    most: Mapping[str, float] = field(default_factory=dict)

    def score(
        self, run: Run, scenario: Scenario, model: Expected | None = None,
        errors: Errors = NO_ERRORS,
    ) -> Score:  # fmt: skip
        """Score a finished run of `scenario`, whose loss is that of `model` under a learning curve.

        `errors`: of its loss and times. Raises InputError where it starts at the target.
        """
        notes, given = tuple(run.notes), scenario.run
        ended = given.duration is None or (given.steps is not None and run.steps >= given.steps)
        ran = math.inf if ended else given.duration or math.inf
        time, gap = run.duration, FARTHEST
        if self.cap:
            gap = beyond(run, scenario.algorithm[0].parameters.get("tau"), self.cap)
            value = PACES[self.name][1](run) if gap <= 1 and not run.stall else math.inf
        elif self.steps:
            share = scenario.cluster.participants / scenario.participants(scenario.algorithm[0])
            value = math.inf
            if run.steps >= self.steps and not diverged(run):
                steps = share * self.steps if share < 1 else run.steps
                time, value = (
                    float(np.interp(steps, run.curve["step"], run.curve[key]))
                    for key in ("time", "loss")
                )
        elif self.name == GOODPUT:
            value = math.inf if run.stall else 100 * (1 - goodput(run))
        elif self.target is None:
            assert self.deadline is not None
            curve, budget = run.curve, math.inf if self.budget is None else self.budget
            time = min(self.deadline, float(np.interp(budget, curve["cost"], curve["time"])))
            loss = loss_at(run, time)
            value = loss if math.isfinite(loss) else math.inf
        else:
            start, gap = run.curve["loss"][0], self._gap(run)
            if start <= self.target:
                raise InputError(
                    f"{scenario.file}: run.target_loss = {self.target:g}: reached at the start "
                    f"(loss {start:.4g}); write a smaller one"
                )
            value = time = crossing(run, self.target)
            if self.name == "cost-to-loss" and math.isfinite(time):
                value = at(run, time, "cost")
        spent = consumption.used(scenario, run, time)
        known = self._modelled(model, errors, run, time)
        return Score(value, gap, ran, notes, spent, known, held_up(run))

    def _modelled(
        self, model: Expected | None, errors: Errors, run: Run, time: float
    ) -> Modelled | None:
        times, margin, drawn, steps = errors.times, MARGIN, np.ones(0), np.ones(0)
        if self.name == GOODPUT or (errors.loss is None and times is None):
            return None
        if self.cap:
            model, drawn = None, drawn if times is None else times
        elif self.target:
            drawn = errors.to_target([run], self.target)
            if errors.loss is not None:
                steps = Errors(errors.loss).to_target([run], self.target)
        elif self.steps and errors.loss is None:
            pass
        else:
            at = Errors(errors.loss) if self.steps else errors
            drawn, margin = at.of_loss([run], time), at.worth([run], time)
        basis, why = (model.basis, model.why) if model else (None, ())
        quantity = prediction_interval.TARGET if self.target else prediction_interval.PACE
        spreads = errors.links.spreads(quantity) if errors.links else ()
        each = tuple(part for one in spreads for part in (one.variance, one.freedom))
        return Modelled(basis, why, _rounded(drawn), _rounded(steps), margin, each)

    def _gap(self, run: Run) -> float:
        losses = np.asarray(run.curve["loss"])
        seen = losses[np.isfinite(losses) & (losses > 0)]
        if not len(seen) or diverged(run):
            return FARTHEST
        assert self.target is not None
        way = math.log(max(seen[0] / self.target, 1.0 + 1e-9))
        return float(np.clip(math.log(max(seen[-1] / self.target, 1e-9)) / way, 0.0, FARTHEST))

    def at_least(self, score: Score) -> float:
        """Return the value of a run, or a lower bound if it was cut before the target."""
        if score.reached:
            return score.value
        if self.cap:
            return math.inf
        return score.ran * self.second if self.second else 0.0

    def horizon(self, value: float) -> float:
        """Return the seconds after which a run is sure to have exceeded `value`."""
        return value / self.second if self.second else math.inf

    @property
    def of_loss(self) -> bool:
        """Whether the value has to do with a loss."""
        return self.name not in (*PACES, GOODPUT)

    @property
    def limits(self) -> intervals.Ends:
        """The least and the largest value that a run can have."""
        return (0.0, 100.0) if self.name == GOODPUT else intervals.OPEN

    @property
    def within(self) -> str:
        """The limit in words: the cap, the budget or the deadline."""
        if self.cap:
            return f"with at most {self.cap.tau} steps between averages and {self.cap.delay} late"
        if self.steps:
            return f"after {with_unit(self.tokens, '#')} tokens"
        if self.budget is not None:
            return f"for {with_unit(self.budget, self.currency)}"
        return "" if self.name == GOODPUT else f"after {human(self.deadline)}"

    @property
    def says(self) -> str:
        """The name of the value, for tables and axes."""
        if self.name == GOODPUT:
            return "time without use"
        if self.target is None:
            return f"time per {PACES[self.name][0]}" if self.cap else f"loss {self.within}"
        return f"{'time' if self.name == 'time-to-loss' else 'cost'} to loss {self.target:g}"

    def sentence(self, value: float) -> str:
        """Return a value in words."""
        if self.name == GOODPUT:
            return f"{self.show(value)} of the workers' time"
        if self.target is None:
            if self.cap:
                return f"{human(value)} per {PACES[self.name][0]}"
            return f"loss {self.show(value)} {self.within}"
        between = "after" if self.name == "time-to-loss" else "for"
        return f"loss {self.target:g} {between} {self.show(value)}"

    @property
    def unit(self) -> str:
        """The unit of a value: "s", "% lost", or for money its currency, or "" for a loss."""
        kinds = {"time-to-loss": "s", GOODPUT: "% lost", "cost-to-loss": self.currency}
        return kinds.get(self.name, "s" if self.cap else "")

    @property
    def show(self) -> Callable[[float | None], str]:
        """The function that formats a value for reading."""
        of_loss = self.of_loss and self.target is None
        return format_loss if of_loss else partial(with_unit, unit=self.unit)


def _rounded(drawn: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{each:.6g}") for each in drawn.tolist())


def beyond(run: Run, tau: Any, cap: Cap) -> float:
    """Return how many times a run communicates too seldom, or too late; at most 1: it keeps `cap`.

    `tau`: the algorithm's parameter, if it has one: as a number it is that of a part of the model.
    Runs without collectives, of a server or gossip, exchange at every step. Updates of a server,
    and averagings, count as so many steps of each worker as they stand for.
    """
    periods = [each for each in run.curve["tau"] if math.isfinite(each)]
    longest = max(periods, default=1.0 if run.curve["bytes"][-1] else run.steps)
    if isinstance(tau, int):
        longest = max(longest, tau)
    step = 1.0 if run.staleness_unit == "steps" or not run.updates else run.steps / run.updates
    delay = max(run.staleness, default=0) * step
    return max(longest / cap.tau, (1 + delay) / (1 + cap.delay))


def tuning_objective(scenario: Scenario, name: str | None) -> TuningObjective:
    """Return the objective called `name`; None: time-to-loss if there is a target, else the loss
    at the budget or deadline that is set, or, where there is no loss, seconds per step or, with
    sampled clients, per gradient that reaches the model.

    The deadline is run.duration, or open where there is none. Raises InputError where the
    scenario lacks what the objective needs.
    """
    file, run, cost, cluster = scenario.file, scenario.run, scenario.cost, scenario.cluster
    if name is None:
        name = "time-to-loss" if run.target_loss else "loss-at-deadline"
        name = "loss-at-budget" if cost.budget and not run.target_loss else name
        if isinstance(scenario.objective, NoObjective):
            name = USEFUL if cluster.sampling else PACE
    if name not in OBJECTIVES:
        raise InputError(f"--objective {name}: unknown; choose one of: {', '.join(OBJECTIVES)}")
    if isinstance(scenario.objective, NoObjective) and name not in (*PACES, GOODPUT):
        raise InputError(
            f'{file}: objective.kind = "none": has no loss, which {name} is about; choose an '
            'objective such as objective.kind = "quadratic" or "softmax", or --objective ' + PACE
        )
    spec = scenario.objective
    floor = baseline(spec).floor if isinstance(spec, LearningCurve) else 0.0
    attainable = f"{number(1.1 * floor)}, above its floor of {number(floor)}" if floor else "0.1"
    bears = "what your training bears, as the rarest and latest averages are always the fastest"
    of_loss, of_cost = ("time-to-loss", "cost-to-loss"), ("cost-to-loss", "loss-at-budget")
    for key, value, names, remedy in (
        ("cluster.sampling", cluster.sampling, (USEFUL,), "cluster.sampling = { clients = 100 }"),
        ("run.cap", run.cap, PACES, f"run.cap = {{ tau = 16, delay = 4 }}: {bears}"),
        ("run.steps", run.steps, (TOKENS,),
         "run.steps = 100_000: of each worker, after which the losses are compared"),
        ("run.target_loss", run.target_loss, of_loss,
         f"run.target_loss = {attainable}, or choose --objective loss-at-deadline"),
        ("cost.node_hour", price_per_second(scenario, served=True) or cost.egress_per_gb, of_cost,
         "cost.node_hour = 1.5, cost.egress_per_gb = 0.08, or both"),
        ("cost.budget", cost.budget, of_cost[1:], "cost.budget = 500"),
    ):  # fmt: skip
        if name in names and not value:
            raise InputError(f"{file}: {key}: missing, and {name} is about it; write {remedy}")
    heavy, second = scenario.heavy_tailed, least_per_second(scenario)
    most = consumption.most(scenario, served=True)
    plain = TuningObjective(name, currency=cost.currency or "", most=most)
    if name == GOODPUT:
        return plain
    if name in PACES:
        return replace(plain, heavy=heavy, cap=run.cap)
    if name == TOKENS:
        each = consumption.tokens_per_step(scenario)
        if not each:
            raise InputError(
                f"{file}: cost.tokens: missing, and {name} is about it; write cost.tokens = 32, of "
                "one worker's step"
            )
        steps = run.steps or 0
        return replace(plain, steps=steps, tokens=each * cluster.participants * steps)
    if name == "loss-at-deadline":
        return replace(plain, deadline=run.duration)
    if name == "loss-at-budget":
        ends = [run.duration or math.inf, (cost.budget or 0.0) / second if second else math.inf]
        deadline = min(ends) if min(ends) < math.inf else None
        return replace(plain, deadline=deadline, budget=cost.budget)
    second = 1.0 if name == "time-to-loss" else second
    return replace(plain, target=run.target_loss, second=second, heavy=heavy)
