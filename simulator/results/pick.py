"""The pick: the algorithm to use, by a paired test over seeds."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paceline.simulator.results.statistics import (
    Groups,
    crossing,
    human,
    interval,
    loss_at,
    number,
    reached,
    seconds_per_step,
)


def pick(groups: Groups, target: float | None) -> dict[str, Any]:
    """Say which algorithm to use, and how sure that is.

    With a target: the lowest mean time to it among the algorithms that reached it with every seed,
    else the one that reached it most often. Otherwise the lowest mean loss at the end of the
    shortest run; without a loss, the fewest seconds per step. `ties`: the algorithms that a paired
    95 % interval over seeds does not distinguish from the best (runs with one seed share their
    draws). Algorithms that stall with some seed are out; `label` is None where all do.
    """
    stalled = [label for label, runs in groups.items() if any(run.stall for run in runs)]
    going = {label: runs for label, runs in groups.items() if label not in stalled}
    if not going:
        sentence = "Nothing to pick: every algorithm stands still for good."
        return {
            "label": None,
            "ties": [],
            "measure": "stalled",
            "value": None,
            "ci95": None,
            "sentence": sentence,
        }
    picked = _pick(going, target)
    if stalled:
        picked["sentence"] += f" Out, as standing still for good: {', '.join(stalled)}."
    return picked


def _pick(groups: Groups, target: float | None) -> dict[str, Any]:
    """Pick among the algorithms that do not stall."""
    if target is not None:
        times = {label: [crossing(run, target) for run in runs] for label, runs in groups.items()}
        if sure := _finite(times):
            what = f"loss {target:g} after"
            return _best(sure, "time_to_target", what, human, others=len(sure) < len(groups))
        medians = {label: float(np.median(values)) for label, values in times.items()}
        label = min(times, key=lambda key: (-reached(times[key]), medians[key]))
        if count := reached(times[label]):
            often = f"{count} of {len(times[label])} seeds, median {human(medians[label])}"
            sentence = f"No algorithm reached loss {target:g} with every seed. {label}: {often}."
            return {
                "label": label,
                "ties": [],
                "measure": "reached",
                "value": count,
                "ci95": None,
                "sentence": sentence,
            }
    end = min(run.duration for runs in groups.values() for run in runs)
    losses = {label: [loss_at(run, end) for run in runs] for label, runs in groups.items()}
    if finite := _finite(losses):
        missed = "" if target is None else f"No algorithm reached loss {target:g}. "
        what = f"loss at {human(end)}, where the shortest run ends:"
        picked = _best(finite, "loss", what, number, others=len(finite) < len(groups))
        return picked | {"sentence": missed + picked["sentence"]}
    paces = {label: list(map(seconds_per_step, runs)) for label, runs in groups.items()}
    what = "fewest seconds per step (nothing is said of loss):"
    return _best(paces, "seconds_per_step", what, human)


def _finite(scores: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {label: values for label, values in scores.items() if np.isfinite(values).all()}


def _best(
    scores: Mapping[str, list[float]],
    measure: str,
    what: str,
    say: Callable[[float], str],
    others: bool = False,
) -> dict[str, Any]:
    """Pick the lowest mean score; `others`: some algorithms have no finite score."""
    means = {label: float(np.mean(values)) for label, values in scores.items()}
    best, *rest = sorted(scores, key=lambda label: means[label])
    mean, seeds = means[best], len(scores[best])
    behind = {label: interval(np.subtract(scores[label], scores[best])) for label in rest}
    ties = [label for label, found in behind.items() if found is None or found[0] <= 0]
    ci95 = interval(scores[best])
    spread = f" (95 %: {say(ci95[0])} to {say(ci95[1])}, {seeds} seeds)" if ci95 else ""
    sentence = f"{best}: {what} {say(mean)}{spread}"
    if ci95 is None:
        sentence += "; one seed cannot tell chance from merit; run more with --seeds"
    elif ties:
        names = " or ".join(ties)
        sentence += f"; not distinguishable from {names} at 95 % with {seeds} seeds; run more"
    elif rest:
        sentence += f"; next is {rest[0]}, {say(means[rest[0]])}"
    elif others:
        sentence += "; no other got there with every seed"
    return {
        "label": best,
        "ties": ties,
        "measure": measure,
        "value": mean,
        "ci95": ci95,
        "sentence": sentence + ".",
    }
