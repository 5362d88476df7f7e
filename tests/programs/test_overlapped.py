"""Programs that average late or step outside: identities, and replays of their own gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.objectives.build import build
from paceline.simulator.programs.pieces.transform import AdamW
from tests.helpers.cases import looped
from tests.helpers.worlds import (
    DIGITS,
    EXPONENTIAL,
    QUADRATIC,
    RING,
    TIME_ONLY,
    play,
    scenario,
    simulate,
)

STEPS = 40
DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [7, 20]}
SEED = 5

objectives = pytest.mark.parametrize("objective", [QUADRATIC, DIGITS], ids=lambda t: t["kind"])


def world(*algorithms, **tables):
    defaults = {"steps": STEPS, "objective": QUADRATIC, "compute": EXPONENTIAL, "workers": 3}
    return scenario(*algorithms, **(defaults | tables))


def marks(*algorithms, **tables):
    """What every worker marked, of each algorithm: arrays of shape (workers, steps, parameters)."""
    made = world(*algorithms, **tables)
    return [np.array(play(made, i, SEED).marks) for i in range(len(algorithms))]


def gradients(marked, **tables):
    """The gradients that workers computed on the way, from what they marked: the same shape.

    The gradient of a step is taken at the parameters marked after the step before.
    """
    made = world({"name": "psgd"}, workers=len(marked), **tables)
    goal = build(made, made.algorithm[0], SEED)
    actual = np.empty_like(marked)
    for rank, path in enumerate(marked):
        source = goal.source(rank)
        for n, x in enumerate([goal.start, *path[:-1]]):
            actual[rank, n] = source.gradient(x)
    return actual, goal.start


def same(first, second, tolerance=1e-12):
    np.testing.assert_allclose(first, second, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("engine", ["virtual", "batched"])
@pytest.mark.parametrize("beside", [1.0, 1.5])
def test_compressing_delays_the_backward_pass(engine, beside):
    """Both are work of the device: over links that take no time, a step is their sum."""
    codec = {"kind": "fp16", "compress": "360 ms", "decompress": "40 ms"}
    made = scenario(
        {"name": "ssgd-bucketed", "buckets": 10, "codec": codec},
        steps=20, workers=3, compute="300 ms", objective={"kind": "none"},
        network={"collective": "given", "duration": "0 s"},
    )  # fmt: skip
    cluster = made.cluster.model_copy(update={"beside_collectives": beside})
    (run,) = run_seeds(
        made.model_copy(update={"cluster": cluster}), made.algorithm[0], [1], engine=engine
    )
    assert run.duration / 20 == pytest.approx(0.300 + 0.360 + 0.040)


# DTS


@objectives
@pytest.mark.parametrize("period", [1, 2, 7])
def test_dts_one_period_late_is_cocod_sgd(period, objective):
    cocod, dts = marks(
        {"name": "cocod-sgd", "tau": period, "lr": DECAY},
        {"name": "dts", "delay": period, "period": period, "lr": DECAY},
        objective=objective,
    )
    same(dts, cocod)


@objectives
@pytest.mark.parametrize("inner", ["adamw", {"kind": "nesterov", "mu": 0.9}])
@pytest.mark.parametrize("period", [1, 4])
def test_dts_swaps_the_steps_of_any_transform(period, inner, objective):
    """At once it averages models whose transforms go on; a period late it is CoCoD-SGD."""
    common = {"lr": 0.02, "tau": period}
    at_once, averaged, late, cocod = marks(
        {"name": "dts", "delay": 0, "period": period, "inner": inner, "lr": 0.02},
        {"name": "diloco", "inner": inner, "outer_lr": 1.0, "outer_momentum": 0.0} | common,
        {"name": "dts", "delay": period, "period": period, "inner": inner, "lr": 0.02},
        {"name": "cocod-sgd", "momentum": inner} | common,
        objective=objective,
    )
    same(at_once, averaged, 1e-9)
    same(late, cocod, 1e-9)
    assert not np.allclose(at_once, late, rtol=1e-3)


def momentum_sgd(start, steps, lr, mu):
    """The last parameters of momentum SGD that is fed given gradients."""
    x, u = start, 0.0
    for n, g in enumerate(steps):
        u = mu * u + g
        x = x - lr(n + 1) * u
    return x


@settings(max_examples=60, deadline=None)
@given(
    delay=st.integers(0, 20),
    period=st.integers(1, 8),
    mu=st.one_of(st.just(0.0), st.floats(0.0, 0.99)),
    decaying=st.booleans(),
)
def test_dts_is_its_replay_with_averaged_gradients(delay, period, mu, decaying):
    """At every step, to 1e-10: what a mean has made up for counts as the mean, the rest as own."""
    rate = {**DECAY, "start": 0.02} if decaying else 0.02
    algorithm = {"name": "dts", "delay": delay, "period": period, "momentum": mu, "lr": rate}
    (mark,) = marks(algorithm)
    steps, start = gradients(mark)
    lr = world(algorithm).algorithm[0].parameters["lr"]
    mean = steps.mean(axis=0)
    for n in range(STEPS):
        tags = [tag for tag in range(n - delay + 1) if (tag + 1) % period == 0]
        following = max(tags, default=-1) + 1
        for rank in range(3):
            mixed = np.concatenate([mean[:following], steps[rank, following : n + 1]])
            np.testing.assert_allclose(
                mark[rank, n], momentum_sgd(start, mixed, lr, mu), rtol=1e-10, atol=1e-10
            )


@looped("period", [1, 3])
@looped("compensation", ["displacement", "lecture", "none"])
def test_the_other_compensations_by_hand(compensation, period):
    delay, mu = 4, 0.8
    algorithm = {
        "name": "dts", "delay": delay, "period": period, "momentum": mu, "lr": DECAY,
        "compensation": compensation,
    }  # fmt: skip
    rate = world(algorithm).algorithm[0].parameters["lr"]
    (mark,) = marks(algorithm)
    g, start = gradients(mark)
    x, u = np.tile(start, (3, 1)), np.zeros((3, start.size))
    A, total, sent = 0 * u, 0 * u, {}
    for n in range(STEPS):
        lr = rate(n + 1)
        if compensation != "none":
            u = mu * u + g[:, n]
            x = x - lr * u
        A = mu * A + g[:, n]
        total = total + (lr * A if compensation == "displacement" else g[:, n])
        if (n + 1) % period == 0:
            sent[n], A, total = total, 0 * A, 0 * total
        if n - delay in sent:
            late = sent[n - delay]
            if compensation == "displacement":
                x = x - (late.mean(axis=0) - late)
            elif compensation == "lecture":  # the gradient, with what was missed added to it
                x, u = x - lr * (late.mean(axis=0) - late), u + (late.mean(axis=0) - late)
            else:
                u = mu * u + late.mean(axis=0)
                x = x - lr * u
        same(mark[:, n], x)


def test_only_what_is_needed_travels():
    """Momentum that is made up for exactly takes a second vector, of a period of several steps."""
    made = world(
        {"name": "dts", "delay": 2}, {"name": "dts", "delay": 2, "momentum": 0.9},
        {"name": "dts", "delay": 2, "momentum": 0.9, "compensation": "displacement"},
        {"name": "dts", "delay": 2, "period": 4},
        {"name": "dts", "delay": 2, "period": 4, "momentum": 0.9}, network=RING, steps=400,
    )  # fmt: skip
    sent = [sum(simulate(made, index).links.values()) for index in range(5)]
    one = 400 * 2 * (3 - 1) * 4000  # around a ring of three, 4 kB
    assert sent == pytest.approx([one, one, one, one / 4, one / 2], rel=0.01)


@looped(("delay", "period"), [(0, 1), (3, 1), (5, 2), (2, 4)])
def test_staleness_is_the_delay(delay, period):
    run = simulate(world({"name": "dts", "delay": delay, "period": period}))
    assert set(run.staleness) == {delay}
    assert run.staleness_unit == "steps"
    assert sum(run.staleness.values()) == 3 * len(range(period - 1, STEPS - delay, period))


# Overlap-Local-SGD and CoCoD-SGD


def test_overlap_local_sgd_by_hand():
    """In the published code's units: pull back, momentum in units of the gradient, late mean."""
    tau, lr, a, b = 4, 0.1, 0.6, 0.7
    (mark,) = marks({"name": "overlap-local-sgd", "tau": tau, "alpha": a, "beta": b, "lr": lr})
    g, start = gradients(mark)
    x, z, v, sent = np.tile(start, (3, 1)), start, np.zeros((3, start.size)), None
    for n in range(STEPS):
        x = x - lr * g[:, n]
        if (n + 1) % tau == 0:
            if sent is not None:
                z = sent.mean(axis=0)
            x = (1 - a) * x + a * z
            v = b * v + (z - x) / lr
            sent = z - lr * v
        same(mark[:, n], x)


