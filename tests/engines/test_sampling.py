"""Sampling of clients, the federated programs, and periods of each worker's own."""

from contextvars import copy_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.dispatch import run_seeds, with_tuned_rate
from paceline.simulator.engines.observer import TELL
from paceline.simulator.engines.virtual import simulation
from paceline.simulator.engines.virtual.recovery import Participation
from paceline.simulator.objectives.build import build
from paceline.simulator.programs.codecs.message_codec import MessageChannel
from paceline.simulator.reports import terminal
from paceline.simulator.results import statistics
from paceline.simulator.scenario.scenario import World
from paceline.simulator.studies import executors
from paceline.simulator.studies import simulate as study
from paceline.simulator.studies.sweep import sweep
from tests.helpers.cases import looped
from tests.helpers.worlds import (
    DIGITS,
    EXPONENTIAL,
    FREE,
    QUADRATIC,
    RING,
    TIME_ONLY,
    play,
    scenario,
)

NIGHT = {"daily": "00:00-06:10"}
PLAIN = {"tau": 3, "momentum": 0.9}
SERVED = RING | {"collective": "server"}  # a payload takes 32 ms, and a message 20 ms more
UNEVEN = DIGITS | {"partition": {"dirichlet": 0.3}}


def run(algorithm, engine="virtual", seed=1, **tables):
    world = scenario(algorithm, **tables)
    return run_seeds(world, world.algorithm[0], [seed], engine=engine)[0]


def last(algorithm, **tables):
    marks = play(scenario(algorithm, steps=12, **tables), seed=1).marks
    return marks[-1][-1]


@looped("objective", [QUADRATIC, DIGITS])
def test_fedavg_with_all_clients_is_local_sgd(objective):
    tables = {"objective": objective, "compute": EXPONENTIAL, "network": RING}
    local, fed = (run({"name": name, **PLAIN}, **tables) for name in ("local-sgd", "fedavg"))
    assert np.array_equal([*local.curve.values()], [*fed.curve.values()], equal_nan=True)


@looped("objective", [QUADRATIC, UNEVEN])
@looped("compute", ["1 s", EXPONENTIAL])
def test_fedbuff_that_waits_for_all_is_fedavg(objective, compute):
    tables = {"objective": objective, "workers": 4, "compute": compute}
    outer = {"outer": "fedadam", "outer_lr": 0.1, "mu": 0.1}
    ours = last({"name": "fedbuff", "buffer": 4, **PLAIN, **outer}, **tables)
    assert np.array_equal(ours, last({"name": "fedavg", **PLAIN, **outer}, **tables))


def test_a_proximal_term_of_nothing_changes_nothing():
    none, zero, some = (
        last({"name": "fedavg", **PLAIN, **mu}, objective=DIGITS)
        for mu in ({}, {"mu": 0.0}, {"mu": 0.5})
    )
    assert np.array_equal(none, zero)
    assert not np.array_equal(none, some)


PHONES = {"samples": 200, "group": [{"name": "phones", "workers": 3, "samples": 20}]}


@looped(("objective", "cluster"), [(UNEVEN, {}), (UNEVEN, PHONES), (DIGITS, PHONES)])
def test_uneven_shards_weigh_by_their_samples(objective, cluster):
    tables = {"objective": objective, "workers": 4, "cluster": cluster}
    world = scenario({"name": "fedavg", "tau": 1}, steps=1, **tables)
    goal = build(world, world.algorithm[0], 1)
    sizes = np.array([len(share) for share in goal.shares])
    assert [*sizes] == [20, 20, 20, 200] if cluster else sizes.min() < sizes.max()
    gradients = [goal.source(rank).gradient(goal.start) for rank in range(4)]
    expected = goal.start - 0.1 * (sizes @ np.array(gradients)) / sizes.sum()
    assert np.allclose(play(world, seed=1).marks[0][-1], expected, rtol=1e-12)
    fed = {"name": "fedavg", "tau": 3}
    one, other = (run(fed, engine, **tables) for engine in ("virtual", "batched"))
    assert (one.curve["loss"], other.engine) == (other.curve["loss"], "batched")


# Sampling


@looped(("wanted", "selected"), [(1, 4), (3, 9), (5, 5)])
def test_a_round_lasts_as_long_as_the_last_wanted_of_those_selected(wanted, selected):
    """The k-th smallest of n exponential times: the sum of 1 / (n - i) over i < k."""
    sampling, steps = {"clients": wanted, "over": selected / wanted}, 1500
    actual = run(
        {"name": "ssgd"}, workers=20, compute=EXPONENTIAL, network=FREE, steps=steps,
        cluster={"sampling": sampling},
    )  # fmt: skip
    expected = sum(1 / (selected - index) for index in range(wanted))
    deviation = sum(1 / (selected - index) ** 2 for index in range(wanted)) ** 0.5
    assert actual.duration / steps == pytest.approx(expected, abs=4 * deviation / steps**0.5)
    assert (actual.rounds, actual.round_seconds) == (steps, pytest.approx(actual.duration / steps))


OWN = {
    "ssgd": {}, "fedbuff": {"tau": 3, "buffer": 2, "max_staleness": 1},
    "post-local-sgd": {"tau": 7, "switch_step": 2},
}  # fmt: skip
TROUBLED = {
    "all are there": {},
    "some drop out": {"drop": 0.3},
    "some crash": {"failures": {"between": "30 s", "repair": "9 s"}},
    "some are away": {
        "membership": {
            "present": {"dist": "exponential", "mean": "90 s"},
            "absent": {"dist": "exponential", "mean": "30 s"},
        }
    },
}


