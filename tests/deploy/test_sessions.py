"""A session alone in its process: which optimizers and models it takes, and what it leaves."""

import copy
import io
import json
import math
import pickle
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Muon, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR

import paceline
from paceline.deploy import plan as plans
from paceline.simulator.errors import InputError, ProgramError, RunError
from paceline.simulator.programs import catalogue
from paceline.validate.training.transport import DeviceGroup
from tests.deploy.loops import ALL, table
from tests.helpers.cases import looped


class Net(nn.Module):
    """A net with a frozen, a tied, a half-used and a normalising part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.tied, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(6, 1)
        self.double()

    def forward(self, x):
        return self.last(self.norm(self.tied(self.frozen(self.first(x)).relu())))


def groups(net):
    """Two groups of parameters with rates of their own."""
    last = [*net.last.parameters()]
    rest = [
        parameter
        for parameter in net.parameters()
        if parameter.requires_grad and len(parameter) != 1
    ]
    return [{"params": rest}, {"params": last, "lr": 0.003, "weight_decay": 0.0}]


def train(step, net, optimizer, steps, clip=None, accumulate=1, after=lambda: None):
    """Train on numbers that depend on the step alone."""
    for k in steps:
        optimizer.zero_grad()
        for part in range(accumulate):
            draw = torch.Generator().manual_seed(100 * k + part)
            loss = net(torch.randn(8, 6, generator=draw, dtype=torch.float64)).square().mean()
            (loss / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        step(loss)
        after()


def state(net):
    return [parameter.clone() for parameter in (*net.parameters(), *net.buffers())]


def equal(one, other):
    return all(torch.equal(*pair) for pair in zip(state(one), state(other), strict=True))


MAKERS = {
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
    "adam, amsgrad": partial(Adam, lr=0.01, amsgrad=True),
    "rmsprop": partial(RMSprop, lr=0.01),
    "nesterov": partial(SGD, lr=0.01, momentum=0.9, nesterov=True),
}


@looped("plan", [
    {"name": "ssgd"},
    {"name": "post-local-sgd", "switch_step": 3, "tau": 1},
    {"name": "post-local-sgd", "switch_step": 2, "tau": 5},
    {"name": "dts", "inner": "adamw", "delay": 0},
    {"name": "local-sgd", "tau": 1},
])  # fmt: skip
@looped("kind", MAKERS)
def test_alone_it_is_the_users_own_loop(plan, kind):
    """With groups, frozen and tied parameters, buffers, clipping, accumulation and a schedule."""
    if plan["name"] == "local-sgd" and kind == "nesterov":
        pytest.skip("it clears the momentum of SGD at the end of each round")
    nets, made = [Net(), Net()], []
    for net in nets:
        optimizer = MAKERS[kind](groups(net))
        schedule = CosineAnnealingLR(optimizer, 20)
        made.append((optimizer, schedule))
    (ours, own_schedule), (theirs, schedule) = made
    with paceline.deploy(nets[0], ours, plan) as session:
        args = {"steps": range(12), "clip": 0.1, "accumulate": 2}
        train(session.step, nets[0], ours, after=own_schedule.step, **args)
    train(lambda loss: theirs.step(), nets[1], theirs, after=schedule.step, **args)
    exact = plan["name"] in ("ssgd", "post-local-sgd", "local-sgd")
    for one, other in zip(state(nets[0]), state(nets[1]), strict=True):
        assert torch.equal(one, other) if exact else torch.allclose(one, other, atol=1e-9)


@looped("plan", [{"name": "ssgd"}, {"name": "local-sgd", "tau": 1}])
def test_several_optimizers_of_one_model_step_together(plan):
    """Muon for matrices alone, AdamW for the rest, as in their users' own loop."""
    nets, made = [Net(), Net()], []
    for net in nets:
        matrices = [parameter for parameter in parameters(net) if parameter.ndim == 2]
        rest = [parameter for parameter in parameters(net) if parameter.ndim != 2]
        made.append([Muon(matrices, lr=0.02), AdamW(rest, lr=0.01)])
    zero = SimpleNamespace(zero_grad=lambda: [optimizer.zero_grad() for optimizer in made[0]])
    with paceline.deploy(nets[0], made[0], plan) as session:
        train(session.step, nets[0], zero, range(6))
    zero = SimpleNamespace(zero_grad=lambda: [optimizer.zero_grad() for optimizer in made[1]])
    train(lambda loss: [optimizer.step() for optimizer in made[1]], nets[1], zero, range(6))
    assert equal(*nets)
    assert not equal(nets[0], Net())
    with pytest.raises(InputError, match="SeveralOptimizers cannot run dts"):
        paceline.deploy(nets[0], made[0], "dts", delay=2)


