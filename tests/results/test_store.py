"""Run directories: whole or refused, whatever happens while they are written."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.errors import InputError
from paceline.simulator.results import store
from paceline.simulator.results.run import SPAN, Kind
from tests.helpers.cases import looped
from tests.results.test_statistics import make_run

DOCUMENT = {"summary": {"algorithms": []}}
FILES = {"curves.csv": b"label\n", "timeline.json": b"{}", "tau.png": b"picture"}


def same(one, other):
    a, b = asdict(one), asdict(other)
    spans = a.pop("spans"), b.pop("spans")
    curves = a.pop("curve"), b.pop("curve")
    assert a == b
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(*map(dict.values, curves)))  # noqa: B905
    assert (spans[0] is None) == (spans[1] is None)
    assert spans[0] is None or (spans[0] == spans[1]).all()


@given(st.lists(st.floats(), min_size=1, max_size=9), st.text(min_size=1, max_size=9))
def test_a_run_survives_its_encoding(loss, label):
    run = make_run(loss, label=label + "x", seed=2**70)
    run.notes.append("a note")
    same(store.decode(store.encode(run)), run)


def test_spans_survive_their_encoding():
    run = make_run()
    run.spans = np.array([(1, Kind.WAIT, 0.1, 0.3, 7), (2, Kind.SERVE, 0.3, 1.0, 0)], dtype=SPAN)
    run.spans_truncated = True
    again = store.decode(store.encode(run))
    same(again, run)
    assert again.spans_truncated


@looped("cut", [0, 1, 100, -1])
def test_a_damaged_part_is_no_part(tmp_path, cut):
    directory = store.Directory(tmp_path / "run")
    directory.keep("key", make_run())
    path = next((tmp_path / "run" / store.PARTS).glob("*.npz"))
    path.write_bytes(path.read_bytes()[:cut])
    assert directory.find("key") is None


def test_parts_wait_until_the_directory_is_whole(tmp_path):
    with store.Directory(tmp_path / "a" / "run") as directory:
        assert directory.find("key") is None
        directory.keep("key", make_run(seed=3))
    with store.Directory(directory.path) as again:
        assert again.find("key").seed == 3
        again.finish(FILES, DOCUMENT)
    assert sorted(path.name for path in directory.path.iterdir()) == sorted([*FILES, "run.json"])
    contents = store.read(directory.path)
    assert contents == {"schema": store.SCHEMA, "parts": [*FILES]} | DOCUMENT


def test_rewriting_leaves_nothing_of_the_old_run(tmp_path):
    store.Directory(tmp_path).finish(FILES, DOCUMENT)
    (tmp_path / "notes.txt").write_text("the user's own")
    store.Directory(tmp_path).finish({"curves.csv": b""}, DOCUMENT)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["curves.csv", "notes.txt", "run.json"]


class Killed(BaseException):
    pass


@looped("calls", range(12))
def test_a_kill_at_any_moment_leaves_an_old_or_a_new_run_or_none(tmp_path, monkeypatch, calls):
    store.Directory(tmp_path).finish(FILES, DOCUMENT)
    left = calls

    def dies(function):
        def wrapped(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments, **options)

        return wrapped

    for name in ("unlink", "replace", "open"):
        monkeypatch.setattr(store.Path, name, dies(getattr(store.Path, name)))
    new = {"curves.csv": b"new", "figure.png": b"new"}
    ended = False
    try:
        store.Directory(tmp_path).finish(new, {"new": True})
        ended = True
    except Killed:
        pass
    monkeypatch.undo()
    if not ended and not (tmp_path / "run.json").exists():
        with pytest.raises(InputError, match="unfinished"):
            store.read(tmp_path)
        return
    expected = new if "new" in store.read(tmp_path) else FILES
    assert {n: (tmp_path / n).read_bytes() for n in expected} == expected


def test_every_moment_was_tried(tmp_path, monkeypatch):
    calls = 0
    for name in ("unlink", "replace", "open"):
        function = getattr(store.Path, name)

        def counted(*arguments, _function=function, **options):
            nonlocal calls
            calls += 1
            return _function(*arguments, **options)

        monkeypatch.setattr(store.Path, name, counted)
    store.Directory(tmp_path).finish({"curves.csv": b"", "figure.png": b""}, {})
    assert calls > 12  # the moments above lie before the end


@looped(
    ("content", "says"),
    [
        ('{"schema": 1', "not written by Paceline"),
        ("[]", "not written by Paceline"),
        ("{}", "not written by Paceline"),
        ('{"schema": 2}', "another version"),
        ('{"schema": "x"}', "another version"),
        ('{"schema": 1, "x": ' + "[" * 100 + "]" * 100 + "}", "not written by Paceline"),
    ],
)
def test_reading_refuses_what_it_does_not_understand(tmp_path, content, says):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=says):
        store.read(tmp_path)


def test_reading_refuses_what_is_not_whole(tmp_path):
    with pytest.raises(InputError, match="not a run directory"):
        store.read(tmp_path / "nowhere")
    (tmp_path / "curves.csv").write_text("label\n")
    with pytest.raises(InputError, match="not a run directory"):
        store.read(tmp_path)
    (tmp_path / store.PARTS).mkdir()
    with pytest.raises(InputError, match="unfinished"):
        store.read(tmp_path)


def test_other_peoples_files_are_not_overwritten(tmp_path):
    (tmp_path / "figure.png").write_bytes(b"holiday")
    with pytest.raises(InputError, match=r"figure\.png would be overwritten"):
        store.Directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


@looped("below", ["", "deeper"])
def test_a_file_is_no_directory(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write here"):
        store.Directory(tmp_path / "file" / below)


def test_documents_are_strict_json():
    with pytest.raises(ValueError, match="JSON"):
        store.dump({"x": float("nan")})
    assert json.loads(store.dump({"x": "±"})) == {"x": "±"}