@pytest.mark.parametrize("network", [RING, SERVED], ids=["ring", "server"])
@pytest.mark.parametrize("where", TROUBLED)
@pytest.mark.parametrize("name", ["fedavg", "diloco"])
def test_clients_that_are_parked_change_no_number(where, name, network, monkeypatch):
    """Which `leaping` allows in runs without vectors; with them no client is parked."""
    sampling = {"clients": 6, "over": 1.5, "deadline": "12 s", "by": "availability"}
    tables = {
        "cluster": {"sampling": sampling, **TROUBLED[where]}, "workers": 30, "network": network,
        "compute": EXPONENTIAL, "steps": None, "recovery": {"policy": "shrink"},
        "run": {"duration": "300 s", "evaluate_every": 5},
    }  # fmt: skip
    algorithm = {"name": name, "tau": 5}
    parked = run(algorithm, **tables)
    monkeypatch.setattr(simulation, "leaping", lambda *_: (None, False, False))
    other = run(algorithm, **tables)
    assert parked.curve["step"] == other.curve["step"]
    assert parked.curve["time"] == other.curve["time"]
    assert (parked.links, parked.curve["bytes"]) == (other.links, other.curve["bytes"])
    for kind, seconds in parked.workers.items():
        assert seconds == pytest.approx(other.workers[kind], abs=1e-6), kind
    spent = np.sum([*parked.workers.values()], axis=0)
    assert spent == pytest.approx(np.full(30, 300.0), rel=1e-9)


CURVE = {"kind": "learning-curve", "curve": {"law": "chinchilla", "parameters": 1e7}, "tokens": 9}
PRESENT = {"daily": "00:00-00:02", **TROUBLED["some are away"]["membership"]}
SAMPLED = ["ssgd", "local-sgd", "post-local-sgd", "bmuf", "diloco", "fedavg", "fedbuff"]


@looped(
    ("name", "where"),
    [
        *((name, TROUBLED["some drop out"]) for name in SAMPLED),
        *((name, {"membership": PRESENT, "drop": 0.1}) for name in ("fedavg", "fedbuff")),
    ],
)
def test_a_run_of_times_alone_takes_the_seconds_of_one_with_values(name, where):
    """A server whose card passes a model in 0.3 s serves a round's clients as they are drawn."""
    parameters = OWN.get(name, {"tau": 7})
    cluster = {"sampling": {"clients": 6, "over": 1.5, "by": "availability"}, **where}
    actual = [
        run(
            {"name": name, **parameters}, workers=20, compute=EXPONENTIAL, network=SERVED,
            steps=None, objective=objective, cluster=cluster, run={"duration": "150 s"},
            server={"bandwidth": "0.1 Mbit/s"}, recovery={"policy": "shrink"},
        )
        for objective in (TIME_ONLY, QUADRATIC, CURVE)
    ]  # fmt: skip
    times, *others = [(item.rounds, item.round_seconds, item.reports) for item in actual]
    assert times[0] > 5
    assert others == [times, times]
    for counts in actual[1:]:
        assert counts.seconds == pytest.approx(actual[0].seconds, abs=1e-9)


def test_a_server_serves_clients_in_the_order_of_their_draw():
    """Two of three, each of which it serves for 1 s: 1 + 1 s of the second round, and 2 + 1 s."""
    orders = [generator(seed, Purpose.SAMPLING, 1).permutation(3)[:2].tolist() for seed in range(6)]
    assert any(order != sorted(order) for order in orders)
    for seed, order in enumerate(orders):
        first, both = (
            run(
                {"name": "ssgd"}, workers=3, steps=steps, cluster={"sampling": {"clients": 2}},
                network=FREE | {"collective": "server"}, server={"bandwidth": "32 kbit/s"},
                objective=QUADRATIC, seed=seed,
            ).workers["communicate"]
            for steps in (1, 2)
        )  # fmt: skip
        assert [both[rank] - first[rank] for rank in order] == pytest.approx([2, 3]), order


@looped(("back", "computed"), [("4 s", [1, 2, 2]), ("5.9 s", [0, 2, 2])])
def test_who_comes_back_into_a_round_is_served_after_its_others(back, computed):
    """The card passes a model in 1 s, up to 8 s in the round from 5 to 10 s: after 9 s the client
    that is back at 6.4 s is too late. Back at 4.5 s, its report of no seconds is, after 5 s.
    """
    crash = [{"worker": 0, "at": "500 ms", "lasts": back}]
    actual = run(
        {"name": "ssgd"}, workers=3, steps=2, compute="1 s", objective=QUADRATIC,
        network=FREE | {"collective": "server"}, server={"bandwidth": "32 kbit/s"},
        cluster={"sampling": {"clients": 3, "deadline": "5 s"}, "crash": crash}, seed=0,
    )  # fmt: skip
    assert actual.curve["time"][-1] == 10
    assert actual.workers["compute"] == pytest.approx(computed)


@pytest.mark.parametrize("where", TROUBLED)
@pytest.mark.parametrize("by", ["availability", "uniform"])
def test_strides_change_no_number(where, by, monkeypatch):
    """Which `leaping` allows under a server, in runs without vectors: to the last bit."""
    cluster = {"sampling": {"clients": 6, "by": by}, **TROUBLED[where]}
    if "membership" in cluster:
        cluster["membership"] = cluster["membership"] | {"notice": "2 s"}
    tables = {
        "cluster": cluster, "workers": 20, "network": RING, "compute": EXPONENTIAL, "steps": None,
        "run": {"duration": "300 s", "evaluate_every": 5},
    }  # fmt: skip
    algorithm = {"name": "fedbuff", "tau": 7, "buffer": 3}
    striding = run(algorithm, **tables)
    monkeypatch.setattr(simulation, "leaping", lambda *_: (None, False, False))
    other = run(algorithm, **tables)
    for name in ("curve", "links", "workers"):
        np.testing.assert_equal(getattr(striding, name), getattr(other, name))


