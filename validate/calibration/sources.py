"""Read measured run directories, telemetry and profiler traces for a calibration.

Also fit a link to recorded jobs, over which a ring takes as long as their collectives.
"""

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
from ..measurement import kineto, telemetry_files
from ..measurement.telemetry_files import Recorded
from ..training import events
from ..training.events import STEP, WAIT
from . import profile
from .overheads import WARM_UP, RunEvents

BYTES = 4  # of a parameter, if the job's telemetry does not state it
LARGEST = 4e15  # bytes of a model
TRACES = (".json", ".gz")
EVENTS = "events.csv"
LIKE = 1.5  # smaller ratios of two sizes do not determine a bandwidth
APART = 1.25  # links differ if times exceed those over one link by this factor


@dataclass(frozen=True)
class Collectives:
    """A job's collectives: bytes `sent`, and seconds `lasted`, per hop of their ring.

    `certain`: whether the last rank's join is known, so that the seconds contain no waiting.
    """

    path: Path
    sent: np.ndarray
    lasted: np.ndarray
    certain: bool


@dataclass(frozen=True)
class Link:
    """A fitted link: its `latency` and its time per byte, in seconds; `notes`: assumptions.

    `latency` is None if it cannot be separated from the time per byte.
    """

    latency: float | None
    per_byte: float
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> dict[str, Any]:
        """Return the table [network]."""
        table = {"collective": "ring", "latency": profile.seconds(self.latency or 0.0)}
        return table | ({"bandwidth": profile.rate(1 / self.per_byte)} if self.per_byte else {})

    @property
    def words(self) -> str:
        """Return latency and bandwidth in words."""
        return ", ".join(list(self.table.values())[1:])


@dataclass(frozen=True)
class Source:
    """Runs of one scenario.

    `paces`: seconds per step by label and seed, for runs that can be repeated; `summary`: the
    summary of their run directory; `recorded`: whether they are a user's job, with the collectives
    `over_links`, and a model of 1 parameter if unknown; `notes`: sentences for the profile.
    """

    path: Path
    scenario: Scenario
    runs: list[RunEvents]
    paces: dict[tuple[str, int], float]
    summary: dict[str, Any]
    notes: tuple[str, ...] = ()
    recorded: bool = False
    over_links: Collectives | None = None


def read(paths: Sequence[Path], *, allow_paths: bool = False) -> list[Source]:
    """Read the runs at `paths`; traces among them are the ranks of one job.

    Files that a run's scenario names must lie in its folder, unless `allow_paths`. Raises
    InputError.
    """
    traces = [path for path in paths if path.is_file() and path.suffix in TRACES]
    sources = [_directory(path, allow_paths) for path in paths if path not in traces]
    if traces:
        sources.append(_recorded(traces[0], kineto.read(*traces)))
    if not sources:
        raise InputError("nothing to calibrate from; name run directories of `paceline validate`")
    places = [source.path.resolve() for source in sources]
    if twice := [path for path in places if places.count(path) > 1]:
        raise InputError(f"{twice[0]}: named twice; it would count as two jobs: name it once")
    return sources


def _directory(path: Path, allow_paths: bool) -> Source:
    if any(path.glob("rank-*.telemetry")):
        return _recorded(path, telemetry_files.read(path))
    if path.suffix == ".telemetry":
        raise InputError(f"{path}: telemetry of one rank; give its directory, {path.parent}")
    path = path / "measured" if (path / "measured").is_dir() else path
    if (path / store.WHOLE).exists():
        return _run_directory(path, allow_paths)
    traces = sorted(file for file in path.glob("*") if file.is_file() and file.suffix in TRACES)
    if traces:
        ranks = [file for file in traces if file.name.startswith("rank-")]
        return _recorded(path, kineto.read(*(ranks or traces)))
    if path.suffix == ".wandb" or any(path.glob("*.wandb")):
        raise InputError(
            f"{path}: W&B's own binary file; export the run's history as CSV or JSON lines "
            "(history().to_csv of wandb.Api().run), and give that"
        )
    lacks = (
        f"not a run directory of `paceline validate` (no {store.WHOLE}), and neither telemetry "
        "nor a profiler's traces are in it"
    )
    problem = lacks if path.exists() else "no such file or directory"
    raise InputError(f"{path}: {problem}; give measured runs, telemetry or a profiler's traces")


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
    notes += _missing(path, np.concatenate([*recorded.values()]), workers)
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


def _recorded(path: Path, job: Recorded) -> Source:
    """Return the source of a recorded job, whose times were not prescribed."""
    rows, head = np.concatenate(list(job.events.values())), job.head
    workers = max(int(head.get("workers", 0)), len(np.unique(rows["node"])))
    size = _model_bytes(head, rows)
    table = {
        "title": head.get("title", ""),
        "model": {"parameters": max(1, round(size / BYTES)) if size else 1},
        "cluster": {"workers": workers, "compute": "1 s"},
        "network": {"collective": "ring", "latency": "0 s"},
        "run": {"steps": 1},
        "validation": {"compute": "real", "network": "real"},
        "algorithm": [{"name": "psgd"}],
    }
    scenario = parse(table, file=str(path))
    (algorithm,) = scenario.algorithm
    runs = [
        RunEvents(scenario, algorithm, seed, events) for (_, seed), events in job.events.items()
    ]
    over_links = collectives(path, rows, workers)
    notes = [*job.notes, *_missing(path, rows, workers)]
    if over_links is None:
        why = "one worker" if workers < 2 else "no collectives with known bytes"
        notes.append(f"{path}: {why}: the network cannot be fitted")
    if size and not head.get("model_bytes"):
        notes.append(
            f"{path}: model.parameters follows from the {size:.4g} bytes that a step's collectives "
            "send; correct it if they send anything else"
        )
    summary = {"versions": head.get("versions", {}), "machine": head.get("hardware", {})}
    return Source(path, scenario, runs, {}, summary, tuple(notes), True, over_links)


