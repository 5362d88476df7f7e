"""`paceline validate` as a whole, also with a user's own model and program."""

import json
import time
import tomllib
from dataclasses import replace
from itertools import count
from typing import Annotated

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import paceline
from paceline.simulator.errors import InputError, RunError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.results import store
from paceline.simulator.results.figures import style
from paceline.validate.host.device import find_device
from paceline.validate.launch import launch
from paceline.validate.measurement import evidence, measure
from paceline.validate.torch_objective import models
from paceline.validate.training import records
from paceline.validate.training.events import EVENT, STEP
from paceline.validate.training.task import Job, TrainingTask
from paceline.validate.validation import require_runnable, validate
from tests.helpers.cases import beside, looped

WORLD = tomllib.loads(beside(__file__, "validate.toml"))


def normed(shape, classes):
    """A model with buffers."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(), torch.nn.Linear(16, classes),
    )  # fmt: skip


async def twice(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Two gradients per step, averaged over all workers."""
    x = me.start
    for _ in count():
        total = await me.gradient(x) + await me.gradient(x)
        x = x - lr * await me.mean(total) / 2
        me.mark(x)


def run(world, out, **options):
    return validate(parse(world, **options.pop("parsing", {})), out=out, device="cpu", **options)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Run a validation; return it and its folder."""
    out = tmp_path_factory.mktemp("out")
    with style.formats(["png"]):
        return run(WORLD, out), out


def test_two_run_directories_and_their_comparison(found):
    result, out = found
    for name in ("predicted", "measured"):
        document = store.read(out / name)
        assert [row["label"] for row in document["summary"]["algorithms"]] == [
            "ssgd", "local-sgd tau=5", "asgd", "ad-psgd"
        ]  # fmt: skip
        assert {path.name for path in (out / name).iterdir()} >= {
            "curves.csv", "timeline.json", "figure.png", "run.json"
        }  # fmt: skip
    assert store.read(out / "measured")["summary"]["engine"] == "real"
    written = json.loads((out / "comparison.json").read_text())
    assert written.items() >= result.comparison.json().items()
    assert (out / "comparison.png").stat().st_size > 10_000
    json.dumps(result.json(), allow_nan=False)
    assert result.machine["torch"] == torch.__version__


def test_measured_runs_are_like_the_predicted_ones(found):
    """Draws and bytes are equal, times about equal, and losses of synchronous algorithms equal."""
    result, _ = found
    for predicted, measured in zip(result.predicted.runs, result.measured.runs, strict=True):
        assert measured.steps == predicted.steps == 40
        assert measured.duration > 0.97 * predicted.duration  # nothing ends before it is due
        assert measured.curve["bytes"][-1] == pytest.approx(predicted.curve["bytes"][-1], rel=0.05)
        assert sum(measured.seconds.values()) == pytest.approx(measured.duration, rel=0.05)
        if measured.name in ("ssgd", "local-sgd"):
            assert measured.curve["loss"] == pytest.approx(predicted.curve["loss"], rel=1e-3)
            assert measured.staleness == predicted.staleness


def test_delays_are_the_simulators(found):
    """Worker 1's 17th step is drawn equally long in both."""
    result, _ = found
    assert result.measured.groups["asgd"][0].updates == 80
    assert result.evidence["ssgd"]["observing"] < 0.2


@pytest.mark.long
def test_a_users_own_model_and_program(tmp_path, monkeypatch):
    """Buffers of a model stay with its workers, and are averaged to evaluate."""
    monkeypatch.setitem(models.MODELS.added, "normed", normed)
    world = WORLD | {
        "objective": WORLD["objective"] | {"model": "normed"},
        "algorithm": [{"name": "twice"}, {"name": "asgd"}],
        "validation": {"compute": "real", "network": "real"},
    }
    programs = {"twice": twice}
    result = run(world, tmp_path, parsing={"programs": programs})
    workers, server = result.measured.runs
    assert workers.curve["step"][-1] == 40
    expected = result.predicted.runs[0].curve
    # in virtual time a point is evaluated with the buffers of a step or two later
    assert workers.curve["loss"] == pytest.approx(expected["loss"], rel=1e-2)
    assert workers.curve["accuracy"] == pytest.approx(expected["accuracy"], abs=0.03)
    assert server.curve["loss"][-1] < server.curve["loss"][0]


@pytest.mark.alone
def test_a_run_by_time_ends_for_all_at_once(tmp_path):
    """Workers that meet stop after the same average; the others at their own deadline."""
    world = WORLD | {
        "run": {"duration": "1 s"},
        "algorithm": [
            {"name": "ssgd"}, {"name": "dts", "delay": 3}, {"name": "hpsgd"}, {"name": "asgd"},
            {"name": "d-psgd"}, {"name": "psgd"}, {"name": "ad-psgd"},
        ],
    }  # fmt: skip
    result = run(world, tmp_path)
    for measured in result.measured.runs:
        assert 0.6 < measured.duration <= 1, measured.name
        assert measured.steps > 5