@looped("objective", [TIME_ONLY, QUADRATIC])
def test_clients_that_are_away_are_told_apart_from_those_not_selected(objective):
    """Worker 3 is away from 3 to 5 and 8 to 10 s; two of those who are there take each step."""
    away = {"name": "away", "workers": 1, "membership": {"present": "3 s", "absent": "2 s"}}
    sampling = {"clients": 2, "by": "availability"}
    cluster = {"sampling": sampling, "group": [{"name": "there", "workers": 3}, away]}
    actual = run({"name": "ssgd"}, cluster=cluster, network=FREE, steps=10, objective=objective)
    assert actual.workers["absent"] == [0, 0, 0, 4]
    assert sum(actual.workers["unselected"]) == 6 * 2 + 4 * 1
    assert sum(actual.workers["compute"] + actual.workers["lost"]) == 20
    assert (actual.rounds, actual.round_seconds) == (10, 1)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["ssgd", "fedavg", "diloco", "fedbuff"]),
    where=st.sampled_from([*TROUBLED]),
    sampling=st.fixed_dictionaries(
        {"clients": st.integers(1, 6), "over": st.sampled_from([1, 1.5, 3]),
         "by": st.sampled_from(["uniform", "availability"])},
        optional={"deadline": st.sampled_from(["1 s", "8 s"])},
    ),
    objective=st.sampled_from([TIME_ONLY, QUADRATIC]),
    network=st.sampled_from([RING, SERVED, SERVED | {"bandwidth": "10 kbit/s"}]),
    policy=st.sampled_from(["shrink", "wait"]),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_every_second_of_every_client_is_in_one_kind(
    name, where, sampling, objective, network, policy, seed
):
    actual = run(
        {"name": name} | OWN.get(name, {"tau": 3}), workers=8, objective=objective,
        cluster={"sampling": sampling, **TROUBLED[where]}, network=network, compute=EXPONENTIAL,
        steps=None, recovery={"policy": policy}, run={"duration": "150 s"}, seed=seed,
    )  # fmt: skip
    spent = np.array([*actual.workers.values()])
    assert (spent > -1e-9).all(), actual.workers
    assert spent.sum(axis=0) == pytest.approx(np.full(8, 150.0))
    assert ("absent" in actual.seconds) == (where == "some are away")
    assert actual.rounds * actual.round_seconds <= 150 * (1 + 1e-9)


def test_the_rounds_of_fedbuff_are_the_times_that_its_buffer_was_filled():
    actual = run({"name": "fedbuff", "tau": 2, "buffer": 2}, workers=4, network=FREE, steps=12)
    assert (actual.rounds, actual.round_seconds) == (12, 1)
    world = scenario({"name": "fedavg", "tau": 4}, steps=12, cluster={"sampling": {"clients": 2}})
    (row,) = study.simulate(world).algorithms
    assert (row["rounds"], row["seconds_per_round"]["mean"]) == (3, 4)
    assert row["scalability"] == 0.5  # of the four, two compute


@looped("buffer", [1, 5, 30])
def test_fedbuff_keeps_as_many_clients_at_work_as_are_sampled(buffer):
    """Ten of forty train at any time: ten gradients a second, which is one step of ten."""
    steps = 2000
    actual = run(
        {"name": "fedbuff", "tau": 1, "buffer": buffer}, workers=40, compute=EXPONENTIAL,
        network=FREE | {"bandwidth": "1 Tbit/s"}, steps=steps,
        cluster={"sampling": {"clients": 10}},
    )  # fmt: skip
    assert not any("sampling" in note for note in actual.notes)
    assert sum(actual.workers["compute"]) == pytest.approx(10 * actual.duration)
    assert actual.duration == pytest.approx(steps, rel=4 / (steps * 10) ** 0.5)
    spent = np.array(actual.workers["compute"]) / actual.duration
    assert spent == pytest.approx(np.full(40, 0.25), abs=0.06)  # all have their turns


def test_a_step_is_of_as_many_gradients_as_clients_train():
    """With equal clients, so that fedbuff is no faster than rounds are."""
    world = {"cluster": {"sampling": {"clients": 4}}, "workers": 20, "steps": 40}
    cases = [{"name": "fedavg", "tau": 5}, {"name": "fedbuff", "tau": 5, "buffer": 4}]
    actual = [run(case, network=FREE, **world) for case in cases]
    assert [statistics.seconds_per_step(item) for item in actual] == pytest.approx([1, 1])
    marks = play(scenario(cases[1], objective=QUADRATIC, **world), seed=1).marks
    assert len(marks[-1]) == 40 / 5
    picked = study.simulate(scenario(*cases, {"name": "asgd"}, network=FREE, **world), seeds=1).pick
    assert picked["label"] == "asgd"  # all twenty compute
    assert picked["value"] == pytest.approx(1 / 20)
    assert "per gradient that reaches the model" in picked["sentence"]


