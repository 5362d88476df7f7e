"""Crashes: exact accounts of small cases, and properties of every program at any crash time."""

import re
import tomllib
from collections import Counter
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from paceline.simulator.cluster.failures import Calendar, calendars
from paceline.simulator.engines.virtual import simulation as simulations
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.results import statistics
from paceline.simulator.results.run import Kind
from paceline.simulator.scenario.scenario import World
from tests.helpers.cases import looped
from tests.helpers.programs import ROWS, called, cases, varied
from tests.helpers.worlds import QUADRATIC, RING, TIME_ONLY, scenario, simulate

CRASH = {"worker": 1, "at": "2.5 s", "lasts": "10 s"}


def run(case, *crashes, recovery=(), seed=0, **world):
    tables = {"cluster": {"crash": list(crashes)}, "recovery": dict(recovery)}
    return simulate(scenario(case, **{"steps": 5} | world, **tables), seed=seed)


def times(result):
    return [round(time, 9) for time in result.curve["time"]]


def test_the_others_wait_while_a_crashed_worker_repeats_its_steps():
    """Steps of 1 s: worker 1 crashes half a second into its third one, and is back at 12.5 s."""
    result = run({"name": "ssgd"}, CRASH)
    assert times(result) == [0, 1, 2, 13.5, 14.5, 15.5]
    assert result.failures["crashes"] == 1
    assert result.failures["lost_seconds"] == pytest.approx(0.5)
    assert result.failures["down_seconds"] == pytest.approx(10)
    assert result.failures["recovery_seconds"] == pytest.approx(10.5)
    assert result.failures["goodput"] == pytest.approx(1 - 10.5 / (4 * 15.5))
    assert sum(result.seconds.values()) == pytest.approx(15.5)


def test_who_waits_for_a_crashed_worker_is_stalled_until_it_is_back():
    """The others come at 3 s, worker 1 is back at 12.5 s and repeats half a second: 13.5 s."""
    result = run({"name": "ssgd"}, CRASH)
    assert result.workers["stalled"] == pytest.approx([9.5, 0, 9.5, 9.5])
    assert result.workers["wait"] == pytest.approx([1, 0, 1, 1])
    shrinks = run({"name": "ssgd"}, CRASH, recovery={"policy": "shrink", "timeout": "1 s"})
    assert shrinks.workers["stalled"] == pytest.approx([0.5, 0, 0.5, 0.5])
    for model in ("closed-form", "flows"):
        network = RING | {"model": model}
        served = run({"name": "asgd"}, CRASH | {"worker": "server"}, network=network)
        assert min(served.workers["stalled"]) > 8
    pairs = run({"name": "d-psgd"}, CRASH, network=RING)
    assert pairs.workers["stalled"][0] > 8
    assert pairs.workers["stalled"][1] == 0


ENDLESS = {"at": "3.5 s", "lasts": "1 h"}


@looped("model", ["closed-form", "flows"])
@looped(
    ("case", "worker"),
    [
        ({"name": "ssgd"}, 1), ({"name": "local-sgd", "tau": 9}, 1),
        ({"name": "hpsgd", "decision": "shared"}, 2),
        ({"name": "asgd"}, "server"), ({"name": "k-sync", "k": 4}, 1), ({"name": "d-psgd"}, 2),
        ({"name": "ssp", "staleness": 0}, 0),
    ],
)  # fmt: skip
def test_a_run_without_progress_counts_all_its_time(case, worker, model):
    """It stands still from some second on: part of its seconds per step, and of its curve."""
    crash = {"worker": worker, **ENDLESS}
    ends = {"steps": None, "run": {"duration": "100 s"}}
    result = run(case, crash, network=RING | {"model": model}, **ends)
    assert result.duration == result.curve["time"][-1] == 100
    assert 0 < result.steps < 12
    assert result.curve["step"][-2] == result.steps
    assert sum(result.seconds.values()) == pytest.approx(100)
    if case["name"] not in ("k-sync", "ssp"):  # whose workers wait for the server, which is up
        assert result.seconds["stalled"] > 40
    assert not any("never averaged" in note for note in result.notes)
    assert statistics.seconds_per_step(result) == 100 / result.steps


