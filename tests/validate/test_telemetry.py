"""Telemetry of users' own jobs, and profilers' traces, as events."""

import gzip
import json
import math
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.command_line import run
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load
from paceline.validate.calibration.calibrate import calibrate
from paceline.validate.host import machine
from paceline.validate.measurement import kineto, telemetry
from paceline.validate.measurement.telemetry import Telemetry
from paceline.validate.training.events import ISSUE, STEP, WAIT
from tests.helpers.processes import loaded
from tests.helpers.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
KEY = "measured", 0


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""

    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(telemetry, "_now", clock)
    return clock


def train(folder, rank, clock, *, late=0.0, steps=3, **options):
    """Steps of 2 s and all-reduces of 1 s, from 100 s on; `late`: later by these seconds."""
    with Telemetry(folder, rank=rank, workers=2, **options) as recorder:
        for k in range(steps):
            clock.now = 100.0 + 4 * k
            with recorder.step():
                clock.now += 2.0 + late
            with recorder.collective(bytes=40):
                clock.now += 1.0
            recorder.loss(1 / (k + 1))


def test_what_is_recorded_comes_back(tmp_path, clock):
    train(tmp_path, 0, clock, title="mine", model_bytes=40)
    train(tmp_path, 1, clock, late=0.5)
    contents = telemetry.read(tmp_path)
    events = contents.events[KEY]
    assert contents.notes == []
    assert contents.head["title"] == "mine"
    assert contents.head["workers"] == 2
    assert contents.head["model_bytes"] == 40
    assert {"versions", "hardware", "date", "boot"} <= {*contents.head}
    assert events["node"].tolist() == 9 * [0] + 9 * [1]
    assert events["kind"].tolist() == 6 * [STEP, ISSUE, WAIT]
    assert events["step"].tolist() == 2 * [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert events["start"][:3].tolist() == [0, 2, 2]
    assert events["end"][:3].tolist() == [2, 2, 3]
    waits = events[events["kind"] == WAIT]
    assert waits["bytes"].tolist() == 6 * [40]
    assert waits["joined"].tolist() == 2 * [2.5, 6.5, 10.5]  # the later one's
    assert np.isnan(events["due"]).all()
    losses = contents.losses[KEY]
    assert losses[:, 1].tolist() == [1, 1, 2, 2, 3, 3]
    assert losses[:, 2].tolist() == [1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3]
    assert losses[0, 0] == 3


def test_asynchronous_collectives_are_issued_and_waited_for(tmp_path, clock):
    with Telemetry(tmp_path) as recorder:
        with recorder.issue():
            clock.now += 0.25
        with recorder.step():
            clock.now += 2
        with recorder.wait(bytes=8):
            clock.now += 1
    events = telemetry.read(tmp_path).events[KEY]
    assert events["kind"].tolist() == [ISSUE, STEP, WAIT]
    assert (events["end"] - events["start"]).tolist() == [0.25, 2, 1]
    assert events["joined"][2] == 0


def test_clocks_of_several_machines_are_not_compared(tmp_path, clock, monkeypatch):
    train(tmp_path, 0, clock)
    monkeypatch.setattr(machine, "boot_id", lambda: "another")
    train(tmp_path, 1, clock, late=0.5)
    contents = telemetry.read(tmp_path)
    events = contents.events[KEY]
    assert np.isnan(events["joined"]).all()
    assert [events["start"][events["node"] == rank].min() for rank in (0, 1)] == [0, 0]
    assert contents.notes == ["several machines: only durations within a rank are known"]


def test_a_killed_job_leaves_what_it_did(tmp_path):
    code = f"""
import os, signal
from paceline.validate.measurement import telemetry
telemetry.FLUSH = 0.0
told = telemetry.Telemetry({str(tmp_path)!r})
for _ in range(5):
    with told.step():
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=PATIENCE)
    assert len(telemetry.read(tmp_path).events[KEY]) == 5
    path = tmp_path / "rank-0.telemetry"
    path.write_bytes(path.read_bytes()[:-3])
    assert len(telemetry.read(tmp_path).events[KEY]) == 4


def test_ranks_that_got_less_far_are_joined_up_to_there(tmp_path, clock):
    train(tmp_path, 0, clock)
    train(tmp_path, 1, clock, steps=2)
    events = telemetry.read(tmp_path).events[KEY]
    waits = events[events["kind"] == WAIT]
    assert np.isnan(waits["joined"]).tolist() == [False, False, True, False, False]


def test_what_fails_is_no_event(tmp_path):
    with Telemetry(tmp_path) as recorder:
        with suppress(ValueError), recorder.step():
            raise ValueError
        with recorder.step():
            pass
    assert telemetry.read(tmp_path).events[KEY]["step"].tolist() == [2]


def test_the_clock_waits_for_the_device(tmp_path):
    calls = []
    with Telemetry(tmp_path, synchronize=lambda: calls.append(1)) as recorder, recorder.step():
        assert len(calls) == 1
    assert len(calls) == 2


def test_a_training_job_loads_nothing_heavy():
    heavy = "torch", "scipy", "matplotlib", "pydantic", "simpy", "pandas"
    assert loaded("import paceline.validate.measurement.telemetry", *heavy) == []


def test_what_is_no_telemetry_is_refused(tmp_path, clock):
    with pytest.raises(InputError, match="holds no telemetry"):
        telemetry.read(tmp_path)
    with pytest.raises(InputError, match="rank 2 of 2 workers; ranks are 0 to 1"):
        Telemetry(tmp_path, rank=2, workers=2)
    with Telemetry(tmp_path, workers=2), pytest.raises(InputError, match="nothing was recorded"):
        telemetry.read(tmp_path)
    train(tmp_path, 1, clock)
    assert telemetry.read(tmp_path).notes == []
    (tmp_path / "rank-0.telemetry").unlink()
    assert telemetry.read(tmp_path).notes == ["nothing of rank 0"]
    train(tmp_path, 0, clock, seed=1)
    with pytest.raises(InputError, match="belong to several runs; give each run a separate"):
        telemetry.read(tmp_path)
    (tmp_path / "rank-0.telemetry").write_bytes(b"what\n")
    with pytest.raises(InputError, match="cannot be read as telemetry"):
        telemetry.read(tmp_path)
    with pytest.raises(InputError, match="cannot write here"):
        Telemetry(tmp_path / "rank-0.telemetry")


# --- traces


def span(name, start, end, cat="cpu_op", **args):
    """Make a span from milliseconds."""
    return {
        "ph": "X", "cat": cat, "name": name, "ts": 1e9 + start * 1e3, "dur": (end - start) * 1e3,
        "args": args,
    }  # fmt: skip


def trace(path, *events, **more):
    path.write_text(
        json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events], **more})
    )
    return path


def lengths(events, kind):
    chosen = events[events["kind"] == kind]
    return ((chosen["end"] - chosen["start"]) * 1e3).tolist()


def test_of_kernels_what_is_exposed_counts(tmp_path):
    path = trace(
        tmp_path / "gpu.json",
        span("ProfilerStep#7", 0, 100, "user_annotation"),
        span("ProfilerStep#7", 3, 103, "gpu_user_annotation"),
        span("gemm", 0, 50, "kernel"),
        span(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 70, "kernel",
            **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16"},
        ),
        span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 65, 80, "kernel"),
        span("adam", 75, 95, "kernel"),
        span("nccl:all_reduce", 39, 41, "user_annotation"),  # on the CPU it is only started
        distributedInfo={"rank": 1, "world_size": 2},
        deviceProperties=[{"name": "a GPU"}],
    )  # fmt: skip
    contents = kineto.read(path)
    events = contents.events[KEY]
    assert lengths(events, WAIT) == pytest.approx([20, 5])
    assert lengths(events, STEP) == pytest.approx([75])
    assert lengths(events, ISSUE) == [0, 0]
    assert events["bytes"][2] == 2000
    assert math.isnan(events["bytes"][4])
    assert {*events["node"].tolist()} == {1}
    assert events["end"][-1] == pytest.approx(0.1)
    assert contents.head["workers"] == 2
    assert contents.head["hardware"] == {"gpu": "a GPU"}
    assert any("no trace of rank 0" in note for note in contents.notes)


def test_what_is_no_trace_is_refused(tmp_path):
    step = span("ProfilerStep#0", 0, 10, "user_annotation")
    reduce = span("gloo:all_reduce", 2, 3, "user_annotation")
    path = tmp_path / "t.json"
    for content, says in [
        (b"what", r"not a trace \(.*\); give what torch.profiler's export_chrome_trace writes"),
        (b"[1]", "no traceEvents"),
        (b"{}", "no traceEvents"),
        (gzip.compress(b"{}")[:-9], "not a"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=says):
            kineto.read(path)
    for foreign in ([1], [{"ph": "X", "name": 1, "ts": 0, "dur": 1}],
                    [{"ph": "X", "name": "a", "ts": "now", "dur": 1}]):  # fmt: skip
        path.write_text(json.dumps({"traceEvents": foreign}))
        with pytest.raises(InputError, match="do not come from a profiler"):
            kineto.read(path)
    for entries in ({"In msg nelems": 1e308, "dtype": "Float"},
                    {"Input Dims": [[10**200, 10**200]], "Input type": ["float"]}):  # fmt: skip
        large = span("gloo:all_reduce", 2, 3, "user_annotation", **entries)
        path.write_text(json.dumps({"traceEvents": [step, large]}))
        with pytest.raises(InputError, match="do not come from a profiler"):
            kineto.read(path)
    whole = json.dumps({"traceEvents": [step, reduce]})
    for cut in (whole[:-9].encode(), gzip.compress(whole.encode())[:-20]):
        path.write_bytes(cut)
        with pytest.raises(InputError, match="not a"):
            kineto.read(path)
    with pytest.raises(InputError, match="no steps in it; call the profiler's step"):
        kineto.read(trace(path, reduce))
    with pytest.raises(InputError, match="no collectives in its steps"):
        kineto.read(trace(path, step))
    trace(path, step, reduce, distributedInfo={"rank": 0})
    with pytest.raises(InputError, match="a second trace of rank 0"):
        kineto.read(path, path)
    with pytest.raises(InputError, match="cannot be read"):
        kineto.read(tmp_path / "none.json")
    with pytest.raises(InputError, match="no trace; give"):
        kineto.read()


PROFILED = """
import sys, time
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

store, rank, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = torch.nn.Linear(32, 8)
plan = schedule(wait=1, warmup=1, active=4, repeat=1)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan) as profiler:
    for _ in range(6):
        model(torch.ones(4, 32)).sum().backward()
        time.sleep(0.03 * rank)
        dist.all_reduce(model.weight.grad)
        dist.all_reduce(model.bias.grad, async_op=True).wait()
        profiler.step()
