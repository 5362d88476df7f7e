"""Predict an algorithm's loss from a baseline's curve and a penalty.

`expect` predicts without a run. If published runs or the user's runs show an algorithm's cost, its
loss follows the baseline's curve by steps. Otherwise its program runs on a
`Surrogate`, which shows the effects of delay, noise, lost gradients and codecs.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ...inputs import untrusted
from ...programs.pieces.schedule import FixedPeriod
from ...results import intervals
from ...scenario.scenario import Algorithm, Scenario, World
from ...scenario.tables import CurveOfFile, LearningCurve
from ..objective import Nothing
from . import batch, curve, evidence
from .batch import Critical
from .curve import Curve
from .evidence import Penalty
from .surrogate import FASTEST, MODES, Diagonal, Gains, Shape, shape

ITERATIONS = 20  # until the steps and the critical batch agree
BISECTIONS = 40  # of a range of log steps, to less than 1e-9
ROUNDS = 4.0  # number of rounds over which a penalty sets in
SHARPEST = 0.1
"""Curvature times rate of the sharpest relevant modes at tuned rates, which suit means 5 steps late
(stable up to 0.28), but not 20 (0.08) (notes on delayed averaging, Zhu et al., NeurIPS 2021)."""
LOUDEST = 3e-7  # largest variance of a step's noise over the final loss, which moves by 0.02 % then
SETTLED = 0.6  # share of the largest stable curvature: sharper modes would settle late
QUARTER = 0.25  # share of a run that shows an algorithm's cost to 0.15 of its log of steps
LEAST_GAIN = 0.01  # least log of the factor of steps that more workers save, because it divides
NEAR = 0.1  # error of the log of a factor of steps up to which the penalty is linear
MECHANISM: dict[str, Any] = untrusted.packaged(__file__, "mechanism.toml")  # errors of losses
LEAST_SENT = 2  # least number of entries that a sparse codec sends


@dataclass(frozen=True, kw_only=True)
class Expected(Penalty):
    """The predicted loss of an algorithm, without a run: a baseline's curve, and a penalty.

    `direct`: whether evidence alone gives the loss, without a surrogate; `evident`: whether it
    gives the loss of the program without its codec. `period`: local steps between agreements;
    `tokens`: per worker and step; `steps`: of the run; `tau`: the period by which runs are evidence
    of the program's loss, None if they cannot be; `log_steps`: log of the factor of steps that
    determines the ratio along the run; `followed`: the loss by steps of a surrogate's run.
    """

    curve: Curve
    critical: Critical
    tokens: float
    workers: float
    steps: float
    period: float = 1.0
    direct: bool = False
    evident: bool = False
    tau: float | None = None
    log_steps: float | None = None
    followed: Callable[[float], float] | None = None
    kind: ClassVar[str] = "learning-curve"
    dimension: ClassVar[None] = None

    def make(self, workers: int, seed: int) -> Nothing:
        """Make the objective of a run, if `direct` or `followed`."""
        return Nothing(self.followed or self.loss)

    def loss(self, step: float) -> float:
        """Return the curve's loss after `step` local steps, with the penalty."""
        return float(self.parallel(step) * self.ratio(step))

    @property
    def phrase(self) -> str:
        """Return a phrase on the loss's origin, to follow a value."""
        basis = self.curve.basis.partition(",")[0]
        return f"by {'a curve ' * basis.startswith('fitted')}{basis}, {self.basis}"

    def seen(self, step: Any, critical: Any = None) -> Any:
        """Return the baseline's tokens for the loss that this run has after `step` steps."""
        return self.curve.at(step, self.progress(critical=critical))

    @property
    def beyond(self) -> bool:
        """Whether the run has more tokens than the fitted log."""
        return float(self.seen(self.steps)) > self.curve.fitted[1] * (1 + 1e-9)

    def progress(self, averaged: float | None = None, critical: Any = None) -> Any:
        """Return the progress of a step, in steps of the baseline."""
        tokens = self.tokens * (self.workers if averaged is None else averaged)
        critical = self.critical.value if critical is None else critical
        return batch.progress(tokens, self.curve.batch, critical)

    def gain(self, workers: float, critical: float | None = None) -> float:
        """Return the log ratio of one worker's steps to those of `workers`, for one loss."""
        ends = (self.progress(averaged, critical) for averaged in (workers, 1))
        return max(math.log(next(ends) / next(ends)), LEAST_GAIN)

    def worth_of_workers(self, workers: float) -> float:
        """Return the log ratio of one worker's final loss to that of `workers`."""
        progress = self.progress(workers)
        return float(self.curve.behind(self.gain(workers), self.steps, progress))

    def ratio(self, step: Any) -> Any:
        """Return the factor of the loss by evidence; it sets in over the first rounds."""
        return np.exp(self.log_ratio * self.ramp(step))

    def ramp(self, step: Any, wrong: float = 0.0) -> Any:
        """Return the share of the penalty that has set in; with `log_steps` 1 at the end.

        `wrong`: error of the log of the steps; the share is then that of the penalty's error.
        """
        if self.log_steps is None:
            return -np.expm1(-step / (ROUNDS * self.period))
        less = self.log_steps - wrong if wrong else 0.0
        set_in, end = (
            np.expm1(-steps / (ROUNDS * self.period))
            * (
                self.curve.behind(self.log_steps + wrong, steps, self.progress())
                - self.curve.behind(less, steps, self.progress())
            )
            for steps in (step, self.steps)
        )
        return set_in / end

    def parallel(self, step: Any) -> Any:
        """Return the loss of data-parallel training after `step` steps."""
        return self.curve.loss(self.seen(step))

    def factors(self, steps: Any) -> np.ndarray:
        """Return draws of the loss's error as factors at each step, shape (draws, steps).

        Curve, critical batch and penalty are drawn together; algorithms share common errors, and
        all seeds share a factor. No loss is below its draw's floor.
        """
        steps = np.atleast_1d(steps)
        drawn = self.curve.drawn(self.seen(steps, critical=self._criticals()))
        penalty = np.exp(self.errors[:, None] * self.ramp(steps, NEAR))
        least = self.curve.draws[:, :1] / self.ratio(steps)
        factor: np.ndarray = np.maximum(drawn * penalty, least) / self.parallel(steps)
        return factor

    def stretches(self, step: float, gain: float = 1.0) -> np.ndarray:
        """Draw the factor of `step` after which the loss is `gain` times that at `step`.

        Tokens, time and price to that loss have the same factor; inf: never reached.
        """
        floor, scale, exponent, shift = self.curve.draws.T
        start, progress = self.ramp(step), self.progress(critical=self._criticals()[:, 0])
        begin = self.curve.even(self.curve.at(step, progress), progress)

        def enough(times: Any) -> Any:
            """Return the factor of steps, given the penalty of a run of `times` times `step`."""
            at = np.minimum(step * times, curve.LARGEST)
            error = self.errors * self.ramp(at, NEAR) + self.log_ratio * (self.ramp(at) - start)
            with np.errstate(divide="ignore"):
                above = np.maximum(gain * self.parallel(step) * np.exp(-error) - floor, 0.0) / scale
                tokens = np.maximum(above ** (-1 / exponent) - shift, 0.0)
            return self.curve.even(tokens, progress) / begin

        if self.log_steps is None:
            return np.asarray(enough(1.0))
        low, high = np.full((2, len(floor)), [[1 / curve.LARGEST], [most := curve.LARGEST / step]])
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            less = enough(middle) <= middle
            low, high = np.where(less, low, middle), np.where(less, middle, high)
        return np.where(high < most, high, np.inf)

    @property
    def trial(self) -> dict[str, float]:
        """Return a short run that would show the algorithm's cost, and its error."""
        if self.tau is None or self.tau <= 1:
            return {}
        steps, workers = math.ceil(self.steps * QUARTER), round(self.workers)
        return {"workers": workers, "tau": self.tau, "steps": steps, "sd": self.sd}

    def worth(self, step: float, share: float) -> float:
        """Return the loss's relative rise without a `share` of the steps before `step`."""
        return float(self.parallel(step / (1 + share)) / self.parallel(step)) - 1

    def _criticals(self) -> np.ndarray:
        """Draw the critical batch, (draws, 1)."""
        critical = self.critical
        finite = critical.low > 0 and math.isfinite(critical.high)
        width = math.log(critical.high / critical.low) / (2 * intervals.NORMAL) if finite else 0.0
        drawn: np.ndarray = critical.value * np.exp(width * evidence.drawn("critical batch"))
        return drawn[:, None]


