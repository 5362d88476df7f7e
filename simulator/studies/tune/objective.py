"""What a tuned configuration is judged by: one number per run, the smaller the better."""

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

GOALS = ("time-to-loss", "loss-at-deadline", "cost-to-loss")
NEVER = 1e12  # above any value that a run has
FARTHEST = 10.0  # the gap of a run whose loss is no number


class Score(NamedTuple):
    """How one run did.

    `value`: seconds, loss or money; infinite where the target was not reached. `gap`: how much of
    the way to the target was left then, in the logarithm of the loss (1: no progress). `ran`: the
    seconds that the run was given, infinite where its steps ended it. `notes`: what its engine says
    of it.
    """

    value: float
    gap: float
    ran: float
    notes: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether there is a value."""
        return math.isfinite(self.value)

    @property
    def diverged(self) -> bool:
        """Whether the loss went away."""
        return any(note.startswith("diverged") for note in self.notes)

    @property
    def penalised(self) -> float:
        """The value; a run that did not get there is worse than any that did, by how far off."""
        return self.value if self.reached else NEVER * (1 + self.gap)


@dataclass(frozen=True)
class Goal:
    """What is minimised: the time or cost to reach `target`, or the loss at `deadline` (seconds).

    `second`: what a second of a run costs at least, in the unit of the value.
    """

    name: str
    target: float | None = None
    deadline: float | None = None
    second: float = 0.0

    def score(self, run: Run, scenario: Scenario) -> Score:
        """Judge a finished run of `scenario`. Raises InputError where nothing is left to reach."""
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
        """The value of a run, or what it must exceed if it was cut before it got there."""
        if score.reached:
            return score.value
        return score.ran * self.second if self.second else 0.0

    def horizon(self, value: float) -> float:
        """After how many seconds a run is sure to have exceeded `value`."""
        return value / self.second if self.second else math.inf

    @property
    def says(self) -> str:
        """What the value is, for tables and axes."""
        if self.target is None:
            return f"loss after {human(self.deadline)}"
        return f"{'time' if self.name == 'time-to-loss' else 'cost'} to loss {self.target:g}"

    def sentence(self, value: float) -> str:
        """Say a value in words."""
        if self.target is None:
            return f"loss {number(value)} after {human(self.deadline)}"
        between = "after" if self.name == "time-to-loss" else "for"
        return f"loss {self.target:g} {between} {self.show(value)}"

    @property
    def show(self) -> Callable[[float | None], str]:
        """Write a value as people say it."""
        if self.name == "time-to-loss":
            return human
        return lambda value: "-" if value is None else number(value)


def goal(scenario: Scenario, name: str | None) -> Goal:
    """Return the goal called `name`; None: time-to-loss where there is a target, else the loss.

    The deadline is run.duration; where there is none it is left open. Raises InputError where the
    scenario lacks what the goal needs.
    """
    file, run, cost = scenario.file, scenario.run, scenario.cost
    if name is None:
        name = "time-to-loss" if run.target_loss else "loss-at-deadline"
    if name not in GOALS:
        raise InputError(f"--objective {name}: unknown; choose one of: {', '.join(GOALS)}")
    if isinstance(scenario.objective, NoObjective):
        raise InputError(
            f'{file}: objective.kind = "none": has no loss to tune by; choose an objective such as '
            'objective.kind = "quadratic" or "softmax"'
        )
    if name == "loss-at-deadline":
        return Goal(name, deadline=run.duration)
    if run.target_loss is None:
        raise InputError(
            f"{file}: run.target_loss: missing, and {name} is about reaching it; write "
            "run.target_loss = 0.1, or choose --objective loss-at-deadline"
        )
    if name == "time-to-loss":
        return Goal(name, target=run.target_loss, second=1.0)
    if not (cost.node_hour or cost.egress_per_gb):
        raise InputError(
            f"{file}: cost: no prices, and cost-to-loss is about them; write cost.node_hour = 1.5, "
            "cost.egress_per_gb = 0.08, or both"
        )
    nodes = scenario.cluster.workers
    return Goal(name, run.target_loss, second=nodes * (cost.node_hour or 0.0) / 3600)