@looped("name", ["ssgd", "ssgd-bucketed", "local-sgd", "bmuf", "diloco"])
def test_a_mean_that_fails_leaves_the_parameters_that_steps_ended_at(name, monkeypatch):
    """As others' sums are part of what travels when a process is lost."""

    class Broken:
        def __init__(self, buffer, after=None):
            buffer().fill_(math.nan)

        def wait(self):
            raise RuntimeError("Connection closed by peer")

    nets, tau = [Net(), Net()], {} if name.startswith("ssgd") else {"tau": 3}
    more = {"overlap": False} if name == "ssgd-bucketed" else tau
    first, second = (SGD(net.parameters(), 0.1) for net in nets)
    session = paceline.deploy(nets[0], first, {"name": name, **more})
    train(session.step, nets[0], first, range(5))
    monkeypatch.setattr(DeviceGroup, "total", Broken)
    with pytest.raises(RunError, match="another process has ended"):
        train(session.step, nets[0], first, range(5, 6))
    for parameter in nets[0].parameters():
        assert parameter.isfinite().all()
    if name in {"bmuf", "diloco"}:
        return  # that do not go the way of plain SGD
    train(lambda loss: second.step(), nets[1], second, range(6 if tau else 5))
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


def test_a_closed_session_says_so():
    net = Net()
    session = paceline.deploy(net, SGD(parameters(net), 0.1), "ssgd")
    assert equal(pickle.loads(pickle.dumps(copy.deepcopy(net))), net)
    session.close()
    session.close()
    with pytest.raises(ProgramError, match="the session is closed"):
        session.step()


def session_of_one_layer(plan="local-sgd", **parameters):
    net = nn.Linear(4, 4)
    return net, paceline.deploy(net, SGD(net.parameters(), 0.1), plan, **parameters)


@looped(("model", "optimizer", "plan", "message"), [
    (nn.Linear(4, 4), None, "ssgd", "optimizer: NoneType is not a torch optimizer"),
    (None, SGD([torch.zeros(1)], 0.1), "ssgd", "model: NoneType is not a torch.nn.Module"),
    (nn.Linear(4, 4), None, None, "plan: NoneType; give a run folder"),
])  # fmt: skip
def test_what_is_of_another_kind_is_refused(model, optimizer, plan, message):
    if plan is None:
        optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(InputError, match=re.escape(message)):
        paceline.deploy(model, optimizer, plan)


@looped("plan", [{"name": "ssgd"}, {"name": "local-sgd", "tau": 2}])
def test_a_step_needs_gradients(plan):
    net, session = session_of_one_layer(plan)
    before = net.weight.detach().clone()
    with session, pytest.raises(ProgramError, match=r"call loss\.backward"):
        session.step(0.0)
    assert torch.equal(net.weight, before)


@looped("wrong", [
    lambda state: {key: value for key, value in state.items() if key != "loop"},
    lambda state: {key: value for key, value in state.items() if key != "x"},
    lambda state: state | {"phase": [1]},
    lambda state: state | {"x": None},
    lambda state: state | {"x": state["x"].double()},
    lambda state: state | {"generators": 7},
    lambda state: state | {"settings": "tau"},
    lambda state: state | {"clock": "noon"},
    lambda state: state | {"workers": 3},
    lambda state: None,
])  # fmt: skip
def test_a_broken_state_is_refused(wrong):
    net, session = session_of_one_layer(tau=2)
    net(torch.ones(1, 4)).sum().backward()
    session.step(0.0)
    with session:
        state = wrong(session.state_dict())
    _, other = session_of_one_layer(tau=2)
    with other, pytest.raises(InputError, match=r"^state: "):
        other.load_state_dict(state)


