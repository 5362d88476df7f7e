"""Background jobs: a run beside others on one network."""

import pytest

from paceline.simulator.load.load import load
from paceline.simulator.studies.simulate import simulate
from tests.helpers.cases import beside

NETWORK, OURS = beside(__file__, "slow-link.toml"), beside(__file__, "neighbours.toml")


def world(folder, theirs, job='[[job]]\nfile = "theirs.toml"\n'):
    (folder / "ours.toml").write_text(OURS + NETWORK + job)
    (folder / "theirs.toml").write_text(theirs)
    return folder / "ours.toml"


def result(path, **options):
    return simulate(load(path), seeds=1, **options).runs[0]


def test_a_greedy_neighbour_takes_half_of_the_link(tmp_path):
    """Ours: 2 hops of 10 ms and 2 x 2 kB at 12.5 kB/s, 0.16 s at half the rate 0.32 s."""
    greedy = OURS.replace("parameters = 1000", "parameters = 10_000_000")
    alone = result(world(tmp_path, greedy, ""))
    beside = result(world(tmp_path, greedy))
    per_step = 0.1 + 2 * 0.01 + 4000 / 12_500
    assert alone.duration == pytest.approx(20 * per_step)
    shared = beside.duration / 20
    # theirs is on the way all the time but for its computing and its first hop
    assert shared == pytest.approx(0.1 + 2 * 0.01 + 2 * 4000 / 12_500, rel=0.02)
    (job,) = beside.jobs
    assert job["algorithm"] == "ssgd"
    assert job["steps"] <= 1
    assert not alone.jobs


def test_jobs_of_one_kind_share_alike(tmp_path):
    """Run the same job twice, always in step: each gets half of the link whenever both use it."""
    beside = result(world(tmp_path, OURS))
    (job,) = beside.jobs
    assert job["seconds_per_step"] == pytest.approx(beside.duration / 20, rel=0.06)
    assert beside.duration / 20 == pytest.approx(0.1 + 2 * 0.01 + 2 * 4000 / 12_500)


def test_a_job_elsewhere_on_the_network_changes_nothing(tmp_path):
    inside = OURS.replace('region = "b"', 'region = "a"')
    alone, beside = result(world(tmp_path, inside, "")), result(world(tmp_path, inside))
    assert beside.curve == alone.curve
    assert beside.lines == alone.lines


def test_every_kind_of_program_can_be_the_run_or_the_job(tmp_path):
    for ours in ("ssgd", "asgd", "ad-psgd", "dts"):
        for theirs in ("asgd", "d-psgd", "psgd", "ssgd-bucketed"):
            text = OURS.replace('"ssgd"', f'"{ours}"' + ("\ndelay = 3" if ours == "dts" else ""))
            path = world(tmp_path, OURS.replace('"ssgd"', f'"{theirs}"'))
            path.write_text(path.read_text().replace(OURS, text))
            first, again = result(path), result(path)
            assert first.steps >= 20
            assert first.curve == again.curve
            assert first.jobs[0]["steps"] > 0


def test_a_run_that_stalls_ends_beside_its_job(tmp_path):
    path = world(tmp_path, OURS)
    crash = '[[cluster.crash]]\nworker = 1\nat = "1 s"\n'
    path.write_text(path.read_text() + crash)
    run = result(path)
    assert "worker 1, down for good since 1 s" in run.failures["stall"]
