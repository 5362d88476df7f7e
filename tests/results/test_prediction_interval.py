"""Intervals of predictions contain the model's own error where no run was fitted to a program."""

import inspect
import math
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from paceline import simulate, sweep
from paceline.simulator.load.load import parse
from paceline.simulator.network import tcp
from paceline.simulator.programs import catalogue
from paceline.simulator.results import prediction_interval, wording
from paceline.simulator.results.intervals import stated
from paceline.simulator.results.order import order
from paceline.simulator.results.prediction_interval import Kind, Published, Spread
from paceline.simulator.studies import learning
from paceline.simulator.studies.links import collective_share
from paceline.simulator.studies.tune.objective import tuning_objective
from paceline.simulator.studies.tune.tune import tune
from tests.helpers.cases import looped
from tests.helpers.worlds import EXPONENTIAL, scenario

ERROR = {
    "programs": 9,
    "source": "a matrix",
    "seconds_per_step": {"blocking": 0.01, "overlapped": 0.04, "server": 0.02},
    "time_to_target": {"blocking": 0.03, "overlapped": 0.05, "server": 0.06},
}
KNOWN = {"sd": {}, "replicates": 4, "fitted": ["ssgd"], "model_error": ERROR}
ROOT = Path(__file__).parents[2]
ALGORITHMS = ({"name": "ssgd"}, {"name": "local-sgd", "tau": 2}, {"name": "dts", "delay": 2},
              {"name": "asgd"}, {"name": "d-psgd"})  # fmt: skip


def rows(*algorithms, **calibration):
    table = KNOWN | calibration
    world = scenario(*(algorithms or ALGORITHMS), compute="1 s", steps=6, calibration=table)
    result = simulate(world, paired=True)
    return {algorithm["label"]: algorithm for algorithm in result.algorithms}, result


def half(row, quantity="seconds_per_step"):
    """Half the width of an interval, of logarithms."""
    low, high = row["interval90"][quantity]
    return np.log(high / low) / 2


def test_programs_that_were_not_fitted_have_their_family_s_error():
    """No other error here: constant steps, and numbers that are certain."""
    actual, result = rows()
    assert half(actual["ssgd"]) == pytest.approx(0, abs=1e-12)
    eight = t.ppf(0.95, 8)
    for label, error in {"local-sgd tau=2": 0.01, "dts delay=2": 0.04, "asgd": 0.02,
                         "d-psgd": 0.04}.items():  # fmt: skip
        assert half(actual[label]) == pytest.approx(eight * error), label
    assert actual["ssgd"]["interval90_basis"] == prediction_interval.FITTED
    assert (
        "learnt from 9 programs without fitted runs (a matrix)"
        in (actual["asgd"]["interval90_basis"])
    )
    assert "the family with the largest errors" in actual["d-psgd"]["interval90_basis"]
    for row in actual.values():
        assert row["seconds_per_step"]["interval90"] == row["interval90"]["seconds_per_step"]
    (source,) = [item for item in prediction_interval.sources(result.algorithms) if "asgd" in item]
    assert "90 % intervals of asgd: " in source
    assert "that of server programs" in source


@looped("seeds", [1, 4])
def test_an_interval_holds_nine_of_ten_runs_however_few_seeds_predict_them(seeds):
    """Chance is all that is unknown; a single run is as far from the others as they are apart."""
    runs = simulate(scenario({"name": "ssgd"}, compute=EXPONENTIAL, steps=6), seeds=300).runs
    times, held = np.array([run.duration / 6 for run in runs]), []
    for first in range(0, 270, 5):
        chosen, again = runs[first : first + seeds], runs[first + seeds : first + seeds + 24]
        ends = prediction_interval.intervals(chosen, again, target=None, paired=False)
        low, high = ends["seconds_per_step"]
        held.append(np.mean((low <= times) & (times <= high)))
    assert 0.87 <= np.mean(held) <= 0.93


