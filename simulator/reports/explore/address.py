"""Keep the page's state in its URL: the values that differ from the scenario's, by slider name."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...errors import InputError
from ...inputs.messages import KeyPath, nearest, show
from ...scenario.scenario import Scenario
from .controls import Control, changed

LONGEST = 2000  # characters; a few hundred suffice for all sliders

State = Mapping[str, str]
"""Texts of the values that differ from the scenario's own, by slider name."""


def read(search: str, controls: Sequence[Control]) -> tuple[dict[str, str], list[str]]:
    """Return the state in a query string, and a sentence for each part of it that is ignored."""
    by_name = {control.name: control for control in controls}
    if len(search) > LONGEST:
        return {}, ["The address is too long and is ignored."]
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
    return {
        control.name: state[control.name] for control in controls if control.name in state
    }, problems


def write(state: State) -> str:
    """Return the query string of a state."""
    return f"?{urlencode(state)}" if state else ""


def changes(state: State, controls: Sequence[Control]) -> dict[KeyPath, Any]:
    """Return the values that a state writes into the scenario's table, by path."""
    found: dict[KeyPath, Any] = {}
    for control in controls:
        if control.name in state:
            found |= control.changes(state[control.name])
    return found


def apply(scenario: Scenario, state: State, controls: Sequence[Control], folder: Any) -> Scenario:
    """Return the scenario with the values of a state.

    Raises InputError where values that are valid alone are invalid together.
    """
    try:
        return changed(scenario, changes(state, controls), folder) if state else scenario
    except ValueError as error:
        raise InputError(str(error)) from None
