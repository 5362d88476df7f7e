"""The objective of a search: one number per run, to be minimised (time, loss or cost)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from ...cluster.prices import least_per_second, price_per_second
from ...errors import InputError
from ...objectives.learning_curve.objective import Expected
from ...results import consumption, prediction_interval, verdict
from ...results.consumption import SECONDS_PER_DAY as DAY
from ...results.order import MARGIN
from ...results.prediction_interval import NO_ERRORS, Errors
from ...results.run import Run, diverged
from ...results.statistics import (
    at,
    crossing,
    held_up,
    human,
    loss_at,
    with_unit,
)
from ...scenario.scenario import Scenario
from ...scenario.tables import Cap, NoObjective
from ..result import equal_tokens

TOKENS = "loss-at-tokens"
STEP_TIME, GRADIENT_TIME = PACES = ("seconds-per-step", "seconds-per-gradient")
WEIGHED = ("cost-to-loss", TOKENS)  # chosen by time, money and loss in [tune]
NEVER = 1e12  # a value larger than that of any run
Real = Annotated[float, BeforeValidator(lambda number: math.inf if number is None else number)]
"""A number that becomes null in JSON if it is infinite."""
FARTHEST = 10.0  # the largest gap, for a diverged run


class Modelled(NamedTuple):
    """What models of losses and times add to a value.

    `basis`: the basis of a learning curve's loss; `why`: reasons why it is extrapolated. `factors`:
    draws of the relative error of the value or its lower bound, empty without an error; `steps`:
    likewise for the steps to the target, and `times` for the time after equal tokens. `margin`: the
    share of the value within which others are equivalent. `spreads`: variance and degrees of
    freedom of shorter and longer times, if links have an error. `trial`: the result of
    `Expected.trial`.
    """

    basis: str | None
    why: tuple[str, ...]
    factors: tuple[Real, ...]
    steps: tuple[Real, ...]
    margin: float
    spreads: tuple[Real, ...]
    times: tuple[Real, ...] = ()
    trial: Mapping[str, Real] | None = None


class Score(NamedTuple):
    """The score of one run.

    `value`: seconds, loss or money; infinite if the run missed the target or broke the cap. `gap`:
    the share of the way to the target left at the end, in the logarithm of the loss (1: no
    progress), or how many times the cap was exceeded. `ran`: the seconds that the run was given,
    infinite if its steps ended it. `notes`: the notes of the run. `used`: the result of
    `consumption.used` at the value. `model`: set under a learning curve. `held_up`: the result of
    `statistics.held_up`.
    """

    value: Real
    gap: float
    ran: Real
    notes: tuple[str, ...] = ()
    used: Mapping[str, Real] | None = None
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
        """The value; a run without a value ranks behind all others, by its gap."""
        return self.value if self.reached else NEVER * (1 + self.gap)


Outcome = tuple[float, float, float]
"""The value of a run, the time (s) when it had this value, and its gap; see `Score`."""


@dataclass(frozen=True)
class TuningObjective:
    """The quantity to minimise: the row of `TABLE` called `name`, with its numbers.

    The loss counts at `deadline` (seconds), or after `tokens` tokens: after `steps`, or fewer steps
    of all workers if others sample clients. Times per step count only for runs that keep the `cap`.
    `currency`: the currency of prices; `second`: lower bound on the cost of a second of a run, in
    the unit of the value; `heavy`: whether the value depends on times without a finite variance;
    `day`: the worth of a day in money; `max_loss`: the share by which a loss may exceed that of
    data-parallel training.
    """

    name: str
    target: float | None = None
    deadline: float | None = None
    second: float = 0.0
    heavy: bool = False
    cap: Cap | None = None
    currency: str = ""
    steps: int | None = None
    tokens: float = 0.0
    day: float = 0.0
    max_loss: float | None = None

    def score(
        self, run: Run, scenario: Scenario, model: Expected | None = None,
        errors: Errors = NO_ERRORS,
    ) -> Score:  # fmt: skip
        """Score a finished run; `model` gives its loss on a learning curve. Raises InputError."""
        given = scenario.run
        ended = given.duration is None or (given.steps is not None and run.steps >= given.steps)
        ran = math.inf if ended else given.duration or math.inf
        value, time, gap = TABLE[self.name].outcome(self, run, scenario)
        spent = consumption.used(scenario, run, time)
        model_of = self._modelled(model, errors, run, time)
        return Score(value, gap, ran, tuple(run.notes), spent, model_of, held_up(run))

    def _modelled(
        self, model: Expected | None, errors: Errors, run: Run, time: float
    ) -> Modelled | None:
        if errors.loss is None and errors.times is None:
            return None
        margin, drawn, steps = MARGIN, np.ones(0), np.ones(0)
        if self.cap:
            model, drawn = None, drawn if errors.times is None else errors.times
        elif self.target:
            drawn = errors.to_target([run], self.target)
            if errors.loss is not None:
                steps = Errors(errors.loss).to_target([run], self.target)
        elif not self.steps or errors.loss is not None:
            losses = Errors(errors.loss) if self.steps else errors
            drawn, margin = losses.of_loss([run], time), losses.worth([run], time)
        basis, why = (model.basis, model.why) if model else (None, ())
        quantity = prediction_interval.TARGET if self.target else prediction_interval.PACE
        spreads = errors.links.spreads(quantity) if errors.links else ()
        spread = tuple(part for spread in spreads for part in (spread.variance, spread.freedom))
        times = errors.times if self.steps and errors.times is not None else np.ones(0)
        return Modelled(
            basis, why, _rounded(drawn), _rounded(steps), margin, spread, _rounded(times),
            errors.loss.trial if errors.loss else None,
        )  # fmt: skip

    def at_least(self, score: Score) -> float:
        """Return the value of a run, or a lower bound if it was cut before the target."""
        if score.reached:
            return score.value
        if self.cap:
            return math.inf
        return score.ran * self.second if self.second else 0.0

    @property
    def of_loss(self) -> bool:
        """Whether the value depends on a loss."""
        return self.name not in PACES

    @property
    def within(self) -> str:
        """The limit in words: the cap, the tokens or the deadline."""
        limit, tokens = TABLE[self.name].limit, with_unit(self.tokens, "#")
        return limit.format(aim=self, tokens=tokens, deadline=human(self.deadline))

    @property
    def ruled(self) -> bool:
        """Whether the user's settings weigh time, money and loss."""
        return bool(self.day) or self.max_loss is not None

    def spent(self, score: Score) -> float:
        """Return a run's cost plus the price of its time; its seconds if time has no price."""
        used = score.used or {}
        days = used.get("days", math.nan)
        return used.get("cost", math.nan) + self.day * days if self.day else DAY * days

    @property
    def says(self) -> str:
        """The name of the value, for tables and axes."""
        beside = " of money and time" if self.day else ""
        return TABLE[self.name].measure.format(aim=self, beside=beside)

    @property
    def tells(self) -> str:
        """Words for a value: "loss 0.1 after {}"."""
        return TABLE[self.name].sentence.format(aim=self, value="{}")

    @property
    def unit(self) -> str:
        """The unit of a value: "s", or for money its currency, or "" for a loss."""
        return TABLE[self.name].unit.format(aim=self)


