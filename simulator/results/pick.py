"""The pick: the algorithm to use, whether that is decided and, if not, what would decide it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..programs.program import BOUND
from . import wording
from .divergence import diverged
from .loss_model import NO_ERRORS, NO_MODELS, Models
from .order import MARGIN, MOST, Order, Terms, order, within
from .statistics import (
    Groups,
    crossing,
    format_loss,
    human,
    loss_at,
    reached,
    seconds_per_gradient,
    seconds_per_step,
    unequal,
)

PACES = {
    "seconds_per_step": ("step", seconds_per_step),
    "seconds_per_gradient": ("gradient that reaches the model", seconds_per_gradient),
}
"""Measures of a pace: what it is the time of, in words, and its function of a run."""
NAMED = 3  # most algorithms that a sentence names; the others are counted
ENOUGH = 8  # seeds to ask for where one says nothing
Bases = Mapping[str, str | None]
NO_BASES: Bases = {}
ALONE = "one worker alone"  # a choice in a search; no algorithm
GUESS = "The best guess is"
ONE_SEED = f"one seed cannot tell chance from merit; run more, such as --seeds {ENOUGH}"
OUTLOOKS = {
    "one-seed": ONE_SEED,
    "equivalent": "equivalent ({margin}): {labels}, so that any of them will do",
    "loss-model": "more seeds would not decide, as the difference is within the error of the loss; "
    "a run of yours would narrow that (`paceline fit-loss`)",
    "time-model": "more seeds would not decide, as the difference is within what links and GPUs "
    "may add; a profile of yours would narrow that (`paceline calibrate`)",
    "not-reached": "{labels} did not get there with every seed, and longer runs would decide",
    "too-many": "not even {seeds:,} seeds would decide",
    "seeds": "about {seeds} seeds would decide",
}
"""What would decide between alternatives, by the reason that they are undecided."""


class Known(NamedTuple):
    """What is known of runs beside their scores.

    `heavy`: times have no finite variance, or vary too much over seeds; `exact`: nothing is
    random, so that one seed tells all; `bases`: what the loss is the loss of, by label; `models`:
    errors of losses and times, which add to what seeds leave open.
    """

    heavy: bool = False
    exact: bool = False
    bases: Bases = NO_BASES
    models: Models = NO_MODELS


NOTHING_KNOWN = Known()


def pick(groups: Groups, target: float | None, known: Known = NOTHING_KNOWN) -> dict[str, Any]:
    """Say which algorithm to use, and whether it is known to be the best.

    With a target: the lowest mean time (median where `known.heavy`) to it among the algorithms that
    reached it with every seed, else the one that reached it most often. Otherwise the lowest mean
    loss at the end of the shortest run; without a loss, the fewest seconds per step, or, where
    clients are sampled, per gradient that reaches the model. Algorithms that stall with some seed
    are out, and so are bounds, whose workers never meet; `label` is None where none is left. The
    keys are those of `verdict`, `measure`, `sentence`.
    """
    stalled = [label for label, runs in groups.items() if any(run.stall for run in runs)]
    bounds = [label for label, runs in groups.items() if runs and runs[0].bound]
    left = {label: runs for label, runs in groups.items() if label not in (*stalled, *bounds)}
    models = {label: known.models[label] for label in left if label in known.models}
    if left:
        picked = _pick(left, target, known._replace(models=models))
    else:
        picked = _nothing(all_stall=not bounds)
    if stalled and left:
        picked["sentence"] += f" Out, as standing still for good: {', '.join(stalled)}."
    if bounds:
        picked["sentence"] += f" Out: {', '.join(bounds)}, whose {BOUND}."
    return picked


def _nothing(all_stall: bool) -> dict[str, Any]:
    why = "every algorithm stands still for good" if all_stall else "no algorithm is left"
    return {
        "label": None,
        "decided": False,
        "alternatives": [],
        "ties": [],
        "not_separated": [],
        "margin": MARGIN,
        "seeds_to_decide": None,
        "measure": "stalled",
        "value": None,
        "ci95": None,
        "sentence": f"Nothing to pick: {why}.",
    }


def _pick(groups: Groups, target: float | None, known: Known) -> dict[str, Any]:
    """Pick among the algorithms that may be picked."""
    soonest = None if target is None else _soonest(groups, target, known)
    if soonest is not None:
        return soonest
    models, end = known.models, _end(groups)
    losses = scored(groups, "loss")
    if any(np.isfinite(values).all() for values in losses.values()):
        gone = {
            label: np.where(np.isfinite(values), values, np.inf) for label, values in losses.items()
        }
        missed = "" if target is None else f"No algorithm reached loss {target:g}. "
        what = f"loss at {human(end)}, where the shortest run ends:"
        factors = {k: model.of_loss(groups[k], end) for k, model in models.items()}
        near = min((model.worth(groups[k], end) for k, model in models.items()), default=MARGIN)
        found = order(gone, gone, terms=Terms(known.exact, margin=near), factors=factors)
        picked = _stated(found, losses, "loss", what, known)
        return picked | {"sentence": missed + picked["sentence"]}
    return _quickest(groups, known)


def _soonest(groups: Groups, target: float, known: Known) -> dict[str, Any] | None:
    """Pick by the time to a loss; None where no run reached it."""
    times = scored(groups, "time_to_target", target)
    ran = {
        label: [np.inf if diverged(run) else run.duration for run in runs]
        for label, runs in groups.items()
    }
    factors = {k: model.to_target(groups[k], target) for k, model in known.models.items()}
    found = order(times, ran, terms=Terms(known.exact, known.heavy), factors=factors)
    if found.estimates:
        return _stated(found, times, "time_to_target", f"loss {target:g} after", known)
    if reached(times[found.best]):
        return _most_often(found, times, target, known)
    return None


def _quickest(groups: Groups, known: Known) -> dict[str, Any]:
    """Pick by the time of a step, or of a gradient where clients are sampled."""
    sampled = all(run.gradients is not None for runs in groups.values() for run in runs)
    measure = "seconds_per_gradient" if sampled else "seconds_per_step"
    paces = scored(groups, measure)
    at_work = unequal(groups) if sampled else ""
    at_work = at_work and f"; clients at work differ, {at_work}"
    what = f"fewest seconds per {PACES[measure][0]} (nothing is said of loss{at_work}):"
    factors = {k: one.times for k, one in known.models.items() if one.times is not None}
    found = order(paces, terms=Terms(known.exact, known.heavy), factors=factors)
    return _stated(found, paces, measure, what, known._replace(bases=NO_BASES))


def scored(groups: Groups, measure: str, target: float | None = None) -> dict[str, list[float]]:
    """Return a pick's `measure` of each run, by label; smaller is better. See `pick`."""
    if target is not None and measure in ("time_to_target", "reached"):
        return {label: [crossing(run, target) for run in runs] for label, runs in groups.items()}
    end = _end(groups)
    _, score = PACES.get(measure, ("", lambda run: loss_at(run, end)))
    return {label: [score(run) for run in runs] for label, runs in groups.items()}


