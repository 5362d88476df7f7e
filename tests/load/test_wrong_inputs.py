"""Wrong inputs of all kinds are refused by one message that says where, what, and what would do."""

import os
import shutil
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from io import StringIO

import pytest

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from tests import corpus
from tests.helpers.cases import beside, named
from tests.helpers.worlds import scenario
from tests.load.readers import READERS
from tests.load.test_load import JARGON, WRONG
from tests.network.test_topology import CSV, PLATFORM

CASES = corpus.cases()
INTERNAL = "Traceback", "pydantic", "type=", "validation error", "PACELINE_DEBUG", "site-packages"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return corpus.world(tmp_path_factory.mktemp("world"))


def faults(case, world, folder):
    """Run a case in a folder that is made for it; say what is wrong with how it was refused."""
    shutil.rmtree(folder, ignore_errors=True)
    corpus.prepare(case, world, folder)
    before, out, err = corpus.tree(folder), StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        status = paceline.command_line.run(case.arguments)
    output = err.getvalue()
    if status != 2:
        yield f"status {status}: {output}"
    if out.getvalue():
        yield f"on stdout: {out.getvalue()}"
    if not output.startswith("paceline: error: ") or output.count("paceline: ") > 1:
        yield f"not one message: {output}"
    yield from (f"{word} in {output}" for word in INTERNAL if word in output)
    yield from (f"no {words} in {output}" for words in case.says if words not in output)
    if corpus.tree(folder) != before:
        yield "files were written"


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
        with suppress(InputError), named(path.name):
            READERS[path.name.partition("-")[0]](path.read_bytes(), folder)


# Scenarios of refused.toml


REFUSED = tomllib.loads(beside(__file__, "refused.toml"))
COMMON = REFUSED.pop("common")
EDITED = {"clouds.csv": CSV, "cluster.xml": PLATFORM}


def put(case, folder):
    """Write the files of a case."""
    folder.mkdir()
    for name, text in case.get("files", {}).items():
        data = text.encode() if isinstance(text, str) else bytes.fromhex(text["hex"])
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    for name, (old, new) in case.get("edit", {}).items():
        assert not old or EDITED[name].count(old) == 1, old
        many = "".join(new.replace("{n}", str(n)) for n in range(case.get("times", 1)))
        text = EDITED[name].replace(old, many) if old else EDITED[name]
        (folder / name).write_text(text, encoding="utf-8")


def refusal(case, overrides, folder):
    with pytest.raises(InputError) as refused:
        load(case["scenario"], overrides) if "scenario" in case else parse(
            scenario({"name": "ssgd"}).table, file="my.toml", folder=folder, overrides=overrides
        )
    return str(refused.value)


@pytest.mark.parametrize("group", REFUSED)
def test_what_cannot_be_is_refused(group, tmp_path):
    for index, case in enumerate(REFUSED[group]):
        with named(case):
            put(case, tmp_path / f"{index}")
            overrides = [*COMMON.get(group, ()), *case.get("set", ())]
            text = refusal(case, overrides, tmp_path / f"{index}")
            assert [words for words in case["says"] if words not in text] == []
            assert [words for words in JARGON if words in text] == []
