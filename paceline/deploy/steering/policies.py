"""Policies that choose the next rounds' settings from telemetry: AdaComm's rule, or a model."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from paceline.simulator.programs.adaptive import PaperRule, Shared
from paceline.simulator.results.intervals import NORMAL

from .inputs import Inputs
from .outlook import Outlook
from .telemetry import Settings, Telemetry, period

FIRST = 3  # rounds before the first decision
GAIN = 0.03  # least expected share of the rest that a change must save
CERTAIN = 2.0  # standard errors by which it must


@dataclass(frozen=True)
class Decision:
    """A change of settings after local step `step`, at `clock` seconds, with its reasons.

    `gain`: the share of the seconds to the target (without one: of the final loss) that it is
    expected to save; `interval`: of 90 %. None where the policy predicts nothing.
    """

    step: int
    clock: float
    was: Settings
    now: Settings
    reasons: tuple[str, ...]
    gain: float | None = None
    interval: tuple[float, float] | None = None


class Policy(Protocol):
    """Chooses settings round by round."""

    @property
    def knows(self) -> bool:
        """Whether its last choice is for the inputs as they are now."""

    def __call__(self, settings: Settings, record: Telemetry) -> Decision | None:
        """Return a change of the present settings after a round; None for none."""


class AdaComm:
    """AdaComm's rule, as the program adacomm has it, for the tau of any program."""

    knows = True

    def __init__(self, rule: PaperRule) -> None:
        self._rule = rule

    def __call__(self, settings: Settings, record: Telemetry) -> Decision | None:
        """Ask the rule."""
        shared = Shared(record.first_loss, record.mean_loss, record.last_loss, record.clock)
        tau = self._rule(settings["tau"], shared, record.rate)
        if tau == settings["tau"]:
            return None
        why = f"the loss of the last interval by AdaComm's eq. 6: {record.mean_loss:.4g}"
        return Decision(record.step, record.clock, settings, settings | {"tau": tau}, (why,))


class Model:
    """Re-fits times and noise, and takes the setting with which the rest of the run is shortest.

    It decides once all inputs are known, and again when one has left what the last decision was
    made for; a change must be worth `GAIN`, and surely so. In a world that stays as it is no
    decision follows the first.
    """

    KEPT: ClassVar = ("inputs", "outlook", "_rounds", "_decided")

    def __init__(self, inputs: Inputs, outlook: Outlook) -> None:
        self.inputs, self.outlook = inputs, outlook
        self._rounds = 0
        self._decided: tuple[tuple[float, float], ...] = ()  # the inputs at the last decision

    @property
    def knows(self) -> bool:
        """Whether its last choice is for the inputs as they are now."""
        return bool(self._decided) and not self.inputs.left(self._decided)

    def __call__(self, settings: Settings, record: Telemetry) -> Decision | None:
        """Return a change of the present settings; None for none."""
        inputs, outlook = self.inputs, self.outlook
        if settings not in outlook.candidates:  # the user has set another, and holds it
            return None
        current = outlook.candidates.index(settings)
        inputs.add(record)
        outlook.learn(record.clock)
        refitted = outlook.follow(current, record)
        self._rounds += 1
        if self._rounds < FIRST or not (inputs.known and outlook.ready):
            return None
        if math.isnan(outlook.loss) or not outlook.affords(record.clock):
            return None
        if self._decided and not refitted and not inputs.left(self._decided):
            return None
        reasons = [*map(str, inputs.causes(period(settings)))]
        if outlook.noise != 1:
            reasons.append(f"the gradients' noise {outlook.noise:g} times as predicted")
        self._decided = inputs.state()
        return self._choice(current, record, reasons or ["as predicted"])

    def _choice(self, current: int, record: Telemetry, reasons: Sequence[str]) -> Decision | None:
        """Return the change that pays most, if it surely pays enough."""
        outlook, began = self.outlook, time.thread_time()

        def saved(index: int, **scale: float) -> float:
            now, then = (
                outlook.to_go(each, record, current, self.inputs, **scale)
                for each in (current, index)
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
        gain, error = gains[best], math.hypot(*(each - gains[best] for each in moved))
        outlook.spent += time.thread_time() - began
        if gain < GAIN + CERTAIN * error:
            return None
        was, now = outlook.candidates[current], outlook.candidates[best]
        ends = gain - NORMAL * error, min(1.0, gain + NORMAL * error)
        return Decision(record.step, record.clock, was, now, tuple(reasons), gain, ends)
