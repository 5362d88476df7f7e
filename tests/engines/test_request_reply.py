"""The request-reply fast path: equal to `Simulation` to the last bit, or it falls back to it."""

from collections import deque
from dataclasses import replace
from itertools import count
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.engines.virtual import request_reply
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.engines.virtual.request_reply import RequestReply
from paceline.simulator.errors import DeadlockError
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.program import Program
from paceline.simulator.programs.server import push_and_pull
from tests.engines.test_compiled import ASGD, PROGRAMS, worlds
from tests.helpers.compute_times import OVERHEAD
from tests.helpers.worlds import EXPONENTIAL, QUADRATIC, scenario

FAR = {
    "network": {"latency": "400 ms", "bandwidth": "100 kbit/s"},
    "server": {"receive": "10 ms", "apply": "90 ms"},
    "overhead": [OVERHEAD],
}
PLACES = {
    "free": {"compute": EXPONENTIAL},
    "far": FAR | {"compute": EXPONENTIAL},
    "far and alike": FAR,
    "overloaded": {"compute": EXPONENTIAL, "server": {"apply": "700 ms"}},
}


def reference(world, seed=0, **options):
    """Run by `Simulation`."""
    with patch.object(request_reply, "supports", return_value=False):
        return virtual.run(world.algorithm[0], world, seed, **options)


def fast_path(world, seed=0, programs=None):
    """Run by `RequestReply`; fail if that falls back."""
    with patch.object(virtual, "Simulation", side_effect=AssertionError("fell back")):
        return virtual.run(world.algorithm[0], world, seed, programs=programs)


