"""The batched engine against the reference: the same numbers, or a plain word why not."""

import tomllib
import tracemalloc
from dataclasses import asdict, replace
from functools import cache, wraps
from itertools import count, cycle, product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline.simulator.engines.batched import jumps
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.batched.arrays import Stack
from paceline.simulator.engines.batched.gradients import QuadraticGradients
from paceline.simulator.engines.batched.node import BatchedNode
from paceline.simulator.engines.collective import TIME_TOLERANCE
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.engines.observer import POINTS
from paceline.simulator.objectives.quadratic import NoisyQuadratic
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.transform import Identity, Momentum, Nesterov
from paceline.simulator.results.run import COLUMNS, Kind
from paceline.simulator.scenario.scenario import World
from paceline.simulator.scenario.tables import Quadratic
from tests.helpers.cases import beside, looped
from tests.helpers.compute_times import STEPS, delays
from tests.helpers.programs import cases, varied
from tests.helpers.worlds import (
    DIGITS,
    EXPONENTIAL,
    QUADRATIC,
    RING,
    TIME_ONLY,
    on_batched,
    on_virtual,
    scenario,
)

SEEDS = [0, 3, 4]
GROUPS = [{"name": "slow", "workers": 3, "compute": {"dist": "exponential", "mean": "4 s"}}]


def taken(case, objective):
    """Whether the batched engine must take a case itself."""
    program = catalogue()[case["name"]].under(case)
    alone = program.server or program.gossips or program.pooled
    return not (alone or (program.needs_loss and objective is TIME_ONLY))


def alike(ours, theirs, exact=False):
    """Demand that two runs say the same: times to 1e-9, losses to 1e-12, bytes exactly."""
    first, second = asdict(ours), asdict(theirs)
    for run in (first, second):
        run.pop("engine")
        run["links"] = sorted(run["links"].items())
        spans = run.pop("spans")
        run["spans"] = None if spans is None else plain(spans)
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-9, "atol": 1e-9}
    for name, values in first["curve"].items():
        tight = {"rtol": 1e-12, "atol": 1e-300} if name in ("loss", "accuracy") else tolerance
        assert name != "bytes" or values == second["curve"][name]
        np.testing.assert_allclose(values, second["curve"][name], **tight)
    for key in ("seconds", "workers", "curve", "links", "duration", "spans"):
        mine, other = first.pop(key), second.pop(key)
        assert (mine is None) == (other is None), key
        if key in ("seconds", "workers"):
            np.testing.assert_allclose(list(mine.values()), list(other.values()), **tolerance)
        if key == "links":
            assert [name for name, _ in mine] == [name for name, _ in other]
            assert mine == other
        if key == "spans" and mine is not None:
            for column in ("worker", "kind", "step"):
                assert mine[column].tolist() == other[column].tolist()
            for column in ("start", "end"):
                np.testing.assert_allclose(mine[column], other[column], **tolerance)
    assert first == second


def plain(spans):
    """Spans in order, without what rounding decides, and without steps that nobody has done.

    A worker that comes just when a mean is done stands still for an ulp, or not at all: the engines
    add up its steps in different orders (0.007 + 0.001 + 0.001 and 0.007 + 0.002). That ulp, and
    that it cuts the worker's computing in two, is no difference; everything longer is. A span that
    the end of the run cuts off says how far an engine has looked ahead.
    """
    spans = np.sort(spans, order=["worker", "start"])
    spans = spans[spans["end"] - spans["start"] > TIME_TOLERANCE * spans["end"]]
    computes = spans["kind"] == Kind.COMPUTE
    joins = computes[1:] & computes[:-1] & (spans["worker"][1:] == spans["worker"][:-1])
    starts = spans["start"][np.flatnonzero(np.append(True, ~joins)[: len(spans)])]
    spans = spans[np.flatnonzero(np.append(~joins, True)[: len(spans)])]
    spans["start"] = starts
    spans["step"][spans["end"] >= spans["end"].max(initial=0.0) * (1 - TIME_TOLERANCE)] = 0
    return spans