profiler.export_chrome_trace(path)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Record traces of two ranks with torch's own profiler, the second one slower."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("traces")
    paths = [folder / "rank-0.json", folder / "rank-1.json.gz"]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", PROFILED, str(folder / "store"), str(rank), str(path)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank, path in enumerate(paths)
    ]  # fmt: skip
    try:
        for job in jobs:
            output = job.communicate(timeout=PATIENCE)[1]
            assert job.returncode == 0, output.decode()
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return paths


@pytest.mark.long
def test_a_real_trace_is_read(traces):
    contents = kineto.read(*traces)
    events = contents.events[KEY]
    assert contents.head["workers"] == 2
    assert len(contents.notes) == 1
    for rank, path in enumerate(traces):
        raw = path.read_bytes()
        spans = [
            event["dur"] / 1e3
            for event in json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)[
                "traceEvents"
            ]
            if event["name"].startswith("ProfilerStep#")
        ]
        mine = events[events["node"] == rank]
        assert mine["kind"].tolist() == 4 * [STEP, ISSUE, WAIT, ISSUE, WAIT]
        assert mine["bytes"][mine["kind"] == WAIT].tolist() == 4 * [1024, 32]
        steps, waits = lengths(mine, STEP), np.reshape(lengths(mine, WAIT), (4, 2)).sum(axis=1)
        assert steps + waits == pytest.approx(spans)
        assert np.all(np.diff(mine["start"]) >= 0)
        if rank:
            assert min(steps) >= 30  # it sleeps
        else:
            assert np.median(waits) > 15  # it waits for the other