@settings(max_examples=150, deadline=None)
@given(world=worlds(), seed=st.integers(0, 10**6))
def test_all_equals_the_simulation_bit_by_bit(world, seed):
    ours = virtual.run(world.algorithm[0], world, seed)
    np.testing.assert_equal(vars(ours), vars(reference(world, seed)))


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case["name"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("end", [{"steps": 300}, {"duration": "290 s"}], ids=["steps", "duration"])
@pytest.mark.parametrize("workers", [1, 7])
def test_published_programs_take_the_fast_path(case, place, end, workers):
    k = {"k": min(case["k"], workers)} if "k" in case else {}
    slow = {"group": [{"name": "slow", "workers": 1, "compute": "70 s"}]} if workers > 1 else {}
    world = scenario(
        case | k, workers=workers, steps=None, run=end, cluster=slow,
        cost={"node_hour": 2.0, "egress_per_gb": 0.1}, **PLACES[place],
    )  # fmt: skip
    ours = fast_path(world)
    assert ours.updates > 10
    np.testing.assert_equal(vars(ours), vars(reference(world)))


def test_a_longest_queue_is_as_long_as_it_was():
    """Eight requests arrive at once and one is served, so that seven wait."""
    world = scenario(ASGD, workers=8, server={"apply": "100 ms"}, steps=30)
    assert fast_path(world).inbox_bytes == 7 * world.model.bytes


# What falls back


async def _nothing(me, worker, update):
    pass


async def _answering(me, *, before=_nothing, after=_nothing):
    for update in count(1):
        worker, _ = await me.receive()
        await before(me, worker, update)
        me.mark(me.start)
        me.send(worker, me.start)
        await after(me, worker, update)


async def _answer_again(me, worker, update):
    if update > 20:
        me.send(worker, me.start)


async def _take_back(me, worker, update):
    if update % 3 == 0:
        me.discard()


async def _to_no_worker(me, worker, update):
    if update == 5:
        me.send(me.workers + 1, me.start)


SERVERS = {
    "answers twice": {"after": _answer_again},
    "discards": {"before": _take_back},
    "answers no worker": {"after": _to_no_worker},
}


async def _silent(me):
    if me.rank:
        await push_and_pull(me)


async def _for_a_while(me):
    for _ in range(3 + me.rank):
        await me.request(me.server, await me.gradient(me.start))


async def _one_for_a_while(me):
    for _ in range(10**6 if me.rank else 3):
        await me.request(me.server, await me.gradient(me.start))


async def _of_a_neighbour(me):
    while True:
        await me.request((me.rank + 1) % me.workers, await me.gradient(me.start))


async def _broken(me):
    for _ in range(3 + me.rank):
        await me.request(me.server, await me.gradient(me.start))
    raise RuntimeError("out of memory")


async def _pairs(me):
    while True:
        await me.request(me.server, (await me.gradient(me.start), 1.0))


async def _separately(me):
    while True:
        me.send(me.server, await me.gradient(me.start))
        await me.receive(me.server)


async def _with_losses(me):
    while True:
        _, g = await me.loss_and_gradient(me.start)
        await me.request(me.server, g)


async def _averaging(me):
    while True:
        await me.mean(await me.gradient(me.start))
        await me.request(me.server, me.start)


async def _marking(me):
    while True:
        me.mark(await me.request(me.server, await me.gradient(me.start)))


WORKERS = [
    _silent, _for_a_while, _one_for_a_while, _broken, _of_a_neighbour, _pairs, _separately,
    _with_losses, _averaging, _marking,
]  # fmt: skip


def made(worker=push_and_pull, server=_answering) -> dict[str, Program]:
    return {"asgd": replace(catalogue()["asgd"], worker=worker, server=server)}


def outcome(run, world, programs):
    """Return all of a run's figures, or its error."""
    try:
        return vars(run(world, programs=programs))
    except (DeadlockError, LookupError, RuntimeError) as error:
        return type(error), str(error)


def ours(world, programs):
    return virtual.run(world.algorithm[0], world, 0, programs=programs)


def assert_falls_back(world, programs):
    algorithm = world.algorithm[0]
    with pytest.raises(Unsupported):
        RequestReply(programs["asgd"], algorithm, world, 0).run()
    np.testing.assert_equal(outcome(ours, world, programs), outcome(reference, world, programs))


def bare(world):
    """Drop all parameters but those that a test gives."""
    algorithm = world.algorithm[0].model_copy(update={"parameters": {}})
    return world.model_copy(update={"algorithm": [algorithm]})


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("end", [{"steps": 40}, {"duration": "60 s"}], ids=["steps", "duration"])
def test_servers_that_do_more_fall_back(name, end):
    world = bare(scenario(ASGD, compute=EXPONENTIAL, steps=None, run=end))

    async def server(me):
        await _answering(me, **SERVERS[name])

    assert_falls_back(world, made(server=server))


async def _in_parts(me):
    while True:
        worker, _ = await me.receive()
        me.mark(me.start)
        me.send(worker, (me.start, 1.0))


async def _before_it_marks(me):
    while True:
        worker, _ = await me.receive()
        me.send(worker, me.start)
        me.mark(me.start)


async def _in_turn(me):
    for update in count():
        worker, _ = await me.receive(update % me.workers)
        me.mark(me.start)
        me.send(worker, me.start)


@pytest.mark.parametrize("server", [_in_parts, _before_it_marks, _in_turn])
def test_other_servers_fall_back(server):
    assert_falls_back(bare(scenario(ASGD, compute=EXPONENTIAL)), made(server=server))


def test_a_server_that_fails_says_so():
    async def server(me):
        await me.receive()
        raise RuntimeError("out of memory")

    world = bare(scenario(ASGD))
    with pytest.raises(RuntimeError, match="out of memory"):
        ours(world, made(server=server))


@pytest.mark.parametrize("worker", WORKERS)
def test_workers_that_do_more_or_less_fall_back(worker):
    world = bare(scenario(ASGD, compute=EXPONENTIAL))
    assert_falls_back(world, made(worker=worker))


@pytest.mark.parametrize("end", [{"steps": 40}, {"duration": "60 s"}], ids=["steps", "duration"])
@pytest.mark.parametrize("keeps", [0, 1])
def test_a_server_that_lets_all_wait_falls_back(end, keeps):
    async def server(me):
        held = deque()
        for update in count():
            held.append((await me.receive())[0])
            me.mark(me.start)
            while len(held) > (keeps if update < 30 else me.workers):
                me.send(held.popleft(), me.start)

    world = bare(scenario(ASGD, compute=EXPONENTIAL, steps=None, run=end))
    assert_falls_back(world, made(server=server))


def test_a_server_that_returns_falls_back():
    async def server(me):
        for _ in range(9):
            worker, _ = await me.receive()
            me.mark(me.start)
            me.send(worker, me.start)

    assert_falls_back(bare(scenario(ASGD, compute=EXPONENTIAL)), made(server=server))


def test_bytes_are_counted_in_whole_numbers():
    """Messages of 1000.3 bytes: the same sum however they are counted."""
    world = scenario(ASGD, compute=EXPONENTIAL, model={"bytes_per_parameter": 1.0003})
    found = fast_path(world)
    np.testing.assert_equal(vars(found), vars(reference(world)))
    assert found.curve["bytes"][-1] % 1000 == 0


@pytest.mark.parametrize(
    "tables",
    [
        {"network": {"latency": EXPONENTIAL}},
        {"server": {"bandwidth": "1 Gbit/s"}},
        {"objective": QUADRATIC},
    ],
    ids=["latency", "card", "values"],
)
def test_worlds_that_need_more_go_to_the_simulation(tables):
    world = scenario(ASGD, compute=EXPONENTIAL, **tables)
    with pytest.raises(AssertionError, match="fell back"):
        fast_path(world)
    np.testing.assert_equal(vars(virtual.run(world.algorithm[0], world, 0)), vars(reference(world)))
