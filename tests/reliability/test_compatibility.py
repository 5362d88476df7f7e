"""Documents of another version are refused with a reason."""

import json

import pytest

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.results import read, store
from tests.helpers.cases import looped

WORLD = {
    "model": {"parameters": 1000},
    "cluster": {"workers": 2, "compute": "100 ms"},
    "network": {"latency": "10 ms", "bandwidth": "1 Mbit/s"},
    "run": {"steps": 20},
    "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 5}],
}


@looped("command", ["report RUN", "compare RUN RUN --as-measured", "calibrate RUN"])
def test_later_schemas_are_refused_by_every_command(command, tmp_path, capsys):
    pytest.importorskip("torch")
    paceline.simulate(WORLD, out=tmp_path)
    document = json.loads((tmp_path / store.WHOLE).read_text("utf-8"))
    later = json.dumps(document | {"schema": store.SCHEMA + 1})
    (tmp_path / store.WHOLE).write_text(later)
    line = [*command.replace("RUN", str(tmp_path)).split(), "--out", str(tmp_path / "out")]
    assert paceline.command_line.run(line) == 2
    refusal = capsys.readouterr().err
    assert f"schema {store.SCHEMA + 1}" in refusal
    assert "use that version" in refusal


@pytest.mark.parametrize("name", ["sweep.json", "tune.json", "comparison.json"])
def test_later_schemas_of_other_results_are_refused(tmp_path, name):
    from paceline.simulator.reports.page import reading

    document = {"schema": store.SCHEMA + 1, "scenario": {}, "vary": {}, "points": 0, "ranking": [],
                "sentence": "", "measure": "", "rows": []}  # fmt: skip
    (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"schema {store.SCHEMA + 1}.*use that version"):
        reading.read([tmp_path])


def test_a_schema_that_is_none_is_no_run(tmp_path):
    run = tmp_path / "run"
    paceline.simulate(WORLD, out=run)
    document = json.loads((run / store.WHOLE).read_text("utf-8"))
    for schema in (None, "1", 0, -1, [1], True, 2.5):
        (run / store.WHOLE).write_text(json.dumps(document | {"schema": schema}))
        with pytest.raises(InputError):
            read.read(run)