# HPSGD


SLOW = RING | {"bandwidth": "10 kbit/s"}  # a mean takes some five steps


def hpsgd(**parameters):
    made = world({"name": "hpsgd", "decision": "shared", **parameters}, network=SLOW, workers=4)
    recording = play(made, 0, SEED)
    return recording, np.array(recording.marks)


@looped("epoch", [1, 2, 5, 8, 20])
@looped("lr", [0.1, DECAY])
@looped("windows", [{}, {"shortest_window": 1}])
def test_hpsgd_applies_each_gradient_exactly_once(epoch, lr, windows):
    """After an epoch the model is the start less every gradient so far, averaged."""
    made = world({"name": "hpsgd", "lr": lr}).algorithm[0]
    rates = np.array([made.parameters["lr"](k) for k in range(1, STEPS + 1)])
    _, actual = hpsgd(lr=lr, epoch=epoch, **windows)
    g, start = gradients(actual)
    applied = start - np.cumsum(rates[:, None] * g.mean(axis=0), axis=0)
    for last in range(epoch - 1, STEPS, epoch):
        same(actual[:, last], np.broadcast_to(applied[last], actual[:, last].shape))


def replay(recording, started, lr, epoch, flush):
    """The parameters by the published loop, told from the recording when a mean was ready.

    W is the shared model, S what has been computed since the last start, M what is under way.
    """
    g, start = gradients(started)
    answers = iter([says for name, *says in recording.effects[0] if name == "finished"])
    x = np.tile(start, (4, 1))
    W, S, M, fresh = x, 0 * x, None, True
    for n in range(STEPS):
        S = S + g[:, n]
        if epoch and (n + 1) % epoch == 0:
            if fresh:
                W = x
            if flush == "exact":
                W = W - lr * (S + (0 if M is None else M)).mean(axis=0)
                M = None
            else:
                M = S
                W = W - lr * M.mean(axis=0)
            x, S, fresh = W, 0 * S, True
        elif fresh:
            W, fresh = x, False
            x = x - lr * g[:, n]
        elif M is None:
            x, M, S = x - lr * g[:, n], S, 0 * S
        elif next(answers)[1]:
            x, fresh = W - lr * M.mean(axis=0), True
            M, S = S, 0 * S
        else:
            x = x - lr * g[:, n]
        yield n, x


