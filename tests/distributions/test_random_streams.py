"""Random numbers keyed by (seed, purpose, worker): comparisons between algorithms are paired."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.cluster import workers
from paceline.simulator.distributions.random_streams import Purpose, blocks, generator, quick
from paceline.simulator.objectives import softmax
from paceline.simulator.programs import Program
from tests.helpers.cases import looped
from tests.helpers.programs import ROWS, cases
from tests.helpers.worlds import DIGITS, EXPONENTIAL, QUADRATIC, RING, play, scenario, simulate


def test_each_key_has_a_stream_of_its_own():
    keys = [(s, p, w) for s in range(3) for p in Purpose for w in range(3)]
    firsts = {generator(*key).random() for key in keys}
    assert len(firsts) == len(keys)
    assert generator(1, Purpose.BATCH, 2).random() in firsts


def test_published_numbers_stay():
    """Purposes are never renumbered, and the generator is never another one."""
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "COMPUTE": 0, "EXTRA": 1, "BATCH": 2, "COLLECTIVE": 3, "MESSAGE": 4, "PLACEMENT": 5,
        "OBJECTIVE": 6, "PROGRAM": 7, "SHARED": 8, "AGGREGATE": 9, "BURST": 10, "FAILURE": 11,
        "OUTAGE": 12, "BACKGROUND": 13, "TRACE": 14, "OVERHEAD": 15, "CALIBRATION": 16,
        "MEMBERSHIP": 17, "SAMPLING": 18, "DROP_OUT": 19,
    }  # fmt: skip
    assert generator(7, Purpose.EXTRA, 3).random() == 0.6584116808495275
    assert quick(7, Purpose.AGGREGATE, 3).random() == 0.007927335676510272


@given(st.integers(1, 700), st.integers(0, 900))
def test_the_size_of_a_block_changes_nothing(size, n):
    def numbers(size):
        rng = generator(0, Purpose.COMPUTE)
        return list(islice(blocks(rng.standard_exponential, size), n))

    at_once = generator(0, Purpose.COMPUTE).exponential(size=n).tolist()
    assert numbers(size) == numbers(256) == at_once


@pytest.mark.parametrize("ahead", [1, 7])
def test_how_many_batches_are_drawn_ahead_changes_nothing(ahead, monkeypatch):
    def gradients():
        goal = softmax.SoftmaxRegression(scenario(objective=DIGITS).objective, 2, seed=3)
        source = goal.source(1)
        return [source.gradient(goal.start) for _ in range(100)]

    usual = gradients()
    monkeypatch.setattr(softmax._SoftmaxSource, "_AHEAD", ahead)
    assert np.array_equal(usual, gradients())


def test_a_workers_compute_times_are_the_same_under_every_program():
    in_pieces = {"ssgd-bucketed", "k-sync", "ad-psgd"}  # their gradients do other things meanwhile
    algorithms = [case for case in cases() if case["name"] not in in_pieces]
    world = scenario(*algorithms, compute=EXPONENTIAL, network=RING, objective=QUADRATIC, steps=30)
    times = [list(islice(time, 60)) for time in workers.compute_times(world, seed=2)]
    for index in range(len(algorithms)):
        for duration, expected in zip(play(world, index, 2).durations, times, strict=False):
            n = min(len(duration), len(expected))
            assert n >= 20
            np.testing.assert_allclose(duration[:n], expected[:n], atol=1e-12)


@looped("goal", [QUADRATIC, DIGITS])
def test_a_workers_batches_are_the_same_however_it_asks(goal):
    """The k-th gradient at the start: whole, with its loss, or in pieces; alone or in turns."""

    async def worker(me, *, lr: float, ask: int):
        while True:
            if ask == 0:
                me.mark(await me.gradient(me.start))
            elif ask == 1:
                _, g = await me.loss_and_gradient(me.start)
                me.mark(await me.mean(0 * g) + g)
            else:
                pieces = await me.start_backward(me.start, 3)
                me.mark(me.join([await me.wait(piece) for piece in pieces]))

    programs = {"mine": Program("mine", worker, "here")}
    world = scenario(
        *({"name": "mine", "ask": ask} for ask in range(3)),
        compute=EXPONENTIAL, objective=goal, programs=programs,
    )  # fmt: skip
    whole, with_loss, in_pieces = (np.array(play(world, ask, 4).marks) for ask in range(3))
    assert np.array_equal(whole, with_loss)
    assert np.array_equal(whole, in_pieces)
    assert not np.array_equal(whole[0], whole[1])


@looped("case", [{"name": row.name, **row.variants[-1]} for row in ROWS])
def test_another_algorithm_changes_nobody_elses_curve(case):
    tables = {
        "compute": EXPONENTIAL, "network": RING | {"jitter": EXPONENTIAL}, "objective": DIGITS,
    }  # fmt: skip
    alone = simulate(scenario(case, **tables), seed=4)
    crowded = scenario({"name": "asgd", "label": "another"}, case, **tables)
    _, beside = (simulate(crowded, index, seed=4) for index in range(2))
    np.testing.assert_equal(beside.curve, alone.curve)
    assert beside.seconds == alone.seconds
    assert beside.links == alone.links
