"""Runs that are too large are refused before they start, by an estimate."""

from types import SimpleNamespace

import pytest

import paceline
import paceline.command_line
from paceline.simulator.load.load import load, parse
from paceline.simulator.studies import execution, size
from paceline.simulator.studies.execution import Execution

QUICK = "quickstart"
DAY = 86_400.0


@pytest.fixture
def paced(monkeypatch):
    """Paces by decree: `seconds` of each part; `asked`: how many were measured."""
    actual = SimpleNamespace(seconds=0.0, asked=0)

    def seconds(*_):
        actual.asked += 1
        return actual.seconds

    monkeypatch.setattr(size, "measured", seconds)
    return actual


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


def test_a_sweep_is_added_up(tmp_path, paced, monkeypatch):
    """A week of six runs, each of which takes a day and a half; jobs share them."""
    monkeypatch.setattr(size, "GRADIENT", 1e6)
    algorithms = len(load(QUICK).algorithm)
    paced.seconds = 1.5 * DAY / algorithms
    latencies = [f"{number} ms" for number in range(1, 7)]
    with pytest.raises(paceline.InputError, match=r"take about 9\.00 d.*--force"):
        paceline.sweep(QUICK, {"network.latency": latencies}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    size.demand([(load(QUICK), range(8))] * 4)
    monkeypatch.setattr(size, "cores", lambda: 2)
    size.demand([(load(QUICK), range(8))] * 6, Execution(jobs=2))
    with pytest.raises(paceline.InputError, match="take about"):
        size.demand([(load(QUICK), range(8))] * 10, Execution(jobs=2))


def test_small_runs_are_not_measured(paced):
    size.demand([(load(QUICK), range(8))] * 4)
    assert paced.asked == 0
    paced.seconds = 1.0
    size.demand([(load(QUICK, ["run.duration=36500 days", "run.steps=1000000000"]), range(1))])
    assert paced.asked > 0


def test_after_some_seconds_the_largest_runs_speak_for_the_others(monkeypatch, paced):
    scenario = load("adacomm/figure2")
    parts = [
        size.Part(scenario, scenario.algorithm[0], 1, size.Size(1, most, 0))
        for most in (1e3, 4e3, 2e3)
    ]
    paced.seconds = 800.0
    assert size.estimate(parts, Execution()) == 2400
    assert size.estimate(parts, Execution(), enough=7e3) == 7e3
    monkeypatch.setattr(size, "PROBING", -1.0)
    assert size.estimate(parts, Execution()) == pytest.approx(800 * 7 / 4)


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
    spans = size.OF_SPAN * scenario.run.timeline_spans
    assert actual.memory == pytest.approx(100 * 3 * 7 * size.POINT + spans)
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


def test_a_run_is_estimated_by_its_steps(monkeypatch):
    """Of steps of 2 ms a seed, on a clock that goes on in runs alone; huge ones are counted."""
    now, ran = 0.0, []

    def run_world(world, seeds, *, engine, **_):
        nonlocal now
        settings = world.scenario.run
        steps = min(settings.steps, int((settings.duration or 1e9) / 0.5))
        now += 2e-3 * len(seeds) * steps
        ran.append((engine, steps))
        return [SimpleNamespace(steps=steps, duration=0.5 * steps) for _ in seeds]

    monkeypatch.setattr(size, "perf_counter", lambda: now)
    monkeypatch.setattr(execution, "run_world", run_world)
    one = "algorithm=[{ name = 'ssgd', lr = 0.1 }]"
    for sets, steps in (
        (["run.steps=10000"], 10_000),
        (["run.steps=3"], 3),
        (["run.steps=10000", "run.duration=100 s"], 200),
    ):
        scenario = load("adacomm/figure2", [one, *sets])
        part = size.Part(scenario, scenario.algorithm[0], 12, size.count(scenario, 12))
        assert size.measured(part, Execution()) == pytest.approx(12 * 2e-3 * steps)
        assert all(position <= steps for _, position in ran)
        assert {engine for engine, _ in ran} == {"batched"}
        ran.clear()
    wide = load("adacomm/figure2", [one, "objective={kind='quadratic', dimension=10000000}"])
    part = size.Part(wide, wide.algorithm[0], 1, size.count(wide, 1))
    assert size.measured(part, Execution()) == part.size.seconds
    assert not ran


def test_a_run_is_measured_for_real():
    for engine, objective in (("batched", "{kind='none'}"), ("virtual", "{kind='none'}")):
        sets = [f"objective={objective}", "run.steps=4", "algorithm=[{ name = 'ssgd', lr = 0.1 }]"]
        scenario = load("adacomm/figure2", sets)
        part = size.Part(scenario, scenario.algorithm[0], 1, size.count(scenario, 1))
        assert 0 < size.measured(part, Execution(engine)) < 10


def test_what_is_shipped_is_not_refused():
    for name in ("four-continents", "hpsgd/accuracy", "torch-digits", "clouds"):
        scenario = load(name)
        size.demand([(scenario, range(scenario.run.seeds))])
