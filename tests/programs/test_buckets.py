"""DistributedDataParallel's buckets: those of PyTorch, and what ssgd-bucketed makes of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.engines import payloads
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.tables import ddp_buckets, presets
from tests.helpers.cases import looped
from tests.helpers.worlds import QUADRATIC, RING, scenario, simulate

PARAMETERS = {"resnet50": 25_557_032, "bert-base": 109_482_240, "gpt2": 124_439_808}


@looped("name", presets())
def test_presets_have_as_many_parameters_as_published(name):
    assert sum(presets()[name]) == PARAMETERS[name]


@given(st.lists(st.integers(1, 9_000_000), min_size=1, max_size=60), st.sampled_from([2, 4]))
def test_buckets_are_those_of_pytorch(sizes, width):
    torch = pytest.importorskip("torch")
    kind = torch.float16 if width == 2 else torch.float32
    tensors = [torch.empty(size, device="meta", dtype=kind) for size in reversed(sizes)]
    assign = torch.distributed._compute_bucket_assignment_by_size
    found, _ = assign(tensors, [2**20, 25 * 2**20], [False] * len(tensors), list(range(len(sizes))))
    theirs = tuple(sum(tensors[index].numel() for index in bucket) for bucket in found)
    assert ddp_buckets(sizes, width) == theirs


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
    each = [size * 4 / 1.25e8 for size in world.model.buckets]
    overlapped, after, whole = (simulate(world, index).duration for index in range(3))
    assert overlapped == pytest.approx(1 + each[1])
    assert after == whole == pytest.approx(1 + sum(each))
    given = scenario({"name": "ssgd-bucketed", "buckets": 2}, model=world.model.model_dump())
    assert given.algorithm[0].parameters["buckets"] == 2


def test_all_engines_agree_on_buckets():
    model = {"tensors": [300_000, 400_000, 500_000]}
    world = with_model(model, objective=QUADRATIC | {"dimension": 40}, network=RING)
    assert world.model.parameters == 1_200_000
    assert world.model.buckets == (500_000, 700_000)
    reference = simulate(world)
    (quick,) = batched.run(world.algorithm[0], world, [0])
    assert quick.curve["loss"] == reference.curve["loss"]
    assert quick.curve["time"] == pytest.approx(reference.curve["time"], rel=1e-12)
    assert quick.curve["bytes"] == reference.curve["bytes"]


def test_a_size_alone_is_cut_as_ddp_cuts_it_over_nccl():
    """Without tensors: all bytes over 25 MiB."""
    model = {"parameters": 124_000_000, "bytes_per_parameter": 4}
    for library, buckets in (("nccl", 19), ("ideal", 4)):
        network = {"library": library, "latency": "0 s", "bandwidth": "20 GB/s"}
        (found,) = with_model(model, network=network).algorithm
        assert found.parameters["buckets"] == buckets
