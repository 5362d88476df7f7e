"""Attached programs train as they do for real, and go on from a checkpoint as if never stopped."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parameters_to_vector

from paceline.simulator.objectives import build
from paceline.validate.launch import launch
from paceline.validate.launch.worker import Job
from paceline.validate.training import records
from paceline.validate.training.task import TrainingTask
from tests.deploy import loops
from tests.deploy.loops import ADAM, ALL, KILLED, LR, MOMENTUM
from tests.helpers import peers
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario

SEED, STEPS = 1, 200
MLP = {"kind": "torch", "model": "mlp", "batch": 8, "dtype": "float64"}
MLP |= {"data": "random-classification"}
"""On the few levels of grey of the digits many entries of a gradient are equal, so that rounding
decides which of them are the largest that a codec sends."""
KILLS = 20
LARGE = 24  # steps


def written(label):
    """A program's table in a scenario, with the optimizer that its loop has."""
    table, kind = loops.table(label), ALL[label][1]
    momentum = MOMENTUM if kind == "momentum" else 0.0
    if kind == "adamw":
        return table | {"lr": ADAM["lr"], "inner": {"kind": "adamw", "weight_decay": 0.1}}
    if momentum:
        table["local_momentum" if table["name"] == "bmuf" else "momentum"] = momentum
    return table | {"lr": LR}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return each program's final parameters by `validate`, and what the loops found, by rank."""
    made = scenario(
        *(written(label) | {"label": label} for label in ALL),
        workers=2,
        compute="5 ms",
        steps=STEPS,
        lr=LR,
        objective=MLP,
        validation={"compute": "real", "network": "real"},
        run={"evaluate_every": STEPS},
    )
    folder = tmp_path_factory.mktemp("real")
    tasks = tuple(
        TrainingTask(algorithm, SEED, folder / str(i)) for i, algorithm in enumerate(made.algorithm)
    )
    launch.run(Job(made, tasks, folder, "cpu"))
    real = {
        task.algorithm.label: [records.read(task.folder, rank).rows["x"] for rank in range(2)]
        for task in tasks
    }
    goal = build.build(made, made.algorithm[0], SEED)
    inputs, labels = peers.batches(goal, 2, STEPS)
    folder = tmp_path_factory.mktemp("attached")
    lesson = folder / "lesson"
    torch.save((torch.from_numpy(goal.start.copy()), inputs, labels), lesson)
    draw = random.Random(3)
    kills = [(label, draw.randrange(1, KILLED)) for label in draw.sample([*ALL], KILLS)]
    return real, loops.together(loops.every_program, 2, folder, lesson, kills)


@pytest.mark.long
def test_gradients_that_stay_train_as_new_ones_do(tmp_path):
    """To the last bit; hpsgd depends on time."""
    labels = [label for label in ALL if label.split()[0] != "hpsgd"]
    torch.manual_seed(SEED)
    start = parameters_to_vector(loops.network().parameters()).detach()
    lesson = start, torch.rand(2, LARGE, 8, 20).double(), torch.randint(10, (2, LARGE, 8))
    torch.save(lesson, tmp_path / "lesson")
    actual = loops.together(loops.in_place, 2, tmp_path, tmp_path / "lesson", labels)
    for fresh, old in actual:
        assert [label for label in labels if not torch.equal(fresh[label], old[label])] == []
    assert not torch.equal(actual[0][0]["ssgd"], start)


@pytest.mark.long
@looped("label", ALL)
def test_a_loop_trains_what_a_real_run_trains(world, label):
    real, actual = world
    for row, rows in zip(actual, real[label], strict=True):
        ours, theirs = row["attached"][label].numpy(), rows[-1]
        off = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert off <= 1e-8


@pytest.mark.long
def test_two_programs_are_torchs_to_the_last_bit(world):
    for record in world[1]:
        assert torch.equal(record["plain"], record["averager"])
        assert torch.equal(record["attached"]["ssgd"], record["parallel"])


@pytest.mark.long
def test_three_train_as_torchs_do(tmp_path):
    draw = torch.Generator().manual_seed(1)
    start = parameters_to_vector(loops.network().parameters()).detach()
    inputs = torch.rand(3, 60, 8, 20, generator=draw, dtype=torch.float64)
    labels = torch.randint(10, (3, 60, 8), generator=draw)
    torch.save((start, inputs, labels), tmp_path / "lesson")
    actual = loops.together(loops.beyond, 3, tmp_path, tmp_path / "lesson")
    for record in actual:
        for ours, theirs in record.values():
            assert torch.linalg.norm(ours - theirs) <= 1e-6 * torch.linalg.norm(theirs)


@pytest.mark.long
def test_a_killed_session_goes_on_as_if_never_stopped(world):
    for record in world[1]:
        for (label, at), parameters in record["killed"].items():
            assert torch.equal(parameters, record["whole"][label]), (label, at)


@pytest.mark.long
def test_a_steered_session_changes_its_period_on_all_ranks_at_once(tmp_path):
    draw = torch.Generator().manual_seed(1)
    start = torch.nn.utils.parameters_to_vector(loops.network().parameters()).detach()
    lesson = [
        [(torch.rand(4, 20, generator=draw).double(), torch.tensor([1, 2, 3, 4]))] * 80
        for _ in range(2)
    ]
    (means, decided, one), (others, undecided, other) = loops.together(
        loops.steered, 2, tmp_path, start, lesson
    )
    assert means == others == [4, 8, 12, 16, 24, 32, 48, 80]
    assert (decided, undecided) == (4, 0)  # after 16, 32, 48 and 80 steps
    assert torch.equal(one, other)  # a mean ended the last phase


@pytest.mark.long
def test_a_scaler_skips_on_all_ranks_what_overflows_on_one(tmp_path):
    """Where gradients are averaged, as DistributedDataParallel does; else on that rank alone."""
    one, other = loops.together(loops.scaled, 2, tmp_path)
    for outcome in (one, other):
        (theirs, seen), (ours, ssgd) = outcome["parallel"], outcome["ssgd"]
        assert torch.equal(ours, theirs)
        assert ssgd == seen
        assert [moved for _, moved in seen] == [k != 3 for k in range(9)]
    (mean, first), (same, second) = one["local-sgd"], other["local-sgd"]
    assert torch.equal(mean, same)  # the ninth step ends with a mean
    assert all(moved for _, moved in first)
    assert [moved for _, moved in second] == [k != 3 for k in range(9)]
    assert first[-1][0] != second[-1][0]


@pytest.mark.long
def test_other_plans_or_models_and_sharded_ones_are_refused(tmp_path):
    for plan, *models, sharded in loops.together(loops.unlike, 2, tmp_path):
        assert plan == "plan: rank 1 has another plan than rank 0"
        assert models == ["model: rank 1 has another model than rank 0"] * 2
        assert "sharded (FSDP, DTensor)" in sharded
