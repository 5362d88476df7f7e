"""Fit a profile to measured runs: compute times, overheads and network."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.programs import catalogue
from paceline.simulator.results import read, store
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies.execution import Progress

from ..comparison import quantities
from ..host import machine
from ..training import events
from ..training.events import STEP
from . import compute_laws, overheads, profile
from .compute_laws import FittedLaws
from .overheads import WARM_UP, OverheadTables, RunEvents
from .profile import Profile

HEAD = (
    'A profile of measured runs. A scenario uses it by extends = "THIS FILE"; the keys of the',
    "scenario take precedence. docs/reference/scenario.md explains the keys.",
)
CLOSE = 0.01  # a fit with enough free numbers always stays below this relative error
STAGES = 4  # reading, overheads, laws, checks
EVENTS = "events.csv"


@dataclass(frozen=True)
class Source:
    """Runs of one scenario.

    `paces`: seconds per step by label and seed; `summary`: the summary of their run directory;
    `notes`: sentences for the profile.
    """

    path: Path
    scenario: Scenario
    runs: list[RunEvents]
    paces: dict[tuple[str, int], float]
    summary: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaceCheck:
    """A run's step time, measured, and predicted by the profile fitted to it."""

    label: str
    workers: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class CalibrationResult:
    """A profile, the fitted `laws` of compute times, and `checks` against the runs.

    `free`: number of free parameters of the fit.
    """

    profile: Profile
    laws: FittedLaws
    checks: list[PaceCheck]
    free: int = 0

    @property
    def notes(self) -> list[str]:
        """Return the assumptions, in sentences."""
        return list(self.profile.tables["calibration"]["notes"])

    @property
    def sentence(self) -> str:
        """Return a sentence on how well the profile predicts the runs behind it."""
        if not self.checks:
            return "These runs cannot be repeated in simulation, so the fit cannot be checked."
        worst = max(self.checks, key=lambda check: abs(check.error))
        if len(self.checks) <= self.free and abs(worst.error) < CLOSE:
            return (
                f"With {self.free} free numbers, the fit meets every log, which tests nothing. "
                "Test the profile on another log: paceline watch."
            )
        return (
            f"The profile predicts the step times of its runs within {abs(worst.error):.2%} "
            f"(worst of {len(self.checks)}: {worst.label}, {worst.workers} workers). That is no "
            "independent test: predict another run."
        )

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline calibrate --json`."""
        document = {
            "profile": self.profile.tables,
            "laws": self.laws.fits,
            "checks": [asdict(check) | {"error": check.error} for check in self.checks],
            "sentence": self.sentence,
        }
        return dict(jsonable(document))


def calibrate(
    paths: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    allow_paths: bool = False,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Fit a profile to the runs at `paths`.

    Args:
        paths: Run directories of `paceline validate`.
        base: A profile for numbers that the runs do not show, such as that of `paceline probe`.
        allow_paths: Whether files that a run's scenario names may lie outside its folder.
        progress: Function that receives the number of finished stages, and of all stages.

    Raises:
        InputError: If there is nothing to fit to.
    """
    done = progress or (lambda stage, stages: None)
    done(0, STAGES)
    runs = read_runs([Path(path) for path in paths], allow_paths=allow_paths)
    done(1, STAGES)
    network = kind_of_network(runs)
    below = profile.read(base) if base else overheads.NOTHING
    fitted = overheads.tables(_teams(runs), below)
    done(2, STAGES)
    steps = _steps(runs)
    times = [*steps.values()]
    law = compute_laws.fit(times, numbers=[*steps])
    done(3, STAGES)
    notes = [note for source in runs for note in source.notes]
    codecs = _codecs(runs, below, base, notes)
    checks = _check(runs, fitted)
    done(STAGES, STAGES)
    sd = fitted.sd | ({"cluster.compute": law.sd} if 0 < law.sd < math.inf else {})
    squares = [math.log1p(check.error) ** 2 for check in _held_out(runs, below) or checks]
    calibration = _origin(runs, paths) | {
        "run_to_run": math.sqrt(np.mean(squares)) if squares else 0.0,
        "model_error": profile.model_error(network),
        "sd": sd,
        "measured": _measured(runs, times),
        "notes": [*notes, *law.notes],
    }
    by_gloo = {source.scenario.network.library for source in runs} == {"gloo"}
    tables = {
        "calibration": calibration,
        "cluster": law.tables,
        "overhead": fitted.tables,
        "codec": codecs,
        "network": {"library": "gloo"} if by_gloo else {},
    }
    tables = {key: table for key, table in tables.items() if table}
    return CalibrationResult(Profile(tables, HEAD, law.files), law, checks)


def _origin(runs: Sequence[Source], paths: Sequence[Path | str]) -> dict[str, Any]:
    """Return the keys of [calibration] that describe the origin of the numbers."""
    machines = [machine.describe(source.summary.get("machine") or {}) for source in runs]
    network = runs[0].scenario.network
    return {
        "date": profile.today(),
        "hardware": "; ".join(filter(None, dict.fromkeys(machines))),
        "versions": runs[0].summary.get("versions", {}),
        "runs": [str(path) for path in paths],
        "fingerprints": store.fingerprints(source.path for source in runs),
        "fitted": sorted({run.algorithm.words for source in runs for run in source.runs}),
        "transport": network.transport,
        "library": network.library,
    }


def _codecs(
    runs: Sequence[Source], below: Profile, base: Path | str | None, notes: list[str]
) -> Any:
    """Return the base's [[codec]] tables, unless other costs of the runs include them."""
    codecs = below.tables.get("codec")
    of_runs = [run.algorithm.parameters.get("codec") for source in runs for run in source.runs]
    if not codecs or all(getattr(codec, "kind", "raw") == "raw" for codec in of_runs):
        return codecs
    notes.append(
        f"{base}: its [[codec]] is left out, as overhead.step and overhead.issue of runs with a "
        "codec contain that time"
    )
    return None


def kind_of_network(runs: Sequence[Source]) -> str:
    """Return the sources' kind of network. Raises InputError if it differs.

    Emulated delays are known, so runs with different delays can be fitted together.
    """
    kinds = sorted({source.scenario.validation.network for source in runs})
    if len(kinds) > 1:
        raise InputError(
            f"{', '.join(str(source.path) for source in runs)}: these runs used several kinds of "
            f"network ({', '.join(kinds)}); calibrate each kind separately"
        )
    if kinds != ["emulated"]:
        nominal = {str(source.path): _link(source.scenario) for source in runs}
        if len({*nominal.values()}) > 1:
            speeds = "; ".join(f"{path}: {words}" for path, words in nominal.items())
            raise InputError(
                f"links of different speed ({speeds}): what the system adds to a collective "
                "depends on its link; calibrate each separately"
            )
    return kinds[0]


def _link(scenario: Scenario) -> str:
    nominal = ClosedForm(scenario.nominal)
    speed = nominal.link(0, min(1, scenario.cluster.workers - 1)).bandwidth
    bandwidth = profile.rate(speed) if math.isfinite(speed) else "no limit"
    return f"{profile.seconds(nominal.hop)}, {bandwidth}"


def _teams(runs: Sequence[Source], but: str | None = None) -> dict[int, list[RunEvents]]:
    """Group runs by number of workers, leaving out the label `but`."""
    teams: dict[int, list[RunEvents]] = {}
    for source in runs:
        if chosen := [run for run in source.runs if run.algorithm.label != but]:
            teams.setdefault(source.scenario.cluster.workers, []).extend(chosen)
    return teams


def _held_out(runs: Sequence[Source], below: Profile) -> list[PaceCheck]:
    """Predict each algorithm's runs from the runs of the other algorithms."""
    labels = {run.algorithm.label for source in runs for run in source.runs}
    checks = []
    for label in sorted(labels) if len(labels) > 1 else ():
        fitted = overheads.tables(_teams(runs, but=label), below)
        checks += _check(runs, fitted, only=label)
    return checks


def _check(
    runs: Sequence[Source], fitted: OverheadTables, only: str | None = None
) -> list[PaceCheck]:
    """Predict the step time of the runs (of the label `only`) with the same draws."""
    checks = []
    for source, run in [(one, run) for one in runs for run in one.runs]:
        label = run.algorithm.label
        measured = source.paces.get((label, run.seed), math.nan)
        if only not in (None, label) or not math.isfinite(measured):
            continue
        update: dict[str, Any] = {"overhead": fitted.parsed, "calibration": None}
        if not catalogue()[run.algorithm.name].needs_loss:
            update["objective"] = NoObjective(kind="none")
        scenario = source.scenario.model_copy(update=update)
        predicted = quantities.pace(*run_seeds(scenario, run.algorithm, [run.seed]))
        if math.isfinite(predicted):
            checks.append(PaceCheck(label, scenario.cluster.workers, predicted, measured))
    return checks


def _measured(runs: Sequence[Source], times: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the measured ranges."""
    sizes = np.concatenate([run.events["bytes"] for source in runs for run in source.runs])
    sizes = sizes[~np.isnan(sizes)]
    latencies = [ClosedForm(source.scenario.nominal).hop for source in runs]
    ranges = {
        "workers": profile.ends([source.scenario.cluster.workers for source in runs]),
        "step": profile.between([float(time.mean()) for time in times]),
        "latency": profile.between(latencies),
        "bytes": [float(sizes.min()), float(sizes.max())] if len(sizes) else None,
    }
    return {key: ends for key, ends in ranges.items() if ends}


def read_runs(paths: Sequence[Path], *, allow_paths: bool = False) -> list[Source]:
    """Read the runs at `paths`.

    Files that a run's scenario names must lie in its folder, unless `allow_paths`. Raises
    InputError.
    """
    sources = [_directory(path, allow_paths) for path in paths]
    if not sources:
        raise InputError("nothing to calibrate from; name run directories of `paceline validate`")
    places = [source.path.resolve() for source in sources]
    if twice := [path for path in places if places.count(path) > 1]:
        raise InputError(f"{twice[0]}: named twice; it would count as two runs: name it once")
    return sources


def _directory(path: Path, allow_paths: bool) -> Source:
    path = path / "measured" if (path / "measured").is_dir() else path
    if (path / store.WHOLE).exists():
        return _run_directory(path, allow_paths)
    if path.suffix == ".wandb" or any(path.glob("*.wandb")):
        raise InputError(
            f"{path}: W&B's own binary file; export the run's history as CSV or JSON lines "
            "(history().to_csv of wandb.Api().run), and give that"
        )
    lacks = f"not a run directory of `paceline validate` (no {store.WHOLE})"
    problem = lacks if path.exists() else "no such file or directory"
    raise InputError(f"{path}: {problem}; give measured runs, or a file of [[job]] tables for logs")


def _run_directory(path: Path, allow_paths: bool) -> Source:
    directory = read.read(path)
    if not directory.is_measured:
        raise InputError(
            f"{path}: simulated, not measured: its profile would only repeat the simulation; "
            "give a directory of paceline validate"
        )
    summary, file = directory.summary, str(directory.summary["scenario"]["file"])
    stated = parse(directory.table, file=file, folder=Path(file).parent, allow_paths=allow_paths)
    scenario = _as_carried(stated, summary)
    algorithms = {algorithm.label: algorithm for algorithm in scenario.algorithm}
    workers, runs = scenario.cluster.workers, []
    recorded = events.read(path / EVENTS)
    if not recorded:
        raise InputError(f"{path / EVENTS}: no events; repeat the run's command")
    for (label, seed), rows in recorded.items():
        last, wrong = rows["node"].max(), ""
        if label not in algorithms:
            wrong = f"{label}: no algorithm of this run"
        elif last > workers:  # the server comes after the workers
            wrong = f"{label}, seed {seed}: node {last} of {workers} workers"
        if wrong:
            raise InputError(f"{path / EVENTS}: {wrong}; repeat the run's command")
        runs.append(RunEvents(scenario.nominal, algorithms[label], seed, rows))
    paces = {
        (label, run.seed): quantities.pace(run)
        for label, group in directory.runs.items()
        for run in group
    }
    notes = [
        f"{path}: {label}: fitted to runs that are not evidence: {'; '.join(row['reasons'])}"
        for label, row in (summary.get("evidence") or {}).items()
        if not row["admitted"]
    ]
    return Source(path, scenario, runs, paces, summary, tuple(notes))


def _as_carried(scenario: Scenario, summary: dict[str, Any]) -> Scenario:
    """Return a run's scenario with the library that carried out its means."""
    network = scenario.network
    ideal = (network.library, network.collective, network.model) == ("ideal", "ring", "closed-form")
    cuda = "gpu" in (summary.get("machine") or {})
    if scenario.validation.network == "emulated" or not ideal or cuda:
        return scenario
    by_gloo = network.model_copy(update={"library": "gloo"})
    return scenario.model_copy(update={"network": by_gloo})


def _steps(sources: Sequence[Source]) -> dict[int, np.ndarray]:
    """Return step times (seconds) by rank after the first tenth, with all runs in one array."""
    parts: dict[int, list[np.ndarray]] = {}
    for source in sources:
        stretched, seeds = source.scenario.validation.compute == "stretched", dict[int, RunEvents]()
        for run in source.runs:  # stretched steps have the same draws under all algorithms
            seeds.setdefault(run.seed if stretched else len(seeds), run)
        for run in seeds.values():
            rows = run.events[run.events["kind"] == STEP]
            times = np.where(np.isnan(rows["due"]), rows["end"], rows["due"]) - rows["start"]
            for rank in np.unique(rows["node"][rows["node"] < source.scenario.cluster.workers]):
                lasting = times[rows["node"] == rank]
                parts.setdefault(int(rank), []).append(lasting[math.ceil(WARM_UP * len(lasting)) :])
    whole = {rank: np.concatenate(series) for rank, series in sorted(parts.items())}
    if not any(map(len, whole.values())):
        raise InputError("no steps were measured; give a run that is longer than its warm-up")
    return {rank: series for rank, series in whole.items() if len(series)}
