"""Runs that are too large are refused before they start, by an estimate."""

import pytest

import paceline
import paceline.command_line
from paceline.simulator.load.load import load, parse
from paceline.simulator.studies import size
from paceline.simulator.studies.execution import Execution

QUICK = "quickstart"
DAY = 86_400.0


def test_what_is_too_large_is_refused_at_once(tmp_path, capsys):
    wide = 'objective={kind="quadratic", dimension=%d}'
    cases = (
        ("tune", ["run.steps=1000000000", "run.duration=36500 days"], "would take about"),
        (
            "simulate", [wide % 1e5, "run.steps=100000000", "run.duration=36500 days"],
            "would take about",
        ),
        (
            "simulate tune",
            [wide % 1e7, "cluster.workers=60000", "cluster.group=[]", "run.duration=1 s"],
            "GiB of memory",
        ),
    )  # fmt: skip
    for commands, sets, reason in cases:
        arguments = [part for setting in sets for part in ("--set", setting)]
        for command in commands.split():
            out = tmp_path / command
            status = paceline.command_line.run([command, QUICK, *arguments, "--out", str(out)])
            printed, err = capsys.readouterr()
            assert (status, printed) == (2, ""), sets
            assert reason in err
            assert "--force" in err
            assert len(err.splitlines()) == 1
            assert not out.exists()


def test_curves_of_many_points_need_memory():
    many = ["run.steps=10000", "run.evaluate_every=1", "run.seeds=100000"]
    with pytest.raises(paceline.InputError, match="GiB of memory"):
        paceline.simulate(load("adacomm/figure2", many))


def test_a_sweep_is_added_up(tmp_path, monkeypatch):
    """A week of six points, each of which takes a day and a half; jobs share them."""
    gradients = sum(size.count(load(QUICK), 8).gradients for _ in load(QUICK).algorithm)
    monkeypatch.setattr(size, "GRADIENT", 1.5 * DAY / gradients)
    latencies = [f"{number} ms" for number in range(1, 7)]
    with pytest.raises(paceline.InputError, match=r"take about 9\.\d\d d.*--force"):
        paceline.sweep(QUICK, {"network.latency": latencies}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    size.demand([(load(QUICK), range(8))] * 4)
    monkeypatch.setattr(size, "cores", lambda: 2)
    size.demand([(load(QUICK), range(8))] * 6, Execution(jobs=2))
    with pytest.raises(paceline.InputError, match="take about"):
        size.demand([(load(QUICK), range(8))] * 10, Execution(jobs=2))


def test_force(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(size, "LONGEST", 0.0)
    few = ["simulate", "adacomm/figure2", "--set", "run.steps=20", "--out", str(tmp_path / "out")]
    assert paceline.command_line.run(few) == 2
    assert paceline.command_line.run([*few, "--force"]) == 0


def test_operations_are_counted():
    """In proportion to what is asked for; memory that of all workers' vectors and curves."""
    scenario = load("adacomm/figure2", ["run.steps=1000", "run.evaluate_every=10"])
    workers = scenario.cluster.workers
    actual = size.count(scenario, 3)
    assert actual.gradients == 1000 * workers * 3
    assert size.count(scenario, 6).seconds == 2 * actual.seconds
    assert actual.memory == pytest.approx(100 * 3 * 7 * size.POINT)
    table = {
        "model": {"parameters": 10},
        "objective": {"kind": "quadratic", "dimension": 1000},
        "cluster": {"workers": 50, "compute": "2 s"},
        "network": {"collective": "given", "duration": "0 s"},
        "optimizer": {"lr": 0.1},
        "run": {"duration": "100 s", "timeline_spans": 0},
        "algorithm": [{"name": "ssgd"}],
    }
    actual = size.count(parse(table, file="x"), 1)
    assert actual.gradients == pytest.approx(50 * 50)
    assert actual.memory == pytest.approx(50 * 1000 * 8 * size.VECTORS + 50 * 7 * size.POINT)


def test_what_is_shipped_is_not_refused():
    for name in ("four-continents", "hpsgd/accuracy", "torch-digits", "clouds"):
        scenario = load(name)
        size.demand([(scenario, range(scenario.run.seeds))])