def test_few_crashes_make_no_run_shorter_than_one_without_them():
    """A quarter of the runs meets a crash, that holds all up for as long as they compute."""
    model = [Spread(0.02**2, 9), Spread(0.05**2, 9)]
    calm = prediction_interval.of_one_run([10.0] * 8, model, [0.0] * 8)
    times, held_up = [10.0] * 6 + [20.0] * 2, [0.0] * 6 + [0.5] * 2
    low, high = prediction_interval.of_one_run(times, model, held_up)
    assert low == pytest.approx(calm[0])
    half = t.ppf(0.95, 7) * np.std([0] * 6 + [10] * 2, ddof=1) * math.sqrt(9 / 8)
    assert high == pytest.approx(12.5 + math.hypot(calm[1] - 10, half))
    low, _ = prediction_interval.of_one_run([20.0] * 8, model, [0.5] * 8)
    assert low == pytest.approx(calm[0] + 10)  # all runs meet as much of them
    one = prediction_interval.of_one_run([20.0], model, [0.5])
    assert one[0] == pytest.approx(prediction_interval.of_one_run([10.0], model, [0.0])[0])


def test_what_crashes_add_is_the_same_in_a_run_and_in_a_search():
    table = scenario({"name": "ssgd"}, compute="1 s", steps=60).table | {
        "recovery": {"policy": "wait"},
        "calibration": KNOWN | {"fitted": []},
        "cost": {"node_hour": 1.0, "tokens": 1},
        "objective": {"kind": "quadratic", "dimension": 2},
        "tune": {"ssgd": {"lr": [0.1]}},
    }
    table["cluster"] = table["cluster"] | {"failures": {"between": "5 min", "repair": "30 s"}}
    world = parse(table)
    (row,) = simulate(world, seeds=8).algorithms
    within = row["interval90"]["seconds_per_step"]
    calm = simulate(parse(table | {"cluster": scenario().table["cluster"]}), seeds=8).algorithms
    searched = tune(world, objective="loss-at-tokens", seeds=8).json()["best"]["used"]["days"]
    assert [86400 * end / 60 for end in searched["interval"]] == pytest.approx(within, rel=0.01)
    assert 0 < calm[0]["interval90"]["seconds_per_step"][0] <= within[0] < within[1]


def test_a_label_makes_no_program_a_fitted_one():
    actual, _ = rows({"name": "dts", "delay": 2, "label": "ssgd"})
    assert half(actual["ssgd"]) > 0.05
    actual, _ = rows({"name": "ssgd", "label": "mine"})
    assert half(actual["mine"]) == pytest.approx(0, abs=1e-12)


def test_a_fitted_program_under_other_conditions_was_not_fitted():
    actual, _ = rows(measured={"step": ["10 ms", "20 ms"]})
    assert half(actual["ssgd"]) == pytest.approx(t.ppf(0.95, 8) * 0.01)


def test_a_profile_that_states_no_error_of_the_model_says_so():
    actual, result = rows(model_error=None)
    assert all(half(row) == pytest.approx(0, abs=1e-12) for row in actual.values())
    assert {row["interval90_basis"] for row in actual.values()} == {prediction_interval.ALONE}
    assert result.notes == simulate(result.scenario.model_copy(update={"calibration": None})).notes


def test_over_tcp_a_prediction_without_a_profile_has_an_interval():
    """Programs' errors alone where the links take no time, and what links make of the time."""
    line = {"latency": "20 ms", "bandwidth": "100 kbit/s"}
    errors = tomllib.loads((ROOT / "simulator/results/model_error.toml").read_text())["real"]
    assert prediction_interval.model_errors()["real"] == errors
    alone = Spread(errors["seconds_per_step"]["blocking"] ** 2, errors["programs"] - 1)
    result = simulate(scenario({"name": "ssgd"}, network=line | {"transport": "tcp"}))
    row = result.algorithms[0]
    share = row["breakdown"]["communicate"]
    assert 0.2 < share < 0.8
    links, mean = tcp.measured(), row["seconds_per_step"]["mean"]
    ends = row["seconds_per_step"]["interval90"]
    for end, side in zip(ends, ("low", "high"), strict=True):
        apart = math.log1p(share * (links[side] / links["median"] - 1)) / 1.645
        both = alone + Spread(apart**2, links["collectives"] - 1)
        assert abs(math.log(end / mean)) == pytest.approx(both.within(), rel=0.01)
    assert ends[0] < mean < ends[1]
    (source,) = prediction_interval.sources(result.algorithms)
    assert "no profile" in source
    quick = scenario({"name": "ssgd"}, network={"latency": "0 s", "transport": "tcp"})
    assert half(simulate(quick).algorithms[0]) == pytest.approx(alone.within())
    calibrated = scenario({"name": "ssgd"}, network=line | {"transport": "tcp"}, calibration=KNOWN)
    assert half(simulate(calibrated).algorithms[0]) < half(row)


