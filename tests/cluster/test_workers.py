"""The workers: groups, stragglers, and how long each computes."""

import math
import re
import tomllib
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from paceline.simulator.cluster import speed
from paceline.simulator.cluster import workers as cluster
from paceline.simulator.cluster.membership import stretched, working_hours
from paceline.simulator.cluster.speed import Speed, burst_segments, product
from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load
from paceline.simulator.scenario.cluster import Bursts
from paceline.simulator.scenario.scenario import World
from tests.distributions.test_law import TABLES
from tests.helpers.cases import looped
from tests.helpers.programs import cases
from tests.helpers.worlds import EXPONENTIAL, RING, on_batched, play, scenario, simulate

DELAY = {"dist": "normal", "mean": "0 s", "sd": "1 s"}  # folded


def first(times, n=10):
    """The first compute times of every worker, shape (workers, n)."""
    return np.array([list(islice(time, n)) for time in times])


def test_groups_come_first_and_inherit_what_they_do_not_set():
    world = scenario(
        workers=6, compute=EXPONENTIAL,
        cluster={
            "region": "home", "extra": DELAY, "extra_share": 0.5,
            "group": [
                {"name": "far", "workers": 2, "region": "away", "compute": "2 s"},
                {"name": "near", "workers": 1, "extra": "3 s", "extra_share": 1.0},
            ],
        },
    )  # fmt: skip
    team = world.team.workers
    assert [worker.group for worker in team] == ["far", "far", "near", "", "", ""]
    assert [worker.region for worker in team] == ["away"] * 2 + ["home"] * 4
    assert [worker.compute.expectation for worker in team] == [2, 2, 1, 1, 1, 1]
    assert [worker.extra_share for worker in team] == [0.5, 0.5, 1.0, 0.5, 0.5, 0.5]
    assert team[2].extra.expectation == 3
    assert team[0].extra == team[5].extra == world.cluster.extra


def test_compute_times_are_the_laws_own_draws():
    world = scenario(workers=3, compute=EXPONENTIAL)
    times = first(cluster.compute_times(world, seed=7), 600)
    law = world.cluster.compute
    for rank in range(3):
        assert np.array_equal(times[rank], law.sample(generator(7, Purpose.COMPUTE, rank), 600))
    assert len({tuple(row) for row in times}) == 3


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_a_share_of_the_workers_straggles(workers, share, seed):
    settings = {"extra": "1 s", "extra_share": share}
    if share * workers < 0.5:
        with pytest.raises(InputError, match=f"rounds to 0 of {workers} workers"):
            scenario(workers=workers, cluster=settings)
        return
    world = scenario(workers=workers, cluster=settings)
    chosen = cluster.stragglers(world, seed)
    assert abs(len(chosen) - share * workers) <= 0.5
    assert chosen <= set(range(workers))
    assert chosen == cluster.stragglers(world, seed)
    slow = first(cluster.compute_times(world, seed), 3)
    assert np.array_equal(slow, [[2.0 if rank in chosen else 1.0] * 3 for rank in range(workers)])


def test_who_straggles_is_even_over_seeds_and_counted_group_by_group():
    world = scenario(
        workers=12,
        cluster={"extra": "1 s", "extra_share": 0.25, "group": [{"name": "a", "workers": 4}]},
    )
    seeds = 600
    times = np.zeros(12)
    for seed in range(seeds):
        chosen = cluster.stragglers(world, seed)
        assert len([rank for rank in chosen if rank < 4]) == 1
        assert len(chosen) == 3
        times[list(chosen)] += 1
    assert np.all(np.abs(times / seeds - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / seeds))


def test_the_extra_delay_is_added_to_the_same_compute_times():
    """For half the workers, redrawn at every step, by a stream of its own."""
    plain = scenario(workers=8, compute=EXPONENTIAL)
    slow = scenario(workers=8, compute=EXPONENTIAL, cluster={"extra": DELAY, "extra_share": 0.5})
    chosen = sorted(cluster.stragglers(slow, 3))
    added = first(cluster.compute_times(slow, 3), 500) - first(cluster.compute_times(plain, 3), 500)
    assert np.flatnonzero(added.any(axis=1)).tolist() == chosen
    delays = [slow.cluster.extra.sample(generator(3, Purpose.EXTRA, r), 500) for r in chosen]
    np.testing.assert_allclose(added[chosen], delays, atol=1e-14)