def test_the_pick_counts_gradients_that_reach_the_model():
    """Clients that are cut off, or whose work is too stale, add none: seconds per step mislead."""
    slow = {"name": "slow", "workers": 3, "compute": "9 s"}
    group = [{"name": "fast", "workers": 1}, slow]

    def found(*algorithms, **sampling):
        cluster = {"sampling": {"clients": 4} | sampling, "group": group}
        world = scenario(
            *algorithms, cluster=cluster, network=FREE, steps=None, run={"duration": "270 s"}
        )
        return study.simulate(world)

    patient, hasty, late = (
        found({"name": "fedavg", "tau": 3}, **sampling).algorithms[0]
        for sampling in ({}, {"deadline": "5 s"}, {"deadline": "2 s"})
    )
    assert [row["reports_per_round"] for row in (patient, hasty, late)] == [4, 1, 1]
    rates = [row["gradients_per_hour"]["mean"] for row in (patient, hasty, late)]
    assert rates == pytest.approx([3600 * 12 / 27, 3600 * 3 / 5, 3600 * 3 / 3])
    assert hasty["seconds_per_step"]["mean"] < patient["seconds_per_step"]["mean"] / 5
    shares = [row["useful_share"]["mean"] for row in (patient, hasty, late)]
    assert shares == pytest.approx([1, 3 / (3 + 15), 3 / (3 + 9)])
    fresh = {"name": "fedbuff", "tau": 3, "buffer": 1}
    both = found(fresh, fresh | {"max_staleness": 0, "label": "fresh"})
    every, some = both.algorithms
    assert some["gradients_per_hour"]["mean"] < every["gradients_per_hour"]["mean"]
    assert some["useful_share"]["mean"] < every["useful_share"]["mean"] == 1
    assert both.pick["label"] == every["label"]


def test_clients_at_work_are_counted():
    """Two of the four in a round work for nothing; fedbuff keeps as many as it is told."""
    world = {"workers": 8, "network": FREE, "steps": 40}
    rounds, buffered = {"name": "fedavg", "tau": 5}, {"name": "fedbuff", "tau": 5, "buffer": 2}
    for over, counts in ((2, [4, 2]), (1, [2, 2])):
        cluster = {"sampling": {"clients": 2, "over": over}}
        result = study.simulate(scenario(rounds, buffered, cluster=cluster, **world))
        at_work = [row["clients_at_work"]["mean"] for row in result.algorithms]
        assert at_work == pytest.approx(counts)


def test_a_round_takes_the_reports_of_those_who_can():
    """Of four a second a step and four nine times as slow, rounds of 3 steps take whom they can."""
    size = {"parameters": 1000}  # 4 kB

    def row(name="fedavg", slow=(), **sampling):
        group = {"name": "slow", "workers": 4, "compute": "9 s", **dict(slow)}
        cluster = {
            "sampling": {"clients": 8} | sampling,
            "group": [{"name": "fast", "workers": 4}, group],
        }
        algorithm = {"name": name, "tau": 3} | ({"buffer": 1} if name == "fedbuff" else {})
        run = {"duration": "300 s"}
        world = scenario(
            algorithm, cluster=cluster, network=SERVED, workers=8, model=size, steps=None, run=run
        )
        result = study.simulate(world)
        times, computed = np.repeat([1.0, 9.0], 4), np.array(result.runs[0].workers["compute"])
        made = (computed / times).reshape(2, 4).sum(axis=1)
        return result.algorithms[0] | {"shares": made / made.sum()}

    waits, hurries, buffers = row(), row(deadline="6 s"), row("fedbuff")
    assert "50 % of the time is wasted computing" in hurries["bottleneck"]
    shares = [one["shares"] for one in (waits, hurries, buffers)]
    assert np.array(shares[:2]) == pytest.approx(np.array([[0.5, 0.5], [1, 0]]), abs=0.02)
    assert shares[2] == pytest.approx([0.9, 0.1], abs=0.02)


def test_fedbuff_with_places_for_all_is_fedbuff():
    algorithm = {"name": "fedbuff", "tau": 2, "buffer": 3}
    tables = {"objective": QUADRATIC, "compute": EXPONENTIAL, "workers": 5, "network": RING}
    sampled = run(algorithm, cluster={"sampling": {"share": 1.0}}, **tables)
    assert sampled.curve == run(algorithm, **tables).curve


@looped("by", ["uniform", "availability"])
def test_a_client_of_fedbuff_that_leaves_frees_its_place(by):
    """Two places, seven of thirty clients there on average; who leaves is away for 100 s."""
    membership = {"present": {"dist": "exponential", "mean": "30 s"}, "absent": "100 s"}
    actual = run(
        {"name": "fedbuff", "tau": 4, "buffer": 1}, workers=30, network=FREE, steps=None,
        run={"duration": "3000 s"},
        cluster={
            "sampling": {"clients": 2, "by": by},
            "membership": membership | {"start": "stationary"},
        },
    )  # fmt: skip
    busy = sum(actual.workers["compute"]) / actual.duration
    assert (busy > 1.2) == (by == "availability"), busy
    assert np.sum([*actual.workers.values()], axis=0) == pytest.approx(np.full(30, 3000.0))


# Rounds of a server


def test_a_selected_client_gets_the_model_once_and_sends_one_report():
    actual = run(
        {"name": "fedavg", "tau": 1}, workers=6, steps=50, cluster={"sampling": {"clients": 2}},
        network=SERVED,
    )  # fmt: skip
    assert actual.duration == pytest.approx(50 * (1 + 0.052) + 49 * 0.052)  # all begin with a model
    assert actual.curve["bytes"][-1] == 4000 * (50 * 2 + 49 * 2)
    assert actual.seconds["communicate"] * 6 == pytest.approx(2 * (50 + 49) * 0.052)


