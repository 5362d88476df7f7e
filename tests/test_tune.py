"""`paceline tune`: what it picks, what it says of that, and that nothing changes the numbers."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import paceline
from simulator import presets, regret, report, verdict
from simulator.errors import InputError
from simulator.goals import Score, goal
from simulator.load import known_programs, parse
from simulator.race import Contender, blocks
from simulator.simulate import run_seeds
from simulator.space import Candidate, space
from simulator.tune import tune

ROOT = Path(paceline.__file__).parent
QUADRATIC = {"kind": "quadratic", "dimension": 4, "noise": 1.0, "spectrum": {"exponent": 0.5}}
SPREAD = {"dist": "shifted-exponential", "shift": "80 ms", "mean": "100 ms"}


def world(tune_table=None, *algorithms, **changes):
    """A small scenario's table; `changes` add to its tables."""
    table = {
        "title": "small",
        "model": {"parameters": 1000},
        "objective": QUADRATIC,
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": 2, "compute": SPREAD},
        "network": {"latency": "40 ms", "bandwidth": "1 Mbit/s"},
        "run": {"duration": "30 s", "target_loss": 0.2, "seeds": 4, "evaluate_every": 1},
        "algorithm": list(algorithms),
    }
    if tune_table:
        table["tune"] = tune_table
    for name, change in changes.items():
        table[name] = table.get(name, {}) | change if isinstance(change, dict) else change
    return table


GRID = {"ssgd": {"lr": [0.05, 0.1, 0.2, 0.4]}, "local-sgd": {"lr": [0.1, 0.2], "tau": [1, 2, 4]}}


def found(table, **options):
    return tune(parse(table, file="test.toml"), **options)


def labels(contenders):
    return [each.candidate.label for each in contenders]


@pytest.fixture(scope="module")
def grid():
    return found(world(GRID))


def exhaustive(table, tried):
    """Mean time to the target of every configuration, at full length and with all seeds."""
    means = {}
    for each in tried:
        one = parse({k: v for k, v in table.items() if k != "tune"} | {"algorithm": [each.table]})
        runs = run_seeds(one, one.algorithm[0], range(one.run.seeds))
        means[each.label] = np.mean([report.crossing(run, one.run.target_loss) for run in runs])
    return means


def test_the_pick_is_within_3_percent_of_the_true_best_or_names_it(grid):
    means = exhaustive(world(GRID), [each.candidate for each in grid.ranked])
    assert len(means) == 10
    best = min(means, key=means.get)
    picked = grid.best.candidate.label
    assert means[picked] <= 1.03 * means[best] or best in labels(grid.tied)
    assert grid.best.mean() == pytest.approx(means[picked], rel=1e-9)  # cutting changes no number


def test_what_was_given_up_early_is_worse_than_the_best(grid):
    means = exhaustive(world(GRID), [each.candidate for each in grid.ranked])
    stopped = [each for each in grid.ranked if each.stopped]
    assert stopped
    for each in stopped:
        assert means[each.candidate.label] > means[grid.best.candidate.label]
        assert each.scores[0].ran < 30


def test_the_document_is_the_contract(grid):
    document = json.loads(json.dumps(grid.json(), allow_nan=False))
    assert {"name", "parameters", "value", "ci95"} <= document["best"].keys()
    assert document["best"]["ci95"][0] < document["best"]["value"] < document["best"]["ci95"][1]
    assert document["evaluations"] == len(document["ranking"]) == 10
    assert document["wall_seconds"] > 0
    assert document["ranking"][0] == document["best"]
    assert [row["label"] for row in document["ties"]] == labels(grid.tied)


def test_the_best_is_nobodys_worse_in_the_world_as_it_is(grid):
    nominal = grid.regret[0]
    assert nominal["input"] is None
    assert len(grid.regret) == 7
    assert all(min(row["regret"].values()) == 0 for row in grid.regret)


def test_numbers_do_not_depend_on_the_number_of_processes(grid):
    one, two = grid.json(), found(world(GRID), jobs=2).json()
    assert one.pop("wall_seconds") != two.pop("wall_seconds")
    assert one == two


def test_a_range_too_large_to_exhaust_is_searched():
    choices = {
        "ssgd": {"lr": {"low": 0.01, "high": 0.8, "log": True}},
        "local-sgd": {"tau": {"low": 1, "high": 64, "log": True}, "lr": [0.1, 0.2]},
    }
    first, again = (found(world(choices), trials=24, seed=3) for _ in range(2))
    assert labels(first.ranked) == labels(again.ranked)
    assert 20 <= len(first.ranked) <= 24
    best_of_grid = min(
        exhaustive(world(), [Candidate("ssgd", {"name": "ssgd", "lr": lr}, {})])["ssgd"]
        for lr in (0.1, 0.2, 0.4)
    )
    assert first.best.mean() < 1.2 * best_of_grid


