"""`paceline probe`: measure this machine in a minute, with small real programs."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch

from paceline.simulator.engines.node import introduce
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.programs.codecs.codec import CODECS
from paceline.simulator.programs.effects import Node, Payload
from paceline.simulator.results import store
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import execution
from paceline.simulator.studies.execution import Progress

from ..calibration import overheads
from ..calibration import profile as profiles
from ..calibration.overheads import RunEvents
from ..calibration.profile import Profile, rounded, seconds
from ..host import machine
from ..host.device import find_device, host
from ..launch import launch
from ..measurement import evidence
from ..measurement.measure import MeasuredRun
from ..torch_objective import gradients
from ..training import learner, records
from ..training.events import STEP
from ..training.records import Record
from ..training.task import Job, TrainingTask

Array = np.ndarray

HEAD = (
    'A machine as measured by `paceline probe`. A scenario uses it by extends = "THIS',
    'FILE"; docs/probe.md and docs/reference/scenario.md explain the keys.',
)
COMPRESSED = 2**20  # bytes of vectors for timing codecs, besides the model's
LARGEST = 2 * 10**6  # bytes of a model above which codecs are timed only on its size
REPEATS = 9  # repetitions of each codec; the first is warm-up
STEPS = 20  # means of each of three kinds
DELAY = 0.020  # seconds of an emulated mean; an emulated message takes half of that
SHORTEST = 0.025  # seconds of a stretched step
BUSY = 0.25  # share of the cores that gradients may use in a stretched step
LONG = 3  # factor by which every fourth step is longer
PER_CORE = 16  # workers
COMPUTING = 0.5  # seconds
PAUSE = 0.05  # pauses of these seconds, after which caches have other contents, as after a step


@dataclass(frozen=True)
class TeamMeasurement:
    """Measurements with one number of workers; times in seconds.

    `stretched`: shortest and longest drawn step; `compute`: steps of all workers at once; `alone`:
    steps of the first worker while the others slept; `runs`: what shows the overheads; `foreign`:
    share of the CPU that other processes used.
    """

    workers: int
    stretched: tuple[float, float]
    compute: Array
    alone: Array
    runs: list[RunEvents]
    foreign: float


def probe(  # noqa: PLR0913 - the options of the command
    *,
    model: str = "mlp",
    data: str = "digits",
    batch: int = 16,
    workers: Sequence[int] = (2, 4, 8),
    device: str = "auto",
    network: str = "emulated",
    progress: Progress | None = None,
) -> Profile:
    """Measure compute times, codecs, and overheads of collectives and messages.

    `workers`: the numbers of processes to measure. `network`: "emulated" measures what collectives
    and messages add to an emulated delay, "real" their whole time here. Raises
    InputError for what cannot be measured here, RunError when a process dies.
    """
    _check(workers, network)
    settings = {"model": model, "data": data, "batch": batch}
    device = find_device(device)
    parameters, once = _gradient(settings, device)
    about = settings | {"parameters": parameters, "device": device, "network": network}
    teams: list[TeamMeasurement] = []
    counts = sorted(set(workers))
    report = progress or (lambda done, total: None)
    report(0, 1 + len(counts))
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        codecs = _codecs(4 * parameters, torch.device(device))
        for done, count in enumerate(counts, 1):
            report(done, 1 + len(counts))
            teams.append(_team(about, count, once, Path(name) / f"{count}"))
    report(1 + len(counts), 1 + len(counts))
    return profile(about, teams, codecs)


def _check(workers: Sequence[int], network: str) -> None:
    cores = execution.cores()
    if not workers:
        raise InputError("workers: none; write numbers of workers such as 2,4,8")
    if min(workers) < 2:
        raise InputError(f"workers: {min(workers)}: too small; write 2 or more")
    if max(workers) > (most := PER_CORE * cores):
        many = f"too many processes for {cores} cores; write at most {most}"
        raise InputError(f"workers: {max(workers)}: {many}")
    if network not in ("emulated", "real"):
        raise InputError(f"network {network!r}: unknown; choose one of: emulated, real")


def _scenario(table: dict[str, Any], folder: Path) -> Scenario:
    usual = {"model": {"parameters": 1}, "network": {"latency": "0 s"}, "run": {"steps": 1}}
    return parse(usual | table, file="probe", folder=folder, programs=PROGRAMS)


def _gradient(settings: dict[str, Any], device: str) -> tuple[int, float]:
    """Return the number of parameters, and a rough estimate of a gradient's seconds."""
    cluster = {"workers": 1, "compute": "1 s"}
    table = {"cluster": cluster, "algorithm": [{"name": "psgd", "lr": 0.1}]}
    objective = settings | {"kind": "torch", "device": device}
    scenario = _scenario(table | {"objective": objective}, Path())
    place = torch.device(device)
    goal = build.build(scenario, scenario.algorithm[0], 0)
    start, source = learner.start(goal, 1, place), learner.learner(goal, 0)
    times = []
    with gradients.one_thread(place):
        for _ in range(4):
            begin = monotonic()
            float(source.tensors(start)[0])
            times.append(monotonic() - begin)
    return start.numel(), min(times)


