"""`paceline fit`: planted values, what no target determines, targets held out, refusals."""

import json
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline import InputError, fit, load, simulate
from paceline.command_line import run as command
from paceline.simulator.load.load import parse
from paceline.simulator.studies import fit as module
from paceline.simulator.studies.simulate import run_on
from tests.helpers.cases import beside, looped

TABLE = tomllib.loads(beside(__file__, "searches.toml"))["ring"]
MOVING = """
[keys]
"cluster.compute" = "10 ms to 2000 ms"
network.bandwidth = "1 Mbit/s to 1 Gbit/s"
"""
COMPUTE = '[keys]\ncluster.compute = "10 ms to 2 s"\n'
STEP, LOCAL = "algorithm.ssgd.seconds_per_step", "algorithm.local.seconds_per_step"


def world(**tables):
    return parse(TABLE | tables)


def target(number, value, tolerance=0.01, more=""):
    return f'[[target]]\nnumber = "{number}"\nvalue = {value}\ntolerance = {tolerance}\n{more}\n'


def written(folder, text):
    file = folder / "targets.toml"
    file.write_text(text, "utf-8")
    return file


def hop(latency, bandwidth, workers=4):
    """Seconds of a ring's mean: 2 (M - 1) hops of a latency and a share of the model (bits/s)."""
    return 2 * (workers - 1) * (latency + 32e6 / workers / bandwidth)


def test_two_planted_keys_come_back_exactly_without_noise(tmp_path):
    planted = 0.3, 40e6
    numbers = [planted[0] + hop(0.01, planted[1]) / tau for tau in (1, 8)]
    text = MOVING + target(STEP, numbers[0], 1e-3) + target(LOCAL, numbers[1], 1e-3)
    actual = fit(world(), written(tmp_path, text))
    assert [row["value"] for row in actual.keys] == pytest.approx([300, 40], rel=1e-4)
    assert [row["unit"] for row in actual.keys] == ["ms", "Mbit/s"]
    assert not actual.undetermined
    for row, scale in zip(actual.keys, (1, 8), strict=True):  # a first guess of the width
        low, high = row["interval"]
        assert low < row["value"] < high
        assert high / low - 1 < 0.05 * scale


def test_planted_keys_lie_in_the_intervals_where_times_are_random(tmp_path):
    """Numbers of other seeds, with their errors, as a measurement would give them."""
    random = {"dist": "exponential", "mean": "300 ms"}
    true = world(
        cluster={"workers": 4, "compute": random},
        network={"latency": "10 ms", "bandwidth": "40 Mbit/s"},
    )
    measured = simulate(true, seeds=8, seed=100).algorithms
    text = '[keys]\ncluster.compute.mean = "10 ms to 2 s"\n'
    text += 'network.bandwidth = "1 Mbit/s to 1 Gbit/s"\n'
    for label, row in zip(("ssgd", "local"), measured, strict=True):
        pace = row["seconds_per_step"]
        error = 1.645 * (pace["ci95"][1] - pace["mean"]) / 2.36
        text += f'[[target]]\nnumber = "algorithm.{label}.seconds_per_step"\n'
        text += f"value = {pace['mean']}\ntolerance = {error}\n"
    start = {"dist": "exponential", "mean": "900 ms"}
    actual = fit(world(cluster={"workers": 4, "compute": start}), written(tmp_path, text), seeds=8)
    for row, planted in zip(actual.keys, (300, 40), strict=True):
        low, high = row["interval"]
        assert low < planted < high
        assert planted / 1.5 < row["value"] < planted * 1.5


def test_a_whole_number_comes_back(tmp_path):
    seconds = 0.1 + hop(0.01, 100e6, 11)
    text = '[keys]\ncluster.workers = "2 to 64"\n' + target(STEP, seconds, 1e-4)
    (row,) = fit(world(), written(tmp_path, text)).keys
    assert (row["value"], row["text"]) == (11, "11")


@looped(
    ("keys", "free"),
    [
        ({"cluster.compute": "10 ms to 2 s", "network.latency": "1 ms to 300 ms"}, 2),
        ({"network.bandwidth": "1 Mbit/s to 1 Gbit/s", "model.parameters": "1000 to 90000000"}, 2),
        ({"optimizer.lr": "0.01 to 1", "network.bandwidth": "1 Mbit/s to 1 Gbit/s"}, 1),
    ],
)  # fmt: skip
def test_what_no_target_determines_is_named(keys, free, tmp_path):
    text = "[keys]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in keys.items())
    # so little latency that the ratio alone decides
    quick = world(network={"latency": "0 s", "bandwidth": "100 Mbit/s"})
    actual = fit(quick, written(tmp_path, text + target(STEP, 1.0)))
    assert actual.undetermined == [*keys][:free]
    assert actual.sentences[0].startswith(" and ".join([*keys][:free]))
    assert all(row["verdict"] == "met" for row in actual.fitted)