@looped(("epoch", "flush"), [(0, "exact"), (7, "exact"), (7, "paper"), (13, "paper")])
def test_hpsgd_is_the_published_loop(epoch, flush):
    recording, actual = hpsgd(**({"epoch": epoch, "epoch_flush": flush} if epoch else {}))
    for n, x in replay(recording, actual, 0.1, epoch, flush):
        same(actual[:, n], np.broadcast_to(x, actual[:, n].shape))


@looped(("kilobits", "t_sync"), [(1000, 1), (20, 3), (10, 5), (5, 10)])
@looped(("windows", "least"), [({}, 2), ({"shortest_window": 1}, 1), ({"decision": "shared"}, 2)])
def test_hpsgd_synchronises_as_often_as_its_means_allow(kilobits, t_sync, windows, least):
    """Every max(2, ceil(t_sync / t_train)) steps.

    With Algorithm 2's windows a step may be one: the first mean has the first gradient alone, and
    a mean that is there in a step is seen then.
    """
    network = {"collective": "ring", "latency": "0 s", "bandwidth": f"{kilobits} kbit/s"}
    made = world({"name": "hpsgd", **windows}, workers=4, compute="1 s", network=network)
    assert t_sync == int(np.ceil(2 * (4 - 1) / 4 * 4000 * 8 / (kilobits * 1e3)))
    effects = play(made).effects[0]
    steps = np.cumsum([name == "gradient" for name, *_ in effects])
    starts = [step for step, (name, *_) in zip(steps, effects, strict=True) if name == "start"]
    assert least == 2 or starts[0] == 1
    assert set(np.diff(starts)[2 if least == 2 else 0 :]) == {max(least, t_sync)}


