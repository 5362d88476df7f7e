"""Overheads of a real system: by hand, program by program, and between measured sizes."""

import tomllib

import numpy as np
import pytest

from paceline.simulator.cluster import workers as cluster
from paceline.simulator.engines.overheads import EffectCosts
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.overhead import Overhead, at
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.simulate import simulate
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import EXPONENTIAL, scenario
from tests.helpers.worlds import simulate as run

LINK = {"collective": "ring", "latency": "10 ms", "bandwidth": "320 kbit/s"}  # 4,000 B: 100 ms
# latencies twice, a tenth more bytes, in each hop as many of headers as a link passes in 1 ms
MEAN = 2 * 3 * 0.010 * 2 + (1.5 * 0.1 + 2 * 3 * 0.001) * 1.1 + 0.090
COSTS = tomllib.loads(beside(__file__, "costs.toml"))
STEP = 1.0 + 0.030


def pace(case, **tables):
    world = scenario(case, network=LINK, overhead=[COSTS], **tables)
    return run(world).duration / 20


@looped(
    ("case", "expected"),
    [
        ({"name": "psgd"}, STEP),
        ({"name": "ssgd"}, STEP + 0.003 + MEAN + 0.070),
        ({"name": "local-sgd", "tau": 5}, STEP + (0.003 + MEAN + 0.070) / 5),
        # means are hidden behind computing, what they cost the worker itself is not: 16 of 20 waits
        ({"name": "dts", "delay": 4}, STEP + 0.003 + 0.070 * 16 / 20),
    ],
)
def test_by_hand(case, expected):
    assert pace(case) == pytest.approx(expected, rel=1e-12)


@looped(
    ("name", "codec"),
    [("ssgd", "top-k"), ("dts", "qsgd"), ("local-sgd", "power-sgd"), ("asgd", "dgc")],
)
def test_what_a_codec_takes_is_as_if_stated(name, codec):
    """4,000 bytes lie in the middle of those measured; what an algorithm states counts more."""
    table = [
        {"kind": codec, "size": "2 kB", "compress": "20 ms", "decompress": "3 ms"},
        {"kind": codec, "size": "6 kB", "compress": "60 ms", "decompress": "5 ms"},
        {"kind": "fp16", "size": "6 kB", "compress": "600 ms", "decompress": "500 ms"},
    ]
    stated = {"kind": codec, "compress": "40 ms", "decompress": "4 ms"}
    case = {"name": name} | {"dts": {"delay": 4}, "local-sgd": {"tau": 5}}.get(name, {})
    plain = pace(case | {"codec": codec})
    expected = pace(case | {"codec": stated})
    assert expected > plain
    assert pace(case | {"codec": codec}, codec=table) == expected
    assert pace(case | {"codec": stated}, codec=[table[0] | {"size": "1 B"}]) == expected


def test_larger_vectors_take_a_codec_longer_and_small_ones_no_less():
    table = {"kind": "qsgd", "size": "4 kB", "compress": "2 ms", "decompress": "1 ms"}
    costs = EffectCosts(scenario({"name": "ssgd"}, codec=[table]))
    assert costs.coding("qsgd", 4e3) == costs.coding("qsgd", 1.0) == (0.002, 0.001)
    assert costs.coding("qsgd", 12e3) == pytest.approx((0.006, 0.003))
    assert costs.coding("fp16", 4e3) == (0.0, 0.0)


def test_a_question_costs_each_time():
    """From its third step on HPSGD asks at every second one: the mean is always there."""
    world = scenario({"name": "hpsgd", "decision": "shared"}, network=LINK, overhead=[COSTS])
    nominal = run(world.nominal).duration
    polls = sum(1 for step in range(3, 21) if step % 2)
    means = polls + 1
    word = 0.010 + 20 / 40_000  # half of the headers of a hop
    expected = 20 * 0.030 + means * 0.003 + polls * (0.070 + 0.011 + 5 * word)
    assert run(world).duration - nominal == pytest.approx(expected, rel=1e-9)