def test_expected_laws_are_those_of_the_simulated_workers():
    """Not of which worker, but of how many, and with which sums."""
    world = scenario(
        {"name": "psgd"}, workers=6, compute=EXPONENTIAL, steps=3000,
        cluster={
            "extra": "500 ms", "extra_share": 0.5,
            "group": [{"name": "a", "workers": 2, "compute": "2 s"}],
        },
    )  # fmt: skip
    assert sorted(world.team.mean_compute) == [1, 1, 1.5, 1.5, 2, 2.5]
    assert world.team.ideal_rate == pytest.approx(2 / 1 + 2 / 1.5 + 1 / 2 + 1 / 2.5)
    times = first(cluster.compute_times(world, 0), 3000).mean(axis=1)
    np.testing.assert_allclose(sorted(times), sorted(world.team.mean_compute), atol=0.08)
    spent = simulate(world).seconds["compute"]
    assert spent == pytest.approx(3000 * np.mean(world.team.mean_compute), rel=0.02)


@pytest.mark.parametrize("name", sorted(TABLES))
@given(by=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_scaled_laws_are_those_of_longer_times(name, by, seed, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    (folder / "samples.csv").write_text("0.5\n0.3\n2\n")
    law = TypeAdapter(Law).validate_python(TABLES[name], context={"folder": folder})
    scaled = law.scaled(by)
    assert type(scaled) is type(law)
    one, other = (item.sample(generator(seed, Purpose.COMPUTE), 50) for item in (law, scaled))
    np.testing.assert_allclose(other, by * one, rtol=1e-9, atol=1e-12)
    assert scaled.expectation == pytest.approx(by * law.expectation)
    assert scaled.variance == pytest.approx(by**2 * law.variance)


# Traces


@pytest.fixture
def trace(tmp_path):
    """A compute law that replays times for even and for odd workers."""
    (tmp_path / "steps.csv").write_text("even,odd\n1,100 ms\n2,0.2\n3,0.3\n5,0.5\n7,0.7\n")
    return {"dist": "trace", "file": str(tmp_path / "steps.csv")}


EVEN = np.array([1, 2, 3, 5, 7.0])


def test_a_trace_is_replayed_column_by_column_and_again(trace):
    world = scenario(workers=3, compute=trace)
    expected = np.resize(EVEN, 12)
    np.testing.assert_array_equal(
        first(cluster.compute_times(world, 0), 12), [expected, expected / 10, expected]
    )
    means = EVEN.mean() * np.array([1, 0.1, 1])
    assert world.team.mean_compute == pytest.approx(means)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 50))
def test_a_trace_does_not_depend_on_blocks(tmp_path_factory, sizes, seed):
    path = tmp_path_factory.getbasetemp() / "one.csv"
    path.write_text("1\n2\n3\n5\n7\n")
    law = {"dist": "trace", "file": str(path), "offset": "random"}
    world = scenario(workers=1, compute=law)
    (one,), (other,) = cluster.streams(world, seed), cluster.streams(world, seed)
    parts = [one.draw(size) for size in sizes]
    assert np.array_equal(np.concatenate(parts), other.draw(sum(sizes)))


def test_a_random_offset_is_a_keyed_and_even_one(trace):
    world = scenario(workers=6, compute=trace | {"offset": "random"})
    begins = [first(cluster.compute_times(world, seed), 5)[::2] for seed in range(200)]
    rows = np.concatenate(begins)
    for row in rows:
        assert np.array_equal(np.roll(EVEN, -int(np.searchsorted(EVEN, row[0]))), row)
    counts = np.array([(rows[:, 0] == value).sum() for value in EVEN]) / len(rows)
    assert np.all(np.abs(counts - 0.2) < 4.5 * np.sqrt(0.16 / len(rows)))
    assert np.array_equal(begins[7], first(cluster.compute_times(world, 7), 5)[::2])


@pytest.mark.parametrize("offset", ["none", "random"])
@pytest.mark.parametrize("name", ["ssgd", "local-sgd"])
def test_a_trace_runs_alike_in_every_engine(trace, name, offset):
    table = {"name": name} | ({"tau": 3} if name == "local-sgd" else {})
    world = scenario(table, compute=trace | {"offset": offset}, network=RING, steps=40)
    (other,) = on_batched(world.algorithm[0], world, [5])
    one = simulate(world, seed=5)
    assert one.duration == pytest.approx(other.duration, rel=1e-12)
    np.testing.assert_allclose(one.curve["time"], other.curve["time"], rtol=1e-12)


