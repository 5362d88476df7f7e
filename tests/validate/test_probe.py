"""Probing this machine: its numbers, its profile, and scenarios that extend it."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import paceline
import paceline.command_line
from paceline.command_line import run
from paceline.simulator.errors import InputError, RunError
from paceline.simulator.inputs.units import to_si
from paceline.simulator.load.load import load
from paceline.simulator.programs.codecs.codec import CODECS
from paceline.validate.calibration import overheads
from paceline.validate.calibration import profile as profiles
from paceline.validate.calibration.overheads import RunEvents, Term
from paceline.validate.calibration.profile import Profile
from paceline.validate.logs import single
from paceline.validate.probe import doctor
from paceline.validate.probe import probe as probing
from paceline.validate.probe.doctor import Diagnosis
from tests.helpers.cases import looped

SCENARIO = """
extends = "profile.toml"
model.parameters = 2410
cluster = { workers = 2, compute = "40 ms" }
network = { collective = "star", latency = "10 ms" }
run.steps = 50
algorithm = [{ name = "ssgd", lr = 0.1 }]
"""

keys = st.text("abcdefghij-_", min_size=1, max_size=6)
numbers = st.floats(1e-12, 1e12).map(profiles.rounded)
words = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=8)
scalars = st.integers(-1000, 1000) | numbers | st.booleans() | words
laws = st.dictionaries(keys, scalars, max_size=2).map(lambda table: {"dist": "gamma", **table})
values = scalars | laws | st.lists(numbers, max_size=3)
tables = st.recursive(
    st.dictionaries(keys, values, min_size=1, max_size=3),
    lambda inner: st.dictionaries(
        keys, values | inner | st.lists(inner, min_size=1, max_size=2), min_size=1, max_size=3
    ),
    max_leaves=6,
)
sentences = st.lists(
    st.text("abc déf.;", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=3
).map(" ".join)


@settings(max_examples=60)
@given(tables, st.lists(sentences, max_size=2).map(tuple))
def test_a_profile_is_read_as_it_was_written(tmp_path_factory, found, head):
    whole = {"calibration": found, "overhead": [{"workers": 2}, {"workers": 3}]}
    files = {"times.csv": b"0.1\n0.2"}
    whole["cluster"] = {"compute": {"dist": "empirical", "file": "times.csv"}}
    folder = tmp_path_factory.mktemp("profile")
    Profile(whole, head, files).write(folder / "profile.toml")
    assert profiles.read(folder / "profile.toml").tables == whole
    assert (folder / "times.csv").read_bytes() == files["times.csv"]
    lines = (folder / "profile.toml").read_text("utf-8").splitlines()
    assert tuple(line.removeprefix("# ") for line in lines[: len(head)]) == head


@given(st.floats(1e-12, 1e6))
def test_quantities_are_read_as_they_were_written(value):
    for write, dimension in (
        (profiles.seconds, "time"), (profiles.size, "size"), (profiles.rate, "bandwidth")
    ):  # fmt: skip
        assert to_si(write(value), dimension) == pytest.approx(value, rel=6e-4)


def test_quantities_are_written_as_people_do():
    assert profiles.seconds(0.00041234) == "0.4123 ms"
    assert profiles.seconds(12) == "12 s"
    assert profiles.seconds(0) == "0 s"
    assert profiles.size(65_536) == "65.54 kB"
    assert profiles.rate(387.5e6) == "3.1 Gbit/s"


@given(st.floats(1e-4, 1e-2), st.floats(1e-9, 1e-7), st.integers(0, 2**32 - 1), st.integers(20, 40))
def test_latency_and_bandwidth_are_recovered_from_noisy_times(alpha, beta, seed, repeats):
    """Sizes that reveal each parameter: the least takes alpha, the greatest takes beta."""
    rng = np.random.default_rng(seed)
    sizes = [2**k for k in range(10, 25, 2)]
    noise = rng.lognormal(0, 0.02, (len(sizes), repeats))
    noise[:, ::5] *= 10  # a crowded machine delays some
    latency, per_byte = single.alpha_beta(sizes, (alpha + beta * np.array(sizes))[:, None] * noise)
    assert latency == pytest.approx(alpha, rel=0.1)
    assert per_byte == pytest.approx(beta, rel=0.1)


def test_times_that_do_not_depend_on_size_have_no_bandwidth():
    times = np.array([[3e-3], [2e-3], [1e-3]])
    assert single.alpha_beta(np.array([1000, 2000, 4000]), times)[1] == 0


@looped(
    ("options", "said"),
    [
        ({"workers": [1]}, "workers: 1: too small; write 2 or more"),
        ({"workers": []}, "workers: none; write numbers"),
        ({"workers": [2, 10**6]}, "workers: 1000000: too many processes for"),
        ({"network": "kernel"}, "network 'kernel': unknown; choose one of: emulated, real"),
        ({"device": "tpu"}, "device 'tpu': unknown; choose one of: auto, cpu, cuda"),
        ({"model": "mpl"}, "did you mean `mlp`?"),
        ({"data": "digit"}, "did you mean `digits`?"),
        ({"batch": 0}, "objective.batch = 0: too small; write 1 or more"),
    ],
)
def test_what_cannot_be_probed_is_refused(options, said):
    with pytest.raises(InputError) as refused:
        paceline.probe(**options)
    assert said in str(refused.value)


def test_numbers_of_workers_that_are_none_are_refused(capsys):
    assert paceline.command_line.run(["probe", "--workers", "2,x"]) == 2
    assert "--workers 2,x: not whole numbers; write a list such as 2,4,8" in capsys.readouterr().err


def test_what_is_no_profile_is_refused(tmp_path):
    (tmp_path / "a.toml").write_text("title = 'x'")
    with pytest.raises(InputError, match="not a profile: it has neither"):
        profiles.read(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text("overhead = [{ workers = 2, issue = 3 }]")
    with pytest.raises(InputError, match=r"overhead\[0\].issue = 3: a number without a unit"):
        _ = profiles.read(tmp_path / "b.toml").overheads
    with pytest.raises(InputError, match="cannot be written"):
        Profile({"probe": {}}).write("/dev/null/profile.toml")


TERMS = {"step": Term(-1e-5, 1e-6, 9), "issue": Term(3e-4, 3e-5, 9)}


def team(workers=4, foreign=0.0):
    table = {"cluster": {"workers": workers, "compute": "1 s"}}
    scenario = probing._scenario(table | {"algorithm": [{"name": "ssgd", "lr": 1}]}, Path())
    times, runs = np.full(9, 4e-4), [RunEvents(scenario, scenario.algorithm[0], 0, np.empty(0))]
    return probing.TeamMeasurement(workers, (0.02, 0.06), times, times, runs, foreign)


ABOUT = {"parameters": 2410, "device": "cpu", "network": "emulated"}


def test_a_crowded_machine_is_noted_and_only_numbers_that_can_vary_have_errors(monkeypatch):
    monkeypatch.setattr(overheads, "fit", lambda runs: TERMS)
    quiet = probing.profile(ABOUT, [team()], [])
    assert quiet.tables["calibration"]["notes"] == []
    assert quiet.tables["calibration"]["sd"] == {"overhead.0.issue": 0.1}
    (costs,) = quiet.overheads
    assert (costs.step.expectation, costs.issue) == (0, 3e-4)
    crowded = probing.profile(ABOUT, [team(), team(8, foreign=0.2)], [])
    (note,) = crowded.tables["calibration"]["notes"]
    assert note.startswith("other programs used up to 20% of the CPU (evidence: 3%)")


@pytest.mark.alone
def test_a_probe_of_two_workers(tmp_path, capsys):
    file = tmp_path / "profile.toml"
    assert paceline.command_line.run(["probe", "--workers", "2", "-o", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    profile = profiles.read(file)
    assert printed == profile.tables
    (costs,) = profile.overheads
    assert costs.workers == 2
    assert 0 < costs.issue < 0.1
    assert costs.step.expectation >= 0
    assert {"step", "issue", "collect", "agree", "send", "receive"} <= printed["overhead"][0].keys()
    assert profile.tables["calibration"]["measured"]["workers"] == [2, 2]

    found = printed["probe"]
    assert found["parameters"] == 2410
    assert [each["workers"] for each in found["compute"]] == [1, 2]
    assert all(to_si(each["p95"], "time") >= to_si(each["median"], "time") > 0
               for each in found["compute"])  # fmt: skip
    kinds = [each["kind"] for each in printed["codec"]]
    codecs = [kind for kind in CODECS.kinds if kind != "raw"]
    assert kinds == 2 * codecs

    (tmp_path / "my.toml").write_text(SCENARIO)
    mine = load(tmp_path / "my.toml")
    assert mine.costs == costs
    bare = paceline.simulate(mine.nominal).algorithms[0]["seconds_per_step"]["mean"]
    more = paceline.simulate(mine).algorithms[0]["seconds_per_step"]["mean"]
    assert more > bare + costs.issue


# The doctor


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(doctor, "LISTENED", 0.01)


def test_a_machine_without_gpus(monkeypatch):
    for others, counts, good in ((0.07, "counts", True), (0.2, "does not count, over 15%", False)):
        monkeypatch.setattr(doctor, "_others", lambda others=others: others)
        report = doctor.diagnose(device="cpu", smoke=False)
        lines = {line.what: line for line in report.machine}
        found = f"others use {others:.0%}: a run now {counts}"
        assert lines["evidence"] == ("evidence", found, good)
        assert lines["collectives"].found == "gloo"
        assert json.loads(json.dumps(report.json()))["sentence"] == report.sentence
        assert [table.columns[0].header for table in doctor.tables(report)] == ["this machine"]


def test_training_that_fails_is_explained(monkeypatch):
    def die(*_, **__):
        raise RunError("worker 1 died by signal 9 during mean (seed 0)")

    monkeypatch.setattr(doctor, "validate", die)
    (actual,) = doctor._smoke("cpu", 2)
    assert (actual.what, actual.good) == ("training with 2 processes", False)
    assert "died by signal 9" in actual.found
    sentence = Diagnosis("cpu", [], [actual]).sentence
    assert sentence == "Real runs do not work here yet: training with 2 processes failed."


@pytest.mark.long
def test_the_command_trains_and_writes_its_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "--device", "cpu", "--out", "report.json"]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [part["good"] for part in report["smoke"]] == [True] * len(doctor.PARTS)
    assert "groups made again" in out
    assert run(["doctor", "--no-smoke", "--out", "report.json"]) == 2  # it has other contents
