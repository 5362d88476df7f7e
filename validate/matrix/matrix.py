"""The validation matrix: programs under conditions, predicted from a profile of two other runs.

For each number of workers and kind of network a profile is fitted to one short run of ssgd and one
of local-sgd. Everything else is predicted, then measured: held-out programs, held-out conditions.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.inputs.messages import toml
from paceline.simulator.results import read, store
from paceline.simulator.results.statistics import crossing
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import simulate
from paceline.simulator.studies.executors import cores
from paceline.simulator.studies.simulate import Progress
from paceline.validate.calibration import profile as profiles
from paceline.validate.calibration.calibrate import calibrate
from paceline.validate.comparison.quantities import PACE, TARGET, pace
from paceline.validate.host import machine
from paceline.validate.host.device import find_device
from paceline.validate.matrix import cells as matrix_cells
from paceline.validate.matrix import conditions
from paceline.validate.matrix.cells import Cell, Sides
from paceline.validate.matrix.conditions import CONDITIONS, REPEATED, REPEATS, Condition
from paceline.validate.matrix.page import write
from paceline.validate.matrix.results import Matrix
from paceline.validate.probe import probe
from paceline.validate.validation import validate

CALIBRATION_SEED, INDEPENDENT_SEED = 100, 1000  # apart from those of conditions
SEEDS = 4  # independent ones that a prediction is the mean of
EQUAL = 3  # equal runs, and seeds, that tell what noise is
START = 10.0  # seconds until processes have joined
ROUNDS = 2  # attempts at a condition whose runs others have disturbed

Say = Callable[[str], None]


def matrix(  # noqa: PLR0913 - the options of the command
    *,
    out: Path | str = Path("runs/matrix"),
    report: Path | str = Path("docs/validation"),
    only: Sequence[str] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Matrix:
    """Run the conditions named by `only` (default: all), and write the report after each.

    `out` keeps all runs: the same call resumes, and what has been measured there is not measured
    again as long as its scenario is the same; predictions are made anew where profile or code have
    changed. `progress` is told of real runs, `say` of what is being done. A condition that cannot
    be run here is left out, and said. Raises InputError.
    """
    names = conditions.chosen(only)
    work = _Work(Path(out), find_device(device), progress, say or (lambda _: None))
    found = Matrix(machine.hardware(work.device), store.versions("torch"))
    chosen = [each for each in CONDITIONS if each.name in names]
    work.say(_estimate(chosen, REPEATS in names, Path(out)))
    for condition in chosen:
        try:
            found.cells += work.cells(condition)
        except (InputError, RunError) as error:  # one that cannot be run does not end the others
            found.failed[condition.name] = str(error)
            work.say(f"{condition.name}: left out: {error}")
        write(found, Path(report))
    if REPEATS in names:
        found.equal, found.apart = work.repeats()
        write(found, Path(report))
    return found


def _estimate(chosen: Sequence[Condition], repeats: bool, out: Path) -> str:
    """How long it may take."""
    groups = {condition.group for condition in chosen}
    runs = sum(len(condition.scenario().algorithm) for condition in chosen)
    runs += len(groups) * len(conditions.CALIBRATED) + 2 * EQUAL * len(REPEATED) * repeats
    longest = Condition("", ()).scenario().run.duration or 0.0
    starts = len(chosen) + len(groups) + (EQUAL + 1) * repeats
    minutes = (runs * longest + starts * START) / 60
    return (
        f"{runs} real runs, at most {minutes:.0f} min, and half as long to predict; what {out} has "
        "is not measured again. Leave the machine alone meanwhile"
    )


@dataclass
class _Work:
    """What is done for each condition; runs go to `out`."""

    out: Path
    device: str
    progress: Progress | None
    say: Say

    def cells(self, condition: Condition) -> list[Cell]:
        """Calibrate where that has not been done, measure, predict, and count."""
        profile = self._profile(*condition.group)
        folder = self.out / condition.name
        self._measure(condition.scenario(), folder, condition.seed)
        self.say(f"{condition.name}: predicting")
        nominal = {
            label: pace(runs[0]) for label, runs in read.read(folder / "predicted").runs.items()
        }
        scenario = condition.scenario(f"extends={profile.absolute()}")
        certain = scenario.model_copy(update={"calibration": None})
        sides = Sides(folder / "measured", folder / "paired", folder / "independent")
        _predict(certain, sides.paired, condition.seed, 1, nominal)
        _predict(scenario, sides.independent, INDEPENDENT_SEED, SEEDS, nominal)
        if (quadratic := _quadratic(condition, profile)) is not None:
            sides = replace(sides, quadratic=folder / "quadratic")
            _predict(quadratic, folder / "quadratic", INDEPENDENT_SEED, SEEDS, nominal)
        return matrix_cells.cells(condition.name, sides, scenario.costs, _lowest(scenario))

    def repeats(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Equal runs, and runs that differ in their seed alone: values of each."""
        scenario = Condition(REPEATS, (conditions.only(*REPEATED),)).scenario()
        equal, apart = [], []
        for number in range(EQUAL):
            folder = self.out / REPEATS / f"equal-{number}"
            self._measure(scenario, folder, 0)
            equal += _values(folder, scenario)
            folder = self.out / REPEATS / f"seed-{number}"
            self._measure(scenario, folder, number + 1)
            apart += _values(folder, scenario)
        return equal, apart

    def _measure(self, scenario: Scenario, folder: Path, seed: int) -> None:
        """Train for real, unless the folder has just that; again where others disturbed it."""
        for attempt in range(ROUNDS):
            there = _is_measured(scenario, folder, seed, machine.hardware(self.device))
            if there and (attempt or _is_evidence(folder)):
                return
            self.say(f"{folder.name}: training for real")
            validate(
                scenario, out=folder, device=self.device, seed=seed, seeds=1, progress=self.progress
            )
            if _is_evidence(folder):
                return

    def _profile(self, workers: int, network: str) -> Path:
        """The profile for so many workers and such a network: of two runs, and the probe's."""
        folder = self.out / "profiles"
        path = folder / f"{workers}-{network}.toml"
        condition = conditions.calibration(workers, network)
        self._measure(condition.scenario(), folder / f"{workers}-{network}", CALIBRATION_SEED)
        kind = "emulated" if network == "emulated" else "real"
        base = folder / f"probe-{kind}.toml"
        if not base.is_file():
            self.say(f"probing ({kind})")
            counts = sorted({each.group[0] for each in CONDITIONS})
            probe.probe(workers=counts, device=self.device, network=kind).write(base)
        fitted = calibrate([folder / f"{workers}-{network}"], base=base, allow_paths=True).profile
        # a condition says itself how long its steps take
        tables = {key: table for key, table in fitted.tables.items() if key != "cluster"}
        replace(fitted, tables=tables, files={}).write(path)
        return path