@dataclass(frozen=True)
class Goal(Shape):
    """An algorithm's surrogate; `rate`: learning rate on it, `averaged`: see `Gains`."""

    expected: Expected
    averaged: float
    rate: float
    kind: ClassVar[str] = "learning-curve"

    @property
    def dimension(self) -> int:
        """Entries of a vector."""
        return len(self.start)

    def limited(self, share: float) -> "Goal":
        """Return a copy whose curvatures are limited to a share of the largest."""
        curvature = np.minimum(self.curvature, share * self.curvature.max())
        start = self.start * np.sqrt(self.curvature / curvature)
        return replace(self, curvature=curvature, start=start)

    def make(self, workers: int, seed: int) -> Diagonal:
        """Make the objective of a run."""
        noisy = replace(self, deviation=self.deviation * np.sqrt(self.averaged))
        return Diagonal(noisy, np.zeros((workers, self.dimension)), seed, self.expected.ratio)


def goal(expected: Expected, gains: Gains, algorithm: Algorithm) -> Goal:
    """Return the recipe of the surrogate of an algorithm with these gains.

    Its unit of progress is a step of the algorithm: if all gradients are averaged, the surrogate
    has the baseline's curve, regardless of the real optimizer's learning rate.
    """
    law, end = expected.curve, max(expected.steps, 1.0)
    progress = float(expected.progress(gains.averaged))

    def excess(step: Any) -> Any:
        return law.loss(law.at(step, progress)) - law.floor

    slope = float(excess(end) - excess(end * 1.01)) / (0.01 * end)
    noise = expected.critical.value / (gains.averaged * expected.tokens) * slope
    noise = min(noise, LOUDEST * (law.floor + float(excess(end))))
    limits = min(SETTLED * gains.limit, FASTEST), min(1.0, gains.limit / SHARPEST)
    keys = algorithm.parameters
    pieces = keys.get("buckets", keys.get("fragments", 1))
    count = pieces if isinstance(pieces, int) else len(pieces)
    # so many copies of each mode that a sparse codec can omit entries
    least_sent = max(1.0, LEAST_SENT / getattr(keys.get("codec"), "ratio", 1.0))
    copies = math.ceil(count * least_sent / MODES)
    parts = vars(shape(excess, law.floor, noise, copies, limits))
    return Goal(**parts, expected=expected, averaged=gains.averaged, rate=1 / gains.signal)