def test_workers_stand_still_while_crashes_keep_a_mean_from_beginning():
    """30 workers, each down a fifth of the time, are up together for a thousandth of it."""
    world = {
        "workers": 30, "steps": None, "run": {"duration": "1 h"}, "compute": "1 s",
        "cluster": {"failures": {"between": "4 min", "repair": "1 min"}},
    }  # fmt: skip
    case = {"name": "local-sgd", "tau": 20}
    result = simulate(scenario(case, **world))
    assert result.duration == 3600
    assert result.seconds["stalled"] > 0.5 * 3600
    assert sum(result.seconds.values()) == pytest.approx(3600)
    assert not any("never averaged" in note for note in result.notes)
    shrinks = simulate(scenario(case, **world, recovery={"policy": "shrink"}))
    assert shrinks.steps > 10 * result.steps


def test_a_local_phase_is_lost_as_a_whole():
    """No other worker has what it did since the last average: two steps and a half."""
    result = run({"name": "local-sgd", "tau": 5}, CRASH)
    assert times(result)[-1] == 12.5 + 5
    assert result.failures["lost_seconds"] == pytest.approx(2.5)


def test_others_go_on_without_it_and_it_comes_back():
    """Noticed after 1 s; back at 12.5 s, it joins the mean that begins next."""
    recovery = {"policy": "shrink", "timeout": "1 s"}
    result = run({"name": "ssgd"}, CRASH, recovery=recovery, steps=14)
    assert times(result) == [0, 1, 2, 3.5, *(3.5 + n for n in range(1, 12))]
    assert result.failures["dropped"] == 10  # means that end at 3.5, 4.5, ... 12.5
    assert result.failures["recovery_seconds"] == pytest.approx(10)
    assert result.failures["lost_seconds"] == pytest.approx(0.5)
    assert result.seconds["down"] == pytest.approx(10 / 4)


def test_a_mean_under_way_begins_again_without_who_crashed():
    """A ring of 4 has 6 hops of 20 ms, and 1.5 payloads of 32 ms; one of 3 has 4 and 4/3."""
    whole, less = 1 + 6 * 0.02 + 1.5 * 0.032, 4 * 0.02 + 4 / 3 * 0.032
    crash = {"worker": 3, "at": "1.1 s", "lasts": "1 h"}
    waits = run({"name": "ssgd"}, crash, network=RING, steps=1)
    assert times(waits) == [0, pytest.approx(3601.1 + whole - 1)]
    shrinks = run({"name": "ssgd"}, crash, network=RING, steps=1, recovery={"policy": "shrink"})
    assert times(shrinks) == [0, pytest.approx(1.1 + less)]
    assert shrinks.curve["bytes"][-1] == pytest.approx(4000 * (4 * 1.5 + 3 * 4 / 3))


def test_all_go_back_to_a_checkpoint():
    """Checkpoints of 0.25 s after steps 2 and 4; a crash at 4.0 s costs what followed the first."""
    recovery = {
        "policy": "restart", "timeout": "1 s", "reload": "2 s",
        "checkpoint": {"every": 2, "cost": "250 ms"},
    }  # fmt: skip
    crash = {"worker": 0, "at": "4 s", "lasts": "10 s"}
    result = run({"name": "ssgd"}, crash, recovery=recovery, steps=6)
    again = 4 - 2.25  # since the checkpoint
    stood = 10 + 2 + again
    plain = [0, 1, 2, 3.25, 4.25, 5.5, 6.5]
    assert times(result) == [time + (stood if time > 4 else 0) for time in plain]
    assert result.failures["recovery_seconds"] == pytest.approx(stood)
    assert result.failures["lost_seconds"] == pytest.approx(4 * again)
    assert result.seconds["down"] == pytest.approx(12 + 0.5)
    assert sum(result.seconds.values()) == pytest.approx(times(result)[-1])


def test_a_crash_while_all_is_done_again_begins_that_anew():
    recovery = {"policy": "restart", "checkpoint": {"every": 2}}
    first = {"worker": 0, "at": "3.5 s", "lasts": "1 s"}
    second = {"worker": 2, "at": "5 s", "lasts": "1 s"}  # half a second into the second attempt
    result = run({"name": "ssgd"}, first, second, recovery=recovery, steps=4)
    assert times(result) == [0, 1, 2, 3, pytest.approx(6 + 1.5 + 0.5)]


