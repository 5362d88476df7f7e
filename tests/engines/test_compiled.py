"""Parameter servers in compiled time: equal to the reference engine, whatever is asked of them."""

import sys
import tracemalloc
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.compiled import run as compiled
from paceline.simulator.engines.compiled import seed_run
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.gate import bounded_lead
from paceline.simulator.results.run import COLUMNS
from tests.helpers.cases import looped
from tests.helpers.compute_times import OVERHEAD
from tests.helpers.worlds import EXPONENTIAL, QUADRATIC, scenario

ASGD = {"name": "asgd"}
SSP = {"name": "ssp", "staleness": 2}
K_ASYNC = {"name": "k-async", "k": 3}
PROGRAMS = [
    ASGD, SSP, K_ASYNC,
    {"name": "k-batch-async", "k": 2},
    {"name": "hybrid", "step_size": 13},
    {"name": "hybrid", "step_size": 4, "wait": False, "count": "updates", "aggregate": "mean"},
]  # fmt: skip


def run(world, seeds=(0,), index=0, **options):
    algorithm = world.algorithm[index]
    return compiled.run(catalogue()[algorithm.name], algorithm, world, seeds, **options)


def assert_equal(ours, theirs):
    """All times to rounding, all counts exactly."""
    for name in COLUMNS:
        exact = name in ("step", "bytes")
        np.testing.assert_allclose(
            ours.curve[name], theirs.curve[name], rtol=0 if exact else 1e-9, err_msg=name
        )
    for name in theirs.seconds:
        off = ours.seconds[name] - theirs.seconds[name]
        assert abs(off) <= 1e-9 * theirs.duration + 1e-12, name
        np.testing.assert_allclose(ours.workers[name], theirs.workers[name], rtol=1e-9, atol=1e-9)
    assert ours.duration == pytest.approx(theirs.duration, rel=1e-9)
    exact = {"engine": "batched", "curve": {}, "seconds": {}, "workers": {}, "duration": 0.0}
    assert replace(ours, **exact) == replace(theirs, **exact)


def assert_as_virtual(world, seeds=(0,), **options):
    for seed, ours in zip(seeds, run(world, seeds, **options), strict=True):
        assert_equal(ours, virtual.run(world.algorithm[0], world, seed))


# Whatever the scenario

TIMES = st.one_of(
    st.sampled_from([
        "1 s", "1 s", EXPONENTIAL,
        {"dist": "shifted-exponential", "shift": "500 ms", "mean": "1 s"},
        {"dist": "uniform", "low": "200 ms", "high": "2 s"},
        {"dist": "normal", "mean": "1 s", "sd": "100 ms"},
        {"dist": "lognormal", "mean": "1 s", "sd": "2 s"},
        {"dist": "gamma", "mean": "1 s", "shape": 2},
        {"dist": "weibull", "scale": "1 s", "shape": 1.5},
        {"dist": "pareto", "minimum": "300 ms", "alpha": 1.8},
        {"dist": "mixture", "components": [
            {"weight": 3, "dist": "constant", "value": "1 s"},
            {"weight": 1, "dist": "exponential", "mean": "4 s"}]},
    ])
)  # fmt: skip
DELAYS = st.sampled_from([
    "0 s", "0 s", "300 ms", {"dist": "exponential", "mean": "200 ms"},
    {"dist": "uniform", "low": "10 ms", "high": "900 ms"},
])  # fmt: skip
PAUSES = st.sampled_from(["0 s", "20 ms", "250 ms", "500 ms"])
RATES = st.sampled_from([None, "100 kbit/s", "31 kbit/s"])
LR = st.sampled_from([0.1, {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [5, 12]}])
CODECS = st.sampled_from([
    "raw", "fp16", {"kind": "top-k", "ratio": 0.03}, {"kind": "random-k", "ratio": 0.1},
    {"kind": "qsgd", "compress": "30 ms", "decompress": "20 ms"},
    {"kind": "raw", "times": 1.7, "compress": "50 ms"},
])  # fmt: skip
DGC = {"kind": "dgc", "ratio": 0.01, "warmup": 30}


