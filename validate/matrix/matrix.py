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
from paceline.simulator.studies.execution import Progress, cores
from paceline.simulator.studies.result import save
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.task import Task

from ..calibration import profile
from ..calibration.calibrate import calibrate
from ..comparison.quantities import PACE, TARGET, pace
from ..host import machine
from ..host.device import find_device
from ..probe import probe
from ..validation import validate
from . import conditions, statistics
from .cells import Cell, Sides, cells
from .conditions import CONDITIONS, REPEATS, Condition
from .page import write
from .results import Matrix

CALIBRATION_SEED, INDEPENDENT_SEED = 100, 1000  # distinct from the conditions' seeds
SEEDS = 4  # independent seeds that a prediction averages
EQUAL = 3  # equal runs, and runs with different seeds, to measure noise
START = 10.0  # seconds to start the processes of a run
PREDICTED = 1.5  # times as long as real runs: with their predictions
PLANNED = 40 / PREDICTED  # minutes of real runs on a GPU
PROBING = 60.0  # seconds to probe a kind of network
ROUNDS = 2  # attempts at a condition whose runs other processes have disturbed

Say = Callable[[str], None]


def matrix(  # noqa: PLR0913 - the options of the command
    *,
    out: Path | str = Path("runs/matrix"),
    report: Path | str = Path("docs/evidence/validation"),
    only: Sequence[str] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    say: Say | None = None,
) -> Matrix:
    """Run the conditions named by `only` (default: all), and write the report after each.

    `out` keeps all runs: the same call resumes, and nothing is measured again unless its scenario
    has changed; predictions are remade if profile or code have changed. `progress` reports real
    runs, `say` each activity. A condition that cannot be run here is reported and left out. Raises
    InputError.
    """
    names, said = plan(only, device)
    work = _Work(Path(out), find_device(device), progress, say or (lambda _: None))
    found = Matrix(machine.hardware(work.device), store.versions("torch"))
    work.say(f"{said} What {out} has is not measured again. Leave the machine alone meanwhile")
    for condition in (each for each in CONDITIONS if each.name in names):
        try:
            found.cells += work.cells(condition)
        except (InputError, RunError) as error:  # one that cannot be run does not end the others
            found.failed[condition.name] = str(error)
            work.say(f"{condition.name}: left out: {error}")
        write(found, Path(report))
    if REPEATS in names:
        found.noise = statistics.noise(*work.repeats())
        write(found, Path(report))
    return found


def plan(only: Sequence[str] | None = None, device: str = "auto") -> tuple[list[str], str]:
    """Return the conditions that `matrix` measures, and say how many runs that is, and how long.

    On a GPU, lent by the hour, the first ones that take `PLANNED` minutes, unless `only` says
    which. Raises InputError.
    """
    names, which = conditions.chosen(only), "Conditions"
    if find_device(device) != "cpu" and only is None:
        kept: list[Condition] = []
        for each in CONDITIONS:
            if _cost([*kept, each], repeats=False)[1] <= PLANNED:
                kept.append(each)
        names = [each.name for each in kept]
        which = (
            f"{len(kept)} of {len(CONDITIONS)} conditions, as many as a GPU does in 40 min (--only "
            "chooses others)"
        )
    chosen = [each for each in CONDITIONS if each.name in names]
    runs, minutes = _cost(chosen, REPEATS in names)
    return names, (
        f"{which}: {', '.join(names)}. {runs} real runs take at most {minutes:.0f} min, "
        f"predictions half as long: {PREDICTED * minutes:.0f} min in all."
    )


def _cost(chosen: Sequence[Condition], repeats: bool) -> tuple[int, float]:
    """Return the number of real runs, and the minutes that they take at most."""
    groups = {condition.group for condition in chosen}
    runs = sum(len(condition.scenario().algorithm) for condition in chosen)
    runs += len(groups) * len(conditions.ALGORITHMS["calibrated"])
    runs += 2 * EQUAL * len(conditions.ALGORITHMS["repeated"]) * repeats
    longest = Condition("", ()).scenario().run.duration or 0.0
    starts = len(chosen) + len(groups) + (EQUAL + 1) * repeats
    probes = len({network == "emulated" for _, network in groups})
    return runs, (runs * longest + starts * START + probes * PROBING) / 60


