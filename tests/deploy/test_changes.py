"""A session under changed settings: what is under way is neither lost nor taken twice."""

import copy
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn
from torch.optim import SGD

import paceline
from paceline.simulator.errors import InputError
from tests.helpers.cases import looped

LR, STEPS = 0.125, 40
PERIODIC = (
    "local-sgd", "diloco", "cocod-sgd", "overlap-local-sgd", "delayed-diloco", "eager-diloco",
    "bmuf", "easgd",
)  # fmt: skip


def pushes(steps=STEPS):
    """Gradients that do not depend on the parameters."""
    draw = np.random.default_rng(3)
    return draw.integers(-8, 9, (steps, 12)).astype(float)


def trained(plan, changes, momentum=0.0, resume=None):
    """Train a vector along `pushes`, with the settings changed after these steps; return it."""
    net = nn.ParameterList([nn.Parameter(torch.zeros(12, dtype=torch.float64))])
    optimizer = SGD(net.parameters(), LR, momentum)
    session = paceline.deploy(net, optimizer, plan)
    for k, push in enumerate(pushes(), 1):
        net[0].grad = torch.tensor(push)
        session.step()
        if k in changes:
            session.change(**changes[k])
        if k == resume:
            file = io.BytesIO()
            torch.save([optimizer.state_dict(), session.state_dict()], file)
            file.seek(0)
            session.close()
            optimizer = SGD(net.parameters(), LR, momentum)
            session = paceline.deploy(net, optimizer, plan)
            for owner, state in zip((optimizer, session), torch.load(file), strict=True):
                owner.load_state_dict(state)
    session.close()
    return net[0].detach().numpy().copy()


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.integers(1, STEPS),
        st.fixed_dictionaries(
            {}, optional={"delay": st.integers(0, 9), "period": st.integers(1, 6)}
        ),
        max_size=5,
    ),
    st.sampled_from([0.0, 0.5]),
    st.none() | st.integers(1, STEPS - 1),
)
def test_exact_compensation_is_exact_whatever_changes(changes, momentum, resume):
    """Alone, a mean is the worker's own share, which it replaces: SGD, as if none had come."""
    plan = {"name": "dts", "delay": 3, "period": 2}
    x = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    optimizer = SGD([x], LR, momentum)
    for push in pushes():
        x.grad = torch.tensor(push)
        optimizer.step()
    record = trained(plan, changes, momentum, resume)
    np.testing.assert_allclose(record, x.detach().numpy(), rtol=1e-12, atol=1e-12)


def streamed(changes, tau, overlap, fragments=4, alpha=0.25):
    """Return what streaming DiLoCo makes of `pushes`, fragment by fragment, without momentum."""
    x, anchor = np.zeros(12), np.zeros(12)
    parts = np.array_split(np.arange(12), fragments)[::-1]
    at, sent, wanted = 0, {}, {"tau": tau, "overlap": overlap}
    now = dict(wanted)
    for k, push in enumerate(pushes(), 1):
        x = x - LR * push
        for f, part in enumerate(parts):
            if k - at == now["tau"] * (f + 1) // fragments:
                assert f not in sent
                sent[f] = k + now["overlap"], (anchor - x)[part]
        for f in [f for f in sent if sent[f][0] == k]:
            part, mean = parts[f], sent.pop(f)[1]
            anchor[part] = anchor[part] - mean
            x[part] = anchor[part] + alpha * (x[part] - anchor[part])
        if k - at == now["tau"]:
            late = now["overlap"]
            at, now = k, wanted | {"tau": max(wanted["tau"], late + 1)}
        wanted = wanted | changes.get(k, {})
    return x


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.integers(1, STEPS),
        st.sampled_from([(4, 0), (4, 3), (8, 0), (8, 5), (16, 1), (16, 12), (5, 2), (31, 30)]),
        max_size=5,
    ),
    st.none() | st.integers(1, STEPS - 1),
)
def test_fragments_keep_their_turns_whatever_changes(pairs, resume):
    changes = {k: {"tau": tau, "overlap": late} for k, (tau, late) in pairs.items()}
    plan = {
        "name": "streaming-diloco", "tau": 8, "overlap": 3, "alpha": 0.25, "outer_lr": 1.0,
        "outer_momentum": 0.0, "inner": 0.0,
    }  # fmt: skip
    np.testing.assert_array_equal(trained(plan, changes, resume=resume), streamed(changes, 8, 3))


@looped("name", PERIODIC[1:])
def test_a_changed_session_goes_on_from_its_state(name):
    changes = {"tau": 2}
    plan = {"name": name, "tau": 4}
    for at in (17, 19, 21):
        whole = trained(plan, {18: changes})
        np.testing.assert_array_equal(trained(plan, {18: changes}, resume=at), whole)
    # alone, a worker of cocod-sgd takes its own share back, whatever the period
    assert np.array_equal(trained(plan, {}), whole) == (name == "cocod-sgd")


@looped("name", PERIODIC)
def test_a_changed_period_is_a_schedule_of_the_phases_lengths(name):
    """Longer and shorter while a phase is under way, and where one begins."""
    changes = {2: {"tau": 6}, 10: {"tau": 3}, 17: {"tau": 1}, 19: {"tau": 9}}
    lengths = [6, 5, 3, 3, 1, 1, 9, 9, 9]
    ends = np.cumsum(lengths).tolist()
    schedule = {"schedule": "piecewise", "values": [*lengths, 9], "at": ends}
    record = trained({"name": name, "tau": 4}, changes, 0.5)
    np.testing.assert_array_equal(record, trained({"name": name, "tau": schedule}, {}, 0.5))
    same = np.array_equal(record, trained({"name": name, "tau": 4}, {}, 0.5))
    assert same == (name == "cocod-sgd")  # alone, it takes its own share back


def test_a_state_has_the_settings_of_its_own_program():
    net = nn.Linear(2, 2)
    plan = {"name": "dts", "delay": 3, "period": 2}
    with paceline.deploy(net, SGD(net.parameters(), LR), plan) as session:
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        session.step()
        session.change(delay=1)
        state = copy.deepcopy(session.state_dict())
        session.change(delay=5, period=4)
        session.load_state_dict(state)
        assert session.settings == {"delay": 1, "period": 2}
        with pytest.raises(InputError, match="overlap: dts has no overlap"):
            session.change(overlap=1)
