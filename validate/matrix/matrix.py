"""Run the validation matrix: conditions, predicted from two other runs.

For every number of workers and kind of network, a profile is fitted to a short run of ssgd and one
of local-sgd. All other programs and conditions are predicted, then measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.results import read, store
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import Progress, cores
from paceline.simulator.studies.simulate import simulate

from ..calibration.calibrate import calibrate
from ..comparison.quantities import pace
from ..host import machine
from ..host.device import find_device
from ..probe import probe
from ..validation import validate
from . import conditions, page
from .conditions import CONDITIONS, Condition
from .page import Cell, Matrix, cells

CALIBRATION_SEED, INDEPENDENT_SEED = 100, 1000  # distinct from the conditions' seeds
SEEDS = 4  # independent seeds that a prediction averages
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
    """Run the conditions named by `only`, and write the report after each.

    `out` stores all runs, so that the same call resumes. A run is measured again only if its
    scenario has changed; predictions are remade if profile or code have changed. `progress` is
    called for real runs, `say` for every activity. A condition that cannot run here is reported and
    left out. Raises InputError.
    """
    work = _Work(Path(out), find_device(device), progress, say or (lambda _: None))
    result = Matrix(machine.hardware(work.device), store.versions("torch"))
    chosen = conditions.chosen(only)
    work.say(f"{len(chosen)} conditions; {out} keeps finished runs; leave the machine idle")
    for condition in chosen:
        try:
            result.cells += work.cells(condition)
        except (InputError, RunError) as error:  # one failed condition does not stop the others
            result.failed[condition.name] = str(error)
            work.say(f"{condition.name}: left out: {error}")
        page.write(result, Path(report))
    return result


@dataclass
class _Work:
    """Runs of calibration, measurement and prediction, all stored in `out`."""

    out: Path
    device: str
    progress: Progress | None
    say: Say

    def cells(self, condition: Condition) -> list[Cell]:
        """Calibrate if necessary, measure, predict, and return the cells."""
        fitted, folder = self._profile(*condition.group), self.out / condition.name
        self._measure(condition.scenario(), folder, condition.seed)
        self.say(f"{condition.name}: predicting")
        scenario = condition.scenario(f"extends={fitted.absolute()}")
        certain = scenario.model_copy(update={"calibration": None})
        predict = partial(simulate, jobs=cores(), overwrite=True)
        predict(certain, out=folder / "paired", seed=condition.seed, seeds=1)
        predict(scenario, out=folder / "independent", seed=INDEPENDENT_SEED, seeds=SEEDS)
        predicted = read.read(folder / "predicted").runs
        nominal = {label: pace(runs[0]) for label, runs in predicted.items()}
        return cells(condition.name, scenario, folder, nominal)

    def _measure(self, scenario: Scenario, folder: Path, seed: int) -> None:
        """Train for real unless the folder has this run; repeat once if it was disturbed."""
        for _ in range(ROUNDS):
            if _counts(scenario, folder, seed, machine.hardware(self.device)):
                return
            self.say(f"{folder.name}: training for real")
            validate(
                scenario, out=folder, overwrite=True, device=self.device, seed=seed, seeds=1,
                progress=self.progress,
            )  # fmt: skip

    def _profile(self, workers: int, network: str) -> Path:
        """Return the profile for a group, fitted to its two runs on top of the probe's."""
        condition = conditions.calibration(workers, network)
        folder = self.out / "profiles" / condition.name
        self._measure(condition.scenario(), folder, CALIBRATION_SEED)
        kind = "emulated" if network == "emulated" else "real"
        base = folder.with_name(f"probe-{kind}.toml")
        if not base.is_file():
            self.say(f"probing ({kind})")
            counts = sorted({condition.group[0] for condition in CONDITIONS})
            probe.probe(workers=counts, device=self.device, network=kind).write(base)
        fitted = calibrate([folder], base=base, allow_paths=True).profile
        # every condition states its compute times, and the model's error is learnt here
        tables = {key: table for key, table in fitted.tables.items() if key != "cluster"}
        tables["calibration"] = dict(tables["calibration"])
        tables["calibration"].pop("model_error", None)
        path = folder.with_name(f"{condition.name}.toml")
        replace(fitted, tables=tables, files={}).write(path)
        return path


def _counts(scenario: Scenario, folder: Path, seed: int, machine: dict[str, Any]) -> bool:
    """Return whether a folder has these runs, from this machine and undisturbed."""
    try:
        run = read.read(folder / "measured")
    except InputError:
        return False
    evidence = (run.summary.get("evidence") or {}).values()
    return (
        {algorithm.label for algorithm in scenario.algorithm} <= run.runs.keys()
        and run.seeds == [seed]
        and store.dump(run.table) == store.dump(scenario.nominal.table)
        and machine.items() <= run.summary.get("machine", {}).items()
        and all(row["admitted"] and not row.get("disturbed") for row in evidence)
    )
