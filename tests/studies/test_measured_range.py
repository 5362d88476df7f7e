"""A simulation beyond the range that its calibration measured warns of each quantity."""

import paceline
import paceline.command_line
from paceline.simulator.studies.simulate import simulate
from tests.command_line.test_command_line import SCENARIO
from tests.helpers.worlds import scenario

BEYOND = {
    "workers": ({"workers": [2, 3]}, {"workers": 4}, "4 workers, measured at 2 workers to 3"),
    "step": ({"step": ["10 ms", "20 ms"]}, {"compute": "90 ms"}, "steps of 0.09 s, measured at"),
    "bytes": ({"bytes": [9e6, 9e6]}, {}, "payloads of 4e+03 bytes, measured at"),
    "latency": ({"latency": ["1 ms", "1 ms"]},
                {"network": {"collective": "star", "latency": "9 ms"}}, "latencies of 0.009 s"),
}  # fmt: skip


def test_each_calibrated_quantity_warns_beyond_its_range():
    for quantity, (measured, changed, named) in BEYOND.items():
        calibration = {"measured": measured, "replicates": 2}
        notes = simulate(scenario({"name": "ssgd"}, **changed, calibration=calibration)).notes
        assert any("outside the" in note and named in note for note in notes), quantity


def test_the_command_line_warns_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    measured = "[calibration]\nreplicates = 2\n[calibration.measured]\nworkers = [2, 3]\n"
    (tmp_path / "test.toml").write_text(SCENARIO + measured)
    short = ["--set", "run.steps=20", "--figure", "svg"]
    assert paceline.command_line.run(["simulate", "test.toml", *short]) == 0
    assert "outside the calibrated range: 4 workers" in capsys.readouterr().err
