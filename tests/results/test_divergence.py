"""Runs that diverge, and targets that some seeds miss: no mean hides them, every output says so."""

import json
import math

from paceline.simulator.reports import tables, terminal
from paceline.simulator.reports.page.page import report as page
from paceline.simulator.results import statistics
from paceline.simulator.results.columns import BY_KEY
from paceline.simulator.results.run import CAUSE, begins
from paceline.simulator.results.verdict import of_runs
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from paceline.simulator.studies.tune.objective import TuningObjective
from paceline.simulator.studies.tune.tune import tune
from tests.helpers.cases import looped
from tests.helpers.worlds import QUADRATIC, scenario
from tests.results.test_statistics import make_run, summary

HUGE = 2e6
LOST = [[1.0, 0.5, math.nan], [1.0, 0.5, math.inf], [1.0, 3.0, HUGE], [1.0, HUGE, math.nan]]


def runs_of(*curves, label="bad"):
    return [make_run(losses, label=label, seed=seed) for seed, losses in enumerate(curves)]


@looped("losses", LOST)
def test_a_diverged_seed_is_in_no_mean(losses):
    runs = runs_of([1.0, 0.5, 0.1], losses)
    found = statistics.jsonable(summary(runs))
    assert found["loss"]["last"] is None
    assert found["loss"]["ci95"] is None
    first = next(i for i, loss in enumerate(losses) if not loss <= 1.0)
    step = runs[1].curve["step"][first]
    assert found["diverged"] == {"seeds": 1, "of": 2, "step": step, "cause": CAUSE}
    assert statistics.notes({"bad": runs}) == ["bad: diverged with 1 of 2 seeds; try a smaller lr"]


@looped("losses", [[1.0, 0.1], [1.0, 9.0, 1.0], [0.0, 5.0], [math.nan] * 2,
                                    [1.0, HUGE, 0.5], [5.0]])  # fmt: skip
def test_what_comes_back_or_never_was_there_has_not_diverged(losses):
    assert begins(losses) is None
    assert statistics.jsonable(summary(runs_of(losses)))["diverged"] is None


@looped("losses", LOST)
def test_an_algorithm_that_diverges_is_not_picked(losses):
    groups = {
        "good": runs_of([1.0, 0.9, 0.9], [1.0, 0.9, 0.9], label="good"),
        "bad": runs_of([1.0, 0.1, 0.1], losses),
    }
    assert of_runs(groups, None).pick == "good"
    assert "bad" not in of_runs(groups, None).order.equivalent
    late = {
        **groups,
        "bad": [make_run([*losses], time=[0, 10, 100], label="bad"), groups["bad"][0]],
    }
    assert of_runs(late, None).pick == "good"  # though it was fine when the shortest run ended
    score = TuningObjective("loss-at-deadline", deadline=1.0).score(
        groups["bad"][1], scenario({"name": "ssgd"})
    )
    assert not score.reached


def diverging(**tables):
    """ssgd converges; local steps with a hundred times the rate do not: finite, but beyond."""
    return scenario(
        {"name": "ssgd", "lr": 0.1},
        {"name": "ssgd", "lr": 2.6, "label": "hot"},
        objective=QUADRATIC,
        steps=80,
        **{"run": {"evaluate_every": 10, "target_loss": 0.05}} | tables,
    )


def test_table_notes_document_and_page_say_that_a_run_diverged(tmp_path):
    result = simulate(diverging(), seeds=2, out=tmp_path / "run")
    good, bad = result.algorithms
    last = [run.curve["loss"][-1] for run in result.groups["hot"]]
    assert all(map(math.isfinite, last))  # numbers, but above the first
    assert min(last) > result.runs[0].curve["loss"][0]
    assert good["diverged"] is None
    assert bad["diverged"]["seeds"] == 2
    assert bad["loss"]["last"] is None
    (note,) = [note for note in result.notes if "diverged by step" in note]
    assert note.startswith(f"hot: diverged by step {bad['diverged']['step']:g}: the learning rate")
    cells = {column.header: [*column.cells] for column in terminal.summary(result).columns}
    assert cells["final\nloss"][1] == "diverged"
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["summary"]["algorithms"][1]["diverged"]["seeds"] == 2
    shown = page([tmp_path / "run"], None).read_text()
    assert "hot: diverged" in shown


def test_some_seeds_of_a_sweep():
    found = sweep(diverging(), {"optimizer.momentum": [0.0]}, seeds=2)
    good, bad = found.rows
    assert (good["diverged"], bad["diverged"]) == (0, 2)
    assert bad["final_loss"] is None
    assert bad["final_loss_low"] is None
    assert any("hot: diverged with some seeds" in note for note in found.notes)
    cells = {column.header: [*column.cells] for column in terminal.sweep(found).columns}
    assert cells["final\nloss"][1] == "diverged"
    partly = bad | {"diverged": 1}
    columns = tables.of_sweep([good, partly], {"optimizer.momentum": [0.0]}, (), None)
    (final_loss,) = [cell for heading, cell in columns.items() if heading.startswith("final\nloss")]
    assert final_loss(partly) == "1 of 2 diverged"


def test_tune_says_who_diverged():
    world = diverging(tune={"ssgd": {"lr": [0.1, 2.6]}})
    found = tune(world, objective="loss-at-deadline", seeds=2, trials=4)
    rows = {row["parameters"]["lr"]: row for row in found.json()["ranking"]}
    assert (rows[0.1]["diverged"], rows[2.6]["diverged"] > 0) == (0, True)
    assert found.best.candidate.parameters["lr"] == 0.1
    assert rows[2.6]["value"] is None
    cells = [cell for column in terminal.tune(found)[0].columns for cell in column.cells]
    assert any("seeds diverged" in cell for cell in cells)


def test_how_many_seeds_reached_the_target_is_said():
    some = runs_of([1.0, 0.1], [1.0, 0.9], label="some")
    none = runs_of([1.0, 0.8], [1.0, 0.9], label="none")
    rows = {label: statistics.jsonable(summary(runs, target=0.5))["time_to_target"]
            for label, runs in (("some", some), ("none", none))}  # fmt: skip
    assert (rows["some"]["mean"], rows["some"]["ci95"], rows["some"]["reached"]) == (None, None, 1)
    assert (rows["none"]["mean"], rows["none"]["reached"]) == (None, 0)
    assert "1 of 2 seeds" in of_runs({"some": some, "none": none}, 0.5).sentence
    assert "No algorithm reached" in of_runs({"none": none}, 0.5).sentence
    spread = {"seconds_per_step": None, "time_to_target": [1.0, None]}
    for ends in (None, spread):
        shared = {"interval90": ends, "seeds": 2}
        cell = {k: BY_KEY["time_to_target_s"].cell(shared | {"time_to_target": times})
                for k, times in rows.items()}  # fmt: skip
        assert cell == {"some": "1 of 2 seeds", "none": "not reached"}
