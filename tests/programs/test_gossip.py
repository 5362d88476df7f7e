"""Gossip: replays by matrices, what averaging preserves, and when everybody hears from whom."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.cluster import workers
from paceline.simulator.objectives.build import build
from paceline.simulator.programs.pieces.graph import Complete, Ring, Torus
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, EXPONENTIAL, QUADRATIC, RING, scenario
from tests.programs.test_parameter_servers import PAYLOAD, UNEVEN, watch

STEPS, SEED = 30, 5
DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [7, 20]}
JITTER = {"latency": {"dist": "exponential", "mean": "300 ms"}}
NOISELESS = QUADRATIC | {"noise": 0.0, "shift": 2.0}
GRAPHS = {
    "ring": Ring(), "torus": Torus(), "complete": Complete(),
}  # fmt: skip
NAMES = ["d-psgd", "d2", "ad-psgd"]
graphs = pytest.mark.parametrize("graph", GRAPHS)
everyone = pytest.mark.parametrize("name", NAMES)


def mixing(graph, m):
    """The matrix W."""
    W = np.zeros((m, m))
    for rank in range(m):
        for other, weight in GRAPHS[graph].weights(rank, m):
            W[rank, other] = weight
    return W


def play(case, graph="ring", start=None, **tables):
    """Run a program; return the run, its log, and what was marked: (workers, steps, parameters)."""
    table = {"name": case} if isinstance(case, str) else case
    options = {} if table["name"] in ("psgd", "ssgd") else {"graph": GRAPHS[graph]}
    tables = {"objective": QUADRATIC, "compute": EXPONENTIAL, "steps": STEPS} | tables
    world = scenario(table | options, **tables)
    run, log = watch(world, seed=SEED, start=start)
    marks = [np.array(log.values(rank)) for rank in range(world.cluster.workers)]
    # AD-PSGD's workers take as many steps as they can
    return run, log, marks if table["name"] == "ad-psgd" else np.array(marks)


def sources(m, objective=QUADRATIC):
    """A function from everyone's parameters (m, d) to their next gradients, and the start."""
    world = scenario({"name": "psgd"}, workers=m, objective=objective)
    goal = build(world, world.algorithm[0], SEED)
    streams = [goal.source(rank) for rank in range(m)]
    return lambda x: np.array([s.gradient(x[w]) for w, s in enumerate(streams)]), goal


def rate(k):
    return 0.1 * 0.5 ** sum(k > at for at in DECAY["at"])


# Replays by matrices


replays = pytest.mark.parametrize(
    ("objective", "m"), [(QUADRATIC, 2), (QUADRATIC, 6), (DIGITS, 6)], ids=["two", "six", "digits"]
)


@graphs
@replays
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_d_psgd_is_its_equation(graph, m, momentum, objective):
    """x = W x - lr u, with u = mu u + g(x): each gradient at a worker's own model, not averaged."""
    _, _, played = play(
        {"name": "d-psgd", "lr": DECAY, "momentum": momentum}, graph, workers=m, network=RING,
        objective=objective,
    )  # fmt: skip
    gradients, goal = sources(m, objective)
    W, x, u = mixing(graph, m), np.tile(goal.start, (m, 1)), 0.0
    for k in range(1, STEPS + 1):
        u = momentum * u + gradients(x)
        x = W @ x - rate(k) * u
        np.testing.assert_allclose(played[:, k - 1], x, rtol=1e-12, atol=1e-14)


@graphs
@replays
def test_d2_is_its_recursion(graph, m, objective):
    """x' = V (2x - x_before - lr g + lr_before g_before), with V = (I + W) / 2."""
    _, _, played = play(
        {"name": "d2", "lr": DECAY}, graph, workers=m, network=RING, objective=objective
    )
    gradients, goal = sources(m, objective)
    V, x = (np.eye(m) + mixing(graph, m)) / 2, np.tile(goal.start, (m, 1))
    before, last = x, 0 * x
    for k in range(1, STEPS + 1):
        step = rate(k) * gradients(x)
        x, before, last = V @ (2 * x - before - step + last), x, step
        np.testing.assert_allclose(played[:, k - 1], x, rtol=1e-11, atol=1e-13)


@graphs
@everyone
def test_gossip_alone_comes_to_the_mean(graph, name):
    """From different starts, with gradients that count for nothing."""
    m = 6
    start = np.random.default_rng(0).normal(size=(m, 6))
    _, _, played = play(
        {"name": name, "lr": 1e-300}, graph, start=start, workers=m, steps=300, network=RING
    )
    mean = start.mean(axis=0)
    np.testing.assert_allclose([curve[-1] for curve in played], np.tile(mean, (m, 1)), atol=1e-9)
    if name == "d-psgd":
        W = mixing(graph, m)
        expected = [np.linalg.matrix_power(W, k) @ start for k in range(1, 301)]
        np.testing.assert_allclose(played.transpose(1, 0, 2), expected, atol=1e-12)
    if name != "ad-psgd":
        np.testing.assert_allclose(played.mean(axis=0), np.tile(mean, (300, 1)), atol=1e-12)


