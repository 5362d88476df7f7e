"""Runs whose loss went away: from which evaluation on, and what a reader is told."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.simulator.results.run import Run

BOUND = 1e6  # times its first loss: whatever comes to that has diverged, though it is a number
CAUSE = "the learning rate is too high for this algorithm"


def begins(losses: Sequence[float]) -> int | None:
    """Return from which evaluation on a loss is no number, or above `BOUND` times its first.

    None where it ends otherwise, or never was a number.
    """
    values = np.asarray(losses, dtype=float)
    if not values.size or not math.isfinite(values[0]):
        return None
    limit = BOUND * values[0] if values[0] > 0 else math.inf
    lost = ~(np.isfinite(values) & (values <= limit))
    return int(lost.argmax()) if lost[-1] else None


def diverged(run: Run) -> bool:
    """Whether a run's loss went away for good."""
    return begins(run.curve["loss"]) is not None


def note(curve: Mapping[str, Sequence[float]]) -> str | None:
    """Say by which step, and why in all likelihood, if it did."""
    first = begins(curve["loss"])
    return None if first is None else f"diverged by step {curve['step'][first]:g}: {CAUSE}"


def summary(runs: Sequence[Run]) -> dict[str, Any] | None:
    """With how many of the seeds, by which step at the earliest, and why; None: with none."""
    found = [(run, first) for run in runs if (first := begins(run.curve["loss"])) is not None]
    if not found:
        return None
    return {
        "seeds": len(found),
        "of": len(runs),
        "step": min(run.curve["step"][first] for run, first in found),
        "cause": CAUSE,
    }


def sentence(label: str, found: Mapping[str, Any]) -> str:
    """Say what `summary` has found of one algorithm."""
    who = "" if found["seeds"] == found["of"] else f" with {found['seeds']} of {found['of']} seeds"
    return f"{label} diverged{who} by step {found['step']:g}"