@looped("sampling", [{"clients": 4}, {"clients": 3, "over": 4 / 3}])
@looped("policy", ["shrink", "wait"])
def test_who_is_lost_while_it_sends_makes_no_other_send_again(sampling, policy):
    """Worker 3 crashes within its upload, which takes 10 s: of four, or of four for three."""
    crash = {"worker": 3, "at": "6 s", "lasts": "3 s"}
    actual = run(
        {"name": "fedavg", "tau": 1}, workers=4, steps=2,
        cluster={"crash": [crash], "sampling": sampling},
        network={"collective": "server", "latency": "0 s", "bandwidth": "3200 bit/s"},
        recovery={"policy": policy, "timeout": "1 s"}, server={"bandwidth": "1 Gbit/s"},
    )  # fmt: skip
    again = 8 if policy == "wait" and "over" not in sampling else 0
    assert actual.curve["time"] == pytest.approx([0, 11 + again, 32 + again], abs=1e-3)
    lost = 2 if "over" in sampling else int(again == 0)  # one of four reports is too many
    assert actual.workers["lost"] == pytest.approx([0, 0, 0, lost])


def test_a_deadline_ends_uploads_and_a_round_is_over_with_enough_reports():
    """Worker 2 computes as fast as the others, and takes 32 s to send what they do in 32 ms."""
    slow = {"name": "slow", "workers": 1, "up": "1 kbit/s"}
    group = [{"name": "fast", "workers": 2}, slow]

    def rounds(**sampling):
        return run(
            {"name": "fedavg", "tau": 4}, workers=3, steps=40, network=SERVED,
            cluster={"sampling": sampling, "group": group},
        )  # fmt: skip

    patient, due, enough = (
        rounds(clients=3), rounds(clients=3, deadline="7 s"), rounds(clients=2, over=1.5)
    )  # fmt: skip
    assert patient.round_seconds == pytest.approx(4 + 32.02 + 0.052, rel=0.01)
    assert due.round_seconds == pytest.approx(7)
    assert enough.round_seconds == pytest.approx(4 + 0.052 * 2, rel=0.01)
    assert [entry.reports for entry in (patient, due, enough)] == [30, 20, 20]
    early = rounds(clients=3, deadline="2 s")  # when none has computed its four steps
    assert early.reports == 10
    assert [entry.gradients for entry in (patient, due, enough)] == [120, 80, 80]
    for item in (due, enough):  # what it computed is lost, and its upload is cut off
        assert item.workers["lost"] == pytest.approx([0, 0, 40])
        closed = item.round_seconds - (4 + 0.052 * 0.9)
        assert item.links["worker 2->server"] == pytest.approx(40_000 * closed / 32.02, abs=5)
        assert np.sum([*item.workers.values()], axis=0) == pytest.approx([item.duration] * 3)


@looped("objective", [QUADRATIC, TIME_ONLY])
def test_steps_that_a_deadline_cuts_off_do_not_make_the_run_longer(objective):
    """Of those selected, at most two of three are there in time; the others take 20 s."""
    group = [{"name": "fast", "workers": 2}, {"name": "slow", "workers": 2, "compute": "5 s"}]
    actual = run(
        {"name": "fedavg", "tau": 4}, workers=4, steps=24, network=FREE, objective=objective,
        cluster={"sampling": {"clients": 3, "deadline": "7 s"}, "group": group},
    )  # fmt: skip
    times = actual.curve["time"]
    assert actual.duration == times[-1] == pytest.approx(6 * 7)
    assert times == sorted(times)


@looped("objective", [QUADRATIC, TIME_ONLY])
def test_a_crash_lasts_to_the_end_of_its_round_if_the_next_does_without_that_client(objective):
    """It is then out as others are; goodput counts the same seconds as lost to the crash."""

    def found(rounds, **cluster):
        return run(
            {"name": "fedavg", "tau": 5}, workers=8, steps=5 * rounds, network=FREE,
            cluster={"sampling": {"clients": 4}} | cluster, objective=objective,
            recovery={"policy": "shrink", "timeout": "1 s"},
        )  # fmt: skip

    first, both = (np.array(found(rounds).workers["compute"]) for rounds in (1, 2))
    who = int(np.flatnonzero((first > 0) & (both == first))[0])
    crashed = found(40, crash=[{"worker": who, "at": "2 s", "lasts": "1 s"}])
    assert crashed.failures["recovery_seconds"] == pytest.approx(3)
    assert sum(crashed.workers["down"]) == pytest.approx(3)
    assert sum(crashed.workers["lost"]) == pytest.approx(2)


@looped("objective", [QUADRATIC, TIME_ONLY])
@looped("name", ["fedavg", "fedbuff", "diloco"])
def test_a_share_of_reports_never_comes_whose_clients_drop_out(name, objective):
    """Binomial in each group; they drop out at uniform points of 4 s of steps and 52 ms of sending.

    Neither does anybody crash who is at rest, nor does a report of fedbuff come later.
    """
    group = [{"name": "firm", "workers": 20, "drop": 0.0}, {"name": "loose", "workers": 20}]
    buffer = {"buffer": 5} if name == "fedbuff" else {}
    actual = run(
        {"name": name, "tau": 4, **buffer}, workers=40, steps=None, network=SERVED,
        objective=objective, cluster={"sampling": {"clients": 20}, "drop": 0.3, "group": group},
        run={"duration": "1000 s"},
    )  # fmt: skip
    assert np.sum([*actual.workers.values()], axis=0) == pytest.approx([1000] * 40)
    lost, out = np.array(actual.workers["lost"]), actual.failures["drop_outs"]
    up = [actual.links[f"worker {rank}->server"] / 4000 for rank in range(40)]
    assert (actual.failures["crashes"], lost[:20].tolist()) == (0, [0] * 20)
    spent = 4 - 8 / 4.052  # s computed by one that drops out: of 4.052 s, the first 4
    assert lost.sum() == pytest.approx(out * spent, abs=4 * (out / 3) ** 0.5 + 8)
    loose = sum(up[20:]) + out
    assert out == pytest.approx(0.3 * loose, abs=4 * (0.21 * loose) ** 0.5)
    if name == "fedbuff":
        assert sum(actual.workers["down"]) == 0
    else:
        assert actual.reports + out == 20 * actual.rounds


