"""Parameter servers: against theory, and against loops of the same thing written out here."""

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.cluster import workers
from paceline.simulator.objectives.build import build
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.effects import ANY
from paceline.simulator.programs.server import Gate
from tests.helpers.cases import covered, looped
from tests.helpers.worlds import EXPONENTIAL, QUADRATIC, on_virtual, scenario

PAYLOAD = 4000.0  # bytes: the model of these scenarios
DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [4, 9]}
ASGD = {"name": "asgd"}
SLOW = {"group": [{"name": "slow", "workers": 1, "compute": "100 s"}]}
UNEVEN = {
    "group": [
        {"name": "slow", "workers": 2, "compute": {"dist": "gamma", "mean": "3 s", "shape": 2}}
    ]
}
SETTINGS = {
    "free": {},
    "far": {"network": {"latency": "400 ms"}, "cluster": UNEVEN},
    "busy": {"server": {"receive": "50 ms", "apply": "300 ms"}},
    "far and busy": {
        "network": {"latency": "400 ms"}, "server": {"receive": "50 ms", "apply": "300 ms"},
        "cluster": UNEVEN,
    },
}  # fmt: skip
CARD = {"network": {"latency": "400 ms"}, "server": {"bandwidth": "200 kbit/s", "apply": "100 ms"}}
everywhere = pytest.mark.parametrize("where", SETTINGS)


class Event(NamedTuple):
    """What a node did at a time by its clock; `other`: whom it sent to, or heard from."""

    time: float
    rank: int
    what: str
    value: Any = None
    other: int | None = None


class Watched:
    """A node whose values and times are seen; with an own start, where one is given."""

    def __init__(self, node, log, start):
        self._node, self._log = node, log
        self.start = node.start if start is None else start[node.rank]

    def __getattr__(self, name):
        return getattr(self._node, name)

    def _see(self, what, value=None, other=None):
        self._log.append(Event(self._node.clock(), self._node.rank, what, value, other))

    def leap(self, transform):
        """Take every step, so that it is seen."""

    async def gradient(self, x):
        self._see("begin", x)
        return await self._node.gradient(x)

    async def start_backward(self, x, pieces):
        handles = await self._node.start_backward(x, pieces)
        self._see("begin", x)
        return handles

    async def wait(self, handle):
        result = await self._node.wait(handle)
        self._see("wait", result)
        return result

    def send(self, to, value):
        self._see("send", value, to)
        self._node.send(to, value)

    async def request(self, to, value):
        self._see("send", value, to)
        answer = await self._node.request(to, value)
        self._see("receive", answer, to)
        return answer

    async def receive(self, source=ANY):
        sender, value = await self._node.receive(source)
        self._see("receive", value, sender)
        return sender, value

    async def receive_before(self, handle, source=ANY):
        message = await self._node.receive_before(handle, source)
        if message is not None:
            self._see("receive", message[1], message[0])
        return message

    def discard(self):
        self._see("discard")
        self._node.discard()

    def mark(self, x):
        self._see("mark", x)
        self._node.mark(x)


class Log(list[Event]):
    """Events in the order in which programs ran: at each node, in the order of its clock."""

    def at(self, rank, *kinds):
        """Events of some kinds, or of all, at one node."""
        return [e for e in self if e.rank == rank and (not kinds or e.what in kinds)]

    def times(self, rank, kind="mark"):
        """When a node did what."""
        return [event.time for event in self.at(rank, kind)]

    def values(self, rank, kind="mark"):
        """What it did it with."""
        return [event.value for event in self.at(rank, kind)]


def watch(world, index=0, seed=5, start=None):
    """Run one of a scenario's algorithms; return the run and its log."""
    algorithm = world.algorithm[index]
    program = catalogue()[algorithm.name]
    log = Log()

    def seen(function):
        @wraps(function)
        def begin(me, **parameters):
            return function(Watched(me, log, start), **parameters)

        return begin

    server = program.server and seen(program.server)
    watched = replace(program, worker=seen(program.worker), server=server)
    return on_virtual(algorithm, world.with_programs({algorithm.name: watched}), seed), log


# Theory


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


def gaps(case, m, updates=3000, **tables):
    """Seconds from each update to the next, with exponential compute of rate 2 per second."""
    steps = ceil(updates * case.get("k", 1) / m)
    world = scenario(
        case, workers=m, steps=steps, compute={"dist": "exponential", "mean": "500 ms"}, **tables
    )
    _, log = watch(world)
    return np.diff([0.0, *log.times(m)])


