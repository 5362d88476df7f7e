"""Measure two pieces of work in turn and judge the ratio of their rates against an aim.

A *pair* is a measurement of ours and, right after it, one of theirs. It is *disturbed* where other
processes used more than 5 % of the machine's CPU meanwhile; disturbed pairs are measured again.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import psutil

T = TypeVar("T")
Rate = Callable[[], float]
"""Measures once: millions of units per second of wall-clock time."""

PAIRS = 7
SHORTEST = 0.3  # seconds that one side of a pair takes at least
DISTURBED = 0.05  # of the CPU, by other processes
OK, UNCLEAR, MISSED = "ok", "unclear", "MISSED"


def rate(work: Callable[[], object], units: float) -> Rate:
    """Return a measurement that calls `work`, of so many units, until `SHORTEST` has passed."""

    def measured() -> float:
        calls, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < SHORTEST:
            work()
            calls += 1
        return calls * units / took / 1e6

    return measured


@dataclass(frozen=True)
class Spread:
    """Quartiles of repeated measurements; a single one is all three."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the quartiles, interpolated between the values next to them."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Aim:
    """The range that a figure should lie in; without limits it is only shown."""

    least: float = -inf
    most: float = inf

    def verdict(self, found: Spread) -> str:
        """Return MISSED only where the whole spread lies on the wrong side of the aim.

        UNCLEAR where the median does and the spread does not; nothing where there is no aim.
        """
        if self == NO_AIM:
            return ""
        if found.high < self.least or found.low > self.most:
            return MISSED
        return OK if self.least <= found.median <= self.most else UNCLEAR

    def __str__(self) -> str:
        above = f">= {self.least:g}" if self.least > -inf else ""
        return above + (f"<= {self.most:g}" if self.most < inf else "")


NO_AIM = Aim()


@dataclass(frozen=True)
class CpuReading:
    """Seconds since some beginning: of wall-clock time, and of CPU by all and by our processes."""

    wall: float
    everybody: float
    ours: float

    @classmethod
    def now(cls) -> "CpuReading":
        """Read the clocks; what a hypervisor takes away counts as used by others."""
        me, whole = psutil.Process(), psutil.cpu_times()
        own = sum(me.cpu_times()[:4])  # children that have ended are counted in it
        for child in me.children(recursive=True):
            try:
                own += sum(child.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        idle = whole.idle + getattr(whole, "iowait", 0.0)
        # guests' time is part of `user` and `nice`
        twice = getattr(whole, "guest", 0.0) + getattr(whole, "guest_nice", 0.0)
        return cls(time.perf_counter(), sum(whole) - idle - twice, own)


def others(before: CpuReading, after: CpuReading, cpus: int) -> float:
    """Return the share of `cpus` CPUs, 0 to 1, that other processes used between two readings."""
    used = (after.everybody - before.everybody) - (after.ours - before.ours)
    return max(0.0, used) / ((after.wall - before.wall) * cpus)


def samples(measure: Callable[[], T], count: int) -> tuple[list[T], int]:
    """Return `count` measurements, and how many of them were disturbed.

    Disturbed ones are repeated, up to `count` times; the least disturbed are returned.
    """
    found: list[tuple[float, T]] = []
    while len(found) < count + min(count, sum(share > DISTURBED for share, _ in found)):
        before = CpuReading.now()
        value = measure()
        found.append((others(before, CpuReading.now(), psutil.cpu_count() or 1), value))
    best = sorted(found, key=lambda each: each[0])[:count]
    return [value for _, value in best], sum(share > DISTURBED for share, _ in best)


@dataclass(frozen=True)
class Row:
    """A line of the report, as text; `ours` and `theirs` are medians."""

    what: str
    ours: str
    theirs: str = ""
    ratio: str = ""
    spread: str = ""
    aim: str = ""
    verdict: str = ""
    remark: str = ""

    def __str__(self) -> str:
        numbers = f"{self.ours:>9} {self.theirs:>9} {self.ratio:>7} {self.spread:>16}"
        said = f"{self.what:66} {numbers}  {self.aim:9} {self.verdict:7} {self.remark}"
        return said.rstrip()


@dataclass(frozen=True)
class Comparison:
    """A row to measure: our rate, their rate, and what their ratio should be."""

    what: str
    ours: Rate
    theirs: Rate
    aim: Aim = NO_AIM

    def measure(self) -> Row:
        """Return medians of the rates, and median and quartiles of the ratios pair by pair."""
        self.ours(), self.theirs()  # compiles what must be compiled, and fills caches
        pairs, disturbed = samples(lambda: (self.ours(), self.theirs()), PAIRS)
        ratio = Spread.of([ours / theirs for ours, theirs in pairs])
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        return Row(
            self.what, f"{ours:.2f}", f"{theirs:.2f}", f"{ratio.median:.2f}",
            f"{ratio.low:.2f} to {ratio.high:.2f}", str(self.aim), self.aim.verdict(ratio),
            remark(disturbed, PAIRS),
        )  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """A row to measure that has nothing beside it, so many times."""

    what: str
    value: Callable[[], float]
    aim: Aim = NO_AIM
    times: int = 3
    digits: int = 1

    def measure(self) -> Row:
        """Return the median and the quartiles."""
        values, disturbed = samples(self.value, self.times)
        found = Spread.of(values)
        low, median, high = (
            f"{each:.{self.digits}f}" for each in (found.low, found.median, found.high)
        )
        return Row(
            self.what, median, spread=f"{low} to {high}" if self.times > 1 else "",
            aim=str(self.aim), verdict=self.aim.verdict(found),
            remark=remark(disturbed, self.times),
        )  # fmt: skip


@dataclass(frozen=True)
class Missing:
    """A row that cannot be measured here, because its peer is not installed."""

    what: str

    def measure(self) -> Row:
        """Return a row without figures."""
        return Row(self.what, "-")


def remark(disturbed: int, count: int) -> str:
    """Say how many of `count` measurements were disturbed, if any."""
    return f"{disturbed} of {count} disturbed" if disturbed else ""