@looped("run", [{}, {"target_loss": 9.0}])
def test_one_number_has_one_interval_in_the_table_and_in_the_answer(run):
    line = {"latency": "20 ms", "bandwidth": "100 kbit/s", "transport": "tcp"}
    goal = {"kind": "learning-curve", "curve": {"law": "chinchilla", "parameters": 1e8},
            "tokens": 512}  # fmt: skip
    aim = {"objective": goal if run else {"kind": "none"}, "network": line}
    world = scenario({"name": "ssgd"}, {"name": "dts", "delay": 2}, **aim)
    table = dict(world.table) | {"run": {"steps": 2000, "seeds": 3, **run}}
    result = simulate(parse(table))
    found = result.pick
    row = next(item for item in result.algorithms if item["label"] == found["label"])
    assert found["measure"] == ("time_to_target" if run else "seconds_per_step")
    assert found["interval"] == row[found["measure"]]["interval90"] != [None, None]
    estimate = stated(found, "value")
    assert wording.format_interval(estimate, "s") in found["sentence"]
    assert found["ci95"] is None
    told = {k: replace(one, of="median") for k, one in result.verdict.order.estimates.items()}
    assert result.verdict.order.as_in(told).estimates == told  # a table may need medians


@looped(("workers", "other"), [(2, 1.0), (4, 4 / 3), (8, 8 / 7)])
def test_the_interval_of_nccl_spans_its_other_algorithm(workers, other):
    line = {"latency": "1 us", "bandwidth": "1 Gbit/s", "transport": "tcp", "library": "nccl"}
    model = {"parameters": 25_000_000}
    result = simulate(scenario({"name": "ssgd"}, workers=workers, model=model, network=line))
    row, measured = result.algorithms[0], tcp.measured()
    share = row["breakdown"]["communicate"]
    apart = math.log1p(share * (measured["high"] * other / measured["median"] - 1))
    slow_gpu = math.log1p(0.08 * row["breakdown"]["compute"])
    rows, (algorithm,) = prediction_interval.published(), result.scenario.algorithm
    held = collective_share(result.scenario, algorithm, result.runs)
    unseen = math.log1p(prediction_interval.beyond(result.scenario, rows) * held)
    apart = math.hypot(apart, slow_gpu, unseen) / 1.645
    programs = tomllib.loads((ROOT / "simulator/results/model_error.toml").read_text())["real"]
    alone = Spread(programs["seconds_per_step"]["blocking"] ** 2, programs["programs"] - 1)
    both = alone + Spread(apart**2, measured["collectives"] - 1)
    ends = row["seconds_per_step"]["interval90"]
    stated = math.log(ends[1] / row["seconds_per_step"]["mean"])
    assert stated == pytest.approx(both.within(), rel=0.01)
    assert "NCCL's other algorithm" in row["interval90_basis"]


@looped("parameters", [100_000, 25_000_000])
def test_a_faster_card_never_lengthens_the_longest_time(parameters):
    line, model = {"transport": "tcp", "library": "nccl"}, {"parameters": parameters}
    lines = (line | {"card": card} for card in ("10gbe", "25gbe", "400gbe"))
    worlds = (scenario({"name": "ssgd"}, network=line, model=model) for line in lines)
    ends = [simulate(world).algorithms[0]["interval90"]["seconds_per_step"][1] for world in worlds]
    assert all(later <= 1.005 * end for end, later in pairwise(ends)), ends


