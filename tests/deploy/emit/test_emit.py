"""What `paceline emit` writes, and what it refuses."""

import ast
import importlib.util
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.command_line import run
from paceline.deploy.emit.emit import (
    OPTIMIZERS,
    PROGRAMS,
    RATES,
    REFUSED,
    TARGETS,
    Pick,
    emit,
    find,
    problems,
)
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.schedule import SCHEDULES
from paceline.simulator.programs.pieces.transform import TRANSFORMS
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import DIGITS, scenario

DILOCO = {"name": "diloco", "tau": 10}
STREAMING = {"name": "streaming-diloco", "tau": 20, "fragments": 2, "overlap": 1}
LOCAL = {"name": "local-sgd", "tau": 4}


def pick(table, **tables):
    world = scenario(table, workers=2, **{"objective": DIGITS, **tables})
    return Pick(world, world.algorithm[0])


@looped("target", TARGETS)
@looped("name", catalogue())
def test_each_program_is_run_with_all_its_parameters_or_refused_with_a_reason(target, name):
    supported, differs, program = PROGRAMS[target], TARGETS[target]["differs"], catalogue()[name]
    if name in supported:
        assert {*supported[name]} == {*program.parameters.model_fields}
        limited = {key for key, rule in supported[name].items() if rule != "any"}
        assert limited <= REFUSED.keys() | TARGETS[target]["refused"].keys()
    else:
        assert len(differs.get(name) or differs[program.family]) > 20


def test_means_without_all_workers_are_refused():
    with pytest.raises(InputError, match=r"recovery\.policy"):
        emit("accelerate", pick(LOCAL, recovery={"policy": "backup", "backup": 1}))
    with pytest.raises(InputError, match=r"cluster\.sampling"):
        emit("flower", pick(LOCAL, cluster={"sampling": {"clients": 1}}))


def test_workers_of_several_devices_run_only_where_a_replica_may_be_one():
    boxes = {"group": [{"name": "boxes", "workers": 2, "devices": 8}]}
    for target in ("accelerate", "paddle", "flower"):
        with pytest.raises(InputError, match=r"cluster\.group\.devices = 8"):
            emit(target, pick(LOCAL, cluster=boxes))
    emitted = emit("torchft", pick(DILOCO, cluster=boxes))
    assert "torchrun --nproc-per-node 8 " in "".join(emitted.files.values())
    assert "a worker is 8 devices" in emitted.notes[0]
    titan = DILOCO | {"inner": "adamw", "outer_lr": 0.7, "outer_momentum": 0.9}
    assert not [
        problem
        for problem in problems("torchtitan", pick(titan, cluster=boxes))
        if "dev" in problem
    ]


def test_accumulated_gradients_are_the_users_to_sum_up():
    emitted = emit("accelerate", pick(LOCAL, cluster={"accumulation": 2}))
    assert "2 micro-batches" in emitted.notes[0]
    assert "2 micro-batches" in "".join(emitted.files.values())
    (plain,) = emit("accelerate", pick(LOCAL)).files.values()
    assert "micro-batches" not in plain


@looped("outer", [0.5, {"kind": "nesterov", "mu": 0.5}, "adamw"])
def test_an_outer_optimizer_is_never_dropped(outer):
    (code,) = emit("torchft", pick(LOCAL | {"outer": outer})).files.values()
    assert "averaging = DiLoCo(" in code
    (plain,) = emit("torchft", pick(LOCAL)).files.values()
    assert "averaging = LocalSGD(" in plain


def test_a_rate_that_no_scenario_sets_is_said():
    table = pick(LOCAL).scenario.table | {"objective": {"kind": "none"}}
    world = parse({key: value for key, value in table.items() if key != "optimizer"})
    assert "by yours" in emit("torchft", Pick(world, world.algorithm[0])).notes[0]
    assert not emit("torchft", pick(LOCAL)).notes


positive = st.floats(1e-4, 1.0)
steps = st.lists(st.integers(1, 90), min_size=1, max_size=4, unique=True).map(sorted)


@given(
    st.one_of(
        st.builds(dict, schedule=st.just("constant"), value=positive),
        st.builds(dict, schedule=st.just("steps"), start=positive, factor=positive, at=steps),
        steps.flatmap(
            lambda at: st.builds(
                dict,
                schedule=st.just("piecewise"),
                values=st.lists(positive, min_size=len(at) + 1, max_size=len(at) + 1),
                at=st.just(at),
            )
        ),
        st.builds(
            dict, schedule=st.just("linear"), start=positive, end=positive, steps=st.integers(1, 99)
        ),
        st.builds(
            dict,
            schedule=st.just("warmup-cosine"),
            peak=st.just(1.0),
            start=positive,
            end=positive,
            warmup=st.integers(0, 9),
            steps=st.integers(10, 99),
        ),
    )
)
def test_the_emitted_rate_is_the_schedule(table):
    schedule = SCHEDULES.read(table)
    names = {}
    exec("from bisect import bisect_left\nfrom math import pi, sin", names)
    code = RATES[schedule.schedule].format(**asdict(schedule))
    assert [eval(code, names, {"step": k}) for k in range(1, 120)] == list(
        map(schedule, range(1, 120))
    )


