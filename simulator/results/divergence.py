"""Divergence: the evaluation from which a loss is lost, and the words for it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .run import ROUNDING, Run

CAUSE = "the learning rate, or an outer one, is too high for this algorithm"


def begins(losses: Sequence[float]) -> int | None:
    """Return the evaluation from which a loss has diverged; None if it has not.

    A loss has diverged if from then on it is not finite, or above its first value.
    """
    values = np.asarray(losses, dtype=float)
    if not values.size or not math.isfinite(values[0]):
        return None
    limit = values[0] * ROUNDING if values[0] > 0 else math.inf
    learning = np.isfinite(values) & (values <= limit)
    return None if learning[-1] else int(np.flatnonzero(learning)[-1]) + 1


def diverged(run: Run) -> bool:
    """Whether a run's loss diverged for good."""
    return begins(run.curve["loss"]) is not None


def note(curve: Mapping[str, Sequence[float]]) -> str | None:
    """Return a note on the step at which a curve diverged, and the likely cause."""
    first = begins(curve["loss"])
    return None if first is None else f"diverged by step {curve['step'][first]:g}: {CAUSE}"


def summary(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return how many seeds diverged, the earliest step and the cause."""
    lost = [(run, first) for run in runs if (first := begins(run.curve["loss"])) is not None]
    if not lost:
        return None
    return {
        "seeds": len(lost),
        "of": len(runs),
        "step": min(run.curve["step"][first] for run, first in lost),
        "cause": CAUSE,
    }


def sentence(label: str, summary: Mapping[str, Any]) -> str:
    """Return `summary` of one algorithm in words."""
    seeds, of, step = summary["seeds"], summary["of"], summary["step"]
    who = "" if seeds == of else f" with {seeds} of {of} seeds"
    return f"{label} diverged{who} by step {step:g}"