@looped(("name", "library", "adds"), [
    ("ssgd-bucketed", "nccl", True), ("ssgd-bucketed", "gloo", False), ("ssgd", "nccl", False),
])  # fmt: skip
def test_the_interval_spans_what_gpus_add_to_computing(name, library, adds):
    """A step that mostly computes: 40 % of what communication hides behind, and 6 % for buckets."""
    line = {"latency": "1 us", "bandwidth": "1 Gbit/s", "transport": "tcp", "library": library}
    world = scenario({"name": name}, workers=4, model={"parameters": 25_000_000}, network=line,
                     compute="10 s")  # fmt: skip
    result = simulate(world)
    (row,), (link,) = result.algorithms, result.links.values()
    high = row["seconds_per_step"]["interval90"][1] / row["seconds_per_step"]["mean"]
    assert (link.cause == "computing beside collectives") == adds
    assert 1.08 < high < 1.2  # the slowest GPU: 8 %


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]), st.sampled_from(["nccl", "gloo"]),
            st.floats(-2, 2), st.floats(0, 1),
        ),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_published_errors_widen_intervals_to_hold_ninety_percent_of_their_kind(errors):
    """Every source counts as much, and a kind of few measurements is as wide as a wider kind."""
    line = {"latency": "1 us", "bandwidth": "1 Gbit/s", "transport": "tcp", "library": "nccl"}
    world = scenario({"name": "ssgd"}, workers=4, network=line)
    rows = [
        Published(source, Kind("cluster", "tcp", library), error, width, width, 0.5)
        for source, library, error, width in errors
    ]
    unseen = math.log1p(0.5 * prediction_interval.beyond(world, rows))
    same = [row for row in rows if row.kind.library == "nccl"]
    alike = same if len(same) >= prediction_interval.FEWEST else rows
    counts = Counter(row.source for row in alike)
    outside = [row for row in alike if abs(row.residual) > math.hypot(row.above, unseen) + 1e-9]
    assert sum(1 / counts[row.source] for row in outside) / len(counts) <= 0.1 + 1e-9
    assert prediction_interval.beyond(world, []) == 0
    assert prediction_interval.beyond(world, [row._replace(held=0.01) for row in rows]) == 0


def test_a_wide_interval_names_its_largest_cause_and_none_says_why():
    line = {"card": "ipoib-edr", "transport": "tcp", "library": "gloo"}
    large = {"parameters": 100_000_000}
    wide = simulate(scenario({"name": "ssgd"}, network=line, model=large)).algorithms[0]
    assert "mostly by the spread of ipoib-edr" in wide["interval90_basis"]
    ideal = simulate(scenario({"name": "ssgd"}, network={"latency": "1 s"})).algorithms[0]
    assert ideal["interval90_basis"] == prediction_interval.WHY_NOT
    assert "interval90" not in ideal["seconds_per_step"]


@given(st.lists(st.tuples(st.floats(1e-8, 1.0), st.integers(1, 30)), min_size=2, max_size=2))
def test_two_errors_are_wider_than_either_and_surer_than_the_less_sure(parts):
    one, two = (Spread(*part) for part in parts)
    both = one + two
    assert both.variance == pytest.approx(one.variance + two.variance)
    assert min(one.freedom, two.freedom) <= both.freedom * (1 + 1e-9)
    assert both.freedom <= (one.freedom + two.freedom) * (1 + 1e-9)
    assert (one + Spread(0.0, 3)).within() == pytest.approx(one.within())


def test_what_overlaps_is_what_starts_a_mean_and_goes_on():
    """The flag of each program is what its text says, that of helpers in its module included."""

    def text(function):
        source = inspect.getsource(function)
        module = sys.modules[function.__module__]
        helpers = [name for name, item in inspect.getmembers(module, inspect.isfunction)
                   if item.__module__ == function.__module__ and f" {name}(" in source
                   and item is not function]  # fmt: skip
        return source + "".join(inspect.getsource(getattr(module, name)) for name in helpers)

    found = {name for name, item in catalogue().items() if "start_mean(" in text(item.worker)}
    assert found == {name for name, item in catalogue().items() if item.family == "overlapped"}