def contender(name, *values, gap=1.0, **parameters):
    scores = [Score(value, 0.0 if math.isfinite(value) else gap, math.inf) for value in values]
    label = " ".join([name, *map(str, parameters.values())])
    return Contender(Candidate(label, {"name": name} | parameters, dict(parameters)), scores)


def test_ties_are_what_a_paired_interval_cannot_separate():
    base = np.array([10.0, 14.0, 9.0, 12.0])
    best = contender("dts", *base, delay=4, period=4)
    near = contender("local-sgd", *(base + np.array([0.5, -0.4, 0.3, -0.2])), tau=8)
    far = contender("ssgd", *(base + np.array([0.5, 0.4, 0.6, 0.5])))  # little worse, but always
    ranked = verdict.ranking([far, near, best])
    assert ranked == [best, near, far]
    assert verdict.ties(ranked, known_programs(None)) == [near]


def test_simple_is_near_to_ssgd_then_round_then_small():
    ordered = [
        contender("ssgd", 1.0, lr=0.3),
        contender("ssgd", 1.0, lr=0.25),
        contender("psgd", 1.0),
        contender("asgd", 1.0),
        contender("local-sgd", 1.0, tau=4),
        contender("local-sgd", 1.0, tau=8),
        contender("local-sgd", 1.0, tau=12),
        contender("dts", 1.0, delay=2, period=2),
    ]
    programs = known_programs(None)
    keys = [verdict.simplicity(each.candidate, programs) for each in ordered]
    assert keys == sorted(keys)


def test_who_never_gets_there_is_worse_and_ranked_by_how_close_it_came():
    slow = contender("ssgd", 900.0, 900.0, lr=1)
    once = contender("ssgd", 5.0, math.inf, lr=2, gap=0.5)
    close = contender("ssgd", math.inf, math.inf, lr=3, gap=0.1)
    off = contender("ssgd", math.inf, math.inf, lr=4, gap=0.8)
    assert verdict.ranking([off, close, once, slow]) == [slow, once, close, off]


def test_a_target_that_nobody_reaches_is_said_and_json_has_no_nan():
    result = found(world({"ssgd": {"lr": [0.001, 0.01]}}, run={"target_loss": 1e-6}), seeds=2)
    document = json.loads(json.dumps(result.json(), allow_nan=False))
    assert labels(result.ranked)[0] == "ssgd lr=0.01"
    assert document["best"]["value"] is None
    assert document["best"]["reached"] == 0
    assert any("no configuration reached loss 1e-06" in text for text in result.warnings)


def test_the_edge_of_the_range_is_warned_about_unless_it_is_the_worlds():
    result = found(world({"local-sgd": {"lr": [0.01, 0.02], "tau": [1, 2]}}), seeds=2)
    edges = [text for text in result.warnings if "tried" in text]
    assert "local-sgd's lr = 0.02 is the highest tried; try values beyond it" in edges
    assert not any("tau = 1 is the lowest" in text for text in edges)


def test_inputs_without_effect_are_warned_about():
    table = world(
        {"hybrid": {"step_size": [10**6, 10**7]}},
        cluster={"compute": "100 ms"},
        network={"latency": "0 s", "bandwidth": "1 Tbit/s"},
    )
    said = found(table, seeds=2).warnings
    assert "hybrid's step_size makes no difference at all" in said
    assert "the answer does not depend on hybrid's step_size: every value is a tie" in said
    assert any(text.startswith("the answer does not depend on latency") for text in said)
    assert any(text.startswith("the answer does not depend on straggling") for text in said)


def test_one_seed_cannot_tell():
    result = found(world({"ssgd": {"lr": [0.1, 0.2]}}), seeds=1)
    assert result.tied == []
    assert any(text.startswith("one seed cannot tell") for text in result.warnings)


def test_loss_at_deadline():
    table = world({"ssgd": {"lr": [0.001, 0.1]}}, run={"duration": "5 s"})
    result = found(table, objective="loss-at-deadline", seeds=2)
    assert labels(result.ranked) == ["ssgd lr=0.1", "ssgd lr=0.001"]
    one = parse(world(None, {"name": "ssgd", "lr": 0.1}, run={"duration": "5 s"}))
    runs = run_seeds(one, one.algorithm[0], range(2))
    assert result.best.mean() == pytest.approx(np.mean([report.at(run, 5.0) for run in runs]))


