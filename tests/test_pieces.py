"""Schedules and transforms: their values, and the tables they are written as."""

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simulator.pieces.schedule import PeriodOfSteps, Rate
from simulator.pieces.transform import (
    Average,
    BlockMomentum,
    BlockMomentumOf,
    Identity,
    Momentum,
    MomentumOf,
    OuterOf,
)

read = {
    name: TypeAdapter(kind).validate_python
    for name, kind in {
        "rate": Rate,
        "period": PeriodOfSteps,
        "momentum": MomentumOf,
        "block": BlockMomentumOf,
        "outer": OuterOf,
    }.items()
}
DECAY = {"schedule": "steps", "start": 0.4, "factor": 0.1, "at": [80, 120]}
vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5).map(np.array)


def test_a_number_is_a_constant_schedule():
    rate = read["rate"](0.2)
    assert [rate(step) for step in (1, 10, 10**9)] == [0.2] * 3
    assert read["rate"]({"schedule": "constant", "value": 0.2})(7) == 0.2


def test_a_rate_decays_after_each_of_its_steps():
    rate = read["rate"](DECAY)
    assert [rate(step) for step in (1, 80)] == [0.4, 0.4]
    assert [rate(step) for step in (81, 120)] == pytest.approx([0.04, 0.04])
    assert [rate(step) for step in (121, 10**6)] == pytest.approx([0.004, 0.004])


def test_a_period_is_rounded_up_to_whole_steps():
    assert read["period"](7)(1) == 7
    period = read["period"]({"schedule": "steps", "start": 10, "factor": 0.25, "at": [5, 9]})
    assert [period(step) for step in (1, 5, 6, 9, 10)] == [10, 10, 3, 3, 1]
    assert all(type(period(step)) is int for step in range(1, 12))


@given(st.floats(0.01, 1e4), st.floats(0.01, 10), st.integers(1, 100))
def test_a_period_is_at_least_one_step(start, factor, step):
    table = {"schedule": "steps", "start": start, "factor": factor, "at": [5, 50]}
    period = read["period"](table)(step)
    assert isinstance(period, int)
    assert period >= 1
    exact = start * factor ** ((step > 5) + (step > 50))
    assert exact <= period < max(exact, 0) + 1 or period == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("rate", 0), ("rate", -0.1), ("rate", "0.1"), ("rate", True), ("rate", float("nan")),
        ("rate", float("inf")), ("rate", None), ("rate", {"schedule": "steps", "start": 0.1}),
        ("rate", {"schedule": "cosine"}), ("rate", {**DECAY, "at": []}),
        ("rate", {**DECAY, "at": [120, 80]}), ("rate", {**DECAY, "at": [80, 80]}),
        ("rate", {**DECAY, "at": [0]}), ("rate", {**DECAY, "factor": 0}),
        ("rate", {**DECAY, "gamma": 1}), ("rate", {**DECAY, "start": -1}),
        ("period", 0), ("period", 2.5), ("period", True), ("period", "4"), ("period", None),
        ("momentum", 1), ("momentum", -0.1), ("momentum", True), ("momentum", "0.9"),
        ("block", 1.0), ("block", float("nan")),
        ("outer", 0.3), ("outer", {"kind": "block-momentum"}), ("outer", {"kind": "nesterov"}),
        ("outer", {"kind": "block-momentum", "beta": 1.0}), ("outer", {"kind": "average", "x": 1}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(kind, value):
    with pytest.raises(ValidationError):
        read[kind](value)


def test_off_is_the_identity_piece():
    assert read["momentum"](0) == read["momentum"](0.0) == Identity()
    assert read["momentum"](0.9) == Momentum(0.9)
    assert read["block"](0) == Average()
    assert read["block"](0.3) == read["outer"]({"kind": "block-momentum", "beta": 0.3})
    assert read["outer"]({"kind": "average"}) == Average()


@given(vectors, st.floats(0.01, 0.99))
def test_momentum_sums_a_geometric_series(g, mu):
    transform = Momentum(mu)
    state = transform.init(g)
    for _ in range(20):
        direction, state = transform.update(g, state)
    np.testing.assert_allclose(direction, g * (1 - mu**20) / (1 - mu), 1e-9, 1e-300)


@given(vectors)
def test_identities_do_nothing(x):
    gradient, _ = Identity().update(x, Identity().init(x))
    average, _ = Average().update(x + 1, x, Average().init(x))
    assert gradient is x
    assert average is x


def test_block_momentum_keeps_a_displacement():
    """By hand: from 0 to an average at -1, then from where that led to one a step of 1 further."""
    outer, x = BlockMomentum(0.5), np.zeros(1)
    state = outer.init(x)
    x, state = outer.update(x, x - 1, state)
    assert x == -1
    x, state = outer.update(x, x - 1, state)
    assert x == -2.5
    x, state = outer.update(x, x, state)  # the average has not moved; the buffer still does
    assert x == -2.5 - 0.75


@pytest.mark.parametrize("piece", [Momentum(0.9), BlockMomentum(0.3)])
def test_pieces_hold_no_state_and_change_nothing_in_place(piece):
    g, state = np.ones(3), np.ones(3)
    for array in (g, state):
        array.flags.writeable = False
    arguments = (g, state) if isinstance(piece, Momentum) else (g, 2 * g, state)
    first, second = piece.update(*arguments), piece.update(*arguments)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(FrozenInstanceError):
        setattr(piece, fields(piece)[0].name, 0.5)
