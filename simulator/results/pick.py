"""The pick: the algorithm to use, by a paired test over seeds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.simulator.results import wording
from paceline.simulator.results.intervals import estimand, estimate, exceeds
from paceline.simulator.results.statistics import (
    Groups,
    crossing,
    human,
    loss_at,
    number,
    reached,
    seconds_per_step,
)


def pick(groups: Groups, target: float | None, *, heavy: bool = False) -> dict[str, Any]:
    """Say which algorithm to use, and how sure that is.

    With a target: the lowest mean time (median where `heavy`: times have no finite variance, or
    vary too much over seeds) to it among the algorithms that reached it with every seed,
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
    picked = _pick(going, target, heavy)
    if stalled:
        picked["sentence"] += f" Out, as standing still for good: {', '.join(stalled)}."
    return picked


def _pick(groups: Groups, target: float | None, heavy: bool) -> dict[str, Any]:
    """Pick among the algorithms that do not stall."""
    if target is not None:
        times = {label: [crossing(run, target) for run in runs] for label, runs in groups.items()}
        if sure := _finite(times):
            what = f"loss {target:g} after"
            late = len(sure) < len(groups)
            return _best(sure, "time_to_target", what, "s", heavy=heavy, others=late)
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
        picked = _best(finite, "loss", what, "", others=len(finite) < len(groups))
        return picked | {"sentence": missed + picked["sentence"]}
    paces = {label: list(map(seconds_per_step, runs)) for label, runs in groups.items()}
    what = "fewest seconds per step (nothing is said of loss):"
    return _best(paces, "seconds_per_step", what, "s", heavy=heavy)


def _finite(scores: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {label: values for label, values in scores.items() if np.isfinite(values).all()}


def _best(  # noqa: PLR0913 - what is said of the scores
    scores: Mapping[str, list[float]],
    measure: str,
    what: str,
    unit: str,
    *,
    heavy: bool = False,
    others: bool = False,
) -> dict[str, Any]:
    """Pick the lowest score, by the mean or, of skewed scores, the median.

    `unit`: "s" or ""; `heavy`: the scores have no finite variance; `others`: some algorithms have
    no finite score.
    """
    of = estimand(scores.values(), heavy=heavy)
    found = {label: estimate(values, heavy=heavy, of=of) for label, values in scores.items()}
    best, *rest = sorted(scores, key=lambda label: found[label].value)
    chosen, seeds, say = found[best], len(scores[best]), human if unit else number
    ties = [label for label in rest if not exceeds(scores[label], scores[best], heavy=heavy, of=of)]
    said = f"{best}: {what} {say(chosen.value)}{wording.sentence(chosen, unit, seeds)}"
    if seeds == 1:
        said += "; one seed cannot tell chance from merit; run more with --seeds"
    elif ties:
        names = " or ".join(ties)
        said += f"; not distinguishable from {names} at 95 % with {seeds} seeds; run more"
    elif rest:
        said += f"; next is {rest[0]}, {say(found[rest[0]].value)}"
    elif others:
        said += "; no other got there with every seed"
    return {
        "label": best,
        "ties": ties,
        "measure": measure,
        "value": chosen.value,
        **chosen.beside_value(),
        "sentence": said + ".",
    }
