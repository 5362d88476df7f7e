"""Directories are one command's: locked, refused, and never mixed, whoever writes them when."""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import paceline
from paceline.simulator.errors import InputError
from paceline.simulator.inputs import csv_files
from paceline.simulator.results import read, store
from paceline.simulator.results.figures import curves
from tests.command_line.test_command_line import ROOT, SCENARIO, command, run

SHORT = SCENARIO.replace("steps = 200", "steps = 20")
HOLD = """
import sys
from pathlib import Path
from paceline.simulator.results import store
with store.Directory(Path(sys.argv[1]), {"scenario": {"title": "held"}}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.toml").write_text(SHORT)
    return tmp_path


@pytest.fixture
def bare(folder, monkeypatch):
    """The folder, in which commands draw no figures."""
    monkeypatch.setattr(curves, "figures", lambda *_, **__: {})
    return folder


@pytest.fixture
def holder(bare):
    """Another process that holds the directory `out`, until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "out"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_directory_that_another_command_writes_is_refused_before_anything_runs(holder, capsys):
    status, output, err = run(capsys, "simulate", "test.toml", "--out", "out", "--overwrite")
    assert (status, output) == (2, "")
    assert "out: another command is writing here; wait" in err
    holder.communicate("")
    assert not Path("out").exists()  # it kept nothing
    assert run(capsys, "simulate", "test.toml", "--out", "out")[0] == 0


def test_a_killed_commands_lock_goes_with_it(holder, capsys):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    status, _, err = run(capsys, "simulate", "test.toml", "--out", "out")
    assert status == 2
    assert 'holds the unfinished results of other settings (title: "held"' in err
    assert run(capsys, "simulate", "test.toml", "--out", "out", "--overwrite")[0] == 0
    assert {path.name for path in Path("out").iterdir() if path.name[0] == "."} == set()


@pytest.mark.parametrize("apart", [pytest.param((), marks=pytest.mark.long), ("--seed", 5)])
def test_two_commands_at_once_leave_one_whole_run(folder, capsys, apart):
    """Whichever comes first: no file is of the other, and what is left is one command's."""
    both = [command("simulate", "test.toml", "--out", "out", *item) for item in ((), apart)]
    ended = [(*process.communicate(), process.returncode) for process in both]
    statuses = sorted(status for *_, status in ended)
    assert statuses == [0, 2] or (statuses == [0, 0] and not apart)
    for _, err, status in ended:
        assert status == 0 or "is writing here" in err or "of other settings" in err
    contents = read.read("out")
    assert {run.seed for runs in contents.runs.values() for run in runs} == {*contents.seeds}
    assert not (folder / "out" / store.PARTS).exists()


def test_another_scenario_or_settings_are_refused_and_the_default_takes_the_next_name(bare, capsys):
    assert run(capsys, "simulate", "test.toml", "--seeds", 1)[0] == 0
    before = {path: path.read_bytes() for path in Path("runs/test").iterdir()}
    others = (("--seeds", 2), ("--set", "network.latency=1 s"))
    for other in others:
        given = ("simulate", "test.toml", "--seeds", 1, *other)
        status, output, err = run(capsys, *given, "--out", "runs/test")
        assert (status, output) == (2, "")
        assert "runs/test: holds the results of other settings (" in err
        assert str(other[1]).partition("=")[0] in err or "seeds: [0], not [0, 1]" in err
        for again in ("", "again"):
            status, output, err = run(capsys, *given)
            assert status == 0, again
            place = f"runs/test-{others.index(other) + 2}"
            assert output.rstrip().endswith(place)
            assert "holds the results of other settings" in err
            assert f"results go to {place}" in err
    assert {path: path.read_bytes() for path in Path("runs/test").iterdir()} == before
    status, output, err = run(capsys, "simulate", "test.toml", "--seeds", 1)
    assert (status, output.rstrip().endswith("runs/test")) == (0, True)
    overwritten = ("simulate", "test.toml", "--out", "runs/test", "--seeds", 2, "--overwrite")
    assert run(capsys, *overwritten)[0] == 0
    assert read.read("runs/test").seeds == [0, 1]


@pytest.mark.usefixtures("figures")
def test_the_users_own_files_stay(bare, capsys):
    """Even with --overwrite, only what run.json lists is replaced."""
    assert run(capsys, "simulate", "test.toml", "--out", "out")[0] == 0
    Path("out/notes.txt").write_text("mine")
    Path("out/tau.png").write_text("holiday")  # a name that other runs have
    for more in ((), ("--overwrite",), ("--seeds", 1, "--overwrite")):
        status, _, err = run(capsys, "simulate", "test.toml", "--out", "out", *more)
        assert status == 2
        assert "its tau.png does not belong to this run" in err
    Path("out/tau.png").unlink()
    assert run(capsys, "simulate", "test.toml", "--out", "out", "--seeds", 1, "--overwrite")[0] == 0
    assert Path("out/notes.txt").read_text() == "mine"


