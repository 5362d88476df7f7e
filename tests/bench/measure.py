"""Measuring side by side: rates of two things in turn, and what is to be said of them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """What was measured: our figure and, where there is one, the other's; `held`: whether the aim
    was met, None where there is none."""

    what: str
    ours: str
    other: str = ""
    ratio: str = ""
    aim: str = ""
    held: bool | None = None

    @property
    def verdict(self) -> str:
        """In a word."""
        return "" if self.held is None else "ok" if self.held else "MISSED"

    def __str__(self) -> str:
        numbers = f"{self.ours:>9} {self.other:>9} {self.ratio:>7}"
        return f"{self.what:66} {numbers}  {self.aim:9} {self.verdict}".rstrip()


def seconds(work: Work) -> float:
    """Seconds that it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def rates(
    first: Work, size: float, second: Work, other: float, repeats: int = 7
) -> tuple[float, float, float]:
    """Median rates (millions of units per second) of the two, and of their ratio pair by pair."""
    pairs = [(size / seconds(first) / 1e6, other / seconds(second) / 1e6) for _ in range(repeats)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def compared(
    what: str, found: tuple[float, float, float], least: float = 0.0, most: float = 0.0
) -> Row:
    """Make a row of rates and a ratio that is to be at least, or at most, so much."""
    ours, other, ratio = found
    aim = f">= {least:g}" if least else f"<= {most:g}" if most else ""
    held = ratio >= least if least else ratio <= most if most else None
    return Row(what, f"{ours:.2f}", f"{other:.2f}", f"{ratio:.2f}", aim, held)