@looped(("m", "k"), [(4, 1), (4, 4), (8, 3)])
@looped("name", ["k-sync", "k-async"])
def test_who_waits_waits_for_the_fastest_k(name, m, k):
    """Memoryless workers are as far whether they begin anew or go on. With k = 1 it is asgd's
    pace, with k = m that of synchronous SGD.
    """
    covered(gaps({"name": name, "k": k}, m), (harmonic(m) - harmonic(m - k)) / 2)


@looped(("m", "k"), [(1, 1), (4, 1), (4, 4), (8, 3), (3, 2)])
def test_k_batch_async_keeps_everybody_busy(m, k):
    covered(gaps({"name": "k-batch-async", "k": k}, m), k / (2 * m))


# Servers by a loop of their own


@dataclass
class Account:
    """What a run should come to."""

    times: list[float] = field(default_factory=list)
    marks: list[np.ndarray] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    discarded: int = 0


def rate(lr, step):
    return 0.1 * 0.5 ** sum(step > at for at in DECAY["at"]) if lr is DECAY else lr


def parts(world, seed):
    goal = build(world, world.algorithm[0], seed)
    streams = [goal.source(rank) for rank in range(world.cluster.workers)]
    transit = world.network.latency.expectation
    return goal.start, streams, workers.compute_times(world, seed), transit


def collected(world, *, K, mean=False, wait=True, lr=0.1, mu=0.0, seed=5):
    """A serial server that updates with K(gradients so far, updates so far) gradients or more.

    Payloads go through the server's card, if it has one, one by one in either direction.
    """
    m, receive, apply = world.cluster.workers, world.server.receive, world.server.apply
    card = PAYLOAD / world.server.bandwidth if world.server.bandwidth else 0.0
    incoming = outgoing = 0.0
    x, streams, times, transit = parts(world, seed)
    account, number = Account(), count()
    u, total, got, held, updates, free = 0.0, 0.0, 0, [], 0, 0.0
    seen = [(x, 0)] * m
    arrivals = [(next(times[w]) + transit, next(number), w) for w in range(m)]
    heapq.heapify(arrivals)
    while True:
        at, _, w = heapq.heappop(arrivals)
        incoming = at = max(at, incoming) + card
        free = max(at, free) + receive
        model, version = seen[w]
        account.staleness[updates - version] += 1
        total, got, held = total + streams[w].gradient(model), got + 1, [*held, w]
        if len(held) >= min(m, K(got, updates)):
            free += apply
            u = mu * u + (total / len(held) if mean else total)
            x = x - rate(lr, ceil(got / m)) * u
            account.times.append(free)
            account.marks.append(x)
            updates += 1
            released, total, held = (held if wait else [w]), 0.0, []
            if got >= m * world.run.steps:
                return account
        else:
            released = [] if wait else [w]
        for worker in released:
            seen[worker] = x, updates
            outgoing = max(free, outgoing) + card
            arrival = outgoing + transit + next(times[worker]) + transit
            heapq.heappush(arrivals, (arrival, next(number), worker))


