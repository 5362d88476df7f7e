"""The command line, end to end: its JSON contract, its files, its exit statuses."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import jsonschema
import numpy as np
import pytest

import paceline
import paceline.command_line
from paceline.simulator.results import store
from paceline.simulator.studies import learning
from paceline.simulator.studies.execution import Task
from tests import corpus
from tests.helpers.cases import beside, looped
from tests.helpers.waiting import PATIENCE, wait_until

ROOT = Path(paceline.__file__).parents[1]
SCENARIO = beside(__file__, "scenario.toml")
MORE = '[[algorithm]]\nname = "asgd"\n[[algorithm]]\nname = "adacomm"\ntau0 = 8\n'
KEYS = {
    "label", "name", "parameters", "engine", "seconds_per_step", "steps", "duration", "loss",
    "time_to_target", "scalability", "bytes_per_step", "cost", "breakdown", "curve",
    "failures", "network", "workers", "bottleneck",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.toml").write_text(SCENARIO)
    return tmp_path


def command(*arguments, **options):
    """Start `paceline` as a process of its own, in a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        **options,
    )


def run(capsys, *arguments):
    """Run a command line in this process; return its status, stdout and stderr."""
    status = paceline.command_line.run([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return status, output.out, output.err


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, float) else []


def test_simulate_keeps_the_json_contract(folder, capsys):
    status, out, err = run(capsys, "simulate", "test.toml", "--json", "--out", "there")
    assert status == 0
    assert all(line.startswith("paceline: ") for line in err.splitlines())
    document = json.loads(out)  # nothing but the document
    assert set(document) >= {"scenario", "engine", "algorithms"}
    assert document["engine"] == "batched"
    assert [row["label"] for row in document["algorithms"]] == ["ssgd", "local-sgd tau=10"]
    for row in document["algorithms"]:
        assert set(row) >= KEYS
        assert set(row["seconds_per_step"]) >= {"mean", "ci95", "p95"}
        assert set(row["loss"]) >= {"first", "last"}
        assert set(row["time_to_target"]) >= {"mean", "ci95", "reached"}
        assert set(row["breakdown"]) == {"compute", "wait", "communicate"}
        assert sum(row["breakdown"].values()) == pytest.approx(1)
        assert len({len(row["curve"][key]) for key in ("time", "loss", "step")}) == 1
        low, high = row["seconds_per_step"]["ci95"]
        assert low < row["seconds_per_step"]["mean"] < high
        assert row["time_to_target"]["reached"] == 3
        assert 0 < row["scalability"] <= 1
        assert row["cost"] is None  # no prices
        assert row["failures"] is row["network"] is None  # nothing crashes, and no lines
        assert {len(spent) for spent in row["workers"].values()} == {4}
        assert row["bottleneck"] not in err  # that is in the document
    assert document["algorithms"][1]["parameters"] == {"lr": 0.1, "tau": 10}
    assert document["pick"]["label"] == "local-sgd tau=10"
    assert store.read("there")["summary"] == document
    assert store.read("there")["scenario"]["table"]["cluster"]["workers"] == 4


@pytest.mark.usefixtures("figures")
def test_figures_in_other_formats(folder, capsys):
    few = ("simulate", "test.toml", "--seeds", 1, "--set", "run.steps=20")
    assert run(capsys, *few)[0] == 0
    assert run(capsys, *few, "--figure", "pdf, svg")[0] == 0
    actual = {path.name for path in Path("runs/test").glob("figure.*")}
    assert actual == {"figure.pdf", "figure.svg"}  # those of before would be another run's
    status, out, err = run(capsys, *few, "--figure", "gif")
    assert (status, out) == (2, "")
    assert "--figure gif: unknown format; choose from png, svg, pdf" in err


@pytest.mark.usefixtures("figures")
def test_simulate_writes_a_whole_run_directory(folder, capsys):
    status, out, _ = run(capsys, "simulate", "test.toml", "--explain")
    assert status == 0
    names = {path.name for path in Path("runs/test").iterdir()}
    expected = {"run.json", "curves.csv", "timeline.json", "figure.png", "figure.svg"}
    assert names == expected
    with open("runs/test/curves.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["label"], row["seed"]) for row in rows} == {
        (label, seed) for label in ("ssgd", "local-sgd tau=10") for seed in "012"
    }
    assert json.loads(Path("runs/test/timeline.json").read_text())["traceEvents"]
    document = json.loads(Path("runs/test/run.json").read_text())["summary"]
    for row in document["algorithms"]:
        assert row["bottleneck"] in " ".join(out.split())
    assert "runs/test" in out


def test_the_table_fits_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "test.toml").write_text(SCENARIO + MORE)
    status, out, _ = run(capsys, "simulate", "test.toml", "--set", "run.seeds=2")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    for label in ("ssgd", "local-sgd tau=10", "asgd", "adacomm tau0=8"):
        assert any(line.startswith(label) for line in out.splitlines())
    assert re.search(r"\d\S*–\S*\d", out)


