"""What the page shows of one state of its sliders: whole runs, or drafts until these are there."""

import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.reports.explore import address
from paceline.simulator.reports.explore.controls import controls
from paceline.simulator.reports.explore.pool import Pool
from paceline.simulator.reports.explore.previews import Preview, Previewer
from paceline.simulator.results.pick import pick
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Scenario

ENOUGH = 0.2  # of a run: what has done less is not picked by
TIMING = ("latency", "average", "bandwidth", "straggling")
"""Sliders that change times, and what is computed only as far as that depends on time."""


@dataclass(frozen=True)
class View:
    """One state: of each algorithm a draft or its whole runs; `problems`: what was ignored.

    `final`: these are all the runs of `paceline simulate`. `reference`: earlier whole runs, of
    algorithms that here are cut short, whose losses by step are the same but for what depends on
    time: only times have changed since.
    """

    scenario: Scenario
    state: dict[str, str]
    parts: list[Preview]
    whole: list[bool]
    final: bool
    reference: dict[int, list[Run]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """The algorithms' names."""
        return [algorithm.label for algorithm in self.scenario.algorithm]

    @cached_property
    def pick(self) -> str:
        """Which algorithm to use, by seeds that all have; of runs cut short, by their losses."""
        if any(part.share < ENOUGH for part in self.parts):
            return "The pick follows when the slider rests."
        seeds = min(len(part.runs) for part in self.parts)
        groups = {
            label: part.runs[:seeds] for label, part in zip(self.labels, self.parts, strict=True)
        }
        if any(part.share < 1 for part in self.parts):
            return f"So far: {pick(groups, None)['sentence']}"
        return str(pick(groups, self.scenario.run.target_loss)["sentence"])

    @property
    def shown(self) -> str:
        """How much of the scenario's runs this is, in words."""
        wanted, shown = self.scenario.run.seeds, [len(part.runs) for part in self.parts]
        if self.final:
            many = f"all {wanted} seeds" if wanted > 1 else "its one seed"
            return f"Complete: {many}, the numbers of paceline simulate."
        seeds = f"{_span(shown)} of {wanted} seeds" if wanted > 1 else "one seed"
        cut = [
            f"{label} ({'waits' if not part.runs else f'first {100 * part.share:.2g} %'})"
            for label, part in zip(self.labels, self.parts, strict=True)
            if part.share < 1
        ]
        said = f"Draft: {seeds}" + ("" if all(self.whole) else ", fewer points")
        said += f"; cut short: {', '.join(cut)}." if cut else ", whole runs."
        return said + (
            " Dashed: on from there as in the last whole run, at the new pace."
            if self.reference
            else ""
        )


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


class Explorer:
    """A scenario, its sliders, and what has been computed of them."""

    def __init__(self, scenario: Scenario, executor: Executor) -> None:
        self.scenario = scenario
        self.folder = Path(scenario.file).parent
        self.knobs = controls(scenario, self.folder)
        self.pool = Pool(executor)
        self._drafter = Previewer()
        self._lock = threading.Lock()
        self._drafted: tuple[dict[str, str], dict[int, Preview]] | None = None
        self._last: View | None = None
        self._whole: dict[int, tuple[dict[str, str], list[Run]]] = {}

    def warm_up(self) -> None:
        """Compile, and learn what everything takes, so that the first move is as quick as others.

        The processes of the pool begin with the scenario as it is.
        """
        self.pool.want((), self.scenario)
        self._drafter.learn(self.scenario)

    def frame(self, search: str, *, rest: bool) -> View:
        """Return what is to be shown for a query string; `rest`: the sliders do not move."""
        state, problems = address.read(search, self.knobs)
        with self._lock:
            try:
                scenario = address.apply(self.scenario, state, self.knobs, self.folder)
                self._last = self._frame(scenario, state, rest)
            except (InputError, RuntimeError, ArithmeticError) as error:
                problems.append(f"{error} Shown is what was there before.")
                self._last = self._last or self._frame(self.scenario, {}, rest)
        return View(**{**_fields(self._last), "problems": problems})

    def start(self) -> View:
        """What there is by now of the scenario as it is, for comparison."""
        found = self.pool.found(())
        parts = [
            Preview(found.get(index, []), 1.0) for index in range(len(self.scenario.algorithm))
        ]
        return View(self.scenario, {}, parts, [True] * len(parts), False)

    def _frame(self, scenario: Scenario, state: dict[str, str], rest: bool) -> View:
        key = tuple(state.items())
        self.pool.want(key, scenario) if rest else self.pool.want(None)
        found = self.pool.found(key)
        algorithms = range(len(scenario.algorithm))
        drafts: dict[int, Preview] = {}
        if any(index not in found for index in algorithms):
            if self._drafted is None or self._drafted[0] != state:
                self._drafted = state, self._drafter.draw(scenario)
            drafts = self._drafted[1]
        parts = [
            Preview(found[index], 1.0) if index in found else drafts[index] for index in algorithms
        ]
        whole = [index in found for index in algorithms]
        final = all(whole) and all(len(part.runs) == scenario.run.seeds for part in parts)
        untimed = {name: text for name, text in state.items() if name not in TIMING}
        for index, runs in found.items():
            self._whole[index] = untimed, runs
        reference = {
            index: self._whole[index][1]
            for index in algorithms
            if parts[index].share < 1 and self._whole.get(index, ({"": ""}, []))[0] == untimed
        }
        return View(scenario, state, parts, whole, final, reference)


def _fields(frame: View) -> dict[str, Any]:
    return {key: getattr(frame, key) for key in View.__dataclass_fields__}
