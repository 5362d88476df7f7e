"""Simulated time: against theory, against models of the same cluster written here, and by hand."""

import gc
import heapq
import tracemalloc
from dataclasses import replace
from itertools import islice, repeat
from math import ceil, comb, expm1, log2, prod

import numpy as np
import pytest

from paceline.simulator.cluster import workers as cluster
from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.observer import POINTS
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.results.run import Kind
from paceline.simulator.theory import seconds_per_step
from tests.helpers.cases import covered, looped
from tests.helpers.programs import BATCHES, ROWS, cases
from tests.helpers.worlds import EXPONENTIAL, FREE, QUADRATIC, RING, play, scenario, simulate

PAYLOAD = 4000.0  # bytes: the model of these scenarios
SSGD, LOCAL, ASGD = {"name": "ssgd"}, {"name": "local-sgd", "tau": 5}, {"name": "asgd"}
UNEVEN = {
    "group": [
        {"name": "fast", "workers": 1, "compute": "413 ms"},
        {"name": "slow", "workers": 1, "compute": "1507 ms"},
    ]
}
LAWS = {
    "exponential": EXPONENTIAL,
    "uniform": {"dist": "uniform", "low": "0 s", "high": "2 s"},
    "lognormal": {"dist": "lognormal", "mean": "1 s", "sd": "500 ms"},
    "shifted": {"dist": "shifted-exponential", "shift": "250 ms", "mean": "300 ms"},
}


def rounds(world, index=0):
    """Return the seconds between evaluations."""
    return np.diff(simulate(world, index).curve["time"])


# Theory


@looped("law", LAWS)
@looped("tau", [1, 10])
def test_periodic_averaging_is_as_fast_as_theorem_1_says(law, tau):
    """Compare with random D, two kinds of workers, and stragglers."""
    world = scenario(
        {"name": "local-sgd", "tau": tau}, workers=8, compute=LAWS[law], steps=1500 * tau,
        network={"collective": "given", "duration": {"dist": "gamma", "mean": "1 s", "shape": 3}},
        run={"evaluate_every": tau},
        cluster={
            "extra": EXPONENTIAL, "extra_share": 0.5,
            "group": [{"name": "other", "workers": 2, "compute": LAWS["uniform"]}],
        },
    )  # fmt: skip
    expected = seconds_per_step(world.team.expected_laws, 1.0, tau)
    covered(rounds(world) / tau, expected)


