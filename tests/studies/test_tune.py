"""`paceline tune`: what it picks, what it says of that, and that nothing changes the numbers."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import paceline
import paceline.command_line
from paceline.deploy.emit.emit import find
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.reports import terminal
from paceline.simulator.results import statistics, store
from paceline.simulator.results.verdict import ALONE
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from paceline.simulator.studies.tune import figures
from paceline.simulator.studies.tune import result as results
from paceline.simulator.studies.tune.objective import Score, TuningObjective, tuning_objective
from paceline.simulator.studies.tune.race import Contender, Race, TuneDirectory, seed_counts
from paceline.simulator.studies.tune.result import TuneResult, notes_of
from paceline.simulator.studies.tune.space import Candidate, space
from paceline.simulator.studies.tune.tune import tune
from tests.command_line.test_command_line import INTERRUPTED
from tests.helpers.cases import beside, looped

ROOT = Path(paceline.__file__).parents[1]
SEARCHES = tomllib.loads(beside(__file__, "searches.toml"))
QUADRATIC, SPREAD = SEARCHES["small"]["objective"], SEARCHES["small"]["cluster"]["compute"]
UNTRIED = tomllib.loads(beside(__file__, "untried.toml"))


def world(tune_table=None, *algorithms, **changes):
    """A small scenario's table; `changes` add to its tables."""
    table = deepcopy(SEARCHES)["small"] | {"algorithm": list(algorithms)}
    if tune_table:
        table["tune"] = tune_table
    for name, change in changes.items():
        table[name] = table.get(name, {}) | change if isinstance(change, dict) else change
    return table


GRID = {"ssgd": {"lr": [0.05, 0.1, 0.2, 0.4]}, "local-sgd": {"lr": [0.1, 0.2], "tau": [1, 2, 4]}}


def found(table, **options):
    return tune(parse(table, file="test.toml"), **options)


def labels(contenders):
    return [item.candidate.label for item in contenders]


@pytest.fixture(scope="module")
def grid():
    return found(world(GRID))


def exhaustive(table, tried):
    """Mean time to the target of every configuration, at full length and with all seeds."""
    means = {}
    for item in tried:
        one = parse({k: v for k, v in table.items() if k != "tune"} | {"algorithm": [item.table]})
        runs = run_seeds(one, one.algorithm[0], range(one.run.seeds))
        means[item.label] = np.mean([statistics.crossing(run, one.run.target_loss) for run in runs])
    return means


def test_the_pick_is_within_3_percent_of_the_true_best_or_names_it(grid):
    means = exhaustive(world(GRID), [choice.candidate for choice in grid.ranked])
    assert len(means) == 10
    best = min(means, key=means.get)
    picked = grid.best.candidate.label
    assert means[picked] <= 1.03 * means[best] or best in labels(grid.tied)
    assert grid.best.mean() == pytest.approx(means[picked], rel=1e-9)  # cutting changes no number


def test_what_was_given_up_early_is_worse_than_the_best(grid):
    means = exhaustive(world(GRID), [item.candidate for item in grid.ranked])
    stopped = [item for item in grid.ranked if item.stopped]
    assert stopped
    for choice in stopped:
        assert means[choice.candidate.label] > means[grid.best.candidate.label]
    assert any(score.ran < 30 for item in stopped for score in item.scores)


def test_the_document_is_the_contract(grid):
    document = json.loads(json.dumps(grid.json(), allow_nan=False))
    assert {"name", "parameters", "value", "ci95"} <= document["best"].keys()
    assert document["best"]["ci95"][0] < document["best"]["value"] < document["best"]["ci95"][1]
    assert document["evaluations"] == len(document["ranking"]) == 10
    assert document["wall_seconds"] > 0
    assert document["best"]["label"] == document["verdict"]["pick"]
    assert document["best"] in document["ranking"]
    assert [row["label"] for row in document["ties"]] == labels(grid.tied)


def test_numbers_do_not_depend_on_the_number_of_processes(grid):
    one, two = grid.json(), found(world(GRID), jobs=2).json()
    assert one.pop("wall_seconds") != two.pop("wall_seconds")
    assert one == two


def test_what_a_calibration_cannot_tell_is_in_the_interval_and_makes_ties():
    """Averaging seldom costs steps and saves latencies: who wins depends on what nobody knows."""
    quiet = {"objective": QUADRATIC | {"noise": 0.01}, "cluster": {"compute": "100 ms"}}
    sure = found(world(GRID, **quiet))
    sd = {"cluster.compute": 0.3, "network.latency": 0.3}
    unsure = found(world(GRID, **quiet, calibration={"sd": sd}))
    wide, narrow = (item.json()["best"]["interval"] for item in (unsure, sure))
    assert wide[1] - wide[0] > 5 * (narrow[1] - narrow[0])
    assert len(unsure.tied) >= len(sure.tied)