def test_exact_compensation_has_the_users_rate_momentum_and_weight_decay():
    nets = [Net(), Net()]
    ours, theirs = (
        SGD([p for p in net.parameters() if p.requires_grad], 0.05, 0.9, weight_decay=0.01)
        for net in nets
    )
    schedules = [CosineAnnealingLR(optimizer, 20) for optimizer in (ours, theirs)]
    with paceline.deploy(nets[0], ours, "dts", delay=3, period=2) as session:
        train(session.step, nets[0], ours, range(12), after=schedules[0].step)
    train(lambda loss: theirs.step(), nets[1], theirs, range(12), after=schedules[1].step)
    for one, other in zip(state(nets[0]), state(nets[1]), strict=True):
        assert torch.allclose(one, other, atol=1e-9)


def parameters(net):
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


@looped("label", ALL)
def test_it_goes_on_from_its_state(label):
    """Thrown back in the same session, from a file that loads without pickles."""
    make = partial(SGD, lr=0.1) if ALL[label][1] != "adamw" else partial(AdamW, lr=0.01)
    net = Net()
    optimizer = make(parameters(net))
    with paceline.deploy(net, optimizer, table(label)) as session:
        train(session.step, net, optimizer, range(7))
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (net, optimizer, session)], file)
        train(session.step, net, optimizer, range(7, 20))
        whole = state(net)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        for owner, part in zip((net, optimizer, session), loaded, strict=True):
            owner.load_state_dict(part)
        train(session.step, net, optimizer, range(7, 20))
        assert all(torch.equal(*pair) for pair in zip(whole, state(net), strict=True))


SERVED = "has a server"
SAID = {
    "ad-psgd": "send messages to each other",
    "d-psgd": "send messages to each other",
    "d2": "send messages to each other",
    "psgd": "never meet",
    "ssgd-bucketed": "overlap = false",
}


def test_every_program_is_attached_or_says_why_not():
    refused = set()
    for name, program in catalogue().items():
        required = {
            key: 4
            for key, field in program.parameters.model_fields.items()
            if field.is_required() and key != "lr"
        }
        net = Net()
        optimizer = SGD(parameters(net), 0.1)
        if plans.refusal(program, {}):
            refused.add(name)
            text = f"plan: {name} cannot be attached to a training loop: .*{SAID.get(name, SERVED)}"
            with pytest.raises(InputError, match=text):
                paceline.deploy(net, optimizer, name, **required)
        else:
            paceline.deploy(net, optimizer, name, **required).close()
    assert {*catalogue()} - refused == {label.split()[0] for label in ALL} - {"ssgd-bucketed"}


def test_the_manual_says_which_optimizers_keep_a_programs_meaning():
    page = (Path(__file__).parents[2] / "docs/how-to/deploy.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| (any|SGD|refused)", page, re.M)
    kinds = {name: kind for names, kind in rows for name in re.findall(r"`([a-z0-9-]+)`", names)}
    with_inner = next(kind for names, kind in rows if "`inner`" in names)
    assert with_inner == "any"
    for label in ALL:
        name, plan = label.split()[0], plans.read(table(label), {}, 2, 1000)
        if "dgc" not in label and "inner" not in label:
            shown = next(
                kind for names, kind in rows if f"`{name}`" in names and "inner" not in names
            )
            assert (shown == "any") == (not plan.sgd), name
    assert kinds["psgd"] == kinds["ad-psgd"] == "refused"