def test_a_server_by_hand():
    """One worker: there and back, the server's own time, the worker's own time."""
    world = scenario({"name": "asgd"}, workers=1, network=LINK, overhead=[COSTS])
    way = 0.010 + 0.100 + 0.170
    assert run(world).duration / 20 == pytest.approx(
        STEP + way + 0.019 + way + 0.019,
        rel=0.02,  # the last answer is not waited for
    )


def test_the_nominal_scenario_has_none():
    with_costs = scenario({"name": "ssgd"}, network=LINK, overhead=[COSTS])
    without = scenario({"name": "ssgd"}, network=LINK)
    assert run(with_costs.nominal).curve == run(without).curve
    assert "overhead" not in with_costs.nominal.table


def test_steps_have_laws_of_their_own_which_do_not_touch_the_others():
    """The drawn durations stay; what is added is drawn from a stream of its own, also in bursts."""
    law = {"step": {"dist": "gamma", "mean": "10 ms", "shape": 2}}
    for table in ({}, {"bursts": {"factor": 4.0, "on": "5 s", "off": "5 s"}}):
        plain, costly = (
            scenario(
                {"name": "psgd"}, compute=EXPONENTIAL, steps=500, cluster=table, overhead=costs
            )
            for costs in ([], [law])
        )
        added = [np.fromiter(overhead, float, 500) for overhead in cluster.overheads(costly, 0)]
        assert not np.array_equal(added[0], added[1])
        if not table:
            ours = [np.fromiter(time, float, 500) for time in cluster.compute_times(costly, 0)]
            bare = [np.fromiter(time, float, 500) for time in cluster.compute_times(plain, 0)]
            np.testing.assert_allclose(np.subtract(ours, bare), added, rtol=1e-9, atol=1e-15)
        apart = run(costly).duration - run(plain).duration
        assert 500 * 0.008 < apart < (500 * 0.012 if not table else 40)


# Between measured numbers of workers


TABLES = [
    Overhead.model_validate({"workers": m, "issue": f"{m} ms", "step": f"{2 * m} ms"})
    for m in (8, 2)
]


@looped(("workers", "issue"), [(1, 2), (2, 2), (4, 4), (5, 5), (8, 8), (64, 8)])
def test_in_proportion_between_and_the_nearest_beyond(workers, issue):
    actual = at(TABLES, workers)
    assert actual.issue == pytest.approx(issue * 1e-3)
    assert actual.step.expectation == pytest.approx(2 * issue * 1e-3)


def test_a_table_for_any_number():
    assert at([Overhead.model_validate({"issue": "500 ms"})], 7).issue == 0.5
    assert at([], 7) == Overhead()


# extends


def profile(tmp_path, text, name="p.toml"):
    (tmp_path / name).write_text(text)
    return {"extends": name} | MINE


MINE = {
    "model": {"parameters": 1000},
    "cluster": {"workers": 4},
    "network": {"collective": "ring", "latency": "10 ms"},
    "run": {"steps": 20},
    "algorithm": [{"name": "ssgd"}],
}
PROFILE = beside(__file__, "profile.toml")


def test_a_profile_holds_where_the_scenario_says_nothing(tmp_path):
    (tmp_path / "times.txt").write_text("1.0\n2.0\n")
    made = parse(profile(tmp_path, PROFILE), folder=tmp_path)
    assert made.cluster.workers == 4
    assert made.cluster.compute.expectation == 1.5
    assert made.costs.issue == 0.003
    assert set(made.calibration.sd) == {"overhead.0.issue", "cluster.compute"}
    again = parse(made.table)  # from anywhere: a run directory is read back elsewhere
    assert again.cluster.compute.expectation == 1.5
    settings = profile(tmp_path, PROFILE) | {"cluster": {"workers": 4, "compute": "1 s"}}
    made = parse(settings, folder=tmp_path)
    assert made.cluster.compute.expectation == 1.0
    assert set(made.calibration.sd) == {"overhead.0.issue"}  # its own compute is as it says


