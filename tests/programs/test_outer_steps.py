"""Outer steps: DiLoCo and its kin, slow momentum, elastic averaging, by identities and by hand."""

import numpy as np
import pytest

from paceline.simulator.programs.pieces.transform import AdamW
from tests.helpers.cases import looped
from tests.helpers.worlds import RING, simulate
from tests.programs.test_overlapped import DECAY, STEPS, gradients, marks, objectives, same, world

PLAIN = {"inner": 0, "outer_lr": 1.0, "outer_momentum": 0.0}


@objectives
@pytest.mark.parametrize("tau", [1, 4, 40])
def test_diloco_with_plain_steps_inside_and_outside_is_local_sgd(tau, objective):
    local, diloco = marks(
        {"name": "local-sgd", "tau": tau, "lr": DECAY},
        {"name": "diloco", "tau": tau, "lr": DECAY, **PLAIN},
        objective=objective,
    )
    assert np.array_equal(local, diloco)


@objectives
def test_streaming_diloco_of_one_fragment_that_waits_is_diloco(objective):
    diloco, streaming = marks(
        {"name": "diloco", "tau": 5, "lr": 0.02},
        {
            "name": "streaming-diloco", "tau": 5, "lr": 0.02,
            "fragments": 1, "overlap": 0, "alpha": 0.0,
        },
        objective=objective,
    )  # fmt: skip
    same(streaming, diloco)


def adamw(x, state, g, lr):
    direction, state = AdamW().update(g, state, x)
    return x - lr * direction, state


def test_diloco_by_hand():
    """AdamW's moments live on from round to round; the outer gradient is how far workers came."""
    tau, lr = 5, 0.02
    (found,) = marks({"name": "diloco", "tau": tau, "lr": lr})
    g, theta = gradients(found)
    x, u = np.tile(theta, (3, 1)), np.zeros(theta.size)
    inner = AdamW().init(x)
    for n in range(STEPS):
        x, inner = adamw(x, inner, g[:, n], lr)
        if (n + 1) % tau == 0:
            outer = (theta - x).mean(axis=0)
            u = 0.9 * u + outer
            theta = theta - 0.7 * (outer + 0.9 * u)
            x = np.tile(theta, (3, 1))
        same(found[:, n], x)