def _rounded(drawn: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{x:.6g}") for x in drawn.tolist())


def _step_time(aim: TuningObjective, run: Run, scenario: Scenario) -> Outcome:
    assert aim.cap is not None
    gap = _beyond(run, scenario.algorithm[0].parameters.get("tau"), aim.cap)
    within = gap <= 1 and not run.stall
    _, seconds = verdict.PACES[aim.name.replace("-", "_")]
    return seconds(run) if within else math.inf, run.duration, gap


def _beyond(run: Run, tau: Any, cap: Cap) -> float:
    """Return by what factor a run exceeds `cap`, in period or delay; at most 1 if it keeps it."""
    # Server and gossip exchange at every step; an update counts as the steps that it contains.
    periods = [period for period in run.curve["tau"] if math.isfinite(period)]
    longest = max(periods, default=1.0 if run.curve["bytes"][-1] else run.steps)
    if isinstance(tau, int):
        longest = max(longest, tau)
    step = 1.0 if run.staleness_unit == "steps" or not run.updates else run.steps / run.updates
    delay = max(run.staleness, default=0) * step
    return max(longest / cap.tau, (1 + delay) / (1 + cap.delay))


def _at_tokens(aim: TuningObjective, run: Run, scenario: Scenario) -> Outcome:
    given = scenario.run.steps
    assert given is not None
    if run.steps < given or diverged(run):
        return math.inf, run.duration, FARTHEST
    share = scenario.cluster.participants / scenario.participants(scenario.algorithm[0])
    steps = share * given if share < 1 else run.steps
    time, loss = (
        float(np.interp(steps, run.curve["step"], run.curve[key])) for key in ("time", "loss")
    )
    return loss, time, FARTHEST


def _at_deadline(aim: TuningObjective, run: Run, scenario: Scenario) -> Outcome:
    assert aim.deadline is not None
    time = min(aim.deadline, run.curve["time"][-1])
    loss = loss_at(run, time)
    return loss if math.isfinite(loss) else math.inf, time, FARTHEST


def _to_target(aim: TuningObjective, run: Run, scenario: Scenario) -> Outcome:
    assert aim.target is not None
    losses = np.asarray(run.curve["loss"])
    if losses[0] <= aim.target:
        raise InputError(
            f"{scenario.file}: run.target_loss = {aim.target:g}: reached at the start "
            f"(loss {losses[0]:.4g}); write a smaller one"
        )
    gap, valid = FARTHEST, losses[np.isfinite(losses) & (losses > 0)]
    if len(valid) and not diverged(run):
        way = math.log(max(valid[0] / aim.target, 1.0 + 1e-9))
        left = math.log(max(valid[-1] / aim.target, 1e-9)) / way
        gap = float(np.clip(left, 0.0, FARTHEST))
    time = crossing(run, aim.target)
    if aim.name != "cost-to-loss" or not math.isfinite(time):
        return time, time, gap
    return at(run, time, "cost") + aim.day * time / DAY, time, gap


class Kind(NamedTuple):
    """A row of `TABLE`; its texts are formatted with the objective `aim` and its numbers."""

    outcome: Callable[[TuningObjective, Run, Scenario], Outcome]
    unit: str
    measure: str
    sentence: str
    limit: str = ""
    needs: tuple[str, ...] = ()


CAP = "with at most {aim.cap.tau} steps between averages and {aim.cap.delay} steps of delay"
GRADIENT = verdict.PACES["seconds_per_gradient"][0]
TARGET = "run.target_loss"
LOSS = ("", "loss {aim.within}", "loss {value} {aim.within}")
FOR, AFTER = (f"loss {{aim.target:g}} {word} {{value}}" for word in ("for", "after"))
TABLE = {
    "time-to-loss": Kind(_to_target, "s", "time to loss {aim.target:g}", AFTER, "", (TARGET,)),
    "loss-at-deadline": Kind(_at_deadline, *LOSS, "after {deadline}"),
    "cost-to-loss": Kind(
        _to_target,
        "{aim.currency}",
        "cost{beside} to loss {aim.target:g}",
        FOR,
        "",
        (TARGET, "cost.node_hour"),
    ),
    TOKENS: Kind(_at_tokens, *LOSS, "after {tokens} tokens", ("run.steps", "cost.tokens")),
    STEP_TIME: Kind(_step_time, "s", "time per step", "{value} per step", CAP, ("run.cap",)),
    GRADIENT_TIME: Kind(
        _step_time, "s", f"time per {GRADIENT}", f"{{value}} per {GRADIENT}", CAP,
        ("cluster.sampling", "run.cap"),
    ),
}  # fmt: skip
OBJECTIVES = tuple(TABLE)
REMEDIES = {
    "cluster.sampling": "cluster.sampling = { clients = 100 }",
    "run.cap": "run.cap = { tau = 16, delay = 4 }: the limits of your training, because the "
    "rarest and latest averages are always the fastest",
    "run.steps": "run.steps = 100_000: of each worker, after which the losses are compared",
    "run.target_loss": "run.target_loss: the loss to reach, or choose --objective loss-at-deadline",
    "cost.node_hour": "cost.node_hour = 1.5, cost.egress_per_gb = 0.08, or both",
    "cost.tokens": "cost.tokens = 32, of one worker's step",
}


def _default(scenario: Scenario) -> str:
    """Return the default objective."""
    if isinstance(scenario.objective, NoObjective):
        return GRADIENT_TIME if scenario.cluster.sampling else STEP_TIME
    tune = scenario.tune
    if scenario.run.target_loss:
        return "cost-to-loss" if tune.day_worth else "time-to-loss"
    if tune.day_worth or tune.max_loss is not None:
        return TOKENS
    counted = consumption.tokens_per_step(scenario)
    return TOKENS if counted and equal_tokens(scenario) else "loss-at-deadline"


def tuning_objective(
    scenario: Scenario, name: str | None, parts: Sequence[Scenario] = ()
) -> TuningObjective:
    """Return the objective called `name`, or the default one.

    `parts`: scenarios of parts of the cluster, which may cost less. Raises InputError if the
    scenario lacks settings that the objective needs.
    """
    run, heavy = scenario.run, scenario.heavy_tailed
    name = _default(scenario) if name is None else name
    _demand(scenario, name)
    day = scenario.tune.day_worth[0] if scenario.tune.day_worth else 0.0
    second = 1.0 if name == "time-to-loss" else min(map(least_per_second, (scenario, *parts)))
    tokens = (consumption.tokens_per_step(scenario) or 0.0) * scenario.cluster.participants
    numbers: dict[Any, dict[str, Any]] = {
        _to_target: {"target": run.target_loss, "second": second + day / DAY, "heavy": heavy},
        _at_deadline: {"deadline": run.duration},
        _at_tokens: {"steps": run.steps, "tokens": tokens * (run.steps or 0)},
        _step_time: {"heavy": heavy, "cap": run.cap},
    }
    chosen = numbers[TABLE[name].outcome]
    if name in WEIGHED:
        chosen |= {"day": day, "max_loss": scenario.tune.max_loss}
    return TuningObjective(name, currency=scenario.cost.currency or "", **chosen)


def _demand(scenario: Scenario, name: str) -> None:
    """Raise InputError for an unknown objective, or a scenario without the settings it needs."""
    file, spec, cost = scenario.file, scenario.objective, scenario.cost
    if name not in TABLE:
        raise InputError(f"--objective {name}: unknown; choose one of: {', '.join(TABLE)}")
    for key, able in (("day_worth", WEIGHED), ("max_loss", WEIGHED[1:])):
        if getattr(scenario.tune, key) is not None and name not in able:
            raise InputError(
                f"{file}: tune.{key}: {name} does not weigh that; remove it, or choose "
                f"--objective {' or '.join(able)}"
            )
    if isinstance(spec, NoObjective) and name not in PACES:
        raise InputError(
            f'{file}: objective.kind = "none": has no loss, which {name} needs; choose an '
            f'objective such as objective.kind = "softmax", or --objective {STEP_TIME}'
        )
    price = price_per_second(scenario, served=True) or cost.egress_per_gb
    indirect = {"cost.node_hour": price, "cost.tokens": consumption.tokens_per_step(scenario)}
    for key in TABLE[name].needs:
        if not (indirect[key] if key in indirect else attrgetter(key)(scenario)):
            raise InputError(f"{file}: {key}: missing, but {name} needs it; write {REMEDIES[key]}")