@pytest.mark.parametrize("stalls", [False, True])
def test_days_of_a_calibrated_search_have_the_interval_that_simulate_states(stalls):
    """With two seeds, too: all replicates of the profile are in it, not one of them for a seed.

    One that is too slow to end before a crash for good leaves the interval without an upper end.
    """
    factors = np.exp(0.1 * np.random.default_rng(0).standard_normal(24)).tolist()
    factors[0] = 1e-3 if stalls else factors[0]
    error = {"programs": 9, "seconds_per_step": {"blocking": 0.04}}
    expected = {
        "sd": {"cluster.compute": 0.05}, "draws": {"network.bandwidth": factors},
        "replicates": 24, "run_to_run": 0.02, "fitted": ["ssgd"], "model_error": error,
    }  # fmt: skip
    run = {"duration": None, "steps": 100, "seeds": 2, "target_loss": None}
    rest = {"cost": {"node_hour": 1.0, "tokens": 1}, "calibration": expected, "run": run}
    rest["cluster"] = {"crash": [{"worker": 1, "at": "5 min"}]}
    choices = {"local-sgd": {"tau": [2, 16], "lr": [0.1]}}
    ssgd = {"name": "ssgd", "lr": 0.1}
    searched = found(world(choices, ssgd, **rest), objective="loss-at-tokens")
    two = {"name": "local-sgd", "tau": 2, "lr": 0.1}
    simulated = simulate(parse(world(None, ssgd, two, **rest), file="test.toml"))
    rows = {row["label"]: row["used"]["days"] for row in searched.json()["ranking"]}
    for row in simulated.algorithms:
        runs, days = rows[row["label"]], row["used"]["days"]
        assert runs["mean"] == pytest.approx(days["mean"])
        assert runs["basis"].endswith(", of one run")
        assert (runs["interval"][1] is None) is stalls
        for end, other in zip(runs["interval"], days["interval"], strict=True):
            if other is None:
                assert end is None
                continue
            away = math.log(other / days["mean"])
            assert math.log(end / runs["mean"]) == pytest.approx(away, rel=0.2), row["label"]
    swept = sweep(parse(world(None, two, **rest), file="test.toml"), {"run.steps": [100]}).rows[0]
    ends = [swept[f"seconds_per_step_{end}"] for end in ("low", "high")]
    days = simulated.algorithms[1]["interval90"]["seconds_per_step"]
    assert ends[0] == pytest.approx(days[0], rel=0.03)
    assert (ends[1] is days[1] is None) if stalls else ends[1] == pytest.approx(days[1], rel=0.03)
    run |= {"steps": 1000, "target_loss": 0.2}  # and draws of who is sooner
    rows = found(world(choices, ssgd, **rest), objective="time-to-loss").json()["ranking"]
    assert [row["interval"][1] is None for row in rows] == [stalls] * 3


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
    return Contender(Candidate(label, {"name": name} | parameters, {}), scores)


TIME = TuningObjective("time-to-loss", target=0.1, second=1.0)


def order_of(contenders):
    return results.ordered(contenders, TIME, results.judged(contenders, TIME))


def ranked(*contenders):
    scores = results.judged(contenders, TIME)
    return results.sorted_by(contenders, order_of(contenders).best, scores)


def test_ties_are_what_is_known_to_be_equivalent():
    base = np.array([10.0, 10.3, 9.8, 10.1])
    best = contender("dts", *base, delay=4, period=4)
    near = contender("local-sgd", *(base + np.array([0.1, -0.05, 0.1, -0.08])), tau=8)
    unclear = contender("asgd", *(base * np.array([0.8, 1.6, 0.9, 1.3])))
    far = contender("ssgd", *(base + np.array([0.9, 0.8, 1.0, 0.9])))
    everyone = [far, unclear, near, best]
    assert ranked(*everyone) == [best, near, far, unclear]
    order = order_of(everyone)
    assert order.equivalent == [near.candidate.label]
    assert order.unsettled == ["asgd"]
    assert order.worse == ["ssgd"]
    assert not order.decided


def result(*contenders):
    scenario = parse(world(GRID))
    order, place = order_of(contenders), space(scenario)[0]
    return TuneResult(place, TIME, [0, 1, 2, 3], ranked(*contenders), order, [], 0, 0, [], 0.0)


def test_simplicity_chooses_among_equivalents_alone():
    """ssgd is the simplest, and 44 % slower on average: four seeds cannot tell it apart."""
    base = np.array([8.0, 12.0, 9.0, 11.0])
    best = contender("dts", *base, delay=4, period=4)
    near = contender("local-sgd", *(base + np.array([0.1, -0.05, 0.1, -0.08])), tau=8)
    slow = contender("ssgd", 9.0, 24.0, 10.0, 14.6)
    both, three = result(best, slow), result(best, near, slow)
    assert (both.pick["label"], both.tied) == (best.candidate.label, [])
    assert both.order.unsettled == ["ssgd"]
    assert both.verdict.candidates == [best.candidate.label, "ssgd"]
    assert both.verdict.would_decide.code == "seeds"
    assert three.pick["label"] == near.candidate.label
    assert three.verdict.candidates[:2] == [near.candidate.label, best.candidate.label]
    assert (both.pick["decided"], three.pick["decided"]) == (False, False)


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
    programs = catalogue()
    keys = [results.simplicity(choice.candidate, programs) for choice in ordered]
    assert keys == sorted(keys)


def test_who_never_gets_there_is_worse_and_ranked_by_how_close_it_came():
    slow = contender("ssgd", 900.0, 900.0, lr=1)
    once = contender("ssgd", 5.0, math.inf, lr=2, gap=0.5)
    close = contender("ssgd", math.inf, math.inf, lr=3, gap=0.1)
    off = contender("ssgd", math.inf, math.inf, lr=4, gap=0.8)
    assert ranked(off, close, once, slow) == [slow, once, close, off]


