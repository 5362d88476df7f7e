"""Compute the critical batch, or gradient noise scale, in tokens.

A run at batch B needs a number of steps proportional to 1 + critical / B (McCandlish et al., arXiv
1812.06162, equation 2.11 and appendix D). Runs are compared where they reach the same losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...inputs import untrusted
from ...results.intervals import NORMAL, TAILS

FACTS = SimpleNamespace(**untrusted.packaged(__file__, "batch.toml"))
LATE, LEVELS = 1 / 3, 9  # share of a run's steps to compare, and number of losses in it
FEWEST, BINS, REPLICATES = 2, 128, 100
"""Fewest losses of a run to compare, means of a long log, and samples of its noise."""
LEAST, LINEAR = 1e-3, 0.97  # least log of a factor, and its largest share of the log of the batches
MOST = 1.05  # largest share that noise and drift explain


@dataclass(frozen=True)
class Critical:
    """A critical batch (tokens), its 90 % interval, and a phrase on its origin."""

    value: float
    low: float
    high: float
    basis: str


def given(value: float | Sequence[float], grown: float = 1.0) -> Critical:
    """Return the user's critical batch, from a number or a range (tokens).

    `grown`: tokens of the run over the tokens of the run that showed this value.
    """
    low, high = (value, value) if isinstance(value, int | float) else value
    middle = math.sqrt(low * high) if math.isfinite(high) else high
    times = grown**FACTS.growth
    return Critical(times * middle, times * low, times * high, "given")


def published(tokens: float) -> Critical:
    """Return the critical batch of language models trained on some number of tokens.

    Zhang et al. (arXiv 2410.21676) fit 22.91 D^0.47 sequences of 512 tokens (D in millions) to the
    batch that needs 20 % more tokens than small batches, a fifth of the critical batch. Bergsma et
    al. (arXiv 2505.13738) find the exponent 0.462. Neither depends on the size of the model.
    """
    value = 5 * 22.91 * (tokens / 1e6) ** 0.47 * 512
    spread = FACTS.spread * FACTS.beyond ** max(math.log10(FACTS.least / tokens), 0.0)
    within = "two" if spread == FACTS.spread else f"{spread:.2g} with so few tokens"
    source = f"by the law of arXiv 2410.21676 for language, within a factor of {within}"
    return Critical(value, value / spread, value * spread, source)


def factor(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the log ratio of two runs' steps to the same losses, and the last step.

    Args:
        first, second: Rows of steps after the warm-up, and losses.

    Returns:
        The mean over the last third of the losses that both reach: the best estimate, then one per
        sample of the noise, in blocks that keep its correlation; and the second run's last step.

    Raises:
        ValueError: The runs share no loss.
    """
    rng, logs, runs = np.random.default_rng(0), list[np.ndarray](), list[np.ndarray]()
    for rows in (first, second):
        warm = rows[rows[:, 0] > 0]
        count = min(len(warm), BINS)
        if count < FEWEST:
            raise ValueError(f"{count} losses after the warm-up; log more often, or train on")
        parts = [part.mean(axis=0) for part in np.array_split(warm, count)]
        steps, losses = np.log(parts).T
        length, smooth = math.isqrt(count), _falling(losses)
        starts = rng.integers(0, count - length + 1, (REPLICATES, -(-count // length), 1))
        places = (starts + np.arange(length)).reshape(REPLICATES, -1)[:, :count]
        runs.append(steps)
        logs.append(np.vstack([smooth, _falling(smooth + (losses - smooth)[places])]))
    results, ends = list[float](), list[float]()
    for one, other in zip(*logs, strict=True):
        low, high = max(one[-1], other[-1]), min(one[0], other[0])
        if low >= high:
            continue
        end = np.exp(np.interp(-low, -other, runs[1]))
        steps = np.log(end * np.linspace(1 - LATE, 1, LEVELS))
        levels = np.interp(steps, runs[1], other)
        results.append(float(np.mean(np.interp(-levels, -one, runs[0]) - steps)))
        ends.append(float(end))
    if len(results) < REPLICATES / 2:
        raise ValueError("the two runs share no loss; train the shorter one for longer")
    return np.array(results), ends[0]


def _falling(losses: np.ndarray) -> np.ndarray:
    """Make losses fall: return the mean of the least loss before and the most after."""
    least = np.minimum.accumulate(losses, axis=-1)
    most = np.maximum.accumulate(losses[..., ::-1], axis=-1)[..., ::-1]
    falling: np.ndarray = (least + most) / 2 - 1e-9 * np.arange(losses.shape[-1])
    return falling


def matched(factors: Sequence[tuple[float, float, np.ndarray]]) -> Critical:
    """Return the critical batch by factors of steps between runs.

    `factors`: the batches of two runs, and draws of the log ratio of the first run's steps to the
    other's. Each pair counts by its precision. Raises ValueError for an impossible factor.
    """
    logs, widths, full = list[float](), list[float](), False
    for one, other, drawn in factors:
        small, large = min(one, other), max(one, other)
        gains, span = drawn if one < other else -drawn, math.log(large / small)
        log, (least, most) = float(gains[0]), np.quantile(gains, TAILS)
        if least > MOST * span or most < 0:
            raise ValueError(
                f"batches of {large:g} instead of {small:g} need {math.exp(-log):.2g} times the "
                f"steps: a rate too {'low' if most < 0 else 'high'} for the "
                f"{'larger' if most < 0 else 'smaller'} one? tune the rates, or give --noise-scale"
            )
        full = full or log > LINEAR * span
        sd = math.hypot(float(np.std(drawn)), FACTS.drift * span)
        ends = np.clip(log + NORMAL * sd * np.arange(-1, 2), LEAST, LINEAR * span)
        low, middle, high = np.log(np.expm1(ends) / (1 - np.exp(ends - span)) * small).tolist()
        logs.append(middle)  # a side is infinite if the larger batch gains nothing or everything
        sides = (side for side in (middle - low, high - middle) if side > 0)
        widths.append(min(sides, default=math.log(FACTS.vague)))
    middle, wide = float(np.average(logs, weights=np.array(widths) ** -2.0)), min(widths)
    low, value, high = np.exp([middle - wide, middle, middle + wide]).tolist()
    rate = " (the larger one gains in full: perhaps a lower rate suits the smaller one better)"
    return Critical(value, low, high, f"by {len(logs) + 1} runs at the same losses{rate * full}")


def progress(batch: float, baseline: float, critical: Any) -> Any:
    """Return a step's progress at `batch`, in steps of the baseline."""
    if np.isinf(critical).any():
        return batch / baseline
    return (1 + critical / baseline) / (1 + critical / batch)
