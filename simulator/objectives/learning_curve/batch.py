"""Compute the effect of the batch: the critical batch, or gradient noise scale, in tokens.

A run at batch B needs a number of steps proportional to 1 + critical / B (McCandlish et al., arXiv
1812.06162, equation 2.11 and appendix D).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...results import intervals
from .curve import Curve

SPREAD = 2.0  # factor, either way, between the definitions and models of published laws
SEEN, BEYOND = 1e9, 3.0
"""Approximate least tokens of the law's runs, and a further factor for every ten times fewer
tokens: at 8e5 tokens the law was 35 times too high
(docs/evidence/validation/learning-curves.md)."""
FEW = 1024  # tokens per worker and step: a sequence of most language models has more
VAGUE = 5.0  # factor of the law's critical batch, either way, beyond which the law does not apply
LEVELS = 8  # levels of loss at which two runs are compared
LARGEST = 1e18  # tokens: no limit


@dataclass(frozen=True)
class Critical:
    """A critical batch (tokens), its 90 % interval, and a phrase on its origin."""

    value: float
    low: float
    high: float
    basis: str


def given(value: float | Sequence[float]) -> Critical:
    """Return the user's critical batch, from a number or a range (tokens)."""
    low, high = (value, value) if isinstance(value, int | float) else value
    return Critical(math.sqrt(low * high) if math.isfinite(high) else high, low, high, "given")


def published(tokens: float) -> Critical:
    """Return the critical batch of language models trained on some number of tokens.

    Zhang et al. (arXiv 2410.21676) fit 22.91 D^0.47 sequences of 512 tokens (D in millions) to the
    batch that needs 20 % more tokens than small batches, a fifth of the critical batch. Bergsma et
    al. (arXiv 2505.13738) find the exponent 0.462. Neither depends on the size of the model.
    """
    value = 5 * 22.91 * (tokens / 1e6) ** 0.47 * 512
    spread = SPREAD * BEYOND ** max(math.log10(SEEN / tokens), 0.0)
    within = "two" if spread == SPREAD else f"{spread:.2g} with so few tokens"
    source = f"by the law of arXiv 2410.21676 for language, within a factor of {within}"
    return Critical(value, value / spread, value * spread, source)


def fitted(first: Curve, second: Curve) -> Critical:
    """Return the critical batch that reconciles two runs with different batches.

    Their steps after the warm-up to the same loss are proportional to 1 + critical / batch. The
    interval covers the curves' draws, and the levels of loss, whose best numbers differ. Raises
    ValueError if the batches are equal, or if no loss is common to both runs.
    """
    pair = sorted((first, second), key=lambda curve: curve.batch)
    small, large = (curve.batch for curve in pair)
    if large < 1.2 * small:
        raise ValueError("two runs with nearly equal batches show no critical batch; double one")
    high, low = (float(end(curve.loss(curve.fitted[n]) for curve in pair))
                 for n, end in enumerate((min, max)))  # fmt: skip
    if not low < high:
        raise ValueError("the two runs reach no common loss; train the shorter one for longer")
    levels = np.linspace(low, high, LEVELS + 1)[:-1]
    steps = [curve.steps_to(levels) for curve in pair]
    ratio = np.maximum(steps[0] / steps[1], 1.0)
    ratio = np.append(np.median(ratio[0]), ratio[1:])
    below = np.maximum(1 / small - ratio / large, 1 / LARGEST)
    value, *drawn = np.minimum((ratio - 1) / below, LARGEST).tolist()
    low, high = np.quantile(drawn, intervals.TAILS).tolist()
    return Critical(value, low, high, "fitted to two batch sizes")


def progress(batch: float, baseline: float, critical: Any) -> Any:
    """Return the progress of one step at `batch` in steps of the baseline (arXiv 1812.06162)."""
    if np.isinf(critical).any():
        return batch / baseline
    return (1 + critical / baseline) / (1 + critical / batch)
