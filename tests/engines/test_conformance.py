"""Every program on every engine, and the rules of the effects, which hold on each of them."""

import re
from dataclasses import asdict
from functools import cache
from itertools import count, product

import numpy as np
import pytest
from hypothesis import given, settings

from paceline.simulator.engines import dispatch
from paceline.simulator.errors import ProgramError
from paceline.simulator.objectives.build import build
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.scenario.scenario import World
from tests.helpers.cases import named
from tests.helpers.compute_times import STEPS, delays
from tests.helpers.programs import ROWS, called, cases, varied
from tests.helpers.worlds import (
    EXPONENTIAL,
    QUADRATIC,
    RING,
    play,
    scenario,
    simulate,
)

TIMELESS = cases(tuple(row for row in ROWS if row.timeless))


def equal(first, second):
    """Demand that every node marked the same parameters, to the last bit."""
    for ours, theirs in zip(first.marks, second.marks, strict=True):
        assert len(ours) == len(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def same_schedule(first, second, steps):
    """Demand the same effects of every node, collectives begun and messages served in order."""
    for rank in range(len(first.effects)):
        assert first.schedule(rank, steps) == second.schedule(rank, steps)
    assert first.begun == second.begun


def test_the_table_has_every_program_once():
    names = [row.name for row in ROWS]
    assert sorted(names) == sorted(catalogue())


# Nothing that takes time changes a synchronous program


@cache
def reference(number, workers):
    world = scenario(TIMELESS[number], workers=workers, steps=STEPS, objective=QUADRATIC)
    return play(world)


@pytest.mark.parametrize("number", range(len(TIMELESS)), ids=map(called, TIMELESS))
@settings(max_examples=10)
@given(world=delays())
def test_delays_change_no_parameters(number, world):
    played = play(scenario(TIMELESS[number], steps=STEPS, objective=QUADRATIC, **world))
    expected = reference(number, world["workers"])
    equal(played, expected)
    same_schedule(played, expected, STEPS)


def test_all_others_are_asynchronous_or_read_the_clock():
    actual = {name for name, item in catalogue().items() if item.asynchronous}
    assert {row.name for row in ROWS if not row.timeless} == actual | {"adacomm"}


@pytest.mark.parametrize("case", varied())
def test_a_rerun_is_identical(case):
    tables = {"compute": EXPONENTIAL, "network": RING | {"jitter": EXPONENTIAL}}
    world = scenario(case, objective=QUADRATIC, **tables)
    again = scenario(case, objective=QUADRATIC, **tables)
    first, second = (asdict(simulate(item, spans=1000, seed=1)) for item in (world, again))
    np.testing.assert_equal(first, second)
    other = asdict(simulate(world, spans=1000, seed=2))
    assert other["curve"]["time"] != first["curve"]["time"]
    assert other["curve"]["loss"] != first["curve"]["loss"]


# The rules of the vocabulary


def run_on(worker, server=None, workers=3, **tables):
    """Run a program that a test defines."""
    programs = {"mine": Program("mine", worker, "here", server=server)}
    tables = {"objective": QUADRATIC, "steps": 6} | tables
    world = scenario({"name": "mine"}, workers=workers, programs=programs, **tables)
    return play(world)


def test_a_gather_is_in_rank_order():
    async def gather(me, *, lr: float):
        g = await me.gradient(me.start)
        everyone = await me.wait(me.start_gather((float(me.rank), g)))
        assert [number for number, _ in everyone] == [0.0, 1.0, 2.0]
        assert np.array_equal(everyone[me.rank][1], g)
        me.mark(sum(g for _, g in everyone) / len(everyone))

    marks = run_on(gather, compute=EXPONENTIAL).marks
    assert all(np.array_equal(marks[0], mark) for mark in marks)


def test_messages_between_two_nodes_keep_their_order():
    async def worker(me, *, lr: float):
        await me.gradient(me.start)
        if me.rank == 0:
            for number in range(5):
                me.send(1, float(number))
            assert await me.request(1, 5.0) == 50.0
        elif me.rank == 1:
            assert [await me.receive() for _ in range(6)] == [(0, float(n)) for n in range(6)]
            me.send(0, 50.0)

    run_on(worker, network=RING | {"jitter": EXPONENTIAL})


def test_no_message_overtakes_one_under_way():
    async def worker(me, *, lr: float):
        await me.gradient(me.start)
        other = 1 - me.rank
        me.send(other, 1.0)
        await me.mean(0.0)
        me.send(other, 2.0)
        assert [await me.receive(other) for _ in range(2)] == [(other, 1.0), (other, 2.0)]

    slow = {"latency": "9 s", "collective": "given", "duration": "1 s"}
    run_on(worker, workers=2, network=slow)


def test_a_message_can_be_picked_by_its_sender():
    async def worker(me, *, lr: float):
        await me.gradient(me.start)
        if me.rank:
            me.send(0, float(me.rank))
        else:
            chosen = [await me.receive(source) for source in (2, 1, 3)]
            assert chosen == [(2, 2.0), (1, 1.0), (3, 3.0)]

    run_on(worker, workers=4, compute=EXPONENTIAL, network=RING)


def test_finished_has_one_answer_for_all():
    """The last worker asks, three steps late, and decides: by then the mean is done."""

    async def worker(me, *, lr: float):
        mean = me.start_mean(await me.gradient(me.start))
        for _ in range(3 * me.rank):
            await me.gradient(me.start)
        assert await me.finished(mean)
        me.mark(await me.wait(mean))
        assert me.clock() == 1 + 3 * 2

    run_on(worker, steps=20)


def changes(array):
    """Return whether an array can be changed in place."""
    try:
        array += 1
    except ValueError:
        return False
    return True


def test_payloads_results_and_the_start_are_read_only():
    async def worker(me, *, lr: float):
        assert not changes(me.start)
        g = await me.gradient(me.start)
        mean, everyone = me.start_mean((g, 1.0)), me.start_gather(g)
        assert not changes(g)
        results = (await me.wait(mean))[0], (await me.wait(everyone))[me.rank], g
        assert not any(map(changes, results))

    run_on(worker, compute=EXPONENTIAL)


def test_part_of_a_vector_may_be_averaged_while_the_whole_is_seen():
    async def worker(me, *, lr: float):
        x = me.start - await me.gradient(me.start)
        mean = me.start_mean(x[:2])
        me.mark(x)
        assert np.shape(await me.wait(mean)) == (2,)

    run_on(worker, run={"evaluate_every": 1})


def test_different_collectives_are_refused():
    async def worker(me, *, lr: float):
        g = await me.gradient(me.start)
        await me.wait(me.start_gather(g) if me.rank == 2 else me.start_mean(g))

    with pytest.raises(ProgramError, match="worker 2 starts a gather where others started a mean"):
        run_on(worker)


async def skips_a_mean(me, *, lr: float):
    """Worker 1 leaves out the second mean."""
    x = await me.mean(await me.gradient(me.start))
    if me.rank != 1:
        x = await me.mean(await me.gradient(x))


async def hears_nobody(me, *, lr: float):
    await me.gradient(me.start)
    await me.receive(1)


async def sends_nothing(me, *, lr: float):
    while True:
        await me.receive(0)


@pytest.mark.parametrize(
    ("worker", "server", "who"),
    [
        (skips_a_mean, None, r"workers \[0, 2\] wait in mean 1 for workers \[1\]"),
        (hears_nobody, None, "worker 0 waits for worker 1; worker 1 waits for worker 1"),
        (hears_nobody, sends_nothing, "worker 2 waits for worker 1; the server waits for worker 0"),
    ],
)
def test_a_deadlock_says_who_waits_for_whom(worker, server, who):
    assert re.search(f"deadlock: .*{who}", run_on(worker, server).stall)


def test_workers_out_of_step_are_noticed_when_the_first_one_is_done():
    async def worker(me, *, lr: float):
        x = me.start
        for step in count():
            x = x - lr * await me.gradient(x)
            if me.rank != 1 or step % 2:
                x = await me.mean(x)
            me.mark(x)

    assert run_on(worker).stall.startswith("deadlock: ")


def test_a_server_has_no_data_and_joins_no_collective():
    async def greedy(me, *, lr: float):
        await me.gradient(me.start)

    with pytest.raises(ProgramError, match="the server has no data"):
        run_on(hears_nobody, greedy)


def test_a_program_of_the_user_runs_beside_the_catalogue():
    """Defined here, in a scenario of its own; no file of the package names it."""

    async def sign_sgd(me, *, lr: float, majority: bool = True):
        """Signs only, decided by vote."""
        x = me.start
        while True:
            g = np.sign(await me.gradient(x))
            x = x - lr * (np.sign(await me.mean(g)) if majority else await me.mean(g))
            me.mark(x)

    programs = {**catalogue(), "sign-sgd": Program("sign-sgd", sign_sgd, "Bernstein et al., 2018")}
    world = scenario(
        {"name": "sign-sgd"}, {"name": "ssgd"}, {"name": "sign-sgd", "majority": False},
        objective=QUADRATIC, lr=0.01, programs=programs,
    )  # fmt: skip
    votes, _, means = (simulate(world, index) for index in range(3))
    assert votes.curve["loss"][-1] < votes.curve["loss"][0]
    assert votes.curve["loss"] != means.curve["loss"]
    start = build(world, world.algorithm[0], 0).start
    moved = (play(world).marks[0][-1] - start) / 0.01
    assert np.allclose(moved, np.round(moved), atol=1e-9)


def test_bytes_of_links_are_those_of_the_curve_for_every_program():
    """What is sent after the last point is in neither, whatever ends the run."""
    network = {"latency": "10 ms", "bandwidth": "1 Mbit/s"}
    ends = {"steps": 12}, {"steps": None, "run": {"duration": "9.7 s", "evaluate_every": 3}}
    for case, end, model in product(cases(), ends, ("closed-form", "flows")):
        with named(case):
            links = network | {"model": model}
            made = scenario(case, network=links, objective=QUADRATIC, **end)
            world = World(made, made.algorithm[0]).under()
            for result in dispatch.run_world(world, [0]):
                assert sum(result.links.values()) == pytest.approx(result.curve["bytes"][-1])
