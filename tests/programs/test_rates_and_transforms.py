"""Constant rates and transforms: their values, and the tables they are written as."""

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from paceline.simulator.programs.pieces.schedule import Rate
from paceline.simulator.programs.pieces.transform import (
    SGD,
    TRANSFORMS,
    AdamW,
    FedAdam,
    Identity,
    Momentum,
    Nesterov,
    TransformOf,
)
from tests.helpers.cases import looped

rate = TypeAdapter(Rate).validate_python
read = TypeAdapter(TransformOf).validate_python
vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5).map(np.array)


def test_a_number_is_a_constant_schedule():
    assert [rate(0.2)(step) for step in (1, 10, 10**9)] == [0.2] * 3
    assert rate({"schedule": "constant", "value": 0.2})(7) == 0.2


def test_off_is_the_identity_piece():
    assert read(0) == read(0.0) == Identity()
    assert read(0.9) == Momentum(0.9)
    assert read({"kind": "momentum", "mu": 0.9}) == Momentum(0.9)
    assert read({"kind": "identity"}) == Identity()


def test_the_share_of_a_buffer_that_remains_is_below_one_and_0_by_default():
    """And a kind that needs no key besides its own may be written as its name."""
    for wrong in (-0.1, 1.0, 1.5):
        with pytest.raises(ValidationError, match="mu"):
            read({"kind": "sgd", "mu": wrong})
    assert read("sgd") == read({"kind": "sgd"}) == SGD(weight_decay=0.0, mu=0.0)
    needing = [one["properties"]["kind"] for one in TRANSFORMS.schemas if len(one["required"]) > 1]
    assert {one["const"] for one in needing} == TRANSFORMS.kinds.keys() - {*TRANSFORMS.names}


@given(vectors, st.floats(0.01, 0.99))
def test_momentum_sums_a_geometric_series(g, mu):
    transform = Momentum(mu)
    state = transform.init(g)
    for _ in range(20):
        direction, state = transform.update(g, state, g)
    np.testing.assert_allclose(direction, g * (1 - mu**20) / (1 - mu), 1e-9, 1e-300)


@given(vectors)
def test_identity_does_nothing(g):
    direction, _ = Identity().update(g, Identity().init(g), g)
    assert direction is g


ADAMW = {"betas": (0.9, 0.95), "weight_decay": 0.1}
PEERS = {
    "sgd": (Identity(), "SGD", {}),
    "momentum": (Momentum(0.9), "SGD", {"momentum": 0.9}),
    "decayed": (SGD(weight_decay=0.1, mu=0.9), "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (Nesterov(0.9), "SGD", {"momentum": 0.9, "nesterov": True}),
    "adamw": (AdamW(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1), "AdamW", ADAMW),
    "adamw without settings": (AdamW(), "Adam", {}),
}


@looped("name", PEERS)
def test_transforms_step_as_pytorch_does(name):
    torch = pytest.importorskip("torch")
    transform, peer, options = PEERS[name]
    x = np.array([2.0, -4.0, 1e-8])
    theirs = torch.tensor(x, requires_grad=True)
    optimizer = getattr(torch.optim, peer)([theirs], lr=0.01, **options)
    state = transform.init(x)
    for g in np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 1e-3, 1e-8]:
        direction, state = transform.update(g, state, x)
        x = x - 0.01 * direction
        theirs.grad = torch.tensor(g)
        optimizer.step()
    np.testing.assert_allclose(x, theirs.detach().numpy(), rtol=1e-10)


def test_adamw_by_hand():
    """The bias-corrected first step has the size of the sign; weight decay pulls towards zero."""
    transform, x = AdamW(weight_decay=0.5), np.array([2.0, -4.0])
    direction, state = transform.update(np.array([3.0, -1e-3]), transform.init(x), x)
    np.testing.assert_allclose(direction, [1.0 + 1.0, -1.0 - 2.0], rtol=1e-4)
    first, second, steps = state
    np.testing.assert_allclose(first, [0.3, -1e-4])
    np.testing.assert_allclose(second, [9e-3, 1e-9])
    assert steps == 1


def test_fedadam_by_hand():
    """Unlike Adam's, its second moment begins at epsilon^2, and neither is corrected for bias."""
    transform, x = FedAdam(beta1=0.75, beta2=0.5, epsilon=3.0), np.array([2.0, -4.0])
    direction, state = transform.update(np.array([8.0, -1.0]), transform.init(x), x)
    np.testing.assert_allclose(state, [[2.0, -0.25], [36.5, 5.0]])
    np.testing.assert_allclose(direction, [2 / (36.5**0.5 + 3), -0.25 / (5**0.5 + 3)])


@looped("piece", [Momentum(0.9), Nesterov(0.9), AdamW(), FedAdam()])
def test_pieces_hold_no_state_and_change_nothing_in_place(piece):
    g, state = np.ones(3), piece.init(np.ones(3))
    for array in (g, *(state[:2] if isinstance(state, tuple) else (state,))):
        array.flags.writeable = False
    first, second = piece.update(g, state, g), piece.update(g, state, g)
    np.testing.assert_equal(first, second)
    with pytest.raises(FrozenInstanceError):
        setattr(piece, fields(piece)[0].name, 0.5)