def test_a_client_that_drops_out_has_sent_half_of_its_report_on_average():
    """It computes for 1 ms, sends for 52 ms, and drops out at a uniform point of them."""
    actual = run(
        {"name": "fedavg", "tau": 1}, workers=20, compute="1 ms", steps=100, network=SERVED,
        cluster={"sampling": {"clients": 20}, "drop": 0.5},
    )  # fmt: skip
    out = actual.failures["drop_outs"]
    sent = sum(actual.links[f"worker {rank}->server"] for rank in range(20)) / 4000
    assert sent - actual.reports == pytest.approx(out * 26 / 53, abs=4 * (out / 12) ** 0.5)


def test_a_round_that_all_drop_out_of_changes_nothing_and_ends_when_that_is_known():
    tables = {"workers": 2, "objective": QUADRATIC, "network": SERVED, "steps": 400}
    cluster = {"sampling": {"clients": 2}, "drop": 0.9}
    actual = run({"name": "fedavg", "tau": 4}, cluster=cluster, **tables)
    losses, ends = np.array(actual.curve["loss"]), np.diff(actual.curve["time"])
    still = np.flatnonzero(np.diff(losses) == 0)
    assert len(still) == pytest.approx(0.81 * 100, abs=16)
    assert ends[still].max() <= 4 + 2 * 0.052
    late = run({"name": "fedavg", "tau": 4}, cluster=cluster, recovery={"timeout": "9 s"}, **tables)
    assert np.diff(late.curve["time"])[still[1:]] == pytest.approx(ends[still[1:]] + 9)


@pytest.mark.parametrize("limit", [{"duration": "1000 s"}, {"steps": 4000}], ids=str)
@pytest.mark.parametrize("network", [SERVED, RING | {"model": "flows"}], ids=["closed", "flows"])
def test_a_server_whose_only_clients_left_for_good_stands_still_and_says_so(
    limit, network, tmp_path
):
    """The next client is drawn from all, and has left: the model that it is sent never comes."""
    stays = [f"{rank},0 s,{30 if rank < 2 else 60} s" for rank in range(6)]
    (tmp_path / "stays.csv").write_text("\n".join(["worker,start,end", *stays]))
    actual = run(
        {"name": "fedbuff", "tau": 3, "buffer": 1}, workers=6, compute=EXPONENTIAL,
        cluster={"sampling": {"clients": 1}, "membership": "stays.csv"}, run=limit, steps=None,
        network=network, folder=tmp_path,
    )  # fmt: skip
    assert "down for good since" in actual.stall
    assert 10 < actual.curve["time"][-1] < 70 or "duration" in limit


def test_the_draw_of_who_drops_out_is_of_the_seed_the_client_and_the_round_alone():
    def falls(tau, **tables):
        results = []
        original = Participation.fallen

        def noted(self, collective, dues):
            results.append(sorted(original(self, collective, dues)))
            return original(self, collective, dues)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Participation, "fallen", noted)
            run(
                {"name": "fedavg", "tau": tau}, workers=30, network=SERVED, steps=20 * tau,
                cluster={"sampling": {"clients": 10}, "drop": 0.3}, **tables,
            )  # fmt: skip
        return results

    assert falls(2) == falls(7, compute=EXPONENTIAL) != falls(2, seed=2)


def test_clients_that_drop_out_are_told_as_drop_outs_and_shares_say_of_what():
    sampling = {"clients": 4, "over": 1.5, "by": "availability"}
    result = study.simulate(
        scenario(
            {"name": "fedavg", "tau": 2}, workers=20, compute=EXPONENTIAL, network=SERVED,
            steps=80, cluster={"sampling": sampling, "drop": 0.3}, recovery={"timeout": "9 s"},
        ),
        seeds=1,
    )  # fmt: skip
    (row,) = result.algorithms
    assert row["failures"]["drop_outs"] > 0 == row["failures"]["crashes"]
    assert "crash" not in row["bottleneck"]
    heads = [[str(column.header) for column in table.columns] for table in terminal.spent([row])]
    assert heads[1][0] == "% of all clients' time"
    assert not any("goodput" in head for table in heads for head in table)


@pytest.mark.parametrize("codec", ["top-k", "random-k"])
def test_a_client_that_is_not_selected_keeps_what_its_codec_left_out(codec, monkeypatch):
    """Its residual waits for the next message that somebody takes; with all selected none rests."""
    encoded = []
    encode = MessageChannel._encode

    def noted(channel, slot, value):
        before = channel._states.get(slot)
        actual = encode(channel, slot, value)
        (residual, _), me = channel._states[slot], channel._me
        same = before is not None and np.array_equal(residual, before[0])
        encoded.append((me.resting, same or not np.any(residual)))
        return actual

    monkeypatch.setattr(MessageChannel, "_encode", noted)
    for clients in (2, 6):
        encoded.clear()
        run(
            {"name": "fedavg", "tau": 3, "codec": {"kind": codec, "ratio": 0.2}}, workers=6,
            steps=30, objective=QUADRATIC, cluster={"sampling": {"clients": clients}},
        )  # fmt: skip
        resting = [unchanged for rests, unchanged in encoded if rests]
        assert len(resting) == 10 * (6 - clients)
        assert all(resting)
        assert not any(unchanged for rests, unchanged in encoded if not rests)


