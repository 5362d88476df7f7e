"""Identities between algorithms, and replays of their loops written out by hand in NumPy."""

import numpy as np
import pytest

from paceline.simulator.objectives.build import build
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, EXPONENTIAL, QUADRATIC, RING, play, scenario

STEPS = 30
DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [7, 20]}
BLOCK_MOMENTUM = {"kind": "momentum", "mu": 0.3}
NEVER = "1000 h"

kinds = {"ids": lambda table: table["kind"]}
objectives = pytest.mark.parametrize("objective", [QUADRATIC, DIGITS], **kinds)


def marks(*algorithms, seed=5, **tables):
    """What every node marked, of each algorithm: arrays of shape (nodes, steps, parameters)."""
    tables = {"steps": STEPS, "objective": QUADRATIC, "compute": EXPONENTIAL} | tables
    world = scenario(*algorithms, **tables)
    runs = [play(world, index, seed).marks for index in range(len(algorithms))]
    return [np.array([each for each in run if each]) for run in runs]


def sources(seed=5, **tables):
    """The gradients of every worker, and the initial parameters."""
    world = scenario({"name": "psgd"}, **{"objective": QUADRATIC} | tables)
    goal = build(world, world.algorithm[0], seed)
    return [goal.source(rank) for rank in range(world.cluster.workers)], goal.start


@objectives
def test_averaging_at_every_step_is_synchronous_sgd(objective):
    ssgd, local = marks(
        {"name": "ssgd", "lr": DECAY}, {"name": "local-sgd", "tau": 1, "lr": DECAY},
        objective=objective,
    )  # fmt: skip
    np.testing.assert_allclose(local, ssgd, rtol=1e-12, atol=1e-15)


@objectives
@pytest.mark.parametrize("buckets", [1, 2, 6, 11])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_buckets_change_nothing(buckets, momentum, objective):
    ssgd, bucketed = marks(
        {"name": "ssgd"}, {"name": "ssgd-bucketed", "buckets": buckets},
        objective=objective, network=RING, optimizer={"momentum": momentum},
    )  # fmt: skip
    assert np.array_equal(ssgd, bucketed)


@looped("momentum", [0.0, 0.9])
@looped("switch_step", [STEPS, STEPS + 1])
def test_post_local_sgd_that_never_switches_is_synchronous_sgd(momentum, switch_step):
    ssgd, post = marks(
        {"name": "ssgd"}, {"name": "post-local-sgd", "switch_step": switch_step, "tau": 4},
        optimizer={"momentum": momentum},
    )  # fmt: skip
    assert np.array_equal(ssgd, post)


def test_post_local_sgd_that_switches_at_once_is_local_sgd():
    local, post = marks(
        {"name": "local-sgd", "tau": 4}, {"name": "post-local-sgd", "switch_step": 0, "tau": 4}
    )
    assert np.array_equal(local, post)


def test_post_local_sgd_is_one_and_then_the_other():
    """Up to the switch like synchronous SGD; after it the workers part and meet every tau steps."""
    ssgd, post = marks(
        {"name": "ssgd"}, {"name": "post-local-sgd", "switch_step": 10, "tau": 4}, workers=3
    )
    assert np.array_equal(ssgd[:, :10], post[:, :10])
    together = [bool(np.all(post[:, k] == post[0, k])) for k in range(STEPS)]
    assert together == [k < 10 or (k + 1 - 10) % 4 == 0 for k in range(STEPS)]


@objectives
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"momentum": 0.9, "lr": DECAY}, {"momentum": 0.9, "lr": DECAY}),
        ({"block_momentum": 0.3}, {"outer": BLOCK_MOMENTUM}),
    ],
    ids=["plain", "momentum", "block-momentum"],
)
def test_adacomm_that_never_adapts_is_local_sgd(ours, theirs, objective):
    adacomm, local = marks(
        {"name": "adacomm", "tau0": 7, "interval": NEVER, **ours},
        {"name": "local-sgd", "tau": 7, **theirs},
        objective=objective,
    )
    assert np.array_equal(adacomm, local)


@looped(
    "algorithm",
    [
        {"name": "ssgd", "momentum": 0.9},
        {"name": "ssgd-bucketed"},
        {"name": "local-sgd", "tau": 4, "outer": BLOCK_MOMENTUM},
        {"name": "post-local-sgd", "switch_step": 9, "tau": 4},
        {"name": "adacomm", "tau0": 4, "interval": "5 s"},
    ],
)
def test_identical_workers_with_identical_data_are_one_worker(algorithm):
    same = {"objective": {**QUADRATIC, "noise": 0.0, "shift": 0.0}, "compute": "1 s"}
    (alone,) = marks(algorithm, workers=1, **same)
    (team,) = marks(algorithm, workers=5, **same)
    np.testing.assert_allclose(team, np.broadcast_to(alone, team.shape), rtol=1e-12)


def test_a_quadratics_mean_model_moves_alike_however_seldom_workers_average():
    """As its notes tell the user: the gradient is linear and the curvature everyone's."""
    ssgd, local, solo = marks(
        {"name": "ssgd", "lr": DECAY}, {"name": "local-sgd", "tau": 7, "lr": DECAY},
        {"name": "psgd", "lr": DECAY},
    )  # fmt: skip
    for other in (local, solo):
        np.testing.assert_allclose(other.mean(axis=0), ssgd[0], rtol=1e-9, atol=1e-12)


@objectives
def test_one_worker_alone_does_sequential_sgd(objective):
    """Whether it asks a server, averages with itself, or neither."""
    (source,), x = sources(objective=objective, workers=1)
    path = []
    for _ in range(STEPS):
        x = x - 0.1 * source.gradient(x)
        path.append(x)
    found = marks(
        {"name": "asgd"}, {"name": "psgd"}, {"name": "ssgd"}, {"name": "local-sgd", "tau": 3},
        workers=1, network=RING, objective=objective, server={"apply": "3 s"},
    )  # fmt: skip
    for each in found:
        np.testing.assert_allclose(each[0], path, rtol=1e-12, atol=1e-15)


# Replays


def test_local_sgd_by_hand():
    """Momentum cleared at each average, a decaying rate, a period that grows."""
    growing = {"schedule": "steps", "start": 2.4, "factor": 2.0, "at": [12]}  # 3, then 5
    (found,) = marks(
        {"name": "local-sgd", "tau": growing, "lr": DECAY, "momentum": 0.9}, workers=3, network=RING
    )
    streams, start = sources(workers=3)
    x, u, since = np.tile(start, (3, 1)), np.zeros((3, start.size)), 0
    for k in range(1, STEPS + 1):
        lr = 0.1 if k <= 7 else 0.05 if k <= 20 else 0.025
        gradients = [stream.gradient(x[w]) for w, stream in enumerate(streams)]
        u = 0.9 * u + gradients
        x = x - lr * u
        since += 1
        if since >= (3 if k <= 12 else 5):
            x[:], u, since = sum(x) / 3, 0 * u, 0
        np.testing.assert_allclose(found[:, k - 1], x, rtol=1e-12, atol=1e-15)