def over(transport: str, *algorithms: dict[str, object]) -> dict[str, object]:
    """A quadratic without noise: seeds differ in their start alone."""
    return {
        "model": {"parameters": 10_000_000},
        "objective": {"kind": "quadratic", "dimension": 4, "noise": 0.0},
        "cluster": {"workers": 4, "compute": "100 ms"},
        "network": {"latency": "5 ms", "bandwidth": "1 Gbit/s", "transport": transport},
        "run": {"steps": 4000, "target_loss": 0.05, "seeds": 4},
        "algorithm": algorithms,
    }


OFTEN = {"name": "ssgd", "lr": 0.02}


@looped(
    ("transport", "other", "decided"),
    [
        ("ideal", {"name": "local-sgd", "tau": 8}, True),
        ("tcp", {"name": "local-sgd", "tau": 8}, False),  # its time has less of the links' error
        ("tcp", {"name": "ssgd", "label": "faster"}, True),  # what both share cancels
    ],
)
def test_an_order_within_what_tcp_may_take_is_undecided(transport, other, decided):
    """By `simulate`, `sweep` and `tune` alike."""
    alone = simulate(parse(over(transport, OFTEN, {**other, "lr": 0.02}), file="two"))
    first, second = (algorithm["time_to_target"]["mean"] for algorithm in alone.algorithms)
    scenario = parse(over(transport, OFTEN, {**other, "lr": 0.0205 * second / first}), file="two")
    result = simulate(scenario)
    (at,) = sweep(scenario, {"run.seeds": [4]}).picks
    for shown in (result.pick, at):
        assert (shown["label"] != "ssgd", shown["decided"]) == (True, decided)
    doubt = result.verdict.would_decide
    assert (doubt is not None and doubt.code == "time-model") == (not decided)
    scores = {}
    for label, runs in result.groups.items():
        errors = learning.errors(scenario, result.groups, {}, result.links).get(
            label, prediction_interval.NO_ERRORS
        )
        aim = tuning_objective(scenario, None)
        scores[label] = [aim.score(run, scenario, None, errors) for run in runs]
    ours = order(
        {label: [item.value for item in score] for label, score in scores.items()},
        factors={k: np.array(own[0].model.factors) for k, own in scores.items() if own[0].model},
    )
    assert ours.decided == decided


@looped(
    ("bandwidth", "program"),
    [
        (310e6, {"name": "streaming-diloco", "tau": 20, "fragments": 2, "overlap": 9}),
        (2.8e9, {"name": "dts", "delay": 2, "period": 2}),
        (1e9, {"name": "ssgd"}),  # nothing is hidden: what it waits moves as the links do
    ],
)
def test_an_interval_knows_that_slower_links_are_no_longer_hidden(bandwidth, program):
    """It holds the pace over links that are slower and faster by what TCP may take of them."""

    def over_links(factor):
        table = over("tcp", {**program, "lr": 0.02})
        table["network"] |= {"latency": "1 us", "bandwidth": f"{bandwidth / factor} bit/s"}
        return simulate(parse(table | {"run": {"steps": 1000}}, file="one"))

    actual, links = over_links(1.0), tcp.measured()
    (row,), (link,) = actual.algorithms, actual.links.values()
    pace, share = row["seconds_per_step"]["mean"], row["breakdown"]["communicate"]
    low, high = row["seconds_per_step"]["interval90"]
    for end, side in (("low", link.faster), ("high", link.slower)):
        factor = links[end] / links["median"]
        (other,) = over_links(factor).algorithms
        moved = math.log(other["seconds_per_step"]["mean"] / pace)
        assert side == pytest.approx(moved, abs=0.01)
        assert low < other["seconds_per_step"]["mean"] < high
        unseen = moved > share * math.log(factor) + 0.05
        assert unseen == (end == "high" and program["name"] != "ssgd")
