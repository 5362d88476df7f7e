"""The validation matrix: its statistics of known numbers, its page and its conditions."""

import json
import shlex
from itertools import pairwise

import pytest

pytest.importorskip("torch")

from paceline import InputError, load
from paceline.command_line import run
from paceline.validate.comparison.quantities import PACE, TARGET
from paceline.validate.matrix import conditions
from paceline.validate.matrix import matrix as measuring
from paceline.validate.matrix.conditions import CONDITIONS
from paceline.validate.matrix.page import Matrix, summary, write

MACHINE = {"processor": "Some CPU (R)", "cores": 2, "system": "Linux"}


def cell(program, condition="exponential", **changes):
    """Make a cell whose prediction is 1 % too low: a tenth of the excess of 10 % is missing."""
    pace = {"nominal": 0.090, "predicted": 0.099, "measured": 0.100, "error": -0.01}
    target = {"predicted": 9.9, "measured": 10.0, "error": -0.01}
    apart = {"predicted": 10.2, "measured": 10.0, "error": 0.02,
             "interval90": [9.0, 11.0], "inside": True}  # fmt: skip
    actual = {
        "condition": condition,
        "workers": 4,
        "network": "emulated",
        "program": program,
        "asynchronous": False,
        "counted": True,
        "reasons": [],
        PACE: pace | changes.pop("pace", {}),
        TARGET: target | changes.pop("target", {}),
        "independent": {PACE: apart | {"interval90": [0.09, 0.11]},
                        TARGET: apart | changes.pop("apart", {})},
        "to_blame": "link",
    }  # fmt: skip
    return actual | changes


def test_figures_are_those_of_the_cells():
    cells = [
        cell("a"),
        cell("b", pace={"error": 0.03, "predicted": 0.103}),
        cell("c", asynchronous=True, target={"error": 0.05}),
        cell("d", counted=False, reasons=["others used 9 %"], pace={"error": 9.0}),
    ]
    first, second = summary(cells)
    assert first[PACE] == pytest.approx([0.02, 0.029])
    assert first[TARGET] == pytest.approx([0.01, 0.01])
    assert first["explained"] == pytest.approx(1 - 4 / 20)  # 10 ms each; missing are 1 and 3 ms
    assert (first["programs"], first["cells"]) == ("synchronous", 2)
    assert (second["programs"], second[TARGET]) == ("asynchronous", [0.05, 0.05])


@pytest.mark.parametrize(("counts", "times"), [(False, 2), (True, 1)])
def test_a_disturbed_condition_is_measured_once_more(counts, times, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(measuring, "validate", lambda *_, **__: made.append(1))
    monkeypatch.setattr(measuring, "_counts", lambda *_: bool(made) and counts)
    work = measuring._Work(tmp_path, "cpu", None, made.count)
    work._measure(CONDITIONS[0].scenario(), tmp_path, 0)
    assert len(made) == times


def test_the_page_says_all_of_it(tmp_path):
    cells = [cell("a"), cell("b"), cell("c", counted=False, reasons=["others used 9 %"])]
    actual = Matrix(MACHINE, {"torch": "2"}, cells, {"kernel": "no TUN devices here"})
    page = write(actual, tmp_path / "new").read_text()
    assert page.startswith("# The validation matrix: Some CPU (R), 2 cores\n")
    assert "3 cells (programs under conditions), 2 of which count" in page
    assert "Left out: kernel: no TUN devices here" in page
    assert "| emulated | synchronous | 2 | 1 %, 1 % | 1 %, 1 % | 90 % |" in page
    stem = "some-cpu-r-2-cores"
    made = {path.name for path in (tmp_path / "new").iterdir()}
    assert made == {f"{stem}.md", f"{stem}.json"}
    document = json.loads((tmp_path / "new" / "some-cpu-r-2-cores.json").read_text())
    assert len(document["cells"]) == 3
    assert document["cells"][2]["reasons"] == ["others used 9 %"]
    assert document["commands"]["bursty"].startswith("paceline validate validation/matrix --set ")


def test_a_condition_is_its_command():
    """Its calibration shares its workers and kind of network, not its seeds."""
    for condition in CONDITIONS:
        line = shlex.split(condition.command())
        sets = [text for flag, text in pairwise(line) if flag == "--set"]
        assert line[:2] == ["paceline", "validate"]
        assert load(line[2], sets).table == condition.scenario().table, condition.name
        calibrated = conditions.calibration(*condition.group)
        assert calibrated.group == condition.group, condition.name
        fitted = calibrated.scenario().algorithm
        assert [one.name for one in fitted] == ["ssgd", "local-sgd"]
        held_out = {one.label for one in condition.scenario().algorithm}
        assert held_out.isdisjoint(one.label for one in fitted), condition.name


def test_what_cannot_be_asked_for(capsys):
    with pytest.raises(InputError, match="no condition"):
        conditions.chosen(["burst"])
    assert run(["validate", "--matrix", "quick.toml"]) == 2
    assert "omit quick.toml" in capsys.readouterr().err
    assert run(["validate"]) == 2
    assert "write a SCENARIO" in capsys.readouterr().err
    assert run(["validate", "--matrix", "--only", "burst"]) == 2
