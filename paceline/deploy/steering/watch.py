"""Say once when a run's pace or loss has left what was predicted, why, and what is now best."""

import math
from collections import deque
from collections.abc import Callable
from statistics import fmean, stdev
from typing import ClassVar

from paceline.simulator.results.intervals import NORMAL, USUAL
from paceline.simulator.results.statistics import human, number

from .inputs import Inputs
from .telemetry import Settings, Telemetry, period

ROUNDS = 8  # whose mean loss is compared, and before which nothing is said
SURE = 3.0  # standard errors: each round is a test, so that one in twenty would soon be wrong
Pair = tuple[float, float]


class Watch:
    """Compares a run with the prediction of its pick.

    `pace`: the predicted 90 % interval of seconds per step of the program `family` with the
    settings `pick`; `loss`: that of the loss after a number of steps. `inputs`, from which the pace
    that the pick would have now follows, are fed here unless they are `shared` with the policy.
    """

    KEPT: ClassVar = ("_inputs", "_losses", "_rounds", "_said", "_owed")

    def __init__(  # noqa: PLR0913 - what was predicted, and of what
        self,
        pace: Pair,
        loss: Callable[[int], Pair],
        inputs: Inputs,
        pick: Settings,
        family: str,
        *,
        shared: bool = False,
    ) -> None:
        self._pace, self._loss, self._inputs = pace, loss, inputs
        self._pick, self._family, self._shared = pick, family, shared
        self._losses: deque[Pair] = deque(maxlen=ROUNDS)
        self._rounds, self._said = 0, set[str]()
        self._owed = False  # whether something was said while no setting was known to be best

    def __call__(self, record: Telemetry, best: Settings | None) -> list[str]:
        """Return what a round shows for the first time; `best`: the settings now, if known."""
        if not self._shared:
            self._inputs.add(record)
        self._rounds += 1
        found = {"pace": self._slow(record), "loss": self._off(record)}
        news = [what for kind, what in found.items() if what and kind not in self._said]
        self._said |= {kind for kind, what in found.items() if what}
        chosen = ", ".join(f"{key} = {value}" for key, value in (best or {}).items())
        later = "told as soon as other settings have been simulated"
        owed, self._owed = self._owed, not chosen and (self._owed or bool(news))
        if chosen and owed and not news:
            return [f"now best: {chosen}"]
        return [f"{what}; now best: {chosen or later}" for what in news]

    def _slow(self, record: Telemetry) -> str:
        """Say that the pace has left its interval, and why; "" if that may be chance."""
        inputs = self._inputs
        if self._rounds < ROUNDS or not inputs.known or "pace" in self._said:
            return ""
        if not (causes := inputs.causes(period(self._pick))):
            return ""
        slowest = max(inputs.compute, key=lambda level: level.mean)

        def pace(errors: float) -> float:
            scale = {
                "compute": math.exp(errors * slowest.error),
                "average": math.exp(errors * inputs.averages.error),
            }
            return inputs.pace(self._family, self._pick, record.bytes, **scale)

        if pace(-SURE) <= self._pace[1] and pace(SURE) >= self._pace[0]:
            return ""
        now, *ends, low, high = map(human, (pace(0), pace(-NORMAL), pace(NORMAL), *self._pace))
        return (
            f"a step of the pick takes {now} ({USUAL}: {ends[0]} to {ends[1]}), outside the "
            f"predicted {low} to {high}: {'; '.join(map(str, causes))}"
        )

    def _off(self, record: Telemetry) -> str:
        """Say that the loss has left its band; "" if that may be chance."""
        if not record.first_loss > 0:
            return ""
        low, high = self._loss(record.step - record.steps)
        self._losses.append((math.log(record.first_loss / low), math.log(record.first_loss / high)))
        if len(self._losses) < ROUNDS:
            return ""
        above_low, above_high = (fmean(each) for each in zip(*self._losses, strict=True))
        width = SURE * stdev(each for _, each in self._losses) / math.sqrt(ROUNDS)
        if above_high - width <= 0 <= above_low + width:
            return ""
        seen, *ends = map(number, (record.first_loss, low, high))
        return f"the loss is {seen}, outside the predicted {ends[0]} to {ends[1]}"