@looped(("workers", "service"), [(1, 0.5), (4, 0.2), (12, 0.1)])
def test_a_server_is_as_busy_as_queueing_theory_says(workers, service):
    """Machines that fail and one repairman with constant repair times (Ashcroft 1950)."""
    steps = 20_000 // workers
    world = scenario(
        ASGD, workers=workers, compute=EXPONENTIAL, steps=steps, run={"evaluate_every": 1},
        server={"apply": f"{service} s"},
    )  # fmt: skip
    busy = workers * service * sum(
        comb(workers - 1, n) * prod(expm1(i * service) for i in range(1, n + 1))
        for n in range(workers)
    )  # fmt: skip
    utilisation = busy / (1 + busy)
    batches = np.diff(simulate(world).curve["time"][:: steps // 50])
    covered(batches, steps // 50 * workers * service / utilisation)


# By hand


def mean_of(collective, m, latency, transmission):
    """Return the seconds of a mean over m > 1 workers; a payload takes `transmission` on a link."""
    return {
        "ring": 2 * (m - 1) * (latency + transmission / m),
        "tree": 2 * ceil(log2(m)) * (latency + transmission),
        "star": 2 * latency + 2 * (m - 1) * transmission,
        "hierarchical": 2 * (m - 1) * (latency + transmission / m),  # inside one region: a ring
    }[collective]


@looped("workers", [1, 2, 5, 8])
@looped("collective", ["ring", "tree", "star", "hierarchical"])
def test_constant_times_by_hand(collective, workers):
    network = {"collective": collective, "latency": "20 ms", "bandwidth": "1 Mbit/s"}
    world = scenario(
        {"name": "psgd"}, SSGD, LOCAL, workers=workers, network=network,
        run={"evaluate_every": 5}, cluster={"region": "here"},
    )  # fmt: skip
    D = mean_of(collective, workers, 0.02, PAYLOAD * 8 / 1e6) if workers > 1 else 0
    for index, seconds in enumerate((5.0, 5 * (1 + D), 5 + D)):
        assert rounds(world, index) == pytest.approx([seconds] * 4, rel=1e-12)


def test_a_given_duration_is_that_of_a_whole_model():
    world = scenario(
        SSGD, {"name": "ssgd-bucketed", "buckets": 2}, run={"evaluate_every": 1},
        network={"collective": "given", "duration": "3 s"}, cluster={"forward_share": 0.5},
    )  # fmt: skip
    assert rounds(world) == pytest.approx([4.0] * 20)
    assert rounds(world, 1) == pytest.approx([0.75 + 1.5 + 1.5] * 20)  # freed, half, half


@looped("compute", ["1 s", EXPONENTIAL])
@looped("buckets", [1, 3, 8])
@looped(("forward", "accumulation"), [(0.0, 1), (0.25, 1), (0.25, 4)])
@looped("bandwidth", ["40 kbit/s", "1 Mbit/s"])
def test_buckets_by_hand(compute, buckets, forward, accumulation, bandwidth):
    """First in, first out: transmissions in turn, while the latency of the one before lasts.

    Of several micro-batches only the last one's backward pass frees buckets.
    """
    m, latency = 4, 0.05
    world = scenario(
        {"name": "ssgd-bucketed", "buckets": buckets}, workers=m, compute=compute, steps=40,
        network={"collective": "ring", "latency": "50 ms", "bandwidth": bandwidth},
        run={"evaluate_every": 1},
        cluster={"forward_share": forward, "accumulation": accumulation},
    )  # fmt: skip
    rate = {"40 kbit/s": 5e3, "1 Mbit/s": 1.25e5}[bandwidth]
    held = 2 * (m - 1) / m * PAYLOAD / buckets / rate
    times = cluster.compute_times(world, 0)
    now = free = 0.0
    expected = [now]
    for _ in range(40):
        durations = [next(time) for time in times]
        for bucket in range(1, buckets + 1):
            last = forward + (1 - forward) * bucket / buckets
            freed = now + max(durations) * (accumulation - 1 + last) / accumulation
            free = max(freed, free) + held
        now = free + 2 * (m - 1) * latency
        expected.append(now)
    assert simulate(world).curve["time"] == pytest.approx(expected, rel=1e-12)


@looped("tau", [1, 5])
def test_rounds_by_hand(tau):
    """The slowest sum of tau compute times, and then the mean."""
    world = scenario(
        {"name": "local-sgd", "tau": tau}, workers=5, compute=EXPONENTIAL, steps=40 * tau,
        network=RING, run={"evaluate_every": tau}, cluster=UNEVEN,
    )  # fmt: skip
    times = cluster.compute_times(world, 0)
    slowest = [max(sum(islice(time, tau)) for time in times) for _ in range(40)]
    assert rounds(world) == pytest.approx(np.array(slowest) + mean_of("ring", 5, 0.02, 0.032))


def test_finished_by_hand():
    """A mean of 2.5 s begins when the last worker joins; the last to ask decides for all."""

    async def worker(me, *, lr: float):
        g = await me.gradient(me.start)
        mean = me.start_mean(g)
        while not await me.finished(mean):
            await me.gradient(me.start)
        answers[me.rank] = me.clock()
        await me.wait(mean)
        assert me.clock() == answers[me.rank]

    answers = {}
    programs = {"mine": Program("mine", worker, "here")}
    world = scenario(
        {"name": "mine"}, workers=3, programs=programs, cluster=UNEVEN, compute="1 s",
        network={"collective": "given", "duration": "2500 ms"},
    )  # fmt: skip
    simulate(world)
    slowest, done = 1.507, 1.507 + 2.5  # all look when the slowest has computed once more
    assert answers == pytest.approx(dict.fromkeys(range(3), ceil(done / slowest) * slowest))


def test_who_is_through_with_its_steps_goes_on_answering():
    async def worker(me, *, lr: float):
        while True:
            (computing,) = await me.start_backward(me.start, 1)
            if me.rank == 0:
                while message := await me.receive_before(computing):
                    me.send(message[0], me.start)
            else:
                await me.request(0, me.start)
            await me.wait(computing)
            me.mark(me.start)

    programs = {"mine": Program("mine", worker, "here", averages=False, gossips=True)}
    world = scenario(
        {"name": "mine"}, workers=2, steps=3, programs=programs, cluster=UNEVEN,
        network={"collective": "star", "latency": "2 s"},
    )  # fmt: skip
    run = simulate(world)
    assert run.steps == 3
    assert run.duration == pytest.approx(3 * 4)  # there and back, while it computes


def parameter_server(times, up, down, updates, *, service=0.0, card=0.0):
    """Times at which a serial server is through with each gradient, by a loop of its own.

    Per worker, iterators of its compute times, and of how long its gradients are on their way up
    and the answers on their way down; `card`: seconds a payload takes through one direction of the
    server's network card.
    """
    arrivals = [(next(time) + next(up[w]), w) for w, time in enumerate(times)]
    heapq.heapify(arrivals)
    incoming = server = outgoing = 0.0
    done = []
    while len(done) < updates:
        at, w = heapq.heappop(arrivals)
        incoming = max(incoming, at) + card
        server = max(server, incoming) + service
        outgoing = max(outgoing, server) + card
        done.append(server)
        heapq.heappush(arrivals, (outgoing + next(down[w]) + next(times[w]) + next(up[w]), w))
    return done


@looped("compute", LAWS)
@looped(
    ("network", "transit"),
    [
        (FREE, 0.0),
        ({"latency": "30 ms", "bandwidth": "1 Mbit/s"}, 0.062),
        ({"latency": {"dist": "lognormal", "mean": "100 ms", "sd": "300 ms"}}, None),
    ],
)
@looped("card", [None, "1 Mbit/s"])
@looped("service", [0.0, 0.1])
def test_a_parameter_server_by_hand(compute, network, transit, card, service):
    m, steps = 6, 60
    world = scenario(
        ASGD, workers=m, compute=LAWS[compute], steps=steps, network=network,
        run={"evaluate_every": 1}, cluster=UNEVEN,
        server={"receive": f"{service / 4} s", "apply": f"{service * 3 / 4} s"}
        | ({"bandwidth": card} if card else {}),
    )  # fmt: skip

    def way(source, to):
        rng = generator(0, Purpose.MESSAGE, source * (m + 1) + to)
        return repeat(transit) if transit is not None else map(draw, repeat(rng))

    def draw(rng):
        return world.network.latency.sample(rng, 1).item()

    expected = parameter_server(
        cluster.compute_times(world, 0),
        [way(w, m) for w in range(m)], [way(m, w) for w in range(m)],
        m * steps, service=service, card=0.032 if card else 0.0,
    )  # fmt: skip
    result = simulate(world).curve
    assert result["step"] == list(range(steps + 1))
    np.testing.assert_allclose(result["time"], [0.0, *expected[m - 1 :: m]], rtol=0, atol=1e-9)


# The end of a run


def points(run):
    """Time and loss, by step; without the last point of a run that stood still up to its end."""
    columns = (run.curve[name][::-1] for name in ("step", "time", "loss"))
    return {step: (time, loss) for step, time, loss in zip(*columns, strict=True)}


@looped("case", cases())
def test_a_deadline_ends_a_run(case):
    """No point comes after it, and none before it is missing that a longer run has."""
    tables = {"compute": EXPONENTIAL, "network": RING, "objective": QUADRATIC, "steps": None}
    short, longer, coarse, automatic = (
        simulate(scenario(case, run={"duration": duration} | every, **tables))
        for duration, every in (
            ("25 s", {"evaluate_every": 1}), ("50 s", {"evaluate_every": 1}),
            ("25 s", {"evaluate_every": 3}), ("25 s", {}),
        )
    )  # fmt: skip
    seen = {step: point for step, point in points(longer).items() if point[0] <= 25}
    assert 5 < len(seen) < len(points(longer))
    assert points(short) == seen
    if case["name"] in BATCHES:
        assert points(coarse).items() < seen.items()
    else:
        assert points(coarse) == {step: point for step, point in seen.items() if step % 3 == 0}
    assert points(automatic).items() <= seen.items()
    assert longer.duration <= 50


@looped("case", cases())
def test_a_step_that_ends_at_the_deadline_counts(case):
    world = scenario(
        case, objective=QUADRATIC, steps=None, run={"duration": "12 s", "evaluate_every": 1}
    )
    time = simulate(world).curve["time"]
    assert time[-1] == pytest.approx(12)
    if case["name"] not in BATCHES:
        assert time == pytest.approx(list(range(13)))


def test_a_deadline_ends_messages_that_need_no_clock():
    """Two nodes only ever wait for each other; a run that ended by steps would take 5000."""

    async def worker(me, *, lr: float):
        while True:
            await me.request(me.server, await me.gradient(me.start))

    async def server(me, *, lr: float):
        while True:
            me.send(*await me.receive(0))

    programs = {"mine": Program("mine", worker, "here", server=server)}
    world = scenario(
        {"name": "mine"}, workers=1, steps=5000, run={"duration": "25 s"}, programs=programs
    )
    assert len(play(world).durations[0]) < 100


@looped("case", cases())
def test_one_worker_alone_ends_at_the_deadline(case):
    """It joins no other worker and waits for nothing."""
    one = {**case, "k": 1} if "k" in case else case
    made = scenario(one, workers=1, steps=None, network=RING, objective=QUADRATIC,
                    run={"duration": "30 s"})  # fmt: skip
    assert simulate(made).duration <= 30


STRAGGLER = {"group": [{"name": "slow", "workers": 1, "compute": "1000 s"}]}


@looped(
    "case",
    [{"name": "asgd"}, {"name": "k-sync", "k": 3}, {"name": "k-batch-async", "k": 1},
     {"name": "ad-psgd", "graph": "complete"}],
)  # fmt: skip
def test_nothing_after_the_last_update_counts(case):
    """One worker of four never finishes a step; the others do its share, and time ends there."""
    run = simulate(scenario(case, cluster=STRAGGLER, steps=30), spans=10**5)
    assert run.duration == pytest.approx(40, abs=2)
    assert np.max(run.spans["end"]) <= run.duration
    assert sum(run.seconds.values()) == pytest.approx(run.duration, rel=0.02)


def test_a_server_too_busy_makes_no_updates_after_the_deadline():
    made = scenario(
        ASGD, workers=10, steps=None, server={"apply": "10 s"},
        run={"duration": "25 s", "evaluate_every": 1},
    )  # fmt: skip
    run = simulate(made)
    assert run.updates <= 2
    assert sum(run.staleness.values()) <= 3  # the third is being served


def test_steps_or_the_deadline_whichever_comes_first():
    assert simulate(scenario(SSGD, steps=20, run={"duration": "100 s"})).steps == 20
    world = scenario(SSGD, steps=20, run={"duration": "10.5 s", "evaluate_every": 1})
    assert simulate(world).steps == 10


def test_a_worker_that_is_done_early_leaves_the_others_their_time():
    group = [{"name": name, "workers": 1, "compute": f"{seconds} s"}
             for name, seconds in (("fast", 1), ("slow", 10))]  # fmt: skip
    limits = {"duration": "25 s", "evaluate_every": 1}
    run = simulate(
        scenario({"name": "psgd"}, workers=2, steps=5, cluster={"group": group}, run=limits)
    )
    assert run.curve["time"] == [0, 10, 20]
    assert run.workers["compute"] == [5, 25]


@looped("case", cases())
@looped("every", [1, 7, 20])
def test_the_last_step_is_always_evaluated_and_looking_changes_nothing(case, every):
    tables = {"compute": EXPONENTIAL, "network": RING, "objective": QUADRATIC, "steps": 20}
    result = simulate(scenario(case, run={"evaluate_every": every}, **tables))
    closely = simulate(scenario(case, run={"evaluate_every": 1}, **tables))
    assert points(result).items() <= points(closely).items()
    if case["name"] in BATCHES:
        assert 20 <= result.steps < 20 + case.get("tau", 1)  # of a message
    else:
        assert result.curve["step"] == sorted({*range(0, 21, every), 20})


# What every worker did with its time


@looped("case", cases())
@looped("compute", ["1 s", EXPONENTIAL])
def test_spans_tell_each_nodes_time_without_gaps(case, compute):
    world = scenario(
        case, workers=3, compute=compute, objective=QUADRATIC, network=RING,
        server={"receive": "20 ms", "apply": "100 ms"}, steps=40,
    )  # fmt: skip
    run = simulate(world, spans=10**6)
    assert not run.spans_truncated
    kinds = {"compute": Kind.COMPUTE, "wait": Kind.WAIT, "communicate": Kind.COMMUNICATE}
    total = dict.fromkeys(kinds, 0.0)
    for rank in range(3):
        spans = np.sort(run.spans[run.spans["worker"] == rank], order="start")
        assert spans["start"][0] == 0
        assert np.all(spans["end"] > spans["start"])
        assert np.array_equal(spans["start"][1:], spans["end"][:-1])
        assert np.all(np.diff(spans["step"].astype(int)) >= 0)
        for name, kind in kinds.items():
            chosen = spans[spans["kind"] == kind]
            total[name] += float(np.sum(chosen["end"] - chosen["start"]))
    assert run.seconds == pytest.approx({name: time / 3 for name, time in total.items()})
    program = catalogue()[case["name"]]
    if not (program.server or program.gossips):
        assert np.max(run.spans["end"]) == run.duration


def test_recording_stops_at_the_limit_and_says_so():
    world = scenario(SSGD, workers=2, compute=EXPONENTIAL, steps=1000, network=RING)
    whole = simulate(world, spans=10**6)
    run = simulate(world, spans=100)
    assert run.spans_truncated
    assert 50 < len(run.spans) <= 100 + 2  # those of no length are left out
    assert np.array_equal(run.spans, whole.spans[: len(run.spans)])


def test_breakdown_by_hand():
    """Workers of 0.413, 1.507 and 1 s; a mean of D seconds; ten steps."""
    world = scenario(SSGD, workers=3, steps=10, network=RING, cluster=UNEVEN)
    D = mean_of("ring", 3, 0.02, 0.032)
    run = simulate(world)
    assert run.duration == pytest.approx(10 * (1.507 + D))
    assert run.seconds == pytest.approx(
        {"compute": 10 * 2.92 / 3, "wait": 10 * (1.094 + 0 + 0.507) / 3, "communicate": 10 * D}
    )


def test_waiting_for_the_server_and_for_the_way_there_by_hand():
    """Two workers: both send at 1 s and are there at 1.1; the second is served from 1.6 to 2.1."""
    world = scenario(
        ASGD, workers=2, steps=2, network={"latency": "100 ms"}, server={"apply": "500 ms"}
    )
    run = simulate(world, spans=100)
    spans = [
        (worker, Kind(kind).name, round(start, 9), round(end, 9))
        for worker, kind, start, end, _ in run.spans.tolist()
    ]
    first = [(0, "COMPUTE", 0, 1), (0, "WAIT", 1, 1.5), (0, "COMMUNICATE", 1.5, 1.7)]
    second = [(1, "COMPUTE", 0, 1), (1, "WAIT", 1, 2), (1, "COMMUNICATE", 2, 2.2)]
    assert {*first, *second} <= set(spans)
    assert (2, "SERVE", 1.1, 2.1) in spans


# Size


def peak(world):
    gc.collect()
    gc.disable()  # what a collection looks at differs from run to run
    tracemalloc.start()
    try:
        simulate(world)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


TIMED = [row for row in ROWS if row.name != "adacomm"]  # which needs a loss
OF_EACH_KIND = (  # of what grows with a run: means, parts of them, answers, messages, rounds
    "local-sgd", "ssgd-bucketed", "streaming-diloco", "asgd", "ad-psgd", "fedbuff",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=() if row.name in OF_EACH_KIND else pytest.mark.slow)
        for row in TIMED
    ],
)
def test_memory_does_not_grow_with_the_steps(row):
    """By less than a byte for each step of each worker."""

    def world(steps):
        return scenario(
            {"name": row.name, **row.variants[0]}, compute=EXPONENTIAL, steps=steps, workers=4,
            network=RING | {"jitter": EXPONENTIAL},
        )  # fmt: skip

    simulate(world(1000))  # imports and caches
    assert peak(world(8000)) < peak(world(3000)) + 4 * 5000  # blocks of numbers have grown by then


async def hears_nobody(me, *, lr: float):
    await me.receive(1)


@looped("enabled", [(0, 10, 10), (700, 10, 10), (10**6, 5, 5)])
def test_a_run_leaves_the_garbage_collector_as_it_was(enabled):
    """Also where it is long enough to collect what it left, and where it fails."""
    usual = gc.get_threshold()
    world = scenario(SSGD, compute=EXPONENTIAL, steps=20_000, workers=4)
    broken = {"ssgd": Program("ssgd", hears_nobody, "here")}
    try:
        gc.set_threshold(*enabled)
        simulate(world)
        assert gc.get_threshold() == enabled
        assert play(world.with_programs(broken)).stall
        assert gc.get_threshold() == enabled
    finally:
        gc.set_threshold(*usual)


def test_messages_are_counted_in_whole_bytes():
    """Messages of 1000.3 bytes count as 1000."""
    world = scenario(ASGD, compute=EXPONENTIAL, model={"bytes_per_parameter": 1.0003})
    assert simulate(world).curve["bytes"][-1] % 1000 == 0


def test_a_failing_server_reports_its_error():
    async def server(me, *, lr: float):
        await me.receive()
        raise RuntimeError("out of memory")

    programs = {"asgd": replace(catalogue()["asgd"], server=server)}
    with pytest.raises(RuntimeError, match="out of memory"):
        simulate(scenario(ASGD).with_programs(programs))


# How often a run of unknown length is evaluated


CASES = [{"name": "ssgd"}, {"name": "local-sgd", "tau": 7}, {"name": "asgd"}, {"name": "psgd"}]


@looped("case", CASES)
@looped("duration", [30, 390, 1700])
def test_a_run_ended_by_time_is_seen_to_its_end_in_a_few_hundred_points(case, duration):
    world = scenario(case, steps=None, run={"duration": f"{duration} s"})
    curve = simulate(world).curve
    steps = np.diff(curve["step"])
    assert len(set(np.round(steps, 9))) == 1  # evenly
    assert min(POINTS, duration * 0.9) <= len(steps) <= 2 * POINTS * 4  # asgd counts per worker
    assert curve["time"][-1] > duration * (1 - 1.5 / POINTS) - 1


def test_coarser_looks_are_among_finer_ones():
    """Constant compute of 1 s: 1,000 steps are more points than a curve may have."""
    worlds = [
        scenario(CASES[1], steps=None, run={"duration": "1000 s"} | run)
        for run in ({"evaluate_every": 1}, {})
    ]
    every, some = (simulate(world).curve for world in worlds)
    points = dict(zip(every["step"], every["time"], strict=True))
    assert len(some["step"]) < len(points)
    assert all(points[k] == t for k, t in zip(some["step"], some["time"], strict=True))


def test_a_run_without_a_second_point_and_one_that_never_averages_say_so():
    late = scenario(CASES[0], steps=None, run={"duration": "10 s", "evaluate_every": 100})
    assert "no step was evaluated" in simulate(late).notes[0]
    seldom = scenario({"name": "local-sgd", "tau": 100}, steps=50)
    assert any("never averaged" in note for note in simulate(seldom).notes)
    often = scenario({"name": "local-sgd", "tau": 10}, steps=50)
    assert not any("never averaged" in note for note in simulate(often).notes)