def test_a_buffer_is_the_same_for_all_numbers_that_rounds_select():
    """As its server asks for no client in vain: `over` changes nothing of it."""
    rounds, buffered = {"name": "fedavg", "tau": 5}, {"name": "fedbuff", "tau": 5, "buffer": 2}
    cluster = {"sampling": {"clients": 2}}
    world = scenario(rounds, buffered, workers=8, steps=40, cluster=cluster)
    over = {"cluster.sampling.over": [1, 1.5, 2]}
    rows = sweep(world, over, seeds=1).rows
    cluster["sampling"]["over"] = 2.0
    alone = run(buffered, workers=8, steps=40, cluster=cluster).duration / 40
    paces = [row["seconds_per_step"] for row in rows if row["label"].startswith("fedbuff")]
    assert paces == [pytest.approx(alone)] * 3


def test_sampling_says_whom_it_does_not_concern():
    actual = run({"name": "asgd"}, cluster={"sampling": {"share": 0.5}})
    assert any("cluster.sampling has no effect on asgd" in note for note in actual.notes)


# Periods of each worker's own

FAST = {"group": [{"name": "fast", "workers": 2, "compute": "0.3 s"}]}


@looped("tau", [{"every": "3 s"}, {"slowest": 3}])
@looped("name", ["local-sgd", "fedavg", "diloco", "delayed-diloco"])
def test_equal_time_per_round(name, tau):
    """Of four workers two take 0.3 s a step, and ten steps in the time of three of the others."""
    actual = run({"name": name, "tau": tau}, cluster=FAST, objective=QUADRATIC, steps=50)
    assert actual.curve["tau"][1:] == [6.5] * 5
    assert actual.curve["step"] == [0, 6.5, 13, 19.5, 26, 32.5]
    assert actual.curve["time"] == pytest.approx([0, 3, 6, 9, 12, 15])


def test_a_period_by_time_is_one_of_steps_where_all_are_as_fast():
    tables = {"objective": QUADRATIC, "steps": 12}
    timed, counted = (
        run({"name": "local-sgd", "tau": tau}, **tables) for tau in ({"every": "3 s"}, 3)
    )
    assert timed.curve["loss"] == counted.curve["loss"][::3]


@looped("objective", [TIME_ONLY, QUADRATIC])
def test_steps_of_a_run_with_own_periods_are_those_of_the_clients_in_its_rounds(objective):
    """What clients at rest would have done counts nowhere; exponential steps are 9 in 8 s."""

    def sampled(tau):
        return run(
            {"name": "fedavg", "tau": tau}, workers=12, compute=EXPONENTIAL, steps=600,
            cluster={"sampling": {"clients": 2}}, network=SERVED, objective=objective,
        )  # fmt: skip

    timed, equal, counted = sampled({"every": "8 s"}), sampled({"slowest": 8}), sampled(8)
    steps = timed.curve["step"][-1]
    assert 600 <= steps == pytest.approx(timed.rounds * timed.gradients / timed.reports)
    assert steps - timed.curve["tau"][-1] < 600
    assert timed.gradients / timed.reports == pytest.approx(9, rel=4 * 8**0.5 / 9 / 132**0.5)
    assert equal.rounds == counted.rounds  # whose times are added up in another order
    assert equal.duration == pytest.approx(counted.duration, rel=1e-12)
    assert equal.curve["step"][-1] == counted.curve["step"][-1] == 600


@pytest.mark.parametrize(
    ("name", "limit"), [("fedavg", {"steps": 600}), ("fedbuff", {"duration": "600 s"})]
)
def test_the_share_of_a_run_that_is_done_is_told_but_not_that_of_its_probe(
    name, limit, monkeypatch
):
    monkeypatch.setattr(executors, "PULSE", 0.0)
    parts = []
    table = {"buffer": 2} if name == "fedbuff" else {}
    curve = {"kind": "learning-curve", "curve": {"law": "chinchilla", "parameters": 1e7}}
    world = scenario(
        {"name": name, "tau": 20, **table}, compute=EXPONENTIAL, network=SERVED, workers=12,
        cluster={"sampling": {"clients": 2}}, objective=curve | {"tokens": 9}, run=limit,
        steps=limit.get("steps"),
    )  # fmt: skip
    study.simulate(world, seeds=1, progress=lambda done, total: parts.append((done, total)))
    shares = [done for done, _ in parts]
    assert {total for _, total in parts} == {1}
    assert (shares[0], shares[-1]) == (0, 1)
    assert shares == sorted(shares)
    assert max(np.diff(shares)) < 0.1


def test_the_share_of_nights_that_is_done_leaves_out_the_days():
    shares = []
    context = copy_context()
    context.run(TELL.set, shares.append)
    cluster = {"sampling": {"clients": 1, "by": "availability"}, "membership": NIGHT}
    context.run(
        run, {"name": "fedavg", "tau": 3}, compute="10 min", network=FREE, steps=None,
        cluster=cluster, run={"duration": "48 h"},
    )  # fmt: skip
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, pytest.approx(1))
    assert max(np.diff(shares)) < 0.1


@looped("name", ["fedavg", "fedbuff"])
def test_hours_without_anybody_are_in_no_round(name):
    """Of three days the clients are there for a quarter; a round takes half an hour of that."""
    table = {"buffer": 1} if name == "fedbuff" else {}
    actual = run(
        {"name": name, "tau": 3, **table}, compute="10 min", network=FREE, steps=None,
        cluster={"sampling": {"clients": 1, "by": "availability"}, "membership": NIGHT},
        run={"duration": "72 h"},
    )  # fmt: skip
    assert actual.round_seconds == pytest.approx(1800, rel=0.1)
    assert actual.rounds == pytest.approx(36, abs=3)
    assert (actual.steps, actual.duration) == (pytest.approx(108, abs=9), 72 * 3600)


