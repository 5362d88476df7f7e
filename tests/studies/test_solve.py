"""`paceline solve`: closed forms met, ranges, refusals, resuming."""

import json
import tomllib

import pytest

from paceline import InputError, solve
from paceline.command_line import run as command
from paceline.simulator.load.load import parse
from tests.helpers.cases import beside, looped

MODEL = 1e6  # parameters
TABLE = tomllib.loads(beside(__file__, "searches.toml"))["ring"] | {
    "run": {"steps": 64, "seeds": 3},
    "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 8}],
}


def mean(bandwidth, workers=4):
    """Seconds of a ring: 2 (M - 1) hops of a latency and a share of the model (bits/s)."""
    return 2 * (workers - 1) * (0.01 + 32 * MODEL / workers / bandwidth)


def world(**tables):
    return parse(TABLE | tables)


def test_the_bandwidth_of_a_closed_form():
    result = solve(world(), "network.bandwidth", "seconds_per_step <= 300 ms")
    assert result.scale.unit == "Mbit/s"
    for solution, tau in zip(result.solutions, (1, 8), strict=True):
        assert solution.holds == "from"
        seconds = 0.1 + mean(solution.value * 1e6) / tau
        assert 0.3 * 0.99 < seconds <= 0.3
        assert solution.number == pytest.approx(seconds, rel=1e-5)


def test_a_share_and_its_complement_meet():
    rises = solve(world(), "network.bandwidth", "utilisation >= 90 %")
    falls = solve(world(), "network.bandwidth", "breakdown.communicate <= 0.1")
    for one, other in zip(rises.solutions, falls.solutions, strict=True):
        assert one.holds == other.holds
        assert one.value is None or one.value == pytest.approx(other.value, rel=0.01)
    assert [solution.holds for solution in rises.solutions] == ["never", "from"]


def test_what_does_not_depend_on_the_key_is_said_without_a_search():
    alone = parse(TABLE | {"algorithm": [{"name": "psgd"}]})
    result = solve(alone, "network.bandwidth", "utilisation >= 90 %")
    assert "at every network.bandwidth" in result.sentences[0]
    assert result.sentences[0].endswith("it does not depend on network.bandwidth.")


def test_whole_numbers_up_to_the_last():
    bound = 0.1 + mean(100e6, 11)
    result = solve(world(), "cluster.workers", f"algorithm.ssgd.seconds_per_step <= {bound + 1e-6}",
                  between="2,64")  # fmt: skip
    (solution,) = result.solutions
    assert (solution.holds, solution.value) == ("up to", 11)


def test_an_interval_holds_the_answer_that_many_seeds_give():
    random = {"workers": 4, "compute": {"dist": "exponential", "mean": "100 ms"}}
    result = solve(
        world(cluster=random), "network.bandwidth", "algorithms[0].seconds_per_step <= 0.4"
    )
    many = solve(
        world(cluster=random),
        "network.bandwidth",
        "algorithms[0].seconds_per_step <= 0.4",
        seeds=60,
    )
    low, high = result.solutions[0].interval
    assert "(90 %: " in result.sentences[0]
    assert low < many.solutions[0].value < high
    narrow = many.solutions[0].interval
    assert narrow[1] / narrow[0] < high / low


@looped("condition", ["seconds_per_step <= 0.4", "utilisation >= 0.3"])
def test_an_interval_narrower_than_the_search_has_both_ends(condition):
    steady = {"workers": 4, "compute": {"dist": "gamma", "mean": "100 ms", "shape": 10_000}}
    result = solve(world(cluster=steady), "network.bandwidth", condition, seeds=4)
    for solution in result.solutions:
        low, high = solution.interval
        assert low <= solution.value <= high < 1.1 * low


def test_one_seed_gives_an_interval_only_where_nothing_is_random():
    random = {"workers": 4, "compute": {"dist": "exponential", "mean": "100 ms"}}
    question = ("network.bandwidth", "algorithms[1].utilisation >= 60 %")
    alone = solve(world(cluster=random), *question, seeds=1)
    assert alone.solutions[0].interval is None
    assert alone.sentences[0].endswith("(one seed: no interval).")
    assert alone.records()[0]["interval.low"] is None
    certain = solve(world(), *question, seeds=1).solutions[0]
    assert certain.interval == (certain.value, certain.value)


@looped(("condition", "holds"), [("<= 1 h", "always"), ("<= 1 ms", "never")])
def test_everywhere_and_nowhere(condition, holds):
    result = solve(world(), "network.bandwidth", f"seconds_per_step {condition}")
    assert {solution.holds for solution in result.solutions} == {holds}
    assert all(solution.value is None for solution in result.solutions)


def test_no_single_answer_is_refused():
    """With more workers the bound's noise falls and its communication grows: an optimum between."""
    objective = {"kind": "bound", "initial_gap": 10.0, "smoothness": 1.0, "gradient_variance": 5.0}
    bound = world(objective=objective, run={"duration": "2 min", "seeds": 1})
    with pytest.raises(InputError, match=r"both rises and falls with algorithm\.local-sgd\.tau"):
        solve(bound, "algorithm.local-sgd.tau", "algorithm[1].loss.last <= 1", between="1,1000")
    with pytest.raises(InputError, match="both rises and falls"):
        solve(bound, "algorithm.local-sgd.tau", "algorithm[1].loss.last <= 0.5", between="1,1000")


def test_a_fall_that_stays_on_one_side_of_the_value_is_no_refusal():
    """The loss falls from 1.2 to an optimum and rises to 50, past 2 once."""
    objective = {"kind": "bound", "initial_gap": 10.0, "smoothness": 1.0, "gradient_variance": 5.0}
    bound = world(objective=objective, run={"duration": "2 min", "seeds": 1})
    condition = "algorithm[1].loss.last <= 2"
    (solution,) = solve(bound, "algorithm.local-sgd.tau", condition, between="1,1000").solutions
    assert solution.holds == "up to"
    assert 32 <= solution.value < 100
    assert solution.number <= 2


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(
        [
            'objective = { kind = "none" }', "model.parameters = 1_000_000", "optimizer.lr = 0.1",
            'cluster = { workers = 4, compute = "100 ms" }', "run = { steps = 64, seeds = 2 }",
            'network = { latency = "10 ms", bandwidth = "100 Mbit/s" }',
            'algorithm = [{ name = "ssgd" }]',
        ]
    )  # fmt: skip
    (tmp_path / "my.toml").write_text(text)
    asked = ["solve", "my.toml", "--vary", "network.bandwidth", "--for", "seconds_per_step <= 0.3"]
    assert command([*asked, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "runs/my-solve/solve.json").read_text())
    assert stored["solutions"] == shown["solutions"]
    assert shown["solutions"][0]["holds"] == "from"
    assert command([*asked[:-1], "seconds_per_step <= 0.4", "--out", "runs/my-solve"]) == 2
    assert "--overwrite" in capsys.readouterr().err


@looped(
    ("condition", "reason"),
    [("seconds_per_stp <= 3", "did you mean `seconds_per_step`"), ("links >= 3", "not a number")],
)
def test_a_condition_without_a_number_is_refused(condition, reason):
    with pytest.raises(InputError, match=reason):
        solve(world(), "network.bandwidth", condition)