def test_backup_workers_are_not_waited_for():
    """The slowest of four is left out: means begin with the third, and no worker waits."""
    slow = {"cluster": {"group": [{"name": "slow", "workers": 1, "compute": "1 h"}]}}
    table = {"steps": 3, "network": RING, **slow}
    result = simulate(scenario({"name": "ssgd"}, recovery={"backup": 1}, **table))
    step = 1 + 4 * 0.02 + 4 / 3 * 0.032
    assert times(result) == [0, *(pytest.approx(n * step) for n in (1, 2, 3))]
    assert result.failures["dropped"] == 3
    assert result.seconds["lost"] == pytest.approx(3 * step / 4)  # until it heard of the result


def test_backup_workers_are_order_statistics():
    """Two of eight left out: a step takes the 6th of 8 exponential times, 1/8 + ... + 1/3."""
    world = scenario(
        {"name": "ssgd"}, workers=8, compute={"dist": "exponential", "mean": "1 s"},
        steps=4000, recovery={"backup": 2},
    )  # fmt: skip
    expected = sum(1 / n for n in range(3, 9))
    result = simulate(world)
    assert result.duration / 4000 == pytest.approx(expected, rel=0.03)


def test_a_worker_that_never_comes_back_stalls_the_run_and_is_named():
    gone = {"worker": 2, "at": "2.5 s"}
    result = run({"name": "ssgd"}, gone)
    assert times(result) == [0, 1, 2]
    stall = result.failures["stall"]
    assert "workers [0, 1, 3] wait in mean 2 for workers [2]" in stall
    assert "worker 2 is down for good since 2.5 s" in stall
    assert any(stall in note for note in result.notes)
    shrunk = run({"name": "ssgd"}, gone, recovery={"policy": "shrink"})
    assert shrunk.steps == 5
    assert shrunk.failures["stall"] is None


def test_a_server_that_crashes_answers_when_it_is_back():
    crash = {"worker": "server", "at": "1.5 s", "lasts": "10 s"}
    result = run({"name": "asgd"}, crash, workers=1, steps=3)
    assert times(result) == [0, 1, 11.5, 12.5]
    result = run({"name": "asgd"}, {"worker": "server", "at": "1.5 s"}, workers=2, steps=3)
    assert "worker 0 waits for the server" in result.failures["stall"]


def test_random_crashes_have_the_availability_that_they_should():
    """A node is down for repair / (between + repair) of the time, in any order of queries."""
    world = scenario(
        {"name": "psgd"}, cluster={"failures": {"between": "90 s", "repair": "10 s"}}, steps=10
    )
    end = 2e5
    shares = []
    for calendar in calendars(world, 3)[:4]:
        down = sum(b - a for a, b in calendar.during(0.0, end))
        shares.append(down / end)
    assert np.mean(shares) == pytest.approx(0.1, rel=0.05)
    first, again = calendars(world, 3)[0], calendars(world, 3)[0]
    again.next(1e5)
    assert first.next(500.0) == again.next(500.0)


def test_a_calendar_joins_crashes_that_overlap():
    calendar = Calendar(iter([(1.0, 3.0), (2.0, 5.0), (7.0, 8.0)]))
    assert calendar.next(0.0) == calendar.next(4.9) == (1.0, 5.0)
    assert calendar.next(5.0) == (7.0, 8.0)
    assert calendar.during(4.0, 7.5) == [(4.0, 5.0), (7.0, 7.5)]


class OneHot:
    """Make gradients distinct: the k-th of worker w is 1 at a coordinate of its own."""

    def __init__(self, rank, dimension):
        self._next, self._dimension = rank * STEPS, dimension

    def gradient(self, x):
        g = np.zeros(self._dimension)
        g[self._next] = 1.0
        self._next += 1
        return g

    def loss_and_gradient(self, x):
        return 1.0, self.gradient(x)


STEPS = 64
WORKERS = 3
seconds = st.floats(0.05, 9.0)


@st.composite
def crash_lists(draw):
    return [
        {
            "worker": draw(st.integers(0, WORKERS - 1)),
            "at": f"{draw(seconds)} s",
            "lasts": f"{draw(seconds)} s",
        }
        for _ in range(draw(st.integers(1, 3)))
    ]


