"""Documents of another version are refused with a reason."""

import json

import pytest

import paceline
from paceline.simulator.errors import InputError
from paceline.simulator.results import read, store
from tests.lab.reliability import compatibility
from tests.lab.reliability.compatibility import WORLD


def test_later_schemas_are_refused_by_every_command(tmp_path):
    pytest.importorskip("torch")
    row = compatibility.later(tmp_path)
    assert row["handled"] == row["tried"] == 3


def test_the_tests_for_other_versions_exist():
    for name in compatibility.QUICK:
        assert (compatibility.ROOT / "tests" / f"{name}.py").is_file(), name


@pytest.mark.parametrize("name", ["sweep.json", "tune.json", "comparison.json"])
def test_later_schemas_of_other_results_are_refused(tmp_path, name):
    from paceline.simulator.reports.page import reading

    document = {"schema": store.SCHEMA + 1, "scenario": {}, "vary": {}, "points": 0, "ranking": [],
                "sentence": "", "measure": "", "rows": []}  # fmt: skip
    (tmp_path / name).write_text(json.dumps(document))
    (tmp_path / "sweep.csv").write_text("label\n")
    with pytest.raises(InputError, match=f"schema {store.SCHEMA + 1}.*use that one"):
        reading.read([tmp_path])


def test_a_schema_that_is_none_is_no_run(tmp_path):
    run = tmp_path / "run"
    paceline.simulate(WORLD, out=run)
    document = json.loads((run / store.WHOLE).read_text("utf-8"))
    for schema in (None, "1", 0, -1, [1], True, 2.5):
        (run / store.WHOLE).write_text(json.dumps(document | {"schema": schema}))
        with pytest.raises(InputError):
            read.read(run)