@st.composite
def worlds(draw):
    """Delays, and how a run ends."""
    world = draw(delays())
    run = draw(
        st.sampled_from(
            [{}, {"evaluate_every": 3}, {"duration": "9 s"}, {"duration": "25 s", "steps": 60}]
        )
    )
    world["run"] = {"steps": STEPS} | run
    world["model"] = {"parameters": draw(st.sampled_from([1000, 997]))}
    world["cost"] = {"node_hour": 3.0, "egress_per_gb": 0.1}
    return world


CODED = [
    {"name": "ssgd-bucketed", "buckets": 3, "codec": {"kind": "power-sgd", "compress": "30 ms"}},
    {"name": "ssgd", "codec": {"kind": "qsgd", "bucket": 3}},
    {"name": "diloco", "tau": 5, "codec": {"kind": "random-k", "ratio": 0.4}},
    {"name": "dts", "delay": 3, "period": 2, "codec": "fp16"},
    {"name": "bmuf", "tau": 3, "codec": {"kind": "raw", "times": 2}},
]
COMES_JUST_IN_TIME = {  # of dts, some wait for an ulp in one of the engines
    "workers": 2, "compute": "1 ms", "network": {"collective": "ring", "latency": "7 s"},
    "run": {"evaluate_every": 3},
}  # fmt: skip
WAITS_AT_THE_END = {  # of the last step's wait, nothing lies past the end
    "workers": 2,
    "compute": {"dist": "lognormal", "mean": "1 s", "sd": "3 s"},
    "cluster": {
        "allow_zero": True,
        "group": [{"name": "a", "workers": 1, "region": "a", "compute": "0 s"}],
    },
    "run": {"duration": "9 s"},
}
ONE_AFTER_ANOTHER = {  # of a ring of gloo, whose workers have its results at times of their own
    "workers": 3, "compute": EXPONENTIAL, "network": RING | {"library": "gloo", "latency": "0.7 s"},
    "overhead": [{"agree_latencies": 2.0}],
    "run": {"duration": "25 s", "steps": 60},
}  # fmt: skip
WITH_VALUES = [case for case in [*cases(), *CODED] if taken(case, QUADRATIC)]
UNWEIGHTED = [case for case in WITH_VALUES if "codec" not in case or case["name"] != "fedavg"]


@pytest.mark.parametrize("case", varied(WITH_VALUES))
@settings(max_examples=6)
@given(world=worlds())
@example(world=COMES_JUST_IN_TIME)
@example(world=WAITS_AT_THE_END)
@example(world=ONE_AFTER_ANOTHER)
def test_it_equals_the_reference(case, world):
    for objective in (QUADRATIC, TIME_ONLY):
        if taken(case, objective):
            made = scenario(case, objective=objective, **world)
            (algorithm,) = made.algorithm
            for run in on_batched(algorithm, made, SEEDS, spans=10_000):
                spans = 10_000 if run.seed == SEEDS[0] else 0
                alike(run, on_virtual(algorithm, made, run.seed, spans=spans))


def test_links_are_listed_where_only_empty_payloads_went():
    """The first three of nine pieces of six entries are empty; only their means begin in time."""
    world = scenario(
        {"name": "ssgd-bucketed", "buckets": 9}, objective=QUADRATIC, compute="9 s",
        cluster={"region": "home", "forward_share": 0.0}, run={"duration": "3.5 s"},
    )  # fmt: skip
    (algorithm,) = world.algorithm
    (run,) = on_batched(algorithm, world, SEEDS[:1])
    reference = on_virtual(algorithm, world, SEEDS[0])
    assert reference.links == {"home->home": 0.0}
    alike(run, reference)


def test_long_curves_are_thinned_as_the_reference_does():
    case = {"name": "local-sgd", "tau": 2}
    run = {"duration": f"{9 * POINTS} s"}  # so that it is done more than once
    made = scenario(case, workers=2, compute=EXPONENTIAL, steps=None, run=run)
    for item in on_batched(made.algorithm[0], made, SEEDS):
        alike(item, on_virtual(made.algorithm[0], made, item.seed))


@looped(("case", "partition"), zip(UNWEIGHTED, cycle(["iid", {"dirichlet": 0.3}])))
def test_on_real_data(case, partition):
    world = scenario(
        case, objective=DIGITS | {"partition": partition}, compute=EXPONENTIAL, network=RING,
        steps=STEPS, run={"evaluate_every": 10},
    )  # fmt: skip
    (algorithm,) = world.algorithm
    for run in on_batched(algorithm, world, SEEDS):
        alike(run, on_virtual(algorithm, world, run.seed))