# What it converges to


@cache
def limits(name, graph):
    """Where every worker ends up without noise; the optimum is zero."""
    _, _, played = play(
        {"name": name, "lr": 0.5}, graph, workers=6, steps=400, objective=NOISELESS, compute="1 s"
    )
    return played[:, -1]


@graphs
def test_d_psgd_keeps_a_bias_where_data_differ(graph):
    """It stands still where (I - W + lr A) x = lr A s, in each coordinate of curvature A."""
    _, goal = sources(6, NOISELESS)
    stiff = np.eye(6) - mixing(graph, 6)
    expected = [
        np.linalg.solve(stiff + 0.5 * a * np.eye(6), 0.5 * a * goal.shifts[:, i])
        for i, a in enumerate(goal.spectrum)
    ]
    np.testing.assert_allclose(limits("d-psgd", graph), np.transpose(expected), atol=1e-12)


@graphs
def test_d2_reaches_the_optimum_where_d_psgd_does_not(graph):
    biases = np.abs(limits("d-psgd", graph)).max(axis=1)
    errors = np.abs(limits("d2", graph)).max(axis=1)
    assert biases.min() > 0.1
    assert errors.max() < 1e-12
    assert np.abs(limits("d-psgd", graph).mean(axis=0)).max() < 1e-12  # the bias is the workers'


# Identities


@everyone
@pytest.mark.parametrize("objective", [QUADRATIC, DIGITS], ids=["quadratic", "digits"])
def test_alone_it_is_plain_sgd(name, objective):
    tables = {"workers": 1, "objective": objective, "lr": DECAY, "network": RING}
    (_, plain, expected), (run, log, actual) = (play(item, **tables) for item in ("psgd", name))
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-14)
    assert log.times(0) == plain.times(0)
    assert (run.links, run.curve["bytes"][-1]) == ({}, 0)


# AD-PSGD


@st.composite
def worlds(draw):
    """Random compute times and latencies, on any graph."""
    latency = draw(st.sampled_from(["0 s", "200 ms", "5 s", JITTER["latency"]]))
    return {
        "graph": draw(st.sampled_from(sorted(GRAPHS))),
        "workers": draw(st.sampled_from([2, 4, 6])),
        "compute": draw(st.sampled_from(["1 s", EXPONENTIAL])),
        "cluster": draw(st.sampled_from([{}, UNEVEN])),
        "network": {"latency": latency},
    }


@settings(max_examples=20, deadline=None)
@given(worlds(), st.sampled_from([0.0, 0.6]))
def test_ad_psgd_preserves_the_mean_of_the_parameters(world, momentum):
    """Whenever no averaging is half done: all models add up to what they started with, less all
    steps taken along gradients. And averaging is atomic: nobody changes what it has sent.
    """
    m, graph = world["workers"], GRAPHS[world["graph"]]
    x = np.random.default_rng(1).normal(size=(m, 6))
    case = {"name": "ad-psgd", "momentum": momentum}
    _, log, _ = play(case, start=x.copy(), **world)
    total, u, gradient, theirs = x.sum(axis=0), 0 * x, 0 * x, 0 * x
    half_done = checked = 0
    for event in sorted(log, key=lambda event: event.time):
        rank, active = event.rank, graph.active(event.rank, m)
        if event.what == "wait":
            gradient[rank] = event.value
        elif event.what == "mark":
            u[rank] = momentum * u[rank] + gradient[rank]
            x[rank] -= 0.1 * u[rank]
            total = total - 0.1 * u[rank]
            assert np.array_equal(event.value, x[rank])
        elif event.what == "receive":
            theirs[rank] = event.value
        elif event.what == "send":
            assert np.array_equal(event.value, x[rank])
        if event.what == "receive" and not active:
            assert np.array_equal(event.value, x[event.other])
        if event.what == ("receive" if active else "send"):
            x[rank] = (x[rank] + theirs[rank]) / 2
            half_done += -1 if active else 1
        if not half_done:
            np.testing.assert_allclose(x.sum(axis=0), total, rtol=1e-10, atol=1e-12)
            checked += event.what in ("receive", "mark")
    assert checked > STEPS


def averagings(log, rank):
    """Those that a worker took part in during each of its steps."""
    counts, heard = [], 0
    for event in log.at(rank, "begin", "receive", "mark"):
        heard = 0 if event.what == "begin" else heard + 1
        if event.what == "mark":
            counts.append(heard - 1)
    return counts


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_a_gradient_of_ad_psgd_is_stale_by_the_averagings_since_it_was_begun(world):
    run, log, marks = play("ad-psgd", **world)
    counted = [averagings(log, rank) for rank in range(world["workers"])]
    assert run.staleness == Counter(count for counts in counted for count in counts)
    assert sum(run.staleness.values()) >= world["workers"] * STEPS
    assert (run.staleness_unit, run.updates) == ("averagings", world["workers"] * STEPS)
    for rank, counts in enumerate(counted):
        if GRAPHS[world["graph"]].active(rank, world["workers"]):
            assert counts == [1] * len(counts)
        begun = log.values(rank, "begin")
        assert np.array_equal([begun[0], *marks[rank]][: len(begun)], begun)