def expect(world: World, *, apart: float | None = None, counted: float | None = None) -> Expected:
    """Return the predicted loss of an algorithm, without a run.

    `apart`: number of local steps between agreements, if a probe has measured it; `counted`:
    gradients that count in a step, if not those of all selected clients. Raises InputError for an
    unreadable log.
    """
    spec = world.scenario.objective
    assert isinstance(spec, LearningCurve)
    workers = world.workers if counted is None else counted
    steps = length(world)
    law, critical = baseline(spec), _critical(spec, steps * workers * spec.tokens)
    basis = "measured" if isinstance(spec.curve, CurveOfFile) else "published"
    bare = Expected(
        0.0, 0.0, basis, "", evidence.NO_ERRORS, curve=law, critical=critical, tokens=spec.tokens,
        workers=workers, steps=steps, period=max(apart or 1.0, 1.0), tau=_period(world),
    )  # fmt: skip
    bare = replace(bare, basis="extrapolated") if bare.beyond else bare
    cost = _cost(world, bare)
    evident = cost is not None
    codec = getattr(world.algorithm.parameters.get("codec"), "kind", "raw")
    period = max(bare.tau or 1.0, 1.0) if evident else bare.period
    result = replace(bare, direct=evident and codec == "raw", evident=evident, period=period)
    if cost is None:
        cost = _mechanism(world, apart or 1.0, bare)
    elif codec != "raw":
        sd = MECHANISM["codec"]
        cost = replace(
            cost, sd=math.hypot(cost.sd, sd), errors=cost.errors + sd * evidence.drawn(codec),
            basis="mechanism" if cost.basis == "published" else cost.basis,
            sentence=f"{cost.sentence}; times the cost of {codec} by the mechanism",
        )  # fmt: skip
    sources, why = law.basis, cost.why
    if bare.beyond:
        sources += f", fitted up to {law.fitted[1]:.3g} tokens and extrapolated beyond"
        why = (*why, f"more tokens than the {law.fitted[1]:.3g} of the fitted curve")
        if cost.basis in ("published", "measured"):
            cost = replace(cost, basis="extrapolated")
    sentence = f"loss: {sources}; critical batch: {critical.basis}; {cost.sentence}"
    grows = [own_run.log_steps for own_run in spec.own if own_run.log_steps and steps > law.warmup]
    of_steps = grows[0] if grows and "measured" in spec.penalty else None
    return replace(result, **vars(cost) | {"sentence": sentence, "why": why, "log_steps": of_steps})