def test_ssgd_over_a_trace_takes_the_slowest_workers_times(trace):
    world = scenario({"name": "ssgd"}, compute=trace, steps=12)
    assert simulate(world).duration == pytest.approx(np.resize(EVEN, 12).sum())


# Working hours

HOUR = 3600.0


def on_days(*daily):
    return scenario({"name": "ssgd"}, cluster={"membership": {"daily": [*daily]}}).cluster


def test_more_work_than_fits_into_a_night_is_done_in_the_next_ones():
    """There from 20:00 to 06:00: 5.5 h of work by 05:30; twice that is 5 h after 20:00."""
    nights = on_days("20:00-06:00")
    factors = np.array([0.5, 1.0, 2.0, 4.0, np.inf])
    actual = stretched(nights, 5.5 * HOUR, factors) * 5.5
    assert actual == pytest.approx([2.75, 5.5, 25.0, 50.0, np.inf], rel=1e-6)


def test_workers_without_hours_are_always_there():
    always = scenario({"name": "ssgd"}).cluster
    assert stretched(always, 5.0, np.array([3.0])) == 3.0
    assert working_hours(on_days("20:00-24:00", "00:00-20:00")) == [(0.0, 24 * HOUR)]


def test_a_share_is_rounded_over_all_whom_it_concerns():
    extra = ["cluster.extra='10 s'", "cluster.extra_share=0.5"]
    world = load("scenarios/four-continents.toml", extra)
    assert len(cluster.stragglers(world, 0)) == 2
    assert sum(len(laws) == 2 for laws in world.team.expected_laws) == 2


# Speeds that change


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
    one = Speed(iter(shown))
    for start, work in steps:
        expected = start if work == 0 else brute(shown, start, work)
        assert one.after(start, work) == pytest.approx(expected, rel=1e-12)


def test_work_without_speed_never_ends():
    assert Speed(iter([(0.0, 1.0), (2.0, 0.0)])).after(1, 5) == math.inf


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
    actual = ((on[:, :1] - share) * (on - share)).mean(axis=0) / (share * (1 - share))
    expected = np.exp(-times * (1 / 2 + 1 / 6))
    assert np.all(np.abs(actual - expected) < 4.5 * 2 / math.sqrt(seeds))


def test_lengths_of_bursts_and_pauses_have_the_means_that_were_asked_for():
    bursts = Bursts.model_validate(BURSTS)
    shown = list(islice(burst_segments(bursts, 1, 0), 40_001))
    values, lengths = np.array(shown)[:-1, 1], np.diff(np.array(shown)[:, 0])
    assert set(values) == {1.0, 0.25}
    for value, mean in ((0.25, 2.0), (1.0, 6.0)):
        chosen = lengths[values == value]
        assert chosen.mean() == pytest.approx(mean, abs=4.5 * mean / math.sqrt(len(chosen)))


def test_each_worker_and_seed_has_bursts_of_its_own_whoever_else_there_is():
    def shown(workers, seed, rank):
        world = scenario(workers=workers, cluster={"bursts": BURSTS})
        return list(islice(speed.speeds(world, seed)[rank]._coming, 20))

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
    result = simulate(world)
    assert result.curve["time"] == pytest.approx([0, 3, 6, 9, 14, 20, 26], abs=1e-12)


def test_the_slowest_worker_of_a_step_decides_and_which_it_is_changes():
    """Two groups take turns in being half as fast: ssgd is as slow as if all always were."""
    turns = [NIGHT, {"at": ["0 s", "10 s"], "factor": [0.5, 1.0], "period": "20 s"}]
    groups = [
        {"name": str(index), "workers": 1, "profile": turn} for index, turn in enumerate(turns)
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
    plain = [list(islice(time, 60)) for time in cluster.compute_times(world, 4)]
    assert all(np.all(np.array(time) >= np.array(full) * (1 - 1e-12))
               for time, full in zip(times[0], plain, strict=True))  # fmt: skip


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
    reason = batched.supports(World(world, world.algorithm[0]).under())
    assert reason == "compute times vary over time"
    (run,) = run_seeds(world, world.algorithm[0], [0])
    assert (run.engine, run.handed_over) == ("virtual", "compute times vary over time")


@looped("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_what_the_page_shows_can_be_simulated(block):
    world = scenario({"name": "local-sgd", "tau": 4}, steps=8, **tomllib.loads(block))
    assert len(world.team.mean_compute) == 8
    assert simulate(world).steps == 8
