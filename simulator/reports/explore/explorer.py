"""The scenario behind the sliders: values read from the address, and what they predict."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np

from ...errors import InputError
from ...inputs.messages import KeyPath, nearest, show
from ...results import consumption
from ...results.figures import curves, interactive
from ...results.figures.chart import Line, Look, Panel
from ...results.statistics import human, time_unit
from ...scenario.scenario import Scenario
from ...studies.result import Result
from ...studies.simulate import simulate
from ..page.series import apart
from . import words
from .controls import Control, changed, controls

LONGEST = 2000  # characters of an address; a few hundred suffice for all sliders
REMEMBERED = 32  # results that stay in memory
POINTS = 200  # of the curve of a bound

State = Mapping[str, str]
"""Texts of the values that differ from the scenario's, by slider name."""


@dataclass
class Explorer:
    """A scenario, its sliders, and the results computed so far."""

    scenario: Scenario
    controls: tuple[Control, ...] = field(init=False)
    _results: "OrderedDict[tuple[Any, ...], Result]" = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.folder = Path(self.scenario.file).parent
        self.controls = controls(self.scenario, self.folder)

    def read(self, search: str) -> tuple[dict[str, str], list[str]]:
        """Return the state in a query string, and a sentence for each part that is ignored."""
        by_name = {control.name: control for control in self.controls}
        if len(search) > LONGEST:
            return {}, ["The address is too long and is ignored."]
        state: dict[str, str] = {}
        problems = []
        for name, text in parse_qsl(search.removeprefix("?"), keep_blank_values=True):
            if name not in by_name:
                reason = nearest(name, by_name, "the sliders are")
                problems.append(f"{show(name)} is ignored: unknown; {reason}.")
                continue
            problems += self.put(state, name, text)
        return {name: state[name] for name in by_name if name in state}, problems

    def put(self, state: dict[str, str], name: str, text: str) -> list[str]:
        """Put a value into a state; return a sentence about it if it is not valid."""
        control = next(control for control in self.controls if control.name == name)
        try:
            control.read(text)
        except ValueError as error:
            return [f"{name} = {show(text)} is ignored: {error}."]
        state.pop(name, None)
        if text.strip() != control.own:
            state[name] = text.strip()
        return []

    def changes(self, state: State) -> dict[KeyPath, Any]:
        """Return the values that a state writes into the scenario's table, by path."""
        moved = [control for control in self.controls if control.name in state]
        return {
            path: value
            for control in moved
            for path, value in control.changes(state[control.name]).items()
        }

    def apply(self, state: State) -> Scenario:
        """Return the scenario with the values of a state.

        Raises InputError where values that are valid alone are invalid together.
        """
        try:
            return changed(self.scenario, self.changes(state), self.folder)
        except ValueError as error:
            raise InputError(str(error)) from None

    def result(self, state: State, seeds: int | None = None) -> Result:
        """Simulate a state with so many seeds, by default all; raises InputError."""
        scenario = self.apply(state) if state else self.scenario
        key = (seeds or scenario.run.seeds, *state.items())
        if key not in self._results:
            self._results[key] = simulate(scenario, seeds=seeds)
            while len(self._results) > REMEMBERED:
                self._results.popitem(last=False)
        return self._results[key]


def address(state: State) -> str:
    """Return the query string of a state."""
    return f"?{urlencode(state)}" if state else ""


def figures(result: Result, loaded: Result | None) -> dict[str, Any]:
    """Return the page's figures for figures.js: error against time, and where the time goes.

    `loaded`: the scenario as it was loaded, of which thin lines are drawn.
    """
    scenario, labels = result.scenario, [*result.groups]
    names = apart(labels)
    groups = dict(zip(names, result.groups.values(), strict=True))
    loss = curves.LOSS_NAMES.get(scenario.objective.kind, "loss")
    panel = curves.error_panel(curves.of_groups(groups), scenario.run.target_loss, loss)
    size = time_unit(max(run.duration for run in result.runs))[0]
    beside = [*_before(loaded, size)] if loaded else []
    drawn = [*beside, *panel.lines, *_bounds(panel, scenario, size)]
    spent = curves.breakdown(groups, title="").panels[0]
    pace = [human(row["seconds_per_step"]["mean"]) for row in result.algorithms]
    rows = [f"{name}: {time}" for name, time in zip(names, pace, strict=True)]
    bars = replace(spent, y=replace(spent.y, names=rows))
    figure = replace(panel, lines=drawn, height=440)
    return {"error": interactive.spec(figure), "spent": interactive.spec(bars)}


def _before(loaded: Result, size: float) -> list[Line]:
    """Return thin lines of the scenario as loaded, with one seed."""
    column = "loss" if curves.has_loss(curves.of_groups(loaded.groups)) else "step"
    found = []
    for index, runs in enumerate(loaded.groups.values()):
        times, values = curves.on_a_grid(runs, column)
        look = Look.at(index)._replace(width=1.2, opacity=0.45)
        mean = values.mean(axis=0)
        found.append(Line("as loaded", times / size, mean, look, marks="none", named=False))
    return found


def _bounds(panel: Panel, scenario: Scenario, size: float) -> list[Line]:
    """Return Theorem 2's bound with expected times, of the algorithms that it covers."""
    end = panel.x.limits[1] if panel.x.limits else 1.0
    times = np.linspace(end / POINTS, end, POINTS)
    return [
        Line(
            "bound",
            times,
            np.array([bound(time * size, seconds, tau) for time in times]),
            Look.at(index)._replace(dash="dot", width=1.4),
            marks="none",
            named=False,
        )
        for index, bound, seconds, tau in words.theorem(scenario)
    ]


def amounts(result: Result) -> tuple[str, dict[str, list[str]]]:
    """Return what a run uses, as a heading and cells by column; none where no price is set."""
    rows = result.algorithms
    what, cells = consumption.cells(rows, result.scenario.run.target_loss)
    return what, {heading: [cell(row) for row in rows] for heading, cell in cells.items()}
