"""Sweeps: what is varied, one table whoever computes it, and nothing computed twice."""

import contextlib
import csv
import json
import os
import random
import signal
import tomllib
from importlib.metadata import version
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.simulator.inputs import messages
from paceline.simulator.load.document import override
from paceline.simulator.load.load import load, parse
from paceline.simulator.reports import terminal
from paceline.simulator.results import store
from paceline.simulator.studies import executors
from paceline.simulator.studies import sweep as points
from paceline.simulator.studies import sweep as sweep_plot
from tests.command_line.test_command_line import (
    SCENARIO,
    command,
    run,
    wait_for_the_end,
)
from tests.helpers.cases import beside
from tests.helpers.waiting import wait_until

InputError = paceline.InputError
CHEAP = beside(__file__, "cheap.toml")
GRID = ("--vary", "algorithm.local-sgd.tau=1,2,4,8", "--vary", "network.latency=1 ms,20 ms")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.toml").write_text(SCENARIO)
    (tmp_path / "cheap.toml").write_text(CHEAP)
    return tmp_path


@pytest.fixture(scope="module")
def address():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


def table(out):
    with open(Path(out) / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


def near(number):
    return number and pytest.approx(number, rel=1e-9)


# --- what is varied

PRINTABLE = st.characters(exclude_categories=["C", "Z"]) | st.just(" ")
JSON = st.recursive(
    st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(PRINTABLE, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab-,=", max_size=3), inner)
    ),
    max_leaves=5,
)
BARE = st.from_regex(r"[a-z0-9][a-z0-9 '\"/()\[\]{}=-]{0,8}", fullmatch=True)


@given(st.lists(JSON.map(messages.toml) | BARE.map(str.strip), min_size=1, max_size=5))
def test_values_are_split_only_between_them(texts):
    assert points.split(",".join(texts)) == texts
    assert points.split(" , ".join(texts)) == texts


@given(JSON)
def test_values_from_python_are_those_of_a_command_line(value):
    text = points._axes({"key": [[value]]})["key"][0]
    assert points.value(text) == [value]


def test_keys_may_hold_an_equals_sign():
    text = 'algorithm."local-sgd tau=10".tau=5,{ schedule = "constant", value = 3 }'
    axes = points.axes([text])
    ((key, values),) = axes.items()
    scenario = {"algorithm": [{"label": "local-sgd tau=10"}]}
    assert values == ["5", '{ schedule = "constant", value = 3 }']
    assert override(scenario, f"{key}={values[0]}") == ("algorithm", 0, "tau")


def test_the_last_key_varies_fastest():
    axes = points.axes(["a.x=1,2", "b.y=u,v,w"])
    assert [tuple(item.values()) for item in points.grid(axes)] == [*product("12", "uvw")]


def test_a_list_is_not_parsed_at_each_of_its_commas():
    with pytest.raises(InputError, match="close its quotes and brackets"):
        points.axes(["run.steps=[" + "1," * 30_000])  # quadratic: minutes


def test_what_cannot_be_run_is_refused_before_anything_runs(folder, capsys):
    for arguments, reason in tomllib.loads(beside(__file__, "untried.toml"))["sweep"]:
        status, out, err = run(capsys, "sweep", "test.toml", *arguments)
        assert (status, out) == (2, ""), arguments
        assert reason in err
        assert len(err.splitlines()) == 1
        assert not Path("runs").exists()


def test_wrong_points_are_refused(folder):
    with pytest.raises(InputError, match="too small"):
        paceline.sweep("test.toml", {"cluster.workers": [4, 0, -1], "run.steps": [5, 6, 7]})
    with pytest.raises(InputError, match="1000000 points: at most 100000"):
        paceline.sweep("test.toml", {f"a.{letter}": range(100) for letter in "xyz"})


# --- the table


def test_a_row_says_what_simulate_says(folder):
    prices = ["cost.node_hour=2", "run.target_loss=0.1"]
    base = load("test.toml", prices)
    result = paceline.sweep(base, {"network.latency": ["1 ms", "20 ms"], "run.seeds": [1, 3]})
    assert [(row["network.latency"], row["run.seeds"]) for row in result.rows[::2]] == [
        *product(["1 ms", "20 ms"], [1, 3])
    ]
    for point, rows in zip(result.points, zip(*[iter(result.rows)] * 2, strict=True), strict=True):
        overrides = [f"{key}={value}" for key, value in point.items()]
        same = paceline.simulate(load("test.toml", [*prices, *overrides]))
        for row, summary in zip(rows, same.algorithms, strict=True):
            times = summary["time_to_target"]
            assert row["label"] == summary["label"]
            expected = {
                "seeds": len(same.seeds),
                "seconds_per_step": summary["seconds_per_step"]["mean"],
                "duration_s": summary["duration"],
                "time_to_target_s": times["mean"],
                "reached": times["reached"],
                "final_loss": summary["loss"]["last"],
                "final_accuracy": None,
                "bytes_per_step": summary["bytes_per_step"],
                "total_cost": summary["cost"],
                "scalability": summary["scalability"],
                **{f"{kind}_share": share for kind, share in summary["breakdown"].items()},
            }
            assert [row[key] for key in expected] == list(map(near, expected.values()))
            intervals = {
                "seconds_per_step": summary["seconds_per_step"],
                "time_to_target_s": times,
                "final_loss": summary["loss"],
                **{key: summary["used"][key] for key in ("cost", "days")},
            }
            assert len(same.seeds) == 1 or intervals["cost"]["interval"]
            for key, interval in intervals.items():
                if interval["estimate"] == "mean":
                    ends = interval["interval"] or (None, None)
                    assert [row[f"{key}_low"], row[f"{key}_high"]] == list(map(near, ends))


def test_the_document_is_strict_and_the_files_agree_with_it(folder, capsys):
    arguments = (*GRID, "--set", "run.target_loss=0.001", "--json", "--jobs", 1)
    status, out, _ = run(capsys, "sweep", "test.toml", *arguments)
    assert status == 0
    document = json.loads(out, parse_constant=pytest.fail)
    assert {"scenario", "vary", "points", "rows", "versions", "notes"} <= set(document)
    assert document["points"] == 8
    assert document["vary"] == {
        "algorithm.local-sgd.tau": [1, 2, 4, 8],
        "network.latency": ["1 ms", "20 ms"],
    }
    rows = table("runs/test-sweep")
    assert [*rows[0]] == [*document["rows"][0]]
    assert [*rows[0]][:3] == ["algorithm.local-sgd.tau", "network.latency", "label"]
    for text, row in zip(rows, document["rows"], strict=True):
        for key, value in row.items():
            assert text[key] == "" if value is None else type(value)(text[key]) == value
    assert None in [row["time_to_target_s"] for row in document["rows"]]  # not all seeds reached it
    written = json.loads(Path("runs/test-sweep/sweep.json").read_text())
    assert written["scenario"]["table"]["run"]["target_loss"] == 0.001
    assert written["points"][1] == {"algorithm.local-sgd.tau": 1, "network.latency": "20 ms"}
    assert (written["engine"], written["versions"]) == (document["engine"], store.versions())


def test_an_algorithm_is_called_the_same_everywhere(folder):
    result = paceline.sweep("test.toml", {"algorithm.local-sgd.tau": [1, 2]})
    assert [row["label"] for row in result.rows] == ["ssgd", "local-sgd"] * 2
    both = {"algorithm[0].name": ["ssgd", "psgd"]}
    result = paceline.sweep("test.toml", both)
    assert {row["label"] for row in result.rows} == {"ssgd", "psgd", "local-sgd tau=10"}
    twin = '[[algorithm]]\nname = "local-sgd"\nlabel = "twin"\ntau = 3\n'
    Path("test.toml").write_text(SCENARIO.replace("[[algorithm]]", twin + "[[algorithm]]", 1))
    result = paceline.sweep("test.toml", {"algorithm[0].label": ["a b", "a c"]})
    assert [row["label"] for row in result.rows[:3]] == [
        "local-sgd",
        "ssgd",
        "local-sgd tau=10",
    ]


def test_points_share_their_notes(folder):
    result = paceline.sweep("test.toml", {"optimizer.lr": [0.1, 1e3]}, seeds=1)
    assert [row["diverged"] for row in result.rows] == [0, 0, 1, 1]
    actual = [note for note in result.notes if "diverged" in note]
    assert [note.partition(": ")[2] for note in actual] == [
        "diverged with some seeds; try a smaller lr"
    ] * 2


def test_what_is_the_same_is_computed_once(folder, capsys):
    arguments = ("--vary", "algorithm.local-sgd.tau=1,2,2", "--vary", "title=a,b")
    assert run(capsys, "sweep", "test.toml", *arguments, "--jobs", 1, "--out", "out")[0] == 0
    assert len(table("out")) == 12
    assert len(lines("out")) == 2


# --- who computes it


@pytest.mark.usefixtures("figures")
def test_processes_and_dask_give_the_same_bytes(folder, capsys, address):
    for out, who in {
        "one": ("--jobs", 1),
        "two": ("--jobs", 2),
        "dask": ("--dask", address),
    }.items():
        assert run(capsys, "sweep", "cheap.toml", *GRID, "--out", out, *who)[0] == 0
    for name in ("sweep.csv", "sweep.json", "sweep.png", "sweep.svg"):
        actual = {Path(out, name).read_bytes() for out in ("one", "two", "dask")}
        assert len(actual) == 1, name


def test_other_versions_are_refused():
    with pytest.raises(InputError, match="install the same versions"):
        executors.checked({"numpy": "0"}, len, [])


def test_torchs_version_counts_where_some_point_has_gradients_of_torch(folder, monkeypatch):
    """It is demanded of every process, written down, and another one computes everything anew."""
    pytest.importorskip("torch")
    demanded = []
    monkeypatch.setattr(store, "demand_versions", demanded.append)
    goals = [{"kind": "none"}, {"kind": "torch", "model": "mlp", "data": "digits", "batch": 4}]

    def swept(count):
        scenario = load("cheap.toml", ["optimizer.lr=0.1"])
        return paceline.sweep(scenario, {"objective": goals[:count]}, seeds=1, out=f"out{count}")

    assert swept(1).versions == store.versions()
    first, again = swept(2), swept(2)
    assert first.versions["torch"] == version("torch")
    assert first.json()["versions"] == first.versions == demanded[-1]
    assert json.loads(Path("out2/sweep.json").read_text())["versions"] == first.versions
    assert (first.resumed, again.resumed) == (0, 2)
    versions = store.versions()
    monkeypatch.setattr(store, "versions", lambda *others: versions | dict.fromkeys(others, "0"))
    assert swept(2).resumed == 1  # what does without torch


# --- killed, interrupted, repeated


def lines(out):
    """What is kept, line by line; a line that is not whole is left out."""
    data = (Path(out) / ".sweep" / "points.jsonl").read_bytes()
    return [line for line in data.split(b"\n")[:-1] if line]


def whole(kept):
    """The keys of the whole lines among them."""
    results = []
    for line in kept:
        with contextlib.suppress(ValueError):
            results.append(json.loads(line)["key"])
    return results


def grid(count):
    """A sweep of 25 x `count` cheap points."""
    latencies = ",".join(f"{number} ms" for number in range(1, 26))
    taus = ",".join(map(str, range(1, count + 1)))
    vary = (f"--vary=network.latency={latencies}", f"--vary=algorithm.local-sgd.tau={taus}")
    return ("sweep", "cheap.toml", *vary, "--seeds", 1)


def killed(arguments, out, total, options):
    """Start a sweep with each of `options`, and kill it at a random moment."""
    wait = random.Random(4)
    for option in options:
        before = len(lines(out)) if Path(out).exists() else 0
        process = command(*arguments, "--out", out, *option)
        wait_for_lines(process, out, before + wait.randint(1, total // 5))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_for_the_end(process)
    return lines(out)


def wait_for_lines(process, out, count):
    journal = Path(out) / ".sweep" / "points.jsonl"
    wait_until(lambda: journal.exists() and len(lines(out)) >= count, process)


@pytest.mark.long
def test_a_client_of_dask_killed_three_times(folder, capsys, address):
    arguments, dask = grid(4), ("--dask", address)
    assert run(capsys, *arguments, "--jobs", 1, "--out", "whole")[0] == 0
    before = killed(arguments, "cut", 100, [dask] * 3)
    assert run(capsys, *arguments, "--out", "cut", *dask)[0] == 0
    after = lines("cut")
    assert after[: len(before)] == before
    assert len(whole(after)) == len(set(whole(after))) == 100
    assert Path("cut/sweep.csv").read_bytes() == Path("whole/sweep.csv").read_bytes()


def test_a_line_cut_short_is_computed_again(folder, capsys):
    arguments = ("sweep", "cheap.toml", "--vary", "network.collective=ring,tree,star", "--jobs", 1)
    assert run(capsys, *arguments, "--out", "out")[0] == 0
    expected, log = Path("out/sweep.csv").read_bytes(), Path("out/.sweep/points.jsonl")
    data = log.read_bytes()
    for cut in (1, 2, 50, len(data) - 1):
        log.write_bytes(data[:-cut])
        assert run(capsys, *arguments, "--out", "out")[0] == 0
        assert Path("out/sweep.csv").read_bytes() == expected
        assert len(set(whole(lines("out")))) == 3
    log.write_bytes(b"\0" * 40 + data + b"[]\n{}\n3")
    assert run(capsys, *arguments, "--out", "out")[0] == 0
    assert Path("out/sweep.csv").read_bytes() == expected


def test_more_points_cost_only_themselves_and_others_do_not_mix(folder, capsys):
    def sweep(*values, options=()):
        vary = f"network.collective={','.join(values)}"
        arguments = ("cheap.toml", "--out", "out", "--jobs", 1, "--vary", vary)
        status, _, err = run(capsys, "sweep", *arguments, *options)
        assert status == 0
        assert [row["network.collective"] for row in table("out")] == [*values]
        return [line for line in err.splitlines() if "before" in line]

    assert sweep("ring", "tree") == []
    notice = ["paceline: 4 runs were finished before"]
    assert sweep("ring", "tree") == notice
    assert sweep("star", "tree", "ring") == notice
    for other in [("--set", "cluster.workers=3"), ("--seed", 1), ("--seeds", 3)]:
        assert sweep("ring", "tree", options=(*other, "--overwrite")) == []
    assert sweep("ring", "tree", options=("--overwrite",)) == notice


def test_other_peoples_files_are_not_overwritten(folder, capsys):
    Path("out").mkdir()
    Path("out/sweep.csv").write_text("mine")
    status, _, err = run(capsys, "sweep", "cheap.toml", *GRID, "--out", "out")
    assert status == 2
    assert "sweep.csv would be overwritten" in err
    assert Path("out/sweep.csv").read_text() == "mine"


# --- what is shown


def test_the_table_fits_a_terminal_and_says_where_the_rest_is(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(capsys, "sweep", "test.toml", *GRID, "--jobs", 1)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert {"tau", "latency"} <= set(out.split())
    monkeypatch.setattr(terminal, "SWEEP_ROWS", 3)
    status, out, _ = run(capsys, "sweep", "test.toml", *GRID, "--jobs", 1)
    answer, *table = out.splitlines()
    assert answer.startswith("Least ")
    assert sum("local-sgd" in line for line in table) == 1
    assert "7 more rows are in runs/test-sweep/sweep.csv" in out


def chart(base, vary, **options):
    return paceline.sweep(base, vary, seeds=2, **options)._chart()


def test_a_figure_has_a_line_for_each_algorithm_or_second_value(folder):
    (panel,) = chart("test.toml", {"algorithm.local-sgd.tau": [1, 2, 4, 8]}).panels
    assert panel.x.log
    assert panel.x.title == "algorithm.local-sgd.tau"
    assert panel.y.title == "time to loss 0.3 (s)"
    assert [line.name for line in panel.lines] == ["ssgd", "local-sgd"]
    grid = {"network.latency": ["2 ms", "1 ms"], "cluster.workers": [2, 3, 4]}
    (panel,) = chart("test.toml", grid).panels
    assert panel.x.title == "network.latency (ms)"
    assert panel.lines[0].x.tolist() == [1, 2]
    assert [line.name for line in panel.lines[:3]] == ["ssgd, 2", "local-sgd tau=10, 2", "ssgd, 3"]


def test_without_a_key_with_numbers_or_with_three_keys_there_is_no_figure(folder):
    assert chart("cheap.toml", {"network.collective": ["ring", "tree"]}) is None
    assert chart("cheap.toml", {"run.steps": [4]}) is None
    three = {"run.steps": [4, 8], "cluster.workers": [2, 3], "network.latency": ["1 ms", "2 ms"]}
    assert chart("cheap.toml", three) is None
    both = chart("cheap.toml", {"network.collective": ["ring", "tree"], "run.steps": [4, 8]})
    assert both.panels[0].y.title.startswith("time per step")


def test_numbers_are_in_the_unit_of_the_first():
    for values, expected, unit in (
        ([1, 2.5], [1, 2.5], ""),
        (["20 ms", "1 s"], [20, 1000], "ms"),
        (["1e3 ms", "0.5 s"], [1000, 500], "ms"),
        (["1 Gbit/s", "100 Mbit/s"], [1, 0.1], "Gbit/s"),
    ):
        assert sweep_plot.numbers(values) == (pytest.approx(expected), unit)
    law = {"dist": "constant", "value": "1 s"}
    for values in (["20 ms", "1 Gbit/s"], [True, False], [law], ["ring"]):
        assert sweep_plot.numbers(values) is None


CURVE = tomllib.loads(beside(__file__, "searches.toml"))["curve"]


def test_its_pick_has_the_joint_draws_of_a_learning_curve():
    """The interval and the verdict of `simulate`, beyond what seeds alone would say."""
    table = CURVE | {
        "network": {"latency": "20 ms", "bandwidth": "100 Gbit/s"},
        "run": {"steps": 500, "seeds": 3, "target_loss": 4.0, "evaluate_every": 20},
        "algorithm": [{"name": "diloco", "tau": 32}, {"name": "diloco", "tau": 64}],
    }
    scenario = parse(table, file="curves")
    ours = paceline.simulate(scenario).pick
    (pick,) = paceline.sweep(scenario, {"run.seeds": [3]}).picks
    assert (pick["label"], pick["decided"]) == (ours["label"], ours["decided"])
    assert pick["interval"] == pytest.approx(ours["interval"], rel=1e-5)
    assert pick["basis"] == ours["basis"] == "logarithms and the model"


def test_simulate_sweep_and_tune_state_one_interval_of_one_number():
    """Over TCP: of a pace, days and a price, and of a learning curve's loss."""
    table = CURVE | {
        "network": {"latency": "20 ms", "bandwidth": "1 Gbit/s", "transport": "tcp"},
        "run": {"steps": 320, "seeds": 2},
        "cost": {"node_hour": 2.0, "egress_per_gb": 0.01},
        "algorithm": [{"name": "diloco", "tau": 32}],
        "tune": {"diloco": {"tau": [32]}},
    }
    scenario = parse(table, file="tcp")
    (ours,) = paceline.simulate(scenario).algorithms
    (row,) = paceline.sweep(scenario, {"run.seeds": [2]}).records()
    ranking = paceline.tune(scenario, objective="loss-at-tokens").json()["ranking"]
    best = next(row for row in ranking if row["name"] == "diloco")
    for key, name in (("seconds_per_step", "seconds_per_step"), ("loss", "final_loss")):
        within = [row[f"{name}_low"], row[f"{name}_high"]]
        assert within == pytest.approx(ours["interval90"][key])
    assert best["interval"] == pytest.approx(ours["interval90"]["loss"], rel=1e-4)
    for key in ("days", "cost"):
        within, interval = [row[f"{key}_low"], row[f"{key}_high"]], ours["used"][key]["interval90"]
        assert within == pytest.approx(interval)
        assert best["used"][key]["interval"] == pytest.approx(interval, rel=1e-4)


@pytest.mark.parametrize("taus", [(2,), (2, 4)])
def test_none_some_or_all_seeds_reach_the_target(taus):
    """Points at which so many do, alone and beside each other, have a verdict and a table."""
    table = CURVE | {
        "cluster": {"workers": 4, "compute": {"dist": "lognormal", "mean": "1 s", "sd": "2 s"}},
        "network": {"latency": "20 ms", "bandwidth": "100 Gbit/s"},
        "run": {"duration": "100 s", "seeds": 2, "target_loss": 6.0, "evaluate_every": 2},
        "algorithm": [{"name": "diloco", "tau": tau} for tau in taus],
    }
    scenario = parse(table, file="seldom")
    reached = {"40 s": 0, "70 s": 1, "100 s": 2}
    for tried in [["70 s"], ["40 s", "70 s"], [*reached]]:
        result = paceline.sweep(scenario, {"run.duration": tried})
        first = [row["reached"] for row in result.rows if row["label"] == "diloco tau=2"]
        assert first == [reached[item] for item in tried]
        assert {pick["label"] for pick in result.picks} <= {row["label"] for row in result.rows}
        assert terminal.sweep(result).row_count == len(result.rows)
        if len(taus) == 1:
            assert [pick["decided"] for pick in result.picks] == [item != 1 for item in first]