@looped("case", WITH_VALUES)
def test_every_parameter_is_the_same(case):
    """Not only their mean, and not only where it is evaluated."""
    world = scenario(case, workers=9, steps=STEPS, objective=QUADRATIC, compute=EXPONENTIAL)
    (algorithm,) = world.algorithm
    marks: dict[int, list[Any]] = {}
    program = catalogue()[case["name"]]

    @wraps(program.worker)
    def watched(me, **parameters):
        return program.worker(Watcher(me, marks), **parameters)

    world = world.with_programs({case["name"]: replace(program, worker=watched)})
    on_batched(algorithm, world, [5])
    (together,) = marks.values()
    marks.clear()
    on_virtual(algorithm, world, 5)
    for rank, alone in enumerate(marks.values()):
        assert len(alone) == len(together) == STEPS
        for mine, everyone in zip(alone, together, strict=True):
            vectors = np.broadcast_to(everyone.of, (1, 9, len(mine)))
            np.testing.assert_array_equal(vectors[0, rank], mine)


class Watcher:
    """A node whose marks are kept."""

    def __init__(self, node, marks):
        self._node, self._marks = node, marks.setdefault(len(marks), [])

    def __getattr__(self, name):
        return getattr(self._node, name)

    def mark(self, x):
        self._marks.append(x)
        self._node.mark(x)


@pytest.mark.parametrize("objective", [QUADRATIC, DIGITS, TIME_ONLY], ids=lambda o: o["kind"])
@pytest.mark.parametrize(
    "run", [{}, {"sampling": "aggregate"}, {"duration": "90 s"}], ids=["keyed", "sums", "deadline"]
)
def test_the_company_a_seed_keeps_changes_nothing(objective, run, monkeypatch):
    """Nor do spans, nor how much is worked out at once."""
    world = scenario(
        {"name": "local-sgd", "tau": 7}, {"name": "ssgd"}, {"name": "dts", "delay": 3},
        {"name": "ssgd-bucketed"}, workers=70, compute=EXPONENTIAL, steps=60, objective=objective,
        network=RING, run=run,
    )  # fmt: skip
    for algorithm in world.algorithm:
        together = on_batched(algorithm, world, [1, 2, 3], spans=100)
        together[0].spans = None
        together[0].spans_truncated = False
        monkeypatch.setattr("paceline.simulator.engines.batched.clocks.SEGMENTS", 1)
        monkeypatch.setattr("paceline.simulator.engines.batched.clocks.STEPS", (13, 13))
        alone = [on_batched(algorithm, world, [seed])[0] for seed in (1, 2, 3)]
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_equal(asdict(ours), asdict(theirs))


@pytest.mark.long
def test_memory_does_not_grow_with_steps():
    @cache
    def peak(steps):
        world = scenario(
            {"name": "local-sgd", "tau": 10}, workers=16, steps=steps, compute=EXPONENTIAL
        )
        tracemalloc.start()
        on_batched(world.algorithm[0], world, [0, 1])
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(320_000) < 1.1 * peak(160_000)


def test_sums_drawn_at_once_have_the_same_law():
    """Every round's duration, by the two-sample test of Kolmogorov and Smirnov."""
    laws = (
        {"dist": "shifted-exponential", "shift": "1 s", "mean": "3 s"},
        {"dist": "gamma", "mean": "2 s", "shape": 0.7},
        EXPONENTIAL,
    )
    for law in laws:
        rounds = {}
        for sampling in ("keyed", "aggregate"):
            world = scenario(
                {"name": "local-sgd", "tau": 5}, workers=7, steps=10_000, compute=law,
                cluster={"extra": EXPONENTIAL, "extra_share": 0.4, "group": GROUPS},
                run={"sampling": sampling, "evaluate_every": 5},
            )  # fmt: skip
            (run,) = on_batched(world.algorithm[0], world, [0])
            rounds[sampling] = np.diff(run.curve["time"])
            assert ("sums" in " ".join(run.notes)) == (sampling == "aggregate")
        assert stats.ks_2samp(rounds["keyed"], rounds["aggregate"]).pvalue > 1e-3


