"""Runs of earlier versions open; runs of later ones are refused with a reason."""

import json
import shutil

import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.results import read, store
from tests.lab.reliability import compatibility
from tests.lab.reliability.compatibility import EARLY


def test_the_first_versions_runs_open(tmp_path):
    pytest.importorskip("torch")  # to calibrate
    row = compatibility.older(tmp_path)
    assert row["handled"] == row["tried"] == 3
    assert "local-sgd tau=5" in (tmp_path / "report.html").read_text("utf-8")
    assert (tmp_path / "compared" / "comparison.json").is_file()


def test_what_rows_of_earlier_versions_lack_has_a_default():
    found = read.read(EARLY)
    assert found.stalled == []
    assert [row["diverged"] for row in found.rows.values()] == [None, None]
    assert {label: len(runs) for label, runs in found.runs.items()} == {
        "ssgd": 2,
        "local-sgd tau=5": 2,
    }


def test_later_schemas_are_refused_by_every_command(tmp_path):
    pytest.importorskip("torch")
    row = compatibility.later(tmp_path)
    assert row["handled"] == row["tried"] == 3


@pytest.mark.parametrize("name", compatibility.QUICK)
def test_the_tests_for_other_versions_exist(name):
    assert (compatibility.ROOT / "tests" / f"{name}.py").is_file()


@pytest.mark.parametrize("name", ["sweep.json", "tune.json", "comparison.json"])
def test_later_schemas_of_other_results_are_refused(tmp_path, name):
    from paceline.simulator.reports.page import reading

    document = {"schema": store.SCHEMA + 1, "scenario": {}, "vary": {}, "points": 0, "ranking": [],
                "sentence": "", "measure": "", "rows": []}  # fmt: skip
    (tmp_path / name).write_text(json.dumps(document))
    (tmp_path / "sweep.csv").write_text("label\n")
    with pytest.raises(InputError, match=f"schema {store.SCHEMA + 1}.*use that one"):
        reading.read([tmp_path])


@pytest.mark.parametrize("schema", [None, "1", 0, -1, [1], True, 2.5])
def test_a_schema_that_is_none_is_no_run(tmp_path, schema):
    run = tmp_path / "run"
    shutil.copytree(EARLY, run)
    document = json.loads((run / store.WHOLE).read_text("utf-8"))
    (run / store.WHOLE).write_text(json.dumps(document | {"schema": schema}))
    with pytest.raises(InputError):
        read.read(run)
