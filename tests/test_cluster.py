"""The workers: groups, stragglers, and how long each computes."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import cluster
from simulator.errors import InputError
from simulator.streams import Purpose, generator
from tests.worlds import EXPONENTIAL, scenario, simulate

DELAY = {"dist": "normal", "mean": "0 s", "sd": "1 s"}  # folded


def first(times, n=10):
    """The first compute times of every worker, shape (workers, n)."""
    return np.array([list(islice(each, n)) for each in times])


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
    team = cluster.workers(world)
    assert [worker.group for worker in team] == ["far", "far", "near", "", "", ""]
    assert [worker.region for worker in team] == ["away"] * 2 + ["home"] * 4
    assert [worker.compute.expectation for worker in team] == [2, 2, 1, 1, 1, 1]
    assert [worker.extra_share for worker in team] == [0.5, 0.5, 1.0, 0.5, 0.5, 0.5]
    assert team[2].extra.expectation == 3
    assert team[0].extra == team[5].extra == world.cluster.extra


def test_compute_times_are_the_laws_own_draws():
    world = scenario(workers=3, compute=EXPONENTIAL)
    found = first(cluster.compute_times(world, seed=7), 600)
    law = world.cluster.compute
    for rank in range(3):
        assert np.array_equal(found[rank], law.sample(generator(7, Purpose.COMPUTE, rank), 600))
    assert len({tuple(row) for row in found}) == 3


def test_a_worker_computes_alike_however_many_others_there_are():
    few, many = (scenario(workers=m, compute=EXPONENTIAL) for m in (2, 9))
    assert np.array_equal(
        first(cluster.compute_times(few, 1)), first(cluster.compute_times(many, 1))[:2]
    )


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_a_share_of_the_workers_straggles(workers, share, seed):
    settings = {"extra": "1 s", "extra_share": share}
    if share * workers < 0.5:
        with pytest.raises(InputError, match=f"none of {workers} workers"):
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
    assert sorted(cluster.mean_compute(world)) == [1, 1, 1.5, 1.5, 2, 2.5]
    assert cluster.ideal_rate(world) == pytest.approx(2 / 1 + 2 / 1.5 + 1 / 2 + 1 / 2.5)
    found = first(cluster.compute_times(world, 0), 3000).mean(axis=1)
    np.testing.assert_allclose(sorted(found), sorted(cluster.mean_compute(world)), atol=0.08)
    spent = simulate(world).seconds["compute"]
    assert spent == pytest.approx(3000 * np.mean(cluster.mean_compute(world)), rel=0.02)


def test_a_free_computer_is_infinitely_fast():
    world = scenario({"name": "ssgd"}, compute="0 s", cluster={"allow_zero": True})
    assert cluster.ideal_rate(world) == np.inf
    assert simulate(world).duration == 0.0
