"""What of the page a URL holds: the values that were moved, by the names of their sliders."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import KeyPath, nearest, show
from paceline.simulator.reports.explore.controls import Control, changed
from paceline.simulator.scenario.scenario import Scenario

LONGEST = 2000  # characters; the sliders need a few hundred

State = Mapping[str, str]
"""Texts of the values that differ from the scenario's own, by the sliders' names."""


def read(search: str, knobs: Sequence[Control]) -> tuple[dict[str, str], list[str]]:
    """Return the state that a query string holds, and what of it is ignored, and why."""
    by_name = {knob.name: knob for knob in knobs}
    if len(search) > LONGEST:
        return {}, ["The address is too long, so that all of it is ignored."]
    state: dict[str, str] = {}
    problems = []
    for name, text in parse_qsl(search.removeprefix("?"), keep_blank_values=True):
        if name not in by_name:
            reason = nearest(name, by_name, "the sliders are")
            problems.append(f"{show(name)} is ignored: unknown; {reason}.")
            continue
        try:
            by_name[name].read(text)
        except ValueError as error:
            problems.append(f"{name} = {show(text)} is ignored: {error}.")
            continue
        if text.strip() != by_name[name].own:
            state[name] = text.strip()
    return {knob.name: state[knob.name] for knob in knobs if knob.name in state}, problems


def write(state: State) -> str:
    """Return the query string of a state."""
    return f"?{urlencode(state)}" if state else ""


def changes(state: State, knobs: Sequence[Control]) -> dict[KeyPath, Any]:
    """Return what a state writes where in the scenario's table."""
    found: dict[KeyPath, Any] = {}
    for knob in knobs:
        if knob.name in state:
            found |= knob.changes(state[knob.name])
    return found


def apply(scenario: Scenario, state: State, knobs: Sequence[Control], folder: Any) -> Scenario:
    """Return the scenario of a state.

    Raises InputError where values that each may be do not go together.
    """
    try:
        return changed(scenario, changes(state, knobs), folder) if state else scenario
    except ValueError as error:
        raise InputError(str(error)) from None
