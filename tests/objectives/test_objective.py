"""What is minimised: gradients against differences, noise, shifts, data, and Theorem 2."""

from math import isnan, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.objectives.build import build
from paceline.simulator.objectives.quadratic import NoisyQuadratic
from paceline.simulator.objectives.softmax import SoftmaxRegression, load_data
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, EXPONENTIAL, on_batched, scenario, simulate

RANDOM = {"kind": "softmax", "data": "random-classification", "batch": 64}


def quadratic(workers=4, seed=0, **settings):
    table = {"kind": "quadratic", "dimension": 20, **settings}
    goal = make(table, workers, seed)
    assert isinstance(goal, NoisyQuadratic)
    return goal


def softmax(workers=4, seed=0, **settings):
    goal = make({**DIGITS, **settings}, workers, seed)
    assert isinstance(goal, SoftmaxRegression)
    return goal


def make(table, workers, seed):
    world = scenario({"name": "ssgd"}, objective=table, workers=workers)
    return build(world, world.algorithm[0], seed)


def differences(f, x, h=1e-6):
    """Gradient of f by central differences."""
    return np.array([(f(x + step) - f(x - step)) / (2 * h) for step in h * np.eye(x.size)])


# The quadratic


@looped("exponent", [0.0, 1.0, 2.5])
def test_a_quadratic_starts_at_the_gap_and_ends_at_zero(exponent):
    goal = quadratic(spectrum={"kind": "power", "exponent": exponent}, initial_gap=3.5, shift=1.0)
    np.testing.assert_allclose(goal.spectrum, [i**-exponent for i in range(1, 21)])
    assert goal.evaluate(goal.start, 0).loss == pytest.approx(3.5)
    assert goal.evaluate(np.zeros(20), 0).loss == 0
    assert isnan(goal.evaluate(goal.start, 0).accuracy)


@given(st.integers(1, 9), st.just(0.0) | st.floats(1e-30, 100), st.integers(0, 2**31))
def test_shifts_sum_to_zero(workers, shift, seed):
    goal = quadratic(workers, seed, shift=shift)
    assert goal.shifts.shape == (workers, 20)
    np.testing.assert_allclose(goal.shifts.sum(axis=0), 0, atol=1e-12 * (1 + shift) * workers)
    assert np.all(np.linalg.norm(goal.shifts, axis=1) <= 2 * shift + 1e-9)
    x = np.random.default_rng(seed).standard_normal(20)
    assert goal.evaluate(x, 0).loss >= 0
    assert np.array_equal(goal.shifts, quadratic(workers, seed, shift=shift).shifts)


def test_noise_has_the_variance_of_theorem_2():
    """E g = grad F and E||g - grad F||^2 = sigma^2, whatever the dimension; workers differ."""
    for dimension in (1, 20, 300):
        goal = quadratic(noise=3.0, dimension=dimension, shift=1.0)
        n, source = 3000, goal.source(0)
        gradients = np.array([source.gradient(goal.start) for _ in range(n)])
        noise = gradients - goal.spectrum * (goal.start - goal.shifts[0])
        squares = (noise**2).sum(axis=1)
        assert np.mean(squares) == pytest.approx(9, abs=4.5 * np.std(squares) / np.sqrt(n))
        assert np.max(np.abs(noise.mean(axis=0))) < 5.5 * 3 / np.sqrt(dimension * n)


def test_workers_and_steps_have_noise_of_their_own():
    goal = quadratic()
    draws = [goal.source(rank).gradient(goal.start) for rank in range(4)]
    source = goal.source(0)
    draws += [source.gradient(goal.start) for _ in range(5)][1:]
    draws.append(quadratic(seed=1).source(0).gradient(goal.start))
    assert len({draw.tobytes() for draw in draws}) == len(draws)


def test_skewed_data_slow_periodic_averaging_down():
    skewed = {**DIGITS, "batch": 200, "partition": {"dirichlet": 0.05}}
    world = scenario(
        {"name": "ssgd"}, {"name": "local-sgd", "tau": 50},
        objective=skewed, workers=8, steps=400, lr=0.5,
    )  # fmt: skip
    ssgd, local = (simulate(world, index).curve["loss"][-1] for index in range(2))
    assert local > 1.2 * ssgd