@looped("name", ["d-psgd", "d2"])
def test_synchronous_gossip_is_never_stale(name):
    assert play(name, network=JITTER)[0].staleness == {}


def test_partners_are_drawn_evenly_from_the_other_colour():
    steps = 900
    _, log, _ = play("ad-psgd", "complete", workers=6, steps=steps, compute="1 s")
    for rank in (0, 2, 4):
        requests = Counter(event.other for event in log.at(rank, "send"))
        assert sorted(requests) == [1, 3, 5]
        error = np.sqrt(steps * 2 / 9)
        assert max(abs(times - steps / 3) for times in requests.values()) < 4 * error


@looped("m", range(1, 10))
@looped("kind", [Ring, Torus, Complete])
def test_ad_psgd_never_comes_to_a_deadlock(kind, m):
    """All steps are done, by whom they may be, though workers are uneven and messages straggle."""
    world = scenario(
        {"name": "ad-psgd", "graph": kind()}, workers=m, steps=STEPS, compute=EXPONENTIAL,
        network={"latency": {"dist": "lognormal", "mean": "1 s", "sd": "5 s"}},
        cluster={} if m == 1 else UNEVEN,
    )  # fmt: skip
    run, log = watch(world)
    marked = sum(len(log.at(rank, "mark")) for rank in range(m))
    assert STEPS * m <= marked < (STEPS + 1) * m  # more only at the very end
    assert run.steps == STEPS


# Time and bytes

WAY = 0.4 + 0.032  # latency, and 4000 bytes at 1 Mbit/s
FAR = {"latency": "400 ms", "bandwidth": "1 Mbit/s"}


def paths(name, graph, m, world):
    """When each worker ends each step: shape (workers, steps)."""
    durations = np.array([[next(time) for _ in range(STEPS)] for time in
                          workers.compute_times(world, SEED)])  # fmt: skip
    joined = [GRAPHS[graph].neighbours(rank, m) for rank in range(m)]
    ends, now = [], np.zeros(m)
    for Y in durations.T:
        done = now + Y
        if name == "d-psgd":  # sends as it begins
            heard = [max(now[list(others)]) + WAY for others in joined]
        elif name == "d2":  # sends when it has computed
            heard = [max(done[list(others)]) + WAY for others in joined]
        else:  # those who ask have the answer as soon as messages can have it
            asks = [GRAPHS[graph].active(rank, m) for rank in range(m)]
            heard = [start + 2 * WAY if ask else 0 for start, ask in zip(now, asks, strict=True)]
        now = np.maximum(done, heard)
        ends.append(now)
    return np.transpose(ends)


@graphs
@everyone
@pytest.mark.parametrize("compute", ["300 ms", EXPONENTIAL], ids=["short", "random"])
def test_who_waits_for_whom_by_hand(name, graph, compute):
    """D-PSGD hides a way behind computing, D^2 never does, AD-PSGD waits for no worker at all."""
    case = {"name": name, "graph": GRAPHS[graph]}
    world = scenario(case, workers=6, steps=STEPS, compute=compute, network=FAR, cluster=UNEVEN)
    _, log = watch(world, seed=SEED)
    expected = paths(name, graph, 6, world)
    for rank, ends in enumerate(expected):
        times = log.times(rank)[:STEPS]
        np.testing.assert_allclose(times, ends[: len(times)], rtol=1e-12)


@graphs
@pytest.mark.parametrize("name", ["d-psgd", "d2"])
def test_a_step_sends_one_model_to_each_neighbour(name, graph):
    """On a ring: two models per worker and step, however many workers there are."""
    short, long = (play(name, graph, workers=6, steps=steps)[0].links for steps in (20, 50))
    edges = {
        f"worker {rank}->worker {other}"
        for rank in range(6)
        for other in GRAPHS[graph].neighbours(rank, 6)
    }
    assert long.keys() == edges
    # Up to the last point, at which those who were there first have sent the next one.
    assert all(abs(size - short[name] - 30 * PAYLOAD) <= PAYLOAD for name, size in long.items())
    if graph == "ring":
        assert len(edges) == 2 * 6


@graphs
def test_a_step_of_ad_psgd_swaps_one_pair_of_models(graph):
    """Every step of those who ask moves two models, on any graph."""
    run, _, marks = play("ad-psgd", graph, workers=6, steps=50)
    links = run.links
    back = {name: links["->".join(reversed(name.split("->")))] for name in links}
    assert all(abs(links[name] - back[name]) <= PAYLOAD for name in links)  # one under way
    starts = sum(len(mark) for rank, mark in enumerate(marks) if GRAPHS[graph].active(rank, 6))
    assert 0 <= sum(links.values()) - 2 * starts * PAYLOAD <= 2 * 6 * PAYLOAD