def optional(**strategies):
    """A table with any of the keys, and none where its value is None."""
    return st.fixed_dictionaries({}, optional=strategies).map(
        lambda table: {key: value for key, value in table.items() if value is not None}
    )


@st.composite
def algorithms(draw, workers):
    k = st.integers(1, workers)
    case = draw(
        st.one_of(
            st.just(ASGD),
            st.fixed_dictionaries(
                {"name": st.just("ssp"), "staleness": st.sampled_from([0, 1, 3, 10**9])}
            ),
            st.fixed_dictionaries({"name": st.sampled_from(["k-async", "k-batch-async"]), "k": k}),
            st.fixed_dictionaries(
                {
                    "name": st.just("hybrid"),
                    "step_size": st.integers(1, 40),
                    "wait": st.booleans(),
                    "aggregate": st.sampled_from(["sum", "mean"]),
                    "count": st.sampled_from(["arrivals", "updates"]),
                }
            ),
        )
    )
    return case | draw(optional(lr=LR, codec=CODECS, momentum=st.sampled_from([0.0, 0.5])))


@st.composite
def clusters(draw, workers):
    table = {"compute": draw(TIMES), "workers": workers}
    if draw(st.booleans()):
        table |= {"extra": draw(TIMES), "extra_share": draw(st.sampled_from([0.5, 0.7, 1.0]))}
    if draw(st.booleans()):
        table["region"] = "home"
        several = draw(st.integers(1, workers))
        away = {"name": "away", "region": "away", "workers": several, "compute": draw(TIMES)}
        table["group"] = [away]
    return table


@st.composite
def networks(draw, regions):
    table = {"latency": draw(DELAYS)} | draw(optional(bandwidth=RATES, jitter=DELAYS))
    if regions and draw(st.booleans()):
        link = {"between": ["away", "server"], "latency": draw(DELAYS)}
        table["link"] = [link | draw(optional(bandwidth=RATES))]
    return table


@st.composite
def worlds(draw):
    workers = draw(st.integers(1, 8))
    cluster = draw(clusters(workers))
    ends = st.fixed_dictionaries({"duration": st.sampled_from(["3 s", "10 s", "7300 ms", "40 s"])})
    steps = draw(st.sampled_from([None, 1, 7, 30]))
    case = draw(algorithms(workers))
    # what it costs to answer those whom a gate lets go is for the reference engine
    costs = OVERHEAD | ({"send": "0 s"} if case["name"] == "ssp" else {})
    return scenario(
        case,
        workers=workers,
        compute=cluster["compute"],
        steps=steps,
        cluster=cluster,
        network=draw(networks("group" in cluster)),
        server=draw(optional(receive=PAUSES, apply=PAUSES, bandwidth=RATES)),
        run=draw(ends if steps is None else st.one_of(st.just({}), ends))
        | draw(optional(evaluate_every=st.integers(1, min(steps or 9, 9)))),
        cost={"node_hour": 2.0, "egress_per_gb": 0.1},
        model={"bytes_per_parameter": draw(st.sampled_from([4, 1.3]))},
        overhead=draw(st.sampled_from([[], [costs]])),
    )


@settings(max_examples=150, deadline=None)
@given(world=worlds(), seed=st.integers(0, 10**6))
def test_all_equals_the_reference_engine(world, seed):
    assert_as_virtual(world, (seed, seed + 1))


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case["name"])
@pytest.mark.parametrize("place", ["free", "far and busy"])
def test_long_runs_equal_the_reference_engine(case, place, monkeypatch):
    """Several pieces of the trace, rings filled again and again, thinned points, rare visitors."""
    monkeypatch.setattr("paceline.simulator.engines.compiled.seed_run.RING", (64, 64))
    far = {
        "network": {"latency": {"dist": "gamma", "mean": "400 ms", "shape": 3}},
        "server": {"receive": "10 ms", "apply": "40 ms", "bandwidth": "10 Mbit/s"},
    }
    slow = {"group": [{"name": "slow", "workers": 1, "compute": "700 s"}]}
    world = scenario(
        case, workers=6, steps=None, compute=EXPONENTIAL, cluster=slow, run={"duration": "2500 s"},
        **(far if place == "far and busy" else {}),
    )  # fmt: skip
    assert_as_virtual(world, (0, 7), threads=2)