def _end(groups: Groups) -> float:
    """Return when the shortest run ends, in seconds."""
    return min(run.duration for runs in groups.values() for run in runs)


def _stated(
    found: Order, scores: Mapping[str, Sequence[float]], measure: str, what: str, known: Known
) -> dict[str, Any]:
    """Return the verdict on scores, with its sentence; all but losses are times."""
    best, seeds = found.best, len(scores[found.best])
    unit, say = ("", format_loss) if measure == "loss" else ("s", human)
    if unit:
        found = found.stating(best, known.models.get(best, NO_ERRORS).stated.get(measure))
    value = found.estimates[best]
    sentence = f"{best}: {what} {say(value.value)}{wording.sentence(value, unit, seeds)}"
    sentence += wording.with_basis(known.bases.get(best))
    others = sorted((k for k in found.estimates if k != best), key=found.value)
    if not found.decided:
        of_loss = any(model.loss for model in known.models.values())
        doubt = headline(verdict(found))
        ahead = outlook(found, seeds, known.exact, of_loss=of_loss)
        sentence = f"{doubt}. {GUESS} {sentence}; {ahead}"
    elif others:
        near = f", equivalent {within(found.margin)}" if others[0] in found.equivalent else ""
        sentence += f"; next is {others[0]}, {say(found.value(others[0]))}{near}"
    elif len(scores) > 1:
        sentence += "; no other got there with every seed"
    elif seeds == 1 and not known.exact:
        sentence += f"; {ONE_SEED}"
    return verdict(found) | {"measure": measure, "sentence": f"{sentence}."}