@pytest.mark.parametrize("case", varied())
@settings(max_examples=12, deadline=None)
@given(
    crashes=crash_lists(),
    policy=st.sampled_from(["wait", "shrink", "restart"]),
    networked=st.booleans(),
    served=st.booleans(),
    seed=st.integers(0, 3),
)
def test_every_program_survives(case, crashes, policy, networked, served, seed):
    """A run reaches its last step, accounts for all time, and loses no more than it should."""
    program = catalogue()[case["name"]].under(case)
    row = next(row for row in ROWS if row.name == case["name"])
    if policy not in program.recovers:
        policy = "wait"
    if served and program.server:
        crashes = [*crashes[1:], crashes[0] | {"worker": "server"}]
    recovery: dict[str, Any] = {"policy": policy, "reload": "300 ms"}
    if policy == "restart":
        recovery |= {"checkpoint": {"every": 3, "cost": "100 ms" if row.timeless else "0 s"}}
    network = RING if networked else {"collective": "star", "latency": "0 s"}
    table = {"workers": WORKERS, "steps": 9, "objective": QUADRATIC, "network": network}
    table["compute"] = {"dist": "exponential", "mean": "1 s"}
    result = simulate(
        scenario(case, **table, cluster={"crash": crashes}, recovery=recovery), seed=seed
    )
    assert result.steps >= 9
    assert result.failures["stall"] is None
    assert (np.diff(result.curve["time"]) >= 0).all()
    assert min(result.seconds.values()) >= -1e-9, result.seconds
    assert sum(result.seconds.values()) <= result.duration * (1 + 1e-9)
    if policy == "restart" or (policy == "wait" and row.timeless):
        plain = simulate(scenario(case, **table), seed=seed)
        assert result.curve["loss"] == plain.curve["loss"]  # the same numbers, only later
        assert result.duration >= plain.duration - 1e-9


def assert_accounts(result, end=None):
    """Each worker's spans follow one another from the start, and add up to what is reported."""
    end = result.duration if end is None else end
    for rank in range(WORKERS):
        spans = np.sort(result.spans[result.spans["worker"] == rank], order="start")
        spent = spans["end"] - spans["start"]
        np.testing.assert_allclose(spans["start"][1:], spans["end"][:-1], atol=1e-9)
        assert spans["start"][0] == 0
        assert spans["end"][-1] <= end * (1 + 1e-9)
        for kind in (Kind.WAIT, Kind.COMMUNICATE, Kind.DOWN):
            reported = result.workers.get(kind.name.lower(), [0.0] * WORKERS)[rank]
            assert spent[spans["kind"] == kind].sum() == pytest.approx(reported, abs=1e-6)
        whole = sum(worker[rank] for worker in result.workers.values())
        assert whole == pytest.approx(spans["end"][-1], abs=1e-6)
        assert min(worker[rank] for worker in result.workers.values()) >= -1e-9


@pytest.mark.parametrize("case", varied())
@settings(max_examples=8, deadline=None)
@given(
    crashes=crash_lists(),
    policy=st.sampled_from(["wait", "shrink", "restart"]),
    backup=st.integers(0, 2),
    random=st.booleans(),
    model=st.sampled_from(["closed-form", "flows"]),
    seed=st.integers(0, 3),
)
def test_a_run_cut_off_by_time_accounts_for_every_second(
    case, crashes, policy, backup, random, model, seed
):
    """Even if the crash, the repair, or what was given up lies beyond the end; and twice alike."""
    program = catalogue()[case["name"]].under(case)
    if policy not in program.recovers:
        policy = "wait"
    recovery: dict[str, Any] = {"policy": policy, "reload": "300 ms"}
    if policy == "restart":
        recovery |= {"checkpoint": {"every": 2, "cost": "100 ms"}}
    if policy == "shrink":
        recovery |= {"backup": backup, "timeout": "700 ms"}
    cluster: dict[str, Any] = {"crash": crashes}
    if random:
        cluster["failures"] = {"between": "8 s", "repair": "1 s"}
    world = scenario(
        case, workers=WORKERS, steps=None, run={"duration": "6 s"}, objective=QUADRATIC,
        network=RING | {"model": model}, compute={"dist": "exponential", "mean": "1 s"},
        cluster=cluster, recovery=recovery,
    )  # fmt: skip
    result = simulate(world, seed=seed, spans=10**5)
    assert simulate(world, seed=seed).workers == result.workers
    assert sum(result.seconds.values()) == pytest.approx(6, abs=1e-6)
    assert_accounts(result, 6.0)


