"""A local step costs next to nothing; a session holds what its program needs."""

import itertools
import re
import threading
import time
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
from paceline.deploy import session as sessions
from paceline.deploy import transport as links
from paceline.validate.host import device as devices
from paceline.validate.training import transport
from tests.helpers import late
from tests.helpers.cases import looped

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
PARAMETERS = 30_000_000
STEP = 0.020  # seconds
ALLOWED = 0.01
STEPS = 64
TENSORS, LR = 150, 0.1
MOMENTUM = {"dts": 0.9}
PLANS = {  # those with a period end a round at each step
    "ssgd": {}, "ssgd-bucketed": {"overlap": False}, "local-sgd": {"tau": 1},
    "post-local-sgd": {"switch_step": 0, "tau": 1}, "fedavg": {"tau": 1}, "bmuf": {"tau": 1},
    "diloco": {"tau": 1}, "delayed-diloco": {"tau": 1}, "eager-diloco": {"tau": 1},
    "cocod-sgd": {"tau": 1}, "overlap-local-sgd": {"tau": 1}, "easgd": {"tau": 1}, "d-psgd": {},
    "d2": {}, "dts": {"delay": 2}, "hpsgd": {},
}  # fmt: skip
UNTIMED = {"d-psgd", "d2", "hpsgd"}  # messages, and means that depend on arrivals
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
    optimizer = SGD(net.parameters(), LR, momentum=MOMENTUM.get(plan["name"], 0.0))
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
    """An optimizer that stays, so that nothing but the session's own work is timed."""

    def step(self, closure=None):
        pass


def seconds(step):
    """Return the processor's seconds of a step, the least of four tries."""
    results = []
    for _ in range(4):
        begin = time.process_time()
        for _ in range(STEPS):
            step()
        results.append((time.process_time() - begin) / STEPS)
    return min(results)


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
        ({"name": "ssgd"}, 5 * 1000 + 50),
    ],
)
def test_a_local_step_launches_next_to_nothing(plan, most):
    """A thousand tensors. A mean of gradients makes five views per tensor, of no device's work."""
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
    """Return rank 0's parameters, and after each of 12 steps its waits, reads and means so far.

    `move`: brings tensors to their device.
    """
    store, waits, wait = torch.distributed.HashStore(), Counter(), late.Event.synchronize
    plan = {"name": name, **{key: n + 2 if key == "tau" else n for key, n in CASES[name].items()}}

    def synchronize(event):
        waits[threading.current_thread()] += 1
        wait(event)

    def train(rank):
        net = nn.ParameterList(nn.Parameter(move(torch.ones(4, 4))) for _ in range(3))
        optimizer, counts = SGD(net.parameters(), 0.1, MOMENTUM.get(name, 0.0)), []
        draw, me = torch.Generator().manual_seed(rank), threading.current_thread()
        with paceline.deploy(net, optimizer, plan) as session:
            for _ in range(13):
                means = session._transport.collectives.settled
                counts.append((waits[me], len(late.home().spins), means))
                for parameter in net:
                    parameter.grad = move(torch.randn(4, 4, generator=draw))
                session.step(move(torch.rand((), generator=draw)))
            return devices.host(session._live.now()).clone(), counts

    def place(mesh):
        return links.Place(store, late.LOCAL.rank, 2, late.LOCAL.rank, 2)

    with monkeypatch.context() as patch:
        patch.setattr(late.Event, "synchronize", synchronize)
        patch.setattr(sessions, "place", place)
        patch.setattr(links, "_numbers", itertools.repeat(0))
        return late.ranks(2, train)[0]


@looped("name", sorted({*CASES} - UNTIMED))
@looped("native", [False, True])
def test_a_session_waits_for_its_device_at_means_alone(name, native, monkeypatch):
    """Once at a mean's numbers, and for NCCL's end; the parameters are those of a CPU."""
    monkeypatch.setattr(transport, "CHUNK", 32)
    monkeypatch.setenv("PACELINE_STORE", "here")
    with late.device(monkeypatch):
        expected, _ = on_two_ranks(name, torch.Tensor.clone, monkeypatch)
        monkeypatch.setattr(links.Transport, "_native", lambda self, where: native)
        actual, counts = on_two_ranks(name, late.Late, monkeypatch)
    assert torch.equal(actual, expected)
    waits, reads, means = np.diff(counts, axis=0).T
    losses = 5 * (name == "adacomm") * (means > 0)  # of which the round's mean is made
    assert (waits == means * (1 + native) + losses).all()
    assert not reads.any()
    assert means.sum() > 2


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


@pytest.mark.long
@looped("plan", [
    {"name": "local-sgd", "tau": 10**6}, {"name": "diloco", "tau": 10**6},
    {"name": "streaming-diloco", "tau": 10**6}, {"name": "cocod-sgd", "tau": 10**6},
    {"name": "adacomm", "tau0": 10**6},
])  # fmt: skip
def test_a_local_step_costs_below_a_hundredth_of_20_ms(plan):
    """Thirty million parameters in 150 tensors, beside a bare loop on the same ones."""
    size = int((PARAMETERS / 150) ** 0.5)
    net = nn.ParameterList(nn.Parameter(torch.zeros(size, size)) for _ in range(TENSORS))
    for parameter in net:
        parameter.grad = torch.zeros(1).expand(size, size)
    optimizer, loss = Still(net.parameters(), 0.1), torch.tensor(1.0, requires_grad=True)
    with paceline.deploy(net, optimizer, plan) as session:
        session.step(loss)
        bare = seconds(optimizer.step)
        cost = seconds(lambda: session.step(loss))
    print(f"{plan['name']}: {1e6 * (cost - bare):.0f} us a step")
    assert cost - bare < ALLOWED * STEP


@pytest.mark.long
@looped("name", PLANS)
def test_a_session_holds_the_vectors_that_the_page_says(name):
    """So that a copy more, or a vector kept in vain, is noticed: counted as torch makes them."""
    row = re.search(rf"^\| `{name}` (?:\| -?[\d.]+ ){{2}}", PAGE.read_text("utf-8"), re.M)
    assert [float(part) for part in row[0].split("|")[2:]] == counted({"name": name, **PLANS[name]})
