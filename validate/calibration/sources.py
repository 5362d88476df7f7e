"""Sources of a calibration: measured run directories, a job's telemetry, profiler traces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.results import read as directories
from paceline.simulator.scenario.scenario import Scenario
from paceline.validate.calibration import overheads, profile
from paceline.validate.calibration.overheads import RunEvents
from paceline.validate.comparison import quantities
from paceline.validate.measurement import alpha_beta, kineto, telemetry_files
from paceline.validate.measurement.telemetry_files import Recorded, RecordedCollectives
from paceline.validate.training import events
from paceline.validate.training.events import STEP, WAIT

TRACES = (".json", ".gz")
EVENTS = "events.csv"
LIKE = 1.5  # ratio of sizes below which they do not determine a bandwidth


@dataclass(frozen=True)
class Source:
    """Runs of one scenario.

    `paces`: seconds per step by label and seed, of runs that can be repeated; `summary`: of their
    run directory; `network`: the fitted table of [network] if none was prescribed; `notes`: in
    sentences; `collectives`: their durations, if known.
    """

    path: Path
    scenario: Scenario
    runs: list[RunEvents]
    paces: dict[tuple[str, int], float]
    summary: dict[str, Any]
    network: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    collectives: RecordedCollectives | None = None


def read(paths: Sequence[Path], *, allow_paths: bool = False) -> list[Source]:
    """Read the runs at `paths`; traces among them are the ranks of one job.

    Files that a run's scenario names must lie in its folder, unless `allow_paths`. Raises
    InputError.
    """
    traces = [path for path in paths if path.is_file() and path.suffix in TRACES]
    others = [path for path in paths if path not in traces]
    found = [_directory(path, allow_paths) for path in others]
    if traces:
        found.append(_recorded(traces[0], kineto.read(*traces)))
    if not found:
        raise InputError("nothing to calibrate from; name run directories of `paceline validate`")
    return found


def _directory(path: Path, allow_paths: bool) -> Source:
    if any(path.glob("rank-*.telemetry")):
        return _recorded(path, telemetry_files.read(path))
    path = path / "measured" if (path / "measured").is_dir() else path
    found = directories.read(path)
    file = str(found.summary["scenario"]["file"])
    scenario = parse(found.table, file=file, folder=Path(file).parent, allow_paths=allow_paths)
    algorithms = {each.label: each for each in scenario.algorithm}
    did = events.read(path / EVENTS)
    if strange := sorted({label for label, _ in did} - algorithms.keys()):
        raise InputError(
            f"{path / EVENTS}: {strange[0]}: no algorithm of this run; repeat the run's command"
        )
    for (label, seed), rows in did.items():
        if rows["node"].max() > scenario.cluster.workers:  # the server comes after the workers
            raise InputError(
                f"{path / EVENTS}: {label}, seed {seed}: node {rows['node'].max()} of "
                f"{scenario.cluster.workers} workers; repeat the run's command"
            )
    runs = [
        RunEvents(scenario.nominal, algorithms[label], seed, rows)
        for (label, seed), rows in did.items()
    ]
    paces = {
        (label, run.seed): quantities.pace(run)
        for label, each in found.runs.items()
        for run in each
    }
    return Source(path, scenario, runs, paces, found.summary, notes=tuple(_evidence(path, found)))


def _evidence(path: Path, found: directories.RunDirectory) -> list[str]:
    """Say which runs are not evidence, and why."""
    return [
        f"{path}: {label}: fitted to runs that are not evidence: {'; '.join(each['reasons'])}"
        for label, each in (found.summary.get("evidence") or {}).items()
        if not each["admitted"]
    ]


def _recorded(path: Path, found: Recorded) -> Source:
    """Return the source of a recorded job, in which nothing was prescribed."""
    every = np.concatenate(list(found.events.values()))
    workers = max(int(found.head.get("workers", 0)), len(np.unique(every["node"])))
    sizes = every["bytes"][(every["kind"] == WAIT) & (every["bytes"] > 0)]
    table = {
        "title": found.head.get("title", ""),
        "model": {"parameters": max(1, round(float(sizes.max()) / 4)) if len(sizes) else 1},
        "cluster": {"workers": workers, "compute": "1 s"},
        "network": {"collective": "ring", "latency": "0 s"},
        "run": {"steps": 1},
        "validation": {"compute": "real", "network": "real"},
        "algorithm": [{"name": "psgd"}],
    }
    scenario = parse(table, file=str(path))
    (algorithm,) = scenario.algorithm
    runs = [RunEvents(scenario, algorithm, seed, rows) for (_, seed), rows in found.events.items()]
    network, said = _network(every, workers)
    summary = {
        "versions": found.head.get("versions", {}), "machine": found.head.get("hardware", {})
    }  # fmt: skip
    said = [*found.notes, *said]
    return Source(path, scenario, runs, {}, summary, network, tuple(said), found.collectives)


def _network(every: np.ndarray, workers: int) -> tuple[dict[str, Any] | None, list[str]]:
    """Fit a ring whose collectives take as long as the recorded waits; also return notes."""
    waits = every[(every["kind"] == WAIT) & (every["bytes"] > 0)]
    if not len(waits) or workers < 2:
        return None, ["no collectives with known bytes: the network cannot be fitted"]
    begun = np.fmax(waits["start"], np.nan_to_num(waits["joined"], nan=-math.inf))
    lasted = waits["end"] - begun
    sizes = np.unique(waits["bytes"])
    fitted = alpha_beta.fit(
        sizes.tolist(), [np.maximum(lasted[waits["bytes"] == each], 1e-9) for each in sizes]
    )
    alpha, beta, said = fitted.alpha, fitted.beta, []
    if sizes.max() < LIKE * sizes.min():
        alpha, beta = 0.0, float(np.median(lasted)) / float(sizes.mean())
        said.append("all collectives have one size: their whole time counts as bandwidth")
    hops, share = 2 * (workers - 1), 2 * (workers - 1) / workers
    table = {"collective": "ring", "latency": profile.seconds(alpha / hops)}
    if beta:
        table["bandwidth"] = profile.rate(share / beta)
    return table, said


def steps(sources: Sequence[Source]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return each worker's step times and when they began (seconds), runs concatenated.

    Times are those drawn if steps were stretched, else measured; the first tenth is left out. Draws
    are the same for all algorithms with one seed, and count once.
    """
    workers = max(source.scenario.cluster.workers for source in sources)
    lasted: list[list[np.ndarray]] = [[] for _ in range(workers)]
    begun: list[list[np.ndarray]] = [[] for _ in range(workers)]
    offset = 0.0
    for source in sources:
        drawn = source.scenario.validation.compute == "stretched"
        seeds: dict[int, RunEvents] = {}
        for run in source.runs:
            seeds.setdefault(run.seed if drawn else len(seeds), run)
        for run in seeds.values():
            rows = run.events[run.events["kind"] == STEP]
            ends = np.where(np.isnan(rows["due"]), rows["end"], rows["due"])
            for rank in range(source.scenario.cluster.workers):
                mine = np.flatnonzero(rows["node"] == rank)
                mine = mine[math.ceil(overheads.WARM_UP * len(mine)) :]
                lasted[rank].append((ends - rows["start"])[mine])
                begun[rank].append(rows["start"][mine] + offset)
            offset += float(ends.max(initial=0.0))
    kept = [rank for rank in range(workers) if lasted[rank]]
    return (
        [np.concatenate(lasted[rank]) for rank in kept],
        [np.concatenate(begun[rank]) for rank in kept],
    )