@looped("model", ["closed-form", "flows"])
def test_no_mean_begins_before_the_crash_of_an_absent_worker_is_noticed(model):
    """Of several means under way, each waits for the timeout, not only the first."""
    world = scenario(
        {"name": "dts", "delay": 5, "period": 3, "codec": {"kind": "top-k", "ratio": 0.4}},
        workers=WORKERS, steps=None, run={"duration": "8 s"}, objective=QUADRATIC,
        network=RING | {"model": model}, compute={"dist": "exponential", "mean": "1 s"},
        cluster={"crash": [{"worker": 2, "at": "5 s", "lasts": "1 s"}]},
        recovery={"policy": "shrink", "timeout": "700 ms"},
    )  # fmt: skip
    result = simulate(world, seed=2, spans=10**5)
    assert_accounts(result, 8.0)
    means = result.spans[result.spans["kind"] == Kind.COMMUNICATE]
    assert not [mean for mean in means if 5.0 < mean["start"] < 5.7]


def test_a_second_crash_does_not_lose_again_what_was_lost():
    """Two steps and a half, then half a step of doing them again, then all five."""
    twice = [CRASH, {"worker": 1, "at": "13 s", "lasts": "2 s"}]
    result = run({"name": "local-sgd", "tau": 5}, *twice)
    assert times(result)[-1] == 15 + 5
    assert result.failures["lost_seconds"] == pytest.approx(2.5 + 0.5)


def test_a_bucket_leaves_when_it_is_computed_anew():
    """Not at a share of the time that the worker was down: the first at a third of the last try."""
    crash = {"worker": 1, "at": "0.9 s", "lasts": "9.1 s"}
    result = run({"name": "ssgd-bucketed", "buckets": 2}, crash, network=RING, steps=1)
    half = 6 * 0.02 + 1.5 * 0.016
    assert times(result) == [0, pytest.approx(11 + half)]


def test_young_and_daly():
    """Steps of 1 s, a checkpoint of C s every n: M (exp((n + C) / M) - 1) / n seconds per step."""
    mean, cost = 400.0, 5.0
    results = {}
    for every in (16, 63, 250):
        world = scenario(
            {"name": "ssgd"}, steps=4000,
            cluster={"failures": {"between": f"{4 * mean} s", "repair": "1 ms"}},
            recovery={
                "policy": "restart", "checkpoint": {"every": every, "cost": f"{cost} s"}
            },
        )  # fmt: skip
        runs = [simulate(world, seed=seed).duration / 4000 for seed in range(4)]
        results[every] = float(np.mean(runs))
        daly = mean * (exp((every + cost) / mean) - 1) / every
        assert results[every] == pytest.approx(daly, rel=0.05)
    assert min(results, key=lambda every: results[every]) == round(sqrt(2 * cost * mean))


def test_who_never_meets_anybody_is_a_renewal_process():
    """A step of 1 s between crashes M apart takes M (exp(1 / M) - 1), and repairs a share R / M."""
    world = scenario(
        {"name": "psgd"}, steps=20_000, workers=1,
        cluster={"failures": {"between": "20 s", "repair": "5 s"}},
    )  # fmt: skip
    runs = [simulate(world, seed=seed).duration / 20_000 for seed in range(3)]
    assert np.mean(runs) == pytest.approx(20 * (exp(1 / 20) - 1) * (1 + 5 / 20), rel=0.015)


def test_checkpoints_too_far_apart_are_never_reached_again():
    """Crashes come every 2 s, checkpoints every 200 s: the run ends, and says why."""
    recovery = {"policy": "restart", "checkpoint": {"every": 200}}
    failures = {"failures": {"between": "8 s", "repair": "1 s"}}
    world = scenario({"name": "ssgd"}, steps=300, cluster=failures, recovery=recovery)
    result = simulate(world)
    assert result.steps < 200
    assert "next checkpoint" in result.failures["stall"]
    hour = {"duration": "1 h"}
    cut = simulate(
        scenario({"name": "ssgd"}, steps=300, run=hour, cluster=failures, recovery=recovery)
    )
    assert sum(cut.seconds.values()) == pytest.approx(3600)
    assert cut.seconds["compute"] < 200


