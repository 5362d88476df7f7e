"""A test that fails once is listed; one that fails twice is a failure."""

import pytest

from tests.helpers import again

SUITE = """
import pathlib
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("name", ["a b/c::d", "[e]"])
def test_flaky(name):
    tried = pathlib.Path(f"tried{len(name)}")
    before = tried.exists()
    tried.touch()
    assert before
"""
FAILS = "\ndef test_fails():\n    assert False\n"
RUNS = ["-n 2 -k 'not flaky'", "-k flaky"]


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # all but those take half of the time
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "test_suite.py"


def flaky(said):
    return [line for line in said.splitlines() if line.startswith("FLAKY")]


def test_a_test_that_passes_alone_is_listed_and_the_run_goes_well(suite, capfd):
    suite.write_text(SUITE)
    assert again.main(RUNS) == 0
    assert flaky(capfd.readouterr().out) == [
        "FLAKY test_suite.py::test_flaky[[e]]",
        "FLAKY test_suite.py::test_flaky[a b/c::d]",
    ]
    assert again.main(RUNS) == 0
    assert not flaky(capfd.readouterr().out)


def test_a_test_that_fails_twice_is_a_failure(suite, capfd):
    suite.write_text(SUITE + FAILS)
    assert again.main(RUNS) == 1
    said = capfd.readouterr().out
    assert len(flaky(said)) == 2
    assert "test_fails" not in "".join(flaky(said))
    assert said.count("FAILED test_suite.py::test_fails") == 2


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "# no tests"])
def test_what_cannot_be_run_is_a_failure(suite, text):
    suite.write_text(text)
    assert again.main(RUNS) == 1