def test_a_target_that_nobody_reaches_is_said_and_json_has_no_nan():
    result = found(world({"ssgd": {"lr": [0.001, 0.01]}}, run={"target_loss": 1e-6}), seeds=2)
    document = json.loads(json.dumps(result.json(), allow_nan=False))
    assert labels(result.ranked)[0] == "ssgd lr=0.01"
    assert document["best"]["value"] is None
    assert document["best"]["reached"] == 0
    assert document["verdict"]["reasons"][0]["code"] == "unreached"
    assert document["verdict"]["pick"] is document["pick"]["label"] is None


@pytest.mark.usefixtures("figures")
def test_who_never_gets_there_in_so_many_steps_has_no_line(tmp_path):
    for reached, lr in ((False, 1e-9), (True, 0.05)):
        table = world({"ssgd": {"lr": [1e-9]}, "local-sgd": {"lr": [lr], "tau": [2]}})
        table["run"] = {"steps": 400, "target_loss": 0.5, "evaluate_every": 10}
        out = tmp_path / str(reached)
        result = tune(parse(table), seeds=2, out=out)
        assert result.best.all_reached == reached
        assert (out / "tune.svg").is_file() == reached
        assert paceline.report([out]).is_file()


def test_the_edge_of_the_range_is_warned_about_unless_it_is_the_worlds():
    result = found(world({"local-sgd": {"lr": [0.01, 0.02], "tau": [1, 2]}}), seeds=2)
    edges = [reason.numbers for reason in result.verdict.reasons if reason.code == "edge"]
    label = result.verdict.pick
    assert {"label": label, "key": "lr", "value": 0.02, "side": "highest"} in edges
    assert not any(edge["key"] == "tau" and edge["side"] == "lowest" for edge in edges)


def test_what_a_model_cannot_see_is_named_and_not_equal():
    """Codecs that compress in no time, and a proximal term of which no run is published."""
    table = {
        "model": {"parameters": 1_300_000_000, "bytes_per_parameter": 2},
        "objective": {
            "kind": "learning-curve", "tokens": 524_288,
            "curve": {"law": "chinchilla", "parameters": 1.3e9, "batch": 524_288},
        },
        "cluster": {"workers": 4, "compute": "1.3 s", "group": [
            {"name": name, "workers": 2, "region": name} for name in "ab"
        ]},
        "network": {"latency": "40 ms", "bandwidth": "1 Gbit/s"},
        "cost": {"node_hour": 1.0},
        "run": {"steps": 400, "seeds": 2, "evaluate_every": 100},
        "tune": {
            "fedavg": {"tau": [50], "mu": [0.0, 0.1]},
            "ssgd": {"codec": ["raw", {"kind": "power-sgd", "rank": 4}]},
        },
    }  # fmt: skip
    result = found(table, objective="loss-at-tokens")
    free = [reason for reason in result.verdict.reasons if reason.code == "free-codec"]
    assert [reason.numbers["labels"] for reason in free] == [["ssgd codec=power-sgd(rank=4)"]]
    losses = {row["label"]: row["value"] for row in result.rows(result.ranked)}
    assert losses["fedavg tau=50 mu=0.1"] > 1.002 * losses["fedavg tau=50 mu=0.0"]
    assert result.reference == "ssgd codec=raw"
    assert any("cost.egress_per_gb" in note for note in result.notes)


def test_one_seed_cannot_tell():
    result = found(world({"ssgd": {"lr": [0.1, 0.2]}}), seeds=1)
    assert result.tied == []
    assert result.verdict.would_decide.code == "one-seed"


def test_loss_at_deadline():
    table = world({"ssgd": {"lr": [0.001, 0.1]}}, run={"duration": "5 s"})
    result = found(table, objective="loss-at-deadline", seeds=2)
    assert labels(result.ranked) == ["ssgd lr=0.1", "ssgd lr=0.001"]
    one = parse(world(None, {"name": "ssgd", "lr": 0.1}, run={"duration": "5 s"}))
    runs = run_seeds(one, one.algorithm[0], range(2))
    assert result.best.mean() == pytest.approx(np.mean([statistics.at(run, 5.0) for run in runs]))


def test_without_duration_the_deadline_is_the_end_of_the_shortest_run():
    table = world({"local-sgd": {"tau": [1, 2, 4]}}, {"name": "ssgd"})
    table["run"] = {"steps": 20, "seeds": 2}
    result = found(table)
    assert result.objective.name == "loss-at-deadline"
    assert 0 < result.objective.deadline < 20 * 1.0
    for choice in result.ranked:  # nobody stands still until the deadline: steps end no run
        one = result.space.world(choice.candidate)
        for seed in range(2):
            (run,) = run_seeds(one, one.algorithm[0], [seed])
            assert run.duration == pytest.approx(result.objective.deadline, rel=0.2)
    assert any(note.startswith("every run ends after") for note in result.notes)


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
    assert result.verdict.pick == "local-sgd tau=8 lr=0.1"


@looped("case", UNTRIED["goal"])
def test_what_a_goal_lacks_is_said(case):
    table = world({"ssgd": {"lr": [0.1]}}, **case.get("changes", {}))
    table["objective"] = case.get("loss", QUADRATIC)
    if not case.get("target", True):
        del table["run"]["target_loss"]
    with pytest.raises(InputError, match=r"^[^\n]*$") as error:
        found(table, objective=case.get("objective"))
    assert case["message"] in str(error.value)