@looped("kind", OPTIMIZERS["torch"])
def test_torchs_optimizers_step_as_our_transforms(kind):
    import torch

    table = {"momentum": {"mu": 0.9}, "nesterov": {"mu": 0.8}}.get(kind, {})
    adamw = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.2}
    transform = TRANSFORMS.read({"kind": kind, **table, **(adamw if kind == "adamw" else {})})
    x, parameter = np.ones(3), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = eval(
        OPTIMIZERS["torch"][kind].format(of="[parameter]", lr=0.1, **asdict(transform)),
        {"torch": torch, "parameter": parameter},
    )
    state = transform.init(x)
    for step in range(5):
        gradient = np.random.default_rng(step).normal(size=3)
        direction, state = transform.update(gradient, state, x)
        x = x - 0.1 * direction
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)
    assert kind in OPTIMIZERS["paddle"]


@looped("target", TARGETS)
def test_a_label_cannot_become_code(target):
    table = {"torchtitan": DILOCO | {"lr": 0.1}}.get(target, LOCAL)
    evil = pick(table | {"label": '"""; import os #'})
    evil.scenario._file = "a\nimport os\rimport os"  # as a file may be called
    plain, odd = emit(target, pick(table)), emit(target, evil)
    for name, text in plain.files.items():
        if name.endswith(".py"):
            assert ast.dump(ast.parse(odd.files[name])) == ast.dump(ast.parse(text))


def test_flowers_apps_have_assignments_of_their_own():
    """`flwr run` finds an app only by an assignment to that one name (flwr object_ref.py)."""
    body = ast.parse(emit("flower", pick(LOCAL)).files["flower_app.py"]).body
    names = [node.targets[0].id for node in body if isinstance(node, ast.Assign)
             and isinstance(node.targets[0], ast.Name)]  # fmt: skip
    assert {"client", "server"} <= set(names)


WORLD = beside(__file__, "world.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("emit")
    (made / "world.toml").write_text(WORLD)
    return made


def test_a_pick_is_that_of_a_scenario_or_a_run_directory(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert run(["simulate", "world.toml", "--out", "runs/sim", "--seeds", "2"]) == 0
    assert run(["tune", "world.toml", "--out", "runs/tune", "--seeds", "2", "--jobs", "1"]) == 0
    for place, document in (("runs/sim", "run.json"), ("runs/tune", "tune.json")):
        expected = json.loads(Path(place, document).read_text())
        label = (expected.get("summary") or expected)["pick"]["label"]
        actual = find(Path(place), None)
        assert actual.algorithm.label == label
        assert actual.scenario.cluster.workers == 2
        assert find(Path(place), "local-sgd tau=4" + " lr=0.5" * ("tune" in place)).algorithm
    capsys.readouterr()
    assert run(["emit", "accelerate", "runs/tune", "--algorithm", "local-sgd tau=8 lr=1.0"]) == 0
    code = capsys.readouterr().out
    assert "SWITCH, TAU = 0, 8" in code
    assert "lr=1.0" in code
    ast.parse(code)
    assert run(["emit", "accelerate", "runs/tune", "--algorithm", "local-sgd tau=9"]) == 2
    assert "was not tried" in capsys.readouterr().err


def test_the_command_never_overwrites_unasked(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    command = ["emit", "flower", "world.toml", "--algorithm", "local-sgd tau=4"]
    assert run([*command, "-o", "out"]) == 0
    assert {path.name for path in Path("out").iterdir()} == {"flower_app.py", "pyproject.toml"}
    assert run([*command, "-o", "out"]) == 0  # the very same is there
    Path("out/flower_app.py").unlink()
    Path("out/pyproject.toml").write_text("mine")
    assert run([*command, "-o", "out"]) == 2
    assert "pyproject.toml: has other contents" in capsys.readouterr().err
    assert not Path("out/flower_app.py").exists()  # all or nothing
    assert run([*command, "-o", "out", "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"]["pyproject.toml"] == Path("out/pyproject.toml").read_text()


CITED = {
    f"{path}:{line}"
    for target in TARGETS.values()
    for why in [*target["differs"].values(), *target["refused"].values()]
    for path, line in re.findall(r"((?:\w+/)+\w+\.py):(\d+)", why)
}


@pytest.mark.frameworks
@looped("cited", sorted(CITED))
def test_a_cited_line_is_there(cited):
    path, line = cited.split(":")
    package = path.partition("/")[0]
    assert package in ("accelerate", "flwr", "paddle", "torch", "torchft", "torchtitan")
    if (actual := importlib.util.find_spec(package)) is None:
        pytest.skip(f"{package} is not installed")
    text = Path(actual.submodule_search_locations[0]).parent.joinpath(path).read_text()
    assert text.splitlines()[int(line) - 1].strip()