def test_a_phase_longer_than_anybody_is_up_is_never_done():
    failures = {"failures": {"between": "2 s", "repair": "1 s"}}
    result = simulate(scenario({"name": "local-sgd", "tau": 50}, steps=100, cluster=failures))
    assert "takes too long to end before the next crash" in result.failures["stall"]


def test_crashes_at_the_very_start_and_the_very_end():
    first = {"worker": 1, "at": "0 s", "lasts": "2 s"}
    assert times(run({"name": "ssgd"}, first)) == [0, 3, 4, 5, 6, 7]
    shrinks = run({"name": "ssgd"}, first, recovery={"policy": "shrink"})
    assert times(shrinks) == [0, 1, 2, 3, 4, 5]
    last = {"worker": 1, "at": "3 s", "lasts": "2 s"}
    for policy in ({}, {"policy": "restart", "checkpoint": {"every": 2}}):
        result = run({"name": "ssgd"}, last, recovery=policy, steps=None, run={"duration": "3 s"})
        assert result.seconds["compute"] == 3
        assert result.seconds["down"] == 0


def test_all_workers_but_one_may_be_gone_for_good():
    gone = [{"worker": rank, "at": f"{rank + 0.5} s"} for rank in range(3)]
    result = run({"name": "ssgd"}, *gone, network=RING, recovery={"policy": "shrink"}, steps=6)
    assert result.steps == 6
    stuck = run({"name": "ssgd"}, *gone, {"worker": 3, "at": "3.7 s"}, network=RING)
    assert "worker 3 is down for good" in stuck.failures["stall"]


@looped("model", ["closed-form", "flows"])
@looped("name", ["asgd", "d2", "psgd", "hpsgd"])
def test_a_node_that_is_down_for_good_is_named(name, model):
    """This holds beside endless random crashes, too; messages to it never arrive."""
    failures = {"failures": {"between": "50 s", "repair": "1 s"}}
    for gone in (1, "server") if name == "asgd" else (1,):
        world = scenario(
            {"name": name}, network=RING | {"model": model}, steps=5,
            cluster={"crash": [{"worker": gone, "at": "1.5 s"}], **failures},
        )  # fmt: skip
        result = simulate(world)
        if result.steps < 5:
            assert "down for good since 1.5 s" in result.failures["stall"]


PLAIN_SUMS = "ssgd", "ssgd-bucketed", "asgd", "ssp", "k-sync", "k-async", "k-batch-async", "hybrid"


@pytest.mark.parametrize("name", PLAIN_SUMS)
@settings(max_examples=20, deadline=None)
@given(crashes=crash_lists(), shrinks=st.booleans(), backup=st.booleans())
def test_no_gradient_is_applied_twice(name, crashes, shrinks, backup):
    """With learning rate 1 and sums, each gradient's own coordinate is 0 or what one step makes."""
    program = catalogue()[name]
    case: dict[str, Any] = {"name": name}
    case |= {"staleness": 1} if name == "ssp" else {"k": 1} if name.startswith("k-") else {}
    case |= {"step_size": 4} if name == "hybrid" else {}
    shrinks = shrinks and "shrink" in program.recovers
    recovery: dict[str, Any] = {"policy": "shrink" if shrinks else "wait"}
    if shrinks and backup:
        recovery["backup"] = 1
    dimension = WORKERS * STEPS
    world = scenario(
        case, workers=WORKERS, steps=8, lr=1.0, recovery=recovery, network=RING,
        objective={"kind": "quadratic", "dimension": dimension},
        compute={"dist": "exponential", "mean": "1 s"}, cluster={"crash": crashes},
    )  # fmt: skip
    made = simulations.Simulation(World(world, world.algorithm[0]), 0)
    for node in made.nodes[:WORKERS]:
        hot = OneHot(node.rank, dimension)
        node._gradient, node._loss_and_gradient = hot.gradient, hot.loss_and_gradient
    made.run()
    last = made.nodes[WORKERS if program.server else 0].x
    if last is None:  # it is down at the end
        last = next(node.x for node in made.nodes if node.x is not None)
    used = Counter(np.round(made.objective.start - last, 9).tolist())
    allowed = {1.0} if program.server else {round(1 / n, 9) for n in range(1, WORKERS + 1)}
    assert set(used) <= {0.0, *allowed}
    assert isinstance(made, simulations.Simulation)