# Softmax on data


@looped("hidden", [0, 5])
@looped("data", ["digits", "random-classification"])
def test_a_softmax_gradient_is_that_of_its_loss(data, hidden):
    goal = softmax(data=data, hidden=hidden)
    rng = np.random.default_rng(1)
    x, rows = rng.standard_normal(goal.dimension), rng.integers(0, 1000, 30)
    loss, gradient = goal.at(x, rows)
    assert loss > 0
    slopes = differences(lambda y: goal.at(y, rows)[0], x)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-8)
    assert goal.at(x, rows)[0] == loss


def test_a_softmax_loss_is_the_mean_negative_log_likelihood():
    goal = softmax()
    data = goal.data
    x = np.random.default_rng(1).standard_normal(goal.dimension)
    scores = data.train_x @ x.reshape(-1, 10)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(chances[np.arange(len(scores)), data.train_y]).mean()
    actual = goal.evaluate(x, 0)
    assert actual.loss == pytest.approx(expected)
    assert actual.loss == pytest.approx(goal.at(x, np.arange(len(scores)))[0])
    assert actual.accuracy == np.mean((data.test_x @ x.reshape(-1, 10)).argmax(1) == data.test_y)
    assert goal.evaluate(goal.start, 0).loss == pytest.approx(log(10))


def test_a_hidden_layer_computes_what_torchs_does():
    torch = pytest.importorskip("torch")
    goal, inputs = softmax(hidden=32, batch=8), 65
    assert goal.dimension == 2410
    first, last = goal.start[: inputs * 32].reshape(inputs, 32), goal.start[inputs * 32 :]
    assert 0.9 / 8 < abs(first).max() < 1 / 8  # torch's own start
    assert abs(first).mean() == pytest.approx(1 / 16, rel=0.05)
    assert 0.9 / 32**0.5 < abs(last).max() < 1 / 32**0.5
    assert not np.array_equal(goal.start, softmax(seed=1, hidden=32).start)
    x = torch.tensor(goal.start, requires_grad=True)
    into, out = x[: inputs * 32].reshape(inputs, 32), x[inputs * 32 :].reshape(33, 10)
    rows = np.arange(40)
    units = (torch.tensor(goal.data.train_x[rows]) @ into).relu()
    labels = torch.tensor(goal.data.train_y[rows])
    loss = torch.nn.functional.cross_entropy(units @ out[:-1] + out[-1], labels)
    loss.backward()
    actual, gradient = goal.at(goal.start, rows)
    assert actual == pytest.approx(loss.item())
    np.testing.assert_allclose(gradient, x.grad, rtol=1e-9, atol=1e-12)
    decayed = softmax(hidden=32, batch=8, weight_decay=0.5)
    assert decayed.at(goal.start, rows)[0] == actual
    assert np.array_equal(decayed.at(goal.start, rows)[1], gradient + 0.5 * goal.start)


@looped("name", ["ssgd", "local-sgd", "adacomm"])
def test_engines_agree_on_a_hidden_layer_to_the_last_bit(name):
    """Each seed has a start of its own."""
    own = {"ssgd": {}, "local-sgd": {"tau": 3}, "adacomm": {"tau0": 4, "interval": "3 s"}}[name]
    world = scenario({"name": name, **own}, objective={**DIGITS, "hidden": 8}, workers=3, lr=0.5)
    together = on_batched(world.algorithm[0], world, range(3))
    alone = [simulate(world, seed=seed) for seed in range(3)]
    assert [run.curve["loss"] for run in together] == [run.curve["loss"] for run in alone]
    assert len({run.curve["loss"][0] for run in together}) == 3