def test_without_duration_the_deadline_is_the_end_of_the_shortest_run():
    table = world({"local-sgd": {"tau": [1, 2, 4]}}, {"name": "ssgd"})
    table["run"] = {"steps": 20, "seeds": 2}
    result = found(table)
    assert result.goal.name == "loss-at-deadline"
    assert 0 < result.goal.deadline < 20 * 1.0


def test_cost_to_loss_prefers_fewer_bytes_where_these_are_dear():
    table = world(
        {"local-sgd": {"tau": [1, 8], "lr": [0.1]}},
        cluster={"region": "a"},
        cost={"egress_per_gb": 1.0, "node_hour": 1e-6},
        server={},
    )
    table["cluster"] = {"workers": 2, "compute": SPREAD, "group": [
        {"name": "a", "workers": 1, "region": "a"}, {"name": "b", "workers": 1, "region": "b"},
    ]}  # fmt: skip
    result = found(table, objective="cost-to-loss", seeds=2)
    assert labels(result.ranked)[0] == "local-sgd tau=8 lr=0.1"
    dear = result.rows(result.ranked)[0]["value"]
    assert 0 < dear < 1e-3


@pytest.mark.parametrize(
    ("changes", "objective", "said"),
    [
        ({"run": {"target_loss": None}}, "time-to-loss", "run.target_loss: missing"),
        ({}, "cost-to-loss", "cost: no prices"),
        ({}, "speed", "objective 'speed': unknown; choose one of: time-to-loss"),
        ({"objective": {"kind": "none"}, "run": {"target_loss": None}}, None, "has no loss"),
    ],
)
def test_what_a_goal_lacks_is_said(changes, objective, said):
    table = world({"ssgd": {"lr": [0.1]}}, **changes)
    table["run"] = {key: each for key, each in table["run"].items() if each is not None}
    if changes.get("objective"):
        table["objective"] = {"kind": "none"}
    with pytest.raises(InputError, match=r"^[^\n]*$") as error:
        found(table, objective=objective)
    assert said in str(error.value)


def test_without_tune_a_default_is_searched_and_said():
    scenario = parse(world(None, {"name": "local-sgd", "tau": 8}, {"name": "k-sync", "k": 1}))
    tried, notes = space(scenario)
    assert tried.entries["local-sgd"].choices["tau"] == (1, 2, 4, 8, 16, 32, 64)
    assert tried.entries["k-sync"].choices["k"] == (1, 2)
    assert 0.1 in tried.entries["local-sgd"].choices["lr"]
    assert tried.size == 5 * 7 + 5 * 2 == len(list(tried.grid()))
    assert "no [tune]" in notes[0]
    assert "tau 1/2/4" in notes[0]


def test_algorithms_without_entry_take_part_as_written():
    table = world(
        {"local-sgd": {"tau": [2, 4]}}, {"name": "ssgd", "label": "mine"}, {"name": "asgd"}
    )
    assert set(labels(found(table, seeds=2).ranked)) >= {"mine", "asgd", "local-sgd tau=2"}


def test_dts_begins_with_the_delay_that_hides_the_latency():
    scenario = parse(
        world(
            {"dts": {"delay": [0, 1, 2, 4, 8, 16], "period": [1, 4]}},
            cluster={"compute": "100 ms"},
            network={"latency": "190 ms", "bandwidth": "1 Gbit/s"},
        )
    )
    tried, _ = space(scenario)
    begun = [tried.chosen(point)[1] for point in presets.first(tried)]
    assert {"delay": 4, "period": 1} in begun  # 380 ms of latency, 100 ms a step
    assert {"delay": 4, "period": 4} in begun


def test_adacomms_own_search_for_tau0():
    table = world(
        None,
        {"name": "adacomm", "tau0": 3, "interval": "4 s"},
        run={"duration": "300 s"},
        network={"latency": "1 s"},
    )
    result = found(table, preset="adacomm-tau0", seeds=2)
    assert {each.candidate.parameters["tau0"] for each in result.ranked} == set(presets.TAU0)
    assert result.best.candidate.name == "adacomm"
    assert result.best.candidate.parameters["tau0"] > 1  # averages take 2 s, steps 0.1 s
    assert result.goal.deadline == 4.0
    with pytest.raises(InputError, match="add an \\[\\[algorithm\\]\\] table"):
        found(world(GRID), preset="adacomm-tau0")
    with pytest.raises(InputError, match="leave --objective out"):
        found(table, preset="adacomm-tau0", objective="time-to-loss")


