"""Estimate step times and averages from telemetry, and test levels for drift."""

from collections import deque
from math import exp, hypot, log, sqrt
from statistics import fmean, median

import numpy as np

from paceline.simulator import theory
from paceline.simulator.distributions.order_statistics import expected_max
from paceline.simulator.distributions.parametric import Gamma
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.results.intervals import NORMAL, USUAL
from paceline.simulator.scenario.scenario import Scenario

from .telemetry import Settings, Telemetry, period

# Of a `Level`: observations that it remembers; observations for which the expected spread counts;
# least relative spread of one observation, by the error of clocks; standard errors between two
# means beyond chance; the smallest change that matters to a decision.
MEMORY, PRIOR, LEAST, CLEAR, RELEVANT = 64, 6.0, 0.01, 5.0, log(1.05)
AVERAGE_SPREAD = 0.05  # of one average, at first: latency and bandwidth hardly vary
BAND = log(1.1)  # around a reported level, beyond which the next report is due
SLACK, ALARM, MOST = 0.5, 12.0, 3.0  # of Page's sums, in deviations; MOST: of one value
FEW = 12  # fewest differences of values that show their deviation


class Level:
    """Estimate the mean of a positive quantity since the last change in its record.

    Each observation is a mean over `weight` draws. A change is the split of the record whose two
    means differ most in standard errors, if by `CLEAR` (a generalised likelihood ratio test on the
    logarithm; Basseville and Nikiforov, Detection of Abrupt Changes, section 2.4). Earlier
    observations are forgotten. `spread` is the relative standard deviation of one draw. It begins
    at the expected value, then follows from differences of neighbours, of which a change affects
    only one.
    """

    def __init__(self, spread: float) -> None:
        self._variance, self._count = spread**2, PRIOR
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add an observation."""
        value = max(value, 1e-12)
        if self._values:
            apart = log(value / self._values[-1]) ** 2 / (1 / weight + 1 / self._weights[-1])
            self._count = min(self._count + 1, MEMORY)
            self._variance += (min(apart, 9 * self._variance) - self._variance) / self._count
        self._values = [*self._values[1 - MEMORY :], value]
        self._weights = [*self._weights[1 - MEMORY :], weight]
        split = self._split()
        self._values, self._weights = self._values[split:], self._weights[split:]

    def _split(self) -> int:
        """Return the index of the first observation after the last change, or 0."""
        logs, weights = np.log(self._values), np.array(self._weights)
        before, total = np.cumsum(weights)[:-1], np.cumsum(logs * weights)
        after = weights.sum() - before
        apart = np.abs(total[:-1] / before - (total[-1] - total[:-1]) / after)
        errors = np.sqrt(self._variance * (1 / before + 1 / after) + 2 * LEAST**2)
        sure = np.where(apart > RELEVANT, apart / errors, 0.0)
        return int(sure.argmax()) + 1 if sure.size and sure.max() > CLEAR else 0

    @property
    def observed(self) -> bool:
        """Return whether there is any observation."""
        return bool(self._values)

    @property
    def mean(self) -> float:
        """Return the mean since the last change, in the quantity's unit."""
        return float(np.average(self._values, weights=self._weights))

    @property
    def spread(self) -> float:
        """Return the relative standard deviation of one draw."""
        return float(max(self._variance, LEAST**2) ** 0.5)

    @property
    def error(self) -> float:
        """Return the relative standard error of the mean."""
        return float((self._variance / sum(self._weights) + LEAST**2) ** 0.5)


class Drift:
    """Test whether a level has left an interval (Page, Biometrika 41, 1954).

    Each logarithm adds its distance beyond an end, in deviations and less SLACK, to the sum of that
    end, which never falls below 0. The level has left once a sum reaches ALARM. MOST bounds what
    one value adds, because of pauses. The deviation follows from the mean difference of neighbours
    (sqrt(pi) / 2 of it if normal), of which a change affects one. After an alarm the new level
    counts.
    """

    def __init__(self) -> None:
        self._values = deque[float](maxlen=MEMORY)
        self._jumps = deque[float](maxlen=MEMORY)
        self._sums, self._counts = [0.0, 0.0], [0, 0]
        self._reported: float | None = None

    @property
    def deviation(self) -> float:
        """Return the standard deviation of a value."""
        return max(LEAST, 0.886 * fmean(self._jumps)) if self._jumps else 1.0

    def add(self, value: float, low: float, high: float) -> int:
        """Add a value and its interval; return how many of the last are outside, 0 if by chance."""
        value, half = log(value / sqrt(low * high)), log(high / low) / 2
        low, high = -half, half
        if self._values:
            self._jumps.append(abs(value - self._values[-1]))
        self._values.append(value)
        if len(self._jumps) < FEW:
            return 0
        if self._reported is not None:
            low, high = self._reported - BAND, self._reported + BAND
        for end, beyond in enumerate((low - value, value - high)):
            total = self._sums[end] + min((beyond - RELEVANT) / self.deviation, MOST) - SLACK
            self._sums[end] = max(0.0, total)
            self._counts[end] = self._counts[end] + 1 if total > 0 else 0
        count = self._counts[int(self._sums[1] > self._sums[0])]
        if max(self._sums) < ALARM:
            return 0
        self._sums, self._counts = [0.0, 0.0], [0, 0]
        self._reported = median([*self._values][-count:])
        return min(count, MEMORY)


