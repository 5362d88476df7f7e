"""Wrong inputs of all kinds are refused by one message that says where, what, and what would do."""

import contextlib
import os

import pytest

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from tests import corpus
from tests.helpers.cases import named
from tests.lab.reliability.inputs import faults
from tests.load.readers import READERS
from tests.load.test_load import WRONG

CASES = corpus.cases()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return corpus.world(tmp_path_factory.mktemp("world"))


def test_there_are_many_of_each_kind():
    kinds = [case.kind for case in CASES]
    assert len(CASES) + len(WRONG) >= 500
    assert min(map(kinds.count, {*kinds})) >= 10
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.says for case in CASES)


@pytest.mark.parametrize("kind", sorted({case.kind for case in CASES}))
def test_wrong_input_is_refused(kind, world, tmp_path):
    cases = [case for case in CASES if case.kind == kind]
    wrong = {
        case.name: [*faults(case, world, tmp_path / str(index))] for index, case in enumerate(cases)
    }
    assert {name: message for name, message in wrong.items() if message} == {}


def test_what_is_right_is_no_fault(world, tmp_path):
    """The check of the cases can fail."""
    right = corpus.Case("right", "command", "theory my.toml --out there", says=("my.toml",))
    message = " ".join(faults(right, world, tmp_path / "case"))
    for what in ("status 0", "on stdout", "not one message", "no my.toml in", "files were written"):
        assert what in message


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is closed to root")
@pytest.mark.parametrize("command", ["simulate my.toml", "simulate ok.toml --out shut/x"])
def test_what_is_closed_to_us_is_said(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(corpus.SCENARIO)
    (tmp_path / "ok.toml").write_text(corpus.SCENARIO)
    (tmp_path / "my.toml").chmod(0)
    (tmp_path / "shut").mkdir(mode=0o500)
    assert paceline.command_line.run(command.split()) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_what_once_crashed_is_handled(tmp_path):
    """Inputs that a fuzzer has found; the first word of the name is the reader's."""
    paths = sorted(corpus.CRASHES.glob("*"))
    assert paths
    for path in paths:
        folder = tmp_path / path.name
        folder.mkdir()
        with contextlib.suppress(InputError), named(path.name):
            READERS[path.name.partition("-")[0]](path.read_bytes(), folder)