def test_sweeps_grow_and_others_are_refused(folder, capsys):
    def sweep(values, *options):
        vary = f"network.latency={values}"
        given = ("sweep", "test.toml", "--vary", vary, "--jobs", 1, "--out", "out", *options)
        return run(capsys, *given)

    assert sweep("1 ms,2 ms")[0] == 0
    status, _, err = sweep("1 ms,2 ms,3 ms")
    assert (status, "12 runs were finished before" in err) == (0, True)
    for values, *options in (["1 ms,4 ms"], ["1 ms"], ["1 ms,2 ms,3 ms", "--seed", 1]):
        before = Path("out/sweep.csv").read_bytes()
        status, _, err = sweep(values, *options)
        assert status == 2
        assert "out: holds the results of other settings (" in err
        assert Path("out/sweep.csv").read_bytes() == before
    status, _, err = sweep("1 ms,4 ms", "--overwrite")
    assert (status, "6 runs were finished before" in err) == (0, True)


HUGE = ("run.json", "curves.csv", "comparison.json", "sweep.json", "tune.json")


@pytest.mark.parametrize("name", HUGE)
def test_no_read_of_a_directory_is_without_bound(bare, name, capsys):
    """3 GB that take no space on disk take none in memory."""
    out = Path("out")
    paceline.simulate("test.toml", seeds=1, out=out)
    with (out / name).open("ab") as file:
        file.truncate(3_000_000_000)
    tracemalloc.start()
    try:
        status, _, err = run(capsys, "report", "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000_000
    assert status == 2
    assert "above" in err


def test_what_is_kept_is_read_within_bounds(bare):
    """A log that is too long is refused, a kept run that is, or is compressed, is run again."""
    with store.SweepDirectory(Path("swept")) as directory:
        directory.keep("a", {})
        log = directory.scratch / "points.jsonl"
    os.truncate(log, 3_000_000_000)
    with pytest.raises(InputError, match=r"points\.jsonl: .*above"):
        store.SweepDirectory(Path("swept"))
    with store.Directory(Path("run")) as directory:
        (directory.scratch / "a.npz").touch()
        os.truncate(directory.scratch / "a.npz", 3_000_000_000)
        assert directory.find("a") is None
    bomb = io.BytesIO()
    np.savez_compressed(bomb, header=np.zeros(10**7), curve=np.zeros(1), staleness=np.zeros(1))
    with pytest.raises(ValueError, match="compressed"):
        store.decode(bomb.getvalue())


RUNS = tuple("=+-@＝")
SIGNS = st.text(alphabet="=+-@＝\t\r\n ;,\"'ab1", max_size=9)


@given(SIGNS | st.text())
@example("\t=x")
@example("'=x")
@example("a;\n'\"-x")
def test_no_text_runs_in_a_spreadsheet_and_each_reads_back(text):
    safe = csv_files.escaped(text)
    assert csv_files.restored(safe) == text
    for part in re.split("[;\t\r\n]", safe):  # cells where semicolons or tabs divide a line
        assert not part.lstrip(' "').startswith(RUNS)
    plain = text.replace("\r", "").replace("\0", "")  # no label has one
    data = csv_files.table([plain, ""], [(plain, csv_files.digits(-1.5)), (plain, -3)]).decode()
    (head, _), one, other = csv.reader(io.StringIO(data, newline=""))
    assert {csv_files.restored(cell) for cell in (head, one[0], other[0])} == {plain}
    assert (one[1], other[1]) == ("-1.5", "-3")


def test_labels_that_are_formulas_pass_through_every_table(bare, capsys):
    evil = '=HYPERLINK("http://example.org";"x")'
    Path("test.toml").write_text(SHORT + f"[[algorithm]]\nname = 'psgd'\nlabel = '{evil}'\n")
    scenario = paceline.load("test.toml")
    paceline.simulate(scenario, seeds=1, out="one")
    assert f"\n\"'{evil[:5]}" in Path("one/curves.csv").read_text()
    assert evil in read.read("one").runs
    paceline.sweep(scenario, {"title": ["=1+1", "-2 x"]}, seeds=1, out="two")
    table = Path("two/sweep.csv").read_text()
    assert "\n'=1+1," in table
    assert "\n'-2 x," in table
    assert not any(line.startswith(("=", "+", "-", "@")) for line in table.splitlines())
    assert evil.replace('"', "&#34;") in paceline.report(["two"]).read_text()