def test_every_file_of_a_profile_is_looked_up_beside_it(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "trace.csv").write_text("worker,start,end\n3,1 s,2 s\n")
    text = '[calibration]\n[cluster]\ncompute = "1 s"\nmembership = "trace.csv"\n'
    made = parse(profile(tmp_path, text, "below/p.toml"), folder=tmp_path)
    assert made.cluster.membership.trace == {3: [(1.0, 2.0)]}


# How far a prediction may be off


def calibrated(**tables):
    calibration = {"sd": {"cluster.compute": 0.05}, "replicates": 60} | tables
    return scenario({"name": "psgd"}, {"name": "ssgd"}, steps=50, calibration=calibration)


def test_an_interval_holds_values_within_standard_errors():
    """psgd's pace is the compute time: 5 % either way are 90 % between -8 and +8.5 %."""
    (psgd, ssgd) = simulate(calibrated()).algorithms
    low, high = psgd["interval90"]["seconds_per_step"]
    assert low == pytest.approx(1 - 0.083, abs=0.02)
    assert high == pytest.approx(1 + 0.087, abs=0.02)
    # the network is free, so that both meet the same numbers
    assert ssgd["interval90"]["seconds_per_step"] == pytest.approx([low, high], rel=1e-9)
    (narrow, _) = simulate(calibrated(sd={}, run_to_run=0.01)).algorithms
    low, high = narrow["interval90"]["seconds_per_step"]
    assert high - low == pytest.approx(2 * 1.67 * 0.01, rel=0.25)


def test_intervals_are_of_the_calibration_alone_where_delays_are_shared():
    law = {"compute": EXPONENTIAL, "steps": 50}
    world = scenario({"name": "ssgd"}, **law, calibration={"sd": {}, "replicates": 20})
    (algorithm,) = simulate(world, seeds=2).algorithms
    (same,) = simulate(world, seeds=2, paired=True).algorithms
    low, high = same["interval90"]["seconds_per_step"]
    assert low == pytest.approx(high, rel=1e-9)
    low, high = algorithm["interval90"]["seconds_per_step"]
    assert high / low > 1.1


def test_the_same_on_any_number_of_processes(tmp_path):
    world = calibrated(replicates=4)
    one = simulate(world, out=tmp_path / "one")
    two = simulate(world, jobs=2)
    assert one.algorithms == two.algorithms
    assert simulate(world, out=tmp_path / "one").resumed == 0  # it was whole
    assert isinstance(one.scenario, Scenario)


def test_beyond_what_was_measured():
    measured = {"workers": [2, 3], "step": ["10 ms", "20 ms"], "bytes": [4000.0, 4000.0]}
    calibration = {"measured": measured, "replicates": 2}
    quiet = scenario({"name": "ssgd"}, workers=3, compute="15 ms", calibration=calibration)
    assert simulate(quiet).notes == []
    loud = scenario({"name": "ssgd"}, workers=4, compute="90 ms", calibration=calibration)
    (note,) = simulate(loud).notes
    assert "outside the calibrated range" in note
    assert "4 workers, measured at 2 workers to 3 workers" in note
    assert "steps of 0.09 s" in note


@looped("model", ["closed-form", "flows"])
@looped("engine", ["virtual", "batched"])
def test_a_program_may_have_overheads_of_its_own(engine, model):
    """Without a table for a program it has those that are for any."""
    settings = COSTS | {"algorithm": "local-sgd", "transmission_factor": 3.0}
    cases = [{"name": "ssgd"}, {"name": "local-sgd", "tau": 2}]
    network = LINK | {"model": model}
    both = scenario(*cases, network=network, overhead=[COSTS, settings])
    actual = [
        simulate(both, engine=engine).algorithms[n]["seconds_per_step"]["mean"] for n in (0, 1)
    ]
    for n, case, table in (
        (0, cases[0], COSTS),
        (1, cases[1], COSTS | {"transmission_factor": 3.0}),
    ):
        alone = scenario(case, network=network, overhead=[table])
        assert actual[n] == simulate(alone, engine=engine).algorithms[0]["seconds_per_step"]["mean"]
    assert both.under(both.algorithm[0]).costs.transmission_factor == 1.1
    assert both.under(both.algorithm[1]).costs.transmission_factor == 3.0