class Inputs:
    """Predicted and recent seconds per step of each worker, and per average."""

    def __init__(self, scenario: Scenario) -> None:
        laws = scenario.team.expected_laws
        self.predicted = [sum(part.expectation for part in law) for law in laws]
        spreads = [sum(part.variance for part in law) ** 0.5 for law in laws]
        cost = mean_cost(scenario)
        self.average = cost.transmission + cost.latency
        self.latency, self._model_bytes = cost.latency, float(scenario.model.bytes)
        self.compute = [
            Level(min(1.0, spread / mean if mean else 0.0))
            for spread, mean in zip(spreads, self.predicted, strict=True)
        ]
        self.averages = Level(AVERAGE_SPREAD)
        self._step_times: dict[int, float] = {}  # results of `_slowest`, until the next round

    def add(self, record: Telemetry) -> None:
        """Add a round."""
        self._step_times = {}
        for level, seconds in zip(self.compute, record.compute, strict=True):
            level.add(seconds, record.steps)
        if record.average is not None:
            self.averages.add(record.average / self._relative(record.bytes))

    def _relative(self, size: float) -> float:
        """Return the time of an average of `size` bytes, relative to the whole model's."""
        if not self.average or not self._model_bytes:
            return 1.0
        seconds = self.latency + (self.average - self.latency) * size / self._model_bytes
        return max(seconds / self.average, 1e-6)

    @property
    def observed(self) -> bool:
        """Return whether every input was observed."""
        return self.averages.observed and all(level.observed for level in self.compute)

    def state(self) -> tuple[tuple[float, float], ...]:
        """Return logarithm and error of every input: the workers', then the average's."""
        return tuple((log(level.mean), level.error) for level in (*self.compute, self.averages))

    def left(self, since: tuple[tuple[float, float], ...]) -> bool:
        """Return whether an input differs from a former `state` by more than chance."""
        moved = ((*now, *was) for now, was in zip(self.state(), since, strict=True))
        return any(abs(x - y) > max(RELEVANT, 3 * hypot(dx, dy)) for x, dx, y, dy in moved)

    def step_time(
        self,
        family: str,
        settings: Settings,
        size: float,
        compute: float = 1.0,
        average: float = 1.0,
    ) -> float:
        """Return the expected seconds per step of a program with these settings (theory).

        `size`: bytes of one average; `compute`, `average`: factors of these times. Averages that
        overlap training follow the closed form of DTS, with the predicted share of latency;
        blocking averages follow AdaComm's Theorem 1.
        """
        tau = period(settings)
        mean = average * self.averages.mean * self._relative(size)
        if family != "overlapped":
            return compute * self._slowest(tau) + mean / tau
        between = max(1, tau // int(settings.get("fragments", 1)))
        delay = int(settings["delay"] if "delay" in settings else settings.get("overlap", tau))
        step = compute * self._slowest(between)
        if not delay:
            return step + mean / between
        share = self.latency / (self._relative(size) * self.average) if self.average else 0.0
        latency = mean * share  # no other mean waits for its end
        return theory.delayed_seconds_per_step(step, mean - latency, latency, delay, between)

    def _slowest(self, tau: int) -> float:
        """Return the slowest worker's seconds per step over `tau` steps; ranks wait, so cached."""
        if tau not in self._step_times:
            laws = [
                [Gamma.model_construct(mean=level.mean, shape=min(1 / level.spread**2, 1e4))]
                for level in self.compute
            ]
            self._step_times[tau] = expected_max(laws, tau)
        return self._step_times[tau]

    def causes(self) -> list[str]:
        """Describe the slowest worker and an average, if outside their prediction (90 %)."""
        slowest = max(range(len(self.compute)), key=lambda rank: self.compute[rank].mean)
        causes = []
        for name, level, was in (
            (f"a step of worker {slowest}", self.compute[slowest], self.predicted[slowest]),
            ("an average over the link", self.averages, self.average),
        ):
            factor, wide = (level.mean / was if was else 1.0), exp(NORMAL * level.error)
            low, high = factor / wide, factor * wide
            if not low <= 1 <= high:
                text = f"{factor:.3g} times as predicted ({USUAL}: {low:.3g} to {high:.3g})"
                causes.append((abs(log(factor)), f"{name} takes {text}"))
        return [text for _, text in sorted(causes, reverse=True)]