@looped(("plan", "optimizer", "message"), [
    ({"name": "dts", "delay": 2}, partial(AdamW, lr=0.1), "AdamW cannot run dts"),
    ({"name": "dts", "delay": 2}, partial(AdamW, lr=0.1), "or a program, codec or inner that"),
    ({"name": "hpsgd"}, partial(SGD, lr=0.1, momentum=0.9), "no place for momentum 0.9"),
    ({"name": "easgd", "tau": 2}, partial(AdamW, lr=0.1), "elastic pull"),
    (
        {"name": "ssgd", "codec": {"kind": "dgc", "ratio": 0.1}},
        partial(AdamW, lr=0.1),
        "momentum of SGD; use torch.optim.SGD, or a program, codec or inner that",
    ),
    ({"name": "ssgd"}, LBFGS, "LBFGS computes several gradients per step"),
    ({"name": "local-sgd"}, partial(SGD, lr=0.1), "tau"),
    ({"name": "local-sgd", "tau": 0}, partial(SGD, lr=0.1), "plan: algorithm[0].tau = 0"),
    ({"name": "lokal-sgd", "tau": 2}, partial(SGD, lr=0.1), "local-sgd"),
    ("runs/none", partial(SGD, lr=0.1), "runs/none"),
])  # fmt: skip
def test_what_would_change_a_programs_meaning_is_refused(plan, optimizer, message):
    net = Net()
    with pytest.raises(InputError) as caught:
        paceline.deploy(net, optimizer(parameters(net)), plan)
    assert message in str(caught.value)


class FullyShardedDataParallel(nn.Module):
    """A model that looks like torch's sharded one, which needs a process group."""


def test_models_that_are_no_whole_vector_are_refused():
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(InputError, match="one dtype and one device"):
        paceline.deploy(mixed, SGD(mixed.parameters(), 0.1), "ssgd")
    wrapped = FullyShardedDataParallel()
    wrapped.module = Net()
    with pytest.raises(InputError, match="FSDP"):
        paceline.deploy(wrapped, SGD(parameters(wrapped), 0.1), "ssgd")
    with pytest.raises(InputError, match="parameters outside the model"):
        paceline.deploy(Net(), SGD(Net().first.parameters(), 0.1), "ssgd")


def test_a_pick_of_a_folder_is_deployed(tmp_path, caplog):
    from tests.helpers.worlds import scenario

    made = {"label": "slow", "name": "ssgd"}, {"label": "quick", "name": "local-sgd", "tau": 7}
    result = paceline.simulate(scenario(*made, network={"latency": "1 s"}), out=tmp_path / "run")
    assert result.pick["label"] == "quick"
    net = Net()
    with paceline.deploy(net, SGD(parameters(net), 0.1), tmp_path / "run") as session:
        assert session.plan.program.name == "local-sgd"
        assert session.plan.parameters["tau"](1) == 7
    assert f"predicts {result.scenario.cluster.workers} workers, but there are 1 " in caplog.text
    document = json.loads((tmp_path / "run/run.json").read_text())
    for wrong in ({}, {"pick": 7}, {"algorithms": None, "pick": {"label": "quick"}}):
        changed = json.dumps(document | {"summary": wrong})
        (tmp_path / "run/run.json").write_text(changed)
        with pytest.raises(InputError, match="not an unchanged run folder"):
            paceline.deploy(net, SGD(parameters(net), 0.1), tmp_path / "run")


def test_a_changed_period_holds_for_the_phase_under_way():
    net = Net()
    optimizer = SGD(parameters(net), 0.01)
    with paceline.deploy(net, optimizer, "local-sgd", tau=4) as session:
        train(session.step, net, optimizer, range(2))
        session.change(tau=2)
        train(session.step, net, optimizer, range(2, 8))
        sent = [record.step for record in session.telemetry if record.bytes]
        assert sent == [3, 5, 7]
        session.load_state_dict(session.state_dict())
        train(session.step, net, optimizer, range(8, 12))
        assert [record.step for record in session.telemetry if record.bytes] == [3, 5, 7, 9, 11]
        unknown = [record.step for record in session.telemetry if math.isnan(record.computing)]
        assert unknown == [1, 9]
        assert session.share([3.0]) == [[3.0]]
        with session.averaged():
            inside = state(net)
        assert all(torch.equal(*pair) for pair in zip(inside, state(net), strict=True))


