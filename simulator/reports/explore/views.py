"""Views: the runs shown for one state of the sliders, previews until whole runs are finished."""

import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...objectives.basis import bases
from ...objectives.learning_curve.objective import Expected
from ...results import consumption
from ...results.determinism import deterministic
from ...results.pick import pick
from ...results.prediction_interval import Uncalibrated
from ...results.run import Run
from ...scenario.scenario import Scenario
from ...studies import learning, links
from ...studies.execution import Execution
from . import address
from .controls import controls
from .pool import Pool
from .previews import Preview, Previewer

ENOUGH = 0.2  # of a run; shorter ones do not suffice for a pick


@dataclass(frozen=True)
class View:
    """The runs shown for one state of the sliders: a preview or whole runs of each algorithm.

    `final`: these are all runs of `paceline simulate`. `problems`: sentences about values that
    were ignored.
    """

    scenario: Scenario
    state: dict[str, str]
    parts: list[Preview]
    whole: list[bool]
    final: bool
    problems: list[str] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        """Return the algorithms' labels."""
        return [algorithm.label for algorithm in self.scenario.algorithm]

    @cached_property
    def pick(self) -> str:
        """Say which algorithm to use, by the seeds that all have; of runs cut short, by loss."""
        if any(part.share < ENOUGH for part in self.parts):
            return "The pick appears when the slider rests."
        seeds = min(len(part.runs) for part in self.parts)
        groups = {label: runs[:seeds] for label, runs in self._groups.items()}
        whole = all(part.share == 1 for part in self.parts)
        losses, unmeasured, stated = self._known
        errors = learning.errors(self.scenario, groups, losses, unmeasured)
        said = pick(
            groups,
            self.scenario.run.target_loss if whole else None,
            heavy=self.scenario.heavy_tailed,
            exact=deterministic(self.scenario),
            bases=bases(self.scenario),
            models={key: each._replace(stated=stated[key]) for key, each in errors.items()},
        )["sentence"]
        return said if whole else f"So far: {said}"

    @property
    def used(self) -> dict[str, Any]:
        """Return by label what whole runs used, as `consumption.summary`."""
        losses, _, stated = self._known
        parts = zip(self._groups.items(), self.parts, strict=True)
        return {
            label: consumption.summary(self.scenario, runs, losses.get(label), stated[label])
            for (label, runs), part in parts
            if runs and part.share == 1
        }

    @property
    def _groups(self) -> dict[str, list[Run]]:
        return dict(zip(self.labels, (part.runs for part in self.parts), strict=True))

    @cached_property
    def _known(self) -> tuple[dict[str, Expected], dict[str, Uncalibrated], dict[str, Any]]:
        """What losses and times may miss, and the intervals that `simulate` states, by label."""
        scenario, groups = self.scenario, {k: runs for k, runs in self._groups.items() if runs}
        losses = learning.models(scenario, groups)
        missed = links.uncalibrated(scenario, groups, Execution())
        stated = {
            label: learning.stated(scenario, runs, losses.get(label), missed.get(label))
            for label, runs in groups.items()
        }
        return losses, missed, stated

    @property
    def shown(self) -> str:
        """Say how much of the scenario's runs is shown."""
        wanted, shown = self.scenario.run.seeds, [len(part.runs) for part in self.parts]
        if self.final:
            many = f"all {wanted} seeds" if wanted > 1 else "the one seed"
            return f"Complete: {many}, the same numbers as paceline simulate."
        seeds = f"{_span(shown)} of {wanted} seeds" if wanted > 1 else "one seed"
        cut = [
            f"{label} ({'not yet run' if not part.runs else f'first {100 * part.share:.2g} %'})"
            for label, part in zip(self.labels, self.parts, strict=True)
            if part.share < 1
        ]
        said = f"Preview: {seeds}" + ("" if all(self.whole) else ", fewer points")
        return said + (f"; cut short: {', '.join(cut)}." if cut else ", whole runs.")


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


class Explorer:
    """A scenario, its sliders, and the runs made so far."""

    def __init__(self, scenario: Scenario, executor: Executor) -> None:
        self.scenario = scenario
        self.folder = Path(scenario.file).parent
        self.controls = controls(scenario, self.folder)
        self.pool = Pool(executor)
        self._previewer = Previewer()
        self._lock = threading.Lock()
        self._previewed: tuple[dict[str, str], dict[int, Preview]] | None = None
        self._last: View | None = None

    def warm_up(self) -> None:
        """Compile and measure all algorithms, so that the first move is as quick as later ones.

        The pool's processes begin with the scenario as loaded.
        """
        self.pool.want((), self.scenario)
        self._previewer.learn(self.scenario)

    def view(self, search: str, *, rest: bool) -> View:
        """Return the view for a query string; `rest`: no slider is moving, so make whole runs."""
        state, problems = address.read(search, self.controls)
        with self._lock:
            try:
                scenario = address.apply(self.scenario, state, self.controls, self.folder)
                self._last = self._view(scenario, state, rest)
            except (InputError, RuntimeError, ArithmeticError) as error:
                problems.append(f"{error} The page shows the values before that.")
                self._last = self._last or self._view(self.scenario, {}, rest)
        return replace(self._last, problems=problems)

    def start(self) -> View:
        """Return the runs finished so far of the scenario as loaded, for comparison."""
        found = self.pool.found(())
        parts = [
            Preview(found.get(index, []), 1.0) for index in range(len(self.scenario.algorithm))
        ]
        return View(self.scenario, {}, parts, [True] * len(parts), False)

    def _view(self, scenario: Scenario, state: dict[str, str], rest: bool) -> View:
        key = tuple(state.items())
        self.pool.want(key, scenario) if rest else self.pool.want(None)
        found = self.pool.found(key)
        algorithms = range(len(scenario.algorithm))
        previews: dict[int, Preview] = {}
        if any(index not in found for index in algorithms):
            if self._previewed is None or self._previewed[0] != state:
                self._previewed = state, self._previewer.draw(scenario)
            previews = self._previewed[1]
        parts = [
            Preview(found[index], 1.0) if index in found else previews[index]
            for index in algorithms
        ]
        whole = [index in found for index in algorithms]
        final = all(whole) and all(len(part.runs) == scenario.run.seeds for part in parts)
        return View(scenario, state, parts, whole, final)