def test_sums_of_unknown_law_are_drawn_one_by_one():
    world = scenario(
        {"name": "local-sgd", "tau": 5},
        compute={"dist": "weibull", "scale": "1 s", "shape": 0.7},
        run={"sampling": "aggregate"},
    )
    (run,) = on_batched(world.algorithm[0], world, [0])
    reference = on_virtual(world.algorithm[0], world, 0)
    np.testing.assert_allclose(run.curve["time"], reference.curve["time"], rtol=1e-12)


async def marks_before_it_averages(me, *, lr: float):
    x = me.start
    while True:
        x = x - lr * await me.gradient(x)
        me.mark(x)
        x = await me.mean(x)


async def marks_every_third(me, *, lr: float):
    x = me.start
    for k in count(1):
        x = x - lr * await me.mean(await me.gradient(x))
        if k % 3 == 0:
            me.mark(x)


async def shares_its_clock(me, *, lr: float):
    x, tau = me.start, 1
    for k in count(1):
        x = x - lr * await me.gradient(x)
        if k % tau == 0:
            x, time = await me.mean((x, me.clock()))
            tau = 1 + int(time) % 5
        me.mark(x)


async def looks_ahead(me, *, lr: float):
    x, mean = me.start, None
    for _ in count(1):
        (piece,) = await me.start_backward(x, 1)
        if mean is not None:
            x = await me.wait(mean)
        x = x - lr * await me.wait(piece)
        mean = me.start_mean(x)
        me.mark(x)


async def stops_early(me, *, lr: float):
    x = me.start
    for _ in range(12):
        x = x - lr * await me.mean(await me.gradient(x))
        me.mark(x)


@pytest.mark.parametrize("program", [
    marks_before_it_averages, marks_every_third, shares_its_clock, looks_ahead, stops_early,
])  # fmt: skip
@pytest.mark.parametrize("run", [{}, {"duration": "9 s"}], ids=["steps", "deadline"])
def test_programs_of_the_user(program, run):
    programs = {"mine": program}
    world = scenario(
        {"name": "mine", "lr": 0.1}, objective=QUADRATIC, compute=EXPONENTIAL, network=RING,
        run=run, programs=programs,
    )  # fmt: skip
    (algorithm,) = world.algorithm
    for item in on_batched(algorithm, world, SEEDS, spans=500):
        spans = 500 if item.seed == SEEDS[0] else 0
        alike(item, on_virtual(algorithm, world, item.seed, spans=spans))


LOOKS = {
    "norm": lambda me, x, g, loss: g * min(1.0, 0.5 / np.linalg.norm(g)),
    "sum": lambda me, x, g, loss: g / (1 + (g * g).sum()),
    "branch on a vector": lambda me, x, g, loss: g if np.max(np.abs(g)) > 1 else 2 * g,
    "entries": lambda me, x, g, loss: g * g[::2].sum(),
    "length": lambda me, x, g, loss: g / len(g),
    "truth": lambda me, x, g, loss: g if np.all(g == 0) else -g,
    "type": lambda me, x, g, loss: g if isinstance(g, np.ndarray) else 0 * g,
    "in place": lambda me, x, g, loss: np.multiply(g, 2, out=g),
    "times its loss": lambda me, x, g, loss: loss * g,
    "mean of its loss": lambda me, x, g, loss: np.mean(loss) * g,
    "branch on its loss": lambda me, x, g, loss: g if loss > 0.5 else 2 * g,
    "rank": lambda me, x, g, loss: (1 + me.rank) * g,
    "caught": lambda me, x, g, loss: tried(me) * g,
}


def tried(me):
    try:
        return me.rank / 2
    except Exception:  # as a careless program does
        return 0.0


@looped("look", LOOKS)
def test_who_looks_closer_is_handed_over(look):
    """With as many workers as entries, so that nothing is noticed by its shape."""

    async def looks(me: Any, *, lr: float) -> None:
        x = me.start
        while True:
            loss, g = await me.loss_and_gradient(x)
            x = await me.mean(x - lr * LOOKS[look](me, x, g, loss))
            me.mark(x)

    programs = {"mine": looks}
    case = {"name": "mine", "lr": 0.1}
    world = scenario(case, objective=QUADRATIC, workers=6, steps=5, programs=programs)
    (algorithm,) = world.algorithm
    runs = run_seeds(world, algorithm, [0, 1])
    assert {run.engine for run in runs} == {"virtual"}
    assert all(run.handed_over for run in runs)


