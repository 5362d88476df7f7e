"""Steer a session: exchange data between ranks, and choose its settings by a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.programs import catalogue
from paceline.simulator.results.intervals import NORMAL
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies.simulate import simulate

from ..emit.emit import find
from .inputs import Inputs
from .telemetry import Settings, StepRecord, Telemetry, settings, written

POWERS = [2**n for n in range(10)]  # powers of two to try around the pick's number
AROUND = 4
EVERY = 16  # fewest steps between two exchanges of the ranks
PAUSE = 20  # times the median step: above, the loop did something else, such as an evaluation
LONGER = 3  # ratio of the simulated curves' steps to the pick's
FIRST = 3  # rounds before the first decision
GAIN = 0.03  # least expected share of the remaining time that a change must save
CERTAIN = 2.0  # standard errors by which a change must save this
SEEDS = 8  # seeds in the mean of a curve
POINTS = 250
FOLLOW = 0.5  # weight of a round's loss against the one that the curves predict


def configured(algorithm: Algorithm, settings: Settings) -> Algorithm:
    """Return an algorithm with some parameters set, written as in a scenario."""
    written = {**algorithm.written, **settings}
    rate = {"lr": 1.0} if "lr" in algorithm.parameters else {}  # a law needs none
    parsed = catalogue()[algorithm.name].parse(rate | written)
    parameters = algorithm.parameters | {key: parsed[key] for key in settings}
    table = {**algorithm.table, **settings}
    changed = {"table": table, "written": written, "parameters": parameters}
    return algorithm.model_copy(update=changed)


@dataclass(frozen=True)
class Curve:
    """The loss of one setting over its steps: the lowest mean over seeds so far.

    Settings are compared by the steps between two losses, so that a run may change from one
    setting's curve to another's at its current loss.
    """

    steps: np.ndarray
    falls: np.ndarray  # minus the logarithm of the loss, ascending

    def at(self, loss: float) -> float:
        """Return the step at which the loss is reached; infinite if never."""
        fall = -math.log(max(loss, 1e-300))
        if fall > self.falls[-1]:
            return math.inf
        return float(np.interp(fall, self.falls, self.steps))

    def after(self, loss: float, steps: float) -> float:
        """Return the loss `steps` steps after `loss`; beyond the curve it stays constant."""
        begin = min(self.at(loss), float(self.steps[-1]))
        fall = float(np.interp(begin + steps, self.steps, self.falls))
        return min(loss, math.exp(-fall))


def simulated(scenario: Scenario, algorithm: Algorithm, steps: int) -> Curve:
    """Simulate the loss over `steps` steps."""
    evaluated = {"steps": steps, "duration": None, "evaluate_every": max(1, steps // POINTS)}
    length = scenario.run.model_copy(update=evaluated)
    free = Network.model_validate({"latency": "0 s"})  # no effect on the loss by steps
    world = scenario.model_copy(update={"run": length, "network": free})
    runs = run_seeds(world, algorithm, range(SEEDS))
    points = min(len(run.curve["loss"]) for run in runs)
    losses = np.mean([run.curve["loss"][:points] for run in runs], axis=0)
    falls = np.maximum.accumulate(-np.log(np.maximum(losses, 1e-300)))
    fresh = np.append(True, np.diff(falls) > 0)
    return Curve(np.array(runs[0].curve["step"][:points])[fresh], falls[fresh])


class Outlook:
    """The predicted rest of a run under every candidate; the first is the pick's.

    It simulates their `curves` over `steps` at once. `loss`: the run's current loss.
    """

    def __init__(
        self, scenario: Scenario, algorithm: Algorithm, candidates: Sequence[Settings], steps: int
    ) -> None:
        self.candidates, self.loss = list(candidates), math.nan
        self._run, self._steps = scenario.run, steps
        self._family = catalogue()[algorithm.name].family
        algorithms = [configured(algorithm, settings) for settings in candidates]
        self._parameters = [one.parameters for one in algorithms]
        self.curves = [simulated(scenario, one, steps) for one in algorithms]

    def follow(self, index: int, record: Telemetry) -> None:
        """Add a round under candidate `index`."""
        curve, loss = self.curves[index], record.loss  # loss of the common initial model
        valid = math.isfinite(loss) and loss > 0
        if math.isnan(self.loss) and not valid:
            self.loss = curve.after(math.exp(-curve.falls[0]), record.step - record.steps)
        if not valid:
            loss = self.loss  # the curves' prediction
        elif math.isfinite(self.loss):
            loss = self.loss ** (1 - FOLLOW) * loss**FOLLOW
        self.loss = curve.after(loss, record.steps)  # the loss at the end of the round

    def to_go(self, index: int, record: Telemetry, inputs: Inputs, **scale: float) -> float:
        """Return a candidate's seconds to the target, or else its final loss.

        If only steps end the run, the target is the pick's loss at the end. `scale`: see
        `Inputs.step_time`.
        """
        curve, settings = self.curves[index], self._parameters[index] | self.candidates[index]
        step_time = inputs.step_time(self._family, settings, record.bytes, **scale)
        run, target = self._run, self._run.target_loss
        if target is None and run.duration is None:
            target = self.curves[0].after(math.inf, run.steps or 0)
        if target is not None:
            end = curve.at(target)
            return (end - min(end, curve.at(self.loss))) * step_time if math.isfinite(end) else end
        left = (run.duration or math.inf) - record.clock
        return curve.after(self.loss, min(left / step_time, self._steps))


@dataclass(frozen=True)
class Decision:
    """A change of settings after a local `step`, at `clock` seconds.

    `gain`: the expected saving, as a share of the seconds to the target (without one, of the final
    loss); `interval`: 90 %.
    """

    step: int
    clock: float
    was: Settings
    now: Settings
    reasons: tuple[str, ...]
    gain: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def sentence(self) -> str:
        """Return what changes, and why."""
        return f"{written(self.was)} becomes {written(self.now)}: {'; '.join(self.reasons)}"


class Model:
    """A policy that chooses the setting with the shortest rest of the run.

    It decides once all inputs are observed, and again when an input differs from its value at the
    last decision. A change must surely be worth `GAIN`. If nothing changes, the first decision is
    the only one.
    """

    def __init__(self, inputs: Inputs, outlook: Outlook) -> None:
        self.inputs, self.outlook = inputs, outlook
        self._rounds = 0
        self._decided: tuple[tuple[float, float], ...] = ()  # the inputs at the last decision

    def __call__(self, settings: Settings, record: Telemetry) -> Decision | None:
        """Return a change of the current settings after a round, or None."""
        inputs, outlook = self.inputs, self.outlook
        inputs.add(record)
        if settings not in outlook.candidates:  # the user has set them
            self._decided = ()
            return None
        current = outlook.candidates.index(settings)
        outlook.follow(current, record)
        self._rounds += 1
        if self._rounds < FIRST or not inputs.observed or math.isnan(outlook.loss):
            return None
        if self._decided and not inputs.left(self._decided):  # the last choice still holds
            return None
        self._decided = inputs.state()
        return self._choice(current, record, inputs.causes() or ["as predicted"])

    def _choice(self, current: int, record: Telemetry, reasons: Sequence[str]) -> Decision | None:
        """Return the most profitable change, if it surely pays enough."""
        outlook = self.outlook

        def saved(index: int, **scale: float) -> float:
            now, then = (
                outlook.to_go(candidate, record, self.inputs, **scale)
                for candidate in (current, index)
            )
            if not math.isfinite(now):
                return float(math.isfinite(then))
            return 1 - then / now if now else 0.0

        gains = [saved(index) for index in range(len(outlook.candidates))]
        best = max(range(len(gains)), key=gains.__getitem__)
        slowest = max(self.inputs.compute, key=lambda level: level.mean)
        moved = (
            saved(best, compute=1 + slowest.error),
            saved(best, average=1 + self.inputs.averages.error),
        )
        gain, error = gains[best], math.hypot(*(other - gains[best] for other in moved))
        if gain < GAIN + CERTAIN * error:
            return None
        was, now = outlook.candidates[current], outlook.candidates[best]
        ends = gain - NORMAL * error, min(1.0, gain + NORMAL * error)
        return Decision(record.step, record.clock, was, now, tuple(reasons), gain, ends)


@dataclass
class Controller:
    """A controller of one run; its `settings` are those that a `policy` has chosen so far.

    `observe` is called for every round once all ranks have agreed on its record; the session sends
    the settings to all ranks.
    """

    settings: Settings
    policy: Any
    log: list[Decision] = field(default_factory=list)

    def observe(self, record: Telemetry) -> list[str]:
        """Record a round; return messages about it."""
        if not all(map(math.isfinite, record.compute)):
            return []  # a rank had pauses between all steps
        decision = self.policy(self.settings, record)
        if decision is None:
            return []
        self.log.append(decision)
        self.settings = decision.now
        return [decision.sentence]


def controller(
    folder: Path | str, workers: int | None = None, label: str | None = None
) -> Controller:
    """Make the controller for the pick of a run folder, or for its algorithm `label`.

    `workers`: the number of the run, which must equal the prediction's. Raises InputError if no
    setting can change, or if the scenario has no loss to judge one.
    """
    pick = find(Path(folder), label, allow_paths=True)
    scenario, algorithm = pick.scenario, pick.algorithm
    first = settings(algorithm.parameters)
    if not first:
        raise InputError(f"{folder}: adapt: {algorithm.label} has no setting to change")
    if isinstance(scenario.objective, NoObjective):
        raise InputError(
            f"{folder}: adapt: without [objective] the effect of a setting is unknown; add "
            "one, and simulate again"
        )
    if workers not in (None, count := scenario.cluster.workers):
        raise InputError(
            f"{folder}: adapt: it predicts {count} workers, but there are {workers} processes; "
            f"start {count}, or simulate with cluster.workers = {workers}"
        )
    alone = scenario.model_copy(update={"algorithm": (algorithm,)})
    steps = scenario.run.steps or simulate(alone, seeds=1).runs[0].steps
    outlook = Outlook(scenario, algorithm, candidates(algorithm, first), int(LONGER * steps))
    return Controller(first, Model(Inputs(scenario), outlook))


def candidates(algorithm: Algorithm, settings: Settings) -> list[Settings]:
    """Return the current settings, then near ones in which one number differs."""
    by_distance: dict[float, list[Settings]] = {0.0: [settings]}
    for key, value in sorted(settings.items()):
        base = max(value, 1)
        for n in POWERS:
            if base / AROUND**2 <= n <= base * AROUND and n != value:
                near = settings | {key: n}
                keys = configured(algorithm, near).parameters
                if near.get("overlap", keys.get("overlap", 0)) < near.get("tau", np.inf):
                    by_distance.setdefault(abs(np.log(n / base)), []).append(near)
    return [near for distance in sorted(by_distance) for near in by_distance[distance]]


class Steering:
    """The steering of a session; every rank calls `after` at the end of every step.

    The ranks communicate when a mean starts and `EVERY` steps have passed. All share their times;
    rank 0, which alone has a `controller`, decides, and all change to its settings.
    """

    def __init__(self, controller: Controller | None) -> None:
        self.controller = controller
        self._records: list[StepRecord] = []
        self._clock, self._failed = 0.0, False

    def after(self, session: Any) -> list[str]:
        """Record the last step of a `Session`; return messages for the user."""
        records, controller = self._records, self.controller
        records.append(session.telemetry[-1])
        if not records[-1].bytes or len(records) < EVERY:
            return []
        shared, now, news = session.share(self._times(records)), session.settings, list[str]()
        if controller is not None and not self._failed:
            controller.settings = now
            try:
                news = controller.observe(self._record(records, shared))
            except Exception as error:  # training continues without it
                self._failed = True
                news = [f"adapt: the controller failed and is now off: {error!r}"]
        self._records = []
        proposed = now if controller is None or self._failed else controller.settings
        chosen = session.share([float(proposed[key]) for key in sorted(now)])[0]
        agreed = dict(zip(sorted(now), map(int, chosen), strict=True))
        if changed := {key: value for key, value in agreed.items() if value != now[key]}:
            session.change(**changed)
        return news

    def _times(self, records: Sequence[StepRecord]) -> list[float]:
        """Return clock, seconds per step, first loss, and seconds of every mean."""
        computing = [record.computing for record in records if record.computing == record.computing]
        self._clock += sum(computing) + sum(record.waiting for record in records)
        usual = np.median(computing) if computing else nan
        computing = [seconds for seconds in computing if seconds < PAUSE * usual]
        loss = nan if records[0].loss is None else float(records[0].loss)
        averages = [seconds for record in records for seconds in record.took]
        mean = float(np.mean(computing)) if computing else nan
        return [self._clock, mean, loss, *averages]

    def _record(self, records: Sequence[StepRecord], shared: list[list[float]]) -> Telemetry:
        """Make the record; an average's time is measured by the last rank to start it."""
        ranks = np.array(shared)
        clock, _, loss = ranks[:, :3].mean(axis=0)
        averages = ranks[:, 3:].min(axis=0)
        return Telemetry(
            records[-1].step, len(records), float(clock), tuple(ranks[:, 1].tolist()),
            float(averages.mean()) if averages.size else None, records[-1].bytes, float(loss),
        )  # fmt: skip
