"""The code that a kept run's key depends on."""

from paceline.simulator.studies import execution
from tests.test_layers import SIMULATOR, edges, module

SOURCES = {module(path) for path in execution.determining_sources()}
# Code that determines numbers imports these, which have no say in them; the key has the versions.
NEUTRAL = {"simulator.errors", "simulator.results.store"}


def test_the_key_covers_all_code_that_determines_numbers_and_none_that_shows_them():
    assert len(SOURCES) == len(execution.determining_sources())
    imported = edges(SIMULATOR)
    assert set().union(*(imported[name] for name in SOURCES)) - SOURCES == NEUTRAL
    assert not {name.split(".")[1] for name in SOURCES} & {"reports", "studies"}


def test_another_objective_has_another_hash(tmp_path):
    (tmp_path / "own.py").write_text("x = 1")
    assert execution.code_hash(tmp_path / "own.py") != execution.code_hash()