def learning(algorithm, target, **tables):
    """Return 20 clients that learn by a curve, of which nobody is late in the end."""
    curve = {"kind": "learning-curve", "curve": {"law": "chinchilla", "parameters": 1e7}}
    return scenario(
        algorithm, workers=20, compute=EXPONENTIAL, network=SERVED, steps=None,
        objective=curve | {"tokens": 320}, run={"duration": "3 h", "target_loss": target}, **tables,
    )  # fmt: skip


@looped("tau", [100, 200])
def test_of_clients_that_are_not_late_all_gradients_count(tau):
    """However long a round is beside the steps of a probe."""
    sampling = {"clients": 5, "over": 1.2, "deadline": "30 min"}
    world = learning({"name": "fedavg", "tau": tau}, 5.0, cluster={"sampling": sampling})
    assert with_tuned_rate(
        World(world, world.algorithm[0])
    ).scenario.objective.expected.workers == pytest.approx(5)


def test_a_target_within_the_first_round_costs_what_local_steps_do():
    world = learning({"name": "fedavg", "tau": 5000}, 9.5)
    assert (
        with_tuned_rate(World(world, world.algorithm[0])).scenario.objective.expected.period == 5000
    )


def test_a_target_that_the_start_has_reached_takes_no_time():
    world = learning({"name": "fedavg", "tau": 50}, 12.0, cost={"currency": "USD", "node_hour": 1})
    (row,) = study.simulate(world, seeds=1).json()["algorithms"]
    assert row["to_target"]["cost"]["mean"] == row["time_to_target"]["mean"] == 0


@looped("membership", [None, TROUBLED["some are away"]["membership"]])
def test_a_client_of_fedbuff_is_down_only_while_it_is_selected(membership):
    """Two of 40 train at a time, so that nearly all crashes meet clients that do not."""
    cluster = {"sampling": {"clients": 2}, "failures": {"between": "30 s", "repair": "9 s"}}
    cluster |= {"membership": membership} if membership else {}
    actual = run(
        {"name": "fedbuff", "tau": 3, "buffer": 1}, workers=40, compute=EXPONENTIAL, network=FREE,
        steps=None, cluster=cluster, run={"duration": "600 s"},
    )  # fmt: skip
    spent = {kind: sum(seconds) for kind, seconds in actual.workers.items()}
    assert sum(spent.values()) == pytest.approx(40 * 600)
    assert 0 < spent["down"] < 2 * 600
    assert actual.failures["goodput"] > 0.9


@looped("limit", [{"duration": "150 s"}, {"steps": 600}])
def test_sampled_clients_are_evaluated_after_whole_rounds(limit):
    """Unless asked for more; what is evaluated is the same."""

    def curve(tau, **settings):
        return run(
            {"name": "fedavg", "tau": tau}, workers=12, cluster={"sampling": {"clients": 2}},
            compute=EXPONENTIAL, network=SERVED, steps=None, run=limit | settings,
            objective=QUADRATIC,
        ).curve  # fmt: skip

    few, all_of_them = curve(7), curve(7, evaluate_every=1)
    ends = [*range(0, int(few["step"][-1]), 7)]
    assert few["step"] == [*ends, limit.get("steps", ends[-1] + 7)]
    assert all_of_them["step"][:3] == [0, 1, 2]
    shown = [all_of_them["step"].index(step) for step in few["step"]]
    for column in ("time", "loss", "bytes"):
        assert few[column] == [all_of_them[column][index] for index in shown]


def test_waiting_for_a_deadline_is_no_crash_and_what_comes_late_are_no_tokens():
    """Of four clients two take 8 s a round, and the others 30 s, of which the deadline cuts 20."""
    groups = [{"name": "slow", "workers": 2, "compute": "7.5 s"}]
    world = scenario(
        {"name": "fedavg", "tau": 4}, compute="2 s", steps=40, network=FREE, workers=4,
        objective={"kind": "learning-curve", "curve": {"law": "chinchilla", "parameters": 1e7},
                   "tokens": 100},
        cluster={"group": groups, "sampling": {"clients": 4, "deadline": "10 s"},
                 "membership": {"present": "9999 s", "absent": "1 s"}},
    )  # fmt: skip
    result = study.simulate(world, seeds=1)
    (row,), (actual,) = result.algorithms, result.runs
    assert (actual.reports, actual.rounds, actual.duration) == (20, 10, pytest.approx(100))
    assert sum(actual.workers["stalled"]) == 0
    assert sum(actual.workers["wait"]) == pytest.approx(2 * 10 * 2, rel=0.01)
    assert row["used"]["tokens"]["mean"] == 100 * 2 * 40


def test_a_client_of_fedbuff_that_is_never_chosen_again_has_sent_its_report():
    """Of 300 clients hardly any is chosen twice; each transfers for 2 s and computes for 3 s."""
    actual = run(
        {"name": "fedbuff", "tau": 3, "buffer": 1}, workers=300, compute="1 s", steps=None,
        network={"latency": "1 ms", "bandwidth": "8 Mbit/s"}, cluster={"sampling": {"clients": 4}},
        run={"duration": "300 s"}, model={"parameters": 250_000, "bytes_per_parameter": 4},
    )  # fmt: skip
    spent = {kind: sum(seconds) for kind, seconds in actual.workers.items()}
    assert spent["communicate"] / spent["compute"] == pytest.approx(2 / 3, rel=0.05)