def test_a_scaler_skips_a_step_whose_gradients_overflow():
    net = Net()
    optimizer = AdamW(parameters(net), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(net)
    with paceline.deploy(net, optimizer, "local-sgd", tau=2) as session:
        for value in (float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(net(torch.ones(4, 6).double()).mean() * value).backward()
            session.step(scaler=scaler)
            scaler.update()
            assert torch.equal(net.last.weight, before.last.weight) == (value != 1.0)
        assert scaler.get_scale() == 2.0


def scaled(plan, scale=4.0, unscale=False):
    """Train three steps with a GradScaler that has this scale; 0: without."""
    torch.manual_seed(1)
    net = nn.Linear(6, 2)
    optimizer = SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=bool(scale))
    with paceline.deploy(net, optimizer, plan) as session:
        for k in range(3):
            optimizer.zero_grad()
            scaler.scale(net(torch.full((4, 6), k + 1.0)).square().mean()).backward()
            if unscale:
                scaler.unscale_(optimizer)
            session.step(scaler=scaler)
            scaler.update()
    return net.weight.detach()


CODED = {"codec": {"kind": "top-k", "ratio": 0.5}}
PROXIMAL = {"name": "fedavg", "tau": 3, "mu": 5.0}


def test_a_scaler_is_refused_where_an_overflow_would_reach_others():
    for plan in ({"name": "local-sgd", "tau": 2}, {"name": "local-sgd", "tau": 2, **CODED},
                 PROXIMAL):  # fmt: skip
        plain = scaled(plan, 0.0)
        assert torch.allclose(scaled(plan), plain, atol=1e-6), plan
        assert torch.allclose(scaled(plan, unscale=True), plain, atol=1e-6), plan
    ssgd, post = {"name": "ssgd"}, {"name": "post-local-sgd", "switch_step": 2, "tau": 2}
    assert torch.equal(scaled(ssgd), scaled(ssgd, 0.0))
    for plan in (ssgd, post, {"name": "ssgd-bucketed", "overlap": False}):
        with pytest.raises(InputError, match="leave out unscale_"):
            scaled(plan, unscale=True)
    for plan in (ssgd | CODED, {"name": "dts", "delay": 2}):
        with pytest.raises(InputError, match="bfloat16"):
            scaled(plan)


def test_a_state_of_another_plan_is_refused():
    def saved(**parameters):
        net, session = session_of_one_layer("diloco", **parameters)
        for _ in range(3):
            net(torch.ones(1, 4)).sum().backward()
            session.step(0.0)
        with session:
            session.change(tau=parameters["tau"] + 1)
            return copy.deepcopy(session.state_dict())

    def loaded(state, **parameters):
        net, session = session_of_one_layer("diloco", **parameters)
        with session:
            session.load_state_dict(state)
            net(torch.ones(1, 4)).sum().backward()
            session.step(0.0)
            return session.settings["tau"], session.plan.parameters["outer_lr"]

    state = saved(tau=5, outer_lr=0.5)
    assert loaded(state, tau=5, outer_lr=0.5) == (6, 0.5)
    with pytest.raises(InputError, match=r"tau = 5, and the plan has tau = 9; deploy state"):
        loaded(state, tau=9, outer_lr=0.5)
    for key, value, message in (
        ("workers", 3, "processes is 3, here it is 1"), ("rank", 1, "process is 1"),
        ("program", "local-sgd", "is local-sgd, here it is diloco; deploy state"),
        ("version", 1, "version is 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            loaded(state | {key: value}, tau=5, outer_lr=0.5)


def test_what_cannot_be_steered_is_refused():
    net = Net()
    with pytest.raises(InputError, match="needs a scenario to predict from"):
        paceline.deploy(net, SGD(net.parameters(), lr=0.1), "local-sgd", adapt=True, tau=4)
    with pytest.raises(InputError, match="simulate with these first"):
        paceline.deploy(net, SGD(net.parameters(), lr=0.1), ".", adapt=True, tau=4)
    with paceline.deploy(net, SGD(net.parameters(), lr=0.1), "ssgd") as session:
        assert session.decisions == []
        with pytest.raises(InputError, match="ssgd has no setting that can be changed"):
            session.steer(None)
        with pytest.raises(InputError, match="tau: ssgd has no tau that can change"):
            session.change(tau=2)
    with paceline.deploy(net, SGD(net.parameters(), lr=0.1), "local-sgd", tau=4) as it:
        for tau in (0, 2.5):
            with pytest.raises(InputError, match="tau"):
                it.change(tau=tau)
        assert it.settings == {"tau": 4}
