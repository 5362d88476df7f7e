"""The code that a kept run's key depends on."""

from paceline.simulator.studies import execution


def test_another_objective_has_another_hash(tmp_path):
    (tmp_path / "own.py").write_text("x = 1")
    assert execution.code_hash(tmp_path / "own.py") != execution.code_hash()