class _Stopwatch:
    """A codec's view of two nodes that send the same; `begun`: its first collective's start (s)."""

    rank, resting, begun = 0, False, 0.0

    def __init__(self, scenario: Scenario, device: torch.device) -> None:
        node: Any = self
        introduce(node, scenario, torch.zeros(COMPRESSED, device=device))

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        return np.random.default_rng(shared)

    def coding(self, kind: str, share: float) -> tuple[float, float]:
        return 0.0, 0.0

    def work(self, seconds: float) -> None:
        pass

    def start_mean(self, value: Payload) -> Any:
        self.begun = self.begun or monotonic()
        return value

    def start_gather(self, value: Payload) -> Any:
        return self.start_mean((value, value))

    def start_mean_after(self, first: Any, value: Callable[[Payload], Payload]) -> Any:
        return value(first)

    async def wait(self, handle: Any) -> Any:
        return handle

    async def mean(self, value: Payload) -> Any:
        return await self.wait(self.start_mean(value))

    async def code(self, channel: Any, payload: torch.Tensor, times: list[Any]) -> None:
        """Add the seconds before the first collective of a mean, and those after its start."""
        self.begun, begins = 0.0, monotonic()
        mean = await channel.mean(payload)
        host(mean[:1])
        times.append((self.begun - begins, monotonic() - self.begun))


