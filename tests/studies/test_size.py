"""Runs that are too large are refused before they start, by an estimate."""

import psutil
import pytest

import paceline
import paceline.command_line
from paceline.simulator.engines.observer import POINTS
from paceline.simulator.load.load import load, parse
from paceline.simulator.studies import size
from paceline.simulator.studies.execution import Execution

QUICK = "quickstart"


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["run.steps=1000000000", "run.duration=36500 days"], "would take about"),
        (["run.seeds=1000000", "cluster.workers=60000", "cluster.group=[]"], "would take about"),
        (
            [
                'objective={kind="quadratic", dimension=10000000}',
                "cluster.workers=60000",
                "cluster.group=[]",
                "run.duration=1 s",
            ],
            "GiB of memory",
        ),
    ],
)
def test_what_is_too_large_is_refused_at_once(tmp_path, capsys, sets, says):
    arguments = [part for each in sets for part in ("--set", each)]
    for command in ("simulate", "tune"):
        status = paceline.command_line.run(
            [command, QUICK, *arguments, "--out", str(tmp_path / command)]
        )
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert says in err
        assert "--force" in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / command).exists()


def test_curves_of_many_points_need_memory():
    many = ["run.steps=10000", "run.evaluate_every=1", "run.seeds=100000"]
    with pytest.raises(paceline.InputError, match="GiB of memory"):
        paceline.simulate(load("adacomm/figure2", many))


def test_a_sweep_is_added_up(tmp_path, monkeypatch):
    one = size.estimate(load(QUICK), 8).seconds
    monkeypatch.setattr(size, "LONGEST", 5.5 * one)
    latencies = [f"{number} ms" for number in range(1, 8)]
    with pytest.raises(paceline.InputError, match="--force"):
        paceline.sweep(QUICK, {"network.latency": latencies}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    size.demand([(load(QUICK), range(8))] * 5)
    with pytest.raises(paceline.InputError, match="take about"):
        size.demand([(load(QUICK), range(8))] * 6)
    size.demand([(load(QUICK), range(8))] * 6, Execution(jobs=2))


def test_force(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(size, "LONGEST", 0.0)
    few = ["simulate", "adacomm/figure2", "--set", "run.steps=20", "--out", str(tmp_path / "out")]
    assert paceline.command_line.run(few) == 2
    assert paceline.command_line.run([*few, "--force"]) == 0


def test_estimates(monkeypatch):
    """Proportional to what is asked for; memory that of all workers' vectors and curves."""
    scenario = load("adacomm/figure2", ["run.steps=1000", "run.evaluate_every=10"])
    workers, algorithms = scenario.cluster.workers, len(scenario.algorithm)
    found = size.estimate(scenario, 3)
    assert found.gradients == 1000 * workers * algorithms * 3
    assert found.memory == pytest.approx(100 * 3 * algorithms * 7 * size.POINT)
    assert size.estimate(scenario, 6).seconds == 2 * found.seconds
    assert size.estimate(scenario, 3, "virtual").seconds > 10 * found.seconds
    table = {
        "model": {"parameters": 10},
        "objective": {"kind": "quadratic", "dimension": 1000},
        "cluster": {"workers": 50, "compute": "2 s"},
        "network": {"collective": "given", "duration": "0 s"},
        "optimizer": {"lr": 0.1},
        "run": {"duration": "100 s"},
        "algorithm": [{"name": "ssgd"}],
    }
    found = size.estimate(parse(table, file="x"), 1)
    assert found.gradients == pytest.approx(50 * 50)
    assert found.memory == pytest.approx(50 * 1000 * 8 * 3 + 2 * POINTS * 7 * size.POINT)
    assert found.memory < psutil.virtual_memory().total


@pytest.mark.parametrize("name", ["four-continents", "hpsgd/accuracy", "torch-digits", "clouds"])
def test_what_is_shipped_is_not_refused(name):
    scenario = load(name)
    size.demand([(scenario, range(scenario.run.seeds))])