@pytest.mark.usefixtures("figures")
def test_the_same_seed_gives_the_same_bytes(folder, capsys):
    for out in ("one", "two"):
        assert run(capsys, "simulate", "test.toml", "--out", out)[0] == 0
    for name in ("curves.csv", "run.json", "timeline.json", "figure.png", "figure.svg"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes(), name


def test_seeds_are_numbered_from_the_base_seed(folder):
    scenario = paceline.load("test.toml")
    later = paceline.simulate(scenario, seeds=2, seed=1)
    assert later.seeds == [1, 2]
    first = paceline.simulate(scenario, seeds=3)
    wanted = [run.curve["time"] for run in first.runs if run.seed > 0]
    assert [run.curve["time"] for run in later.runs] == wanted
    assert wanted[0] != wanted[1]


def test_processes_and_dask_give_the_same_numbers(folder, capsys):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        hows = {"one": (), "two": ("--jobs", 2), "dask": ("--dask", cluster.scheduler_address)}
        for out, how in hows.items():
            assert run(capsys, "simulate", "test.toml", "--out", out, *how)[0] == 0
    for name in ("curves.csv", "run.json", "timeline.json"):
        assert len({(folder / out / name).read_bytes() for out in hows}) == 1, name


def test_without_dask_the_remedy_is_said(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    status, _, err = run(capsys, "simulate", "test.toml", "--dask", "tcp://nowhere:1")
    assert status == 2
    assert 'pip install "paceline[cluster]"' in err


def test_another_algorithm_changes_no_other_numbers(folder, capsys):
    assert run(capsys, "simulate", "test.toml", "--out", "few")[0] == 0
    (folder / "test.toml").write_text(SCENARIO.replace("[[algorithm]]", MORE + "[[algorithm]]", 1))
    assert run(capsys, "simulate", "test.toml", "--out", "more")[0] == 0
    few = set(Path("few/curves.csv").read_text().splitlines())
    more = set(Path("more/curves.csv").read_text().splitlines())
    assert few < more


def parts(out):
    return [path for path in (out / store.PARTS).glob("*.npz") if path.name[0] != "."]


def wait_for_parts(process, out, count=2):
    wait_until(lambda: len(parts(out)) >= count, process)


LONG = ("simulate", "test.toml", "--set", "run.steps=3000", "--seeds", 6)


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_run_resumes_to_the_same_bytes(folder, capsys, jobs):
    assert run(capsys, *LONG, "--out", "whole")[0] == 0
    out = folder / "cut"
    process = command(*LONG, "--out", out, "--jobs", jobs)
    wait_for_parts(process, out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for_the_end(process)
    with pytest.raises(paceline.InputError, match="unfinished"):
        store.read(out)
    before = len(parts(out))
    status, _, err = run(capsys, *LONG, "--out", out)
    assert status == 0
    assert f"{before} of 12 runs were finished before" in err
    for name in ("curves.csv", "run.json", "timeline.json"):
        assert (out / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert not (out / store.PARTS).exists()


# CPython ends by the signal itself, 130 to a shell, where it hit a text under `exec`
INTERRUPTED = 130, -signal.SIGINT


def wait_for_the_end(process):
    """Wait until no process of the command's group is left."""

    def is_over():
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_over)


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_says_how_to_resume(folder, jobs):
    process = command(*LONG, "--seeds", 100, "--out", "cut", "--jobs", jobs)
    wait_for_parts(process, folder / "cut")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in INTERRUPTED
    assert out == ""
    (message,) = [line for line in err.splitlines() if "simulating: " not in line]
    assert "repeat the command to resume" in message
    wait_for_the_end(process)


def test_a_part_is_reused_only_for_the_same_task(folder):
    def key(overrides=(), algorithm=1, **changes):
        scenario = paceline.load("test.toml", overrides)
        task = {"seed": 0, "spans": 0, "engine": "virtual"} | changes
        return Task(scenario.algorithm[algorithm], **task).key(scenario)

    same = ["title=x", "run.seeds=9", "tune.ssgd.lr=[0.1]"]
    assert {key([override]) for override in same} == {key()}
    other = ["run.steps=201", "cluster.workers=5", "optimizer.lr=0.2", "algorithm.local-sgd.tau=9"]
    keys = [key([override]) for override in other]
    keys += [key(), key(seed=1), key(spans=5), key(algorithm=0)]
    assert len(set(keys)) == len(keys)


def test_a_part_depends_on_the_samples_it_drew_from(folder):
    (folder / "times.csv").write_text("0.1\n0.2\n")
    overrides = ['cluster.compute={ dist = "empirical", file = "times.csv" }']

    def key():
        scenario = paceline.load("test.toml", overrides)
        return Task(scenario.algorithm[0], 0, 0, "virtual").key(scenario)

    before = key()
    assert key() == before
    (folder / "times.csv").write_text("0.1\n0.3\n")
    assert key() != before


def test_nothing_said_shows_the_help(capsys):
    status, out, err = run(capsys)
    assert (status, out) == (2, "")
    assert "simulate" in err


def test_a_shipped_scenario_goes_by_its_name(folder, capsys):
    assert paceline.load("quickstart") == paceline.load(ROOT / "scenarios" / "quickstart.toml")
    status, _, err = run(capsys, "theory", "quickstrat")
    assert status == 2
    assert "did you mean `quickstart`?" in err
    status, _, err = run(capsys, "theory", "x" * 5000)
    assert (status, len(err.splitlines())) == (2, 1)


def test_the_unexpected_is_short_unless_debugging(folder, capsys, monkeypatch):
    def breaks(*arguments, **options):
        raise RuntimeError("something broke")

    monkeypatch.setattr("paceline.simulator.studies.simulate.simulate", breaks)
    status, out, err = run(capsys, "simulate", "test.toml")
    assert (status, out) == (1, "")
    assert err.startswith("paceline: error: RuntimeError: something broke")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("PACELINE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        paceline.command_line.run(["simulate", "test.toml"])


def test_a_closed_pipe_is_quiet(folder):
    process = command("schema")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() in (0, 1)


@pytest.mark.parametrize("closed", [">&-", pytest.param("2>&-", marks=pytest.mark.nightly)])
def test_a_stream_closed_from_the_start_is_no_failure(folder, closed):
    line = f'"{sys.executable}" -m paceline simulate test.toml --seeds 1 --figure svg {closed}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, check=True
    )
    assert "error" not in done.stderr
    assert store.read("runs/test")


def test_a_terminal_without_unicode_gets_a_table(folder):
    few = "--seeds", 1, "--figure", "svg"
    process = command("simulate", "test.toml", *few, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "ssgd" in out


def test_schema_accepts_the_scenario(folder, capsys):
    status, out, _ = run(capsys, "schema")
    assert status == 0
    schema = jsonschema.Draft202012Validator(json.loads(out))
    assert [*schema.iter_errors(tomllib.loads(SCENARIO + MORE))] == []


@looped("name", ["programs", "distributions", "objectives", "scenarios"])
def test_lists(capsys, name):
    status, out, _ = run(capsys, "list", name, "--json")
    assert status == 0
    rows = json.loads(out)
    more = {"recovers"} if name == "programs" else set()
    keys = {"name", "summary", "parameters", "source"} | more
    assert all(set(row) == keys for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(row["summary"] for row in rows)
    for parameter in (one for row in rows for one in row["parameters"].values()):
        assert set(parameter) >= {"default", "unit", "description"}
    status, out, _ = run(capsys, "list", name)
    assert status == 0
    assert all(row["name"] in out for row in rows)


def test_theory(folder, capsys):
    status, out, _ = run(capsys, "theory", "test.toml", "--json", "--out", "there")
    assert status == 0
    document = json.loads(out)
    assert set(document) >= {"sync_seconds_per_step", "periods", "tau_star", "crossings"}
    assert json.loads(Path("there/theory.json").read_text()) == document
    status, out, _ = run(capsys, "theory", "test.toml")
    assert status == 0
    assert "speed-up" in out
    assert f"A delay of {document['hide']['delay']} step" in out


@looped("command", ["theory", "simulate"])
def test_a_device_above_its_peak_is_noted_without_a_loss(command, folder, capsys):
    """6 x 1e9 x 8192 operations in 0.01 s; of times alone, whose tokens [cost] states."""
    Path("fast.toml").write_text(
        "[model]\nparameters = 1e9\n[objective]\nkind = 'none'\n[run]\nsteps = 4\n"
        "[cluster]\nworkers = 2\ncompute = '10 ms'\n"
        "[network]\nlatency = '1 ms'\nbandwidth = '1 GB/s'\n"
        "[cost]\nflops = '165 TFLOP/s'\ntokens = 8192\n[[algorithm]]\nname = 'ssgd'\n"
    )
    status, _, err = run(capsys, command, "fast.toml")
    assert status == 0
    assert "a device computes 4915 TFLOP/s, 3e+03 % of cost.flops" in " ".join(err.split())


def test_theory_s_table_needs_no_run_of_what_algorithms_cost_in_loss(folder, capsys, monkeypatch):
    monkeypatch.setattr(learning, "penalties", lambda scenario: pytest.fail("whole runs"))
    assert run(capsys, "theory", "test.toml")[0] == 0


def test_theory_says_when_no_delay_hides_an_average(folder, capsys):
    slow = ("theory", "test.toml", "--set", "network.bandwidth=1 Mbit/s")
    hide = json.loads(run(capsys, *slow, "--json")[1])["hide"]
    assert hide["delay"] is None
    out = " ".join(run(capsys, *slow)[1].split())
    assert "No delay hides" in out
    assert f"average every {hide['smallest_period']} steps" in out
    assert f"a delay of {hide['delay_at_smallest_period']} steps" in out
    instant = ("cluster.allow_zero=true", "cluster.compute=0 s")
    status, out, _ = run(capsys, "theory", "test.toml", *(x for s in instant for x in ("--set", s)))
    assert status == 0
    assert "computing takes no time" in out


def test_crossings_are_told_in_seconds_too(capsys):
    crossings = json.loads(run(capsys, "theory", "adacomm/figure3", "--json")[1])["crossings"]
    out = run(capsys, "theory", "adacomm/figure3")[1]
    late = [row["time"] for row in crossings if row["time"] >= 1000]
    assert late
    assert all(f"({time:.0f} s)" in out for time in late)


@pytest.mark.usefixtures("figures")
def test_theory_of_the_bound(folder, capsys):
    (folder / "test.toml").write_text(
        SCENARIO.replace(
            'kind = "quadratic"\ndimension = 10',
            'kind = "bound"\ninitial_gap = 1\nsmoothness = 1\ngradient_variance = 1',
        )
        + '[theory]\nperiods = [1, 10]\ndurations = ["10 s", "1000 s"]\n'
    )
    assert run(capsys, "simulate", "test.toml", "--seeds", "1", "--out", "both")[0] == 0
    status, out, _ = run(capsys, "theory", "test.toml", "--out", "both")
    assert status == 0
    assert {"run.json", "theory.json", "theory.png"} <= {
        path.name for path in Path("both").iterdir()
    }
    assert "best tau" in out
    assert "until" in out


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"paceline {paceline.__version__}\n")


def test_from_python_as_arrays_and_records(folder):
    result = paceline.simulate(paceline.load("test.toml", ["run.seeds=2"]))
    records = result.records()
    assert {record["label"] for record in records} == {"ssgd", "local-sgd tau=10"}
    assert len(records) == sum(len(run.curve["loss"]) for run in result.runs)
    assert records[0]["label"] == "ssgd"
    assert np.isnan(records[0]["accuracy"])
    assert [row["label"] for row in result.algorithms] == ["ssgd", "local-sgd tau=10"]
    json.dumps(result.json(), allow_nan=False)
    assert not Path("runs").exists()


async def mine(me, *, lr: float, pause: int = 1):
    """Average after every step."""
    x = me.start
    while True:
        x = x - lr * await me.mean(await me.gradient(x))
        me.mark(x)


def test_a_coroutine_is_an_algorithm(folder):
    more = "".join(f'[[algorithm]]\nname = "{name}"\nlr = 0.2\n' for name in ("mine", "sent"))
    (folder / "test.toml").write_text(SCENARIO + more)
    programs = {"mine": mine, "sent": paceline.Program("sent", mine, "nowhere")}
    result = paceline.simulate("test.toml", seeds=1, jobs=2, programs=programs)
    assert list(result.groups) == ["ssgd", "local-sgd tau=10", "mine lr=0.2", "sent lr=0.2"]
    loaded = paceline.load("test.toml", programs=programs)
    again = paceline.simulate(loaded, seeds=1)
    np.testing.assert_equal(again.records(), result.records())


def test_what_is_no_program_is_refused(folder):
    with pytest.raises(paceline.InputError, match=r"programs\['mine'\].*async def"):
        paceline.load("test.toml", programs={"mine": lambda me: None})


@pytest.mark.long
def test_a_script_without_a_guard_is_told_once(folder):
    (folder / "script.py").write_text(
        "import paceline\npaceline.simulate('test.toml', seeds=1, jobs=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "script.py"], env=environment, stderr=subprocess.PIPE, text=True
    )
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert err.count("Traceback") == 1
    last = err.splitlines()[-1]
    assert last.startswith("paceline.simulator.errors.RunError: ")
    assert 'if __name__ == "__main__":' in last


def test_progress_counts_every_run(folder):
    seen = []
    paceline.simulate(
        paceline.load("test.toml"), seeds=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(0, 4), (2, 4), (4, 4)]  # an algorithm's seeds are run together
    seen.clear()
    paceline.simulate(
        paceline.load("test.toml"), seeds=2, engine="virtual",
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(done, 4) for done in range(5)]


def test_without_a_terminal_progress_is_a_line_now_and_then(folder, monkeypatch, capsys):
    """A clock that goes on by 20 s whenever it is read: lines come every 40 s, and none at last."""
    clock = SimpleNamespace(monotonic=count(0, 20).__next__)
    monkeypatch.setattr(paceline.command_line, "time", clock)
    command = ["simulate", "test.toml", "--seeds", "3", "--engine", "virtual", "--jobs", "1"]
    assert paceline.command_line.run([*command, "--out", "said"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "simulating" in line]
    assert [line.partition(" runs")[0] for line in lines] == [
        f"paceline: simulating: {done} of 6" for done in (0, 2, 4)
    ]
    assert "about 1 min left" in lines[-1]
    assert paceline.command_line.run([*command, "--out", "silent", "--quiet"]) == 0
    assert "simulating" not in capsys.readouterr().err


def test_starting_is_cheap():
    """The package alone imports no other module of it; a command's help nothing heavy."""
    heavy = {"numpy", "scipy", "matplotlib", "pydantic", "rich", "torch", "sklearn", "pint"}
    code = f"""
import sys, paceline
print([name for name in sys.modules if name.partition('.')[0] == 'paceline'])
import paceline.command_line
print({heavy} & set(sys.modules))
paceline.command_line.run(['--help'])
print({heavy} & set(sys.modules))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    first, second, *_, last = process.stdout.splitlines()
    assert (first, second, last) == ("['paceline']", "set()", "set()")


def test_public_names_are_there():
    assert {*paceline.__all__} == {*paceline._MODULES, "__version__"}
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    assert dir(paceline) == sorted({*paceline.__all__} - {"__version__"})
    with pytest.raises(AttributeError, match="nonsense"):
        paceline.nonsense  # noqa: B018


def test_plug_ins_need_nothing_else():
    """A program with a codec of its own and a time for a parameter, by public names alone."""

    @paceline.piece
    class Signs(paceline.MessageCodec):
        def encode(self, vector, state, number):
            return (vector,), None, state

        def add(self, total, data, places):
            return total + data[0]

        def size(self, parameters, width, number, kept):
            return parameters / 8

    signs, nesterov = Signs(), paceline.Nesterov(0.5)

    async def mine(
        me,
        *,
        lr: paceline.Rate,
        momentum: paceline.TransformOf = nesterov,
        pause: Annotated[paceline.Seconds, paceline.doc("rest after a step", "s")] = 0.0,
        codec: paceline.CodecOf = signs,
    ):
        """A program of somebody else's."""
        channel, x = codec.open(me), me.start
        u = momentum.init(x)
        for k in count(1):
            direction, u = momentum.update(await channel.mean(await me.gradient(x)), u, x)
            x = x - lr(k) * direction
            me.work(pause)
            me.mark(x)

    programs = {"mine": paceline.Program("mine", mine, "")}
    changes = ['algorithm=[{ name = "mine", lr = 1, pause = "1 ms" }]', "run.steps=3"]
    scenario = paceline.load("quickstart", changes, programs=programs)
    result = paceline.simulate(scenario, seeds=1, programs=programs)
    assert result.algorithms[0]["steps"] == 3


@looped(
    ("out", "says"),
    [
        ("a" * 256, "cannot write here (File name too long)"),
        ("é" * 128, "cannot write here (File name too long)"),
        ("a/" * 2050, "cannot write here (File name too long)"),
        ("my.toml/below", "cannot write here"),
    ],
)
@looped("command", ["simulate", "theory", "sweep --vary run.seeds=1", "tune"])
def test_an_impossible_out_is_refused_before_anything_runs(
    tmp_path, monkeypatch, capsys, command, out, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(corpus.SCENARIO)
    assert paceline.command_line.run([*command.split(), "my.toml", "--out", out]) == 2
    output = capsys.readouterr().err
    assert says in output
    assert [*tmp_path.iterdir()] == [tmp_path / "my.toml"]


def test_the_environment_changes_no_output(tmp_path, monkeypatch, capsys):
    """Output is the same, and whole, whatever a variable says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(corpus.SCENARIO)
    _, usual, _ = run(capsys, "simulate", "my.toml", "--figure", "svg")
    strange = {
        "MPLBACKEND": "nope", "TMPDIR": "/dev/null/x", "MPLCONFIGDIR": "/dev/null/x",
    }  # fmt: skip
    process = command("simulate", "my.toml", "--figure", "svg", "--overwrite", env=strange)
    assert len(usual) > 500
    assert process.communicate(timeout=PATIENCE)[0] == usual


@pytest.mark.usefixtures("figures")
def test_numbers_are_kept_where_figures_fail(tmp_path, monkeypatch, capsys):
    """A figure that cannot be drawn costs no result: exit 2, one sentence, a whole directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(corpus.SCENARIO)

    def broken(*_, **__):
        raise OverflowError("too large")

    for module, command in (
        ("results.figures.curves.figures", "simulate my.toml --out s"),
        ("studies.sweep.drawing.files", "sweep my.toml --vary run.seeds=1,2 --jobs 1 --out w"),
    ):
        monkeypatch.setattr(f"paceline.simulator.{module}", broken)
        assert paceline.command_line.run(command.split()) == 2
        output = capsys.readouterr().err
        assert "the numbers are written, but the figures cannot be drawn" in output
        assert "OverflowError: too large" in output
    assert {"run.json", "curves.csv", "timeline.json"} <= {path.name for path in
                                                           Path("s").iterdir()}  # fmt: skip
    assert {"sweep.json", "sweep.csv"} <= {path.name for path in Path("w").iterdir()}