def test_time_only_runs_take_as_long():
    for case in cases():
        if case["name"] in ("adacomm",) or catalogue()[case["name"]].under(case).pooled:
            continue
        durations = [
            simulate(
                scenario(
                    case, objective=kind, cluster={"crash": [CRASH]}, network=RING, steps=6,
                    model={"parameters": 6},
                )
            ).duration
            for kind in (TIME_ONLY, QUADRATIC)
        ]  # fmt: skip
        assert durations[0] == pytest.approx(durations[1], rel=1e-4), called(case)


POLICIES = ("wait", "shrink", "restart", "backup", "quorum")
PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text("utf-8")


def test_the_page_says_which_program_can_do_what():
    rows = re.findall(r"^\| `([\w-]+)` \| \w+ \| (.*) \|$", PAGE, re.MULTILINE)
    actual = {
        name: tuple(
            policy for policy, can in zip(POLICIES, cells.split("|"), strict=True) if can.strip()
        )
        for name, cells in rows
    }
    assert actual == {name: program.recovers for name, program in catalogue().items()}


def test_the_page_says_what_its_examples_give():
    base, wait, shrink, restart, backup, random = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    examples = {"no crash": "", "`wait`": wait, "`shrink`": shrink, "`restart`": restart}
    for name, extra in {**examples, "`backup` (no crash)": backup}.items():
        world = parse(tomllib.loads(base + extra), file="docs/failures.md", folder=Path())
        result = simulate(world)
        (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", PAGE, re.MULTILINE)
        run, back, lost, down, goodput = (cell.strip() for cell in row.split("|"))
        assert run == f"{result.duration:.0f} s"
        if result.failures is not None:
            recovered = result.failures["recovery_seconds"]
            assert back == ("" if recovered is None else f"{recovered:.0f} s")
            assert lost == f"{result.failures['lost_seconds']:.1f} s"
            assert down == f"{result.failures['down_seconds']:.0f} s"
            assert goodput == f"{statistics.goodput(result):.1%}".replace("%", " %")
    assert parse(tomllib.loads(base + random), file="docs/failures.md", folder=Path())


def test_a_server_that_gets_no_report_goes_on_as_a_ring_does():
    """Both crash while it takes their reports in: the second is alone once the first is gone."""
    crashes = (CRASH | {"worker": 0, "at": "1.1 s"}, CRASH | {"at": "1.2 s"})
    for collective in ("ring", "server"):
        network = {"latency": "300 ms", "bandwidth": "1 Gbit/s", "collective": collective}
        result = run(
            {"name": "ssgd"}, *crashes, recovery={"policy": "shrink"}, workers=2, network=network
        )
        assert times(result)[:3] == [0, 1.1, 12.2]
        assert result.curve["step"][-1] == 5


def test_a_run_ends_at_its_last_step_though_nobody_is_there():
    membership = {"present": {"dist": "exponential", "mean": "10 s"}, "absent": "2 s"}
    made = parse({
        "model": {"parameters": 2_000_000}, "objective": {"kind": "none"},
        "cluster": {"workers": 4, "compute": "1 s", "membership": membership},
        "network": {"model": "flows", "latency": "1 ms", "bandwidth": "8 Mbit/s"},
        "run": {"steps": 40}, "algorithm": [{"name": "ssgd"}],
    })  # fmt: skip
    runs = [simulate(made, seed=seed) for seed in range(8)]
    assert {ended.curve["step"][-1] for ended in runs} == {40}
    assert len({len(ended.lines) for ended in runs}) == 1


def test_workers_that_leave_before_they_have_the_model_end_a_row_and_no_other():
    membership = {"present": {"dist": "exponential", "mean": "1 s"}, "absent": "250 ms"}
    made = parse({
        "model": {"parameters": 2_000_000}, "objective": {"kind": "none"},
        "cluster": {"workers": 8, "compute": "50 ms", "membership": membership},
        "network": {"latency": "50 ms", "bandwidth": "8 Mbit/s"},
        "run": {"steps": 24}, "algorithm": [{"name": "asgd"}, {"name": "local-sgd", "tau": 24}],
    })  # fmt: skip
    document = paceline.simulate(made, seeds=1).json()
    asgd, local = document["algorithms"]
    assert "never stays long enough to download the model" in asgd["failures"]["stall"]
    assert local["steps"] == 24
