"""`paceline doctor`: what is here, and what is kept out of its report."""

import getpass
import json
import socket

import pytest

pytest.importorskip("torch")

from paceline.command_line import run
from paceline.simulator.errors import RunError
from paceline.validate.probe import doctor
from paceline.validate.probe.doctor import Diagnosis, Finding


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(doctor, "LISTENED", 0.01)


def test_a_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(doctor, "_others", lambda: 0.07)
    report = doctor.diagnose(device="cpu", smoke=False)
    lines = {line.what: line.found for line in (*report.machine, *report.settings)}
    assert lines["used by others"] == "7% of the cores"
    assert lines["evidence"] == "a run now would count with intervals 7% wider"
    assert "gloo" in lines["--device auto"]
    assert json.loads(json.dumps(report.json()))["sentence"] == report.sentence
    titles = [table.columns[0].header for table in doctor.tables(report)]
    assert titles == ["this machine", "validate"]


def test_whether_a_run_would_count():
    for others, good in ((0.0, True), (0.1, True), (0.2, False)):
        *_, last = doctor._settings("cpu", {}, others)
        assert (last.what, last.good) == ("evidence", good)


def test_a_report_names_no_user_host_or_path(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "jane")
    text = "jane on node17.lab.example (node17): /home/jane/my-runs/rank-1.log, jane's; 3 ms/step"
    (actual,) = (doctor._anonymous(Finding("mean", text)),)
    assert actual.found == "USER on HOST (HOST): PATH, USER's; 3 ms/step"


def test_a_part_that_fails_is_named_and_ends_the_test(monkeypatch, tmp_path):
    def die(job):
        raise RunError("worker 1 died by signal 9 during mean (seed 0)")

    monkeypatch.setattr(doctor.launch, "run", die)
    (actual,) = doctor._train(2, "cpu", tmp_path)
    assert (actual.what, actual.good) == ("mean", False)
    assert "died by signal 9" in actual.found
    sentence = Diagnosis("cpu", [], [], [actual]).sentence
    assert sentence == "Real runs do not work here yet: mean failed."


@pytest.mark.long
def test_the_command_trains_and_writes_its_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "--device", "cpu", "--out", "report.json"]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [part["good"] for part in report["smoke"]] == [True] * len(doctor.PARTS)
    assert "groups made again" in out
    assert str(tmp_path) not in json.dumps(report)
    assert run(["doctor", "--no-smoke", "--out", "report.json"]) == 2  # it holds something else