CASES = {
    "asgd": (ASGD | {"lr": DECAY, "momentum": 0.5}, {"K": lambda G, U: 1, "lr": DECAY, "mu": 0.5}),
    "k-async": (
        {"name": "k-async", "k": 3, "lr": DECAY}, {"K": lambda G, U: 3, "mean": True, "lr": DECAY},
    ),
    "k-batch-async": (
        {"name": "k-batch-async", "k": 4, "momentum": 0.5},
        {"K": lambda G, U: 4, "mean": True, "wait": False, "mu": 0.5},
    ),
    "hybrid": (
        {"name": "hybrid", "step_size": 13, "lr": 0.02},
        {"K": lambda G, U: 1 + G // 13, "lr": 0.02},
    ),
    "hybrid by updates": (
        {"name": "hybrid", "step_size": 7, "count": "updates", "aggregate": "mean", "lr": DECAY},
        {"K": lambda G, U: 1 + U // 7, "mean": True, "lr": DECAY},
    ),
    "hybrid that answers at once": (
        {"name": "hybrid", "step_size": 20, "wait": False, "momentum": 0.3, "lr": 0.02},
        {"K": lambda G, U: 1 + G // 20, "wait": False, "mu": 0.3, "lr": 0.02},
    ),
}  # fmt: skip


@looped("where", [*SETTINGS, "card"])
@looped("case", CASES)
def test_a_collecting_server_by_hand(case, where):
    """Every update's time and parameters, the staleness of every gradient, and the queue."""
    table, rule = CASES[case]
    place = SETTINGS.get(where, CARD)
    tables = {"workers": 6, "compute": EXPONENTIAL, "objective": QUADRATIC} | place
    world = scenario(table, steps=20, **tables)
    run, log = watch(world)
    expected = collected(world, **rule)
    assert np.array_equal(log.values(6), expected.marks)
    np.testing.assert_allclose(log.times(6), expected.times, rtol=1e-12)
    assert run.staleness == expected.staleness
    assert run.staleness_unit == "updates"
    assert run.updates == len(expected.times)
    assert run.steps == sum(expected.staleness.values()) / 6


def raced(world, k, seed=5):
    """K-sync: everybody begins each round at the same time, so that rounds follow one by one."""
    m, receive, apply = world.cluster.workers, world.server.receive, world.server.apply
    x, streams, times, transit = parts(world, seed)
    account = Account()
    begin = free = 0.0
    late: list[float] = []  # when gradients arrive whose round had ended before
    while len(account.times) * k < m * world.run.steps:
        computed = sorted((begin + next(times[w]), w) for w in range(m))
        gradients = [stream.gradient(x) for stream in streams]
        for arrival in [*late, *(done + transit for done, _ in computed[:k])]:
            free = max(arrival, free) + receive
        free += apply
        x = x - 0.1 * (sum(gradients[w] for _, w in computed[:k]) / k)
        account.times.append(free)
        account.marks.append(x)
        account.discarded += len(late)
        begin = free + transit
        late = [done + transit for done, _ in computed[k:] if done <= begin]
    return account


@everywhere
@pytest.mark.parametrize("k", [1, 4, 6])
def test_k_sync_by_hand(k, where):
    tables = {"workers": 6, "compute": EXPONENTIAL, "objective": QUADRATIC} | SETTINGS[where]
    world = scenario({"name": "k-sync", "k": k}, steps=20, **tables)
    run, log = watch(world)
    expected = raced(world, k)
    np.testing.assert_allclose(log.values(6), expected.marks, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(log.times(6), expected.times, rtol=1e-12)
    assert len(log.at(6, "discard")) == expected.discarded
    assert (expected.discarded > 0) == (k < 6 and where != "free")
    used = len(log.at(6, "receive")) - expected.discarded
    assert run.staleness == {0: used}
    assert used == k * run.updates == k * ceil(6 * 20 / k)
    assert run.steps == used / 6
    down = {name: size for name, size in run.links.items() if name.startswith("server")}
    answers = run.updates - 1  # none to the last gradients
    assert down == {f"server->worker {w}": answers * (PAYLOAD + 8) for w in range(6)}


# K-sync cancels


def test_nobody_waits_for_a_worker_that_k_sync_can_do_without():
    """It is 100 times slower, never heard of, and begins every round at the newest model."""
    world = scenario(
        {"name": "k-sync", "k": 3}, cluster=SLOW, objective=QUADRATIC, steps=30, workers=4
    )
    run, log = watch(world)
    assert run.updates == 40
    assert log.times(4) == pytest.approx(range(1, 41), rel=1e-12)
    assert {event.other for event in log.at(4, "receive")} == {1, 2, 3}
    begun = [event for event in log.at(0, "begin") if event.time < 39.5]
    assert [event.time for event in begun] == pytest.approx(range(40), rel=1e-12)
    newest = [log.values(1, "begin")[0], *log.values(4)]
    assert np.array_equal([event.value for event in begun], newest[:40])
    assert (run.seconds["wait"], run.seconds["communicate"]) == (0, 0)


@looped("k", [1, 2, 5])
def test_k_sync_applies_no_gradient_of_another_round(k):
    """However messages straggle: each of an update's K was computed at the newest model."""
    jitter = {"dist": "lognormal", "mean": "1 s", "sd": "3 s"}
    world = scenario(
        {"name": "k-sync", "k": k}, workers=5, compute=EXPONENTIAL, objective=QUADRATIC, steps=40,
        network={"latency": jitter}, server={"receive": "20 ms", "apply": "100 ms"},
    )  # fmt: skip
    run, log = watch(world)
    models, used = [log.values(0, "begin")[0], *log.values(5)], []
    for before, event in zip([None, *log.at(5)], log.at(5), strict=False):
        if event.what == "receive":
            used.append(event)
        elif event.what == "discard":
            assert before.what == "receive"
            used.pop()
    assert len(used) == k * run.updates
    for update in range(run.updates):
        batch = [event.value for event in used[k * update : k * (update + 1)]]
        assert {number for _, number in batch} == {update}
        step = 0.1 * sum(g for g, _ in batch) / k
        np.testing.assert_allclose(models[update] - step, models[update + 1], rtol=1e-12)
    for rank in range(5):
        begun = None
        for event in log.at(rank, "begin", "send"):
            if event.what == "send":  # its number is that of the model it was computed at
                assert np.array_equal(models[int(event.value[1])], begun)
            else:
                begun = event.value
    assert run.staleness == {0: len(used)}


# Identities


def hybrid(**parameters):
    return {"name": "hybrid", "aggregate": "mean", **parameters}


@everywhere
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "hybrid", "threshold": 1}, ASGD),
        ({"name": "ssp", "staleness": 10**9}, ASGD),
        (hybrid(threshold=3, wait=False), {"name": "k-batch-async", "k": 3}),
        (hybrid(threshold=3), {"name": "k-async", "k": 3}),
    ],
    ids=lambda case: " ".join(map(str, case.values())),
)
def test_one_server_is_another(one, other, where):
    """To the last bit, in parameters and in times."""
    tables = {"workers": 5, "compute": EXPONENTIAL, "objective": QUADRATIC} | SETTINGS[where]
    lr = 0.05 if one["name"] == "ssp" else DECAY  # which takes its rate by the worker's own clock
    world = scenario(one, other, lr=lr, optimizer={"momentum": 0.4}, **tables)
    (ours, first), (theirs, second) = watch(world), watch(world, 1)
    assert np.array_equal(first.values(5), second.values(5))
    assert first.times(5) == second.times(5)
    np.testing.assert_equal(ours.curve, theirs.curve)
    assert (ours.seconds, ours.staleness) == (theirs.seconds, theirs.staleness)