def test_spread_keeps_the_minimum_or_else_the_mean():
    table = world()
    for law, moment in [
        ({"dist": "shifted-exponential", "shift": "1 s", "mean": "2 s"}, "minimum"),
        ({"dist": "uniform", "low": "1 s", "high": "2 s"}, "minimum"),
        ({"dist": "pareto", "minimum": "1 s", "alpha": 4.0}, "minimum"),
        ({"dist": "normal", "mean": "9 s", "sd": "1 s"}, "mean"),
        ({"dist": "lognormal", "mean": "9 s", "sd": "1 s"}, "mean"),
        ({"dist": "gamma", "mean": "9 s", "shape": 4.0}, "mean"),
        ({"dist": "constant", "value": "1 s"}, "mean"),
    ]:
        before, after = (
            parse(
                regret.world(table | {"cluster": {"workers": 2, "compute": law}}, "straggling", by)
            ).cluster.compute
            for by in (1.0, 1.2)
        )
        if moment == "mean":
            assert after.expectation == pytest.approx(before.expectation, rel=1e-6)
            assert math.sqrt(after.variance) == pytest.approx(1.2 * math.sqrt(before.variance))
        else:
            assert after.quantile([0])[0] == pytest.approx(before.quantile([0])[0])
            low = before.quantile([0])[0]
            assert after.expectation - low == pytest.approx(1.2 * (before.expectation - low))


def test_blocks_grow_to_all_seeds():
    assert list(map(len, blocks(range(8)))) == [1, 1, 2, 4]
    assert [seed for block in blocks(range(5, 16)) for seed in block] == list(range(5, 16))


def test_goals_default_to_the_target():
    assert goal(parse(world(GRID)), None).name == "time-to-loss"
    table = world(GRID)
    del table["run"]["target_loss"]
    assert goal(parse(table), None).name == "loss-at-deadline"


TOML = """
title = "to be killed"
model.parameters = 1000
objective = { kind = "quadratic", dimension = 4 }
cluster = { workers = 2, compute = { dist = "exponential", mean = "20 ms" } }
network = { latency = "10 ms" }
run = { duration = "20 s", target_loss = 0.05, seeds = 4 }
[tune]
ssgd = { lr = { low = 0.01, high = 0.5, log = true } }
local-sgd = { lr = { low = 0.01, high = 0.5, log = true }, tau = [1, 2, 4, 8, 16] }
"""


def command(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", "tune", "killed.toml", "--jobs", "1", "--json",
         "--trials", "20", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def stopped_by(sent, folder, journal, size):
    """Start a search, send a signal once its journal is so large, and return the process."""
    process = command(folder, "--out", "a")
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > size):
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be stopped"
    process.send_signal(sent)
    return process


def test_a_killed_search_ends_as_one_never_killed(tmp_path):
    (tmp_path / "killed.toml").write_text(TOML)
    journal = tmp_path / "a" / "tune.journal"
    stopped_by(signal.SIGKILL, tmp_path, journal, 3_000).communicate()
    interrupted = stopped_by(signal.SIGINT, tmp_path, journal, 8_000)
    _, notes = interrupted.communicate()
    assert interrupted.returncode == 130
    assert "repeat the command to resume" in notes
    resumed, whole = command(tmp_path, "--out", "a"), command(tmp_path, "--out", "b")
    (one, notes), (other, _) = resumed.communicate(), whole.communicate()
    assert "runs were kept from before" in notes
    first, second = json.loads(one), json.loads(other)
    assert first.pop("wall_seconds") > 0
    assert second.pop("wall_seconds") > 0
    assert first == second
    _, notes = command(tmp_path, "--out", "a").communicate()
    assert f"{first['runs']} of {first['runs']} runs were kept" in notes


def test_the_command_shows_tables_and_writes_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TOML.replace("seeds = 4", "seeds = 2"))
    arguments = "--trials", "4", "--jobs", "1"
    assert paceline.run(["tune", "small.toml", *arguments]) == 0
    shown = capsys.readouterr()
    assert "4 configurations in" in shown.out
    assert "latency" in shown.out
    written = {path.name for path in (tmp_path / "runs" / "small-tune").iterdir()}
    assert {"tune.json", "value.png", "value.svg", "sensitivity.png", "tune.journal"} <= written
    assert paceline.run(["tune", "small.toml", "--objective", "cost-to-loss"]) == 2
    assert "no prices" in capsys.readouterr().err