def length(world: World) -> float:
    """Return a run's local steps, or an upper bound if its duration ends it.

    With a target loss, return the data-parallel steps to the target if these are fewer: a run is
    planned to end there, and neither a cap nor a search that cuts it changes the plan.
    """
    scenario = world.scenario
    run, spec = scenario.run, scenario.objective
    enough = math.inf
    if run.target_loss is not None and isinstance(spec, LearningCurve):
        law, step = baseline(spec), spec.tokens * world.workers
        seen = tokens = law.tokens_to(run.target_loss)
        for _ in range(ITERATIONS) if 0 < seen < math.inf else ():
            critical = _critical(spec, tokens)
            progress = batch.progress(step, law.batch, critical.value)
            tokens = law.even(seen, progress) / (law.batch * progress) * step
        enough = max(tokens / step, 1.0)
    if enough < math.inf:
        return float(min(run.steps or math.inf, enough))
    if run.duration is None:
        return float(run.steps or 1)
    most = run.duration * scenario.team.ideal_rate / scenario.cluster.workers
    return float(min(run.steps or math.inf, most if math.isfinite(most) else 1e6))


def _critical(spec: LearningCurve, tokens: float) -> Critical:
    if spec.noise_scale is None:
        return batch.published(tokens)
    return batch.given(spec.noise_scale, tokens / (spec.noise_tokens or tokens))


def baseline(spec: LearningCurve) -> Curve:
    """Return the curve of the data-parallel baseline. Raises InputError."""
    return _baseline(spec.curve.model_dump_json(), spec.tokens, isinstance(spec.curve, CurveOfFile))


@lru_cache(64)
def _baseline(text: str, tokens: float, logged: bool) -> Curve:
    table = {key: value for key, value in json.loads(text).items() if value is not None}
    if logged:
        return curve.from_file(table["file"], {"tokens": tokens, **table})
    return curve.from_law(table, table.get("batch", tokens))


def _period(world: World) -> float | None:
    """Return the steps between agreements of a program, if evidence may cover it."""
    program, given = world.program, world.algorithm.parameters
    if given.get("mu"):  # no evidence covers proximal terms
        return None
    if program.bound_covers and program.sends_gradients:
        return 1.0  # synchronous SGD
    if program.overlaps and world.algorithm.name not in evidence.ALIKE:
        return None  # late means cost more than local steps
    tau = given.get("tau")
    fixed = tau.value if isinstance(tau, FixedPeriod) else tau
    return float(fixed) if isinstance(fixed, int) else None