def _is_measured(scenario: Scenario, folder: Path, seed: int, machine: dict[str, Any]) -> bool:
    """Whether a folder has all runs of this scenario, with this seed, of this machine."""
    try:
        there = read.read(folder / "measured")
    except InputError:
        return False
    labels = {each.label for each in scenario.algorithm}
    same = store.dump(there.table) == store.dump(scenario.nominal.table)
    whole = labels <= there.runs.keys() and there.seeds == [seed]
    return same and whole and there.summary.get("machine") == machine


def _is_evidence(folder: Path) -> bool:
    """Whether all of a folder's runs count."""
    evidence = store.read(folder / "measured")["summary"].get("evidence") or {}
    return all(each["admitted"] for each in evidence.values())


def _predict(
    scenario: Scenario, folder: Path, seed: int, seeds: int, nominal: dict[str, float]
) -> None:
    """Simulate, unless the folder has just that; note what is nominal."""
    tasks = [simulate.Task(each, seed, 0, "auto") for each in scenario.algorithm]
    keys = [task.key(scenario) for task in tasks]
    known = hashlib.sha256(store.dump([keys, seeds, nominal])).hexdigest()
    try:
        if store.read(folder)["summary"].get("key") == known:
            return
    except InputError:
        pass  # there is nothing yet
    result = simulate.simulate(scenario, seeds=seeds, seed=seed, jobs=cores())
    simulate.save(result, store.Directory(folder), summary={"nominal": nominal, "key": known})


def _quadratic(condition: Condition, profile: Path) -> Scenario | None:
    """The condition with the profile's error model in the place of real gradients.

    None where there is none, or the data are dealt unevenly: it was fitted to even ones.
    """
    table = condition.scenario().table["objective"]
    objective = profiles.read(profile).tables.get("objective")
    if objective is None or table.get("partition", "iid") != "iid":
        return None
    sets = f"extends={profile.absolute()}", f"objective={toml(objective)}"
    return condition.scenario(*sets).model_copy(update={"calibration": None})


def _lowest(scenario: Scenario) -> float | None:
    """The lowest loss that a scenario's profile was fitted to."""
    measured = scenario.calibration.measured.loss if scenario.calibration else ()
    return min(measured, default=None)


def _values(folder: Path, scenario: Scenario) -> list[dict[str, Any]]:
    """Pace and time to target of every run of a folder."""
    found = []
    target = scenario.run.target_loss
    for label, runs in read.read(folder / "measured").runs.items():
        for run in runs:
            found.append({"program": label, "quantity": PACE, "value": pace(run)})
            if target is not None:
                time = crossing(run, target)
                value = time if math.isfinite(time) else None
                found.append({"program": label, "quantity": TARGET, "value": value})
    return found
