"""Emitted code, run in its framework for 100 steps, gives the parameters of our own engine."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from paceline.deploy.emit.emit import OPTIMIZERS, Pick, emit, kind
from paceline.simulator.programs import catalogue
from tests.deploy.emit import worker
from tests.helpers import replay
from tests.helpers.cases import beside
from tests.helpers.worlds import scenario

NEEDS = {"flower": ["flwr"], "torchtitan": ["torchtitan", "torchft"]}
ADAMW = {"kind": "adamw", "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
DILOCO = {"name": "diloco", "tau": 10, "lr": 0.02, "inner": ADAMW}
LOCKED = {"accelerate": pytest.mark.long}  # is always installed with the tests
CASES = [
    pytest.param(target, table, marks=LOCKED.get(target, pytest.mark.frameworks))
    for target, tables in tomllib.loads(beside(__file__, "emitted.toml")).items()
    for table in tables
]


class Source:
    """The gradients of one worker's batches."""

    def __init__(self, rank):
        self.rank, self.step = rank, 0

    def gradient(self, x):
        self.step += 1
        return worker.gradient(x, self.rank, self.step)

    def loss_and_gradient(self, x):
        return float("nan"), self.gradient(x)


class Net:
    """The network of `worker`, as an objective."""

    notes = ()
    sizes = worker.SAMPLES

    def __init__(self):
        self.start = worker.start()
        self.dimension = len(self.start)

    def source(self, rank):
        return Source(rank)


def picked(table):
    world = scenario(table, workers=worker.WORKERS, steps=worker.STEPS)
    return Pick(world, world.algorithm[0])


def write(target, pick, folder):
    """Write the emitted code, and the recipe of the user's script."""
    emit(target, pick).save(folder, overwrite=False)
    parameters = pick.algorithm.parameters
    local = parameters.get("inner", parameters.get("momentum"))
    numbers = {} if kind(local) == "identity" else asdict(local)
    recipe = {"kind": kind(local), "numbers": numbers}
    recipe["call"] = OPTIMIZERS[kind(local)].format(of="of", lr="lr", **numbers)
    recipe["rates"] = [parameters["lr"](step) for step in range(1, worker.STEPS + 1)]
    (folder / "recipe.json").write_text(json.dumps(recipe))


@pytest.mark.parametrize(("target", "table"), CASES, ids=lambda value: str(value)[:60])
def test_emitted_code_trains_as_our_engine(target, table, tmp_path):
    for package in NEEDS.get(target, [target]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    pick = picked(table)
    write(target, pick, tmp_path)
    command = [sys.executable, str(Path(worker.__file__)), target, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    program = catalogue()[table["name"]]
    expected = replay.run(program, pick.algorithm, pick.scenario, Net(), 0)
    assert np.abs(expected[0] - worker.start()).max() > 0.1  # it has moved
    for rank in range(worker.WORKERS):
        found = np.load(tmp_path / f"{rank}.npy")
        # Paddle keeps rates and momenta in float32
        np.testing.assert_allclose(found, expected[rank], atol=1e-6 if target == "paddle" else 1e-9)


@pytest.mark.frameworks
def test_an_attached_diloco_is_torchfts(tmp_path):
    """A session, and torchft's own DiLoCo, in loops of their own on the same batches."""
    if importlib.util.find_spec("torchft") is None:
        pytest.skip("torchft is not installed")
    from tests.deploy import loops

    table = DILOCO | {"outer_lr": 0.5, "outer_momentum": 0.8}
    write("torchft", picked(table), tmp_path)
    command = [sys.executable, str(Path(worker.__file__)), "torchft", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    plan = {key: value for key, value in table.items() if key not in ("lr", "inner")}
    ours = loops.together(loops.as_torchft, worker.WORKERS, tmp_path, plan)
    for rank, run in enumerate(ours):
        np.testing.assert_allclose(run.numpy(), np.load(tmp_path / f"{rank}.npy"), atol=1e-9)
        assert np.abs(run.numpy() - worker.start()).max() > 0.1