@looped("overlap", [0, 2, 5])
@looped("fragments", [1, 2, 3])
def test_streaming_diloco_by_hand(fragments, overlap):
    """Each fragment in its turn: sent, `overlap` steps later stepped, and mixed with one's own."""
    tau, lr, alpha = 6, 0.05, 0.3
    (found,) = marks(
        {
            "name": "streaming-diloco", "tau": tau, "fragments": fragments, "overlap": overlap,
            "alpha": alpha, "inner": 0, "lr": lr,
        }
    )  # fmt: skip
    g, start = gradients(found)
    x, theta, u = np.tile(start, (3, 1)), start.copy(), np.zeros(start.size)
    places = np.array_split(np.arange(start.size), fragments)[::-1]  # the last entries first
    sent = {}
    for n in range(STEPS):
        k = n + 1
        x = x - lr * g[:, n]
        turns = [f for f in range(fragments) if (k - tau * (f + 1) // fragments) % tau == 0]
        sent |= {(f, k + overlap): (theta - x).mean(axis=0)[places[f]] for f in turns}
        for f in range(fragments):
            if (f, k) in sent:
                at, outer = places[f], sent[f, k]
                u[at] = 0.9 * u[at] + outer
                theta[at] -= 0.7 * (outer + 0.9 * u[at])
                x[:, at] = theta[at] + alpha * (x[:, at] - theta[at])
        same(found[:, n], x)


@looped("name", ["delayed-diloco", "eager-diloco"])
def test_late_outer_steps_by_hand(name):
    tau, lr, m = 4, 0.05, 3
    (found,) = marks({"name": name, "tau": tau, "inner": 0.5, "lr": lr})
    g, start = gradients(found)
    theta, u = np.tile(start, (m, 1)), np.zeros((m, start.size))
    x, inner, before = theta, 0 * u, None
    for n in range(STEPS):
        inner = 0.5 * inner + g[:, n]
        x = x - lr * inner
        if (n + 1) % tau == 0:
            came = theta - x
            if name == "delayed-diloco":
                outer = None if before is None else before.mean(axis=0)
            else:  # the own fresh share, and the others' of the round before
                others = 0 if before is None else before.sum(axis=0) - before
                outer = (others + came) / m
            if outer is not None:
                u = 0.9 * u + outer
                theta = theta - 0.7 * (outer + 0.9 * u)
            x, before = theta, came
        same(found[:, n], x)


def test_late_diloco_does_not_wait_for_means_that_take_a_round():
    """A mean of 9 s is free where a round takes 10 s, and costs diloco 9 s a round."""
    network = {"collective": "given", "duration": "9 s"}
    found = [
        simulate(world({"name": name, "tau": 10}, compute="1 s", network=network)).duration
        for name in ("diloco", "delayed-diloco", "eager-diloco", "cocod-sgd", "overlap-local-sgd")
    ]
    assert found == pytest.approx([4 * (10 + 9), *4 * [40]])


def test_streaming_diloco_sends_as_much_as_diloco_in_smaller_pieces():
    made = [
        world({"name": name, "tau": 8, "lr": 0.02, **more}, network=RING, compute="1 s", steps=800)
        for name, more in (("diloco", {}), ("streaming-diloco", {"fragments": 4, "overlap": 1}))
    ]
    whole, pieces = map(simulate, made)
    assert sum(pieces.links.values()) == pytest.approx(sum(whole.links.values()), rel=0.01)
    assert pieces.seconds["communicate"] < 0.1 * whole.seconds["communicate"]
    assert set(pieces.staleness) == {1}


def test_slow_momentum_by_hand():
    """BMUF and SlowMo: u = b u + (x0 - xbar) / lr; x0 = x0 - a lr u."""
    tau, lr, b, a = 4, 0.05, 0.6, 0.8
    (found,) = marks({"name": "bmuf", "tau": tau, "momentum": b, "step": a, "lr": lr})
    g, x0 = gradients(found)
    x, u = np.tile(x0, (3, 1)), np.zeros(x0.size)
    for n in range(STEPS):
        x = x - lr * g[:, n]
        if (n + 1) % tau == 0:
            u = b * u + (x0 - x.mean(axis=0)) / lr
            x0 = x0 - a * lr * u
            x = np.tile(x0, (3, 1))
        same(found[:, n], x)


def test_slow_momentum_at_a_constant_rate_is_block_momentum():
    blocks, slow = marks(
        {"name": "local-sgd", "tau": 4, "outer": 0.3}, {"name": "bmuf", "tau": 4, "momentum": 0.3}
    )
    same(slow, blocks)


def test_the_optimizers_momentum_is_that_of_slow_momentums_local_steps():
    made = world({"name": "bmuf", "tau": 4}, optimizer={"momentum": 0.9}).algorithm[0].parameters
    assert made["local_momentum"].mu == 0.9
    assert made["momentum"] == 0.5


@looped("alpha", [None, 0.2])
def test_elastic_averaging_by_hand(alpha):
    tau, lr, m = 3, 0.05, 3
    more = {} if alpha is None else {"alpha": alpha}
    (found,) = marks({"name": "easgd", "tau": tau, "lr": lr, **more})
    g, z = gradients(found)
    a = 0.9 / m if alpha is None else alpha
    x = np.tile(z, (m, 1))
    for n in range(STEPS):
        x = x - lr * g[:, n]
        if (n + 1) % tau == 0:
            x, z = (1 - a) * x + a * z, (1 - m * a) * z + a * x.sum(axis=0)
        same(found[:, n], x)
