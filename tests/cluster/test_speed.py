"""Speeds that change: exact integrals, the statistics of bursts, and what a run makes of them."""

import math
import re
import tomllib
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.cluster import speed
from paceline.simulator.cluster import workers as cluster
from paceline.simulator.cluster.speed import Speed, burst_segments, product
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.cluster import Bursts
from paceline.simulator.scenario.world import World
from tests.helpers.cases import looped
from tests.helpers.programs import cases
from tests.helpers.worlds import EXPONENTIAL, RING, play, scenario, simulate

BURSTS = {"factor": 4.0, "on": "2 s", "off": "6 s"}
HALF = {"at": ["0 s", "10 s"], "factor": [1.0, 0.5]}  # half as fast after 10 s
NIGHT = HALF | {"period": "20 s"}
PAGE = (Path(__file__).parents[2] / "docs/stragglers.md").read_text("utf-8")
NAMED = {case["name"]: case for case in cases()}


def brute(segments, start, work):
    """When `work` ends, by going through all segments from the first one on."""
    for (first, factor), (end, _) in pairwise([*segments, (math.inf, 0.0)]):
        begin = max(first, start)
        if end <= begin:
            continue
        if factor and (end - begin) * factor >= work:
            return begin + work / factor
        work -= (end - begin) * factor if factor else 0.0
    return math.inf


spans = st.lists(st.floats(1e-3, 10), min_size=1, max_size=20)


@st.composite
def segments(draw, zeros=True):
    """Segments whose last one, which stays, is not zero."""
    starts = [0.0, *np.cumsum(draw(spans)).tolist()]
    factors = [draw(st.sampled_from([0.0] * zeros + [0.1, 1.0, 3.0])) for _ in starts]
    return [*zip(starts[:-1], factors[:-1], strict=True), (starts[-1], 0.5)]


@given(
    segments(),
    st.lists(st.tuples(st.floats(0, 150), st.floats(0, 60)), min_size=1, max_size=8),
)
def test_the_end_of_a_step_is_the_exact_integral(shown, steps):
    """Whatever the order of the steps."""
    one = Speed(lambda: iter(shown))
    for start, work in steps:
        expected = start if work == 0 else brute(shown, start, work)
        assert one.after(start, work) == pytest.approx(expected, rel=1e-12)


@given(segments(zeros=False), st.floats(0, 50), st.lists(st.floats(1e-3, 5), min_size=2))
def test_work_in_parts_takes_as_long_as_at_once(shown, start, parts):
    one, other = Speed(lambda: iter(shown)), Speed(lambda: iter(shown))
    at = start
    for part in parts:
        later = one.after(at, part)
        assert later > at
        at = later
    assert at == pytest.approx(other.after(start, sum(parts)), rel=1e-9)


def test_many_segments_are_forgotten_and_found_again():
    def endless():
        return ((float(k), 0.5 + k % 2) for k in range(10**9))

    one = Speed(endless)
    ascending = [one.after(t, 1.5) for t in range(0, 5000, 3)]
    assert len(one._starts) < 3 * speed.KEPT
    assert one.after(0, 1.5) == ascending[0]  # begins anew
    assert [one.after(t, 1.5) for t in range(0, 5000, 3)] == ascending
    expected = [t + (1 + 1 / 1.5 if t % 2 == 0 else 1) for t in range(0, 5000, 3)]
    np.testing.assert_allclose(ascending, expected)
    assert Speed(lambda: iter([(0.0, 1.0), (2.0, 0.0)])).after(1, 5) == math.inf


@given(segments(), segments())
def test_a_product_is_that_of_its_factors_at_every_time(one, other):
    def at(shown, time):
        return [value for start, value in shown if start <= time][-1]

    both = list(product([one, other]))
    for time in {start + 1e-6 for start, _ in (*one, *other)}:
        assert at(both, time) == at(one, time) * at(other, time)
    assert [start for start, _ in both] == sorted(start for start, _ in (*one, *other))


# Bursts


def states(bursts, times, seeds, rank=0):
    """Whether bursts are on, shape (seeds, times)."""
    rows = []
    for seed in seeds:
        shown = list(islice(burst_segments(bursts, seed, rank), 400))
        starts, values = np.array(shown).T
        assert starts[-1] > times[-1]
        rows.append(values[np.searchsorted(starts, times, side="right") - 1] < 1)
    return np.array(rows)


def test_bursts_begin_in_their_stationary_law_and_are_correlated_as_theory_says():
    """P(on) = on / (on + off) at all times, and covariance p (1 - p) exp(-t (1/on + 1/off))."""
    bursts = Bursts.model_validate(BURSTS)
    times = np.array([0.0, 0.5, 1.0, 2.0, 5.0, 50.0])
    seeds = 4000
    on = states(bursts, times, range(seeds))
    share = 2 / (2 + 6)
    error = math.sqrt(share * (1 - share) / seeds)
    assert np.all(np.abs(on.mean(axis=0) - share) < 4.5 * error)
    found = ((on[:, :1] - share) * (on - share)).mean(axis=0) / (share * (1 - share))
    expected = np.exp(-times * (1 / 2 + 1 / 6))
    assert np.all(np.abs(found - expected) < 4.5 * 2 / math.sqrt(seeds))


