"""`paceline probe`: measure this machine in a minute, with small real programs."""

import tempfile
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.programs.codecs.codec import CODECS
from paceline.simulator.programs.effects import Node, Vector
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import execution
from paceline.simulator.studies.execution import Progress

from ..calibration.profile import Profile, seconds
from ..host.device import find_device
from ..launch import launch
from ..torch_objective import gradients
from ..training import learner
from ..training.task import Job, TrainingTask
from . import profile as measured
from .profile import TeamMeasurement

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
        codecs = measured.codecs(_codecs(4 * parameters, device, Path(name) / "codecs"))
        for done, count in enumerate(counts, 1):
            report(done, 1 + len(counts))
            teams.append(_team(about, count, once, Path(name) / f"{count}"))
    report(1 + len(counts), 1 + len(counts))
    return measured.profile(about, teams, codecs)


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


def _codecs(bytes_of_model: int, device: str, folder: Path) -> TrainingTask:
    """Run two workers, to time codecs."""
    sizes = [bytes_of_model, *([COMPRESSED] if bytes_of_model <= LARGEST else [])]
    table = {
        "model": {"parameters": COMPRESSED},
        "cluster": {"workers": 2, "compute": "1 s"},
        "validation": {"compute": "real", "network": "real"},
        "algorithm": [{"name": "codecs", "sizes": sizes, "repeats": REPEATS}],
    }
    return _run(_scenario(table, folder), device, folder)[0]


def _team(about: dict[str, Any], workers: int, once: float, folder: Path) -> TeamMeasurement:
    """Measure everything else with `workers` workers.

    `once`: seconds of a gradient.
    """
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
    return measured.team(_run(scenario, about["device"], folder), scenario)


def _run(scenario: Scenario, device: str, folder: Path) -> tuple[TrainingTask, ...]:
    tasks = tuple(
        TrainingTask(algorithm, 0, folder / str(number))
        for number, algorithm in enumerate(scenario.algorithm)
    )
    launch.run(Job(scenario, tasks, folder, device))
    return tasks


# Phases in a known order, which `profile` separates. These programs need torch.


def vector(size: int, like: Vector) -> Vector:
    """Return a vector of `size` bytes with normal entries."""
    seeded = torch.Generator().manual_seed(0)
    return torch.randn(max(1, size // 4), generator=seeded).to(like.device)


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


async def codecs(me: Node, *, sizes: list[int], repeats: int) -> None:
    """Time every codec on vectors of the sizes, with pauses between."""
    for size in sizes:
        payload = vector(size, me.start)
        for kind in CODECS.kinds.values():
            line: Any = kind().open(me)
            for _ in range(repeats):
                me.work(PAUSE)
                await line.mean(payload)
    me.work(PAUSE)


PROGRAMS = {
    program.name: program
    for program in (
        Program("team", team, "ours"),
        Program("served", client, "ours", server=server),
        Program("codecs", codecs, "ours"),
    )
}