def account(**changes):
    """Make an account of a quiet run of 10 s on two cores."""
    machine = {"host": "a", "busy": 1.0, "elapsed": 10.0, "cores": 2}
    fields = {"duration": 10.0, "busy": 0.5, "collectives": 100, "machine": machine}
    return records.Account(**fields | changes)


@looped(
    ("change", "reason"),
    [
        ({}, None),
        ({"busy": 4.1, "machine": {"host": "a", "busy": 8.2, "elapsed": 10.0, "cores": 2}}, "own"),
        ({"machine": {"host": "a", "busy": 4.5, "elapsed": 10.0, "cores": 2}}, "others used 18%"),
        ({"step": 0.004}, "steps of 4"),
        ({"late": 6}, "took longer than on"),
    ],
)
def test_what_counts_as_evidence(change, reason):
    change = dict(change)
    step = change.pop("step", 0.03)
    done = np.array([(0, STEP, 1, 1.0, 1.0 + step, np.nan, np.nan, np.nan)], EVENT)
    results = [records.Record(np.empty(0), account(**change), 1, done)] * 2
    actual = evidence.evidence([measure.MeasuredRun(None, results)], parse(WORLD))
    assert actual["admitted"] == (reason is None)
    assert reason is None or reason in actual["reasons"][0]


@looped(("busy", "gpu", "disturbed"), [(1.5, 0.0, 0.0), (1.7, 0.0, 0.035), (1.7, 0.1, 0.1)])
def test_runs_beside_others_count_and_say_so(busy, gpu, disturbed):
    used = {"host": "a", "busy": busy, "elapsed": 10.0, "cores": 2}
    results = [records.Record(np.empty(0), account(machine=used), 1)] * 2
    actual = evidence.evidence([measure.MeasuredRun(None, results)], parse(WORLD), gpu)
    assert (actual["admitted"], actual["reasons"]) == (True, [])
    assert actual["disturbed"] == pytest.approx(disturbed)


def test_others_on_the_gpus_can_be_too_many():
    actual = evidence.evidence(
        [measure.MeasuredRun(None, [records.Record(np.empty(0), account(), 1)])], parse(WORLD), 0.2
    )
    assert actual["reasons"] == ["others used 20% of the GPUs (at most 15%)"]


def test_a_device_that_is_not_there():
    if not torch.cuda.is_available():
        with pytest.raises(paceline.InputError, match="no GPU"):
            find_device("cuda")
    with pytest.raises(paceline.InputError, match="choose one of"):
        find_device("tpu")


async def crossed(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Worker 0 starts its two averages in another order."""
    g = await me.gradient(me.start)
    if me.rank:
        await me.mean(g)
        await me.mean(me.start)
    else:
        await me.mean(me.start)
        await me.mean(g)


async def careless(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Changes what is being averaged."""
    g = await me.gradient(me.start) * 1.0
    mean = me.start_mean(g)
    g += 1.0
    await me.wait(mean)


@looped(
    ("program", "message"),
    [(crossed, "must start the same collectives"), (careless, "changed before its wait")],
)
def test_programs_that_corrupt_silently_are_found(program, message, tmp_path):
    """Checked in the processes: `simulate` would refuse the second one earlier."""
    world = WORLD | {"algorithm": [{"name": "bad"}], "validation": {"compute": "real"}}
    made = parse(world, programs={"bad": program})
    task = TrainingTask(made.algorithm[0], 0, tmp_path / "task")
    with pytest.raises(RunError, match=message):
        launch.run(Job(made, (task,), tmp_path, "cpu"))


async def stuck(me):
    """Worker 1 never returns from a gradient; its process neither dies nor is stopped."""
    x = me.start
    for step in count():
        g = await me.gradient(x)
        while step == 3 and me.rank == 1:
            time.sleep(0.01)
        x = await me.request(me.server, g)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("asgd", id="asgd: the server goes on to the end"),
        pytest.param("ssp", id="ssp: the server waits for it"),
    ],
)
def test_a_worker_that_hangs_ends_the_run(name, tmp_path):
    parameters = {"staleness": 1} if name == "ssp" else {}
    world = WORLD | {
        "algorithm": [{"name": "stuck", **parameters}],
        "validation": {"compute": "real", "timeout": "5 s"},
    }
    programs = {"stuck": replace(catalogue()[name], name="stuck", worker=stuck)}
    made = parse(world, programs=programs)
    task = TrainingTask(made.algorithm[0], 0, tmp_path / "task")
    with pytest.raises(RunError, match="during stuck"):
        launch.run(Job(made, (task,), tmp_path, "cpu"))


@looped("recovery", ["quorum", {"policy": "backup", "backup": 1}])
def test_an_algorithm_s_own_quorum_is_refused_by_its_name(recovery):
    algorithms = [{"name": "ssgd"}, {"name": "local-sgd", "tau": 5, "recovery": recovery}]
    require_runnable(parse(WORLD), launched=False)
    with pytest.raises(InputError) as error:
        require_runnable(parse(WORLD | {"algorithm": algorithms}), launched=False)
    (line,) = str(error.value).splitlines()
    assert "algorithm[1].recovery: " in line
