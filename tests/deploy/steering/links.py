"""Run steered sessions on the kernel's links, in worlds that change, and write docs/steering.md.

    python -m tests.deploy.steering.links [--world NAME] [--policies NAME ...] [--seeds 0 1 2]

Four processes train for real, each in a network namespace of its own. Bandwidth and the pace of one
process follow a schedule that no controller knows. Each run is a line of steering.jsonl beside the
page, which is resumed; the page is written once all are there. A world and seed takes about
2 minutes, all of them 20.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import date
from itertools import permutations, product
from pathlib import Path
from statistics import fmean

from tests.deploy.steering.relay import ORIGIN, SCHEDULE, factor

ROOT = Path(__file__).parents[3]
DATA, PAGE = (ROOT / "docs" / "evidence" / f"steering.{kind}" for kind in ("jsonl", "md"))
BEGIN = "<!-- python -m tests.deploy.steering.links writes from here -->"
END = "<!-- links to here -->"
WORKERS, ENTRIES, BANDWIDTH, LATENCY = 4, 250_000, 10e6, 0.002  # bytes/s, seconds
MEAN, SHAPE = 0.02, 20.0  # of a step's seconds, gamma
TAUS = (16, 32, 64)
TARGET, BELOW, MOST = 0.06, 0.9, 2000  # runs end at a loss of TARGET times BELOW
INTERVAL = 4.0  # of AdaComm's rule, seconds
STEPS = [n / 10 for n in range(200)]
WORLDS = {  # times and factors: of the bandwidth, and of the pace of the last process
    "step": (([0, 4], [1, 0.15]), ([0], [1])),
    "drift": tuple((STEPS, [least ** (t / 20) for t in STEPS]) for least in (0.12, 0.6)),
    "bursts": (
        ([0, 3, 7, 10, 14, 17, 21, 24, 28, 31, 35], [1, 0.2] * 5 + [1]),
        ([0, 5, 8, 15, 18, 25, 28], [1, 0.4] * 3 + [1]),
    ),
}  # fmt: skip
SEEDS = 0, 1, 2
POLICIES = ("model", "adacomm", *(f"tau {tau}" for tau in TAUS))


def table(*taus):
    """Write the world as it is at first, which is what controllers know."""
    return {
        "model": {"parameters": ENTRIES},
        "objective": {
            "kind": "quadratic", "dimension": 32, "noise": 0.8, "initial_gap": 1.0,
            "heterogeneity": {"share": 0.8, "curvature": 0.5},
        },
        "optimizer": {"lr": 0.05},
        "cluster": {
            "workers": WORKERS,
            "compute": {"dist": "gamma", "mean": f"{MEAN} s", "shape": SHAPE},
        },
        "network": {
            "collective": "ring", "latency": f"{LATENCY} s", "bandwidth": f"{8 * BANDWIDTH} bit/s",
        },
        "run": {"steps": MOST, "target_loss": TARGET, "evaluate_every": 8},
        "algorithm": [{"name": "local-sgd", "tau": tau, "label": f"tau {tau}"} for tau in taus],
    }  # fmt: skip


def objective(seed):
    """Return the objective of a run."""
    from paceline.simulator.load.load import parse
    from paceline.simulator.objectives import build

    world = parse(table(*TAUS))
    return build.build(world, world.algorithm[0], seed)


def train(rank, folder, policy, seed):
    """Train one process's part; keep when each step ended, its parameters, and the periods."""
    import numpy as np
    import torch

    import paceline
    from paceline.deploy.steering.policies import AdaComm
    from paceline.simulator.programs.adaptive import PaperRule

    goal = objective(seed)
    source, slow = goal.source(rank), WORLDS[os.environ["STEERING_WORLD"]][1]
    draws = np.random.default_rng([seed, rank]).gamma(SHAPE, MEAN / SHAPE, MOST)
    x = torch.nn.Parameter(torch.zeros(ENTRIES))
    n = len(goal.start)
    x.data[:n] = torch.tensor(goal.start)
    model = torch.nn.ParameterList([x])
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    if policy.startswith("tau"):
        session = paceline.deploy(model, optimizer, "local-sgd", tau=int(policy.split()[1]))
    else:
        session = paceline.deploy(model, optimizer, folder / "run", adapt=policy)
    controller = session._steering and session._steering.controller
    if policy == "adacomm":  # from twice the pick's period, as in virtual time
        session.change(tau=2 * session.settings["tau"])
        if controller:
            controller.policy = AdaComm(PaperRule(session.settings["tau"], INTERVAL, 0.5, 0, 1))
    elif controller:
        ready(controller.policy.outlook)
    x.grad = torch.zeros(ENTRIES)
    start = session.share([time.monotonic() + 0.3])[0][0]
    if rank == 0:
        Path(os.environ[ORIGIN]).write_text(repr(start), "ascii")
    time.sleep(max(0.0, start - time.monotonic()))
    times, points, periods = [], [], []
    for draw in draws:
        began = time.monotonic()
        loss, gradient = source.loss_and_gradient(x[:n].detach().double().numpy())
        x.grad[:n] = torch.from_numpy(gradient)
        pace = factor(slow, began - start) if rank == WORKERS - 1 else 1.0
        time.sleep(max(0.0, began + draw / pace - time.monotonic()))
        session.step(loss)
        times.append(time.monotonic() - start)
        points.append(x[:n].detach().double().numpy().copy())
        periods.append(session.settings["tau"])
        if session.telemetry[-1].bytes and goal.evaluate(points[-1], 0).loss < BELOW * TARGET:
            break
    said = json.dumps([asdict(decision) for decision in session.decisions])
    name = folder / f"{policy} {seed} {rank}.npz"
    np.savez(name, times=times, points=points, periods=periods, decisions=said)
    session.close()


