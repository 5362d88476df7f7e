"""The pick: the algorithm to use, whether that is decided and, if not, what would decide it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..programs.program import BOUND
from . import wording
from .divergence import diverged
from .loss_model import NO_ERRORS, NO_MODELS, Models
from .order import MARGIN, MOST, Order, order, within
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
UNCERTAIN = (
    "more seeds would not decide, as the difference is within the error of the loss: a run of your "
    "own with the period and the workers of one of these, a fifth as long or longer, would narrow "
    "that (`paceline fit-loss`)"
)
UNMEASURED = (
    "more seeds would not decide, as the difference is within what links and GPUs may add: a "
    "profile of yours would narrow that (`paceline calibrate`)"
)
ONE_SEED = f"one seed cannot tell chance from merit; run more, such as --seeds {ENOUGH}"


def pick(  # noqa: PLR0913 - what is known of the runs
    groups: Groups,
    target: float | None,
    *,
    heavy: bool = False,
    exact: bool = False,
    bases: Bases = NO_BASES,
    models: Models = NO_MODELS,
) -> dict[str, Any]:
    """Say which algorithm to use, and whether it is known to be the best.

    With a target: the lowest mean time (median where `heavy`: times have no finite variance, or
    vary too much over seeds) to it among the algorithms that reached it with every seed, else the
    one that reached it most often. Otherwise the lowest mean loss at the end of the shortest run;
    without a loss, the fewest seconds per step, or, where clients are sampled, per gradient that
    reaches the model. Algorithms that stall with some seed are out, and so are bounds, whose
    workers never meet; `label` is None where none
    is left. `exact`: nothing is random, so that one seed tells all. `bases`: what the loss is the
    loss of, by label; `models`: errors of losses and times, which add to what seeds leave open.
    The keys are those of `verdict`, `measure`, `sentence`.
    """
    stalled = [label for label, runs in groups.items() if any(run.stall for run in runs)]
    bounds = [label for label, runs in groups.items() if runs and runs[0].bound]
    left = {label: runs for label, runs in groups.items() if label not in (*stalled, *bounds)}
    known = {label: models[label] for label in left if label in models}
    picked = (
        _pick(left, target, heavy, exact, bases, known) if left else _nothing(all_stall=not bounds)
    )
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


def _pick(  # noqa: PLR0913, PLR0917 - as `pick`
    groups: Groups, target: float | None, heavy: bool, exact: bool, bases: Bases, models: Models,
) -> dict[str, Any]:  # fmt: skip
    """Pick among the algorithms that may be picked."""
    if target is not None:
        times = scored(groups, "time_to_target", target)
        ran = {
            label: [np.inf if diverged(run) else run.duration for run in runs]
            for label, runs in groups.items()
        }
        factors = {k: each.to_target(groups[k], target) for k, each in models.items()}
        found = order(times, ran, heavy=heavy, exact=exact, factors=factors)
        if found.estimates:
            what = f"loss {target:g} after"
            return _said(found, times, "time_to_target", what, "s", exact, bases, models)
        if reached(times[found.best]):
            return _most_often(found, times, target, bases)
    end = _end(groups)
    losses = scored(groups, "loss")
    if any(np.isfinite(values).all() for values in losses.values()):
        gone = {
            label: np.where(np.isfinite(values), values, np.inf) for label, values in losses.items()
        }
        missed = "" if target is None else f"No algorithm reached loss {target:g}. "
        what = f"loss at {human(end)}, where the shortest run ends:"
        factors = {k: each.of_loss(groups[k], end) for k, each in models.items()}
        worth = (each.worth(groups[k], end) for k, each in models.items())
        near = min(worth, default=MARGIN)
        found = order(gone, gone, exact=exact, factors=factors, margin=near)
        picked = _said(found, losses, "loss", what, "", exact, bases, models)
        return picked | {"sentence": missed + picked["sentence"]}
    sampled = all(run.gradients is not None for runs in groups.values() for run in runs)
    measure = "seconds_per_gradient" if sampled else "seconds_per_step"
    paces = scored(groups, measure)
    at_work = unequal(groups) if sampled else ""
    at_work = at_work and f"; clients at work differ, {at_work}"
    what = f"fewest seconds per {PACES[measure][0]} (nothing is said of loss{at_work}):"
    factors = {k: one.times for k, one in models.items() if one.times is not None}
    found = order(paces, heavy=heavy, exact=exact, factors=factors)
    return _said(found, paces, measure, what, "s", exact, models=models)


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


def _said(  # noqa: PLR0913, PLR0917 - the parts of a sentence
    found: Order, scores: Mapping[str, Sequence[float]], measure: str, what: str, unit: str,
    exact: bool, bases: Bases = NO_BASES, models: Models = NO_MODELS,
) -> dict[str, Any]:  # fmt: skip
    """Return the verdict on scores in `unit`, "s" or "", with its sentence."""
    best, seeds, say = found.best, len(scores[found.best]), human if unit else format_loss
    if unit:
        found = found.stating(best, models.get(best, NO_ERRORS).stated.get(measure))
    value = found.estimates[best]
    said = f"{best}: {what} {say(value.value)}{wording.sentence(value, unit, seeds)}"
    said += wording.with_basis(bases.get(best))
    of_loss = any(each.loss for each in models.values())
    others = sorted((k for k in found.estimates if k != best), key=found.value)
    if not found.decided:
        doubt = headline(verdict(found))
        said = f"{doubt}. {GUESS} {said}; {outlook(found, seeds, exact, of_loss=of_loss)}"
    elif others:
        near = f", equivalent {within(found.margin)}" if others[0] in found.equivalent else ""
        said += f"; next is {others[0]}, {say(found.value(others[0]))}{near}"
    elif len(scores) > 1:
        said += "; no other got there with every seed"
    elif seeds == 1 and not exact:
        said += f"; {ONE_SEED}"
    return verdict(found) | {"measure": measure, "sentence": f"{said}."}


def _most_often(
    found: Order, times: Mapping[str, Sequence[float]], target: float, bases: Bases
) -> dict[str, Any]:
    """Return the verdict where no algorithm reached the target with every seed."""
    own = times[found.best]
    there, middle = reached(own), float(np.median(own))
    often = f"{there} of {len(own)} seeds" + f", median {human(middle)}" * (middle < np.inf)
    often += f"{wording.with_basis(bases.get(found.best))}; {len(own) - there} did not reach it"
    said = f"No algorithm reached loss {target:g} with every seed. {found.best}: {often}"
    if not found.decided:
        said = f"{headline(verdict(found))}. {said}; longer runs would decide"
    value = {"measure": "reached", "value": there, "ci95": None}
    return verdict(found) | value | {"sentence": f"{said}."}


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
    return undecided([picked["label"], *picked.get("alternatives", picked["ties"])])


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
    """Whether a verdict is decided; earlier versions wrote only the ties."""
    return bool(picked.get("decided", not picked["ties"]))


def undecided(labels: Sequence[str]) -> str:
    """Name the algorithms between which it is undecided, the one to take first."""
    return f"Undecided: {any_of(labels)}"


def any_of(labels: Sequence[str]) -> str:
    """Return "a or b", or the first few and how many others."""
    return _joined(labels, "or")


def all_of(labels: Sequence[str]) -> str:
    """Return "a and b", or the first few and how many others."""
    return _joined(labels, "and")


def _joined(labels: Sequence[str], word: str) -> str:
    more = len(labels) - NAMED
    if more < 2:
        return f" {word} ".join(labels)
    return f"{', '.join(labels[:NAMED])} {word} {more} others"


def outlook(found: Order, seeds: int, exact: bool = False, *, of_loss: bool = True) -> str:
    """Say what would decide between the best and those that may be as good.

    `of_loss`: the errors beside what seeds tell are those of losses, too, not of times alone.
    """
    if seeds == 1 and not exact:
        return ONE_SEED
    if found.open and not found.unsettled:
        are, one = ("is", "either") if len(found.open) == 1 else ("are", "any of them")
        near = within(found.margin)
        return f"{all_of(found.open)} {are} equivalent ({near}), so that {one} will do"
    if found.model:
        return UNCERTAIN if of_loss else UNMEASURED
    short = [label for label in (found.best, *found.unsettled) if label not in found.estimates]
    if short:
        return f"{all_of(short)} did not get there with every seed, and longer runs would decide"
    if found.seeds is None:
        return f"not even {MOST:,} seeds would decide"
    return f"about {found.seeds} seeds would decide"