def _model_bytes(head: dict[str, Any], events: np.ndarray) -> float:
    """Return the bytes of a job's model, stated or sent in a step; 0: unknown.

    Steps that send nothing, such as those between averages of local SGD, do not count.
    """
    stated = head.get("model_bytes")
    if isinstance(stated, int | float) and 0 < stated < LARGEST:
        return float(stated)
    waits = events[(events["kind"] == WAIT) & (events["bytes"] > 0)]
    if not len(waits):
        return 0.0
    _, places = np.unique(waits[["node", "step"]], return_inverse=True)
    return min(float(np.median(np.bincount(places, waits["bytes"]))), LARGEST)


def _missing(path: Path, events: np.ndarray, workers: int) -> list[str]:
    """Name the ranks without steps. Raises InputError if no rank has any."""
    ranks = events["node"][events["kind"] == STEP]
    counts = np.bincount(ranks, minlength=workers)[:workers]
    if not counts.any():
        raise InputError(
            f"{path}: no steps were recorded; put `with telemetry.step():` around the forward and "
            "backward pass"
        )
    if counts.all():
        return []
    none = telemetry_files.ranks(np.flatnonzero(counts == 0).tolist())
    return [
        f"{path}: no steps of {none} of {workers} workers: their steps are assumed equal to the "
        "recorded ones"
    ]


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


def collectives(path: Path, events: np.ndarray, workers: int) -> Collectives | None:
    """Read a recorded job's collectives; None if none has known bytes.

    If the last rank's join is unknown, a collective's duration is the shortest wait of any rank.
    """
    waits = events[(events["kind"] == WAIT) & (events["bytes"] > 0)]
    if not len(waits) or workers < 2:
        return None
    certain = bool((~np.isnan(waits["joined"])).any())
    if certain:
        waits = waits[~np.isnan(waits["joined"])]
    sizes = waits["bytes"]
    lasted = np.maximum(waits["end"] - np.fmax(waits["start"], waits["joined"]), 0.0)
    if not certain:
        ranks = [waits["node"] == rank for rank in np.unique(waits["node"])]
        common = min(rank.sum() for rank in ranks)
        of_rank = np.array([sizes[rank][:common] for rank in ranks])
        if not np.ptp(of_rank, axis=0).any():  # otherwise ranks recorded different parts of the job
            sizes = of_rank[0]
            lasted = np.min([lasted[rank][:common] for rank in ranks], axis=0)
    return Collectives(path, sizes / workers, lasted / (2 * (workers - 1)), certain)


def fit_link(sources: Sequence[Source]) -> Link | None:
    """Fit one link to all jobs. Raises InputError if their links differ."""
    jobs = [source.over_links for source in sources if source.over_links]
    if not jobs:
        return None
    link = _fitted(jobs)
    ratios = []
    for job in jobs:
        over = np.maximum((link.latency or 0.0) + link.per_byte * job.sent, 1e-9)
        ratios.append(float(np.median(job.lasted / over)) or math.ulp(1.0))
    if max(ratios) > APART * min(ratios):
        speeds = "; ".join(f"{job.path}: {_fitted([job]).words}" for job in jobs)
        raise InputError(
            f"links of different speed ({speeds}): collectives take {min(ratios):.3g} to "
            f"{max(ratios):.3g} times as long as over one link; calibrate each job separately"
        )
    return link


def _fitted(jobs: Sequence[Collectives]) -> Link:
    """Fit a link to collectives, with one median per size."""
    sent, lasted = (np.concatenate([getattr(job, of) for job in jobs]) for of in ("sent", "lasted"))
    sizes, notes = np.unique(sent), []
    if not all(job.certain for job in jobs):
        notes.append(
            "the time of the last rank's join is unknown: the shortest recorded wait counts as a "
            "collective's time"
        )
    if sizes.max() < LIKE * sizes.min():
        notes.append("all collectives have one size: their whole time counts as bandwidth")
        return Link(None, float(np.median(lasted)) / float(sizes.mean()), tuple(notes))
    if len(jobs) > 1 and all(job.sent.max() < LIKE * job.sent.min() for job in jobs):
        notes.append(
            "each job has collectives of one size: latency and bandwidth are right only if they "
            "were recorded over the same links"
        )
    latency, per_byte = alpha_beta(sizes, [lasted[sent == size] for size in sizes])
    return Link(latency, per_byte, tuple(notes))


def alpha_beta(sizes: np.ndarray, samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """Fit a latency and seconds per byte to times by size (Hockney, 1994).

    Least squares of relative errors with non-negative numbers, over medians per size, since a busy
    machine delays some samples a lot.
    """
    from scipy.optimize import nnls  # noqa: PLC0415

    times = np.maximum([np.median(sample) for sample in samples], 1e-9)
    columns = np.stack([np.ones(len(times)), sizes], axis=1)
    scale = columns.max(axis=0)  # otherwise rounding hides the seconds per byte
    (alpha, beta), _ = nnls(columns / scale / times[:, None], np.ones(len(times)))
    return float(alpha), float(beta / scale[1])