@cache
def alone():
    with TemporaryDirectory() as folder:
        return fit(world(), written(Path(folder), COMPUTE + target(STEP, 0.9))).json()


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=st.floats(1e-3, 1e3), tolerance=st.floats(1e-6, 10))
def test_a_target_held_out_changes_nothing(value, tolerance, tmp_path):
    held = target(LOCAL, value, tolerance, "hold_out = true")
    file = written(tmp_path, COMPUTE + target(STEP, 0.9) + held)
    actual = fit(world(), file).json()
    assert actual["keys"] == alone()["keys"]
    assert actual["fitted"] == alone()["fitted"]
    (row,) = actual["held_out"]
    assert row["found"] == pytest.approx(0.9 - 7 / 8 * hop(0.01, 100e6), rel=1e-6)
    assert row["interval"][0] < row["found"] < row["interval"][1]
    assert (row["verdict"] == "met") is (abs(row["found"] - value) <= tolerance)


def test_variants_of_the_scenario_are_fitted_together(tmp_path):
    """Of four workers and of eight."""
    numbers = [0.2 + hop(0.01, 50e6, workers) for workers in (4, 8)]
    more = 'name = "eight"\nset = ["cluster.workers=8"]'
    text = MOVING + target(STEP, numbers[0]) + target(STEP, numbers[1], more=more)
    actual = fit(world(), written(tmp_path, text))
    assert [row["value"] for row in actual.keys] == pytest.approx([200, 50], rel=1e-3)


def test_what_cannot_be_met_is_left_unexplained(tmp_path):
    """Local steps that take longer than synchronous ones: no bandwidth does that."""
    text = MOVING + target(STEP, 0.5, 0.1) + target(LOCAL, 0.9, 0.1)
    text += target("algorithm.ssgd.breakdown.compute", 5)
    actual = fit(world(), written(tmp_path, text))
    assert actual.fitted[2]["verdict"] == "missed"
    assert actual.unexplained["widened"] > 1
    assert "targets are missed" in actual.sentences[-1]
    assert "algorithm.ssgd.breakdown.compute" in actual.sentences[-1]


@pytest.mark.long
def test_any_number_of_jobs_gives_the_same_numbers(tmp_path):
    random = {"workers": 4, "compute": {"dist": "exponential", "mean": "100 ms"}}
    keys = '[keys]\ncluster.compute.mean = "10 ms to 1 s"\n'
    file = written(tmp_path, keys + target(STEP, 0.5) + target(LOCAL, 0.3))
    assert (
        fit(world(cluster=random), file).json() == fit(world(cluster=random), file, jobs=2).json()
    )


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(
        "\n".join(
            [
                'objective = { kind = "none" }', "model.parameters = 1_000_000",
                "optimizer.lr = 0.1", "run = { steps = 64, seeds = 2 }",
                'cluster = { workers = 4, compute = "100 ms" }  # a guess',
                'network = { latency = "10 ms", bandwidth = "100 Mbit/s" }',
                'algorithm = [{ name = "ssgd" }, { name = "local-sgd", label = "local", tau = 8 }]',
            ]
        )
    )  # fmt: skip
    written(tmp_path, MOVING + target(STEP, 1) + target(LOCAL, 0.5))
    arguments = ["fit", "my.toml", "targets.toml", "-o", "found.toml", "--jobs", "1"]

    count = resumed = 0

    def interrupted(*args, **options):
        nonlocal count, resumed
        count += 1
        if count == 12:
            raise KeyboardInterrupt
        result = run_on(*args, **options)
        resumed += result.resumed == len(result.runs)
        return result

    monkeypatch.setattr(module, "run_on", interrupted)
    assert command(arguments) == 130
    assert "repeat the command to resume" in capsys.readouterr().err
    assert command([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "runs/my-fit/fit.json").read_text())
    assert stored["keys"] == shown["keys"]
    assert count == shown["evaluations"] + 12
    assert resumed == 10  # those before the interruption but the first, which leaves no file
    row = simulate(load("found.toml")).algorithms[0]
    assert row["seconds_per_step"]["mean"] == pytest.approx(1, rel=1e-4)

    (tmp_path / "found.toml").write_text("mine")
    assert command(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "found.toml").read_text() == "mine"
    assert command([*arguments, "--overwrite"]) == 0
    assert "Scenario: found.toml" in capsys.readouterr().out


@looped(
    ("text", "reason"),
    [
        ('[keys]\n"optimizer.lr" = "0.01 to 1"\n' + target(STEP, 1), "at all values of the keys"),
        (MOVING + target("algorithm.ssgd.loss.last", 1), "no value at any tried point"),
    ],
)
def test_targets_that_no_value_reaches_are_refused(text, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        fit(world(), written(tmp_path, text))
