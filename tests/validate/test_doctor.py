"""`paceline doctor`: what is here, and what is kept out of its report."""

import getpass
import json
import socket
import subprocess

import pytest

pytest.importorskip("torch")

from paceline.command_line import run
from paceline.simulator.errors import RunError
from paceline.validate.host import device as devices
from paceline.validate.probe import doctor
from paceline.validate.probe.doctor import Diagnosis, Finding
from tests.helpers.cases import looped

SMI = """GPU-a, 70000, 81559, 1200, 1980, 700.00, Enabled
GPU-b, 81000, 81559, 345, 1980, 700.00, Disabled
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(doctor, "LISTENED", 0.01)


def test_a_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(doctor, "_others", lambda: 0.07)
    found = doctor.diagnose(device="cpu", smoke=False)
    lines = {each.what: each.found for each in (*found.machine, *found.settings)}
    assert lines["used by others"] == "7% of the cores"
    assert lines["evidence"] == "a run now would count with intervals 7% wider"
    assert "gloo" in lines["--device auto"]
    assert json.loads(json.dumps(found.json()))["sentence"] == found.sentence
    titles = [table.columns[0].header for table in doctor.tables(found)]
    assert titles == ["this machine", "validate"]


@looped(("others", "good"), [(0.0, True), (0.1, True), (0.2, False)])
def test_whether_a_run_would_count(others, good):
    *_, last = doctor._settings("cpu", {}, others)
    assert (last.what, last.good) == ("evidence", good)


def test_what_four_gpus_are_used_for():
    found = {"gpus": 4, "gpu": "H100", "nccl": "2.27.5"}
    lines = {each.what: each.found for each in doctor._settings("cuda", found, 0.0)}
    assert lines["up to 4 workers"] == "a GPU for each; collectives by NCCL"
    assert lines["more workers"] == "share GPUs; collectives by gloo, through the host's memory"
    assert lines["a server"] == "has a GPU to itself with up to 3 workers, else shares"


def test_a_report_names_no_user_host_or_path(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "jane")
    said = "jane on node17.lab.example (node17): /home/jane/my-runs/rank-1.log, jane's; 3 ms/step"
    (found,) = (doctor._anonymous(Finding("mean", said)),)
    assert found.found == "USER on HOST (HOST): PATH, USER's; 3 ms/step"


def test_a_part_that_fails_is_named_and_ends_the_test(monkeypatch, tmp_path):
    def die(job):
        raise RunError("worker 1 died by signal 9 during mean (seed 0)")

    monkeypatch.setattr(doctor.launch, "run", die)
    (found,) = doctor._train(2, "cpu", tmp_path)
    assert (found.what, found.good) == ("mean", False)
    assert "died by signal 9" in found.found
    said = Diagnosis("cpu", [], [], [found]).sentence
    assert said == "Real runs do not work here yet: mean failed."


def test_gpus_that_others_use(monkeypatch):
    answers = {
        "--query-gpu=utilization.gpu": "3\n47\n",
        "--query-compute-apps=gpu_uuid": "GPU-b\nGPU-b\n",
    }

    def asked(command, **_):
        return subprocess.CompletedProcess(command, 0, answers.get(command[1], SMI))

    monkeypatch.setattr(devices.subprocess, "run", asked)
    assert devices.used_by_others() == 0.47
    first, second = devices.states()
    assert first.startswith("70000 of 81559 MiB free; 1200 of at most 1980 MHz; power limit 700.00")
    assert first.endswith("persistence enabled; no processes compute on it")
    assert second.endswith("2 processes compute on it")


def test_without_nvidia_smi_nothing_is_claimed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert devices.used_by_others() is None
    assert devices.states() == []


@pytest.mark.long
def test_the_command_trains_and_writes_its_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["doctor", "--device", "cpu", "--out", "report.json"]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["good"] for each in report["smoke"]] == [True] * len(doctor.PARTS)
    assert "groups made again" in out
    assert str(tmp_path) not in json.dumps(report)
    assert run(["doctor", "--no-smoke", "--out", "report.json"]) == 2  # it holds something else