_curves = {}


def ready(ahead):
    """Give a controller the curves of its candidates, which depend on no world: a run of hours has
    the time to simulate them within its share of a core, one of half a minute has not.
    """
    ahead._share, ahead._curves = None, _curves
    ahead.learn(0.0)


def process(rank, folder, tasks):
    """Train this process's part of some runs."""
    import logging

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    logging.getLogger("paceline").setLevel(logging.ERROR)
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=WORKERS)
    for policy, seed in tasks:
        train(rank, folder, policy, seed)
    dist.destroy_process_group()


def run(world, tasks, folder):
    """Run policies with seeds in a world; return each one's line."""
    from paceline.validate.host import machine
    from paceline.validate.host.namespaces import Links
    from paceline.validate.host.namespaces import Path as Line

    class ChangingLinks(Links):
        program = "tests.deploy.steering.relay"

    os.environ |= {
        SCHEDULE: json.dumps(WORLDS[world][0]), ORIGIN: str(folder / "origin"),
        "STEERING_WORLD": world, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    every = {pair: Line(LATENCY, BANDWIDTH) for pair in permutations(range(WORKERS), 2)}
    before, began = machine.machine_cpu_seconds() - _children(), time.monotonic()
    with ChangingLinks(every, WORKERS) as links:
        command = [sys.executable, "-m", "tests.deploy.steering.links", "--rank"]
        about = str(folder), links.socket, json.dumps(tasks)
        started = [
            subprocess.Popen([*command, str(rank), *about], cwd=ROOT) for rank in range(WORKERS)
        ]
        assert not any(process.wait(280) for process in started)
    used = machine.machine_cpu_seconds() - _children() - before
    others = used / (time.monotonic() - began)
    said = {
        "others": round(max(others, 0.0), 2), "date": str(date.today()),
        "machine": machine.describe(machine.hardware("cpu")), **versions(),
    }  # fmt: skip
    return [{"world": world, **line(folder, *task), **said} for task in tasks]


def _children():
    """Return the CPU seconds of all processes that this one started and that have ended."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime


def versions():
    """Return the versions that numbers depend on."""
    import torch

    return {"torch": str(torch.__version__), "system": f"Linux {os.uname().release}"}


def line(folder, policy, seed):
    """Return what the processes found in one run."""
    import numpy as np

    parts = [np.load(folder / f"{policy} {seed} {rank}.npz") for rank in range(WORKERS)]
    goal = objective(seed)
    mean = np.mean([part["points"] for part in parts], axis=0)
    losses = np.array([goal.evaluate(x, 0).loss for x in mean])
    at = int(np.argmax(losses <= TARGET))
    assert losses[at] <= TARGET
    seconds = float(np.mean([part["times"] for part in parts], axis=0)[at])
    taus = parts[0]["periods"]
    changes = [int(taus[k]) for k in range(at) if k == 0 or taus[k] != taus[k - 1]]
    return {
        "policy": policy, "seed": seed, "seconds": round(seconds, 3), "steps": at + 1,
        "periods": changes, "decisions": json.loads(str(parts[0]["decisions"])),
    }  # fmt: skip


def kept():
    """Return the lines of the file."""
    return [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]


def page(pick):
    """Return the table in Markdown."""
    rows, found = kept(), {}
    for row in rows:
        found.setdefault((row["world"], row["policy"]), []).append(row)
    mean = {key: fmean(row["seconds"] for row in group) for key, group in found.items()}
    lines = [
        "| world | best fixed tau | s | `model` | its periods by seed | `adacomm` | pick | worst |",
        "|---" * 8 + "|",
    ]
    for world in WORLDS:
        fixed = {f"tau {tau}": mean[world, f"tau {tau}"] for tau in TAUS}
        best = min(fixed, key=fixed.get)
        seconds = mean[world, "model"], mean[world, "adacomm"], fixed[pick], max(fixed.values())
        model, *others = (f"{100 * (second / fixed[best] - 1):+.1f} %" for second in seconds)
        periods = "; ".join(" ".join(map(str, row["periods"])) for row in found[world, "model"])
        cells = [world, best.split()[1], f"{fixed[best]:.1f}", model, periods, *others]
        lines.append("| " + " | ".join(cells) + " |")
    busy, one = [row["others"] for row in rows if row["others"] is not None], rows[-1]
    lines += [
        "",
        f"{len(rows)} runs, {one['date']}; {one['machine']}, {one['system']}, torch "
        f"{one['torch']}. Other processes kept {fmean(busy):.1f} cores busy meanwhile (at most "
        f"{max(busy):.1f}).",
    ]
    return "\n".join(lines)


def main():
    """Run what is not kept yet; write the page."""
    if sys.argv[1:2] == ["--rank"]:
        from paceline.validate.host.namespaces import join

        rank, folder, socket, tasks = sys.argv[2:]
        _, os.environ["GLOO_SOCKET_IFNAME"] = join(int(rank), socket)
        process(int(rank), Path(folder), json.loads(tasks))
        os._exit(0)  # threads of gloo, still there, may abort a process that ends
    import paceline
    from paceline.simulator.load.load import parse

    parser = argparse.ArgumentParser(prog="python -m tests.deploy.steering.links")
    parser.add_argument("--world", choices=WORLDS)
    parser.add_argument("--policies", choices=POLICIES, nargs="+", default=POLICIES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    DATA.touch()
    with tempfile.TemporaryDirectory() as shared:
        result = paceline.simulate(parse(table(*TAUS)), seeds=8, out=Path(shared) / "run")
        for world in [options.world] if options.world else WORLDS:
            for seed in options.seeds:
                there = {(row["world"], row["policy"], row["seed"]) for row in kept()}
                tasks = [(policy, seed) for policy in options.policies]
                if missing := [task for task in tasks if (world, *task) not in there]:
                    names = ", ".join(policy for policy, _ in missing)
                    print(f"{world}, seed {seed}, {len(there)} runs kept: {names}", flush=True)
                    found = run(world, missing, Path(shared))
                    (Path(shared) / "store").unlink(missing_ok=True)
                    with DATA.open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps(row) + "\n" for row in found)
                    for row in found:
                        print(
                            f"  {row['policy']}: {row['seconds']} s, {row['periods']}", flush=True
                        )
    have = {(row["world"], row["policy"], row["seed"]) for row in kept()}
    if have >= set(product(WORLDS, POLICIES, SEEDS)):
        before, rest = PAGE.read_text("utf-8").split(BEGIN)
        written = f"{BEGIN}\n\n{page(result.pick['label'])}\n\n{END}"
        PAGE.write_text(before + written + rest.split(END)[1], "utf-8")


if __name__ == "__main__":
    main()