def test_each_worker_goes_on_by_its_own_answers():
    """Windows pair up by their numbers, whatever they hold; a model is the start less their means.

    By algorithm 2, with the published code's windows.
    """
    made = world({"name": "hpsgd"}, network=SLOW, workers=4)
    recording, goal = play(made, 0, SEED), build(made, made.algorithm[0], SEED)
    sent, models = [[] for _ in range(4)], [[] for _ in range(4)]
    for rank, (marks, effects) in enumerate(zip(recording.marks, recording.effects, strict=True)):
        source, x, pending, fresh = goal.source(rank), goal.start, 0.0, True
        answers = iter([says[1] for name, *says in effects if name == "arrived"])
        for after in marks:
            step = 0.1 * source.gradient(x)
            x, pending = x - step, pending + step
            if fresh:
                fresh = False
            elif not sent[rank] or next(answers):
                if sent[rank]:
                    x, fresh = after, True
                    models[rank].append(x)
                sent[rank].append(pending)
                pending = 0.0
            same(after, x)
    assert len({len(marks) for marks in recording.marks}) > 1
    means = np.cumsum([sum(windows) / 4 for windows in zip(*sent, strict=False)], axis=0)
    for shown in models:
        same(np.array(shown), goal.start - means[: len(shown)])


def test_without_a_barrier_an_iteration_takes_a_gradients_time():
    """Of 16 workers with exponential gradients; a mean takes 0.119 of one."""
    names = {"hpsgd": {}, "barrier": {"name": "hpsgd", "decision": "shared"}, "ssgd": {}}
    names |= {"local-sgd": {"tau": 8}}
    made = world(
        *({"name": label, "label": label} | table for label, table in names.items()), workers=16,
        steps=4000, network={"collective": "given", "duration": "119 ms"}, objective=TIME_ONLY,
    )  # fmt: skip
    times = [simulate(made, index).duration / 4000 for index in range(4)]
    assert times == pytest.approx([1.001, 2.585, 3.512, 1.738], rel=0.005)


def test_workers_of_different_speeds_stay_in_step():
    """They wait for the slowest at every step at which they ask, and never fall behind."""
    cluster = {"group": [{"name": "slow", "workers": 2, "compute": "1700 ms"}]}
    made = world(
        {"name": "hpsgd", "decision": "shared"}, {"name": "hpsgd"}, workers=5, compute="1 s",
        network=SLOW, cluster=cluster, steps=400,
    )  # fmt: skip
    recording = play(made)
    told = [[says[1] for name, *says in item if name == "finished"] for item in recording.effects]
    assert all(answers == told[0] for answers in told)
    assert {True, False} == set(told[0])
    run = simulate(made)
    assert max(run.staleness) <= 5
    assert run.duration == pytest.approx(400 * 1.7, rel=0.01)
    together = (3 + 2 / 1.7) / 5  # iterations a second, without a barrier
    assert simulate(made, 1).duration == pytest.approx(400 / together, rel=0.01)


