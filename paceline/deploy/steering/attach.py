"""Steer a session: what its ranks tell each other, and the controller that a run folder makes."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.special  # noqa: F401 - else the first decision would load it, while all ranks wait
from pydantic import ValidationError

from paceline.deploy.emit.picked import find
from paceline.deploy.steering.controller import Controller
from paceline.deploy.steering.inputs import Inputs
from paceline.deploy.steering.outlook import Outlook, configured
from paceline.deploy.steering.policies import AdaComm, Model, Policy
from paceline.deploy.steering.telemetry import (
    Settings,
    StepRecord,
    Telemetry,
    numbers,
    settings,
)
from paceline.deploy.steering.watch import Watch
from paceline.simulator.errors import InputError
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.adaptive import PaperRule
from paceline.simulator.results import read
from paceline.simulator.scenario.scenario import Algorithm
from paceline.simulator.studies.simulate import simulate

POWERS = [2**n for n in range(10)]  # steps that are tried: a run of theirs around the pick's
AROUND = 4
SEEDS = 3  # of the prediction of a pick of tune
EVERY = 16  # steps between two talks of the ranks, at least
LONGER = 3  # steps of the simulated curves over those of the pick
BAND = 1.1  # factor by which a loss may leave those of all seeds
INTERVAL = 60.0  # seconds between decisions of AdaComm's rule


def controller(
    folder: Path | str, policy: str = "model", workers: int | None = None, share: float = 0.01
) -> Controller:
    """Make the controller of the pick of a run folder of `paceline simulate` or `paceline tune`.

    `policy`: "fixed", "adacomm" or "model"; "fixed" only says what would be best. `workers`: of the
    run, which must be those of the prediction. `share`: of one core, for the model's simulations. A
    pick of tune is simulated again, for its prediction. Raises InputError where the pick has no
    setting to change, or nothing says what one costs.
    """
    pick = find(Path(folder), None, allow_paths=True)
    scenario, algorithm, label = pick.scenario, pick.algorithm, pick.algorithm.label
    first = settings(algorithm.parameters, algorithm.written)
    if not first:
        raise InputError(f"{folder}: adapt: its pick, {label}, has no setting to change")
    if workers not in (None, predicted := scenario.cluster.workers):
        raise InputError(
            f"{folder}: adapt: it predicts {predicted} workers, and {workers} processes are here; "
            f"simulate with cluster.workers = {workers}"
        )
    if (Path(folder) / "tune.json").is_file():
        result = simulate(scenario, seeds=SEEDS)
        runs, row = result.runs, result.algorithms[0]
    else:
        found = read.read(folder)
        runs, row = found.runs[label], found.rows[label]
    inputs = Inputs(scenario)
    each = [run.duration / run.steps for run in runs]
    pace = (row.get("interval90") or {}).get("seconds_per_step") or (min(each), max(each))

    def band(step: int) -> tuple[float, float]:
        losses = [np.interp(step, run.curve["step"], run.curve["loss"]) for run in runs]
        return float(min(losses)) / BAND, float(max(losses)) * BAND

    chosen: Policy
    if policy in {"model", "fixed"}:
        steps = int(LONGER * max(run.steps for run in runs))
        tried = candidates(algorithm, first)
        chosen = Model(inputs, Outlook(scenario, algorithm, tried, steps, share))
    elif policy == "adacomm" and "tau" in first:
        chosen = AdaComm(PaperRule(first["tau"], INTERVAL, 0.5, 0, 1))
    elif policy == "adacomm":
        raise InputError(f"{folder}: adapt: AdaComm's rule sets tau; {label} has none")
    else:
        raise InputError(f"policy {policy!r}: unknown; choose one of: fixed, adacomm, model")
    family = catalogue()[algorithm.name].family
    shared = isinstance(chosen, Model)
    watch = Watch(pace, band, inputs, algorithm.parameters | first, family, shared=shared)
    return Controller(first, chosen, watch, steers=policy != "fixed")


def candidates(algorithm: Algorithm, settings: Settings) -> list[Settings]:
    """Return the settings to try: the present, then those in which one number differs by powers of
    two, the nearest first, as they are simulated in that order.
    """
    own = numbers(settings)
    found: dict[float, list[Settings]] = {0.0: [settings]}
    for place, value in enumerate(own):
        whole, base = isinstance(value, int), max(value, 1) if isinstance(value, int) else value
        for n in POWERS if whole else [value * 2.0**n for n in range(-4, 3)]:
            if base / AROUND**2 <= n <= base * AROUND and n != value:
                tried = numbers(settings, [*own[:place], n, *own[place + 1 :]])
                with suppress(ValidationError):  # above what the codec may have
                    given = configured(algorithm, tried).parameters
                    if tried.get("overlap", given.get("overlap", 0)) < tried.get("tau", np.inf):
                        found.setdefault(abs(np.log(n / base)), []).append(tried)
    return [each for near in sorted(found) for each in found[near]]


class Steering:
    """Steers a session: every rank calls `after` at the end of each step.

    The ranks talk when a mean is started and `EVERY` steps have passed. All tell their times; rank
    0, which alone has a `controller`, decides, and the others learn its settings at once, so that
    they change between the same steps.
    """

    KEPT: ClassVar = ("controller", "_records", "_clock")

    def __init__(self, controller: Controller | None) -> None:
        self.controller = controller
        self._records: list[StepRecord] = []
        self._clock, self._begun = 0.0, False

    def after(self, session: Any) -> list[str]:
        """Take in the last step of a `Session`; return what is to be said."""
        if not self._begun:  # the time before the loop is part of its first step
            self._begun = True
            return []
        self._records.append(session.telemetry[-1])
        if not self._records[-1].bytes or len(self._records) < EVERY:
            return []
        records, self._records = self._records, []
        told = session.share(self._told(records))
        news, now = list[str](), session.settings
        wanted = now
        if self.controller is not None:
            self.controller.settings = now
            news = self.controller.observe(self._record(records, told, session.rate))
            wanted = self.controller.settings
        agreed = numbers(now, session.share(numbers(wanted))[0])
        if changed := {key: each for key, each in agreed.items() if each != now[key]}:
            session.change(**changed)
        return news

    def _told(self, records: Sequence[Any]) -> list[float]:
        """Return this rank's clock, seconds per step, losses, and those that each mean took."""
        self._clock += sum(each.computing + each.waiting for each in records)
        losses = [float("nan") if each.loss is None else float(each.loss) for each in records]
        computing = sum(each.computing for each in records) / len(records)
        took = [seconds for each in records for seconds in each.took]
        return [self._clock, computing, losses[0], float(np.mean(losses)), losses[-1], *took]

    def _record(self, records: Sequence[Any], told: list[list[float]], rate: float) -> Telemetry:
        """Make the record: an average takes what it took the rank that started it last."""
        ranks = np.array(told)
        clock, _, first, mean, last = ranks[:, :5].mean(axis=0)
        took = ranks[:, 5:].min(axis=0)
        return Telemetry(
            records[-1].step, len(records), float(clock), tuple(ranks[:, 1].tolist()),
            float(took.mean()) if took.size else None, records[-1].bytes, float(first), float(mean),
            float(last), rate,
        )  # fmt: skip
