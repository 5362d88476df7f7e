"""Values that need no trial of their own: by a law of losses others have the same."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import InputError
from ...load.load import known_programs
from ...objectives.learning_curve import evidence
from ...objectives.learning_curve.objective import expect
from ...scenario.tables import LearningCurve, Range
from ...scenario.world import World
from .space import Space, Values

UNTIMED = ("alpha", "lr", "outer_lr", "outer_momentum")  # no time depends on these


def without(tried: Space) -> tuple[Space, list[str]]:
    """Return the space with one of the values between which a law does not tell, and notes."""
    entries, notes = dict(tried.entries), list[str]()
    if not isinstance(tried.scenario.objective, LearningCurve):
        return tried, notes
    best = evidence.best_outer_lr(tried.scenario.cluster.workers)
    for family, key in itertools.product(tried.entries, UNTIMED):
        entry = entries[family]
        values = entry.choices.get(key, ())
        if isinstance(values, Range) or not _numbers(values):
            continue
        usual = best if key == "outer_lr" else entry.table.get(key, values[0] if values else 0)
        kept: dict[Any, Any] = {}
        for value in sorted(values, key=lambda value: abs(value - usual)):
            kept.setdefault(_law(tried, family, entry.choices | {key: (value,)}) or value, value)
        if len(kept) == len(values):
            continue
        left = tuple(value for value in values if value in kept.values())
        entries[family] = replace(entry, choices=entry.choices | {key: left})
        every, some = (", ".join(f"{each:g}" for each in part) for part in (values, left))
        known = f" (published optimum {best:.2g})" * (key == "outer_lr")
        notes.append(
            f"{family}: {key} is not predicted{known}: of {every} only {some} is tried, as time "
            "and loss are the same"
        )
    return replace(tried, entries=entries), notes


def _law(tried: Space, family: str, choices: Mapping[str, Values]) -> tuple[Any, ...] | None:
    """Return all that a law says of choices, of which the last number speaks; None: no law."""
    found = []
    values = (
        (each.high,) if isinstance(each, Range)
        else each[-1:] if _numbers(each) and key not in UNTIMED else each
        for key, each in choices.items()
    )  # fmt: skip
    for chosen in itertools.product(*values):
        try:
            candidate = tried.candidate(family, dict(zip(choices, chosen, strict=True)))
        except InputError:
            return None
        world = tried.world(candidate.table)
        known = expect(
            World.of(world, world.algorithm[0], known_programs(tried.programs)[candidate.name])
        )
        if not known.direct:
            return None
        found.append((known.log_ratio, known.sd, known.basis))
    return tuple(found)


def _numbers(values: Sequence[Any]) -> bool:
    return all(type(each) in (int, float) for each in values)