@looped("server", [{}, {"bandwidth": "100 kbit/s"}, {"apply": "250 ms"}])
def test_a_codec_whose_messages_shrink_equals_the_reference_engine(server):
    slow = {"group": [{"name": "slow", "workers": 1, "compute": "9 s"}]}
    world = scenario(
        {"name": "asgd", "codec": DGC}, compute=EXPONENTIAL, cluster=slow, steps=60,
        network={"latency": "0 s", "bandwidth": "31 kbit/s"}, server=server,
    )  # fmt: skip
    assert_as_virtual(world)


def test_measured_times_equal_the_reference_engine(tmp_path):
    file = tmp_path / "times.txt"
    file.write_text("0.5\n1.0\n1.5\n1.0\n")
    world = scenario(SSP, compute={"dist": "empirical", "file": str(file)})
    assert_as_virtual(world)


def test_a_bound_equals_the_reference_engine():
    programs = {"asgd": replace(catalogue()["asgd"], bound_covers=True)}
    bound = {"kind": "bound", "initial_gap": 1.0, "smoothness": 1.0, "gradient_variance": 1.0}
    world = scenario(ASGD, compute=EXPONENTIAL, objective=bound, programs=programs)
    ours = compiled.run(programs["asgd"], world.algorithm[0], world, [3])[0]
    assert_equal(ours, virtual.run(world.algorithm[0], world, 3, programs=programs))
    assert np.isfinite(ours.curve["loss"][1:]).all()


# Whoever it is run with


@looped("case", [ASGD, SSP, K_ASYNC])
def test_a_run_depends_on_its_seed_alone(case):
    """Bit for bit, whichever seeds are run with it and however many threads do it."""
    world = scenario(
        case, workers=5, compute=EXPONENTIAL, steps=1200, network={"latency": EXPONENTIAL}
    )
    seeds, interval = range(4), sys.getswitchinterval()
    alone = [run(world, [seed])[0] for seed in seeds]
    for several in (
        run(world, seeds), run(world, seeds, threads=2), run(world, seeds, threads=3),
        run(world, seeds[::-1], threads=2)[::-1],
    ):  # fmt: skip
        for one, other in zip(alone, several, strict=True):
            np.testing.assert_equal(vars(one), vars(other))
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize("waiting", [1, 3])
@pytest.mark.parametrize("end", [{"steps": 900}, {"duration": "1500 s"}], ids=["steps", "duration"])
@pytest.mark.parametrize("place", [{}, {"cluster": {"region": "home"}}], ids=["free", "charged"])
def test_a_run_does_not_depend_on_how_many_marks_wait(waiting, end, place, monkeypatch):
    world = scenario(
        K_ASYNC, workers=5, compute=EXPONENTIAL, steps=None, run=end,
        cost={"egress_per_gb": 0.1}, **place,
    )  # fmt: skip
    before = run(world)[0]
    assert len(before.curve["step"]) > 150
    monkeypatch.setattr(seed_run, "MARKS", waiting)
    np.testing.assert_equal(vars(run(world)[0]), vars(before))


@pytest.mark.long
def test_memory_does_not_grow_with_steps():
    def peak(steps):
        world = scenario(SSP, workers=8, compute=EXPONENTIAL, steps=steps, server={"apply": "1 ms"})
        tracemalloc.start()
        try:
            run(world, [0])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(15_000) < 1.1 * peak(5_000)


# Gates


@given(
    workers=st.integers(1, 6),
    lead=st.sampled_from([0, 1, 2, 10**9]),
    picks=st.lists(st.integers(0, 5), max_size=80),
)
def test_a_gate_lets_those_go_on_who_are_not_too_far_ahead(workers, lead, picks):
    gate, times, waiting = bounded_lead(workers, lead), [0] * workers, []
    for pick in picks:
        here = [worker for worker in range(workers) if worker not in waiting]
        worker = here[pick % len(here)]
        times[worker] += 1
        waiting.append(worker)
        free = [each for each in waiting if times[each] - min(times) <= lead]
        assert gate.admit(worker) == free
        waiting = [each for each in waiting if each not in free]