def test_a_worker_without_compute_time_ends_its_run():
    """It makes all pooled steps at time 0, and then asks no more."""
    cluster = {"allow_zero": True, "group": [{"name": "at once", "workers": 1, "compute": "0 s"}]}
    made = world({"name": "hpsgd"}, cluster=cluster, network=SLOW, objective=TIME_ONLY)
    assert simulate(made).duration == 0


# Outer steps: DiLoCo and its kin, slow momentum, elastic averaging


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
    (mark,) = marks({"name": "diloco", "tau": tau, "lr": lr})
    g, theta = gradients(mark)
    x, u = np.tile(theta, (3, 1)), np.zeros(theta.size)
    inner = AdamW().init(x)
    for n in range(STEPS):
        x, inner = adamw(x, inner, g[:, n], lr)
        if (n + 1) % tau == 0:
            outer = (theta - x).mean(axis=0)
            u = 0.9 * u + outer
            theta = theta - 0.7 * (outer + 0.9 * u)
            x = np.tile(theta, (3, 1))
        same(mark[:, n], x)


@looped("overlap", [0, 2, 5])
@looped("fragments", [1, 2, 3])
def test_streaming_diloco_by_hand(fragments, overlap):
    """Each fragment in its turn: sent, `overlap` steps later stepped, and mixed with one's own."""
    tau, lr, alpha = 6, 0.05, 0.3
    (mark,) = marks(
        {
            "name": "streaming-diloco", "tau": tau, "fragments": fragments, "overlap": overlap,
            "alpha": alpha, "inner": 0, "lr": lr,
        }
    )  # fmt: skip
    g, start = gradients(mark)
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
        same(mark[:, n], x)


@looped("name", ["delayed-diloco", "eager-diloco"])
def test_late_outer_steps_by_hand(name):
    tau, lr, m = 4, 0.05, 3
    (mark,) = marks({"name": name, "tau": tau, "inner": 0.5, "lr": lr})
    g, start = gradients(mark)
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
        same(mark[:, n], x)


def test_late_diloco_does_not_wait_for_means_that_take_a_round():
    """A mean of 9 s is free where a round takes 10 s, and costs diloco 9 s a round."""
    network = {"collective": "given", "duration": "9 s"}
    actual = [
        simulate(world({"name": name, "tau": 10}, compute="1 s", network=network)).duration
        for name in ("diloco", "delayed-diloco", "eager-diloco", "cocod-sgd", "overlap-local-sgd")
    ]
    assert actual == pytest.approx([4 * (10 + 9), *4 * [40]])


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
    (mark,) = marks({"name": "bmuf", "tau": tau, "momentum": b, "step": a, "lr": lr})
    g, x0 = gradients(mark)
    x, u = np.tile(x0, (3, 1)), np.zeros(x0.size)
    for n in range(STEPS):
        x = x - lr * g[:, n]
        if (n + 1) % tau == 0:
            u = b * u + (x0 - x.mean(axis=0)) / lr
            x0 = x0 - a * lr * u
            x = np.tile(x0, (3, 1))
        same(mark[:, n], x)


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
    (mark,) = marks({"name": "easgd", "tau": tau, "lr": lr, **more})
    g, z = gradients(mark)
    a = 0.9 / m if alpha is None else alpha
    x = np.tile(z, (m, 1))
    for n in range(STEPS):
        x = x - lr * g[:, n]
        if (n + 1) % tau == 0:
            x, z = (1 - a) * x + a * z, (1 - m * a) * z + a * x.sum(axis=0)
        same(mark[:, n], x)