@looped("partition", ["iid", {"dirichlet": 0.3}])
def test_epochs_have_each_sample_once_on_every_engine(partition):
    goal = softmax(3, epochs=True, batch=100, partition=partition)
    drawn = [goal.source(rank) for rank in range(3)]
    sizes = goal.sizes if partition != "iid" else [1437 // 3] * 3
    for source, size in zip(drawn, sizes, strict=True):
        rows = np.concatenate([source.next_rows() for _ in range(-(-2 * size // 100))])[: 2 * size]
        assert len({*rows[:size].tolist()}) == size
        assert sorted(rows[:size]) == sorted(rows[size:]) or partition == "iid"
        assert not np.array_equal(rows[:size], rows[size:])
    made = scenario(
        {"name": "ssgd"}, objective=DIGITS | {"epochs": True, "weight_decay": 0.01}, steps=300
    )
    (one,) = run_seeds(made, made.algorithm[0], [1], engine="batched")
    assert one.curve["loss"] == simulate(made, seed=1).curve["loss"]


def test_a_softmax_loss_does_not_overflow():
    goal = softmax()
    loss, gradient = goal.at(1e6 * np.ones(goal.dimension).cumsum(), np.arange(50))
    assert np.isfinite(loss)
    assert np.all(np.isfinite(gradient))


def test_batches_are_drawn_from_the_workers_share():
    goal = softmax(partition={"dirichlet": 0.1}, batch=1)
    source = goal.source(2)
    seen = {source.gradient(goal.start).tobytes() for _ in range(3000)}
    labels = {goal.at(goal.start, np.array([row]))[1].tobytes() for row in goal.shares[2]}
    assert seen <= labels
    assert len(seen) > 0.9 * len(labels)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from([0.01, 0.3, 1.0, 100.0]), st.integers(0, 99))
def test_a_dirichlet_partition_deals_every_sample_once(workers, alpha, seed):
    goal = softmax(workers, seed, partition={"dirichlet": alpha})
    assert len(goal.shares) == workers
    assert all(len(share) > 0 for share in goal.shares)
    dealt = np.sort(np.concatenate(goal.shares))
    assert np.array_equal(dealt, np.arange(len(goal.data.train_y)))
    again = softmax(workers, seed, partition={"dirichlet": alpha})
    assert all(np.array_equal(a, b) for a, b in zip(goal.shares, again.shares, strict=True))


def skew(alpha):
    """Mean over workers of the share of their most frequent label."""
    shares = []
    for seed in range(5):
        goal = softmax(8, seed, partition={"dirichlet": alpha})
        counts = [np.bincount(goal.data.train_y[share], minlength=10) for share in goal.shares]
        shares += [count.max() / count.sum() for count in counts]
    return np.mean(shares)


def test_a_small_concentration_is_a_skewed_partition():
    assert skew(1e4) == pytest.approx(0.1, abs=0.03)
    assert skew(0.05) > skew(1.0) + 0.2 > skew(1e4) + 0.25


def test_more_workers_than_samples_is_the_users_error():
    with pytest.raises(InputError, match=r"cluster.workers = 1500: .*1437 training samples"):
        softmax(1500, partition={"dirichlet": 1.0})


@looped(
    ("name", "samples", "features"), [("digits", 1797, 64), ("random-classification", 10_000, 20)]
)
def test_the_data_sets(name, samples, features):
    """Ten classes, split 80:20 with every class in both parts; a column of ones."""
    data = load_data(name)
    assert data.classes == 10
    train, test = len(data.train_y), len(data.test_y)
    assert train + test == samples
    assert test == pytest.approx(0.2 * samples, abs=1)
    assert data.train_x.shape == (train, features + 1)
    assert data.test_x.shape == (test, features + 1)
    assert np.all(data.train_x[:, -1] == 1)
    assert np.all(data.test_x[:, -1] == 1)
    shares = [np.bincount(labels, minlength=10) / len(labels) for labels in data[1:4:2]]
    np.testing.assert_allclose(*shares, atol=0.005)
    assert np.all(np.abs(shares[0] - 0.1) < 0.01)
    assert not {row.tobytes() for row in data.train_x} & {row.tobytes() for row in data.test_x}


@looped(("objective", "accuracy"), [(DIGITS, 0.93), (RANDOM, 0.3)])
def test_training_learns_something(objective, accuracy):
    world = scenario({"name": "ssgd"}, objective=objective, steps=1500, lr=0.3)
    curve = simulate(world).curve
    assert curve["loss"][-1] < 0.85 * curve["loss"][0]
    assert curve["accuracy"][-1] > accuracy
    assert curve["accuracy"][0] < 0.2


# The bound, and nothing


@looped(
    ("case", "tau"),
    [
        ({"name": "ssgd"}, 1),
        ({"name": "ssgd-bucketed"}, 1),
        ({"name": "local-sgd", "tau": 5}, 5),
        ({"name": "local-sgd", "tau": 5, "lr": 0.04}, 5),
    ],
)
def test_the_bound_is_theorem_2_on_the_simulated_clock(case, tau):
    """2(F1 - Finf)/(lr K) + lr L s^2/m + lr^2 L^2 s^2 (tau - 1) after K steps, however long."""
    gap, L, variance, m = 1.5, 0.7, 2.0, 4
    lr = case.get("lr", 0.08)
    world = scenario(
        case, workers=m, compute=EXPONENTIAL, steps=50, lr=0.08, run={"evaluate_every": 10},
        objective={
            "kind": "bound", "initial_gap": gap, "smoothness": L, "gradient_variance": variance
        },
    )  # fmt: skip
    run = simulate(world)
    floor = lr * L * variance / m + (lr * L) ** 2 * variance * (tau - 1)
    assert isnan(run.curve["loss"][0])
    assert run.curve["loss"][1:] == pytest.approx(
        [2 * gap / (lr * K) + floor for K in range(10, 51, 10)]
    )
    assert run.notes == []


def test_the_bound_of_periods_that_change_has_their_mean():
    tau = {"schedule": "piecewise", "values": [10, 5, 1], "at": [20, 40]}
    world = scenario(
        {"name": "local-sgd", "tau": tau}, workers=4, compute=EXPONENTIAL, steps=60, lr=0.08,
        objective={"kind": "bound", "initial_gap": 1, "smoothness": 1, "gradient_variance": 1},
        run={"evaluate_every": 20},
    )  # fmt: skip
    drift = {20: 9.0, 40: 6.5, 60: 13 / 3}  # means of tau - 1
    assert simulate(world).curve["loss"][1:] == pytest.approx(
        [2 / (0.08 * K) + 0.08 / 4 + 0.08**2 * mean for K, mean in drift.items()]
    )


def test_adacomm_reads_the_bound_and_its_own_periods_count_in_it():
    world = scenario(
        {"name": "adacomm", "tau0": 8, "interval": "40 s"}, workers=4, compute=EXPONENTIAL,
        steps=400, lr=0.08, run={"evaluate_every": 8},
        objective={"kind": "bound", "initial_gap": 1, "smoothness": 1, "gradient_variance": 1},
    )  # fmt: skip
    (quick,) = run_seeds(world, world.algorithm[0], [0], engine="batched")
    (run,) = run_seeds(world, world.algorithm[0], [0], engine="virtual")
    assert run.curve["loss"][1:] == quick.curve["loss"][1:]
    steps, taus = np.array(run.curve["step"][1:]), np.array(run.curve["tau"][1:])
    assert taus[0] == 8
    assert taus[-1] < 8
    mean = np.cumsum(np.diff(steps, prepend=0) * (taus - 1)) / steps
    bound = 2 / (0.08 * steps) + 0.08 / 4 + 0.08**2 * mean
    assert run.curve["loss"][1:] == pytest.approx(bound)


def test_a_period_outside_theorem_2_is_said_to_be():
    world = scenario(
        {"name": "local-sgd", "tau": 40}, {"name": "local-sgd", "tau": 12}, lr=0.08, workers=16,
        steps=80,
        objective={"kind": "bound", "initial_gap": 1, "smoothness": 1, "gradient_variance": 1},
    )  # fmt: skip
    outside, inside = (simulate(world, index).notes for index in range(2))
    assert len(outside) == 1
    assert "tau = 40 is outside Theorem 2, which covers tau <= 12" in outside[0]
    assert inside == []


def test_without_an_objective_there_is_time_but_no_loss():
    run = simulate(scenario({"name": "ssgd"}, steps=10))
    assert all(map(isnan, run.curve["loss"] + run.curve["accuracy"]))
    assert run.duration == 10