def _codecs(bytes_of_model: int, device: torch.device) -> list[dict[str, str]]:
    """Return [[codec]]: seconds beyond the raw codec per vector, and per message of it."""
    table = {"cluster": {"workers": 2, "compute": "1 s"}, "model": {"parameters": COMPRESSED}}
    scenario, tables = _scenario(table | {"algorithm": [{"name": "ssgd", "lr": 1}]}, Path()), []
    for size in (bytes_of_model, *([COMPRESSED] if bytes_of_model <= LARGEST else [])):
        seeded = torch.Generator().manual_seed(0)
        payload = torch.randn(max(1, size // 4), generator=seeded).to(device)
        costs = {}
        for kind, make in CODECS.kinds.items():
            node, times = _Stopwatch(scenario, device), list[Any]()
            opened: Any = make()
            channel = opened.open(node)
            with gradients.one_thread(device):
                for _ in range(REPEATS):
                    sleep(PAUSE)
                    with suppress(StopIteration):
                        node.code(channel, payload, times).send(None)
            costs[kind] = np.median(times[1:], axis=0)
        for kind, make in CODECS.kinds.items():
            if kind != "raw":
                before, after = np.maximum(costs[kind] - costs["raw"], 0.0).tolist()
                arrived = 2 if getattr(make, "gathers", False) else 1
                row = {"compress": seconds(before), "decompress": seconds(after / arrived)}
                tables.append({"kind": kind, "size": profiles.size(size)} | row)
    return tables


def _team(about: dict[str, Any], workers: int, once: float, folder: Path) -> TeamMeasurement:
    """Measure all but codecs with `workers` workers; `once`: seconds of a gradient."""
    crowd = max(1.0, workers / execution.cores())
    step = max(SHORTEST, once * crowd / BUSY)
    steps = max(6, min(STEPS, round(STEPS * SHORTEST / step)))
    together = max(10, min(200, ceil(COMPUTING / (once * crowd))))
    algorithm = {"name": "team", "steps": steps, "together": together, "alone": COMPUTING}
    slow = {"collective": "star", "latency": seconds(DELAY / 2)}  # independent of the size
    data = {"kind": "torch"} | {key: about[key] for key in ("model", "data", "batch")}
    folder.mkdir(parents=True, exist_ok=True)
    # stretched steps, then as many unstretched ones as needed
    times = [f"{step * (LONG if k % 4 == 3 else 1):.6g}" for k in range(3 * steps)]
    (folder / "steps.csv").write_text("\n".join([*times, *["0"] * 10**4]))
    compute = {"dist": "trace", "file": "steps.csv"}
    table = {
        "model": {"parameters": about["parameters"]},
        "objective": data,
        "cluster": {"workers": workers, "compute": compute, "allow_zero": True},
        "network": slow if about["network"] == "emulated" else {"latency": "0 s"},
        "server": {"apply": "1 ms"},
        "run": {"steps": 10**6, "evaluate_every": 1},
        "validation": {"compute": "stretched", "network": about["network"]},
        "algorithm": [algorithm, {"name": "served", "steps": steps}],
    }
    scenario = _scenario(table, folder)
    return _measured(_run(scenario, about["device"], folder), scenario)


def _run(scenario: Scenario, device: str, folder: Path) -> tuple[TrainingTask, ...]:
    tasks = tuple(
        TrainingTask(algorithm, 0, folder / str(number))
        for number, algorithm in enumerate(scenario.algorithm)
    )
    launch.run(Job(scenario, tasks, folder, device))
    return tasks


def _measured(tasks: Sequence[TrainingTask], scenario: Scenario) -> TeamMeasurement:
    """Read the tasks "team" and "served" of one number of workers."""
    workers = scenario.cluster.workers
    averaging, served = (_read(task, workers + (task is not tasks[0])) for task in tasks)
    events = np.concatenate([record.events for record in averaging])
    parameters = tasks[0].algorithm.parameters
    n, together = parameters["steps"], parameters["together"]
    together += 3 * n  # the last step that all workers take together
    stretched = _steps(events, 0, 3 * n)
    steps = stretched[stretched["kind"] == STEP]
    drawn = steps["due"] - steps["start"]
    of_server = np.concatenate([record.events for record in served])
    runs = [
        RunEvents(scenario, task.algorithm, 0, rows)
        for task, rows in zip(tasks, (stretched, of_server), strict=True)
    ]
    nothing = Run("", "", 0, "real", 0, 0.0, {}, {}, {})
    return TeamMeasurement(
        workers=workers,
        stretched=(float(drawn.min()), float(drawn.max())),
        compute=_computing(_steps(events, 3 * n, together)),
        alone=_computing(_steps(events, together, np.inf)),
        runs=runs,
        foreign=max(
            evidence.evidence([MeasuredRun(nothing, team)], scenario)["foreign_cpu"]
            for team in (averaging, served)
        ),
    )


def _read(task: TrainingTask, nodes: int) -> list[Record]:
    of_nodes = (records.read(task.folder, rank) for rank in range(nodes))
    return [record for record in of_nodes if record is not None]


def _steps(events: Array, after: float, until: float) -> Array:
    return events[(events["step"] > after) & (events["step"] <= until)]


def _computing(events: Array) -> Array:
    """Return seconds of steps, without the first tenth."""
    rows = events[events["kind"] == STEP]
    lasted = rows["end"] - rows["start"]
    warm: Array = lasted[rows["step"] > np.quantile(rows["step"], overheads.WARM_UP)]
    return warm


def profile(
    about: dict[str, Any], teams: Sequence[TeamMeasurement], codecs: Sequence[dict[str, str]]
) -> Profile:
    """Return a profile; `about`: the probe's settings, `codecs`: tables [[codec]]."""
    busiest, notes = max(team.foreign for team in teams), list[str]()
    if busiest > evidence.FOREIGN:
        notes.append(
            f"other programs used up to {busiest:.0%} of the CPU (evidence: "
            f"{evidence.FOREIGN:.0%}); probe again when the machine is idle"
        )
    travels = 4.0 * about["parameters"]
    fitted = overheads.tables({team.workers: team.runs for team in teams})
    tables = {
        "calibration": {
            "date": profiles.today(),
            "hardware": machine.describe(machine.hardware(about["device"])),
            "notes": notes,
            "versions": store.versions("torch"),
            "sd": {name: rounded(sd) for name, sd in fitted.sd.items()},
            "model_error": profiles.model_error(about["network"]),
            "measured": {
                "workers": profiles.ends([team.workers for team in teams]),
                "step": profiles.between([step for team in teams for step in team.stretched]),
                "bytes": [travels, travels],
            },
        },
        "overhead": fitted.tables,
        "codec": codecs,
        "probe": _probe(about, teams),
    }  # fmt: skip
    return Profile(tables, HEAD)


def _probe(about: dict[str, Any], teams: Sequence[TeamMeasurement]) -> dict[str, Any]:
    """Return [probe]: measurements without keys in a scenario."""
    return about | {
        "threads": 1,
        "foreign_cpu": rounded(max(team.foreign for team in teams)),
        "compute": [
            {
                "workers": workers,
                "mean": seconds(float(samples.mean())),
                "sd": seconds(float(samples.std())),
                "median": seconds(float(np.median(samples))),
                "p95": seconds(float(np.quantile(samples, 0.95))),
                "samples": len(samples),
            }
            for workers, samples in (
                (1, teams[0].alone), *((team.workers, team.compute) for team in teams)
            )
        ],
    }  # fmt: skip


# Phases in a known order, which `_measured` separates. These programs need torch.


async def team(me: Node, *, steps: int, together: int, alone: float) -> None:
    """Run blocking, overlapped and polled means, `steps` each, then only gradients.

    These are `together` steps of all workers, then `alone` seconds on the first worker.
    """
    x = me.start
    for _ in range(steps):
        x = await me.mean(x - 1e-3 * await me.gradient(x))
        me.mark(x)
    for step in range(2 * steps):
        mean = me.start_mean(x)
        g = await me.gradient(x)
        if step >= steps:
            await me.finished(mean)
        x = await me.wait(mean) - 1e-3 * g
        me.mark(x)
    for _ in range(together):
        await me.gradient(x)
    end = me.clock() + alone
    if me.rank:
        me.work(alone)
    while not me.rank and me.clock() < end:
        await me.gradient(x)


async def server(me: Node, *, steps: int) -> None:
    """Answer every gradient with parameters."""
    x = me.start
    for _ in range(steps * me.workers):
        worker, g = await me.receive()
        me.work(me.apply_seconds)
        x = x - 1e-3 * g
        me.mark(x)
        me.send(worker, x)


async def client(me: Node, *, steps: int) -> None:
    """Send gradients to the server."""
    x = me.start
    for _ in range(steps):
        x = await me.request(me.server, await me.gradient(x))


PROGRAMS = {
    program.name: program
    for program in (
        Program("team", team, "ours"),
        Program("served", client, "ours", server=server),
    )
}
