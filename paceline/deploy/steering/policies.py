"""Control a deployed run: choose its settings by a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.simulator.results.intervals import NORMAL

from .inputs import Inputs
from .outlook import Outlook
from .telemetry import Settings, Telemetry, written

FIRST = 3  # rounds before the first decision
GAIN = 0.03  # least expected share of the remaining time that a change must save
CERTAIN = 2.0  # standard errors by which a change must save this


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