# What is handed over


async def _nosy(me, look):
    while True:
        worker, _ = await me.receive()
        look(me, worker)
        me.mark(me.start)
        me.send(worker, me.start)


async def _forgetful(me):
    senders = []
    for _ in count():
        senders.append((await me.receive())[0])
        if len(senders) == 3:
            me.send(senders[0], me.start)


def _twice(me, worker):
    me.send(worker, me.start)


def _break(me, worker):
    for each in bounded_lead(me.workers, 1).admit(worker):
        me.send(each, me.start)
        me.send(0, me.start)


LOOKS = {
    "index": (lambda me, worker: [0, 1][worker], "who sent"),
    "compare": (lambda me, worker: worker == 0, "who sent"),
    "key": (lambda me, worker: {worker: 1}, "who sent"),
    "add": (lambda me, worker: 1 + worker, "who sent"),
    "truth": (lambda me, worker: not worker, "who sent"),
    "method": (lambda me, worker: worker.bit_length(), "who sent"),
    "clock": (lambda me, worker: me.clock(), "clock"),
    "chance": (lambda me, worker: me.generator().random(), "random numbers"),
    "rank": (lambda me, worker: me.send(0, me.start), "more than answer"),
    "twice": (_twice, "more than answer"),
    "unanswered": (lambda me, worker: bounded_lead(me.workers, 1).admit(worker), "more than"),
    "another": (_break, "more than answer"),
}


def handed(program, world, **parameters):
    algorithm = world.algorithm[0].model_copy(update={"parameters": parameters})
    with pytest.raises(Unsupported) as caught:
        compiled.run(program, algorithm, world, [0])
    return str(caught.value)


@looped("look", LOOKS)
def test_a_server_that_looks_at_who_sends_is_handed_over(look):
    program = replace(catalogue()["asgd"], server=_nosy)
    does, reason = LOOKS[look]
    assert reason in handed(program, scenario(ASGD), look=does)


def test_a_server_that_lets_all_wait_is_handed_over():
    program = replace(catalogue()["asgd"], server=_forgetful)
    assert "wait" in handed(program, scenario(ASGD))


async def _by_rank(me):
    while me.rank < 2:
        await me.request(me.server, await me.gradient(me.start))


async def _two_gradients(me):
    while True:
        await me.gradient(me.start)
        await me.request(me.server, await me.gradient(me.start))


async def _pausing(me):
    while True:
        await me.request(me.server, await me.gradient(me.start))
        me.work(1.0)


async def _scalars(me):
    while True:
        await me.request(me.server, (await me.gradient(me.start), 1.0))


def test_work_may_be_anywhere():
    programs = {"asgd": replace(catalogue()["asgd"], worker=_pausing)}
    world = scenario(ASGD, compute=EXPONENTIAL, programs=programs)
    ours = compiled.run(programs["asgd"], world.algorithm[0], world, [3])[0]
    assert_equal(ours, virtual.run(world.algorithm[0], world, 3, programs=programs))


def test_a_run_with_vectors_is_handed_over():
    world = scenario(ASGD, objective=QUADRATIC)
    (found,) = run_seeds(world, world.algorithm[0], [0], engine="batched")
    assert found.engine == "virtual"
    assert "which gradient comes first" in found.handed_over


@looped("worker", [_by_rank, _two_gradients, _scalars])
def test_workers_that_do_anything_else_are_handed_over(worker):
    program = replace(catalogue()["asgd"], worker=worker)
    reason = handed(program, scenario(ASGD), lr=lambda step: 0.1)
    assert ("who computes" if worker is _by_rank else "more than send") in reason


def test_a_server_that_averages_what_comes_first_is_handed_over():
    with pytest.raises(Unsupported, match="which gradient comes first decides its values"):
        run(scenario({"name": "k-sync", "k": 2}))
