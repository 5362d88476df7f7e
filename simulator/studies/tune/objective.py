"""The objective of a search: one number per run, to be minimised (time, loss or cost)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.results.divergence import diverged
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import at, crossing, human, loss_at, number
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.scenario.tables import NoObjective

OBJECTIVES = ("time-to-loss", "loss-at-deadline", "cost-to-loss")
NEVER = 1e12  # above the value of any run
FARTHEST = 10.0  # the largest gap: that of a diverged run


class Score(NamedTuple):
    """The score of one run.

    `value`: seconds, loss or money; infinite where the target was not reached. `gap`: the share of
    the way to the target left at the end, in the logarithm of the loss (1: no progress). `ran`: the
    seconds that the run was given, infinite where its steps ended it. `notes`: those of the run.
    """

    value: float
    gap: float
    ran: float
    notes: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether the run reached the target, or has a final loss."""
        return math.isfinite(self.value)

    @property
    def diverged(self) -> bool:
        """Whether the loss diverged."""
        return any(note.startswith("diverged") for note in self.notes)

    @property
    def penalised(self) -> float:
        """The value; a run without one ranks behind all that have one, by its gap."""
        return self.value if self.reached else NEVER * (1 + self.gap)


@dataclass(frozen=True)
class TuningObjective:
    """The quantity to minimise: time or cost to reach `target`, or the loss at `deadline`.

    `deadline`: seconds; `second`: lower bound on the cost of a second of a run, in the unit of
    the value; `heavy`: the value depends on times without a finite variance.
    """

    name: str
    target: float | None = None
    deadline: float | None = None
    second: float = 0.0
    heavy: bool = False

    def score(self, run: Run, scenario: Scenario) -> Score:
        """Score a finished run of `scenario`. Raises InputError where it starts at the target."""
        notes, given = tuple(run.notes), scenario.run
        ended = given.duration is None or (given.steps is not None and run.steps >= given.steps)
        ran = math.inf if ended else given.duration or math.inf
        if self.target is None:
            assert self.deadline is not None
            loss = loss_at(run, self.deadline)
            return Score(loss if math.isfinite(loss) else math.inf, FARTHEST, ran, notes)
        start = run.curve["loss"][0]
        if start <= self.target:
            raise InputError(
                f"{scenario.file}: run.target_loss = {self.target:g}: reached at the start "
                f"(loss {start:.4g}); write a smaller one"
            )
        time = crossing(run, self.target)
        value = time
        if self.name == "cost-to-loss" and math.isfinite(time):
            value = at(run, time, "cost")
        return Score(value, self._gap(run), ran, notes)

    def _gap(self, run: Run) -> float:
        losses = np.asarray(run.curve["loss"])
        seen = losses[np.isfinite(losses) & (losses > 0)]
        if not len(seen) or diverged(run):
            return FARTHEST
        assert self.target is not None
        way = math.log(max(seen[0] / self.target, 1.0 + 1e-9))
        return float(np.clip(math.log(max(seen[-1] / self.target, 1e-9)) / way, 0.0, FARTHEST))

    def at_least(self, score: Score) -> float:
        """Return the value of a run, or a lower bound if it was cut before the target."""
        if score.reached:
            return score.value
        return score.ran * self.second if self.second else 0.0

    def horizon(self, value: float) -> float:
        """Return the seconds after which a run is sure to have exceeded `value`."""
        return value / self.second if self.second else math.inf

    @property
    def says(self) -> str:
        """The name of the value, for tables and axes."""
        if self.target is None:
            return f"loss after {human(self.deadline)}"
        return f"{'time' if self.name == 'time-to-loss' else 'cost'} to loss {self.target:g}"

    def sentence(self, value: float) -> str:
        """Return a value in words."""
        if self.target is None:
            return f"loss {number(value)} after {human(self.deadline)}"
        between = "after" if self.name == "time-to-loss" else "for"
        return f"loss {self.target:g} {between} {self.show(value)}"

    @property
    def unit(self) -> str:
        """The unit of a value: "s", or "" for a loss or money."""
        return "s" if self.name == "time-to-loss" else ""

    @property
    def show(self) -> Callable[[float | None], str]:
        """The function that formats a value for reading."""
        if self.name == "time-to-loss":
            return human
        return lambda value: "-" if value is None else number(value)


def tuning_objective(scenario: Scenario, name: str | None) -> TuningObjective:
    """Return the objective called `name`; None: time-to-loss if there is a target, else the loss.

    The deadline is run.duration, or open where there is none. Raises InputError where the scenario
    lacks what the objective needs.
    """
    file, run, cost = scenario.file, scenario.run, scenario.cost
    if name is None:
        name = "time-to-loss" if run.target_loss else "loss-at-deadline"
    if name not in OBJECTIVES:
        raise InputError(f"--objective {name}: unknown; choose one of: {', '.join(OBJECTIVES)}")
    if isinstance(scenario.objective, NoObjective):
        raise InputError(
            f'{file}: objective.kind = "none": has no loss to tune by; choose an objective such as '
            'objective.kind = "quadratic" or "softmax"'
        )
    if name == "loss-at-deadline":
        return TuningObjective(name, deadline=run.duration)
    if run.target_loss is None:
        raise InputError(
            f"{file}: run.target_loss: missing, and {name} is about reaching it; write "
            "run.target_loss = 0.1, or choose --objective loss-at-deadline"
        )
    if name == "time-to-loss":
        heavy = scenario.heavy_tailed
        return TuningObjective(name, target=run.target_loss, second=1.0, heavy=heavy)
    if not (cost.node_hour or cost.egress_per_gb):
        raise InputError(
            f"{file}: cost: no prices, and cost-to-loss is about them; write cost.node_hour = 1.5, "
            "cost.egress_per_gb = 0.08, or both"
        )
    nodes = scenario.cluster.workers
    second = nodes * (cost.node_hour or 0.0) / 3600
    return TuningObjective(name, run.target_loss, second=second, heavy=scenario.heavy_tailed)