def test_what_it_does_not_take_it_hands_over(monkeypatch):
    """And the runs say so, long ones even where nobody chose the engine."""
    world = scenario(
        {"name": "ssgd", "codec": {"kind": "dgc", "ratio": 0.5}},
        {"name": "d-psgd"},
        {"name": "k-sync", "k": 2},
        {"name": "dts", "delay": 1, "codec": {"kind": "sparse-loco", "chunk": 4, "top": 1}},
        objective=QUADRATIC,
    )
    for algorithm in world.algorithm:
        assert batched.supports(World(world, algorithm).under())
        runs = run_seeds(world, algorithm, SEEDS, engine="batched")
        assert {run.engine for run in runs} == {"virtual"}
        for run in runs:
            assert run.notes[-1].startswith("run by the virtual engine")
            expected = asdict(on_virtual(algorithm, world, run.seed))
            mine = asdict(run) | {"notes": run.notes[:-1], "handed_over": ""}
            np.testing.assert_equal(mine, expected)
        (quiet,) = run_seeds(world, algorithm, SEEDS[:1])
        assert not any("engine" in note for note in quiet.notes)
        with monkeypatch.context() as short:
            short.setattr("paceline.simulator.engines.dispatch.LONG", 1)
            (long,) = run_seeds(world, algorithm, SEEDS[:1])
        assert any("virtual engine" in note for note in long.notes) == bool(long.handed_over)


WEIBULL = {"dist": "weibull", "scale": "1 s", "shape": 2.0}  # drawn one by one, so comparable
TCP = {"library": "nccl", "transport": "tcp", "latency": "5 ms", "bandwidth": "1 GB/s"}


@pytest.mark.parametrize("more", [
    {"run": {"steps": 90}},
    {"run": {"duration": "100 s", "timeline_spans": 10_000}},
    {"run": {"duration": "47.11 s"}, "network": TCP, "cluster": {"beside_collectives": 1.3}},
    {"run": {"steps": 90, "evaluate_every": 7}, "overhead": [{"issue": "3 ms", "collect": "1 ms"}],
     "cluster": {"beside_collectives": 1.5}},
    {"run": {"steps": 30}, "network": RING | {"library": "gloo"}, "stepped": True},
    {"run": {"steps": 30}, "network": RING | {"jitter": EXPONENTIAL}, "stepped": True},
    {"run": {"steps": 30}, "codec": {"kind": "dgc", "ratio": 0.01, "warmup": 9}, "stepped": True},
    {"run": {"duration": "47.11 s"}, "codec": {"kind": "power-sgd", "compress": "20 ms"}},
    {"run": {"steps": 90}, "codec": {"kind": "qsgd", "decompress": "9 ms"}},
], ids=[
    "steps", "duration", "tcp", "overheads", "staggered", "jitter", "warm-up", "power", "qsgd",
])  # fmt: skip
def test_steps_side_by_side_are_those_one_after_another(more, monkeypatch):
    """With the timeline and the deadline's cuts, and in the engine that takes step by step."""
    monkeypatch.setattr("paceline.simulator.engines.batched.repeats.ENTRIES", 5 * 11)
    tables = {"network": RING, "steps": None, **more}
    tables["run"] = {"sampling": "aggregate", **more["run"]}
    calls, codec = 31 if tables.pop("stepped", None) else 4, tables.pop("codec", "raw")
    world = scenario(
        {"name": "ssgd-bucketed", "buckets": (1, 3, 2), "codec": codec},
        {"name": "ssgd-bucketed", "overlap": False, "codec": codec},
        {"name": "ssgd", "codec": codec},
        workers=5, compute=WEIBULL, **tables,
    )  # fmt: skip
    for algorithm, spans in product(world.algorithm, (100, 10**5)):
        with monkeypatch.context() as only:
            for effect in ("gradient", "start_backward"):
                only.setattr(BatchedNode, effect, at_most(calls, getattr(BatchedNode, effect)))
            ours = on_batched(algorithm, world, SEEDS, spans=spans)
        alone = on_batched(algorithm, world, SEEDS[1:2])[0]
        np.testing.assert_equal(asdict(ours[1]), asdict(alone))
        for seed, mine in zip(SEEDS, ours, strict=True):
            theirs = on_virtual(algorithm, world, seed, spans=0 if seed else spans)
            mine.notes = mine.notes[1:]  # of the law of a sum
            assert mine.spans_truncated == theirs.spans_truncated
            if theirs.spans_truncated:  # engines record them in orders of their own
                mine.spans = theirs.spans = None
            alike(mine, theirs)