def test_a_profile_of_packed_traces_has_the_pace_of_the_job(tmp_path):
    """Of each collective's 30 ms, 20 are hidden."""
    paths = []
    for rank in range(2):
        events = []
        for k in range(30):
            t = 100.0 * k
            events += [
                span(f"ProfilerStep#{k}", t, t + 100, "user_annotation"),
                span("gemm", t, t + 80, "kernel"),
                span("ncclDevKernel_AllReduce", t + 60, t + 90, "kernel",
                     **{"In msg nelems": 10**6, "dtype": "Float"}),
                span("adam", t + 90, t + 100, "kernel"),
            ]  # fmt: skip
        info = {"distributedInfo": {"rank": rank, "world_size": 2}}
        plain = trace(tmp_path / f"rank-{rank}.json", *events, **info)
        paths.append(tmp_path / f"rank-{rank}.json.gz")
        paths[-1].write_bytes(gzip.compress(plain.read_bytes()))
    calibration = calibrate(paths)
    calibration.profile.write(tmp_path / "profile.toml")
    scenario = load(_extending(tmp_path))
    (run,) = run_seeds(scenario, scenario.algorithm[0], [0])
    assert run.duration / run.steps == pytest.approx(0.1, rel=1e-3)  # the pace of the job


def _extending(folder):
    path = folder / "scenario.toml"
    path.write_text(
        'extends = "profile.toml"\n[model]\nparameters = 1_000_000\n'
        '[objective]\nkind = "none"\n[cluster]\nworkers = 2\n[run]\nsteps = 10\n'
        '[[algorithm]]\nname = "ssgd"\n'
    )
    return path