@dataclass
class _Work:
    """Runs calibrations, measurements and predictions, all kept in `out`."""

    out: Path
    device: str
    progress: Progress | None
    say: Say

    def cells(self, condition: Condition) -> list[Cell]:
        """Calibrate unless that is done, measure, predict, and return the cells."""
        fitted = self._profile(*condition.group)
        folder = self.out / condition.name
        self._measure(condition.scenario(), folder, condition.seed)
        self.say(f"{condition.name}: predicting")
        nominal = {
            label: pace(runs[0]) for label, runs in read.read(folder / "predicted").runs.items()
        }
        scenario = condition.scenario(f"extends={fitted.absolute()}")
        certain = scenario.model_copy(update={"calibration": None})
        sides = Sides(folder / "measured", folder / "paired", folder / "independent")
        _predict(certain, sides.paired, condition.seed, 1, nominal)
        _predict(scenario, sides.independent, INDEPENDENT_SEED, SEEDS, nominal)
        if (quadratic := _quadratic(condition, fitted)) is not None:
            sides = replace(sides, quadratic=folder / "quadratic")
            _predict(quadratic, folder / "quadratic", INDEPENDENT_SEED, SEEDS, nominal)
        fitted_to = scenario.calibration.measured.loss if scenario.calibration else ()
        return cells(condition.name, sides, scenario.costs, min(fitted_to, default=None))

    def repeats(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Measure equal runs, and runs that differ in their seed alone; return both values."""
        scenario = conditions.repeats().scenario()
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
        """Train for real unless the folder has this run; once more if it was disturbed."""
        for _ in range(ROUNDS):
            there = _is_measured(scenario, folder, seed, machine.hardware(self.device))
            if there and _is_evidence(folder):
                return
            self.say(f"{folder.name}: training for real")
            validate(
                scenario,
                out=folder,
                overwrite=True,
                device=self.device,
                seed=seed,
                seeds=1,
                progress=self.progress,
            )

    def _profile(self, workers: int, network: str) -> Path:
        """Return the profile for a group, fitted to its two runs on top of the probe's."""
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
        # each condition states its own compute times, and the model's error is what is learnt here
        tables = {key: table for key, table in fitted.tables.items() if key != "cluster"}
        tables["calibration"] = {
            key: each for key, each in tables["calibration"].items() if key != "model_error"
        }
        replace(fitted, tables=tables, files={}).write(path)
        return path


def _is_measured(scenario: Scenario, folder: Path, seed: int, machine: dict[str, Any]) -> bool:
    """Whether a folder has all runs of this scenario, with this seed, on this machine."""
    try:
        there = read.read(folder / "measured")
    except InputError:
        return False
    labels = {each.label for each in scenario.algorithm}
    same = store.dump(there.table) == store.dump(scenario.nominal.table)
    whole = labels <= there.runs.keys() and there.seeds == [seed]
    return same and whole and machine.items() <= there.summary.get("machine", {}).items()


def _is_evidence(folder: Path) -> bool:
    """Whether all of a folder's runs count, undisturbed."""
    evidence = store.read(folder / "measured")["summary"].get("evidence") or {}
    return all(each["admitted"] and not each.get("disturbed") for each in evidence.values())


def _predict(
    scenario: Scenario, folder: Path, seed: int, seeds: int, nominal: dict[str, float]
) -> None:
    """Simulate unless the folder has this run; record the nominal seconds per step."""
    tasks = [Task(each, seed, 0, "auto") for each in scenario.algorithm]
    keys = [task.key(scenario) for task in tasks]
    known = hashlib.sha256(store.dump([keys, seeds, nominal])).hexdigest()
    try:
        if store.read(folder)["summary"].get("key") == known:
            return
    except InputError:
        pass  # nothing is there yet
    result = simulate(scenario, seeds=seeds, seed=seed, jobs=cores())
    with store.Directory(folder) as directory:
        save(result, directory, summary={"nominal": nominal, "key": known})


def _quadratic(condition: Condition, fitted: Path) -> Scenario | None:
    """Return the condition with the profile's error model in place of real gradients.

    None without an error model, or if data are uneven: it was fitted to even ones.
    """
    table = condition.scenario().table["objective"]
    objective = profile.read(fitted).tables.get("objective")
    if objective is None or table.get("partition", "iid") != "iid":
        return None
    sets = f"extends={fitted.absolute()}", f"objective={toml(objective)}"
    return condition.scenario(*sets).model_copy(update={"calibration": None})


def _values(folder: Path, scenario: Scenario) -> list[dict[str, Any]]:
    """Return pace and time to target of every run of a folder."""
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