def test_lengths_of_bursts_and_pauses_have_the_means_that_were_asked_for():
    bursts = Bursts.model_validate(BURSTS)
    shown = list(islice(burst_segments(bursts, 1, 0), 40_001))
    values, lengths = np.array(shown)[:-1, 1], np.diff(np.array(shown)[:, 0])
    assert set(values) == {1.0, 0.25}
    for value, mean in ((0.25, 2.0), (1.0, 6.0)):
        own = lengths[values == value]
        assert own.mean() == pytest.approx(mean, abs=4.5 * mean / math.sqrt(len(own)))


def test_each_worker_and_seed_has_bursts_of_its_own_whoever_else_there_is():
    def shown(workers, seed, rank):
        world = scenario(workers=workers, cluster={"bursts": BURSTS})
        return list(islice(speed.speeds(world, seed)[rank]._segments(), 20))

    assert shown(3, 5, 2) == shown(7, 5, 2)
    assert shown(3, 5, 2) != shown(3, 5, 1) != shown(3, 6, 1)


@looped("changes", [{"bursts": BURSTS}, {"profile": NIGHT}])
def test_mean_compute_is_what_a_long_run_takes(changes):
    """Steps are work: their mean duration is the mean work by the mean speed."""
    world = scenario(workers=2, compute=EXPONENTIAL, cluster=changes)
    expected = 1 / ((6 + 2 / 4) / 8 if "bursts" in changes else 0.75)
    assert world.team.mean_compute == pytest.approx([expected] * 2)
    assert world.team.ideal_rate == pytest.approx(2 / expected)
    done, steps = 0.0, 60_000
    one = speed.speeds(world, 3)[0]
    for work in islice(cluster.compute_times(world, 3)[0], steps):
        done = one.after(done, work)
    assert done / steps == pytest.approx(expected, rel=0.03)


# Runs


def test_a_profile_slows_every_step_from_its_change_on():
    """ssgd of 3 s steps: at 9 s one step is left 1 s at full speed, and takes 1 + 2/0.5 s."""
    world = scenario({"name": "ssgd"}, compute="3 s", cluster={"profile": HALF}, steps=6)
    found = simulate(world)
    assert found.curve["time"] == pytest.approx([0, 3, 6, 9, 14, 20, 26], abs=1e-12)


def test_the_slowest_worker_of_a_step_decides_and_which_it_is_changes():
    """Two groups take turns in being half as fast: ssgd is as slow as if all always were."""
    turns = [NIGHT, {"at": ["0 s", "10 s"], "factor": [0.5, 1.0], "period": "20 s"}]
    groups = [
        {"name": str(index), "workers": 1, "profile": each} for index, each in enumerate(turns)
    ]
    world = scenario({"name": "ssgd"}, {"name": "local-sgd", "tau": 10}, workers=2,
                     compute="1 s", cluster={"group": groups}, steps=100)  # fmt: skip
    assert simulate(world).duration == pytest.approx(100 * 2)
    # 10 s of work are 20 s for the one and 10 + 5 for the other ... and both 15 s per 20 s
    assert simulate(world, 1).duration < 0.8 * 200


def test_steps_are_alike_under_two_programs_and_again():
    world = scenario(
        {"name": "psgd"}, {"name": "local-sgd", "tau": 1000}, workers=3, compute=EXPONENTIAL,
        cluster={"bursts": BURSTS, "profile": NIGHT}, steps=60,
    )  # fmt: skip
    times = [play(world, index, seed=4).durations for index in (0, 1, 0)]
    assert times[0] == times[2]
    assert len(times[0][0]) == 60
    assert times[1] == times[0]
    plain = [list(islice(each, 60)) for each in cluster.compute_times(world, 4)]
    assert all(np.all(np.array(own) >= np.array(full) * (1 - 1e-12))
               for own, full in zip(times[0], plain, strict=True))  # fmt: skip


@looped("name", ["ssgd", "asgd", "easgd", "ad-psgd", "ssgd-bucketed"])
def test_a_speed_that_never_changes_is_that_of_a_slower_worker(name):
    forever = {"at": ["0 s"], "factor": [0.25]}
    slow, scaled = (
        scenario(NAMED[name], compute=compute, cluster=changes, network=RING, steps=30)
        for compute, changes in (("1 s", {"profile": forever}), ("4 s", {}))
    )
    one, other = simulate(slow), simulate(scaled)
    assert one.duration == pytest.approx(other.duration, rel=1e-12)
    assert one.seconds == pytest.approx(other.seconds)


def test_batched_hands_over_what_changes_with_time():
    world = scenario({"name": "ssgd"}, cluster={"bursts": BURSTS})
    reason = batched.supports(World.of(world, world.algorithm[0], catalogue()["ssgd"]))
    assert reason == "compute times change with time"
    (run,) = run_seeds(world, world.algorithm[0], [0])
    assert (run.engine, run.handed_over) == ("virtual", "compute times change with time")


@looped("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_what_the_page_shows_can_be_simulated(block):
    world = scenario({"name": "local-sgd", "tau": 4}, steps=8, **tomllib.loads(block))
    assert len(world.team.mean_compute) == 8
    assert simulate(world).steps == 8