def at_most(times, effect):
    """Return an effect that may be asked for so often."""
    left = iter(range(times + 1))

    async def counted(*arguments: Any) -> Any:
        assert next(left, None) is not None
        return await effect(*arguments)

    return counted


# Many local steps as one draw: the same law as steps one by one, and only where nothing looks


TRANSFORMS = st.sampled_from([Identity(), Momentum(0.7), Momentum(0.0), Nesterov(0.9)])
RATES = st.lists(st.one_of(st.just(0.1), st.floats(0.0, 1.5)), min_size=1, max_size=40)
WORLD = {"kind": "quadratic", "dimension": 5, "shift": 2.0, "noise": 0.8}


def moments(transform, rates, h, noise=1.0):
    """Follow mean map and covariance of (y, u) through steps one by one."""
    mean, covariance = np.eye(2), np.zeros((2, 2))
    for rate in rates:
        rows = []
        for y, u in np.eye(2):
            direction, buffer = transform.update(h * y, u, y)
            rows.append((y - rate * direction, buffer))
        shove, kick = transform.update(noise, 0.0, 0.0)
        step, push = np.array(rows).T, np.array([-rate * shove, kick])
        mean, covariance = step @ mean, step @ covariance @ step.T + np.outer(push, push)
    return mean, covariance


@settings(max_examples=60, deadline=None)
@given(TRANSFORMS, RATES, st.lists(st.floats(0.001, 1.2), min_size=1, max_size=4))
def test_mean_and_covariance_are_those_of_the_steps(transform, rates, curvature):
    P, root = jumps.law(transform, tuple(rates), tuple(curvature))
    size = len(P)
    for i, h in enumerate(curvature):
        mean, covariance = moments(transform, rates, h)
        np.testing.assert_allclose(P[..., i], mean[:size, :size], rtol=1e-9, atol=1e-12)
        actual = root[..., i] @ root[..., i].T
        np.testing.assert_allclose(actual, covariance[:size, :size], rtol=1e-7, atol=1e-12)


def test_plain_steps_have_the_closed_form():
    """y shrinks by a = 1 - r h a step; its variance is r^2 (1 - a^2n) / (1 - a^2)."""
    n, r, h = 1000, 0.05, np.array([1.0, 0.3, 1e-4])
    a = 1 - r * h
    P, root = jumps.law(Identity(), (r,) * n, tuple(h))
    np.testing.assert_allclose(P[0, 0], a**n, rtol=1e-12)
    np.testing.assert_allclose(root[0, 0] ** 2, r**2 * (1 - a ** (2 * n)) / (1 - a**2), rtol=1e-9)


def test_without_a_rate_nothing_moves_but_the_buffer():
    P, root = jumps.law(Momentum(0.5), (0.0, 0.0), (1.0,))
    np.testing.assert_allclose(P[..., 0], [[1, 0], [1.5, 0.25]])
    np.testing.assert_allclose(root[..., 0], [[0, 0], [0, np.sqrt(1.25)]])


