"""Identities between algorithms, and replays of their loops written out by hand in NumPy."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.engines import payloads
from paceline.simulator.load.load import parse
from paceline.simulator.objectives.build import build
from paceline.simulator.scenario import tables
from tests.helpers.cases import looped
from tests.helpers.worlds import (
    DIGITS,
    EXPONENTIAL,
    QUADRATIC,
    RING,
    on_batched,
    play,
    scenario,
    simulate,
)

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
    return [np.array([value for value in run if value]) for run in runs]


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
    actual = marks(
        {"name": "asgd"}, {"name": "psgd"}, {"name": "ssgd"}, {"name": "local-sgd", "tau": 3},
        workers=1, network=RING, objective=objective, server={"apply": "3 s"},
    )  # fmt: skip
    for run in actual:
        np.testing.assert_allclose(run[0], path, rtol=1e-12, atol=1e-15)


# Replays


def test_local_sgd_by_hand():
    """Momentum cleared at each average, a decaying rate, a period that grows."""
    growing = {"schedule": "steps", "start": 2.4, "factor": 2.0, "at": [12]}  # 3, then 5
    (mark,) = marks(
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
        np.testing.assert_allclose(mark[:, k - 1], x, rtol=1e-12, atol=1e-15)


# DistributedDataParallel's buckets


PARAMETERS = {"resnet50": 25_557_032, "bert-base": 109_482_240, "gpt2": 124_439_808}


@looped("name", PARAMETERS)
def test_presets_have_as_many_parameters_as_published(name):
    assert sum(tables.sizes(name)) == PARAMETERS[name]


@given(st.lists(st.integers(1, 9_000_000), min_size=1, max_size=60), st.sampled_from([2, 4]))
def test_buckets_are_those_of_pytorch(sizes, width):
    torch = pytest.importorskip("torch")
    kind = torch.float16 if width == 2 else torch.float32
    tensors = [torch.empty(size, device="meta", dtype=kind) for size in reversed(sizes)]
    assign = torch.distributed._compute_bucket_assignment_by_size
    found, _ = assign(tensors, [2**20, 25 * 2**20], [False] * len(tensors), list(range(len(sizes))))
    theirs = tuple(sum(tensors[index].numel() for index in bucket) for bucket in found)
    table = {"tensors": sizes, "bytes_per_parameter": float(width)}
    assert tables.Model.model_validate(table).buckets == theirs


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 40))
def test_pieces_follow_their_sizes_and_can_be_joined(sizes, more):
    vector = np.arange(float(len(sizes) + more))
    parts = payloads.cut(vector, tuple(sizes))
    assert len(parts) == len(sizes)
    assert min(map(len, parts)) >= 1
    assert np.array_equal(payloads.join(parts), vector)
    shares = [part.share for part in payloads.cut(0j, tuple(sizes))]
    assert shares == [size / sum(sizes) for size in sizes]


def with_model(model, **world):
    """A scenario with exactly this table of a model."""
    table = scenario({"name": "ssgd-bucketed"}, **world).table
    return parse(table | {"model": model}, file="test", folder=Path())


def test_a_model_of_tensors_is_averaged_in_its_buckets():
    """Two buckets, of 1 MiB and of the rest: the first is averaged while the rest is computed."""
    tensors = [2_000_000, 262_144]
    world = scenario(
        {"name": "ssgd-bucketed"}, {"name": "ssgd-bucketed", "overlap": False}, {"name": "ssgd"},
        network={"collective": "ring", "latency": "0 s", "bandwidth": "1 Gbit/s"}, workers=2,
        model={"parameters": sum(tensors), "tensors": tensors}, steps=1,
        cluster={"forward_share": 0.0},
    )  # fmt: skip
    assert world.model.buckets == (262_144, 2_000_000)
    transmissions = [size * 4 / 1.25e8 for size in world.model.buckets]
    overlapped, after, whole = (simulate(world, index).duration for index in range(3))
    assert overlapped == pytest.approx(1 + transmissions[1])
    assert after == whole == pytest.approx(1 + sum(transmissions))
    given = scenario({"name": "ssgd-bucketed", "buckets": 2}, model=world.model.model_dump())
    assert given.algorithm[0].parameters["buckets"] == 2


def test_all_engines_agree_on_buckets():
    model = {"tensors": [300_000, 400_000, 500_000]}
    world = with_model(model, objective=QUADRATIC | {"dimension": 40}, network=RING)
    assert world.model.parameters == 1_200_000
    assert world.model.buckets == (500_000, 700_000)
    reference = simulate(world)
    (quick,) = on_batched(world.algorithm[0], world, [0])
    assert quick.curve["loss"] == reference.curve["loss"]
    assert quick.curve["time"] == pytest.approx(reference.curve["time"], rel=1e-12)
    assert quick.curve["bytes"] == reference.curve["bytes"]


def test_a_size_alone_is_cut_as_ddp_cuts_it_over_nccl():
    """Without tensors: all bytes over 25 MiB."""
    model = {"parameters": 124_000_000, "bytes_per_parameter": 4}
    for library, buckets in (("nccl", 19), ("ideal", 4)):
        network = {"library": library, "latency": "0 s", "bandwidth": "20 GB/s"}
        (actual,) = with_model(model, network=network).algorithm
        assert actual.parameters["buckets"] == buckets