def test_sampled_clients_without_a_loss_are_ranked_by_useful_gradients():
    """As simulate's pick ranks them."""
    clients = {"clients": 3, "over": 2, "deadline": "6 s"}
    group = [{"name": "new", "workers": 2}, {"name": "old", "workers": 6, "compute": "3 s"}]
    table = world(
        None, {"name": "fedavg", "tau": 4}, {"name": "fedbuff", "tau": 4, "buffer": 2},
        cluster={"workers": 8, "compute": "1 s", "sampling": clients, "group": group},
        run={"cap": {"tau": 4, "delay": 16}, "duration": "200 s"}, server={},
    )  # fmt: skip
    table["objective"] = {"kind": "none"}
    del table["run"]["target_loss"]
    table["tune"] = {"fedavg": {"tau": [4]}, "fedbuff": {"tau": [4], "buffer": [2]}}
    ours = found(table, seeds=2)
    assert ours.objective.name == "seconds-per-gradient"
    assert ours.json()["measure"] == "time per gradient that reaches the model"
    simulated = simulate(parse(table), seeds=2)
    paces = {
        label: np.mean([run.duration / run.gradients for run in runs])
        for label, runs in simulated.groups.items()
    }
    values = {row["label"].split()[0]: row["value"] for row in ours.rows(ours.ranked)}
    assert values == pytest.approx({label.split()[0]: pace for label, pace in paces.items()})
    assert labels(ours.ranked)[0].split()[0] == simulated.pick["label"].split()[0]
    by_step = found(table, objective="seconds-per-step", seeds=2)
    assert labels(by_step.ranked)[0] != labels(ours.ranked)[0]


def test_without_tune_a_default_is_searched_and_said():
    scenario = parse(world(None, {"name": "local-sgd", "tau": 8}, {"name": "k-sync", "k": 1}))
    tried, notes = space(scenario)
    assert tried.entries["local-sgd"].choices["tau"] == (1, 2, 4, 8, 16, 32, 64)
    assert tried.entries["k-sync"].choices["k"] == (1, 2)
    assert 0.1 in tried.entries["local-sgd"].choices["lr"]
    odd, _ = space(parse(world(None, {"name": "local-sgd", "tau": 5, "lr": 0.07})))
    assert odd.entries["local-sgd"].choices["tau"] == (1, 2, 4, 5, 8, 16, 32, 64)
    assert odd.first() == [("local-sgd", {"tau": 5, "lr": 0.07})]
    assert tried.size == 5 * 7 + 5 * 2 == len(list(tried.grid()))
    assert "no [tune]" in notes[0]


def test_algorithms_without_entry_take_part_as_written():
    table = world(
        {"local-sgd": {"tau": [2, 4]}}, {"name": "ssgd", "label": "mine"}, {"name": "asgd"}
    )
    assert set(labels(found(table, seeds=2).ranked)) >= {"mine", "asgd", "local-sgd tau=2"}


def test_blocks_grow_to_all_seeds():
    blocks = {1: [1], 2: [2], 3: [2, 3], 8: [2, 4, 8], 11: [2, 4, 8, 11]}
    assert {seeds: list(seed_counts(seeds)) for seeds in blocks} == blocks


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(value, marks=pytest.mark.nightly) for value in (1, 2, 3))]
)
def test_no_unlucky_seed_costs_the_true_best_its_place(block):
    result = found(SEARCHES["luck"], seed=8 * block)
    means = {}
    for choice in result.ranked:
        one = result.space.world(choice.candidate)
        runs = run_seeds(one, one.algorithm[0], range(8 * block, 8 * block + 8))
        means[choice.candidate.label] = np.mean([statistics.crossing(run, 0.02) for run in runs])
    best = min(means, key=means.get)
    assert means[result.best.candidate.label] <= 1.03 * means[best] or best in labels(result.tied)


def entrants(*rows):
    """A race after its runs: by name, the values with each of 4 seeds (None: cut at 20 s)."""
    race = Race(
        space(parse(world(GRID)))[0], tuning_objective(parse(world(GRID)), None), None, range(4)
    )
    for name, *values in rows:
        scores = [
            Score(value or math.inf, 0.5, 20.0 if value is None else 30.0) for value in values
        ]
        race.contenders[name] = Contender(Candidate(name, {"name": "ssgd"}, {}), scores)
    return race


def test_the_best_is_not_given_up_because_a_sum_is_rounded():
    values = (5.1, 5.7, 5.1)
    assert sum(values) > 3 * float(np.mean(values))
    race = entrants(("first", *values), ("second", 9.0, 9.5, 9.2))
    assert [rival.label for rival in race.contenders.values() if race._out(rival, 1.0)] == [
        "second"
    ]


def test_the_margin_follows_from_the_spread_of_paired_differences():
    few = entrants(("a", 5.0, 6.0), ("b", 5.0, 6.5))
    assert few.margin(4) == 1 + 3.0 / 2  # too few to tell
    steady = entrants(
        *((str(value), value, value + 1, value, value + 1) for value in (5.0, 6.0, 7.0, 8.0))
    )
    assert steady.margin(4) == pytest.approx(1)  # all differ alike with each seed
    assert steady.margin(2) <= few.margin(2)