@looped("transform", [Identity(), Momentum(0.8), Nesterov(0.8)])
def test_draws_and_steps_have_one_law(transform):
    """Both, freed of the exact mean and covariance, are independent standard normal numbers."""
    seeds, workers = 300, 3
    goals = [NoisyQuadratic(Quadratic(**WORLD), workers, seed) for seed in range(seeds)]
    rates = [0.3, 0.25, 0.2, 0.2, 0.1, 0.4, 0.3, 0.3]
    x = Stack(np.broadcast_to(goals[0].start, (seeds, workers, 5)).copy())
    P, root = jumps.law(transform, tuple(rates), tuple(goals[0].spectrum))
    optima = np.stack([goal.shifts for goal in goals])
    deviation = goals[0].noise / goals[0].spread

    def whitened(end, buffer):
        z = [end.of - optima] + ([] if buffer is None else [buffer.of])
        start = x.of - optima
        first = (z[0] - P[0, 0] * start) / (deviation * root[0, 0])
        if buffer is None:
            return first[..., None]
        second = (z[1] - P[1, 0] * start) / deviation - root[1, 0] * first
        return np.stack([first, second / root[1, 1]], axis=-1)

    stepping, jumping = (QuadraticGradients(goals, workers) for _ in range(2))
    at, buffer = x, transform.init(x)
    for rate in rates:
        direction, buffer = transform.update(stepping.gradient(at), buffer, at)
        at = at - rate * direction
    jumped = jumping.jump(x, transform.init(x), transform, rates)
    for actual in (whitened(at, buffer), whitened(*jumped)):
        assert stats.kstest(actual.ravel(), "norm").pvalue > 1e-3
        flat = actual.reshape(seeds, -1)  # of one seed: workers, coordinates, and y and u
        # squares of correlations of all pairs, and of neighbouring seeds, sum to chi-squared
        pairs = np.corrcoef(flat.T)[np.triu_indices(flat.shape[1], 1)]
        later = [np.corrcoef(column[:-1], column[1:])[0, 1] for column in flat.T]
        for correlations in (pairs, later):
            total = seeds * float(np.square(correlations).sum())
            assert 1e-3 < stats.chi2.sf(total, len(correlations)) < 1 - 1e-3


JUMPING, STEPPING = tomllib.loads(beside(__file__, "jumps.toml")).values()


def world(case, sampling, objective=WORLD, **run):
    run = {"steps": 60, "evaluate_every": 11, "sampling": sampling} | run
    return scenario(case, workers=3, compute="1 s", objective=objective, run=run)


def curves(made, seeds):
    return run_seeds(made, made.algorithm[0], range(seeds), engine="batched")


@looped("case", JUMPING)
def test_a_run_that_jumps_has_the_losses_of_one_that_steps(case):
    seeds = 100
    stepped, jumped = (
        np.array([run.curve["loss"] for run in curves(world(case, sampling), seeds)])
        for sampling in ("keyed", "aggregate")
    )
    for later, (ours, theirs) in enumerate(zip(jumped.T, stepped.T, strict=True)):
        if later:  # at the start all are alike
            assert stats.ks_2samp(ours, theirs).pvalue > 1e-4
    of_two = [curves(world(case, sampling), 1)[0] for sampling in ("keyed", "aggregate")]
    for name in ("time", "step", "tau", "bytes"):
        np.testing.assert_array_equal(of_two[0].curve[name], of_two[1].curve[name])
    assert of_two[0].updates == of_two[1].updates
    assert of_two[0].curve["loss"] != of_two[1].curve["loss"]


@looped(("case", "more"), STEPPING)
def test_what_must_step_keeps_its_numbers(case, more):
    actual = curves(world(case, "aggregate", WORLD | more), 2)
    for ours, theirs in zip(actual, curves(world(case, "keyed", WORLD | more), 2), strict=True):
        for name in COLUMNS:
            np.testing.assert_array_equal(ours.curve[name], theirs.curve[name], name)


def test_a_run_evaluated_at_every_step_steps():
    case = JUMPING[1]
    ours, theirs = (curves(world(case, s, evaluate_every=1), 1)[0] for s in ("aggregate", "keyed"))
    np.testing.assert_array_equal(ours.curve["loss"], theirs.curve["loss"])


def test_a_jump_stops_at_the_deadline_and_at_the_longest():
    run = {"duration": "5000 s", "sampling": "aggregate"}
    made = scenario(
        {"name": "local-sgd", "tau": 10**9}, workers=2, compute=EXPONENTIAL, steps=None,
        objective=WORLD, run=run,
    )  # fmt: skip
    actual = on_batched(made.algorithm[0], made, [0, 1])[0]
    assert 200 <= len(actual.curve["step"]) <= 401
    assert 4900 < actual.curve["step"][-1] < 5200