def _most_often(
    found: Order, times: Mapping[str, Sequence[float]], target: float, known: Known
) -> dict[str, Any]:
    """Return the verdict where no algorithm reached the target with every seed."""
    own = times[found.best]
    there, middle = reached(own), float(np.median(own))
    often = f"{there} of {len(own)} seeds" + f", median {human(middle)}" * (middle < np.inf)
    often += f"{wording.with_basis(known.bases.get(found.best))}; {len(own) - there} did not"
    sentence = f"No algorithm reached loss {target:g} with every seed. {found.best}: {often}"
    if not found.decided:
        sentence = f"{headline(verdict(found))}. {sentence}; longer runs would decide"
    value = {"measure": "reached", "value": there, "ci95": None}
    return verdict(found) | value | {"sentence": f"{sentence}."}


def verdict(found: Order) -> dict[str, Any]:
    """Return the keys of a verdict, in memory or JSON.

    `label`: the best; `decided`: whether it is known at 90 % to be better than every other;
    `alternatives`: those of which that is not known, best first; `ties`: those known to be
    equivalent to it (within `margin`, a share), better or not; `not_separated`: those of which
    neither is known; `seeds_to_decide`: about as many seeds in all would decide, None if unknown or
    above `order.MOST`; `value`: the score, with the keys of its interval.
    """
    value = found.estimates.get(found.best)
    return {
        "label": found.best,
        "decided": found.decided,
        "alternatives": sorted(found.open, key=found.value),
        "ties": found.equivalent,
        "not_separated": found.unsettled,
        "margin": found.margin,
        "seeds_to_decide": found.seeds,
        **({"value": value.value, **value.beside_value()} if value else {}),
    }


def headline(picked: Mapping[str, Any]) -> str:
    """Return the headline of a verdict, from memory or JSON, if it has none of its own."""
    if "headline" in picked:
        return str(picked["headline"])
    if picked["label"] is None:
        return "Nothing to deploy"
    if decided(picked):
        _, of_time, unit = str(picked.get("measure")).partition("seconds_per_")
        # without a loss that is no reason to deploy it
        return f"{f'Fewest seconds per {unit}:' if of_time else 'Deploy'} {picked['label']}"
    return undecided([picked["label"], *picked["alternatives"]])


def to_run(document: Mapping[str, Any], label: str | None, where: str) -> str | None:
    """Return which of a document's algorithms to run: `label`, else its pick; None: it has none.

    Raises InputError where the pick is the lowest loss whatever the time, and there are trades for
    less time: which one to take is the user's to say.
    """
    trades = [each["label"] for each in document.get("tradeoffs", ())]
    picked = document["pick"]["label"]
    names = [each for each in dict.fromkeys([picked, *trades]) if each != ALONE]
    if label is None and len(trades) > 1 and len(names) > 1:
        raise InputError(
            f"{where}: {picked} has the lowest loss, whatever time it takes; "
            f"say which to run: {', '.join(map(repr, names))}"
        )
    return label or picked


def decided(picked: Mapping[str, Any]) -> bool:
    """Whether a verdict is decided."""
    return bool(picked["decided"])


def undecided(labels: Sequence[str]) -> str:
    """Name the algorithms between which it is undecided, the one to take first."""
    return f"Undecided: {any_of(labels)}"


def any_of(labels: Sequence[str], word: str = "or") -> str:
    """Return "a or b", or the first few and how many others."""
    more = len(labels) - NAMED
    if more < 2:
        return f" {word} ".join(labels)
    return f"{', '.join(labels[:NAMED])} {word} {more} others"


def all_of(labels: Sequence[str]) -> str:
    """Return "a and b", or the first few and how many others."""
    return any_of(labels, "and")


def outlook(found: Order, seeds: int, exact: bool = False, *, of_loss: bool = True) -> str:
    """Say what would decide between the best and those that may be as good.

    `of_loss`: the errors beside what seeds tell are those of losses, too, not of times alone.
    """
    short = [label for label in (found.best, *found.unsettled) if label not in found.estimates]
    if seeds == 1 and not exact:
        code = "one-seed"
    elif found.open and not found.unsettled:
        code, short = "equivalent", found.open
    elif found.model:
        code = "loss-model" if of_loss else "time-model"
    elif short:
        code = "not-reached"
    else:
        code = "seeds" if found.seeds else "too-many"
    margin, count = within(found.margin), found.seeds or MOST
    return OUTLOOKS[code].format(labels=all_of(short), margin=margin, seeds=count)
