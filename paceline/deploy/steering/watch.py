"""Say once when a run's pace or loss has left what was predicted, why, and what is now best."""

import math
from collections import deque
from collections.abc import Callable
from statistics import fmean, stdev

from paceline.deploy.steering.inputs import Z90, Inputs
from paceline.deploy.steering.telemetry import Settings, Telemetry
from paceline.simulator.results.statistics import human, number

ROUNDS = 8  # whose mean pace and loss are compared
Pair = tuple[float, float]


class Watch:
    """Compares the last rounds with the prediction.

    `pace`: the predicted 90 % interval of seconds per step; `loss`: a function of the step that
    gives that of the loss, None where nothing was predicted. `inputs` name the cause: `shared` ones
    are fed by the policy. `best` returns the settings that are best now, where that is known.
    """

    def __init__(
        self,
        pace: Pair,
        loss: Callable[[int], Pair] | None,
        inputs: Inputs,
        *,
        shared: bool = False,
        best: Callable[[], Settings | None] = lambda: None,
    ) -> None:
        self._pace, self._loss, self._inputs = pace, loss, inputs
        self._shared, self._best = shared, best
        self._last: Telemetry | None = None
        self._paces: deque[tuple[float, int]] = deque(maxlen=ROUNDS)
        self._losses: deque[tuple[float, ...]] = deque(maxlen=ROUNDS)
        self._said: set[str] = set()

    def __call__(self, record: Telemetry, settings: Settings) -> list[str]:
        """Return what a round shows for the first time."""
        if not self._shared:
            self._inputs.add(record)
        last, self._last = self._last, record
        if last is None:
            return []
        self._paces.append((record.clock - last.clock, record.step - last.step))
        news = [self._news("pace", self._slow()), self._news("loss", self._off(record))]
        return [each for each in news if each]

    def _news(self, kind: str, what: str) -> str:
        if not what or kind in self._said:
            return ""
        self._said.add(kind)
        causes = "; ".join(map(str, self._inputs.causes())) if self._inputs.known else ""
        if kind == "pace":
            what += f": {causes}" if causes else ": no single input explains that"
        best = self._best()
        return what + (f"; now best: {best}" if best else "")

    def _slow(self) -> str:
        """Say that the pace has left its interval; "" if that may be chance."""
        if len(self._paces) < ROUNDS:
            return ""
        each = [seconds / steps for seconds, steps in self._paces]
        mean = sum(seconds for seconds, _ in self._paces) / sum(n for _, n in self._paces)
        width = Z90 * stdev(each) / math.sqrt(ROUNDS)
        low, high = self._pace
        if mean - width <= high and mean + width >= low:
            return ""
        return (
            f"a step takes {human(mean)} (90 %: {human(mean - width)} to {human(mean + width)}), "
            f"outside the predicted {human(low)} to {human(high)}"
        )

    def _off(self, record: Telemetry) -> str:
        """Say that the loss has left its band; "" if that may be chance."""
        if self._loss is None or not math.isfinite(record.first_loss):
            return ""
        ends = self._loss(record.step - record.steps)
        self._losses.append(tuple(math.log(record.first_loss / end) for end in ends))
        if len(self._losses) < ROUNDS:
            return ""
        above_low, above_high = (fmean(each) for each in zip(*self._losses, strict=True))
        width = Z90 * stdev(each for _, each in self._losses) / math.sqrt(ROUNDS)
        if above_high - width <= 0 <= above_low + width:
            return ""
        low, high = (number(end) for end in ends)
        return f"the loss is {number(record.first_loss)}, outside the predicted {low} to {high}"