@pytest.mark.long
def test_a_directory_of_traces_is_calibrated(traces, tmp_path, monkeypatch):
    """The how-to's command, with what torch's own profiler has written."""
    (tmp_path / "runs/my-trace").mkdir(parents=True)
    for item in traces:
        (tmp_path / "runs/my-trace" / item.name).write_bytes(item.read_bytes())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/my-trace/notes.json").write_text("[1]")  # not of a rank
    assert run(["calibrate", "runs/my-trace", "-o", "profile.toml"]) == 0
    assert calibrate(["runs/my-trace"]).profile.tables["model"] == {"parameters": 264}
    Path("my.toml").write_text(
        'extends = "profile.toml"\n[run]\nsteps = 20\n[[algorithm]]\nname = "ssgd"\n'
    )
    assert run(["simulate", "my.toml"]) == 0  # model and number of workers are the job's


def test_the_manual_is_true(tmp_path, monkeypatch):
    """The page's snippets run in order, in the environment of a single rank of torchrun."""
    pytest.importorskip("torch")
    with closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    world = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for key, value in world.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paceline, "Telemetry", Telemetry, raising=False)
    text = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    names = {}
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    contents = telemetry.read("runs/my-job")
    kinds = contents.events["measured", 0]["kind"]
    assert (kinds == STEP).sum() == len(contents.losses["measured", 0]) == 40
    (path,) = Path("runs/my-trace").iterdir()
    assert (kineto.read(path).events[KEY]["kind"] == STEP).sum() == 20
