"""What a run's pace is made of, fitted to its telemetry: each worker's steps, and the average."""

from dataclasses import dataclass
from math import exp, hypot, log
from typing import ClassVar

from paceline.simulator import theory
from paceline.simulator.distributions.order_statistics import expected_max
from paceline.simulator.distributions.parametric import Gamma
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.results.intervals import NORMAL, USUAL
from paceline.simulator.scenario.scenario import Scenario

from .level import RELEVANT, Level
from .telemetry import Settings, Telemetry, period

AVERAGE_SPREAD = 0.05  # of one average, before there are any: latency and bandwidth hardly vary
DISTINCT = 1.2  # factor by which a straggler stands out among the workers
MINOR = 0.1  # share of the largest cause below which another is not worth a word


@dataclass(frozen=True)
class Cause:
    """An input that left its prediction: by `factor`, within `interval` (90 %).

    `seconds`: what that is per step, if nothing hides it.
    """

    name: str
    factor: float
    interval: tuple[float, float]
    seconds: float

    def __str__(self) -> str:
        """Return it in words."""
        low, high = self.interval
        return (
            f"{self.name} {self.factor:.3g} times as predicted ({USUAL}: {low:.3g} to {high:.3g})"
        )


class Inputs:
    """Seconds per step of each worker and per average: as predicted, and as observed lately."""

    KEPT: ClassVar = ("compute", "averages", "_sizes")

    def __init__(self, scenario: Scenario) -> None:
        laws = scenario.team.expected_laws
        self.predicted = [sum(law.expectation for law in each) for each in laws]
        spreads = [sum(law.variance for law in each) ** 0.5 for each in laws]
        cost = mean_cost(scenario)
        self.average = cost.transmission + cost.latency
        self.latency, self.whole = cost.latency, float(scenario.model.bytes)
        self.compute = [
            Level(min(1.0, sd / mean if mean else 0.0))
            for sd, mean in zip(spreads, self.predicted, strict=True)
        ]
        self.averages = Level(AVERAGE_SPREAD)
        self._sizes: dict[float, tuple[float, float]] = {}  # of each size: seconds, and number
        self._paces: dict[int, float] = {}  # `_slowest` of each period, until the next round

    def add(self, record: Telemetry) -> None:
        """Take in a round."""
        self._paces = {}
        for level, seconds in zip(self.compute, record.compute, strict=True):
            level.add(seconds, record.steps)
        if record.average is None:
            return
        if self.averages.add(record.average / self._relative(record.bytes)):
            self._sizes = {}
        total, count = self._sizes.get(record.bytes, (0.0, 0.0))
        self._sizes[record.bytes] = total + record.average, count + 1

    def _relative(self, size: float) -> float:
        """Return the time of an average of `size` bytes over that of the whole model."""
        if not self.average or not self.whole:
            return 1.0
        own = self.latency + (self.average - self.latency) * size / self.whole
        return max(own / self.average, 1e-6)

    @property
    def known(self) -> bool:
        """Whether each input was observed."""
        return self.averages.known and all(each.known for each in self.compute)

    def state(self) -> tuple[tuple[float, float], ...]:
        """Return the logarithm of each input and its error: of each worker, then of the average."""
        return tuple((log(each.mean), each.error) for each in (*self.compute, self.averages))

    def left(self, since: tuple[tuple[float, float], ...]) -> bool:
        """Tell whether an input has left a former `state` by more than chance, at either time."""
        moved = ((*now, *was) for now, was in zip(self.state(), since, strict=True))
        return any(abs(x - y) > max(RELEVANT, 3 * hypot(dx, dy)) for x, dx, y, dy in moved)

    def pace(
        self,
        family: str,
        settings: Settings,
        size: float,
        compute: float = 1.0,
        average: float = 1.0,
    ) -> float:
        """Return expected seconds per step of a program with these settings (theory).

        `size`: bytes of one average; `compute`, `average`: factors of these times. Averages that
        overlap training follow the closed form of DTS, with latency's share of one as predicted;
        those that block it AdaComm's Theorem 1.
        """
        tau = period(settings)
        took = average * self.averages.mean * self._relative(size)
        if family != "overlapped":
            return compute * self._slowest(tau) + took / tau
        between = max(1, tau // int(settings.get("fragments", 1)))
        delay = int(settings["delay"] if "delay" in settings else settings.get("overlap", tau))
        step = compute * self._slowest(between)
        if not delay:
            return step + took / between
        share = self.latency / (self._relative(size) * self.average) if self.average else 0.0
        hidden = took * share  # of which no other mean has to wait for the end
        return theory.delayed_seconds_per_step(step, took - hidden, hidden, delay, between)

    def _slowest(self, tau: int) -> float:
        """Return seconds per step of the slowest worker over `tau` steps.

        Kept until the next round: its quadrature is all that a decision costs, while ranks wait.
        """
        if tau not in self._paces:
            self._paces[tau] = expected_max(
                [
                    [Gamma.model_construct(mean=each.mean, shape=min(1 / each.spread**2, 1e4))]
                    for each in self.compute
                ],
                tau,
            )
        return self._paces[tau]

    def causes(self, tau: int = 1) -> list[Cause]:
        """Name the inputs that have left their prediction, those first that count most at `tau`.

        Left out is what counts for less than `MINOR` of the first. Workers that are slow among the
        others are stragglers; a change that most share is one of computing. Latency and bandwidth
        are told apart only by averages of two sizes.
        """
        ratios = [level.mean / was for level, was in zip(self.compute, self.predicted, strict=True)]
        middle = sorted(ratios)[(len(ratios) - 1) // 2]
        typical = self.compute[ratios.index(middle)]
        usual = max(self.predicted)
        found = [_cause("computing takes", middle, typical.error, usual)]
        for rank, (ratio, level) in enumerate(zip(ratios, self.compute, strict=True)):
            if ratio > DISTINCT * middle:
                name = f"worker {rank} straggles: its steps take"
                found.append(_cause(name, ratio, level.error, usual))
        if self.average and self.averages.known:
            factor = self.averages.mean / self.average
            error, took = self.averages.error, self.average / tau
            found.append(_cause(self._link(factor), factor, error, took))
        out = [each for each in found if not each.interval[0] <= 1 <= each.interval[1]]
        most = max((each.seconds for each in out), default=0.0)
        out = [each for each in out if each.seconds >= MINOR * most]
        return sorted(out, key=lambda each: -each.seconds)

    def _link(self, factor: float) -> str:
        """Say which part of the link has changed, as far as two sizes tell."""
        if len(self._sizes) < 2:
            return "the link (its latency or bandwidth): an average takes"
        (small, (short, n)), *_, (large, (long, m)) = sorted(self._sizes.items())
        per_byte = (long / m - short / n) / (large - small)
        latency = short / n - per_byte * small
        byte = (self.average - self.latency) / self.whole
        later, slower = abs(latency - self.latency), abs(per_byte - byte) * self.whole
        return f"the link's {'bandwidth' if slower > later else 'latency'}: an average takes"


def _cause(name: str, factor: float, error: float, usual: float) -> Cause:
    width = exp(NORMAL * error)
    return Cause(name, factor, (factor / width, factor * width), abs(factor - 1) * usual)
