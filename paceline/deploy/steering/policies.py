"""Control a deployed run: choose settings by a model, and watch the prediction."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.simulator.results.intervals import NORMAL, USUAL
from paceline.simulator.results.statistics import human, number

from .inputs import Drift, Inputs
from .outlook import Outlook
from .telemetry import Settings, Telemetry, period, written

FIRST = 3  # rounds before the first decision
GAIN = 0.03  # least expected share of the remaining time that a change must save
CERTAIN = 2.0  # standard errors by which a change must save this
ROUNDS = 8  # rounds before which the watch is silent on the step time
SURE = 3.0  # standard errors: with a test every round, 5 % would soon cause a false alarm
Pair = tuple[float, float]


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


class Model:
    """A policy that chooses the setting with the shortest rest of the run.

    It decides once all inputs are observed, and again when an input differs from its value at the
    last decision. A change must surely be worth `GAIN`. If nothing changes, the first decision is
    the only one. `best`: the best settings now, None if they are `unknown`, which gives the reason.
    """

    def __init__(self, inputs: Inputs, outlook: Outlook) -> None:
        self.inputs, self.outlook = inputs, outlook
        self.best: Settings | None = None
        self.unknown = "no round has finished yet"
        self._rounds = 0
        self._decided: tuple[Pair, ...] = ()  # the inputs at the last decision

    def __call__(self, settings: Settings, record: Telemetry) -> Decision | None:
        """Return a change of the current settings after a round, or None."""
        inputs, outlook = self.inputs, self.outlook
        inputs.add(record)
        self.unknown = f"{written(settings)} was set, but not simulated"
        if settings in outlook.candidates:
            current = outlook.candidates.index(settings)
            outlook.follow(current, record)
            self._rounds += 1
            self.unknown = self._doubt()
        if self.unknown:
            self.best = None
            return None
        if self.best is not None and not inputs.left(self._decided):  # the last choice still holds
            return None
        reasons = inputs.causes(period(settings)) or ["as predicted"]
        self._decided = inputs.state()
        decision = self._choice(current, record, reasons)
        self.best = decision.now if decision else settings
        return decision

    def _doubt(self) -> str:
        """Return why the best settings are unknown; "" if they are known."""
        doubts = {
            f"only {self._rounds} of {FIRST} rounds have finished": self._rounds < FIRST,
            "no mean has been timed": not self.inputs.observed,
            "the loss is unknown; call session.step(loss)": math.isnan(self.outlook.loss),
        }
        return next((doubt for doubt, holds in doubts.items() if holds), "")

    def _choice(self, current: int, record: Telemetry, reasons: Sequence[str]) -> Decision | None:
        """Return the most profitable change, if it surely pays enough."""
        outlook = self.outlook

        def saved(index: int, **scale: float) -> float:
            now, then = (
                outlook.to_go(candidate, record, current, self.inputs, **scale)
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
class Watch:
    """A watch that reports once when step time or loss leave the prediction.

    It names the causes, and the best settings. `step_time`: the predicted 90 % interval of seconds
    per step, by the program `family` with its `settings`; `loss`: that of the loss after a number
    of steps. The current step time follows from `inputs`, which the policy updates.
    """

    family: str
    settings: Settings
    step_time: Pair
    loss: Callable[[int], Pair]
    inputs: Inputs

    def __post_init__(self) -> None:
        self._losses, self._rounds, self._reported = Drift(), 0, set[str]()

    def __call__(
        self, record: Telemetry, best: Settings | None = None, unknown: str = ""
    ) -> list[str]:
        """Return a round's messages; `best`: the best settings now, or `unknown`: why not."""
        self._rounds += 1
        reports = {"time": self._slow(record), "loss": self._off(record)}
        news = [text for kind, text in reports.items() if text and kind not in self._reported]
        self._reported |= {kind for kind, text in reports.items() if text}
        end = f"; the best settings are unknown: {unknown}" if unknown else ""
        return [text + (f"; now best: {written(best)}" if best else end) for text in news]

    def _slow(self, record: Telemetry) -> str:
        """Return a message if the step time has left its interval; "" if perhaps by chance."""
        inputs, settings, predicted = self.inputs, self.settings, self.step_time
        if self._rounds < ROUNDS or not inputs.observed or "time" in self._reported:
            return ""
        if not (causes := inputs.causes(period(settings))):
            return ""
        slowest = max(inputs.compute, key=lambda level: level.mean)

        def step_time(errors: float) -> float:
            scale = {
                "compute": math.exp(errors * slowest.error),
                "average": math.exp(errors * inputs.averages.error),
            }
            return inputs.step_time(self.family, settings, record.bytes, **scale)

        if step_time(-SURE) <= predicted[1] and step_time(SURE) >= predicted[0]:
            return ""
        now, *ends = map(human, (step_time(0), step_time(-NORMAL), step_time(NORMAL), *predicted))
        return (
            f"a step of the pick takes {now} ({USUAL}: {ends[0]} to {ends[1]}), outside the "
            f"predicted {ends[2]} to {ends[3]}: {'; '.join(causes)}"
        )

    def _off(self, record: Telemetry) -> str:
        """Return a message if the loss has left its band; "" if perhaps by chance."""
        low, high = self.loss(record.step - record.steps)
        if not (record.loss > 0 and 0 < low <= high < math.inf):
            return ""
        if not self._losses.add(record.loss, low, high):
            return ""
        loss, *ends = map(number, (record.loss, low, high))
        return f"the loss is {loss}, outside the predicted {ends[0]} to {ends[1]}"


@dataclass
class Controller:
    """A controller, which steers and watches one run by telemetry.

    `observe` is called for every round once all ranks have agreed on its record; the session sends
    the `settings` to all ranks. Without `steers` the `log` is only advice.
    """

    settings: Settings
    policy: Any
    watch: Watch | None = None
    steers: bool = True
    log: list[Decision] = field(default_factory=list)

    def observe(self, record: Telemetry) -> list[str]:
        """Record a round; return new messages about it."""
        if not all(map(math.isfinite, record.compute)):
            return []  # a rank had pauses between all steps
        decision = self.policy(self.settings, record)
        if decision:
            self.log.append(decision)
            if self.steers:
                self.settings = decision.now
        if self.watch is None:
            return []
        best = self.policy.best
        news = self.watch(record, best, self.policy.unknown)
        if decision and not news:
            saved = f"saves {decision.gain:.0%} of the rest"
            news = [f"now best: {written(decision.now)}, which {saved}"]
        return news
