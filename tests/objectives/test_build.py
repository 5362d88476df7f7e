"""What a loss is the loss of: said in every pick's sentence."""

import json

import paceline.command_line
from paceline.simulator.load.load import load, parse
from paceline.simulator.objectives.build import STAND_IN, loss_basis
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.tune.tune import tune
from tests.helpers.cases import looped

MLP = {"kind": "torch", "model": "mlp", "data": "digits"}
SOFTMAX = {"kind": "softmax", "data": "digits"}
BOUND = {"kind": "bound", "initial_gap": 1.0, "smoothness": 1.0, "gradient_variance": 1.0}
QUADRATIC = {"kind": "quadratic", "dimension": 1000}


def world(objective, parameters=650, **changes):
    return {
        "model": {"parameters": parameters},
        "objective": objective,
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": 2, "compute": "100 ms"},
        "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
        "run": {"steps": 20, "seeds": 2},
        "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 4}],
    } | changes


@looped(
    ("objective", "parameters", "basis"),
    [
        (SOFTMAX, 650, "on softmax over digits"),
        (SOFTMAX, 1300, "on softmax over digits"),
        (SOFTMAX, 1301, f"on softmax over digits, {STAND_IN}"),
        (SOFTMAX, 324, f"on softmax over digits, {STAND_IN}"),
        (SOFTMAX | {"data": "random-classification"}, 10**9,
         "on softmax over random-classification, a stand-in, not your model"),
        (SOFTMAX | {"hidden": 32}, 2410, "on a hidden layer of 32 over digits"),
        (MLP, 2410, "on mlp over digits"),
        (MLP, 1_300_000_000, "on mlp over digits, a stand-in, not your model"),
        (QUADRATIC, 1000, "on a noisy quadratic"),
        (QUADRATIC, 10**7, "on a noisy quadratic, a stand-in, not your model"),
        (BOUND, 650, "by the bound of Theorem 2, not the loss of your model"),
        ({"kind": "none"}, 650, None),
    ],
)  # fmt: skip
def test_the_basis_names_objective_and_stand_in(objective, parameters, basis):
    assert loss_basis(parse(world(objective, parameters))) == basis


@looped("run", [{"target_loss": 2.0}, {"target_loss": 1e-6}, {}])
def test_the_sentence_of_a_pick_names_its_basis(run):
    table = world(SOFTMAX, 10**9, run={"steps": 20, "seeds": 2, "evaluate_every": 1, **run})
    table["tune"] = {"ssgd": {"lr": [0.1]}, "local-sgd": {"lr": [0.1], "tau": [2, 4]}}
    result = simulate(parse(table))
    basis = "on softmax over digits, a stand-in, not your model"
    assert result.json()["loss_basis"] == basis
    assert result.verdict.basis == basis
    assert sum(basis in reason for reason in result.verdict.why) == 1
    actual = tune(parse(table))
    assert actual.json()["loss_basis"] == basis
    assert actual.verdict.basis == basis


def test_time_alone_claims_no_loss():
    result = simulate(parse(world({"kind": "none"})))
    assert result.json()["loss_basis"] is None
    assert "no-loss" in {reason.code for reason in result.verdict.reasons}


def test_the_page_and_the_terminal_name_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    basis = "on a noisy quadratic, a stand-in, not your model"
    command = ["simulate", "four-continents", "--set", "run.steps=20", "--seeds", "2"]
    assert paceline.command_line.run([*command, "--out", "a", "--figure", "svg"]) == 0
    assert basis in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "a" / "run.json").read_text())["summary"]["loss_basis"] == basis
    assert paceline.command_line.run(["report", "a"]) == 0
    page = (tmp_path / "a" / "report.html").read_text("utf-8")
    assert f"Loss {basis}." in page


def test_shipped_scenarios_say_so():
    assert loss_basis(load("quickstart")) == "on softmax over digits"
    assert loss_basis(load("programs/diloco")).endswith(STAND_IN)


def test_a_curve_of_another_size_than_the_model_says_so():
    curve = {"law": "chinchilla", "parameters": 1.3e9}
    objective = {"kind": "learning-curve", "curve": curve, "tokens": 8192}
    other, same = (
        simulate(parse(world(objective, size, run={"steps": 20, "seeds": 1}))).verdict.basis
        for size in (300_000_000, 1_300_000_000)
    )
    assert "for 1.3e+09 parameters, not the 3e+08 of [model]" in other
    assert "of [model]" not in same