def test_simulate_gives_the_same_number():
    table = world(GRID)
    del table["run"]["evaluate_every"]
    table["run"]["duration"] = "300 s"
    result = found(table)
    every = result.space.every
    assert every > 1
    assert any(f"every {every} steps" in note for note in result.notes)
    table["run"]["evaluate_every"] = every
    for choice in [one for one in result.ranked if one.all_reached][:3]:
        one = parse({k: v for k, v in table.items() if k != "tune"} | {
            "algorithm": [choice.candidate.table]
        })  # fmt: skip
        runs = simulate(one, seeds=len(choice.scores)).runs
        assert [statistics.crossing(run, 0.2) for run in runs] == [x.value for x in choice.scores]


def test_every_table_of_a_program_takes_part():
    tables = [
        {"name": "local-sgd", "tau": 2},
        {"name": "local-sgd", "tau": 3, "momentum": 0.5},
        {"name": "ssgd", "label": "local-sgd"},
    ]
    tried, _ = space(parse(world(None, *tables)))
    assert [entry.table for entry in tried.entries.values()] == tables
    assert all("lr" in entry.choices for entry in tried.entries.values())
    tried, _ = space(parse(world({"local-sgd": {"lr": [0.1, 0.2]}}, *tables)))
    assert [entry.table for entry in tried.entries.values()] == tables
    assert [bool(entry.choices) for entry in tried.entries.values()] == [True, False, False]


def test_a_target_reached_at_the_start_is_said():
    with pytest.raises(
        InputError, match=r"target_loss = 100: reached at the start \(loss [^\n]*one$"
    ):
        found(world({"ssgd": {"lr": [0.1, 0.2]}}, run={"target_loss": 100.0}))


@pytest.mark.usefixtures("figures")
def test_all_that_diverge_and_what_never_gets_there():
    table = world({"ssgd": {"lr": [50.0, 60.0]}}, run={"duration": "500 s", "evaluate_every": 20})
    del table["run"]["target_loss"]
    result = found(table, seeds=2)
    assert result.verdict.reasons[0].code == "diverged"
    table["run"]["target_loss"] = 1e-3
    aimed = found(table, seeds=2)
    assert aimed.verdict.sentence == result.verdict.sentence
    notes = [str(reason) for reason in aimed.verdict.reasons if reason.code == "note"]
    assert any(note.startswith(f"{aimed.best.candidate.label}: diverged") for note in notes)
    assert "edge" not in {reason.code for reason in aimed.verdict.reasons}
    alone = found(world({"ssgd": {"lr": [0.1]}}), seeds=2)
    assert len(terminal.tune(alone)) == 1
    assert set(figures.figures(alone.json())) == {"tune.png", "tune.svg"}


def test_a_note_about_a_run_that_was_cut_is_not_passed_on():
    tried, _ = space(parse(world(GRID)))
    for ran, finite in ((10.0, False), (math.inf, True)):
        best = contender("ssgd", 5.0, lr=0.1)
        best.scores[:] = [Score(5.0, 0.0, ran, ("never averaged",))]
        best = Contender(replace(best.candidate, family="ssgd"), best.scores)
        assert any("never averaged" in text for text in notes_of(tried, best)) == finite


def test_bounds_are_not_tried():
    table = world(None, {"name": "ssgd"}, {"name": "psgd"})
    tried, notes = space(parse(table))
    assert list(tried.entries) == ["ssgd"]
    assert notes[0] == "left out: psgd, whose workers never meet (a bound, never a pick)"
    with pytest.raises(InputError, match=r"nothing to tune \(left out: psgd"):
        space(parse(world({"psgd": {"lr": [0.1, 0.2]}})))


def test_a_log_of_runs_cut_short_is_mended_and_what_is_none_is_said(tmp_path):
    path, score = tmp_path / ".tune" / "runs.jsonl", Score(1.0, 0.0, math.inf)
    with TuneDirectory(tmp_path) as directory:
        directory.keep("a", score)
    with path.open("ab") as file:
        file.write(b'{"key": "b", "rec')
    with TuneDirectory(tmp_path) as again:
        assert again.find("a") == score
        again.keep("b", score)
    with TuneDirectory(tmp_path) as again:
        assert again.find("b") == score
        for wrong in (
            5, [1.0], [1.0, "near", 1.0, []], [{}, 0.0, 1.0, []], None,
            [1.0, 0.0, 1.0, [], None, ["published", [], None, None, 0.1]],
        ):  # fmt: skip
            again.kept["b"] = wrong
            assert again.find("b") is None
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"runs\.jsonl: .*remove it, or choose another --out$"):
        TuneDirectory(tmp_path)