@looped(
    ("case", "share", "every"),
    [
        ({"name": "hybrid", "threshold": 5}, 1, 1),
        ({"name": "ssp", "staleness": 0}, 1, 5),
        ({"name": "k-async", "k": 5}, 5, 1),
        ({"name": "k-sync", "k": 5}, 5, 1),
    ],
)
@looped("compute", ["1 s", EXPONENTIAL])
def test_who_waits_for_all_is_synchronous(case, share, every, compute):
    """Sums are synchronous SGD at a rate `workers` times as high; all begin at one model."""
    momentum = 0.0 if case["name"] == "ssp" else 0.4  # of which it has five updates a round
    world = scenario(
        {"name": "ssgd", "lr": DECAY}, case | {"lr": DECAY | {"start": 0.1 * share / 5}},
        optimizer={"momentum": momentum}, workers=5, compute=compute, objective=QUADRATIC,
    )  # fmt: skip
    (_, ssgd), (_, served) = watch(world), watch(world, 1)
    actual = served.values(5)[every - 1 :: every]
    np.testing.assert_allclose(actual, ssgd.values(0), rtol=1e-12, atol=1e-15)
    assert served.times(5)[every - 1 :: every] == pytest.approx(ssgd.times(0))
    begun = [served.values(rank, "begin")[:20] for rank in range(5)]
    assert all(np.array_equal(begun[0], parameters) for parameters in begun)


# SSP


@looped("staleness", [0, 1, 4])
@looped("unequal", [UNEVEN, SLOW])
@looped("where", ["free", "far and busy"])
def test_nobody_goes_further_than_ssp_allows_or_waits_without_need(staleness, unequal, where):
    tables = SETTINGS[where] | {"cluster": unequal, "compute": EXPONENTIAL, "workers": 5}
    world = scenario({"name": "ssp", "staleness": staleness}, steps=40, **tables)
    run, log = watch(world)
    clocks, waiting, released, ahead = [0] * 5, set(), set(), []
    for event in log.at(5):
        if event.what == "receive":
            assert not released
            ahead.append(max(clocks) - min(clocks))
            clocks[event.other] += 1
            waiting.add(event.other)
        elif event.what == "mark":
            released = {w for w in waiting if clocks[w] - min(clocks) <= staleness}
            waiting -= released
        else:
            released.remove(event.other)
    assert max(ahead) == staleness + 1  # of steps done; more are not begun
    if unequal is SLOW:
        assert sum(lag == staleness + 1 for lag in ahead) >= 35
        assert run.duration > 100 * (run.steps - staleness - 1)
    for rank in range(5):  # by the workers' own clocks: to have begun is to have heard
        begun, heard = log.times(rank, "begin"), log.times(rank, "receive")
        assert begun[1:] == heard[: len(begun) - 1]


# Gates


@given(
    workers=st.integers(1, 6),
    lead=st.sampled_from([0, 1, 2, 10**9]),
    picks=st.lists(st.integers(0, 5), max_size=80),
)
def test_a_gate_lets_those_go_on_who_are_not_too_far_ahead(workers, lead, picks):
    gate, times, waiting = Gate(workers, lead), [0] * workers, []
    for pick in picks:
        here = [worker for worker in range(workers) if worker not in waiting]
        worker = here[pick % len(here)]
        times[worker] += 1
        waiting.append(worker)
        free = [rank for rank in waiting if times[rank] - min(times) <= lead]
        assert gate.admit(worker) == free
        waiting = [rank for rank in waiting if rank not in free]
