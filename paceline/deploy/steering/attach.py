"""Steer a session: what its ranks tell each other, and the controller that a run folder makes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.deploy.steering.controller import Controller
from paceline.deploy.steering.inputs import Inputs
from paceline.deploy.steering.outlook import Outlook
from paceline.deploy.steering.policies import AdaComm, Model, Policy
from paceline.deploy.steering.telemetry import Telemetry, period
from paceline.deploy.steering.watch import Watch
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.adaptive import PaperRule
from paceline.simulator.results import read

POWERS = (1, 2, 4, 8, 16, 32, 64, 128)  # periods tried: a run of theirs around the pick's
AROUND = 4
EVERY = 16  # steps between two talks of the ranks, at least
LONGER = 3  # steps of the simulated curves over those of the pick
BAND = 1.1  # factor by which a loss may leave those of all seeds
INTERVAL = 60.0  # seconds between decisions of AdaComm's rule


def controller(
    folder: Path | str, policy: str = "model", share: float = 0.01, files: Path = Path()
) -> Controller:
    """Make the controller of the pick of a run folder of `paceline simulate`.

    `policy`: "fixed", "adacomm" or "model"; "fixed" only says what would be best. `share`: of one
    core, for the model's simulations; `files`: the folder of the files that the scenario names.
    Raises InputError where there is no pick with a period, or nothing says what a period costs.
    """
    found = read.read(folder)
    label = found.summary["pick"]["label"]
    scenario = parse(found.table, file=str(folder), folder=files)
    algorithm = next((each for each in scenario.algorithm if each.label == label), None)
    tau = algorithm.written.get("tau") if algorithm else None
    if not isinstance(tau, int) or algorithm is None:
        raise InputError(f"{folder}: adapt: its pick, {label}, has no period in steps to steer")
    runs, row, inputs = found.runs[label], found.rows[label], Inputs(scenario)
    each = [run.duration / run.steps for run in runs]
    pace = (row.get("interval90") or {}).get("seconds_per_step") or (min(each), max(each))

    def band(step: int) -> tuple[float, float]:
        losses = [np.interp(step, run.curve["step"], run.curve["loss"]) for run in runs]
        return float(min(losses)) / BAND, float(max(losses)) * BAND

    chosen: Policy
    if policy in {"model", "fixed"}:
        near = [n for n in POWERS if tau / AROUND**2 <= n <= tau * AROUND and n != tau]
        near.sort(key=lambda n: abs(np.log(n / tau)))  # the nearest are simulated first
        candidates = [{"tau": n} for n in (tau, *near)]
        steps = int(LONGER * max(run.steps for run in runs))
        chosen = Model(inputs, Outlook(scenario, algorithm, candidates, steps, share))
    elif policy == "adacomm":
        chosen = AdaComm(PaperRule(tau, INTERVAL, 0.5, 0, 1))
    else:
        raise InputError(f"policy {policy!r}: unknown; choose one of: fixed, adacomm, model")
    family = catalogue()[algorithm.name].family
    shared = isinstance(chosen, Model)
    watch = Watch(pace, band, inputs, {"tau": tau}, family, shared=shared)
    return Controller({"tau": tau}, chosen, watch, steers=policy != "fixed")


class Session(Protocol):
    """The part of a session that is steered.

    `telemetry`: records of steps (step, computing, waiting, bytes, loss), oldest first; `tau`: the
    period, and `rate` the learning rate, at present; `share`: what each rank gives, by rank;
    `change`: sets the period from the next round on.
    """

    telemetry: Any

    @property
    def tau(self) -> int:
        """The period, in steps."""

    @property
    def rate(self) -> float:
        """The learning rate."""

    def share(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return every rank's numbers."""

    def change(self, *, tau: int) -> None:
        """Change the period."""


class Steering:
    """Steers a session: every rank calls `after` at the end of each step.

    The ranks talk when a mean is started and `EVERY` steps have passed. All tell their times; rank
    0, which alone has a `controller`, decides, and the others learn its period at once, so that
    they change between the same steps. `blocks`: workers wait for their averages.
    """

    def __init__(self, controller: Controller | None, *, blocks: bool) -> None:
        self.controller, self._blocks = controller, blocks
        self._records: list[Any] = []
        self._clock = 0.0

    def after(self, session: Session) -> list[str]:
        """Take in the last step; return what is to be said."""
        self._records.append(session.telemetry[-1])
        if not self._records[-1].bytes or len(self._records) < EVERY:
            return []
        records, self._records = self._records, []
        told = session.share(self._told(records))
        news, wanted = list[str](), session.tau
        if self.controller is not None:
            self.controller.settings = {**self.controller.settings, "tau": session.tau}
            news = self.controller.observe(self._record(records, told, session.rate))
            wanted = period(self.controller.settings)
        agreed = int(session.share([float(wanted)])[0][0])
        if agreed != session.tau:
            session.change(tau=agreed)
        return news

    def _told(self, records: Sequence[Any]) -> list[float]:
        """Return this rank's clock, seconds per step, losses, and its wait for each mean."""
        self._clock += sum(each.computing + each.waiting for each in records)
        losses = [float("nan") if each.loss is None else float(each.loss) for each in records]
        computing = sum(each.computing for each in records) / len(records)
        waits = [each.waiting for each in records if each.bytes]
        return [self._clock, computing, losses[0], float(np.mean(losses)), losses[-1], *waits]

    def _record(self, records: Sequence[Any], told: list[list[float]], rate: float) -> Telemetry:
        """Make the record: an average takes what the rank waits that waits least, the last one."""
        ranks = np.array(told)
        clock, _, first, mean, last = ranks[:, :5].mean(axis=0)
        waited = float(ranks[:, 5:].min(axis=0).mean())
        return Telemetry(
            records[-1].step, len(records), float(clock), tuple(ranks[:, 1].tolist()),
            waited if self._blocks else None, records[-1].bytes, float(first), float(mean),
            float(last), rate,
        )  # fmt: skip