def test_other_peoples_files_are_not_overwritten(tmp_path):
    (tmp_path / "tune.png").write_text("mine")
    with pytest.raises(InputError, match="would be overwritten"):
        found(world(GRID), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tune.png"]


@pytest.mark.slow
def test_another_torch_is_another_search(tmp_path, monkeypatch):
    """Its version is demanded of every process, and written down."""
    pytest.importorskip("torch")
    demanded = []
    monkeypatch.setattr(store, "demand_versions", demanded.append)
    goal = {"kind": "torch", "model": "mlp", "data": "digits", "batch": 4}
    table = world({"ssgd": {"lr": [0.1, 0.2]}}, run={"duration": "1 s", "seeds": 1})
    table["objective"] = goal
    first, again = (found(table, out=tmp_path) for _ in range(2))
    assert first.json()["versions"]["torch"] == version("torch")
    assert first.json()["versions"] in demanded
    assert (first.resumed, again.resumed) == (0, again.runs)
    versions = store.versions()
    monkeypatch.setattr(store, "versions", lambda *others: versions | dict.fromkeys(others, "0"))
    with pytest.raises(InputError, match=r"versions.torch: .* replace them with --overwrite"):
        found(table, out=tmp_path)
    assert found(table, out=tmp_path, overwrite=True).resumed == 0


def test_goals_default_to_the_target():
    assert tuning_objective(parse(world(GRID)), None).name == "time-to-loss"
    table = world(GRID)
    del table["run"]["target_loss"]
    assert tuning_objective(parse(table), None).name == "loss-at-deadline"


TOML = beside(__file__, "tune.toml")


def command(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", "tune", "killed.toml", "--jobs", "1", "--json",
         "--trials", "300", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def stopped_by(sent, folder, log, grown):
    """Start a search, send a signal once its log has grown so much, and return the process."""
    size = log.stat().st_size if log.exists() else 0
    process = command(folder, "--out", "a")
    while process.poll() is None:
        if log.exists() and log.stat().st_size > size + grown:
            break
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be stopped"
    process.send_signal(sent)
    return process


@pytest.mark.long
def test_a_killed_search_ends_as_one_never_killed(tmp_path):
    (tmp_path / "killed.toml").write_text(TOML)
    log = tmp_path / "a" / ".tune" / "runs.jsonl"
    stopped_by(signal.SIGKILL, tmp_path, log, 3_000).communicate()
    interrupted = stopped_by(signal.SIGINT, tmp_path, log, 1_000)
    _, notes = interrupted.communicate()
    assert interrupted.returncode in INTERRUPTED
    assert "repeat the command to resume" in notes
    resumed, whole = command(tmp_path, "--out", "a"), command(tmp_path, "--out", "b")
    (one, notes), (other, _) = resumed.communicate(), whole.communicate()
    assert "runs were finished before" in notes
    first, second = json.loads(one), json.loads(other)
    assert first.pop("wall_seconds") > 0
    assert second.pop("wall_seconds") > 0
    assert first == second
    _, notes = command(tmp_path, "--out", "a").communicate()
    assert f"{first['runs']} of {first['runs']} runs were finished before" in notes


@pytest.mark.usefixtures("figures")
def test_the_command_shows_tables_and_writes_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TOML.replace("seeds = 4", "seeds = 2"))
    arguments = "--trials", "4", "--jobs", "1"
    assert paceline.command_line.run(["tune", "small.toml", *arguments]) == 0
    shown = capsys.readouterr()
    assert "4 configurations in" in shown.out
    written = {path.name for path in (tmp_path / "runs" / "small-tune").iterdir()}
    assert {"tune.json", "tune.png", "tune.svg", ".tune"} <= written
    assert paceline.command_line.run(["tune", "small.toml", "--objective", "cost-to-loss"]) == 2
    assert "cost.node_hour: missing" in capsys.readouterr().err


# --- without a target


PRICED = {"currency": "EUR", "node_hour": 36.0, "egress_per_gb": 2000.0}


def priced(**run):
    """Two regions, so that averaging at every step costs egress."""
    table = world({"local-sgd": {"tau": [1, 8], "lr": [0.1]}}, cost=PRICED)
    table["cluster"] |= {
        "group": [
            {"name": "a", "workers": 1, "region": "a"}, {"name": "b", "workers": 1, "region": "b"},
        ]
    }  # fmt: skip
    table["run"] = {"seeds": 2, "evaluate_every": 1} | run
    return table


def test_the_price_of_a_target_has_its_currency(capsys):
    table = priced(duration="100 s", target_loss=0.2)
    result = found(table, objective="cost-to-loss")
    sentence = result.verdict.sentence
    assert re.search(r"loss 0.2 for [\d.]+ EUR \((?:median, )?90 %: [\d.]+ to [\d.]+ EUR", sentence)
    assert result.json()["unit"] == "EUR"
    assert found(table).objective.name == "time-to-loss"
    shown = [part for part in terminal.tune(result) if not isinstance(part, str)]
    assert "cost\n(EUR, 90 %)" in [column.header for column in shown[1].columns]


CAPPED = {
    "ssgd": {"lr": [0.1]},
    "local-sgd": {"tau": [1, 4, 8, 64]},
    "dts": {"delay": [1, 2, 16], "period": [1, 2]},
    "asgd": {"lr": [0.1]},
    "streaming-diloco": {"tau": [4, 8], "lr": [0.1]},
}


def capped(tau, delay, tried=CAPPED, **run):
    table = world(tried) | {"objective": {"kind": "none"}}
    table["run"] = {"steps": 64, "seeds": 2, "cap": {"tau": tau, "delay": delay}} | run
    return table


def within(result):
    return {choice.candidate.label for choice in result.ranked if choice.reached}


def test_time_alone_is_tuned_under_a_cap_on_period_and_delay():
    result = found(capped(4, 0))
    assert within(result) == {"ssgd lr=0.1", "local-sgd tau=1", "local-sgd tau=4"}
    assert result.best.candidate.label == "local-sgd tau=4"
    assert "with at most 4 steps between averages and 0 steps of" in result.verdict.question.goal
    assert {"no-loss"} <= {reason.code for reason in result.verdict.reasons}
    assert result.json()["loss_basis"] is None
    assert "edge" not in {reason.code for reason in result.verdict.reasons}
    later = within(found(capped(4, 2)))
    assert {"asgd lr=0.1", "streaming-diloco tau=4 lr=0.1"} <= later
    assert "streaming-diloco tau=8 lr=0.1" not in later
    assert {label for label in later if "dts" in label} == {
        f"dts delay={delay} period={period}" for delay in (1, 2) for period in (1, 2)
    }
    never = found(capped(1, 0, {"local-sgd": {"tau": [2, 4]}}))
    assert never.pick["label"] is None
    assert never.verdict.reasons[0].numbers == {"label": "local-sgd tau=2"}


def test_a_run_that_never_averages_keeps_no_cap():
    result = found(capped(8, 4, {"local-sgd": {"tau": [8, 1000]}, "d-psgd": {"lr": [0.1]}}))
    assert within(result) == {"local-sgd tau=8", "d-psgd lr=0.1"}


def test_a_search_without_a_loss_has_tables_a_page_and_resumes(tmp_path):
    table = capped(8, 2)
    whole = found(table, out=tmp_path / "a")
    again = found(table, out=tmp_path / "a")
    assert again.resumed == again.runs
    assert again.rows(again.ranked) == whole.rows(whole.ranked)
    ranking = terminal.tune(whole)[0]
    assert "time per step\n(90 %)" in [column.header for column in ranking.columns]
    page = paceline.report([tmp_path / "a"]).read_text("utf-8")
    assert "Only times are compared" in page
    assert "beyond the cap" in page


@pytest.mark.parametrize(
    ("aim", "ends"),
    [("loss-at-tokens", {}), ("time-to-loss", {"target_loss": 3.2}), ("loss-at-deadline", {})],
)
def test_one_worker_alone_is_told_by_its_own_run(aim, ends):
    """Where links take nearly all of the time it is sooner and cheaper, and that comes first."""
    table = deepcopy(SEARCHES)["alone"]
    table = table | {"run": table["run"] | ends}
    result = tune(parse(table), objective=aim)
    (one,) = [row for row in result.json()["ranking"] if row["label"] == ALONE]
    used = {key: amount["mean"] for key, amount in one["used"].items()}
    steps = round(used["days"] * 86400)
    settings = {
        "tune": {},
        "cluster": table["cluster"] | {"workers": 1},
        "algorithm": [{"name": "ssgd"}],
    }
    run = table["run"] | {"steps": steps, "evaluate_every": 1, "seeds": 1}
    (row,) = simulate(parse(table | settings | {"run": run})).algorithms
    assert row["used"]["days"]["mean"] == pytest.approx(used["days"], rel=1e-3)
    assert row["used"]["cost"]["mean"] == pytest.approx(used["cost"], rel=1e-3)
    if aim != "time-to-loss":
        assert row["loss"]["last"] == pytest.approx(one["value"], rel=1e-4)
        assert row["interval90"]["loss"] == pytest.approx(one["interval"], rel=1e-2)
    if aim == "loss-at-tokens":
        assert steps == 4 * 2000
        assert result.verdict.pick == "diloco tau=50"
        ssgd = {"algorithm": [{"name": "ssgd"}], "tune": {"ssgd": {}}}
        alone = tune(parse(table | ssgd), objective=aim)
        assert (alone.verdict.pick, alone.verdict.baseline) == (ALONE, "ssgd")
        (texts,) = [alone.pick["set"]]
        again = simulate(parse(table | ssgd, overrides=texts)).algorithms
        assert [row["label"] for row in again] == [ALONE]
        assert again[0]["used"]["days"]["mean"] == pytest.approx(used["days"], rel=1e-3)
    if aim != "loss-at-deadline":
        inside = {"link": [{"between": ["box", "box"], "bandwidth": "10 GB/s"}]}
        box = {
            "cluster": table["cluster"] | {"region": "box"}, "network": table["network"] | inside
        }  # fmt: skip
        assert ALONE not in labels(tune(parse(table | box), objective=aim).ranked)


def sites(tune_table, *algorithms, **changes):
    """Three unequal sites with a learning curve and prices; `changes` replace its tables."""
    algorithm = [*algorithms] or [{"name": "ssgd"}, {"name": "local-sgd", "tau": 32}]
    table = deepcopy(SEARCHES)["sites"] | {"algorithm": algorithm, "tune": tune_table}
    return table | changes


def test_sites_are_tried_at_a_constant_global_batch_in_one_table(tmp_path):
    table = sites({"sites": [1, 2, 3], "groups": [["us", "eu"], ["us"]]})
    result = found(table, objective="loss-at-tokens", out=tmp_path)
    rows = {row["label"]: row for row in result.json()["ranking"]}
    picked = find(tmp_path, "local-sgd tau=32 on 2 sites")
    assert picked.scenario.cluster.workers == 2
    assert picked.scenario.objective.tokens == 1.5 * 1_048_576
    assert {label: row["workers"] for label, row in rows.items() if row["name"] == "ssgd"} == {
        "ssgd on 1 site": 1, "ssgd on 2 sites": 2, "ssgd on 3 sites": 3, "ssgd on us": 1,
    }  # fmt: skip
    assert "local-sgd tau=32 on 1 site" not in rows
    assert result.reference == "ssgd on 1 site"
    one, three = rows["ssgd on 1 site"], rows["ssgd on 3 sites"]
    days = {label: row["used"]["days"]["mean"] for label, row in rows.items() if "ssgd" in label}
    assert days[result.reference] == min(days.values())
    assert one["value"] == pytest.approx(three["value"], rel=1e-6)  # the batch is the same
    assert one["used"]["days"]["mean"] == pytest.approx(3000 * 18 / 86400, rel=1e-6)
    assert one["cost"] == pytest.approx(3000 * 18 / 3600 * 40)
    assert rows["ssgd on us"]["cost"] == pytest.approx(3000 * 18 / 3600 * 30)
    assert three["set"] == []
    for row in rows.values():  # each can be simulated
        algorithm = {"algorithm": [{"name": row["name"], **row["parameters"]}]}
        (again,) = simulate(parse(table | algorithm, overrides=row["set"])).algorithms
        assert again["used"]["days"]["mean"] == pytest.approx(row["used"]["days"]["mean"])
        assert again["loss"]["last"] == pytest.approx(row["value"])


def test_with_the_same_batch_a_part_takes_as_many_tokens_in_more_steps():
    table = sites({"workers": [1, 3], "global_batch": "per worker"}, {"name": "ssgd"})
    rows = {row["label"]: row for row in found(table, objective="loss-at-tokens").json()["ranking"]}
    one, three = rows["ssgd on 1 worker"], rows["ssgd on 3 workers"]
    assert one["used"]["tokens"]["mean"] == three["used"]["tokens"]["mean"]
    assert one["used"]["days"]["mean"] == pytest.approx(9000 * 6 / 86400)
    assert one["value"] < three["value"]  # a smaller batch needs fewer tokens


@pytest.mark.parametrize("case", UNTRIED["case"])
def test_what_cannot_be_tried_or_weighed_is_refused(case):
    with pytest.raises(InputError, match=case["message"]):
        found(sites(case["tuned"], **case["changes"]))


def test_what_the_user_says_a_day_and_a_loss_are_worth_makes_a_pick():
    tuned = {"sites": [1, 3], "local-sgd": {"tau": [4, 32, 256]}, "max_loss": "+5 %"}
    quick = found(sites(tuned))
    assert quick.objective.name == "loss-at-tokens"
    shown = {row["label"]: row for row in quick.json()["ranking"]}
    within = {
        k for k, row in shown.items() if (row["to_reference"] or {"value": 0})["value"] <= 0.05
    }
    days = {label: shown[label]["used"]["days"]["mean"] for label in within}
    near = {label for label in within if days[label] <= 1.05 * min(days.values())}
    ends = {k: (shown[k]["to_reference"] or {"interval": (0, 0)})["interval"][1] for k in near}
    assert ends[quick.verdict.pick] == min(ends.values())  # among equals the surest loss
    assert quick.verdict.decided
    assert quick.verdict.candidates == [quick.verdict.pick]
    assert {"max-loss"} <= {reason.code for reason in quick.verdict.reasons}
    cheap = found(sites(tuned | {"day_worth": "0.01 USD"}))
    row = next(row for row in cheap.json()["ranking"] if row["label"] == cheap.verdict.pick)
    assert row["cost"] <= 1.05 * min(shown[label]["cost"] for label in within)
    days = row["used"]["days"]["mean"]
    assert row["weighed"]["value"] == pytest.approx(row["cost"] + 0.01 * days)
    target = {"run": {"steps": 3000, "seeds": 2, "target_loss": 3.0, "sampling": "aggregate"}}
    dear = found(sites(tuned | {"day_worth": "1_000_000 USD"}) | target
                 | {"tune": {"sites": [1, 3], "day_worth": "1_000_000 USD"}})  # fmt: skip
    assert dear.objective.name == "cost-to-loss"
    used = dear.rows([dear.best])[0]["used"]
    price = used["cost"]["mean"] + 1e6 * used["days"]["mean"]
    assert dear.best.mean() == pytest.approx(price, rel=1e-6)


def test_overlap_and_fragments_that_hide_an_average_are_tried_unless_written():
    stream = {"streaming-diloco": {"tau": [12, 32]}}
    written = {"name": "streaming-diloco", "tau": 32}
    tried, _ = space(parse(sites(stream, written)))
    grid = [tried.candidate(*point) for point in tried.grid()]
    made = {candidate.label: candidate.parameters for candidate in grid}
    assert made["streaming-diloco tau=32 overlap=3"] == {"tau": 32, "overlap": 3}
    assert made["streaming-diloco tau=12 overlap=2"] == {"tau": 12, "overlap": 2}  # one in flight
    assert made["streaming-diloco tau=32 fragments=16"] == {"tau": 32, "fragments": 16}
    assert "streaming-diloco tau=12 fragments=16" not in made
    assert len(grid) == tried.size == 6  # and one worker alone
    tried, _ = space(parse(sites(stream, written | {"overlap": 1})))
    assert tried.size == 3
    quick = {"network": {"latency": "1 ms", "bandwidth": "1 Tbit/s"}}
    assert space(parse(sites(stream, written, **quick)))[0].size == 3  # nothing to hide
