"""Steer a session: exchange data between ranks, and make its controller."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.scenario.scenario import Algorithm
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies.simulate import simulate

from ..emit.emit import find
from .inputs import Inputs
from .outlook import Outlook, configured
from .policies import Controller, Model
from .telemetry import Settings, StepRecord, Telemetry, settings

POWERS = [2**n for n in range(10)]  # powers of two to try around the pick's number
AROUND = 4
EVERY = 16  # fewest steps between two exchanges of the ranks
PAUSE = 20  # times the median step: above, the loop did something else, such as an evaluation
LONGER = 3  # ratio of the simulated curves' steps to the pick's


def controller(
    folder: Path | str, workers: int | None = None, label: str | None = None
) -> Controller:
    """Make the controller for the pick of a run folder, or for its algorithm `label`.

    `workers`: the number of the run, which must equal the prediction's. Raises InputError if no
    setting can change, or if the scenario has no loss to judge one.
    """
    pick = find(Path(folder), label, allow_paths=True)
    scenario, algorithm = pick.scenario, pick.algorithm
    first = settings(algorithm.parameters)
    if not first:
        raise InputError(f"{folder}: adapt: {algorithm.label} has no setting to change")
    if isinstance(scenario.objective, NoObjective):
        raise InputError(
            f"{folder}: adapt: without [objective] the effect of a setting is unknown; add "
            "one, and simulate again"
        )
    if workers not in (None, count := scenario.cluster.workers):
        raise InputError(
            f"{folder}: adapt: it predicts {count} workers, but there are {workers} processes; "
            f"start {count}, or simulate with cluster.workers = {workers}"
        )
    alone = scenario.model_copy(update={"algorithm": (algorithm,)})
    steps = scenario.run.steps or simulate(alone, seeds=1).runs[0].steps
    outlook = Outlook(scenario, algorithm, candidates(algorithm, first), int(LONGER * steps))
    return Controller(first, Model(Inputs(scenario), outlook))


def candidates(algorithm: Algorithm, settings: Settings) -> list[Settings]:
    """Return the current settings, then near ones in which one number differs."""
    by_distance: dict[float, list[Settings]] = {0.0: [settings]}
    for key, value in sorted(settings.items()):
        base = max(value, 1)
        for n in POWERS:
            if base / AROUND**2 <= n <= base * AROUND and n != value:
                near = settings | {key: n}
                keys = configured(algorithm, near).parameters
                if near.get("overlap", keys.get("overlap", 0)) < near.get("tau", np.inf):
                    by_distance.setdefault(abs(np.log(n / base)), []).append(near)
    return [near for distance in sorted(by_distance) for near in by_distance[distance]]


class Steering:
    """The steering of a session; every rank calls `after` at the end of every step.

    The ranks communicate when a mean starts and `EVERY` steps have passed. All share their times;
    rank 0, which alone has a `controller`, decides, and all change to its settings.
    """

    def __init__(self, controller: Controller | None) -> None:
        self.controller = controller
        self._records: list[StepRecord] = []
        self._clock, self._failed = 0.0, False

    def after(self, session: Any) -> list[str]:
        """Record the last step of a `Session`; return messages for the user."""
        records, controller = self._records, self.controller
        records.append(session.telemetry[-1])
        if not records[-1].bytes or len(records) < EVERY:
            return []
        shared, now, news = session.share(self._times(records)), session.settings, list[str]()
        if controller is not None and not self._failed:
            controller.settings = now
            try:
                news = controller.observe(self._record(records, shared))
            except Exception as error:  # training continues without it
                self._failed = True
                news = [f"adapt: the controller failed and is now off: {error!r}"]
        self._records = []
        proposed = now if controller is None or self._failed else controller.settings
        chosen = session.share([float(proposed[key]) for key in sorted(now)])[0]
        agreed = dict(zip(sorted(now), map(int, chosen), strict=True))
        if changed := {key: value for key, value in agreed.items() if value != now[key]}:
            session.change(**changed)
        return news

    def _times(self, records: Sequence[StepRecord]) -> list[float]:
        """Return clock, seconds per step, first loss, and seconds of every mean."""
        computing = [record.computing for record in records if record.computing == record.computing]
        self._clock += sum(computing) + sum(record.waiting for record in records)
        usual = np.median(computing) if computing else nan
        computing = [seconds for seconds in computing if seconds < PAUSE * usual]
        loss = nan if records[0].loss is None else float(records[0].loss)
        averages = [seconds for record in records for seconds in record.took]
        mean = float(np.mean(computing)) if computing else nan
        return [self._clock, mean, loss, *averages]

    def _record(self, records: Sequence[StepRecord], shared: list[list[float]]) -> Telemetry:
        """Make the record; an average's time is measured by the last rank to start it."""
        ranks = np.array(shared)
        clock, _, loss = ranks[:, :3].mean(axis=0)
        averages = ranks[:, 3:].min(axis=0)
        return Telemetry(
            records[-1].step, len(records), float(clock), tuple(ranks[:, 1].tolist()),
            float(averages.mean()) if averages.size else None, records[-1].bytes, float(loss),
        )  # fmt: skip
