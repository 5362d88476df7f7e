"""What `paceline emit` writes, and what it refuses."""

import ast
import importlib.util
import json
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.command_line import run
from paceline.deploy.emit.emit import (
    OPTIMIZERS,
    PROGRAMS,
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


def test_the_recipe_stays_and_is_checked():
    """No optimizer, rate or clipping of ours; what the prediction assumes is compared."""
    for target in ("accelerate", "torchft", "paddle", "flower"):
        code = "".join(emit(target, pick(LOCAL)).files.values())
        assert not re.search(r"(optim|optimizer)\.(SGD|AdamW|Momentum)\(", code)
        assert "clip" not in code.partition("import")[2]
    names = {}
    (code,) = emit("accelerate", pick(DILOCO | {"name": "local-sgd", "lr": 0.2})).files.values()
    exec(code.partition("from accelerate.local_sgd")[0] + code[code.index("SETTINGS") :], names)
    group = {"lr": 0.2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names["check"](SimpleNamespace(param_groups=[group]))
    with pytest.warns(UserWarning, match=r"weight_decay = 0\.1"):
        names["check"](SimpleNamespace(param_groups=[group | {"weight_decay": 0.1}]))
    table = pick(LOCAL).scenario.table | {"objective": {"kind": "none"}}
    world = parse({key: value for key, value in table.items() if key != "optimizer"})
    (code,) = emit("torchft", Pick(world, world.algorithm[0])).files.values()
    assert "SETTINGS = {}" in code


@looped("kind", OPTIMIZERS)
def test_torchs_optimizers_step_as_our_transforms(kind):
    import torch

    table = {"momentum": {"mu": 0.9}, "nesterov": {"mu": 0.8}}.get(kind, {})
    adamw = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.2}
    transform = TRANSFORMS.read({"kind": kind, **table, **(adamw if kind == "adamw" else {})})
    x, parameter = np.ones(3), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = eval(
        OPTIMIZERS[kind].format(of="[parameter]", lr=0.1, **asdict(transform)),
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
    targets = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    assert {"client", "server"} <= names


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
    assert "lr = 1.0" in code
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