def _cost(world: World, expected: Expected) -> Penalty | None:
    """Return the penalty of an algorithm by evidence; None without evidence."""
    algorithm, program, workers = world.algorithm, world.program, expected.workers
    spec, keys = world.scenario.objective, algorithm.parameters
    assert isinstance(spec, LearningCurve)
    period = expected.tau
    if period is None:
        return None
    if program.bound_covers and period == 1:
        sentence = f"{algorithm.name} is data-parallel"
        return Penalty(0.0, 0.0, expected.basis, sentence, evidence.NO_ERRORS)
    own = _users_runs(world.scenario, expected)
    shared = {own_run.program for own_run in own}
    shared &= {algorithm.name} if algorithm.name not in evidence.ALIKE else shared
    if period > 1 and "published" not in spec.penalty and not shared:
        return None
    # The user's runs state their selected clients; published ones those that count.
    return evidence.penalty(
        algorithm.name,
        world.workers if shared and algorithm.samples else workers,
        period,
        size(world.scenario),
        tokens=expected.steps * workers * expected.tokens,
        outer_lr=keys.get("outer_lr"),
        outer_momentum=keys.get("outer_momentum", 0.0),
        overlap=keys.get("overlap") or 0,
        own=own,
        gain=expected.worth_of_workers,
    )


def _users_runs(scenario: Scenario, expected: Expected) -> list[evidence.OwnRun]:
    """Return the user's runs as evidence: ratios of losses at the end of the run `expected`."""
    spec, runs = scenario.objective, []
    assert isinstance(spec, LearningCurve)
    for n, run in enumerate(spec.own if "measured" in spec.penalty else ()):
        critical = batch.given(spec.noise_scale).value if spec.noise_scale else None
        # a program loses about the same share of its workers' gain all along
        grown = expected.gain(run.workers) / expected.gain(run.workers, critical)
        logs = grown * (run.log_steps + run.sd * np.arange(-1, 2))
        behind = expected.curve.behind(logs, expected.steps, expected.progress(run.workers))
        low, middle, high = behind.tolist()
        place = run.workers, run.tau, run.parameters or scenario.model.parameters
        source = f"run {n} of {run.algorithm}"
        runs.append(evidence.OwnRun(run.algorithm, place, middle, (high - low) / 2, source))
    return runs


def size(scenario: Scenario) -> float:
    """Return the number of parameters of the model behind the loss."""
    parameters = getattr(getattr(scenario.objective, "curve", None), "parameters", None)
    return float(parameters or scenario.model.parameters)


def _mechanism(world: World, apart: float, expected: Expected) -> Penalty:
    """Return a surrogate's penalty: the cost of local steps in the best program."""
    scenario, algorithm, workers = world.scenario, world.algorithm, expected.workers
    sentence = f"{algorithm.name} by the mechanism (its error {MECHANISM['source']})"
    late = world.program.family != "blocking" and workers > 1
    local = apart > 1 and workers > 1
    sd = math.hypot(MECHANISM["sd"], MECHANISM["late"] * late, MECHANISM["local"] * local)
    errors = sd * evidence.drawn(algorithm.name, (workers, apart, size(scenario)))
    result = Penalty(0.0, sd, "mechanism", sentence, errors)
    if not local:
        return result
    # Next to the published law, a run with outer momentum counts less for other programs.
    own = [
        replace(run, program="" if run.program in evidence.ALIKE else "diloco")
        for run in _users_runs(scenario, expected)
    ]
    replicas = world.workers if own and algorithm.samples else workers
    gain = expected.worth_of_workers
    penalty = evidence.penalty("diloco", replicas, apart, size(scenario), own=own, gain=gain)
    assert penalty is not None
    added, source = max(penalty.log_ratio, 0.0), "your own" if own else "published"
    sentence += f"; {math.expm1(added):+.2%} for {apart:.3g} steps apart, as in {source} runs"
    sd, errors = math.hypot(sd, penalty.sd), errors + penalty.errors
    return Penalty(added, sd, "mechanism", sentence, errors, penalty.why)
