"""A local step costs next to nothing; a session holds what its program needs."""

import itertools
import re
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD, AdamW
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from paceline.deploy import plan as plans
from paceline.deploy import session as sessions
from paceline.deploy import transport as links
from paceline.validate.host import device as devices
from paceline.validate.training import transport
from tests.helpers import late
from tests.helpers.cases import looped

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
TENSORS, LR = 150, 0.1
MOMENTUM = {"dts": 0.9}
PLANS = {  # those with a period end a round at each step
    "ssgd": {}, "ssgd-bucketed": {"overlap": False}, "local-sgd": {"tau": 1},
    "post-local-sgd": {"switch_step": 0, "tau": 1}, "fedavg": {"tau": 1}, "bmuf": {"tau": 1},
    "diloco": {"tau": 1}, "delayed-diloco": {"tau": 1}, "eager-diloco": {"tau": 1},
    "cocod-sgd": {"tau": 1}, "overlap-local-sgd": {"tau": 1}, "easgd": {"tau": 1},
    "dts": {"delay": 2}, "hpsgd": {},
}  # fmt: skip
UNTIMED = {"hpsgd"}  # its means depend on arrivals
CASES = PLANS | {"streaming-diloco": {"tau": 4}, "adacomm": {"tau0": 3}}


class Vectors(TorchDispatchMode):
    """Counts the vectors that torch makes under it, in lengths of the model's.

    `most`: that there were at once; `held`: that there are. Not counted: `given`.
    """

    def __init__(self, entries, given):
        super().__init__()
        self._entries, self.most = entries, 0.0
        storages = [tensor.untyped_storage() for tensor in given]
        self._given = {storage._cdata: StorageWeakRef(storage) for storage in storages}
        self._known = {}  # of those made here that were there at last: reference, and size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and self._takes_in(tensor.untyped_storage()):
                self.most = max(self.most, self.held)
        return made

    def _takes_in(self, storage):
        size = storage.nbytes() / self._entries / 4
        entry = self._known.get(storage._cdata)
        new = storage._cdata not in self._given and (entry is None or entry[0].expired())
        if actual := new and size > 1 / TENSORS / 2:
            self._known[storage._cdata] = StorageWeakRef(storage), size
        return actual

    @property
    def held(self):
        left = {key: value for key, value in self._known.items() if not value[0].expired()}
        self._known = left
        return sum(size for _, size in left.values())


class Alone:
    """A group of one process, whose sums are there at once, and held by nobody.

    gloo's threads let go of a buffer when they come to it.
    """

    def allreduce(self, tensors):
        return self

    def is_completed(self):
        return True

    def wait(self):
        return True


def network(entries):
    """Return parameters of so many entries in all, with gradients."""
    size = max(1, round((entries / TENSORS) ** 0.5))
    net = nn.ParameterList(nn.Parameter(torch.zeros(size, size)) for _ in range(TENSORS))
    for parameter in net:
        parameter.grad = torch.full((size, size), 1e-3)
    return net


def counted(plan, entries=1_500_000):
    """Return vectors, beside gradients, that a session holds between steps, and at most in a step.

    Of six steps after six, whose gradients torch makes anew. It divides as one of two.
    """
    net = network(entries)
    given = [parameter.grad for parameter in net]
    momentum = 0.0 if "inner" in plan else MOMENTUM.get(plan["name"], 0.0)
    optimizer = SGD(net.parameters(), LR, momentum=momentum)
    with Vectors(sum(parameter.numel() for parameter in net), given) as count:
        session = paceline.deploy(net, optimizer, plan)
        session._transport.collectives.scale = lambda *_: 0.5
        session._transport.team._group = Alone()
        held = []
        for step in range(12):
            for parameter, gradient in zip(net, given, strict=True):
                parameter.grad = gradient
            if step == 6:
                count.most = count.held
            session.step(0.0)
            for parameter in net:
                parameter.grad = None
            if step >= 6:
                held.append(count.held)
        session.close()
    return [round(max(held), 1), round(count.most, 1)]


class Still(SGD):
    """An optimizer that stays, and reads no rate."""

    def step(self, closure=None):
        pass


def operators(step):
    """Return how often each operator runs in a third step, by name."""
    for _ in range(2):
        step()
    with profile() as seen:
        step()
    return Counter(event.name for event in seen.events())


@looped(
    ("plan", "most"),
    [
        ({"name": "local-sgd", "tau": 10**6}, 10),
        ({"name": "diloco", "tau": 10**6}, 10),
        ({"name": "streaming-diloco", "tau": 10**6}, 10),
        ({"name": "ssgd"}, 1000 + 50),
    ],
)
def test_a_local_step_launches_next_to_nothing(plan, most):
    """A thousand tensors. A mean of gradients makes a view per tensor, of no device's work."""
    net = nn.ParameterList(nn.Parameter(torch.zeros(2, 2)) for _ in range(1000))
    for parameter in net:
        parameter.grad = torch.ones(2, 2)
    optimizer, loss = AdamW(net.parameters()), torch.tensor(1.0, requires_grad=True)
    bare = operators(optimizer.step)
    with paceline.deploy(net, optimizer, plan) as session:
        more = operators(lambda: session.step(loss)) - bare
    assert more.total() <= most
    assert more["aten::item"] == more["aten::_local_scalar_dense"] == 0
    views = "view", "slice", "narrow", "as_strided"
    assert more.total() - sum(more[f"aten::{name}"] for name in views) <= 50


