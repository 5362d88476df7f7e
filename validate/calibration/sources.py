"""Read measured run directories for a calibration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.results import read as directories
from paceline.simulator.results import store
from paceline.simulator.scenario.scenario import Scenario

from ..comparison import quantities
from ..training import events
from ..training.events import STEP
from .overheads import WARM_UP, RunEvents

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


def read(paths: Sequence[Path], *, allow_paths: bool = False) -> list[Source]:
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
    directory = directories.read(path)
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


def steps(sources: Sequence[Source]) -> dict[int, np.ndarray]:
    """Return step times (seconds) by rank, with all runs in one array.

    Durations are the drawn ones if steps were stretched, else measured; the first tenth is left
    out. Draws are equal for all algorithms with one seed, and count once. Ranks without steps are
    left out.
    """
    parts: dict[int, list[np.ndarray]] = {}
    for source in sources:
        stretched, seeds = source.scenario.validation.compute == "stretched", dict[int, RunEvents]()
        for run in source.runs:
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