def on_two_ranks(name, move, monkeypatch):
    """Return rank 0's parameters, stated and pinned bytes, and waits, reads, means up to each step.

    `move`: brings tensors to their device.
    """
    store, waits, wait = torch.distributed.HashStore(), Counter(), late.Event.synchronize
    plan = {"name": name, **{key: n + 2 if key == "tau" else n for key, n in CASES[name].items()}}

    def synchronize(event):
        waits[threading.current_thread()] += 1
        wait(event)

    def train(rank):
        net = nn.ParameterList(nn.Parameter(move(torch.ones(32, 32))) for _ in range(3))
        optimizer, counts = SGD(net.parameters(), 0.1, MOMENTUM.get(name, 0.0)), []
        draw, me = torch.Generator().manual_seed(rank), threading.current_thread()
        with paceline.deploy(net, optimizer, plan) as session:
            for _ in range(13):
                means = session._transport.collectives.settled
                counts.append((waits[me], len(late.home().spins), means))
                for parameter in net:
                    parameter.grad = move(torch.randn(32, 32, generator=draw))
                session.step(move(torch.rand((), generator=draw)))
            host, pinned = session.memory["host"], late.home().most
            return devices.host(session._live.now()).clone(), host, pinned, counts

    with monkeypatch.context() as patch:
        patch.setattr(late.Event, "synchronize", synchronize)
        patch.setattr(
            sessions, "place", lambda _: links.Place(store, r := late.LOCAL.rank, 2, r, 2)
        )
        patch.setattr(links, "_numbers", itertools.repeat(0))
        return late.ranks(2, train)[0]


@looped("name", sorted({*CASES} - UNTIMED))
@looped("native", [False, True])
def test_a_session_waits_for_its_device_at_means_alone(name, native, monkeypatch):
    """Once at a mean's numbers, and for NCCL's end; the parameters are a CPU's to rounding."""
    for module in (transport, sessions):
        monkeypatch.setattr(module, "CHUNK", 2000)
    monkeypatch.setenv("PACELINE_STORE", "here")
    with late.device(monkeypatch):
        expected, *_ = on_two_ranks(name, torch.Tensor.clone, monkeypatch)
        monkeypatch.setattr(links.Transport, "_native", lambda self, where: native)
        actual, memory, pinned, counts = on_two_ranks(name, late.Late, monkeypatch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)
    waits, reads, means = np.diff(counts, axis=0).T
    losses = 5 * (name == "adacomm") * (means > 0)  # of which the round's mean is made
    assert (waits == means * (1 + native) + losses).all()
    assert not reads.any()
    assert means.sum() > 2
    assert memory == 0 if native else 0.4 < pinned / memory < 1.5


def test_a_rate_on_a_device_is_noted_without_a_wait(monkeypatch):
    def train(rank):
        net = nn.ParameterList([nn.Parameter(late.Late(torch.ones(4)))])
        optimizer = Still(net.parameters(), 0.1)
        with paceline.deploy(net, optimizer, {"name": "diloco", "tau": 9}) as session:
            optimizer.param_groups[0]["lr"] = late.Late(torch.tensor(0.1))
            net[0].grad = late.Late(torch.ones(4))
            for _ in range(6):
                session.step(late.Late(torch.tensor(1.0)))
            assert not late.home().spins
            assert session.state_dict()["rates"] == [6, [1], [pytest.approx(0.1)]]

    with late.device(monkeypatch):
        late.ranks(1, train)


VARIANTS = [
    *({"name": "dts", "delay": delay, "period": n} for delay in (0, 1, 4) for n in (1, 2, 3)),
    *({"name": "dts", "delay": delay, "inner": "adamw"} for delay in (0, 1, 4)),
    *({"name": "streaming-diloco", "tau": 6, "overlap": late, "fragments": 3} for late in (1, 5)),
    {"name": "fedavg", "tau": 1, "mu": 0.1}, {"name": "local-sgd", "tau": 1, "outer": 0.9},
    {"name": "adacomm", "tau0": 1}, {"name": "fedavg", "tau": 1, "mu": 0.1, "outer": 0.9},
]  # fmt: skip


@pytest.mark.long
@looped("plan", [*({"name": name, **more} for name, more in PLANS.items()), *VARIANTS])
def test_a_session_holds_what_the_page_and_its_plan_state(plan):
    """So that a copy more, or a vector kept in vain, is noticed: counted as torch makes them."""
    actual, limits = counted(plan), plans.read(plan, {}, 1, 1000).vectors
    row = re.search(rf"^\| `{plan['name']}` (?:\| -?[\d.]+ ){{2}}", PAGE.read_text("utf-8"), re.M)
    if plan not in VARIANTS:
        assert [float(part) for part in row[0].split("|")[2:]] == actual
    for vectors, limit in zip(actual, limits, strict=False):
        assert vectors <= limit <= 1.3 * vectors + 2
